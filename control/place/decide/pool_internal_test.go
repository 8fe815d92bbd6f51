package decide

import (
	"math"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// known is a State with one model of a pool, used a hundred times at a time.
func known(e objects.Entry, at time.Time) (*State, *pool, *model) {
	e.ModelKey = Key{Pool: objects.Name{Namespace: "default", Name: "p"}, ID: "a"}
	s := New(Config{})
	s.SetModel(e, time.Time{})
	s.Used(e.ModelKey, Use{Requests: 100, Last: at})
	return s, s.pool(e.Pool), s.models[e.ModelKey]
}

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// When counts come to fade more slowly, those that there are become what they would be, had they faded so before: of what was used a hundred
// times more is left.
func TestCountsAreAsIfTheyHadAlwaysFadedSo(t *testing.T) {
	s, p, m := known(objects.Entry{}, noon)
	p.fading.differ, p.fading.missed, p.fading.squares = enoughMisses, enoughMisses, enoughMisses
	s.tickFading(m.Pool, p)
	if want := firstFade * fadeStep; p.fading.fade != want {
		t.Fatalf("counts fade in %v s, want %v", p.fading.fade, want)
	}
	if want := 1 + 99*fadeStep; m.count != want {
		t.Errorf("the count is %v, want %v", m.count, want)
	}
	if want := m.usage.worth(p.fading.fade, 0); m.worth != want {
		t.Errorf("the model is worth %v, want %v", m.worth, want)
	}
}

// How long loads of a model take is half the last one and half those before.
func TestALoadCountsForHalf(t *testing.T) {
	s, _, m := known(objects.Entry{}, noon)
	for _, c := range []struct {
		took time.Duration
		want float64
	}{{0, 0}, {2 * time.Second, 2}, {4 * time.Second, 3}, {0, 3}, {time.Second, 2}} {
		if s.loadedIn(m, c.took); m.took != c.want {
			t.Errorf("after a load of %v loads take %v s, want %v", c.took, m.took, c.want)
		}
	}
}

// What a load costs counts within bounds, however far it is off what others cost.
func TestALoadIsTenTimesAsDearAtMost(t *testing.T) {
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
		{"a thousand times", enough, 99999, 100, mostDear},
		{"a thousandth", enough, 99, 100000, -mostDear},
	} {
		p.dear.n, p.dearness = c.loads, 0
		m.took, m.bytes = c.took, c.bytes
		if got := m.dear(p); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// The shadows are asked for what may leave: a model that must have a copy is loaded once, whoever else leaves.
func TestShadowsHoldWhatMayLeave(t *testing.T) {
	for least, want := range []int{1, 0} {
		_, p, _ := known(objects.Entry{Min: least}, noon)
		if got := len(p.fading.shadows[0].held.models); got != want {
			t.Errorf("of a model that must have %d copies a shadow holds %d, want %d", least, got, want)
		}
	}
}
