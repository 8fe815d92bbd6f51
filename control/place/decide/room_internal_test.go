package decide

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// The reserve lets loads begin while evicted models are being unloaded. It takes the room of at
// most a tenth of the models.
func TestReserve(t *testing.T) {
	const mi = 1 << 20
	for _, c := range []struct {
		bytes, defaults int64
		loads           int
		want            int64
	}{
		// Half of what two concurrent loads need, a quarter of what more loads need; 1 % to 10 % of
		// the capacity.
		{10000 * mi, 200 * mi, 2, 200 * mi},
		{10000 * mi, 200 * mi, 1, 100 * mi},
		{10000 * mi, 200 * mi, 8, 400 * mi},
		{10000 * mi, 200 * mi, 3, 150 * mi},
		{10000 * mi, 900 * mi, 8, 1000 * mi},
		{10000 * mi, 0, 8, 100 * mi},
		{10000 * mi, mi, 2, 100 * mi},
		// Ten models have room, so one model is a tenth of the capacity.
		{1000 * mi, 100 * mi, 2, 100 * mi},
		// Only nine models have room, so only the remainder is kept free.
		{1000 * mi, 101 * mi, 2, 91 * mi},
		{900 * mi, 100 * mi, 8, 0},
		{600 * mi, 100 * mi, 2, 0},
		{690 * mi, 100 * mi, 2, 69 * mi},
		{630 * mi, 100 * mi, 2, 30 * mi},
		{100 * mi, 100 * mi, 1, 0},
		// No model of the default size has room.
		{99 * mi, 100 * mi, 1, 99 * mi / 10},
		{math.MaxInt64, math.MaxInt64, math.MaxInt, 0},
	} {
		e := &endpoint{}
		e.Bytes, e.DefaultBytes, e.Loads = c.bytes, c.defaults, c.loads
		if got := e.reserve(); got != c.want {
			t.Errorf("of %d, %d by default, %d at once: %d is kept, want %d", c.bytes, c.defaults, c.loads, got, c.want)
		}
	}
}

// The decision to keep a reserve is stable: neither a single slow unload nor times near the limit
// change it.
func TestReserveIsSteady(t *testing.T) {
	const mi = 1 << 20
	s, now := New(Config{}), time.Unix(1e9, 0)
	s.SetEndpoint("e", []objects.Name{{Namespace: "n", Name: "p"}})
	s.Scraped(ScrapeResult{Began: now, Endpoint: Endpoint{
		Address: "e", CanLoad: true, Bytes: 1000 * mi, DefaultBytes: 100 * mi,
		Loads: 2,
	}}, now)
	e := s.endpoints["e"] // its reserve is a tenth of its memory
	for range recentMost {
		e.loadTime.add(10)
	}
	for _, c := range []struct {
		times    int
		unload   float64
		reserved bool
	}{
		{enough - 1, 0.1, true},
		{1, 0.1, false},
		{recentMost, 0.1, false},
		{1, 60, false},
		{recentMost, 0.9, false},
		{recentMost, 1.1, false},
		{recentMost, 1.9, false},
		{recentMost, 2.1, true},
		{recentMost, 1.1, true},
		{1, 0, true},
		{recentMost, 0.9, false},
	} {
		for range c.times {
			e.unloadTime.add(c.unload)
			keepReserve(s, e)
		}
		if e.quick == c.reserved {
			t.Errorf("after %d unloads of %v s the reserve is kept: %v, want %v", c.times, c.unload, !e.quick, c.reserved)
		}
	}
}

// A long queue costs little at each change, since victims are chosen only for the next loads.
func TestLongQueueIsCheap(t *testing.T) {
	const models = 512
	s, now, pool := New(Config{}), time.Unix(1e9, 0), objects.Name{Namespace: "n", Name: "p"}
	s.SetEndpoint("e", []objects.Name{pool})
	s.Scraped(ScrapeResult{Began: now, Endpoint: Endpoint{Address: "e", CanLoad: true, Slots: models + 1, Loads: 1}}, now)
	e := s.endpoints["e"]
	for i := range 2*models + 1 {
		key := Key{Pool: pool, ID: fmt.Sprintf("m%04d", i)}
		s.SetModel(objects.Entry{ModelKey: key}.Complete(nil), now)
		m := s.models[key]
		switch {
		case i < models:
			s.add(m, e, Loaded, now)
		case i == models:
			s.add(m, e, Loading, now)
		default:
			s.Wanted("x", key, Want{Requests: 1, Since: now.Add(time.Duration(i))})
			s.add(m, e, Queued, now).claim = claim{purpose: ForRequests, asked: true, below: math.Inf(1), takesSurplus: true}
		}
	}
	reorder(s, s.now)
	queue := slices.Clone(e.tally().queue)
	slices.SortFunc(queue, (*Copy).compareTurn)
	if len(queue) != models {
		t.Fatalf("%d copies are queued", len(queue))
	}
	all := testing.AllocsPerRun(5, func() {
		if todo := prepareRoom(s, e, queue, now); len(todo) > 0 {
			t.Fatalf("no load has ended, and yet: %v", todo)
		}
	})
	if all > 10 {
		t.Errorf("%v allocations for a queue in which nothing changes", all)
	}
	if len(e.tally().queue) != models {
		t.Errorf("of %d queued copies %d are left", models, len(e.tally().queue))
	}
}

// A copy whose load an earlier process began is published as loading until it is known whether the
// engine has the model.
func TestRecordedLoadsArePublished(t *testing.T) {
	s, now, pool := New(Config{}), time.Unix(1e9, 0), objects.Name{Namespace: "n", Name: "p"}
	s.SetEndpoint("e", []objects.Name{pool})
	at := CopyKey{ModelKey: Key{Pool: pool, ID: "a"}, Endpoint: "e"}
	s.SetModel(objects.Entry{ModelKey: at.ModelKey}.Complete(nil), now)
	s.Restore(Record{CopyKey: at, State: Loading}, now)
	if got, want := s.Changes().Copies[at], (CopyChange{State: Queued, Earlier: true}); got != want {
		t.Errorf("published as %+v, want %+v", got, want)
	}
	s.Scraped(ScrapeResult{Began: now, Endpoint: Endpoint{Address: "e", CanLoad: true, Lists: true, Slots: 2}, Listed: []string{"a"}}, now)
	if got := s.Changes().Copies[at]; got.State != Loaded {
		t.Errorf("the engine lists it, and it is published as %+v", got)
	}
}
