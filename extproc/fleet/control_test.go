package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

var thePool = objects.Name{Namespace: "ns", Name: "pool"}

func model(id string) objects.ModelKey { return objects.ModelKey{Pool: thePool, ID: id} }

func copyOf(id, endpoint string) endpointstate.CopyKey {
	return endpointstate.CopyKey{ModelKey: model(id), Endpoint: endpoint}
}

func governing(endpoints ...string) map[string]bool {
	all := make(map[string]bool)
	for _, e := range endpoints {
		all[e] = true
	}
	return all
}

// where returns the endpoints that serve a model.
func where(f *fleet.Fleet, id string) []string {
	p := f.View().Snapshot.Pools[thePool.String()]
	var all []string
	for _, c := range p.Copies[id] {
		all = append(all, p.Endpoints[c.Endpoint].Address)
	}
	return all
}

func expectWhere(t *testing.T, f *fleet.Fleet, when, id string, want ...string) {
	t.Helper()
	if got := where(f, id); !slices.Equal(got, want) {
		t.Errorf("%s: %s is at %v, want %v", when, id, got, want)
	}
}

func TestOthersRequestsForAModelCount(t *testing.T) {
	f, _ := started()
	f.ApplyPlacement(endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a, b),
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{
			copyOf("sql", a): endpointstate.Loaded,
			copyOf("sql", b): endpointstate.Loaded,
		},
		Others: map[endpointstate.CopyKey]int64{copyOf("sql", b): 2},
	})
	for range 10 {
		if d := decide(t, f, "sql"); d.Endpoint.Address != b {
			t.Fatalf("%s is picked although another gateway has requests at %s", d.Endpoint.Address, b)
		}
	}
	f.ApplyPlacement(endpointstate.PlacementUpdate{Others: map[endpointstate.CopyKey]int64{copyOf("sql", b): 0}})
	f.Begin(decide(t, f, "sql")).End()
	f.ApplyPlacement(endpointstate.PlacementUpdate{Others: map[endpointstate.CopyKey]int64{copyOf("sql", a): 1}})
	if d := decide(t, f, "sql"); d.Endpoint.Address != a {
		t.Errorf("%s is picked", d.Endpoint.Address)
	}
}

func TestUseIsReportedOnce(t *testing.T) {
	f, c := started()
	f.ApplyPlacement(endpointstate.PlacementUpdate{All: true})
	flight := f.Begin(decide(t, f, "sql"))
	c.advance(time.Second)
	f.Begin(decide(t, f, "sql")).End()
	f.Begin(decide(t, f, "llama")).End() // the engine's own base model, which control does not place
	got := fleet.Read(f, (*endpointstate.State).Usage)
	if u := got[model("sql")]; len(got) != 1 || u.Requests != 2 || !u.Last.Equal(c.now()) {
		t.Errorf("the use is %+v", got)
	}
	if again := fleet.Read(f, (*endpointstate.State).Usage); len(again) != 0 {
		t.Errorf("the use is reported twice: %+v", again)
	}
	if all := fleet.Read(f, (*endpointstate.State).InFlight); len(all) != 1 {
		t.Errorf("%v are in flight", all)
	}
	flight.End()
	if all := fleet.Read(f, (*endpointstate.State).InFlight); len(all) != 0 {
		t.Errorf("after the end %v are in flight", all)
	}
}

// only is a filter that accepts one pool; with the zero name it accepts all.
func only(pool objects.Name) func(objects.Name) bool {
	return func(is objects.Name) bool { return pool == objects.Name{} || is == pool }
}

