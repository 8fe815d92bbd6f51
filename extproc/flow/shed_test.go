package flow_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// twoModels returns a flow in whose pool model "warm" has a copy with room. Model "other" has none,
// or one without room.
func twoModels(other *pick.Copy) (f *flow.Flow, request func(id string, longest time.Duration) flow.Request, load func()) {
	p := &pick.Pool{Endpoints: []*pick.Endpoint{{Address: "10.0.0.1:8000"}}}
	p.Copies = map[string][]pick.Copy{"warm": {{Model: "warm", InFlight: new(pick.Count)}}}
	if other != nil {
		p.Copies["other"] = []pick.Copy{*other}
	}
	view := &endpointstate.View{Snapshot: &pick.Snapshot{Pools: map[string]*pick.Pool{pools[0].String(): p}}, World: new(objects.World)}
	f = flow.New(flow.Config{View: func() *endpointstate.View { return view }, MaxQueued: 100, MaxBytes: 1 << 20})
	request = func(id string, longest time.Duration) flow.Request {
		return flow.Request{
			Key: objects.ModelKey{Pool: pools[0], ID: id}, Placed: true, Path: queue.Path{Route: pools[0], Share: 1}, Longest: longest,
		}
	}
	return f, request, func() {
		p.Copies["other"] = []pick.Copy{{Model: "other", InFlight: new(pick.Count)}}
		f.Published(view)
	}
}

// dispatch sends a called request, which ends at once.
func dispatch(t *testing.T, ticket *flow.Ticket) {
	t.Helper()
	if err := <-ticket.Turn(); err != nil {
		t.Fatal(err)
	}
	c := ticket.Dispatch(flow.Service{Fixed: 1}, time.Now())
	ticket.Leave()
	c.Ended(1, time.Now())
}

// While a request waits for its model to load, or for a copy at its concurrency limit, requests of
// its flow for a model with room are not late.
func TestOneModelMakesNoOtherLate(t *testing.T) {
	full := &pick.Copy{Model: "other", InFlight: new(pick.Count), Limited: true}
	full.InFlight.Limit.Store(1)
	full.InFlight.Add(1)
	for name, other := range map[string]*pick.Copy{"not loaded": nil, "at its limit": full} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f, request, _ := twoModels(other)
				waits := enqueue(t, f, request("other", 0))
				for range 60 {
					time.Sleep(2 * time.Second)
					var both [2]*flow.Ticket
					for i := range both {
						ticket, err := f.Enqueue(request("warm", time.Second), time.Now())
						if err != nil {
							t.Fatal(err)
						}
						both[i] = ticket
					}
					dispatch(t, both[0])
					dispatch(t, both[1])
				}
				waits.Leave()
				if requests, _ := f.Queued(); requests != 0 {
					t.Errorf("%d requests are left", requests)
				}
			})
		})
	}
}

// Requests for a copy at its concurrency limit are not late only because the service time of their
// model became known while they waited: ten are served per second, and ten wait.
func TestLearnedServiceTimesMakeNoRequestLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		is := &pick.Copy{Model: "other", InFlight: new(pick.Count), Limited: true}
		is.InFlight.Limit.Store(1)
		is.InFlight.Add(1)
		f, request, _ := twoModels(is)
		send := func(service float64) *flow.Ticket {
			r := request("other", 5*time.Second)
			r.Service = flow.Service{Fixed: service}
			return enqueue(t, f, r)
		}
		var all []*flow.Ticket
		for range 10 {
			all = append(all, send(0.001))
		}
		for n := range 100 {
			time.Sleep(100 * time.Millisecond)
			is.InFlight.Add(-1)
			f.Freed("a:1", "other")
			dispatch(t, all[0])
			is.InFlight.Add(1)
			service := 0.001
			if n >= 20 {
				service = 0.1
			}
			all = append(all[1:], send(service))
		}
		for _, ticket := range all {
			ticket.Leave()
		}
	})
}

// Requests that waited for the load of their model count when they then wait for room.
func TestLoadedModelMakesItsRequestsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, request, load := twoModels(nil)
		var all []*flow.Ticket
		for range 8 {
			all = append(all, enqueue(t, f, request("other", 0)))
		}
		time.Sleep(2 * time.Minute)
		all = append(all, enqueue(t, f, request("other", time.Second))) // no load is predicted
		load()
		for range 5 { // one request per second
			dispatch(t, all[0])
			all = all[1:]
			turn(t, all[0])
			all[0].Back(flow.Room, time.Time{}, nil)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if _, err := f.Enqueue(request("other", time.Second), time.Now()); !errors.As(err, new(flow.Late)) {
			t.Errorf("behind 4 requests, one of which is served per second: %v", err)
		}
		ticket, err := f.Enqueue(request("other", 20*time.Second), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		for _, ticket := range append(all, ticket) {
			ticket.Leave()
		}
	})
}
