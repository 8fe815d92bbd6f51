package placementclient_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/internal/objects"
)

// A stream begins with the states of all endpoints and with the requests that reach the process. A
// changed state follows within about a second.
func TestStatesOfEndpointsAreReported(t *testing.T) {
	r := newRig(t)
	s := r.next()
	serving := func(e string) bool { return s.states[e] == placement.EndpointState_SERVING }
	s.until("both serve", func() bool { return serving(a) && serving(b) })
	s.mu.Lock()
	if !s.plane.GetPicker() || s.plane.GetPool() != "ns/p" {
		t.Errorf("the data plane is %v", s.plane)
	}
	s.mu.Unlock()
	r.fleet.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Refused(a, now) })
	s.until("one is out", func() bool { return s.states[a] == placement.EndpointState_OUT })
	r.fleet.SetWorld(objects.Build(objects.Set{}))
	s.until("both are gone", func() bool { return len(s.states) == 0 })
}

func TestWantedModelsAreReportedAtOnce(t *testing.T) {
	r := newRig(t)
	s := r.next()
	began := time.Now()
	ticket := r.wait("m")
	s.until("m is wanted", func() bool { return s.wanted["m"].GetRequests() == 1 })
	ticket.Leave()
	s.until("m is wanted no more", func() bool { return s.wanted["m"] == nil })
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("reporting them took %v", took)
	}
}

// For a thousand requests for one model, the client reports their number in one message. When the
// copy is loaded, the requests proceed in the order in which they arrived.
func TestThousandRequestsForOneModel(t *testing.T) {
	r := newRig(t)
	s := r.next()
	s.say(complete())
	s.inForce()
	const requests = 1000
	var tickets []*flow.Ticket
	for range requests {
		tickets = append(tickets, r.wait("m"))
	}
	s.until("all are wanted", func() bool { return s.wanted["m"].GetRequests() == requests })
	s.mu.Lock()
	if s.reports > 20 {
		t.Errorf("there were %d reports", s.reports)
	}
	s.mu.Unlock()
	var order []int
	var mu sync.Mutex
	var all sync.WaitGroup
	for n, ticket := range tickets {
		all.Go(func() {
			if err := <-ticket.Turn(); err != nil {
				t.Error(err)
			}
			mu.Lock()
			order = append(order, n)
			mu.Unlock()
			ticket.Leave()
		})
	}
	released := time.Now()
	s.say(&placement.Update{Copies: []*placement.Copy{is("m", a, placement.Copy_LOADED)}})
	all.Wait()
	t.Logf("%d requests continued within %v", requests, time.Since(released))
	if !slices.IsSorted(order) || len(order) != requests {
		t.Errorf("%d continued, not in the order in which they came", len(order))
	}
	s.until("nobody waits", func() bool { return s.wanted["m"] == nil })
}

func TestFailureEndsWaitsUntilItIsOver(t *testing.T) {
	r := newRig(t)
	s := r.next()
	s.say(complete())
	s.inForce()
	ticket := r.wait("m")
	s.say(&placement.Update{Failures: []*placement.Failure{{Key: wireKey("m"), Reason: "load_failed"}}})
	if err := <-ticket.Turn(); !errors.Is(err, flow.Failed{Reason: "load_failed"}) {
		t.Errorf("the request gets %v", err)
	}
	ticket.Leave()
	if _, err := r.flow.Enqueue(flow.Request{Key: key("m"), Placed: true, Bytes: 1}, time.Now()); !errors.Is(err, flow.Failed{Reason: "load_failed"}) {
		t.Errorf("the next request gets %v", err)
	}
	s.say(&placement.Update{Failures: []*placement.Failure{{Key: wireKey("m")}}})
	r.await("it may be requested again", func() bool {
		ticket, err := r.flow.Enqueue(flow.Request{Key: key("m"), Placed: true, Bytes: 1}, time.Now())
		if err == nil {
			ticket.Leave()
		}
		return err == nil
	})
}

