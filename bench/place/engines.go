package place

import (
	"fmt"
	"math/rand/v2"

	"github.com/headgate/headgate/bench/traffic"
	"github.com/headgate/headgate/internal/sim"
)

// engine is the step model of an endpoint's engine. All of its models share one batch, like
// adapters of a base model.
type engine struct {
	*sim.Engine
	awake    bool // the next step of the engine is scheduled
	inFlight map[sim.ID]flight
}

// flight is a request that an engine is serving.
type flight struct {
	number int
	by     *Copy
}

// setEngines gives each endpoint an engine, and each request a length.
func (f *Fleet) setEngines(seed uint64) error {
	f.lengths = traffic.Conversations(rand.New(rand.NewPCG(seed, 5)), len(f.Requests)) //nolint:gosec // no secret
	f.first = make([]float32, len(f.Requests))
	for i := range f.Nodes {
		draws := rand.New(rand.NewPCG(seed, 6+uint64(i))) //nolint:gosec // no secret
		e, err := sim.New(*f.Engine, draws.NormFloat64)
		if err != nil {
			return err
		}
		f.engines = append(f.engines, engine{Engine: e, inFlight: make(map[sim.ID]flight)})
	}
	return nil
}

// submit adds a request to the engine of a copy. No two prompts share a prefix.
func (f *Fleet) submit(number int, c *Copy) {
	of := f.lengths[number]
	tokens := make([]uint32, of.Prompt)
	for i := range tokens {
		tokens[i] = uint32(number) //nolint:gosec // there are fewer
	}
	e := &f.engines[c.Endpoint]
	id, err := e.Submit(f.Now(), sim.Request{Prompt: tokens, Output: make([]uint32, of.Output)})
	if err != nil {
		panic(fmt.Sprintf("place: a request of %d and %d tokens: %v", of.Prompt, of.Output, err))
	}
	e.inFlight[id] = flight{number, c}
	f.wake(c.Endpoint)
}

// wake schedules the next step of an engine, if there is one.
func (f *Fleet) wake(endpoint int) {
	e := &f.engines[endpoint]
	at, ok := e.Next()
	if e.awake || !ok {
		return
	}
	e.awake = true
	f.loop.At(at, func() {
		e.awake = false
		var ended []*Copy
		for _, ev := range e.Advance(f.Now()) {
			switch of := e.inFlight[ev.ID]; {
			case ev.Kind == sim.Token && ev.Index == 0:
				f.first[of.number] = float32(f.Now() - f.Requests[of.number].At)
			case ev.Kind == sim.Finished:
				delete(e.inFlight, ev.ID)
				ended = append(ended, of.by)
			}
		}
		f.wake(endpoint)
		for _, c := range ended {
			f.ended(c)
		}
	})
}
