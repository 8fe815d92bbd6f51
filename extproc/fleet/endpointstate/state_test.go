package endpointstate_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

const a, b = "10.0.0.1:8000", "10.0.0.2:8000"

var start = time.Unix(1e9, 0)

// world returns a World in which the endpoints a and b are in each of these pools of namespace ns.
func world(pools ...string) *objects.World {
	var s objects.Set
	for _, name := range pools {
		p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
		p.Spec.TargetPorts = []pool.Port{{Number: 8000}}
		s.Pools = append(s.Pools, p)
	}
	for _, ip := range []string{"10.0.0.1", "10.0.0.2"} {
		s.Pods = append(s.Pods, objects.Pod{Name: objects.Name{Namespace: "ns", Name: ip}, IP: netip.MustParseAddr(ip), Ready: true})
	}
	return objects.Build(s)
}

// view rebuilds all pools and returns the view at a time.
func view(s *endpointstate.State, now time.Time) *endpointstate.View {
	s.Age()
	v, _ := s.View(now)
	s.Seal()
	return v
}

// After a pool's object is deleted, the pool is in no view and in no report. A new pool of the same
// name starts from scratch.
func TestDeletedPoolIsForgotten(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(world("one", "two"))
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{})
	s.ScrapeSucceeded(s.Scrape(b, start), engine.Load{})
	late := start.Add(time.Hour)
	if v := view(s, late); len(v.Snapshot.Pools) != 2 || len(s.FailOpen()) != 2 {
		t.Fatalf("the pools are %v, and %v fail open", v.Snapshot.Pools, s.FailOpen())
	}
	s.SetWorld(world("two"))
	v, _ := s.View(late)
	if v.Snapshot.Pools["ns/one"] != nil || v.Snapshot.Pools["ns/two"] == nil {
		t.Errorf("the pools are %v", v.Snapshot.Pools)
	}
	if got := s.FailOpen(); !slices.Equal(got, []string{"ns/two"}) {
		t.Errorf("pools that fail open: %v", got)
	}
	s.SetWorld(world("one", "two"))
	if _, told := s.View(late); len(told) != 1 || told[0].Pool.Name != "one" || !told[0].Open || told[0].Lost != 2 {
		t.Errorf("for a pool that is back it reports %+v", told)
	}
}

// If all endpoints that are not out are silent, all these silent endpoints are used.
func TestSilentEndpointsAreALastResort(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(world("one"))
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{}) // b never answered a scrape
	p := view(s, start.Add(time.Hour)).Snapshot.Pools["ns/one"]
	if p.Endpoints[0].State != pick.Lost || p.Endpoints[1].State != pick.Out || len(s.FailOpen()) != 1 {
		t.Errorf("the states are %v and %v, and %v fail open", p.Endpoints[0].State, p.Endpoints[1].State, s.FailOpen())
	}
}

// An endpoint is unheard until a scrape succeeds or is refused.
func TestUnheardEndpoints(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(world("one"))
	expect := func(what string, want bool) {
		t.Helper()
		if e := view(s, start).Snapshot.Pools["ns/one"].Endpoints[1]; e.State != pick.Out || e.Unscraped != want {
			t.Errorf("%s: the state is %v and unheard is %t, want %t", what, e.State, e.Unscraped, want)
		}
	}
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{})
	expect("before a scrape", true)
	s.ScrapeFailed(s.Scrape(b, start))
	expect("after a scrape without an answer", true)
	s.ConnectionBroken(b, start)
	s.ScrapeFailed(s.Scrape(b, start.Add(time.Second)))
	expect("after a connection broke", true)
	s.Refused(b, start)
	expect("after it refused", false)
}

// The lists of a pool are unread until one list was read, or until a scrape of each endpoint has
// failed. So a pool of dead endpoints does not stay unread forever.
func TestDeadPoolIsNotUnreadForever(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(world("one"))
	expect := func(what string, want bool) {
		t.Helper()
		if got := view(s, start).Snapshot.Pools["ns/one"].Unread; got != want {
			t.Errorf("%s: unread is %t, want %t", what, got, want)
		}
	}
	expect("before a scrape", true)
	s.Refused(a, start)
	expect("one endpoint was not scraped yet", true)
	s.ScrapeFailed(s.Scrape(b, start))
	expect("scrapes of both failed", false)

	s = endpointstate.New(endpointstate.Config{})
	s.SetWorld(world("one"))
	s.ModelsListed(s.Scrape(a, start), engine.Models{Base: []string{"m"}})
	expect("one list was read", false)
}

