package des_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/des"
)

// Events run in order of time. Events at the same time run in the order of scheduling. An event
// scheduled for a past time runs next.
func TestLoop(t *testing.T) {
	var l des.Loop
	var done []string
	note := func(name string) func() {
		return func() { done = append(done, fmt.Sprintf("%s@%g", name, l.Now())) }
	}
	l.At(2, note("c"))
	l.At(1, func() {
		note("a")()
		l.At(0.5, note("late"))
		l.At(1, note("same"))
		l.At(3, note("e"))
	})
	l.At(2, note("d"))
	l.At(1, note("b"))
	l.Run(2)
	if want := "a@1 b@1 late@1 same@1 c@2 d@2"; strings.Join(done, " ") != want || l.Now() != 2 || l.Len() != 1 {
		t.Errorf("at %g, with %d to do, there was done %v, want %s", l.Now(), l.Len(), done, want)
	}
	l.Run(2.5)
	if l.Now() != 2.5 || len(done) != 6 {
		t.Errorf("it is %g, want 2.5; there was done %v", l.Now(), done)
	}
	if !l.Step() || l.Now() != 3 || l.Step() {
		t.Errorf("it is %g, want 3 with nothing to do", l.Now())
	}
}

// A repeated event is not scheduled again after its function returns false.
func TestEvery(t *testing.T) {
	var l des.Loop
	var at []float64
	l.Every(1, 2, func() bool {
		at = append(at, l.Now())
		return len(at) < 3
	})
	l.Run(100)
	if !slices.Equal(at, []float64{1, 3, 5}) || l.Len() != 0 {
		t.Errorf("it was done at %v", at)
	}
}

// Events run in order of time, however many there are.
func TestOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's
	var l des.Loop
	type asked struct {
		at     float64
		number int
	}
	var want, got []asked
	for i := range 10_000 {
		a := asked{float64(random.IntN(100)), i}
		want = append(want, a)
		l.At(a.at, func() { got = append(got, a) })
	}
	slices.SortStableFunc(want, func(a, b asked) int { return int(a.at - b.at) })
	l.Run(100)
	if !slices.Equal(got, want) {
		t.Error("it was done in another order")
	}
}

func BenchmarkLoop(b *testing.B) {
	for _, n := range []int{4, 100} {
		b.Run(fmt.Sprintf("waiting=%d", n), func(b *testing.B) {
			var l des.Loop
			random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a benchmark's
			var again func()
			again = func() { l.At(l.Now()+random.Float64(), again) }
			for range n {
				again()
			}
			b.ReportAllocs()
			for b.Loop() {
				l.Step()
			}
		})
	}
}
