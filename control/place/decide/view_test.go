package decide_test

import (
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

func sorted(v decide.View) decide.View {
	v.Sort()
	return v
}

// The view shows the memory of copies, their purposes, and the reasons for missing copies.
func TestView(t *testing.T) {
	s, now := decide.New(inOrder), start
	pools := []objects.Name{pool}
	seen := decide.Endpoint{Address: "a", CanLoad: true, Slots: 4, Loads: 1, Lists: true}
	s.SetEndpoint("a", pools)
	s.Scraped(decide.ScrapeResult{Endpoint: seen, Began: now, Listed: []string{"foreign"}}, now)
	s.SetModel(objects.Entry{ModelKey: key("least"), Min: 1}, now.Add(-time.Minute)) // gets a queued copy, so it is not missing
	s.SetModel(objects.Entry{ModelKey: key("wanted")}, now.Add(-time.Second))
	s.SetModel(objects.Entry{ModelKey: key("fails")}, now.Add(-2*time.Hour))
	s.SetModel(objects.Entry{ModelKey: key("idle")}, now.Add(-time.Hour))
	s.Wanted("x", key("wanted"), decide.Want{Requests: 2, Since: now})
	s.Wanted("y", key("wanted"), decide.Want{Requests: 1, Since: now.Add(-time.Second)})
	s.Wanted("y", key("absent"), decide.Want{Requests: 1, Since: now.Add(-time.Minute)})
	s.Decide(now)
	s.InFlight(copyKey("a", "foreign"), 7, now)
	at := func(id string, state decide.CopyState, of decide.Purpose) decide.CopyView {
		v := decide.CopyView{Pool: pool.String(), ID: id, State: state, Since: now}
		if of != decide.ForRecord {
			v.For = of.String()
		}
		return v
	}
	foreign := at("foreign", decide.Loaded, decide.ForRecord)
	foreign.InFlight = 7
	if missed := s.Count().LastMissing; len(missed) != 1 || !missed[pool].Equal(now.Add(-time.Hour)) {
		t.Errorf("missed are %v", missed)
	}
	want := decide.View{
		At:    now,
		Pools: []decide.PoolView{{Name: pool.String(), Free: 0.25, WarmWindowSeconds: new(3600.0)}},
		Endpoints: []decide.EndpointView{{
			Address: "a", Pools: []string{pool.String()}, State: decide.Ready, Models: 3, Slots: 4, Loading: 1, Loads: 1, InFlight: 7,
			Copies: []decide.CopyView{
				foreign, at("least", decide.Queued, decide.ForLeast),
				at("wanted", decide.Loading, decide.ForRequests),
			},
		}},
		Models: []decide.ModelView{
			{
				Pool: pool.String(), ID: "absent", Queued: 1, Since: now.Add(-time.Minute), Reason: decide.UnknownModel,
				Message: decide.UnknownModel.Message(),
			},
			{Pool: pool.String(), ID: "fails", Known: true},
			{Pool: pool.String(), ID: "foreign"},
			{Pool: pool.String(), ID: "idle", Known: true},
			{Pool: pool.String(), ID: "least", Known: true, Least: 1},
			{Pool: pool.String(), ID: "wanted", Known: true, Queued: 3, Since: now.Add(-time.Second)},
		},
	}
	if diff := gocmp.Diff(want, sorted(s.View(now))); diff != "" {
		t.Errorf("the view (-want +got):\n%s", diff)
	}

	s.LoadEnded(copyKey("a", "wanted"), decide.LoadResult{Failed: true, Message: "no such file", Why: decide.FilesMissing}, now)
	s.Decide(now)
	wanted := sorted(s.View(now)).Models[5]
	if f := wanted.Failures; wanted.Reason != decide.FilesMissing || len(f) != 1 || f[0].Message != "no such file" ||
		f[0].Until.Sub(now) != 7*time.Minute+30*time.Second {
		t.Errorf("what failed is seen as %+v", wanted)
	}
}

// The view shows the most important state of each endpoint.
func TestViewOfEndpoints(t *testing.T) {
	s, now := decide.New(inOrder), start
	for address, e := range map[string]struct {
		tell func(address string)
		want decide.EndpointState
	}{
		"starting": {func(string) {}, decide.Starting},
		"ready": {func(a string) {
			s.Scraped(decide.ScrapeResult{Endpoint: decide.Endpoint{Address: a, Lists: true}}, now)
		}, decide.Ready},
		"silent": {s.Silent, decide.Silent},
		"down":   {s.Down, decide.Down},
		"doubtful": {func(a string) {
			s.Scraped(decide.ScrapeResult{Endpoint: decide.Endpoint{Address: a}, Doubtful: true}, now)
		}, decide.Doubtful},
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

// While the view of a large fleet is made, no decision can be made.
func BenchmarkView(b *testing.B) {
	s, now := fullFleet(b, 1000, 20_000)
	for b.Loop() {
		s.View(now)
	}
}

// A deleted model is not reported as missing while its copies are unloaded.
func TestDeletedModelIsNotMissed(t *testing.T) {
	s, now := decide.New(inOrder), start
	s.SetEndpoint("a", []objects.Name{pool})
	s.SetModel(objects.Entry{ModelKey: key("m")}, now)
	s.Scraped(decide.ScrapeResult{
		Endpoint: decide.Endpoint{Address: "a", CanLoad: true, Slots: 4, Loads: 1, Lists: true}, Began: now,
		Listed: []string{"m"},
	}, now)
	s.RemoveModel(key("m"))
	s.Decide(now)
	if c, _ := s.Copy(copyKey("a", "m")); c.State != decide.Draining {
		t.Fatalf("its copy is %v", c.State)
	}
	if v := s.View(now); len(v.Pools) != 1 || v.Pools[0].WarmWindowSeconds != nil {
		t.Errorf("the pools are %+v", v.Pools)
	}
}
