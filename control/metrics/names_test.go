package metrics

import (
	"testing"

	"github.com/headgate/headgate/test/surface"
)

// TestNames compares the names of control's metrics with the golden list.
func TestNames(t *testing.T) {
	m := New()
	surface.Check(t, "metrics-control", surface.Metrics(m.registry))
}
