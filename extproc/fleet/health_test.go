package fleet_test

import (
	"bytes"
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// An endpoint's state is the result of the last request that began after the endpoint's last
// failure.
func TestFailureMakesASuspect(t *testing.T) {
	f, c := started()
	before := c.at
	c.advance(10 * time.Millisecond)
	f.Observe(outcome.Outcome{Endpoint: a, Status: 500})
	if got := f.View().Snapshot.Pools["ns/pool"].Endpoints[0].State; got != pick.Suspect {
		t.Fatalf("right after the fault the state is %v", got)
	}
	f.Observe(outcome.Outcome{Endpoint: a, Status: 200, Began: before, Duration: 20 * time.Millisecond})
	if got := states(view(f)); got != [2]pick.State{pick.Suspect, pick.Healthy} {
		t.Errorf("after a request that was in progress at the failure the states are %v", got)
	}
	c.advance(time.Millisecond)
	f.Observe(outcome.Outcome{Endpoint: a, Status: 404, Began: c.at})
	if got := f.View().Snapshot.Pools["ns/pool"].Endpoints[0].State; got != pick.Healthy {
		t.Errorf("right after a later request the state is %v", got)
	}
}

// A full endpoint is not faulty. It is suspect only for a moment, in which endpoints that are not
// full are preferred.
func TestFullEndpointIsASuspectForAMoment(t *testing.T) {
	f, c := started()
	c.advance(time.Millisecond)
	for _, address := range []string{a, b} {
		f.Observe(outcome.Outcome{Endpoint: address, Status: 503, Elsewhere: []string{address}})
	}
	if got := states(view(f)); got != [2]pick.State{pick.Suspect, pick.Suspect} ||
		len(fleet.Read(f, (*endpointstate.State).FailOpen)) != 0 {
		t.Errorf("with both full the states are %v, failing open %v", got, fleet.Read(f, (*endpointstate.State).FailOpen))
	}
	f.Observe(outcome.Outcome{Endpoint: a, Status: 200, Began: c.at.Add(time.Millisecond)})
	if got := f.View().Snapshot.Pools["ns/pool"].Endpoints; got[0].State != pick.Healthy || got[1].State != pick.Suspect {
		t.Errorf("after one served a request the states are %v and %v", got[0].State, got[1].State)
	}
	c.advance(time.Second)
	see(f, a, engine.Load{})
	see(f, b, engine.Load{})
	if got := states(view(f)); got != [2]pick.State{pick.Healthy, pick.Healthy} {
		t.Errorf("a second later the states are %v", got)
	}
}

func TestFailuresOfEndpoints(t *testing.T) {
	for _, o := range []struct {
		name string
		outcome.Outcome
		want pick.State
	}{
		{"500", outcome.Outcome{Status: 500}, pick.Suspect},
		{"503", outcome.Outcome{Status: 503}, pick.Suspect},
		{"elsewhere", outcome.Outcome{Status: 503, Elsewhere: []string{a}}, pick.Suspect},
		{
			"elsewhere, and served there",
			outcome.Outcome{Status: 200, Elsewhere: []string{a}, Began: time.Unix(1e9, 0), Endpoint: b},
			pick.Suspect,
		},
		{"unreached, and served elsewhere", outcome.Outcome{Status: 200, Unreached: []string{a}, Endpoint: b}, pick.Stale},
		{"refused", outcome.Outcome{Status: 503, Failure: outcome.Refused}, pick.Out},
		{"reset", outcome.Outcome{Status: 200, Failure: outcome.Reset}, pick.Stale},
		{"not implemented", outcome.Outcome{Status: 501}, pick.Healthy},
		{"the request's own", outcome.Outcome{Status: 400}, pick.Healthy},
		{"our reply", outcome.Outcome{Status: 503, ByExtproc: true}, pick.Healthy},
		{"client gone", outcome.Outcome{Status: 200, Failure: outcome.ClientGone}, pick.Healthy},
		{"cut by nobody knows whom", outcome.Outcome{Status: 200, Failure: outcome.Cut}, pick.Healthy},
	} {
		f, c := started()
		c.advance(time.Millisecond)
		o.Endpoint = cmp.Or(o.Endpoint, a)
		f.Observe(o.Outcome)
		if got := states(view(f)); got != [2]pick.State{o.want, pick.Healthy} {
			t.Errorf("%s: the states are %v, want %v first", o.name, got, o.want)
		}
	}
}

// If most endpoints that answer scrapes are suspect, the requests are probably at fault: all
// endpoints are used, which is logged once.
func TestAllAreUsedWhenMostAreSuspect(t *testing.T) {
	var log bytes.Buffer
	c := &clock{time.Unix(1e9, 0)}
	f := fleet.New(fleet.Config{Now: c.now, Log: slog.New(slog.NewTextHandler(&log, nil))})
	f.SetWorld(world("10.0.0.1", "10.0.0.2", "10.0.0.3"))
	all := []string{a, b, "10.0.0.3:8000"}
	for _, address := range all {
		see(f, address, engine.Load{})
	}
	f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.RequestFailed(a, now) })
	if p := view(f); p.Endpoints[0].State != pick.Suspect || len(fleet.Read(f, (*endpointstate.State).FailOpen)) != 0 {
		t.Errorf("one of three is %v", p.Endpoints[0].State)
	}
	f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.RequestFailed(b, now) })
	for range 3 {
		if p := view(f); p.Endpoints[0].State != pick.Healthy || p.Endpoints[1].State != pick.Healthy {
			t.Errorf("two of three are %v and %v", p.Endpoints[0].State, p.Endpoints[1].State)
		}
	}
	if got := fleet.Read(f, (*endpointstate.State).FailOpen); len(got) != 1 || got[0] != "ns/pool" {
		t.Errorf("pools that fail open: %v", got)
	}
	c.advance(time.Millisecond)
	f.Update(fleet.Soon, func(s *endpointstate.State, _ time.Time) { s.RequestServed(a, c.at) })
	if p := view(f); p.Endpoints[1].State != pick.Suspect || len(fleet.Read(f, (*endpointstate.State).FailOpen)) != 0 {
		t.Errorf("one of three again is %v", p.Endpoints[1].State)
	}

	// All endpoints are silent for a long time: the scrapes may be at fault.
	c.advance(time.Minute)
	if p := view(f); p.Endpoints[0].State != pick.Lost || len(fleet.Read(f, (*endpointstate.State).FailOpen)) != 1 {
		t.Errorf("all silent: %v", p.Endpoints[0].State)
	}
	if n := strings.Count(log.String(), "most endpoints of the pool look unhealthy"); n != 2 {
		t.Errorf("it is logged %d times, want 2:\n%s", n, log.String())
	}
}

