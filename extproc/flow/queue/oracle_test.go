package queue_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/extproc/flow/queue"
)

// history applies the same random operations to a queue and to the oracle.
type history struct {
	t        *testing.T
	random   *rand.Rand
	queue    *queue.Queue[int]
	naive    *naive
	places   map[int]*queue.Place[int]
	requests map[int]*nrequest
	open     []pair
	joined   int
	ended    map[int]int // how often each request has left
}

type pair struct {
	account *queue.Account[int]
	naive   *naccount
}

// request returns a random request of few flows, with a plausible or a bad estimate.
func (h *history) request() queue.Request {
	r := h.random
	service := float64(1+r.IntN(40)) / 8
	switch r.IntN(20) {
	case 0:
		service = 0
	case 1:
		service = []float64{math.NaN(), -1, math.Inf(1), math.Inf(-1), 1e300}[r.IntN(5)]
	}
	name := string(rune('a' + r.IntN(3)))
	path := queue.Path{Route: route(name), Share: int32(r.IntN(4)), Tenant: r.Uint64N(3), Program: r.Uint64N(2)}
	if path.Band = int32(name[0]) % 2; r.IntN(30) == 0 {
		path.Band = int32(r.IntN(3)) - 1
	}
	return queue.Request{Path: path, Model: string(rune('m' + r.IntN(4))), Service: service, Bytes: r.Int64N(100)}
}

func (h *history) join() {
	r := h.request()
	h.joined++
	h.places[h.joined], h.requests[h.joined] = h.queue.Join(h.joined, r), h.naive.join(h.joined, r)
}

// any returns a random waiting request, or 0.
func (h *history) any() int {
	if len(h.naive.requests) == 0 {
		return 0
	}
	return h.naive.requests[h.random.IntN(len(h.naive.requests))].name
}

func (h *history) leave(name int) {
	h.queue.Leave(h.places[name])
	h.queue.Leave(h.places[name])
	h.naive.leave(h.requests[name])
	h.end(name)
}

func (h *history) dispatch(name int) {
	a := h.queue.Dispatch(h.places[name])
	if h.queue.Dispatch(h.places[name]) != nil {
		h.t.Error("a request was dispatched twice")
	}
	h.open = append(h.open, pair{a, h.naive.dispatch(h.requests[name])})
	h.end(name)
}

func (h *history) end(name int) {
	h.ended[name]++
	delete(h.places, name)
	delete(h.requests, name)
}

func (h *history) settle(i int, total float64) {
	p := h.open[i]
	p.account.Settle(total)
	p.account.Settle(0)
	p.account.Charge(1e6)
	h.naive.settle(p.naive, total)
	h.open = append(h.open[:i], h.open[i+1:]...)
}

// step applies one random operation and returns its name.
func (h *history) step() string {
	r := h.random
	name := h.any()
	switch op := r.IntN(100); {
	case op < 30:
		h.join()
		return "join"
	case op < 50:
		if p := h.queue.Next(); p != nil {
			h.dispatch(p.Waiter)
			return "dispatch the next"
		}
	case op < 53 && name > 0:
		h.dispatch(name)
		return "dispatch any"
	case op < 58 && name > 0:
		h.leave(name)
		return "leave"
	case op < 72:
		model, ready := string(rune('m'+r.IntN(4))), r.IntN(2) == 0
		h.queue.SetReady(model, ready)
		h.naive.setReady(model, ready)
		return "ready"
	case op < 80 && len(h.open) > 0:
		p, total := h.open[r.IntN(len(h.open))], r.Float64()*10
		p.account.Charge(total)
		h.naive.charge(p.naive, total)
		return "charge"
	case op < 92 && len(h.open) > 0:
		h.settle(r.IntN(len(h.open)), r.Float64()*6)
		return "settle"
	case op < 95:
		n, band, share := route(string(rune('a'+r.IntN(3)))), int32(r.IntN(3))-1, int32(r.IntN(5))
		h.queue.Reprioritize(n, band, share)
		h.naive.reprioritize(n, band, share)
		return "reprioritize"
	case op < 97 && name > 0:
		service := r.Float64() * 5
		h.queue.SetService(h.places[name], service)
		h.requests[name].service = service
		return "service"
	}
	return "nothing"
}

func (h *history) compare() {
	same := func(what string, p *queue.Place[int], r *nrequest) {
		if (p == nil) != (r == nil) || p != nil && p.Waiter != r.name {
			h.t.Fatalf("%s: %v, want %v", what, p, r)
		}
	}
	same("next", h.queue.Next(), h.naive.first(func(r *nrequest) bool { return h.naive.ready[r.model] }))
	same("first", h.queue.First(), h.naive.first(func(*nrequest) bool { return true }))
	band, byBytes := int32(h.random.IntN(3))-1, h.random.IntN(2) == 0
	same("victim", h.queue.Victim(band, byBytes), h.naive.victim(band, byBytes))
	r := h.request()
	service, part := h.queue.Ahead(r)
	wantService, wantPart := h.naive.ahead(r)
	if close := 1e-6 * (1 + wantService); math.Abs(service-wantService) > close || math.Abs(part-wantPart) > 1e-9 {
		h.t.Fatalf("ahead: %v and %v, want %v and %v", service, part, wantService, wantPart)
	}
	if d := h.queue.Debug(); d.Requests != len(h.naive.requests) || d.Nodes != len(h.naive.nodes) || d.Accounts != len(h.naive.accounts) ||
		d.Models != len(h.naive.ready) {
		h.t.Fatalf("sizes: %+v, want %d requests, %d nodes, %d accounts, %d models", d,
			len(h.naive.requests), len(h.naive.nodes), len(h.naive.accounts), len(h.naive.ready))
	}
}

func TestOrderIsThatOfTheOracle(t *testing.T) {
	for seed := range uint64(80) {
		h := &history{
			t: t, random: rand.New(rand.NewPCG(seed, 40)), queue: queue.New[int](), naive: newNaive(),
			places: make(map[int]*queue.Place[int]), requests: make(map[int]*nrequest), ended: make(map[int]int),
		}
		for i := range 300 {
			done := h.step()
			h.compare()
			if t.Failed() {
				t.Fatalf("seed %d, step %d: after %s", seed, i, done)
			}
		}
		for name := h.any(); name > 0; name = h.any() {
			h.leave(name)
			h.compare()
		}
		for len(h.open) > 0 {
			h.settle(0, h.random.Float64())
			h.compare()
		}
		if d := h.queue.Debug(); d != (queue.Debug{}) {
			t.Fatalf("seed %d: left at the end: %+v", seed, d)
		}
		for name := 1; name <= h.joined; name++ {
			if h.ended[name] != 1 {
				t.Fatalf("seed %d: request %d ended %d times", seed, name, h.ended[name])
			}
		}
	}
}
