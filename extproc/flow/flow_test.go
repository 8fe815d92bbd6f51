package flow_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/leak"
)

var pools = [...]objects.Name{{Namespace: "ns", Name: "a"}, {Namespace: "ns", Name: "b"}}

// anyView returns a random view: some models have copies, some copies are at their limit, and some
// models have failed to load.
func anyView(random *rand.Rand) *endpointstate.View {
	v := &endpointstate.View{Snapshot: &pick.Snapshot{Pools: make(map[string]*pick.Pool)}, Failures: make(map[objects.ModelKey]string)}
	for _, pool := range pools {
		if random.IntN(6) == 0 {
			continue
		}
		p := &pick.Pool{Endpoints: []*pick.Endpoint{{Address: "10.0.0.1:8000"}}}
		p.Copies = make(map[string][]pick.Copy)
		for i := range 3 {
			model := fmt.Sprint("m", i)
			if random.IntN(2) == 0 {
				count := new(pick.Count)
				c := pick.Copy{Model: model, InFlight: count}
				if random.IntN(2) == 0 {
					c.Limited = true
					count.Limit.Store(1)
					count.Add(1)
				}
				p.Copies[model] = []pick.Copy{c}
			}
			if random.IntN(4) == 0 {
				v.Failures[objects.ModelKey{Pool: pool, ID: model}] = [...]string{"load_failed", "unknown_model"}[random.IntN(2)]
			}
		}
		v.Snapshot.Pools[pool.String()] = p
	}
	return v
}

// anyRequest returns a random request.
func anyRequest(random *rand.Rand) flow.Request {
	return flow.Request{
		Key: objects.ModelKey{Pool: pools[random.IntN(2)], ID: fmt.Sprint("m", random.IntN(3))}, Placed: random.IntN(3) > 0,
		Path:  queue.Path{Band: int32(random.IntN(2)), Route: pools[random.IntN(2)], Share: 1, Tenant: random.Uint64N(3)},
		Bytes: int64(random.IntN(30)),
	}
}

// When every request has called Leave, in any order and perhaps twice, the queue and its maps are
// empty.
func TestEndedFlowIsEmpty(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		view := anyView(random)
		f := flow.New(flow.Config{View: func() *endpointstate.View { return view }, MaxQueued: 5, MaxBytes: 100})
		var waiting, called []*flow.Ticket
		var charges []*flow.Charge
		for range 300 {
			switch random.IntN(9) {
			case 8:
				f.ControlLost(random.IntN(2) == 0)
			case 0, 1, 2:
				if ticket, err := f.Enqueue(anyRequest(random), time.Unix(1e9, 0)); err == nil {
					waiting = append(waiting, ticket)
				}
			case 3:
				view = anyView(random)
				f.Published(view)
			case 4:
				f.Freed("10.0.0.1:8000", fmt.Sprint("m", random.IntN(3)))
			case 5: // requests that were called either continue or wait again
				var rest []*flow.Ticket
				for _, ticket := range waiting {
					select {
					case err := <-ticket.Turn():
						if err == nil && random.IntN(3) == 0 {
							ticket.Back(flow.Reason(random.IntN(4)), time.Time{}, nil)
							rest = append(rest, ticket)
						} else {
							called = append(called, ticket)
						}
					default:
						rest = append(rest, ticket)
					}
				}
				waiting = rest
			case 6:
				if len(waiting) > 0 { // a request gives up before it is called
					i := random.IntN(len(waiting))
					waiting[i].Leave()
					waiting = append(waiting[:i], waiting[i+1:]...)
				}
			case 7:
				for _, ticket := range called {
					if random.IntN(2) == 0 {
						is := flow.Service{InTokens: random.IntN(2) == 0, Fixed: 1, PerToken: 1}
						charges = append(charges, ticket.Dispatch(is, time.Unix(1e9, 0)))
					}
					ticket.Leave()
				}
				if random.IntN(2) == 0 { // calls Leave a second time
					continue
				}
				called = nil
			}
		}
		for _, ticket := range append(waiting, called...) {
			ticket.Leave()
		}
		for _, c := range charges {
			c.Ended(random.Int64N(10)-1, time.Unix(1e9+1, 0))
		}
		if requests, bytes := f.Queued(); requests != 0 || bytes != 0 {
			t.Errorf("seed %d: %d requests wait, with %d bytes", seed, requests, bytes)
		}
		for path, n := range leak.Maps(f) {
			if n != 0 {
				t.Errorf("seed %d: %s has %d entries", seed, path, n)
			}
		}
		for _, pool := range pools {
			for i := range 3 {
				if f.Busy(&flow.Request{Key: objects.ModelKey{Pool: pool, ID: fmt.Sprint("m", i)}}) {
					t.Errorf("seed %d: requests wait for m%d in %v", seed, i, pool)
				}
			}
		}
		if t.Failed() {
			return
		}
	}
}