// A load report in a response has the effect of a scrape, for the values that it contains, unless a
// later scrape has newer values.
func TestLoadReportCountsAsAScrape(t *testing.T) {
	f, c := started()
	c.advance(999 * time.Millisecond)
	f.Observe(outcome.Outcome{
		Endpoint: a, Status: 200, Began: c.at.Add(-time.Second / 2), Duration: time.Second / 2, Load: engine.Load{Waiting: engine.Known(7)},
	})
	c.advance(999 * time.Millisecond)
	if got := states(view(f)); got != [2]pick.State{pick.Healthy, pick.Stale} {
		t.Errorf("the states are %v", got)
	}
	if got := fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status {
		return s.Endpoints(f.Now())
	})[0].Load.Waiting; got != engine.Known(7) {
		t.Errorf("%v requests are pending", got)
	}
	see(f, a, engine.Load{Waiting: engine.Known(1)})
	f.Update(fleet.Later, func(s *endpointstate.State, now time.Time) {
		s.LoadReported(a, engine.Load{Waiting: engine.Known(9)}, c.at.Add(-time.Millisecond), now)
	})
	f.Update(fleet.Later, func(s *endpointstate.State, now time.Time) {
		s.LoadReported(a, engine.Load{Waiting: engine.Known(9)}, c.at.Add(time.Hour), now)
	}) // the time of the report is in the future
	f.Update(fleet.Later, func(s *endpointstate.State, now time.Time) { s.LoadReported(a, engine.Load{}, c.at, now) })
	if got := fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status {
		return s.Endpoints(f.Now())
	})[0].Load.Waiting; got != engine.Known(1) {
		t.Errorf("after older reports %v requests are pending", got)
	}
}