// Long requests end in any order. Of several answers that an endpoint is stopping, the answer to
// the latest request counts.
func TestOldStoppingReportsAreIgnored(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(world("one"))
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{})
	s.Stopping(a, start.Add(10*time.Second))
	s.Stopping(a, start.Add(5*time.Second))
	now := start.Add(39 * time.Second)
	s.ScrapeSucceeded(s.Scrape(a, now), engine.Load{})
	if p := view(s, now).Snapshot.Pools["ns/one"]; p.Endpoints[0].State != pick.Out {
		t.Errorf("29 s after its last report it is %v", p.Endpoints[0].State)
	}
}

// After a reconnect, control sends its complete state. That does not make the report of a copy
// newer than the scrape that found the copy gone. A missing copy that control does not know yet is
// still reported.
func TestRepeatedStateIsNotNew(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(world("one"))
	copyOf := func(id, endpoint string) endpointstate.CopyKey {
		return endpointstate.CopyKey{
			ModelKey: objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "one"}, ID: id},
			Endpoint: endpoint,
		}
	}
	says := endpointstate.PlacementUpdate{
		All: true, Endpoints: map[string]bool{a: true, b: true},
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{
			copyOf("m", a): endpointstate.Loaded,
			copyOf("m", b): endpointstate.Loaded,
		},
	}
	s.ModelsListed(s.Scrape(b, start), engine.Models{Unlisted: true})
	s.ApplyPlacement(says, start)
	s.ModelsListed(s.Scrape(a, start.Add(time.Second)), engine.Models{Base: []string{"llama"}})
	s.ModelMissing(copyOf("m", b), start, start) // the engine has no list: a request found the copy missing
	s.ApplyPlacement(says, start.Add(2*time.Second))
	p := view(s, start.Add(2*time.Second)).Snapshot.Pools["ns/one"]
	if copies := p.Copies["m"]; len(copies) > 0 {
		t.Errorf("the copies are %+v, although no engine has one", copies)
	}
	got := s.TakeMissing()
	slices.SortFunc(got, func(x, y endpointstate.CopyKey) int { return strings.Compare(x.Endpoint, y.Endpoint) })
	if !slices.Equal(got, []endpointstate.CopyKey{copyOf("m", a), copyOf("m", b)}) {
		t.Errorf("missing are %v", got)
	}
}

// A view that a request uses does not change.
func TestViewIsImmutable(t *testing.T) {
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(world("one"))
	key := objects.ModelKey{Pool: objects.Name{Namespace: "ns", Name: "one"}, ID: "m"}
	s.ApplyPlacement(endpointstate.PlacementUpdate{Failures: map[objects.ModelKey]string{key: "NoSpace"}}, start)
	before := view(s, start)
	s.ApplyPlacement(endpointstate.PlacementUpdate{Failures: map[objects.ModelKey]string{key: ""}}, start)
	if after := view(s, start); before.Failures[key] != "NoSpace" || len(after.Failures) != 0 {
		t.Errorf("the failures were %v, and are %v", before.Failures, after.Failures)
	}
}

// An address in two EndpointLists is one endpoint. Control's report that it is about to stop
// remains valid after a change of the objects.
func TestAddressInTwoListsIsOneEndpoint(t *testing.T) {
	set := objects.Endpoints([]string{a})
	other := objects.Endpoints([]string{a})
	other.Pools[0].Name, other.Lists[0].Name = "other", "other"
	other.Pools[0].Spec.Selector.MatchLabels = map[string]string{"app": "other"}
	other.Lists[0].Labels = map[string]string{"app": "other"}
	both := set.Join(other)
	s := endpointstate.New(endpointstate.Config{})
	s.SetWorld(objects.Build(both))
	s.ScrapeSucceeded(s.Scrape(a, start), engine.Load{})
	s.ApplyPlacement(endpointstate.PlacementUpdate{All: true, Leaving: map[string]endpointstate.Leaving{a: {Terminating: true}}}, start)
	for range 20 { // pools are visited in random order
		s.SetWorld(objects.Build(both))
		for name, p := range view(s, start).Snapshot.Pools {
			if got := p.Endpoints[0].State; got != pick.Out {
				t.Fatalf("in %s it is %v although its pod is terminating", name, got)
			}
		}
	}
}
