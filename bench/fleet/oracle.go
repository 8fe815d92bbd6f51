package fleet

import (
	"math"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/sim"
)

// oracle simulates each request on copies of all engines, with true output lengths. It picks the
// endpoint where the fewest requests miss their objectives; among equals, the one with the earliest
// first token. It does not know future arrivals, so better policies may exist. A run takes minutes.
type oracle struct {
	// try returns how many more requests miss their objectives if r goes to an endpoint, and the
	// time of r's first token there.
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

func (p *oracle) Scraped(float64, int, engine.Load) {}
func (p *oracle) Ended(float64, *Request, int)      {}

// predict simulates endpoint i with and without a request, from the requests that it has now. It
// returns how many more requests miss their objectives, and the time of the request's first token.
func (r *run) predict(i int, is *Request) (missed int, firstToken float64) {
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

// misses simulates c, a copy of the engine of e, until all requests have ended, and returns how
// many miss their objectives. It stores the result of the request id in own; an id of 0 means none.
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
				is = r.results[e.inFlight[ev.ID].number]
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