func TestLeaseEndsOnce(t *testing.T) {
	f, c := started()
	view(f)
	counted := func() int64 {
		return fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) })[0].InFlight +
			fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) })[1].InFlight
	}
	requests := map[string]*fleet.InFlight{}
	for _, id := range []string{"reported", "ended", "late"} {
		requests[id] = f.Begin(decide(t, f, "sql"))
		f.Lease(id, requests[id], time.Minute)
	}
	f.Observe(outcome.Outcome{ID: "reported", Endpoint: a, Status: 200})
	f.Release("reported")
	f.Release("nobody's")
	requests["ended"].End()
	f.Release("ended")
	if l := f.Leases(); l.Current != 1 || l.Expired != 0 || counted() != 1 {
		t.Errorf("%+v, %d in flight", l, counted())
	}
	c.advance(time.Minute)
	f.EndLeases()
	if f.Leases().Current != 1 {
		t.Error("it ends too early")
	}
	c.advance(time.Millisecond)
	f.EndLeases()
	if l := f.Leases(); l.Current != 0 || l.Expired != 1 || counted() != 0 {
		t.Errorf("at last %+v, %d in flight", l, counted())
	}
	f.Release("late")
	requests["late"].End()
	if counted() != 0 {
		t.Errorf("%d in flight", counted())
	}
}

// A data plane that shows extproc only the beginning of responses reports no ends. A request that a
// scrape no longer counts is treated as ended.
func TestScrapeEndsLeasesOfEndedRequests(t *testing.T) {
	f, c := started()
	view(f)
	at := func(address string) int64 {
		for _, e := range fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) }) {
			if e.Address == address {
				return e.InFlight
			}
		}
		return -1
	}
	leased := func(id string) string {
		r := f.Begin(decide(t, f, "sql"))
		f.Moved(r, a)
		f.Lease(id, r, time.Minute)
		return id
	}
	for _, id := range []string{"1", "2", "3"} {
		leased(id)
		c.advance(time.Millisecond)
	}
	see(f, a, engine.Load{Running: engine.Known(0), Waiting: engine.Known(0)})
	f.EndLeases()
	if at(a) != 3 {
		t.Errorf("%d requests that may be in transit are in flight, want 3", at(a))
	}
	c.advance(2 * time.Second)
	leased("4")
	see(f, a, engine.Load{Running: engine.Known(1)})
	f.EndLeases()
	if at(a) != 4 {
		t.Errorf("without a count of waiting requests %d are in flight, want 4", at(a))
	}
	see(f, a, engine.Load{Running: engine.Known(1), Waiting: engine.Known(0)})
	f.EndLeases()
	if l := f.Leases(); at(a) != 2 || l.Current != 2 || l.Inferred != 2 || l.Expired != 0 {
		t.Errorf("of three old requests and one reported one, %d and %+v are left", at(a), l)
	}
	f.Release("3") // the youngest request, which is the only one left
	if at(a) != 1 {
		t.Errorf("%d in flight, want the one in transit", at(a))
	}
}

// A request that moved is counted at its new endpoint. Only an adapter takes a slot there; a base
// model, or a request without a model, takes none.
func TestMovedRequestIsCounted(t *testing.T) {
	for model, slots := range map[string]int64{"sql": 1, "llama": 0, "": 0} {
		f, _ := started()
		view(f)
		r := f.Begin(decide(t, f, model))
		from, to := 0, 1
		if fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) })[1].InFlight == 1 {
			from, to = 1, 0
		}
		address := fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) })[to].Address
		f.Moved(r, address)
		f.Moved(r, address)
		f.Moved(r, "10.9.9.9:1")
		f.Moved(nil, address)
		if e := fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) }); e[from].InFlight != 0 ||
			e[to].InFlight != 1 || e[to].Models[model] != 1 {
			t.Errorf("%q: after it moved: %+v", model, e)
		}
		if p := view(f); p.Endpoints[from].ActiveAdapters() != 0 || p.Endpoints[to].ActiveAdapters() != slots {
			t.Errorf("%q: after it moved %d and %d adapters are active, want 0 and %d",
				model, p.Endpoints[from].ActiveAdapters(), p.Endpoints[to].ActiveAdapters(), slots)
		}
		r.End()
		f.Moved(r, fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) })[from].Address)
		for _, e := range fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) }) {
			if e.InFlight != 0 || len(e.Models) != 0 {
				t.Errorf("%q: after its end: %+v", model, e)
			}
		}
		if p := view(f); p.Endpoints[0].ActiveAdapters()+p.Endpoints[1].ActiveAdapters() != 0 {
			t.Errorf("%q: adapters are still active", model)
		}
	}
}

