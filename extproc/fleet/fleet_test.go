package fleet_test

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

const (
	a = "10.0.0.1:8000"
	b = "10.0.0.2:8000"
)

// world returns a World of one pool with a ready pod for each of these addresses.
func world(ips ...string) *objects.World { return worldOf("pod-", ips...) }

// worldOf does the same as world, with a prefix for the names of the pods.
func worldOf(prefix string, ips ...string) *objects.World {
	return objects.Build(setOf(prefix, ips...))
}

func setOf(prefix string, ips ...string) objects.Set {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pool"}}
	p.Spec.Selector.MatchLabels = map[string]string{"app": "llama"}
	p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
	s := objects.Set{Pools: []pool.InferencePool{p}}
	for _, ip := range ips {
		s.Pods = append(s.Pods, objects.Pod{
			Name: objects.Name{Namespace: "ns", Name: prefix + ip}, IP: netip.MustParseAddr(ip), Ready: true,
			Labels: map[string]string{"app": "llama"},
		})
	}
	return s
}

// clock is a clock that tests set.
type clock struct{ at time.Time }

func (c *clock) now() time.Time          { return c.at }
func (c *clock) advance(d time.Duration) { c.at = c.at.Add(d) }

// started returns a fleet of two endpoints, both just scraped. Each has a base model and two
// adapters.
func started() (*fleet.Fleet, *clock) {
	c := &clock{time.Unix(1e9, 0)}
	f := fleet.New(fleet.Config{Now: c.now})
	f.SetWorld(world("10.0.0.1", "10.0.0.2"))
	for _, address := range []string{a, b} {
		f.SetModels(address, engine.Models{Base: []string{"llama", "alias"}, Adapters: []string{"sql", "chat"}})
		see(f, address, engine.Load{})
	}
	return f, c
}

func see(f *fleet.Fleet, address string, load engine.Load) { f.Scrape(address).Succeeded(load) }

// view publishes a view and returns the pool in it.
func view(f *fleet.Fleet) *pick.Pool {
	f.Publish()
	return f.View().Snapshot.Pools["ns/pool"]
}

func decide(t *testing.T, f *fleet.Fleet, model string) pick.Decision {
	t.Helper()
	picks, err := pick.Pick(pick.Policy{Threshold: 4}, f.View().Snapshot,
		pick.Request{Pool: "ns/pool", Model: model, Base: model == "llama"}, make([]pick.Decision, 1))
	if err != nil {
		t.Fatal(err)
	}
	return picks[0]
}

func states(p *pick.Pool) [2]pick.State {
	return [2]pick.State{p.Endpoints[0].State, p.Endpoints[1].State}
}

func TestRequestsAreCountedUntilTheyEnd(t *testing.T) {
	f, _ := started()
	view(f)
	first := f.Begin(decide(t, f, "sql"))
	second := f.Begin(decide(t, f, "sql")) // uses the same slot as the first request
	base := f.Begin(decide(t, f, "llama")) // goes to the other endpoint, which has fewer pending requests

	p := view(f)
	holder, other := p.Endpoints[0], p.Endpoints[1]
	if holder.Pending() == 1 {
		holder, other = other, holder
	}
	if holder.Pending() != 2 || holder.ActiveAdapters() != 1 || other.Pending() != 1 || other.ActiveAdapters() != 0 {
		t.Errorf("holder %d requests, %d adapters; other %d, %d", holder.Pending(), holder.ActiveAdapters(), other.Pending(),
			other.ActiveAdapters())
	}

	first.End()
	first.End() // only the first call has an effect
	if holder.Pending() != 1 || holder.ActiveAdapters() != 1 {
		t.Errorf("after one end: %d requests, %d adapters", holder.Pending(), holder.ActiveAdapters())
	}
	second.End()
	base.End()
	(*fleet.InFlight)(nil).End()
	for _, s := range fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) }) {
		if s.InFlight != 0 || len(s.Models) != 0 {
			t.Errorf("after all ends: %+v", s)
		}
	}
}