// While control is away, its last state remains in effect until control has sent its complete state
// again. Then only the new state applies.
func TestLastStateStaysUntilTheNextIsComplete(t *testing.T) {
	r := newRig(t)
	s := r.next()
	s.say(&placement.Update{
		Copies:    []*placement.Copy{is("old", a, placement.Copy_LOADED)},
		Endpoints: &placement.Endpoints{Addresses: []string{a, b}},
	})
	s.say(&placement.Update{
		Complete: true, Copies: []*placement.Copy{is("both", a, placement.Copy_LOADED)},
		Registered: []*placement.Registered{{Key: wireKey("old")}},
	})
	s.inForce()
	if !r.has("old") || !r.has("both") {
		t.Fatal("an incomplete state is in force")
	}
	ticket := r.wait("new")
	s.until("it is wanted", func() bool { return s.wanted["new"] != nil })

	process := s.process
	r.control.stop()
	r.control = r.serve()
	s = r.next()
	s.until("waiting requests are reported again", func() bool { return s.wanted["new"].GetRequests() == 1 })
	if s.process != process || s.applied != 0 {
		t.Errorf("the process is %s, it was %s; applied is %d", s.process, process, s.applied)
	}
	s.say(&placement.Update{Copies: []*placement.Copy{is("new", b, placement.Copy_LOADED)}})
	if !r.has("old") || r.has("new") {
		t.Error("the last state is not kept until the next one is complete")
	}
	s.say(complete(is("both", b, placement.Copy_LOADED)))
	s.inForce()
	if r.has("old") || !r.has("new") || !r.has("both") {
		t.Errorf("old %v, new %v, both %v", r.has("old"), r.has("new"), r.has("both"))
	}
	if _, ok := r.fleet.Registered("old", func(p objects.Name) bool { return p == thePool }); ok {
		t.Error("an obsolete registration is still in force")
	}
	if err := <-ticket.Turn(); err != nil {
		t.Error(err)
	}
	ticket.Leave()
}

// The acknowledgement of an unload means that no more requests begin at the copy. It contains the
// number of requests that are in flight there.
func TestUnloadIsAcknowledgedWithRequestsInFlight(t *testing.T) {
	r := newRig(t)
	s := r.next()
	s.say(complete(is("m", a, placement.Copy_LOADED)))
	s.inForce()
	first, _ := r.begin("m", 1)
	second, _ := r.begin("m", 2)
	v := s.say(&placement.Update{Copies: []*placement.Copy{is("m", a, placement.Copy_UNLOADING)}})
	there := uint32(99)
	s.until("it is acknowledged", func() bool {
		if there == 99 && s.applied == v {
			there = s.inFlight["m@"+a]
		}
		return s.applied == v
	})
	if there != 2 || r.has("m") {
		t.Errorf("with the acknowledgement %d requests are in flight, want 2; a request would find the copy: %v", there, r.has("m"))
	}
	began := time.Now()
	first.End()
	second.End()
	s.until("none is in flight", func() bool { return s.inFlight["m@"+a] == 0 })
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("the end of the last request was reported after %v", took)
	}
}

// Control gets the acknowledgement of a VModel's switch only after the switch has taken effect. On
// a new stream, it gets the acknowledgement again at the start.
func TestSwitchIsAcknowledgedWhenItIsInForce(t *testing.T) {
	r := newRig(t)
	goes := func(active string) []*placement.VModel {
		return []*placement.VModel{{Key: wireKey("sql"), Active: active}}
	}
	expect := func(when, want string) {
		t.Helper()
		if got := r.fleet.Active(r.fleet.View().World, key("sql")); got != want {
			t.Errorf("%s requests go to %s, want %s", when, got, want)
		}
	}
	s := r.next()
	u := complete(is("sql-v1", a, placement.Copy_LOADED), is("sql-v2", b, placement.Copy_LOADED))
	u.Vmodels = goes("sql-v1")
	s.say(u)
	s.inForce()
	expect("in the beginning", "sql-v1")
	for _, active := range []string{"sql-v2", "sql-v1", "sql-v2"} {
		s.say(&placement.Update{Vmodels: goes(active)})
		s.inForce()
		expect("after a switch", active)
	}
	r.control.stop()
	r.control = r.serve()
	s = r.next()
	expect("on another stream", "sql-v2")
	s.say(complete())
	s.inForce()
	expect("when the complete state does not have it", "sql")
}