func TestStoredResponses(t *testing.T) {
	f, _ := started()
	f.Observe(outcome.Outcome{Pool: "ns/pool", Endpoint: a, Status: 200, ResponseID: "resp_1"})
	f.Observe(outcome.Outcome{Pool: "ns/pool", Endpoint: a, Status: 200, ResponseID: "chatcmpl-1"}) // never continued by a later request
	if m, ok := f.Maker("resp_1"); !ok || m != (fleet.Maker{Pool: objects.Name{Namespace: "ns", Name: "pool"}, Address: a}) {
		t.Errorf("the maker is %+v, %v", m, ok)
	}
	if _, ok := f.Maker("chatcmpl-1"); ok {
		t.Error("the maker of a response that engines do not store is remembered")
	}
}

// An engine's last response may arrive after a scrape found that the engine is gone. Its load
// report does not apply to the next engine at the address, which may have other models.
func TestReportBringsNoEndpointBackThatRefused(t *testing.T) {
	f, c := started()
	waiting := engine.Load{Waiting: engine.Known(9)}
	at := func(when string, want pick.State) {
		t.Helper()
		see(f, b, engine.Load{})
		if got := states(view(f)); got != [2]pick.State{want, pick.Healthy} {
			t.Errorf("%s the states are %v, want %v first", when, got, want)
		}
	}
	c.advance(time.Second)
	began := c.now()
	f.Update(fleet.Soon, func(s *endpointstate.State, _ time.Time) { s.Stopping(a, began) })
	c.advance(50 * time.Millisecond)
	f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Refused(a, now) }) // a scrape was refused
	c.advance(20 * time.Millisecond)
	f.Observe(outcome.Outcome{Pool: "ns/pool", Endpoint: a, Status: 200, Began: began, Duration: 60 * time.Millisecond, Load: waiting})
	at("after the last answer, which ended late", pick.Out)
	f.Observe(outcome.Outcome{Pool: "ns/pool", Endpoint: a, Status: 200, Began: c.now(), Load: waiting})
	at("after an answer to what began later", pick.Out)
	c.advance(time.Second)
	see(f, a, engine.Load{})
	at("after a scrape", pick.Healthy)
}

// A fleet is settled when each endpoint has been scraped, successfully or not, and control has sent
// its complete state.
func TestWhenAFleetIsSettled(t *testing.T) {
	for _, ends := range []func(*fleet.Fleet, fleet.Scrape){
		func(_ *fleet.Fleet, l fleet.Scrape) { l.Succeeded(engine.Load{}) },
		func(_ *fleet.Fleet, l fleet.Scrape) { l.Failed() },
		func(f *fleet.Fleet, _ fleet.Scrape) {
			f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Refused(b, now) })
		},
	} {
		for _, placed := range []bool{false, true} {
			f := fleet.New(fleet.Config{Placed: placed})
			f.SetWorld(world("10.0.0.1", "10.0.0.2"))
			see(f, a, engine.Load{})
			look := f.Scrape(b)
			if f.Settled() {
				t.Error("it is settled before the scrape of the second has ended")
			}
			ends(f, look)
			if f.Settled() == placed {
				t.Errorf("with control %v it is settled: %v", placed, f.Settled())
			}
			f.ApplyPlacement(endpointstate.PlacementUpdate{All: true})
			if !f.Settled() {
				t.Error("it is not settled although control has sent everything")
			}
		}
	}
}

