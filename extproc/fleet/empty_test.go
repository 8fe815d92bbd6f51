package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/leak"
)

// history is a random history of a fleet, in which requests, endpoints and models begin and end.
type history struct {
	*rand.Rand
	fleet  *fleet.Fleet
	clock  *clock
	flying map[string]*fleet.InFlight // requests without a lease, by request id
	leased []string                   // ids of the requests with a lease
	asking []func()                   // functions that end waits for answers of control
	ids    int
}

var ips = [...]string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"}

func (h *history) ip() string      { return ips[h.IntN(len(ips))] }
func (h *history) address() string { return h.ip() + ":8000" }
func (h *history) model() string   { return fmt.Sprint("m", h.IntN(3)) }

// step applies one random event.
func (h *history) step() {
	f, at := h.fleet, h.address()
	update := func(change func(s *endpointstate.State, now time.Time)) {
		f.Update([...]fleet.When{fleet.Now, fleet.Soon, fleet.Later}[h.IntN(3)], change)
	}
	k := copyOf(h.model(), at)
	switch h.IntN(20) {
	case 0: // endpoints are removed, and come back
		var some []string
		for _, ip := range ips {
			if h.IntN(3) > 0 {
				some = append(some, ip)
			}
		}
		f.SetWorld(world(some...))
	case 1:
		f.SetModels(at, engine.Models{Base: []string{"llama"}, Adapters: []string{h.model(), h.model()}, Unlisted: h.IntN(3) == 0})
	case 2, 3:
		f.Scrape(at).Succeeded(engine.Load{
			Running: engine.Known(float64(h.IntN(3))), Waiting: engine.Known(0), Active: []string{h.model()},
			Started: engine.Known(float64(h.IntN(2))),
		})
	case 4:
		f.Scrape(at).Failed()
	case 5:
		update(func(s *endpointstate.State, now time.Time) {
			[...]func(string, time.Time){
				s.Refused, s.RequestRefused, s.ConnectionBroken, s.ProcessEnded, s.Full, s.RequestFailed,
				s.Stopping, s.RequestServed,
			}[h.IntN(8)](at, now)
		})
	case 6:
		update(func(s *endpointstate.State, now time.Time) {
			[...]func(endpointstate.CopyKey, time.Time, time.Time){s.ModelMissing, s.OwnNotFound}[h.IntN(2)](k,
				now.Add(-time.Duration(h.IntN(3))*time.Second), now)
		})
	case 7, 8, 9:
		f.ApplyPlacement(endpointstate.PlacementUpdate{
			All: h.IntN(10) == 0, Endpoints: governing(at, h.address()), Share: endpointstate.Share{Index: 0, Processes: 1 + h.IntN(2)},
			Copies: map[endpointstate.CopyKey]endpointstate.CopyState{k: endpointstate.CopyState(h.IntN(4))},
			Limits: map[endpointstate.CopyKey]int{k: h.IntN(3)},
			Others: map[endpointstate.CopyKey]int64{copyOf(h.model(), at): int64(h.IntN(2))},
		})
	case 10:
		f.ApplyPlacement(endpointstate.PlacementUpdate{
			Failures:   map[objects.ModelKey]string{model(h.model()): [...]string{"", "load_failed"}[h.IntN(2)]},
			Registered: map[objects.ModelKey]bool{model(h.model()): h.IntN(2) == 0},
			VModels:    map[objects.ModelKey]endpointstate.Switch{model("v" + h.model()): {Active: [...]string{"", "m1"}[h.IntN(2)]}},
			Leaving:    map[string]endpointstate.Leaving{at: {Terminating: h.IntN(2) == 0}},
			Methods:    map[string]engine.Methods{at: [...]engine.Methods{"", "ModelInfer"}[h.IntN(2)]},
		})
	case 11:
		update(func(s *endpointstate.State, now time.Time) {
			s.SetPeers([]endpointstate.Backlog{{Endpoint: at, Requests: int64(h.IntN(2))}}, fleet.Steady(now))
		})
	case 12:
		h.ask()
	case 13:
		h.clock.advance(time.Duration(h.IntN(3000)) * time.Millisecond)
		f.EndLeases()
	case 14, 15:
		h.end()
	default:
		h.begin()
	}
}

