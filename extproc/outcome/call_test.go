package outcome_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/outcome"
)

// These final statuses of a call mean that its engine failed, although the HTTP status is 200.
func TestStatusesOfCalls(t *testing.T) {
	faulty := map[string]bool{"UNKNOWN": true, "INTERNAL": true, "UNAVAILABLE": true, "DATA_LOSS": true}
	seen := 0
	for code := range uint8(20) {
		c := outcome.CallOf(code)
		if got, ok := c.Code(); got != code || !ok {
			t.Errorf("%d is %d, %v", code, got, ok)
		}
		if c.String() == "" || code > 16 && c.String() != "OTHER" {
			t.Errorf("%d is called %q", code, c)
		}
		if c.Faulty() {
			seen++
		}
		o := outcome.Outcome{Status: 200, Call: c, Endpoint: "a"}
		if want := faulty[c.String()]; c.Faulty() != want || o.Faulty() != want || o.Well() == want {
			t.Errorf("%s: faulty %v, its outcome %v, well %v", c, c.Faulty(), o.Faulty(), o.Well())
		}
	}
	if seen != len(faulty) {
		t.Errorf("%d are faults, want %d", seen, len(faulty))
	}
	if _, ok := outcome.NoCall.Code(); ok || outcome.NoCall.String() != "" || outcome.NoCall.Faulty() || outcome.CallOf(0) != outcome.OK {
		t.Error("NoCall has a status")
	}
}
