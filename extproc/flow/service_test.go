package flow

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/objects"
)

// pace is the tokens per second of the server of these tests. A second of engine time is as many
// tokens.
const pace = 10000

// sized returns a request of a tenant with this number of prompt tokens. Its answer has 100 tokens.
func sized(tenant uint64, prompt float64, inTokens bool) Request {
	name := objects.Name{Namespace: "ns", Name: "a"}
	is := Service{InTokens: true, Fixed: prompt, PerToken: Generated, Tokens: 100}
	if !inTokens {
		is = Service{Prompt: prompt, Fixed: prompt / pace, PerToken: Generated / pace, Tokens: 100}
	}
	return Request{
		Key: objects.ModelKey{Pool: name, ID: "m"}, Path: queue.Path{Route: name, Share: 1, Tenant: tenant}, Longest: time.Hour, Service: is,
	}
}

// server serves the waiting requests of a Flow one at a time.
type server struct {
	*Flow
	waiting []*Ticket
}

func (s *server) join(t *testing.T, r Request) *Ticket {
	t.Helper()
	ticket, err := s.Enqueue(r, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s.waiting = append(s.waiting, ticket)
	return ticket
}

// serve serves the next request, and returns it.
func (s *server) serve(t *testing.T) *Ticket {
	t.Helper()
	for i, ticket := range s.waiting {
		if len(ticket.Turn()) == 0 {
			continue
		}
		if err := <-ticket.Turn(); err != nil {
			t.Fatal(err)
		}
		s.waiting = append(s.waiting[:i:i], s.waiting[i+1:]...)
		is := ticket.request.Service
		c := ticket.Dispatch(is, time.Now())
		ticket.Leave()
		tokens := is.expected()
		if !is.InTokens {
			tokens *= pace
		}
		time.Sleep(time.Duration(tokens / pace * float64(time.Second)))
		c.Ended(100, time.Now())
		return ticket
	}
	t.Fatal("no request is called")
	return nil
}

// predicted returns the predicted wait of a newcomer.
func (s *server) predicted(t *testing.T, r Request) time.Duration {
	t.Helper()
	p := s.pools[r.Key.Pool]
	a, ok := p.arrival(&r, p.expected(&r), ready)
	_, wait, known := p.late.Pace(a, time.Now())
	if !ok || !known {
		t.Fatal("the wait is not predicted")
	}
	return wait
}

// Predicted waits follow the service that is queued, and not the number of requests. One tenant has
// prompts of 1,000 tokens, another of 10,000. That holds when a flow has just begun to wait, when
// its prompts become longer, and when the unit of service changes from tokens to engine time.
func TestWaitsArePredictedByService(t *testing.T) {
	for name, c := range map[string]struct {
		before, queued, own float64 // prompt tokens: of requests that were served, that wait, and of the newcomer
		tenant              uint64
		others              float64 // prompt tokens of the other tenant
	}{
		"short prompts beside long ones":        {1000, 1000, 1000, 1, 10000},
		"long prompts beside short ones":        {10000, 10000, 10000, 2, 1000},
		"a new tenant with short prompts":       {0, 1000, 1000, 1, 10000},
		"a new tenant with long prompts":        {0, 10000, 10000, 2, 1000},
		"the prompts of a tenant become longer": {1000, 10000, 1000, 1, 1000},
	} {
		for _, units := range [][2]bool{{true, true}, {false, false}, {true, false}, {false, true}} {
			t.Run(fmt.Sprint(name, ", in tokens: ", units), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					view := &endpointstate.View{Snapshot: &pick.Snapshot{}, World: new(objects.World)}
					s := &server{Flow: New(Config{View: func() *endpointstate.View { return view }, MaxQueued: 10000, MaxBytes: 1})}
					other := 3 - c.tenant
					for range int(2e6 / c.others) { // both tenants always have requests
						s.join(t, sized(other, c.others, units[0]))
					}
					if c.before > 0 {
						for range int(2e5 / c.before) {
							s.join(t, sized(c.tenant, c.before, units[0]))
						}
					}
					for began := time.Now(); time.Since(began) < 20*time.Second; {
						s.serve(t)
					}
					for len(s.waiting) > 0 && c.before != c.queued { // until none of the tenant's earlier requests wait
						n := 0
						for _, ticket := range s.waiting {
							if ticket.request.Path.Tenant == c.tenant {
								n++
							}
						}
						if n == 0 {
							break
						}
						s.serve(t)
					}
					for range 10 {
						s.join(t, sized(c.tenant, c.queued, units[1]))
					}
					own := sized(c.tenant, c.own, units[1])
					want, began := s.predicted(t, own), time.Now()
					last := s.join(t, own)
					for s.serve(t) != last {
					}
					got := time.Since(began)
					if ratio := want.Seconds() / got.Seconds(); ratio < 0.8 || ratio > 1.25 {
						t.Errorf("the request waits %.1f s, and %.1f s were predicted", got.Seconds(), want.Seconds())
					}
					for _, ticket := range s.waiting {
						ticket.Leave()
					}
				})
			})
		}
	}
}