// The engine's count includes this process's requests; the rest are from other sources.
func TestOthersRequests(t *testing.T) {
	f, _ := started()
	view(f)
	d := decide(t, f, "sql")
	address := d.Endpoint.Address
	flight := f.Begin(d)
	look := f.Scrape(address)
	flight.End() // ends during the scrape: the engine may or may not have counted it
	look.Succeeded(engine.Load{Running: engine.Known(2), Waiting: engine.Known(1)})
	for _, e := range view(f).Endpoints {
		if want := map[bool]int64{true: 2, false: 0}[e.Address == address]; e.Pending() != want {
			t.Errorf("%s has %d pending, want %d", e.Address, e.Pending(), want)
		}
	}
	see(f, address, engine.Load{Running: engine.Known(2)}) // the number of waiting requests is unknown
	view(f)
	if got := decide(t, f, "llama"); got.Endpoint.Address == address {
		t.Errorf("the busier endpoint is picked")
	}
}

func TestAdaptersCountOnce(t *testing.T) {
	f, _ := started()
	see(f, a, engine.Load{Active: []string{"sql", "stranger"}, MaxAdapters: engine.Known(4)})
	p := view(f)
	if n := p.Endpoints[0].ActiveAdapters(); n != 2 || p.Endpoints[0].Slots != 4 {
		t.Errorf("%d adapters, %d slots", n, p.Endpoints[0].Slots)
	}
	flight := f.Begin(decide(t, f, "sql")) // this request is in flight at a
	defer flight.End()
	if n := f.View().Snapshot.Pools["ns/pool"].Endpoints[0].ActiveAdapters(); n != 2 {
		t.Errorf("with our request %d adapters, want 2", n)
	}
}

func TestCountsOutliveTheirEndpoint(t *testing.T) {
	f, _ := started()
	view(f)
	flight := f.Begin(decide(t, f, "sql"))
	f.SetWorld(world())
	if n := len(f.View().Snapshot.Pools["ns/pool"].Endpoints); n != 0 {
		t.Fatalf("%d endpoints are left", n)
	}
	f.SetWorld(world("10.0.0.1", "10.0.0.2"))
	total := int64(0)
	for _, s := range fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) }) {
		total += s.InFlight
	}
	if total != 1 {
		t.Errorf("%d requests in flight after the endpoint came back, want 1", total)
	}
	flight.End()
	f.SetWorld(world())
	f.SetWorld(world("10.0.0.1"))
	if got := f.View().Snapshot.Pools["ns/pool"].Endpoints[0].State; got != pick.Out {
		t.Errorf("a removed endpoint that is back is %v, want out until it answers a scrape", got)
	}
}

// During concurrent updates of all kinds, requests see consistent views, and no count is lost.
func TestNoCountIsLost(t *testing.T) {
	f, _ := started()
	f.Publish()
	ctx, cancel := context.WithCancel(t.Context())
	var beside, requests sync.WaitGroup
	beside.Go(func() { _ = f.Run(ctx) })
	beside.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			f.SetWorld([]*objects.World{world("10.0.0.1", "10.0.0.2"), world("10.0.0.1")}[i%2])
			see(f, b, engine.Load{Active: []string{"sql"}})
			f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Refused(b, now) })
			f.SetModels(b, engine.Models{Base: []string{"llama"}, Adapters: []string{"sql"}[:i%2]})
			see(f, a, engine.Load{Running: engine.Known(1)})
		}
	})
	for i := range 4 {
		requests.Go(func() {
			for n := range 5000 {
				picks, err := pick.Pick(pick.Policy{Threshold: 4}, f.View().Snapshot,
					pick.Request{Pool: "ns/pool", Model: "sql", Random: uint64(i*5000 + n)}, make([]pick.Decision, 1))
				if err != nil {
					t.Error(err) // an error cannot happen: endpoint a always serves
					return
				}
				flight := f.Begin(picks[0])
				flight.End()
			}
		})
	}
	requests.Wait()
	cancel()
	beside.Wait()
	f.SetWorld(world("10.0.0.1", "10.0.0.2"))
	for _, s := range fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) }) {
		if s.InFlight != 0 || len(s.Models) != 0 {
			t.Errorf("requests are left: %+v", s)
		}
	}
	for _, e := range f.View().Snapshot.Pools["ns/pool"].Endpoints {
		if n := e.Adapters.Load(); n != 0 {
			t.Errorf("%s counts %d adapters", e.Address, n)
		}
	}
}

