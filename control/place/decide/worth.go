package decide

import (
	"container/heap"
	"math"
	"time"
)

// What leaves first is what is missed least: of which the fewest seconds of loads are to be
// expected for the room that it takes. Requests for a model are counted, and the count fades; so
// does the worth of a model that nobody names any more:
//
// 	worth = when it was last used + fade * ln(requests counted * seconds that a miss costs, for the room that it takes, beside others)
//
// It is a time, so that it orders as times do: with one request counted it is when that came, and
// the model that was used least recently leaves first. While no request comes count and time fade
// together, so that the order of two models changes only where one is used (decay forward in time:
// Cormode et al., ICDE 2009).
//
// A model that was used a lot and then is no more would stay for long by that. So at each tick one
// that has been silent for more than quiet times as long as it used to be between two requests is
// taken for one that comes about quiet times in such a silence.
//
// How slowly counts are to fade nobody can say beforehand: where models are as popular tomorrow as
// today, very slowly; where they are not, a count must be forgotten before it misleads. Two shadows
// of the cache, which hold what the pool could hold by counts that fade twice as slowly and twice
// as fast, are asked for each model that is used. As soon as one has missed clearly fewer seconds
// of loads the fade moves towards its own.

const (
	// firstFade is how slowly counts fade before anything is known, least and most what it moves
	// between.
	firstFade = 5 * 60.0 // seconds
	leastFade = 20.0
	mostFade  = 30 * 24 * 3600.0
	// fadeStep is how many times as slowly or fast they fade after a move; shadows stand fadeSpread
	// off.
	fadeStep   = 1.5
	fadeSpread = 2.0
	// A move needs so many models that one shadow held and the other did not, and that the seconds
	// which one missed more are so many standard deviations off what chance would make of them.
	enoughMisses = 50
	sure         = 3
	// quiet silences of the mean length are chance, or a model that is used no more: of a Poisson
	// process one in e^3 is as long.
	quiet = 3
	// mostDear bounds how much dearer a load of a model is taken to be than others, as a logarithm:
	// tenfold.
	mostDear = 2.3
)

// usage is how often a model was used: a count that fades, as of a time in seconds.
type usage struct{ count, at float64 }

// after is the usage after requests at a time; 0 is at least one that nobody counted.
func (u usage) after(requests int, at, fade float64) usage {
	count := u.count * math.Exp(min(0, u.at-at)/fade)
	more := float64(requests) * math.Exp(min(0, at-u.at)/fade)
	if requests == 0 {
		return usage{max(count, 1), max(u.at, at)}
	}
	return usage{count + more, max(u.at, at)}
}

// faded is the usage as it would be, had it faded otherwise.
func (u usage) faded(slower float64) usage {
	if u.count > 1 {
		u.count = 1 + (u.count-1)*slower
	}
	return u
}

// worth is what a model of that usage is missed by, of which a load is so much dearer than others,
// as a logarithm. That of one that was never used is less than of any other.
func (u usage) worth(fade, dear float64) float64 {
	if u.count == 0 {
		return math.Inf(-1)
	}
	return u.at + fade*(math.Log(u.count)+dear)
}

// worthAt is the worth at a time after a silence.
func (u usage) worthAt(now, fade, dear float64) float64 {
	worth, silence := u.worth(fade, dear), now-u.at
	if u.count == 0 || silence <= 0 {
		return worth
	}
	return min(worth, now+fade*(math.Log(quiet*fade/silence)+dear))
}

// fading finds how slowly counts are to fade.
type fading struct {
	fade    float64
	shadows [2]shadow // fast, slow
	// missed is how many seconds of loads the fast one missed more than the slow one, squares the
	// sum of their squares, and differ of how many models only one had to be loaded: since the last
	// move.
	missed, squares float64
	differ          int
}

func newFading() *fading {
	f := &fading{}
	f.turn(firstFade)
	return f
}

// turn has counts fade otherwise from now on.
func (f *fading) turn(fade float64) {
	f.fade, f.missed, f.squares, f.differ = fade, 0, 0, 0
	for i := range f.shadows {
		f.shadows[i].turn(i, f.of(i))
	}
}

// of is how slowly a shadow fades.
func (f *fading) of(i int) float64 {
	if i == 0 {
		return f.fade / fadeSpread
	}
	return f.fade * fadeSpread
}

