package pick

import "fmt"

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
func Obstacle(p Policy, s *Snapshot, r Request, endpoint int) (why string) {
	if !r.Gate.On {
		return ""
	}
	r.Near = "" // visit other endpoints too
	eachGated(p, s, r, func(f *forecast, e *Endpoint, c *Copy, trusted bool) {
		if c.Endpoint == endpoint {
			var is Estimate
			if trusted {
				is = f.estimate(e, c)
			}
			why = f.describe(f.obstacle(&r.Gate, e, c, trusted, &is), &r.Gate, e, c)
		}
	})
	return why
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
		return fmt.Sprintf("its queued prompts take %.3g s, more than %.3g s", e.promptQueue(f.Now), g.Queue)
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
