package decide_test

import (
	"cmp"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// sortedView returns a sorted view.
func sortedView(s *decide.State, now time.Time) decide.View {
	v := s.View(now)
	slices.SortFunc(v.Endpoints, func(a, b decide.EndpointView) int { return cmp.Compare(a.Address, b.Address) })
	for _, e := range v.Endpoints {
		slices.SortFunc(e.Copies, func(a, b decide.CopyView) int { return a.Compare(b.CopyKey) })
	}
	slices.SortFunc(v.Models, func(a, b decide.ModelView) int { return a.Compare(b.Key) })
	return v
}

// The view has the memory of copies, their purposes, and the reasons for missing copies.
func TestView(t *testing.T) {
	s, now := decide.New(inOrder), start
	pools := []objects.Name{pool}
	seen := decide.Endpoint{Address: "a", CanLoad: true, Slots: 4, Loads: 1, Lists: true}
	s.SetEndpoint("a", pools)
	s.Saw(decide.Sight{Endpoint: seen, Began: now, Listed: []string{"foreign"}}, now)
	s.SetModel(objects.Entry{ModelKey: key("least"), Min: 1}, now.Add(-time.Minute)) // queued, which counts as having a copy
	s.SetModel(objects.Entry{ModelKey: key("wanted")}, now.Add(-time.Second))
	s.SetModel(objects.Entry{ModelKey: key("fails")}, now.Add(-2*time.Hour))
	s.SetModel(objects.Entry{ModelKey: key("idle")}, now.Add(-time.Hour))
	s.Wanted("x", key("wanted"), decide.Want{Requests: 2, Since: now})
	s.Wanted("y", key("wanted"), decide.Want{Requests: 1, Since: now.Add(-time.Second)})
	s.Wanted("y", key("absent"), decide.Want{Requests: 1, Since: now.Add(-time.Minute)})
	s.Decide(now)
	s.InFlight(copyKey("a", "foreign"), 7, now)
	at := func(id string, state decide.CopyState, of decide.Purpose) decide.CopyView {
		return decide.CopyView{CopyKey: copyKey("a", id), State: state, Since: now, For: of}
	}
	foreign := at("foreign", decide.Loaded, decide.ForRecord)
	foreign.InFlight = 7
	if missed := s.Count().Missed; len(missed) != 1 || !missed[pool].Equal(now.Add(-time.Hour)) {
		t.Errorf("missed are %v", missed)
	}
	want := decide.View{
		Pools: []decide.PoolView{{Name: pool, Free: 0.25, Missed: now.Add(-time.Hour)}},
		Endpoints: []decide.EndpointView{{
			Address: "a", Seen: seen, Pools: pools, State: decide.Ready, Models: 3, Loading: 1,
			Copies: []decide.CopyView{foreign, at("least", decide.Queued, decide.ForLeast),
				at("wanted", decide.Loading, decide.ForRequests)},
		}},
		Models: []decide.ModelView{
			{Key: key("absent"), Held: 1, Since: now.Add(-time.Minute), Why: decide.UnknownModel},
			{Key: key("fails"), Known: true},
			{Key: key("foreign")},
			{Key: key("idle"), Known: true},
			{Key: key("least"), Known: true, Least: 1},
			{Key: key("wanted"), Known: true, Held: 3, Since: now.Add(-time.Second)},
		},
	}
	if diff := gocmp.Diff(want, sortedView(s, now)); diff != "" {
		t.Errorf("the view (-want +got):\n%s", diff)
	}

	s.LoadEnded(copyKey("a", "wanted"), decide.LoadResult{Failed: true, Words: "no such file", Why: decide.FilesMissing}, now)
	s.Decide(now)
	wanted := sortedView(s, now).Models[5]
	if f := wanted.Failures; wanted.Why != decide.FilesMissing || len(f) != 1 || f[0].Words != "no such file" ||
		f[0].Until.Sub(now) != 7*time.Minute+30*time.Second {
		t.Errorf("what failed is seen as %+v", wanted)
	}
}

// The view has the most important state of each endpoint.
func TestTheViewOfEndpoints(t *testing.T) {
	s, now := decide.New(inOrder), start
	for address, e := range map[string]struct {
		tell func(address string)
		want decide.EndpointState
	}{
		"starting": {func(string) {}, decide.Starting},
		"ready":    {func(a string) { s.Saw(decide.Sight{Endpoint: decide.Endpoint{Address: a, Lists: true}}, now) }, decide.Ready},
		"silent":   {s.Silent, decide.Silent},
		"down":     {s.Down, decide.Down},
		"doubtful": {func(a string) { s.Saw(decide.Sight{Endpoint: decide.Endpoint{Address: a}, Doubtful: true}, now) }, decide.Doubtful},
		"terminating": {func(a string) {
			s.Down(a)
			s.Stopping(a, now, now)
			s.Terminating("x", a, true, time.Time{})
		}, decide.Terminating},
		"stopping": {func(a string) { s.Stopping(a, now, now) }, decide.Stopping},
	} {
		s.SetEndpoint(address, []objects.Name{pool})
		e.tell(address)
		if e.want.String() != address {
			t.Errorf("%s is called %s", address, e.want)
		}
	}
	for _, e := range s.View(now).Endpoints {
		if e.State.String() != e.Address {
			t.Errorf("%s is %s", e.Address, e.State)
		}
	}
}

// The view of a large fleet blocks all decisions while it is made.
func BenchmarkView(b *testing.B) {
	s, now := full(b, 1000, 20_000)
	for b.Loop() {
		s.View(now)
	}
}

// A deleted model does not count as missed while its copies are unloaded.
func TestWhatIsDeletedIsNotMissed(t *testing.T) {
	s, now := decide.New(inOrder), start
	s.SetEndpoint("a", []objects.Name{pool})
	s.SetModel(objects.Entry{ModelKey: key("m")}, now)
	s.Saw(decide.Sight{Endpoint: decide.Endpoint{Address: "a", CanLoad: true, Slots: 4, Loads: 1, Lists: true}, Began: now,
		Listed: []string{"m"}}, now)
	s.RemoveModel(key("m"))
	s.Decide(now)
	if c, _ := s.Copy(copyKey("a", "m")); c.State != decide.Draining {
		t.Fatalf("its copy is %v", c.State)
	}
	if v := s.View(now); len(v.Pools) != 1 || !v.Pools[0].Missed.IsZero() {
		t.Errorf("the pools are %+v", v.Pools)
	}
}
