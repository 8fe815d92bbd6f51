package outcome_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/outcome"
)

func TestOnlyTheEndpointsOwnFailuresTurnRequestsAway(t *testing.T) {
	for failure, want := range map[outcome.Failure]bool{
		outcome.None: false, outcome.Refused: true, outcome.Reset: true, outcome.TimedOut: false,
		outcome.ClientGone: false, outcome.NoEndpoint: false, outcome.Other: false,
	} {
		if got := (outcome.Outcome{Failure: failure}).Turned(); got != want {
			t.Errorf("%q: %v", failure, got)
		}
	}
}
