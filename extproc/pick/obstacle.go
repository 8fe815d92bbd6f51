package pick

import (
	"fmt"
	"slices"
)

// obstacle is why a gate is closed.
type obstacle uint8

const (
	noObstacle obstacle = iota
	reservedRoom
	othersTurn
	noSlot
	fullWindow
	longQueue
	slowTokens
	fullBatch
	fullCache
)

// Obstacle returns why an endpoint has no room for the request, in a few words with numbers; empty
// if it has room, or if it cannot serve the request at all, see [Pool.Excluded]. The endpoint is
// given by its index.
func Obstacle(p Policy, s *Snapshot, r Request, endpoint int) string {
	pool := s.Pools[r.Pool]
	if !r.Gate.On || pool == nil || endpoint < 0 || pool.Excluded(endpoint, r) != "" {
		return ""
	}
	copies, _ := pool.admit(r) // there is one at this endpoint
	c := &copies[slices.IndexFunc(copies, func(c Copy) bool { return c.Endpoint == endpoint })]
	f, e := newForecast(r.Demand), pool.Endpoints[endpoint]
	trusted := p.Rule == Latency && !r.Tokenless && pool.Predictable
	var is Estimate
	if trusted {
		is = f.estimate(e, c)
	}
	return f.describe(f.obstacle(&r.Gate, e, c, trusted, &is), &r.Gate, e, c)
}

// describe describes an obstacle at copy c of an endpoint.
func (f *forecast) describe(o obstacle, g *Gate, e *Endpoint, c *Copy) string {
	if e.State == Stale || e.State == Lost {
		known := *e
		known.forget()
		e = &known
	}
	switch o {
	case reservedRoom:
		return "its room is reserved for a request that waits longer"
	case othersTurn:
		return "its room belongs to another extproc now"
	case noSlot:
		return fmt.Sprintf("all of its %d adapter slots are in use by other adapters", e.Slots)
	case fullWindow:
		return fmt.Sprintf("it has %d of at most %d requests", e.InFlight.Load(), g.places(e.window(g)))
	case longQueue:
		return fmt.Sprintf("its queued prompts take %.3g s, more than %.3g s", f.promptQueue(e, f.estimate(e, c).Step), g.Queue)
	case slowTokens:
		step, limit := f.estimate(e, c).Step, f.limit(g, e)
		if step <= limit {
			step /= max(1-lately(&e.Backlog.Computing, f.Now), leastLeft)
		}
		return fmt.Sprintf("a token would take %.3g s, more than %.3g s", step, limit)
	case fullBatch:
		return fmt.Sprintf("its batch has %d of at most %d requests", e.Pending(), g.places(e.sequences()))
	case fullCache:
		return fmt.Sprintf("its KV cache would have %.0f of at most %.0f tokens",
			e.usedKV()+f.prompt-f.cached(e), (1-g.Headroom)*float64(e.KVTokens))
	}
	return ""
}
