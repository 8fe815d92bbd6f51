package limits_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
)

// The tokens of an answer count if the engine reports them; otherwise the estimate stays.
func TestTokensOf(t *testing.T) {
	type result struct {
		tokens int64
		known  bool
	}
	is := func(change func(*outcome.Outcome)) outcome.Outcome {
		o := outcome.Outcome{Status: 200, Endpoint: "10.0.0.1:8000", Prompt: engine.Known(100), Completion: engine.Known(20)}
		change(&o)
		return o
	}
	none := engine.Value{}
	for name, c := range map[string]struct {
		o    outcome.Outcome
		want result
	}{
		"usage":                     {is(func(*outcome.Outcome) {}), result{120, true}},
		"usage of a cut stream":     {is(func(o *outcome.Outcome) { o.Stream, o.Failure = true, outcome.ClientGone }), result{120, true}},
		"embeddings":                {is(func(o *outcome.Outcome) { o.Completion = none }), result{100, true}},
		"a stream without its last": {is(func(o *outcome.Outcome) { o.Completion, o.Stream = none, true }), result{0, false}},
		"a cut stream of messages": {is(func(o *outcome.Outcome) {
			o.Completion, o.Stream, o.Failure = none, true, outcome.Cut
		}), result{0, false}},
		"no usage":    {is(func(o *outcome.Outcome) { o.Prompt, o.Completion = none, none }), result{0, false}},
		"an error":    {is(func(o *outcome.Outcome) { o.Prompt, o.Completion, o.Status = none, none, 500 }), result{0, true}},
		"no endpoint": {is(func(o *outcome.Outcome) { o.Prompt, o.Completion, o.Endpoint = none, none, "" }), result{0, true}},
	} {
		tokens, known := limits.TokensOf(c.o)
		if got := (result{tokens, known}); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