// Load updates are published at most once per interval, and the last update always is.
func TestLoadUpdatesAreBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fleet.New(fleet.Config{})
		f.SetWorld(world("10.0.0.1"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx) //nolint:errcheck // always nil
		synctest.Wait()

		views := map[*endpointstate.View]bool{}
		for i := range 100 {
			see(f, a, engine.Load{Running: engine.Known(float64(i))})
			synctest.Wait()
			views[f.View()] = true
		}
		time.Sleep(10 * time.Millisecond) // on synctest's fake clock: the interval is over
		synctest.Wait()
		if n := len(views); n > 2 {
			t.Errorf("100 scrapes at one moment published %d views", n)
		}
		if got := f.View().Snapshot.Pools["ns/pool"].Endpoints[0].Pending(); got != 99 {
			t.Errorf("the last scrape is not in force: %d pending", got)
		}
	})
}

// If many requests fail at once, the first failure is published immediately, and all others
// together after an interval.
func TestBurstOfFailuresIsBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var published atomic.Int64
		f := fleet.New(fleet.Config{Published: func(*endpointstate.View) { published.Add(1) }})
		f.SetWorld(world("10.0.0.1", "10.0.0.2", "10.0.0.3"))
		for _, address := range []string{a, b, "10.0.0.3:8000"} {
			see(f, address, engine.Load{})
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx) //nolint:errcheck // always nil
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()

		for _, faults := range []int{1000, 1, 1000} {
			published.Store(0)
			f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.RequestFailed(a, now) })
			if got := f.View().Snapshot.Pools["ns/pool"].Endpoints[0].State; got != pick.Suspect {
				t.Errorf("when the first failure is reported, the endpoint is %v", got)
			}
			for range faults {
				f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.Refused(b, now) })
				if faults > 1 { // let Run wake up between two failures
					synctest.Wait()
				}
			}
			if n := published.Load(); n > 2 {
				t.Errorf("%d failures at one moment published %d views", faults+1, n)
			}
			time.Sleep(5 * time.Millisecond)
			synctest.Wait()
			if got := f.View().Snapshot.Pools["ns/pool"].Endpoints[1].State; got != pick.Out {
				t.Errorf("after an interval the other is %v", got)
			}
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
			if n := published.Load(); n > 2 {
				t.Errorf("%d failures published %d views", faults+1, n)
			}
			see(f, b, engine.Load{})
			f.Update(fleet.Soon, func(s *endpointstate.State, _ time.Time) { s.RequestServed(a, time.Now()) })
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
	})
}

// An event at an endpoint updates only the pools of that endpoint in the view, so the cost depends
// on the size of the pool and not of the cluster.
func TestFailureUpdatesOnlyItsPools(t *testing.T) {
	set := objects.Endpoints([]string{a})
	other := objects.Endpoints([]string{b})
	other.Pools[0].Name, other.Lists[0].Name = "other", "other"
	other.Pools[0].Spec.Selector.MatchLabels = map[string]string{"app": "other"}
	other.Lists[0].Labels = map[string]string{"app": "other"}
	f := fleet.New(fleet.Config{})
	f.SetWorld(objects.Build(set.Join(other)))
	see(f, a, engine.Load{})
	see(f, b, engine.Load{})
	f.Publish()
	before := f.View().Snapshot.Pools
	own, others := set.Pools[0].Namespace+"/"+set.Pools[0].Name, set.Pools[0].Namespace+"/other"
	f.Update(fleet.Soon, func(s *endpointstate.State, now time.Time) { s.RequestFailed(a, now) })
	after := f.View().Snapshot.Pools
	if after[own] == before[own] || after[own].Endpoints[0].State != pick.Suspect {
		t.Errorf("its own pool's endpoint is %v", after[own].Endpoints[0].State)
	}
	if after[others] == nil || after[others] != before[others] {
		t.Error("another pool's view was replaced")
	}
	if before[own].Endpoints[0].State != pick.Healthy {
		t.Error("a published view was changed")
	}
}

// An endpoint becomes stale by time alone; no event is needed.
func TestSilentEndpointBecomesStaleByTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fleet.New(fleet.Config{})
		f.SetWorld(world("10.0.0.1"))
		see(f, a, engine.Load{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Run(ctx) //nolint:errcheck // always nil
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := f.View().Snapshot.Pools["ns/pool"].Endpoints[0].State; got != pick.Lost {
			t.Errorf("after a minute of silence it is %v", got)
		}
	})
}
