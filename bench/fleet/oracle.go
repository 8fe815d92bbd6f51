package fleet

import (
	"math"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/sim"
)

// oracle tries each request on copies of the engines, with the answers as long as they will be, and sends it where the fewest of the
// requests that are there miss their objectives; of equals, where its own first token comes first. It knows no arrivals, so that it is no
// bound. It costs a roll of every engine for each request: some minutes a run.
type oracle struct {
	// try says how many more requests miss their objectives at an endpoint by one that goes there, and when its first token would come.
	try       func(endpoint int, r *Request) (missed int, firstToken float64)
	endpoints int
}

func newOracle(f Fleet, _ uint64) (Picker, error) { return &oracle{endpoints: f.Endpoints}, nil }

func (p *oracle) Pick(_ float64, r *Request) int {
	best, least, first := 0, math.MaxInt, math.Inf(1)
	for i := range p.endpoints {
		missed, at := p.try(i, r)
		if missed < least || missed == least && at < first {
			best, least, first = i, missed, at
		}
	}
	return best
}

func (p *oracle) Saw(float64, int, engine.Load) {}
func (p *oracle) Ended(float64, *Request, int)  {}

// foresee says what comes of a request that goes to an endpoint now, by what is there.
func (r *run) foresee(i int, is *Request) (missed int, firstToken float64) {
	e := &r.endpoints[i]
	without := e.Copy(nil)
	with := e.Copy(nil)
	id, err := with.Submit(r.loop.Now(), sim.Request{Adapter: is.Adapter, Prompt: is.Prompt, Output: answer(is.Output)})
	if err != nil {
		return math.MaxInt, math.Inf(1)
	}
	own := Result{At: is.At, Prompt: len(is.Prompt), Output: is.Output}
	before := r.misses(e, without, 0, nil)
	after := r.misses(e, with, id, &own)
	return after - before, own.FirstToken
}

// misses rolls a copy of an endpoint on until all have ended, and counts those that miss their objectives. Of the request of an id, 0 for
// none, it notes what became.
func (r *run) misses(e *endpoint, c *sim.Engine, id sim.ID, own *Result) (n int) {
	for {
		at, ok := c.Next()
		if !ok {
			return n
		}
		for _, ev := range c.Advance(max(at, r.loop.Now())) {
			if ev.Kind != sim.Finished {
				continue
			}
			var is Result
			if ev.ID == id {
				is = *own
			} else {
				is = r.results[e.flying[ev.ID].number]
			}
			is.FirstToken, is.LastToken = ev.Record.FirstToken, ev.Record.LastToken
			if ev.ID == id {
				*own = is
			}
			if !DefaultObjectives.keeps(r.Profile, is) {
				n++
			}
		}
	}
}
