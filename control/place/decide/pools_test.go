package decide_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// If two pools share an engine, it has a model of both pools only once. While the model is loaded
// for one pool, the copy for the other needs no extra room, and decisions about other models
// continue.
func TestEngineOfTwoPoolsHasAModelOnce(t *testing.T) {
	s, now := decide.New(decide.Config{}), start
	other := objects.Name{Namespace: "n", Name: "other"}
	s.SetEndpoint(address(0), []objects.Name{pool, other})
	s.Scraped(decide.ScrapeResult{Began: now, Endpoint: decide.Endpoint{
		Address: address(0), CanLoad: true, Bytes: 1000, DefaultBytes: 100,
		Loads: 1,
	}}, now)
	of := func(p objects.Name, id string) decide.Key { return decide.Key{Pool: p, ID: id} }
	for _, m := range []objects.Entry{
		{ModelKey: of(pool, "x"), Size: 300, Min: 1},
		{ModelKey: of(pool, "y"), Size: 200, Min: 1},
		{ModelKey: of(pool, "z"), Size: 100},
		{ModelKey: of(pool, "w"), Size: 300},
		{ModelKey: of(other, "x"), Size: 300},
	} {
		s.SetModel(m.Complete(nil), now)
	}
	s.Tick()
	decided := func() {
		t.Helper()
		now = now.Add(time.Second)
		_, _ = s.Decide(now)
	}
	// loaded ends loads, one after the other, until this model is loaded.
	loaded := func(key decide.Key) {
		t.Helper()
		for range 5 {
			decided()
			for _, c := range s.Copies() {
				if c.State == decide.Loading {
					s.LoadEnded(c.CopyKey, decide.LoadResult{}, now)
				}
			}
			if c, ok := s.Copy(decide.CopyKey{ModelKey: key, Endpoint: address(0)}); ok && c.State == decide.Loaded {
				return
			}
		}
		t.Fatalf("%v is not loaded: %+v", key, s.Copies())
	}
	want := func(key decide.Key) { s.Wanted("e", key, decide.Want{Requests: 1, Since: now}) }
	loaded(of(pool, "x"))
	loaded(of(pool, "y"))
	want(of(pool, "z"))
	decided()
	want(of(other, "x"))
	decided()
	want(of(pool, "w"))
	loaded(of(pool, "z"))
	loaded(of(other, "x"))
	loaded(of(pool, "w")) // sizes 300, 200, 100 and 300 of 950 bytes
}
