package outcome_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/outcome"
)

// Endpoints that refused or dropped a request, or that lack its model, are scraped at once.
func TestWhichEndpointsAreScrapedAtOnce(t *testing.T) {
	for failure, want := range map[outcome.Failure]bool{
		outcome.None: false, outcome.Refused: true, outcome.Reset: true, outcome.TimedOut: false,
		outcome.ClientGone: false, outcome.NoEndpoint: false, outcome.Other: false,
	} {
		o := outcome.Outcome{Failure: failure, Endpoint: "a"}
		if got := slices.Contains(o.Suspicious(), "a"); got != want {
			t.Errorf("%q: %v", failure, got)
		}
		o = outcome.Outcome{Failure: failure, Unreached: []string{"b"}, Missing: []string{"c"}}
		if got := o.Suspicious(); !slices.Equal(got, []string{"b", "c"}) {
			t.Errorf("%q: it scrapes %v, want b and c", failure, got)
		}
	}
}

// Only a stream that succeeded at its first endpoint yields a load time.
func TestLoadTimeOfAStream(t *testing.T) {
	whole := outcome.Outcome{
		Adapter: "storage", Stream: true, Status: 200, Attempts: 1, Endpoint: "a",
		FirstBody: 500 * time.Millisecond, Expected: 300 * time.Millisecond, Loading: 200 * time.Millisecond,
	}
	if late, tells := whole.Loaded(); !tells || late != 400*time.Millisecond {
		t.Errorf("Loaded is %v: %v, want 400 ms", late, tells)
	}
	for name, spoil := range map[string]func(*outcome.Outcome){
		"its adapter was nowhere": func(o *outcome.Outcome) { o.Adapter = "" },
		"no stream":               func(o *outcome.Outcome) { o.Stream = false },
		"no first token":          func(o *outcome.Outcome) { o.FirstBody = 0 },
		"nothing expected":        func(o *outcome.Outcome) { o.Expected = 0 },
		"cut":                     func(o *outcome.Outcome) { o.Failure = outcome.Cut },
		"an error":                func(o *outcome.Outcome) { o.Status = 404 },
		"tried twice":             func(o *outcome.Outcome) { o.Attempts = 2 },
		"another was unreachable": func(o *outcome.Outcome) { o.Unreached = []string{"b"} },
		"another rejected it":     func(o *outcome.Outcome) { o.Elsewhere = []string{"b"} },
	} {
		o := whole
		if spoil(&o); func() bool { _, tells := o.Loaded(); return tells }() {
			t.Errorf("%s: it gives a load time", name)
		}
	}
}

// Only a request without tokens that succeeded at its first endpoint yields a service time: its
// duration divided by the number of concurrent requests.
func TestServiceTimeOfARequest(t *testing.T) {
	whole := outcome.Outcome{Among: 4, Answered: 100 * time.Millisecond, Status: 200, Attempts: 1, Endpoint: "a"}
	call := whole
	call.Call = outcome.OK
	for _, o := range []outcome.Outcome{whole, call} {
		if alone, tells := o.Alone(); !tells || alone != 25*time.Millisecond {
			t.Errorf("Alone is %v: %v, want 25 ms", alone, tells)
		}
	}
	for name, spoil := range map[string]func(*outcome.Outcome){
		"one with tokens":         func(o *outcome.Outcome) { o.Among = 0 },
		"nonsense":                func(o *outcome.Outcome) { o.Among = -1 },
		"no end":                  func(o *outcome.Outcome) { o.Answered = 0 },
		"cut":                     func(o *outcome.Outcome) { o.Failure = outcome.Cut },
		"an error":                func(o *outcome.Outcome) { o.Status = 404 },
		"a call that failed":      func(o *outcome.Outcome) { o.Call = outcome.CallOf(3) },
		"a fault in a call":       func(o *outcome.Outcome) { o.Call = outcome.CallOf(13) },
		"by extproc":              func(o *outcome.Outcome) { o.ByExtproc = true },
		"tried twice":             func(o *outcome.Outcome) { o.Attempts = 2 },
		"another was unreachable": func(o *outcome.Outcome) { o.Unreached = []string{"b"} },
		"another rejected it":     func(o *outcome.Outcome) { o.Elsewhere = []string{"b"} },
		"another lacks the model": func(o *outcome.Outcome) { o.Missing = []string{"b"} },
	} {
		o := whole
		if spoil(&o); func() bool { _, tells := o.Alone(); return tells }() {
			t.Errorf("%s: it gives a service time", name)
		}
	}
}