func TestUseIsReportedOnceASecond(t *testing.T) {
	r := newRig(t)
	s := r.next()
	s.say(complete(is("m", a, placement.Copy_LOADED)))
	s.inForce()
	flight, _ := r.begin("m", 1)
	for range 4 {
		other, _ := r.begin("m", 2)
		other.End()
	}
	s.until("the use is reported", func() bool { return s.used["m"] == 5 && s.inFlight["m@"+a] == 1 })
	flight.End()
	s.until("it has ended", func() bool { return s.inFlight["m@"+a] == 0 })
	if s.reports > 8 {
		t.Errorf("there were %d reports", s.reports)
	}
}

func TestMissingCopyIsReported(t *testing.T) {
	r := newRig(t)
	s := r.next()
	s.say(complete(is("m", a, placement.Copy_LOADED)))
	s.inForce()
	r.fleet.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) {
		s.ModelMissing(endpointstate.CopyKey{ModelKey: key("m"), Endpoint: a}, r.fleet.Now(), now)
	})
	s.until("it is missing", func() bool { return slices.Equal(s.missing, []string{"m@" + a}) })
}

// If an endpoint refuses connections, its copies are unusable, which is reported to control.
func TestUnusableCopiesAreReported(t *testing.T) {
	r := newRig(t)
	s := r.next()
	s.say(complete(is("m", a, placement.Copy_LOADED)))
	s.inForce()
	r.fleet.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Refused(a, now) })
	ticket := r.wait("m")
	s.until("it is wanted elsewhere", func() bool { return slices.Equal(s.wanted["m"].GetUnusable(), []string{a}) })
	ticket.Leave()
}

// If a response shows that an engine is stopping, this is reported to control at once, and again on
// each new stream. A report that came from control is not sent back to control.
func TestStoppingEngineIsReported(t *testing.T) {
	r := newRig(t)
	s := r.next()
	s.say(complete(is("m", a, placement.Copy_LOADED), is("m", b, placement.Copy_LOADED)))
	s.inForce()
	began := time.Now()
	r.fleet.Update(fleet.Soon, func(s *endpointstate.State, _ time.Time) { s.Stopping(a, began) })
	s.until("control is told that a is stopping", func() bool { return s.leaving[a] != nil && s.leaving[a].StoppingMs != nil })
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("control was told after %v", took)
	}
	s.say(&placement.Update{Leaving: []*placement.Leaving{{Endpoint: b, StoppingMs: new(uint64(0))}}})
	s.inForce()
	if all := r.fleet.View().Unusable(key("m")); !slices.Equal(all, []string{a, b}) {
		t.Errorf("unusable are %v, want both", all)
	}
	r.control.stop()
	r.control = r.serve()
	s = r.next()
	s.until("control is told again", func() bool { return s.leaving[a] != nil })
	if s.leaving[b] != nil {
		t.Error("control gets back what it sent itself")
	}
}

// The whole protocol of an unload, over the network: control unloads after the acknowledgement when
// nothing is in flight, and at that time the engine has no requests.
func TestNoRequestAtAnUnloadedCopy(t *testing.T) {
	r := newRig(t)
	s := r.next()
	s.say(complete(is("m", a, placement.Copy_LOADED), is("m", b, placement.Copy_LOADED)))
	s.inForce()
	has := map[string]*atomic.Bool{a: {}, b: {}}
	has[a].Store(true)
	has[b].Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	var users sync.WaitGroup
	var served atomic.Int64
	for user := range 6 {
		users.Go(func() {
			random := rand.New(rand.NewPCG(uint64(user), 1))
			for ctx.Err() == nil {
				runtime.Gosched()
				flight, at := r.begin("m", random.Uint64())
				if flight == nil {
					continue
				}
				for range random.IntN(50) {
					runtime.Gosched()
					if !has[at].Load() {
						t.Error("a request is at an engine that has unloaded its model")
					}
				}
				served.Add(1)
				flight.End()
			}
		})
	}
	for round := range 200 {
		victim := []string{a, b}[round%2]
		v := s.say(&placement.Update{Copies: []*placement.Copy{is("m", victim, placement.Copy_UNLOADING)}})
		s.until("it is drained", func() bool { return s.applied >= v && s.inFlight["m@"+victim] == 0 })
		has[victim].Store(false)
		runtime.Gosched()
		has[victim].Store(true)
		s.say(&placement.Update{Copies: []*placement.Copy{is("m", victim, placement.Copy_LOADED)}})
	}
	cancel()
	users.Wait()
	t.Logf("%d requests", served.Load())
}
