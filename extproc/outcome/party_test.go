package outcome_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/outcome"
)

func TestParty(t *testing.T) {
	for _, c := range []struct {
		is   outcome.Outcome
		want outcome.Party
	}{
		{outcome.Outcome{Status: 200}, outcome.Nobody},
		{outcome.Outcome{Status: 200, Call: outcome.OK}, outcome.Nobody},
		{outcome.Outcome{Status: 400}, outcome.Client},
		{outcome.Outcome{Status: 500}, outcome.Engine},
		{outcome.Outcome{Status: 501}, outcome.Engine},
		{outcome.Outcome{Status: 200, Call: outcome.CallOf(13)}, outcome.Engine},
		{outcome.Outcome{Status: 200, Call: outcome.CallOf(3)}, outcome.Client},
		{outcome.Outcome{Status: 200, Failure: outcome.Erred}, outcome.Engine},
		{outcome.Outcome{Status: 503, Failure: outcome.Refused}, outcome.Engine},
		{outcome.Outcome{Status: 502, Failure: outcome.Reset}, outcome.Engine},
		{outcome.Outcome{Status: 504, Failure: outcome.TimedOut}, outcome.Engine},
		{outcome.Outcome{Failure: outcome.ClientGone}, outcome.Client},
		{outcome.Outcome{Status: 200, Failure: outcome.Cut}, outcome.Unknown},
		{outcome.Outcome{Status: 503, Failure: outcome.NoEndpoint}, outcome.Gateway},
		{outcome.Outcome{Status: 503, ByExtproc: true}, outcome.Gateway},
		{outcome.Outcome{Status: 404, ByExtproc: true}, outcome.Client},
		{outcome.Outcome{Status: 429, ByExtproc: true}, outcome.Gateway},
		{outcome.Outcome{Status: 431, ByEnvoy: true}, outcome.Client},
		{outcome.Outcome{Status: 500, ByEnvoy: true}, outcome.Gateway},
		{outcome.Outcome{Status: 502, Failure: outcome.EngineGone, ByEnvoy: true}, outcome.Engine},
	} {
		if got := c.is.Party(); got != c.want {
			t.Errorf("%+v: %q, want %q", c.is, got, c.want)
		}
	}
}