// used asks the shadows for a model. A load of it takes so many seconds.
func (f *fading) used(m *model, requests int, at, seconds, dear float64) {
	var missed [2]bool
	for i := range f.shadows {
		missed[i] = f.shadows[i].used(m, i, requests, at, dear)
	}
	switch {
	case missed[0] == missed[1]:
		return
	case missed[1]:
		seconds = -seconds
	}
	f.missed += seconds
	f.squares += seconds * seconds
	f.differ++
}

// move is how slowly counts are to fade by what the shadows missed, and whether that is otherwise
// than they do.
func (f *fading) move() (fade float64, moves bool) {
	if f.differ < enoughMisses || f.missed*f.missed < sure*sure*f.squares {
		return f.fade, false
	}
	fade = f.fade * fadeStep
	if f.missed < 0 {
		fade = f.fade / fadeStep
	}
	fade = min(max(fade, leastFade), mostFade)
	return fade, fade != f.fade
}

// shadow is a cache that loads nothing: which models a pool would hold if counts faded as its do.
type shadow struct {
	fade     float64
	capacity amount // 0: unbounded
	has      amount
	held     heldModels
}

// ghost is what a shadow knows of a model.
type ghost struct {
	usage
	worth, dear float64
	takes       int64 // bytes of the shadow's
	held        bool
	at          int // its place among the held
}

func (s *shadow) turn(i int, fade float64) {
	slower := 1.0
	if s.fade > 0 {
		slower = fade / s.fade
	}
	s.fade, s.held.shadow = fade, i
	for _, m := range s.held.models {
		g := &m.ghosts[i]
		g.usage = g.faded(slower)
		g.worth = g.usage.worth(fade, g.dear)
	}
	heap.Init(&s.held)
}

// used says whether the model would have had to be loaded.
func (s *shadow) used(m *model, i, requests int, at, dear float64) (missed bool) {
	g := &m.ghosts[i]
	g.usage, g.dear = g.after(requests, at, s.fade), dear
	g.worth = g.usage.worth(s.fade, dear)
	if g.held {
		heap.Fix(&s.held, g.at)
		return false
	}
	for len(s.held.models) > 0 && !s.fits(s.has.models+1, sum(s.has.bytes, m.bytes)) {
		s.forget(s.held.models[0], i)
	}
	g.held, g.takes = true, m.bytes
	s.has = s.has.plus(g.takes)
	heap.Push(&s.held, m)
	return true
}

// tick values those that it holds as of a time.
func (s *shadow) tick(now float64) {
	changed := false
	for _, m := range s.held.models {
		g := &m.ghosts[s.held.shadow]
		if worth := g.worthAt(now, s.fade, g.dear); worth != g.worth {
			g.worth, changed = worth, true
		}
	}
	if changed {
		heap.Init(&s.held)
	}
}

func (s *shadow) fits(models int, bytes int64) bool {
	return (s.capacity.models == 0 || models <= s.capacity.models) && (s.capacity.bytes == 0 || bytes <= s.capacity.bytes)
}

// forget takes a model out.
func (s *shadow) forget(m *model, i int) {
	if g := &m.ghosts[i]; g.held {
		heap.Remove(&s.held, g.at)
		s.has = s.has.minus(g.takes)
		g.held = false
	}
}

// heldModels are the models that a shadow holds, the one that is missed least at the top.
type heldModels struct {
	shadow int
	models []*model
}

func (h *heldModels) Len() int { return len(h.models) }

func (h *heldModels) Less(i, j int) bool {
	a, b := h.models[i], h.models[j]
	if x, y := a.ghosts[h.shadow].worth, b.ghosts[h.shadow].worth; x != y {
		return x < y
	}
	return a.Compare(b.ModelKey) < 0
}

func (h *heldModels) Swap(i, j int) {
	h.models[i], h.models[j] = h.models[j], h.models[i]
	h.models[i].ghosts[h.shadow].at, h.models[j].ghosts[h.shadow].at = i, j
}

func (h *heldModels) Push(x any) {
	m := x.(*model)
	m.ghosts[h.shadow].at = len(h.models)
	h.models = append(h.models, m)
}

func (h *heldModels) Pop() any {
	last := len(h.models) - 1
	m := h.models[last]
	h.models[last] = nil
	h.models = h.models[:last]
	return m
}

// seconds is a time as a number, in seconds; the zero time is before all others.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return math.Inf(-1)
	}
	return float64(t.UnixNano()) / 1e9
}
