package placementserver_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/api/placement"
)

// aLesson returns a profile of an accelerator of the pool, learned from a number of batch items.
func aLesson(class string, rows uint64) *placement.Lesson {
	return &placement.Lesson{
		Pool: pool.String(), Class: class, Prior: 7, Rows: rows, Matrix: make([]float64, 10),
		Right: make([]float64, 4),
	}
}

// teaches sends control the learned profiles of this extproc.
func (x *extproc) teaches(all ...*placement.Lesson) {
	x.t.Helper()
	x.send(&placement.Report{Lessons: all})
}

// lessons returns the learned profiles that this extproc received: for each accelerator, the number
// of batch items and the age in seconds.
func (x *extproc) lessons() string {
	var all []string
	for _, u := range x.heard() {
		for _, l := range u.GetLessons() {
			all = append(all, fmt.Sprintf("%s: %d, %d s", l.GetClass(), l.GetRows(), l.GetAgeMs()/1000))
		}
	}
	return strings.Join(all, "; ")
}

func (x *extproc) expectLessons(when, want string) {
	x.t.Helper()
	if got := x.lessons(); got != want {
		x.t.Errorf("%s it was told %q, want %q", when, got, want)
	}
}

// A new extproc receives each learned profile once, even if the extproc that learned the profile
// has disconnected. If several extprocs learned the same one, it receives that with the most
// weighted evidence.
func TestNewExtprocGetsLearnedProfiles(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x := w.connect("x")
		x.teaches(aLesson("A100", 400))
		y := w.connect("y")
		y.expectLessons("in the beginning", "A100: 400, 0 s")
		y.teaches(aLesson("A100", 60))
		x.teaches(aLesson("A100", 800))
		y.expectLessons("later", "A100: 400, 0 s")
		x.expectLessons("who knows more", "")
		x.leave()
		w.after(20 * time.Second)
		z := w.connect("z")
		z.expectLessons("after x has gone", "A100: 800, 20 s")
		again := w.connect("x")
		again.expectLessons("who learned it itself", "")
		w.after(20 * time.Minute) // x's profile now has less weighted evidence than y's
		y.teaches(aLesson("A100", 60))
		late := w.connect("late")
		late.expectLessons("after 20 minutes", "A100: 60, 0 s")
	})
}

// An extproc that connected before a profile existed receives the profile once it exists, unless
// the extproc's own has as much evidence.
func TestEarlierExtprocGetsLaterProfiles(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x, y, z := w.connect("x"), w.connect("y"), w.connect("z")
		z.teaches(aLesson("", 500))
		x.teaches(aLesson("", 5000))
		y.expectLessons("then", ": 500, 0 s")
		z.expectLessons("who knows as much as counts", "")
	})
}

// Profiles that were learned from different initial ones are kept side by side. A profile that is
// larger than what extproc sends is not kept.
func TestLimitsOfLearnedProfiles(t *testing.T) {
	inMemory(t, func(w *world) {
		w.Ready()
		x := w.connect("x")
		other := aLesson("a", 20)
		other.Prior = 8
		large, long := aLesson("large", 500), aLesson(strings.Repeat("l", 601), 500)
		large.Matrix = make([]float64, 65)
		many := aLesson("many", 500)
		many.Factors = make(map[string]float64)
		for n := range 513 {
			many.Factors[strconv.Itoa(n)] = 0
		}
		x.teaches(aLesson("a", 500), other, large, long, many)
		y := w.connect("y")
		if got := y.lessons(); got != "a: 500, 0 s; a: 20, 0 s" && got != "a: 20, 0 s; a: 500, 0 s" {
			t.Errorf("it was told %q", got)
		}
		for _, x := range []*extproc{x, y} { // each reports fewer than the limit, but both together more
			for n := range 3000 {
				x.teaches(aLesson(fmt.Sprintf("%p %d", x, n), 500))
			}
		}
		z := w.connect("z")
		if n := strings.Count(z.lessons(), ";") + 1; n != 4096 {
			t.Errorf("it was told %d", n)
		}
		for _, u := range z.heard() {
			if len(u.GetLessons()) > 64 {
				t.Errorf("one Update tells %d", len(u.GetLessons()))
			}
		}
	})
}
