package decide_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// traffic is a stream of requests for models of one full endpoint. The popularity of models follows
// Zipf's law. It may move from model to model, through all models in some hours.
type traffic struct {
	models, slots int
	perSecond     float64
	zipf          float64
	rotates       float64
	lru           bool
}

// misses returns the share of requests in the last half hour that wait for a load. optimum is that
// share if the endpoint always had the most popular models.
func (x traffic) misses(t *testing.T) (share, optimum float64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	cumulated := make([]float64, x.models)
	all := 0.0
	for i := range cumulated {
		all += math.Pow(float64(i+1), -x.zipf)
		cumulated[i] = all
	}
	s := decide.New(decide.Config{})
	s.SetPool(pool, decide.Pool{LRU: x.lru})
	s.SetEndpoint("e", []objects.Name{pool})
	s.Scraped(decide.ScrapeResult{Began: start, Endpoint: decide.Endpoint{
		Address: "e", CanLoad: true, Slots: x.slots,
		Loads: x.slots,
	}}, start)
	keys := make([]decide.Key, x.models)
	for i := range keys {
		keys[i] = key(numbered(i))
		s.SetModel(objects.Entry{ModelKey: keys[i]}.Complete(nil), time.Time{})
	}
	const hours = 1.5
	missed, asked, tick := 0, 0, 0.0
	for at := 0.0; at < hours*3600; at += rng.ExpFloat64() / x.perSecond {
		now := start.Add(time.Duration(at * float64(time.Second)))
		if at >= tick {
			s.Tick()
			s.Decide(now)
			tick += decide.TickInterval.Seconds()
		}
		rank, draw := 0, rng.Float64()*all
		for cumulated[rank] < draw {
			rank++
		}
		if x.rotates > 0 {
			rank = (rank + int(at/3600/x.rotates*float64(x.models))) % x.models
		}
		k := keys[rank]
		measured := at >= (hours-0.5)*3600
		if measured {
			asked++
		}
		s.Used(k, decide.Use{Requests: 1, Last: now})
		if c, there := s.Copy(decide.CopyKey{ModelKey: k, Endpoint: "e"}); there && c.State == decide.Loaded {
			continue
		}
		if measured {
			missed++
		}
		s.Wanted("x", k, decide.Want{Requests: 1, Since: now})
		serve(s, now)
		s.Wanted("x", k, decide.Want{})
	}
	return float64(missed) / float64(asked), 1 - cumulated[x.slots-1]/all
}

// With stable popularity, hardly more requests wait for loads than with the optimum, because the
// decay time adapts. The test fails if the decay time stays at its initial value, or if counts
// never decay.
func TestEvictionApproachesTheOptimum(t *testing.T) {
	for _, slots := range []int{60, 180} {
		x := traffic{models: 300, slots: slots, perSecond: 10, zipf: 1}
		share, optimum := x.misses(t)
		x.lru = true
		lru, _ := x.misses(t)
		t.Logf("%d of 300 models: %.2f %% wait, at best %.2f, where the one leaves that was used least recently %.2f", slots, 100*share,
			100*optimum, 100*lru)
		if share > 1.1*optimum {
			t.Errorf("%.2f times as many requests wait as at best", share/optimum)
		}
		if lru < 1.25*optimum {
			t.Errorf("the load is too easy: with LRU %.2f times as many wait as at best", lru/optimum)
		}
	}
}

// With changing popularity, no more requests wait for loads than with LRU.
func TestEvictionAdaptsToChange(t *testing.T) {
	for _, slots := range []int{40, 120} {
		x := traffic{models: 200, slots: slots, perSecond: 20, zipf: 1, rotates: 1.5}
		share, _ := x.misses(t)
		x.lru = true
		lru, _ := x.misses(t)
		t.Logf("%d of 200 models: %.2f %% wait, where the one leaves that was used least recently %.2f", slots, 100*share, 100*lru)
		if share > 0.95*lru {
			t.Errorf("%.2f times as many requests wait as with LRU", share/lru)
		}
	}
}