// begin sends a request. The request ends by a report, by a scrape, or by a call of its End.
func (h *history) begin() {
	f := h.fleet
	picks, err := pick.Pick(pick.Policy{Threshold: 4}, f.View().Snapshot, pick.Request{Pool: "ns/pool", Model: h.model()},
		make([]pick.Decision, 1))
	if err != nil {
		return
	}
	flight := f.Begin(picks[0])
	if flight == nil {
		return
	}
	h.ids++
	id := fmt.Sprint("r", h.ids)
	switch h.IntN(3) {
	case 0:
		f.Lease(id, flight, time.Duration(1+h.IntN(5))*time.Second)
		h.leased = append(h.leased, id)
	case 1:
		f.Keep(id, flight)
		fallthrough
	default:
		h.flying[id] = flight
	}
	if h.IntN(4) == 0 {
		f.Moved(flight, h.address())
	}
}

// end ends some requests, some of them twice, which must be harmless.
func (h *history) end() {
	for id, flight := range h.flying {
		if h.IntN(2) == 0 {
			continue
		}
		flight.End()
		h.fleet.Release(id)
		delete(h.flying, id)
	}
	if len(h.leased) > 0 {
		id := h.leased[h.IntN(len(h.leased))]
		h.fleet.Renew(id)
		if h.IntN(2) == 0 {
			h.fleet.Release(id)
		}
	}
}

// ask sends a request for an unknown model, so that the fleet asks control.
func (h *history) ask() {
	h.fleet.Answered(h.fleet.Question())
	if _, done, ok := h.fleet.AskControl(); ok {
		h.asking = append(h.asking, done)
	}
}

// When every request has ended and all objects are gone, every map of the fleet is empty and every
// count is zero.
func TestEndedFleetIsEmpty(t *testing.T) {
	for seed := range uint64(100) {
		c := &clock{time.Unix(1e9, 0)}
		f := fleet.New(fleet.Config{Now: c.now, Placed: seed%2 == 0})
		h := &history{rand.New(rand.NewPCG(seed, 0)), f, c, make(map[string]*fleet.InFlight), nil, nil, 0}
		f.SetWorld(world(ips[:]...))
		for range 400 {
			h.step()
		}
		state := fleet.Read(f, (*endpointstate.State).String)
		for id, flight := range h.flying {
			flight.End()
			f.Release(id)
		}
		c.advance(time.Hour)
		f.EndLeases()
		for _, done := range h.asking {
			done()
		}
		f.Answered(f.Question())
		for n := range 1000 { // the maximum number of requests that may ask control at once
			if _, _, ok := f.AskControl(); !ok {
				t.Fatalf("seed %d: %d requests still ask control", seed, 1000-n)
			}
		}
		f.ForgetQuestions()
		if l := f.Leases(); l.Current != 0 {
			t.Errorf("seed %d: %+v", seed, l)
		}
		for _, e := range fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(c.now()) }) {
			if e.InFlight != 0 || len(e.Models) != 0 {
				t.Errorf("seed %d: requests are left: %+v", seed, e)
			}
		}
		for _, id := range []string{"m0", "m1", "m2"} { // control removes its reports one by one
			f.ApplyPlacement(endpointstate.PlacementUpdate{
				Registered: map[objects.ModelKey]bool{model(id): false},
				VModels:    map[objects.ModelKey]endpointstate.Switch{model("v" + id): {}},
				Failures:   map[objects.ModelKey]string{model(id): ""},
			})
			for _, ip := range ips {
				k := copyOf(id, ip+":8000")
				f.ApplyPlacement(endpointstate.PlacementUpdate{
					Endpoints: governing(), Leaving: map[string]endpointstate.Leaving{k.Endpoint: {}},
					Methods: map[string]engine.Methods{k.Endpoint: ""},
					Copies:  map[endpointstate.CopyKey]endpointstate.CopyState{k: endpointstate.Gone},
					Others:  map[endpointstate.CopyKey]int64{k: 0},
				})
			}
		}
		fleet.Read(f, (*endpointstate.State).Usage)
		fleet.Read(f, (*endpointstate.State).TakeMissing)
		f.Update(fleet.Now, func(s *endpointstate.State, now time.Time) { s.ForgetPeers(fleet.Steady(now)) })
		f.SetWorld(objects.Build(objects.Set{}))
		for path, n := range leak.Maps(f) {
			if n != 0 && !strings.Contains(path, ".world.") { // the World's own map of object counts by kind may be non-empty
				t.Errorf("seed %d: %s has %d entries; before the end the state was\n%s", seed, path, n, state)
			}
		}
		if t.Failed() {
			return
		}
	}
}
