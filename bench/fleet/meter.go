package fleet

import (
	"maps"

	"github.com/headgate/headgate/internal/sim"
)

// Tokener is a Picker that is notified of each output token.
type Tokener interface {
	Token(r *Request)
}

// Sample is the state of a run at one time.
type Sample struct {
	At float64
	// Tokens is the number of output tokens so far. PromptTokens is the number of prompt tokens of
	// requests that have had a first token. Held is the number of requests that pickers hold.
	Tokens, PromptTokens uint64
	Held                 int
	// Seconds is the engine time of each tenant's requests so far: what they added to the times of
	// steps by the true profile. Time that steps take anyway belongs to nobody.
	Seconds map[string]float64
}

// meter counts output tokens and engine time.
type meter struct {
	tells   bool // pickers are notified of tokens
	samples []Sample
	seconds map[string]float64 // by tenant; nil without samples
}

// on reports whether tokens must be counted.
func (m *meter) on() bool { return m.tells || m.seconds != nil }

// sample schedules the samples.
func (r *run) sample() {
	if r.SampleInterval <= 0 {
		return
	}
	r.meter.seconds = make(map[string]float64)
	r.loop.Every(0, r.SampleInterval, func() bool {
		s := Sample{At: r.loop.Now(), Held: len(r.holding.held), Seconds: maps.Clone(r.meter.seconds)}
		for i := range r.endpoints {
			c := r.endpoints[i].Counts()
			s.Tokens, s.PromptTokens = s.Tokens+c.GeneratedTokens, s.PromptTokens+c.PromptTokens
		}
		r.meter.samples = append(r.meter.samples, s)
		return r.arriving || r.left > 0
	})
}

// metered counts a token of endpoint i.
func (r *run) metered(i int, ev sim.Event) {
	of, ok := r.endpoints[i].inFlight[ev.ID]
	if !ok {
		return
	}
	if r.meter.tells {
		r.pickers[of.picker].(Tokener).Token(of.r)
	}
	if r.meter.seconds == nil {
		return
	}
	p, is, took := &r.Profile, &r.results[of.number], 0.0
	if ev.Index == 0 {
		n := float64(is.Prompt - is.Cached)
		took = n*p.Prefill.PerToken + n*(n+2*float64(is.Cached))*p.Prefill.PerTokenSquared
	} else {
		took = p.Decode.PerSequence + p.Decode.PerKVToken*float64(is.Prompt+ev.Index)
	}
	if r.Speeds != nil {
		took /= r.Speeds[i]
	}
	r.meter.seconds[is.Client.Tenant] += took
}