// A connection that breaks during a request makes its endpoint the last choice until a scrape
// succeeds. Only a refused connection or a failed scrape makes the endpoint out. Control is
// informed that its copies are unusable after a failed scrape, not after one request.
func TestRejectedRequestIsNotReported(t *testing.T) {
	f, c := started()
	f.ApplyPlacement(endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a, b),
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("sql", a): endpointstate.Loaded},
	})
	urgent := func() bool {
		select {
		case <-f.Urgent():
			return true
		default:
			return false
		}
	}
	urgent()
	expect := func(when string, state pick.State, unusable []string, told bool) {
		t.Helper()
		if got := view(f).Endpoints[0].State; got != state {
			t.Errorf("%s it is %v, want %v", when, got, state)
		}
		if got := f.View().Unusable(model("sql")); !slices.Equal(got, unusable) {
			t.Errorf("%s the unusable copies are at %v, want %v", when, got, unusable)
		}
		if got := urgent(); got != told {
			t.Errorf("%s control must be told at once: %v, want %v", when, got, told)
		}
	}
	look := func() {
		c.advance(time.Second)
		see(f, a, engine.Load{})
	}
	broken := outcome.Outcome{Pool: "ns/pool", Endpoint: a, Failure: outcome.Reset}
	refused := outcome.Outcome{Pool: "ns/pool", Endpoint: a, Failure: outcome.Refused}
	expect("at first", pick.Healthy, nil, false)
	c.advance(time.Second)
	f.Observe(broken)
	expect("after a connection broke", pick.Stale, nil, false)
	look()
	expect("after a successful scrape", pick.Healthy, nil, false)
	c.advance(time.Second)
	f.Observe(outcome.Outcome{Pool: "ns/pool", Endpoint: b, Unreached: []string{a}, Status: 200})
	expect("after an attempt failed there", pick.Stale, nil, false)
	f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Refused(a, now) })
	expect("after a scrape found it so", pick.Out, []string{a}, true)
	f.Observe(refused)
	expect("after another request found it", pick.Out, []string{a}, false)
	f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Refused(a, now) })
	expect("after another scrape", pick.Out, []string{a}, false)
	look()
	expect("when it is back", pick.Healthy, nil, false)
	f.Update(fleet.Now, func(s *endpointstate.State, now time.Time) {
		if !s.Refuses(a) {
			s.Refused(a, now)
		}
	})
	f.Update(fleet.Now, func(s *endpointstate.State, now time.Time) {
		if !s.Refuses(a) {
			s.Refused(a, now)
		}
	})
	expect("after the relay found it gone", pick.Out, []string{a}, false)
	look()
	c.advance(time.Second)
	f.Observe(refused)
	expect("after it refused a request's connection", pick.Out, nil, false)
	f.Update(fleet.Now, func(s *endpointstate.State, now time.Time) {
		if !s.Refuses(a) {
			s.Refused(a, now)
		}
	})
	expect("after that, and a request before", pick.Out, []string{a}, true)
	look()
	c.advance(time.Second)
	early := f.Scrape(a)
	c.advance(time.Second)
	f.Update(fleet.Now, func(s *endpointstate.State, now time.Time) { s.RequestRefused(a, now) })
	early.Failed()
	expect("after an earlier scrape failed", pick.Out, nil, false)
	c.advance(time.Second)
	f.Scrape(a).Failed()
	expect("after a later scrape failed", pick.Out, []string{a}, true)
	look()
	c.advance(time.Second)
	early = f.Scrape(a)
	c.advance(time.Second)
	f.Observe(broken)
	early.Failed()
	expect("after a connection broke, and an earlier scrape failed", pick.Stale, nil, false)
	c.advance(time.Second)
	f.Scrape(a).Failed()
	expect("after a later scrape failed, too", pick.Out, []string{a}, true)
	look()
	expect("when it answers", pick.Healthy, nil, false)
	c.advance(time.Second)
	f.Observe(broken)
	c.advance(time.Second)
	see(f, a, engine.Load{Asleep: true})
	expect("when it sleeps", pick.Out, []string{a}, false)
	f.Update(fleet.Now, func(s *endpointstate.State, now time.Time) { s.Stopping(b, now) })
	if got := view(f).Endpoints[1].State; got != pick.Out {
		t.Errorf("a stopping endpoint is %v", got)
	}
}

// A refusal takes effect before Update returns, even if a view was published a moment ago.
func TestGoneTakesEffectAtOnce(t *testing.T) {
	c := &clock{time.Unix(1e9, 0)}
	f := fleet.New(fleet.Config{Now: c.now})
	f.SetWorld(world("10.0.0.1", "10.0.0.2"))
	see(f, a, engine.Load{})
	see(f, b, engine.Load{})
	f.Publish()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = f.Run(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	for range 200 {
		f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.RequestRefused(b, now) }) // publishes a view
		f.Update(fleet.Now, func(s *endpointstate.State, now time.Time) {
			if !s.Refuses(a) {
				s.Refused(a, now)
			}
		})
		if state := f.View().Snapshot.Pools["ns/pool"].Endpoints[0].State; state != pick.Out {
			t.Fatalf("it is %v", state)
		}
		f.Scrape(a).Succeeded(engine.Load{})
	}
}
