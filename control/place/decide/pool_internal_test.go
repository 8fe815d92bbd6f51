package decide

import (
	"math"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// known returns a State with one model in a pool. The model was used a hundred times, always at the
// time at.
func known(e objects.Entry, at time.Time) (*State, *pool, *model) {
	e.ModelKey = Key{Pool: objects.Name{Namespace: "default", Name: "p"}, ID: "a"}
	s := New(Config{})
	s.SetModel(e, time.Time{})
	s.Used(e.ModelKey, Use{Requests: 100, Last: at})
	return s, s.pool(e.Pool), s.models[e.ModelKey]
}

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// If use counts begin to decay more slowly, existing counts become what they would be if they had
// always decayed that slowly: more is left of the hundred uses.
func TestCountsFollowANewDecay(t *testing.T) {
	s, p, m := known(objects.Entry{}, noon)
	p.decay.differ, p.decay.missed, p.decay.squares = minMisses, minMisses, minMisses
	tickDecay(s, m.Pool, p)
	if want := firstDecay * decayStep; p.decay.decayTime != want {
		t.Fatalf("counts fade in %v s, want %v", p.decay.decayTime, want)
	}
	if want := 1 + 99*decayStep; m.count != want {
		t.Errorf("the count is %v, want %v", m.count, want)
	}
	if want := m.usage.value(p.decay.decayTime, 0); m.value != want {
		t.Errorf("the model is worth %v, want %v", m.value, want)
	}
}

// The estimated load time of a model is the mean of the last load time and the earlier estimate.
func TestLoadTimeEstimate(t *testing.T) {
	s, _, m := known(objects.Entry{}, noon)
	for _, c := range []struct {
		took time.Duration
		want float64
	}{{0, 0}, {2 * time.Second, 2}, {4 * time.Second, 3}, {0, 3}, {time.Second, 2}} {
		if learnLoadTime(s, m, c.took); m.took != c.want {
			t.Errorf("after a load of %v loads take %v s, want %v", c.took, m.took, c.want)
		}
	}
}

// The load cost changes the eviction value at most by a factor of ten, however far it is from the
// mean.
func TestLoadCostIsBounded(t *testing.T) {
	_, p, m := known(objects.Entry{}, noon)
	for _, c := range []struct {
		name  string
		loads int
		took  float64
		bytes int64
		want  float64
	}{
		{"before there are enough loads to compare with", enough - 1, 1000, 1, 0},
		{"before a load of it ended", enough, 0, 1, 0},
		{"as dear as others", enough, 99, 100, 0},
		{"twice as dear", enough, 199, 100, math.Log(2)},
		{"a thousand times", enough, 99999, 100, maxLoadCost},
		{"a thousandth", enough, 99, 100000, -maxLoadCost},
	} {
		p.loadCosts.n, p.meanLoadCost = c.loads, 0
		m.took, m.bytes = c.took, c.bytes
		if got := m.relativeLoadCost(p); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The ghost lists simulate only models that may be evicted. A model that must stay is loaded once,
// whatever is evicted.
func TestGhostListsSkipModelsThatMustStay(t *testing.T) {
	for least, want := range []int{1, 0} {
		_, p, _ := known(objects.Entry{Min: least}, noon)
		if got := len(p.decay.ghostLists[0].held.models); got != want {
			t.Errorf("of a model that must have %d copies a shadow holds %d, want %d", least, got, want)
		}
	}
}

// The decay of use counts moves, within limits, toward the decay of the ghost list with clearly
// fewer misses.
func TestDecayFollowsTheBetterGhostList(t *testing.T) {
	for _, c := range []struct {
		name                       string
		decayTime, missed, squares float64
		differ                     int
		want                       float64
	}{
		{"too few misses", 300, 49, 49, 49, 300},
		{"the slow one missed less", 300, 50, 50, 50, 450},
		{"the fast one missed less", 300, -50, 50, 50, 200},
		{"it may be chance", 300, 21, 50, 50, 300},
		{"it is hardly chance", 300, 22, 50, 50, 450},
		{"as slowly as may be", maxDecay, 50, 50, 50, maxDecay},
		{"as fast as may be", minDecay, -50, 50, 50, minDecay},
	} {
		f := decayTuner{decayTime: c.decayTime, missed: c.missed, squares: c.squares, differ: c.differ}
		if got, moves := f.move(); got != c.want || moves != (c.want != c.decayTime) {
			t.Errorf("%s: counts fade in %v s, moved %v, want %v", c.name, got, moves, c.want)
		}
	}
}

// A miss of the fast ghost list alone is evidence for the slow one, and the reverse. After a change
// of the decay, the sums of both start again at zero.
func TestMissesOfGhostListsAreCompared(t *testing.T) {
	f := newDecayTuner()
	fast, slow, both := &model{}, &model{}, &model{}
	f.ghostLists[1].used(fast, 1, 1, 0, 0) // the slow list now has the model, so only the fast list misses it
	f.ghostLists[0].used(slow, 0, 1, 0, 0)
	f.used(both, 1, 1, 7, 0)
	f.used(fast, 1, 1, 5, 0)
	if f.missed != 5 || f.squares != 25 || f.differ != 1 {
		t.Errorf("the fast one missed %v s more, squares %v, of %d models, want 5, 25, 1", f.missed, f.squares, f.differ)
	}
	f.used(slow, 1, 1, 2, 0)
	if f.missed != 3 || f.squares != 29 || f.differ != 2 {
		t.Errorf("the fast one missed %v s more, squares %v, of %d models, want 3, 29, 2", f.missed, f.squares, f.differ)
	}
	if f.update(f.decayTime); f.missed != 0 || f.squares != 0 || f.differ != 0 {
		t.Errorf("after a move the fast one missed %v s more, squares %v, of %d models", f.missed, f.squares, f.differ)
	}
}

// When a model leaves a ghost list, the list frees the size that the model had when it entered.
func TestGhostListReleasesSizes(t *testing.T) {
	s, m := ghostList{decayTime: 1}, &model{bytes: 100}
	s.used(m, 0, 1, 0, 0)
	m.bytes = 300
	if s.forget(m, 0); s.has != (amount{}) {
		t.Errorf("an empty shadow has %+v", s.has)
	}
}

// The capacity of the ghost lists is that of the endpoints that can load models and serve requests.
func TestGhostListsHaveThePoolsCapacity(t *testing.T) {
	s, p, m := known(objects.Entry{}, noon)
	for _, e := range []Endpoint{
		{Address: "a", CanLoad: true, Slots: 4},
		{Address: "b", CanLoad: true, Slots: 8, Bytes: 1000, DefaultBytes: 100, Loads: 1},
		{Address: "full", CanLoad: true, Bytes: 1000},
		{Address: "static", Slots: 16},
		{Address: "down", CanLoad: true, Slots: 32},
	} {
		s.SetEndpoint(e.Address, []objects.Name{m.Pool})
		s.Scraped(ScrapeResult{Endpoint: e, Began: noon}, noon)
	}
	s.endpoints["full"].leaked = 1500
	s.Down("down")
	tickDecay(s, m.Pool, p)
	if got, want := p.decay.ghostLists[1].capacity, (amount{12, 950}); got != want {
		t.Errorf("shadows hold %v, want %v", got, want)
	}
}

// If the mean load cost moves, the eviction values of all models of the pool are recomputed, but
// not those of another pool.
func TestModelsAreRevaluedWhenLoadCostsChange(t *testing.T) {
	s, p, m := known(objects.Entry{}, noon)
	other := Key{Pool: objects.Name{Namespace: "default", Name: "other"}, ID: "a"}
	s.SetModel(objects.Entry{ModelKey: other}, time.Time{})
	s.Used(other, Use{Requests: 100, Last: noon})
	elsewhere := s.models[other].value
	m.took, m.bytes = 99, 100
	p.loadCosts.n, p.loadCosts.mean, p.meanLoadCost = enough, 1, 1-loadCostTolerance/2
	tickDecay(s, m.Pool, p)
	if p.meanLoadCost == p.loadCosts.mean {
		t.Errorf("models are valued anew for less than %v", loadCostTolerance)
	}
	p.meanLoadCost = 0
	tickDecay(s, m.Pool, p)
	if want := m.usage.value(firstDecay, -1); p.meanLoadCost != 1 || m.value != want {
		t.Errorf("loads cost %v and the model is worth %v, want 1 and %v", p.meanLoadCost, m.value, want)
	}
	p.decay.differ, p.decay.missed, p.decay.squares = minMisses, minMisses, minMisses
	tickDecay(s, m.Pool, p)
	if o := s.models[other]; o.count != 100 || o.value != elsewhere {
		t.Errorf("a model of another pool has a count of %v and is worth %v, want 100 and %v", o.count, o.value, elsewhere)
	}
}
