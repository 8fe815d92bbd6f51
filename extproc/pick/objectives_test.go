package pick_test

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// The tightest objective is that of the requests that have not ended, whatever their number and
// order. The reference implementation scans all of them.
func TestTightestObjective(t *testing.T) {
	type request struct {
		band   int32
		micros int
	}
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's
	bands := []int32{math.MinInt32, -5, 0, 1, 7, math.MaxInt32}
	var b pick.Backlog
	var there []request
	claim := func(r request) pick.Claim { return pick.StatedClaim(r.band, float64(r.micros)*1e-6) }
	for range 20_000 {
		if n := len(there); n > 0 && random.IntN(40) < n {
			i := random.IntN(n)
			b.End(claim(there[i]), n == 1)
			there[i], there = there[n-1], there[:n-1]
		} else {
			r := request{bands[random.IntN(len(bands))], 1 + random.IntN(8)*1000}
			b.Begin(claim(r), now)
			there = append(there, r)
		}
		pairs := map[request]bool{}
		band, want := bands[random.IntN(len(bands))], math.Inf(1)
		for _, r := range there {
			pairs[r] = true
			if r.band >= band {
				want = min(want, float64(r.micros)*1e-6)
			}
		}
		if got := b.Objectives.Tightest(band); math.Abs(got-want) > 1e-9 || b.Objectives.Len() != len(pairs) {
			t.Fatalf("band %d: the tightest of %v is %v, want %v; %d pairs", band, there, got, want, b.Objectives.Len())
		}
	}
	for _, r := range there {
		b.End(claim(r), false)
	}
	if b.Objectives.Len() != 0 || !math.IsInf(b.Objectives.Tightest(math.MinInt32), 1) {
		t.Errorf("%d pairs are left", b.Objectives.Len())
	}
}

// Requests that begin and end at the same time leave nothing behind.
func TestObjectivesOfConcurrentRequests(t *testing.T) {
	var b pick.Backlog
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 20_000 {
				c := pick.StatedClaim(int32(i%5), 0.01*float64(1+(g+i)%7))
				b.Begin(c, now)
				b.Objectives.Tightest(2)
				b.End(c, false)
			}
		})
	}
	all.Wait()
	if n := b.Objectives.Len(); n != 0 {
		t.Errorf("%d pairs are left", n)
	}
}
