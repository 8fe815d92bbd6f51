package metrics

import (
	"testing"

	"github.com/headgate/headgate/test/surface"
)

// TestNames compares the names of extproc's metrics with the golden list.
func TestNames(t *testing.T) {
	m := New(nil)
	m.ReportHeld(nil)
	surface.Check(t, "metrics-extproc", surface.Metrics(m.registry))
}