func TestMemoryOfRegisteredNames(t *testing.T) {
	f, _ := started()
	other := objects.Name{Namespace: "ns", Name: "other"}
	news := endpointstate.PlacementUpdate{All: true, Registered: map[objects.ModelKey]bool{}}
	for i := range 20_000 {
		news.Registered[model(fmt.Sprint("m", i))] = true
	}
	f.ApplyPlacement(news)
	one := endpointstate.PlacementUpdate{Registered: map[objects.ModelKey]bool{{Pool: other, ID: "m7"}: true, model("m8"): false}}
	f.ApplyPlacement(one)
	if n := testing.AllocsPerRun(100, func() { f.ApplyPlacement(one) }); n > 60 {
		t.Errorf("registering one model among 20,000 allocates %v times", n)
	}
	for _, c := range []struct {
		model    string
		of, want objects.Name // of is the pool to filter by; zero passes all
		ok       bool
	}{
		{"m1", objects.Name{}, thePool, true},
		{"m7", other, other, true},
		{"m1", other, other, false},
		{"m8", objects.Name{}, objects.Name{}, false},
		{"nobody", objects.Name{}, objects.Name{}, false},
	} {
		if got, ok := f.Registered(c.model, only(c.of)); ok != c.ok || ok && got != c.want {
			t.Errorf("%s in %v: %v, %v", c.model, c.of, got, ok)
		}
	}
	if got := f.RegisteredNames(only(other)); !slices.Equal(got, []string{"m7"}) {
		t.Errorf("in the other pool: %v", got)
	}
	if got := f.RegisteredNames(only(objects.Name{})); len(got) != 19_999 {
		t.Errorf("%d are registered", len(got))
	}
	f.ApplyPlacement(endpointstate.PlacementUpdate{All: true})
	if got := f.RegisteredNames(only(objects.Name{})); len(got) != 0 {
		t.Errorf("%d are left", len(got))
	}
}

// An unload has two phases. After ApplyPlacement has set a copy to Unloading, every request that
// began there is counted, and no more begin, even with an old view. The engine unloads the copy
// when the count is 0, and must then have no request.
func TestNoRequestIsAtACopyThatIsDrained(t *testing.T) {
	f := fleet.New(fleet.Config{})
	f.SetWorld(world("10.0.0.1", "10.0.0.2"))
	for _, address := range []string{a, b} {
		f.SetModels(address, engine.Models{Unlisted: true})
		see(f, address, engine.Load{})
	}
	loaded := map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("m", a): endpointstate.Loaded, copyOf("m", b): endpointstate.Loaded}
	f.ApplyPlacement(endpointstate.PlacementUpdate{All: true, Endpoints: governing(a, b), Copies: loaded})
	has := map[string]*atomic.Bool{a: {}, b: {}} // whether each engine has the copy
	has[a].Store(true)
	has[b].Store(true)

	stop := make(chan struct{})
	var users sync.WaitGroup
	var served, turned atomic.Int64
	for user := range 8 {
		users.Go(func() {
			random := rand.New(rand.NewPCG(uint64(user), 1))
			for {
				select {
				case <-stop:
					return
				default:
				}
				runtime.Gosched() // without this, other goroutines would wait for a whole time slice
				view := f.View()
				picks, err := pick.Pick(pick.Policy{Rule: pick.Random}, view.Snapshot,
					pick.Request{Pool: "ns/pool", Model: "m", Random: random.Uint64()}, make([]pick.Decision, 1))
				if err != nil {
					continue
				}
				flight := f.Begin(picks[0])
				if flight == nil {
					turned.Add(1)
					continue
				}
				for range random.IntN(20) {
					if !has[picks[0].Endpoint.Address].Load() {
						t.Error("a request is at an engine that has unloaded its model")
					}
				}
				served.Add(1)
				flight.End()
			}
		})
	}
	deadline := time.After(30 * time.Second)
	for round := 0; (round < 5000 || turned.Load() == 0) && !t.Failed(); round++ {
		victim := []string{a, b}[round%2]
		f.ApplyPlacement(endpointstate.PlacementUpdate{Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("m",
			victim): endpointstate.Unloading}})
		for fleet.Read(f, (*endpointstate.State).InFlight)[copyOf("m", victim)].Requests > 0 {
			select {
			case <-f.Urgent():
			case <-deadline:
				t.Fatalf("round %d: the end of the last request is not reported", round)
			}
		}
		has[victim].Store(false)
		has[victim].Store(true)
		f.ApplyPlacement(endpointstate.PlacementUpdate{Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("m",
			victim): endpointstate.Loaded}})
	}
	close(stop)
	users.Wait()
	t.Logf("%d requests, %d of them rejected by the count", served.Load(), turned.Load())
}
