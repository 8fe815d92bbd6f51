package endpointstate_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
)

func TestServiceTime(t *testing.T) {
	var p endpointstate.ServiceTime
	learn := func(all ...time.Duration) {
		for _, d := range all {
			p.Learn(d)
		}
	}
	want := func(when string, pace time.Duration) {
		t.Helper()
		if got := time.Duration(p.Nanoseconds()); got != pace {
			t.Errorf("%s: %v, want %v", when, got, pace)
		}
	}
	learn(0, -1, 0, 0, 0)
	want("invalid samples", 0)
	learn(9*time.Second, 10, 20)
	want("three", 0)
	learn(40)
	want("of 10, 20, 40 and 9 s the middle half", 30)
	learn(60)
	want("of five the middle three", 40)
	for range 27 {
		learn(100)
	}
	want("28 of 32 are 100, and one more is below than above", 100)
	for range 8 {
		learn(time.Hour)
	}
	want("a quarter of the latest is far above", 100)
	learn(time.Hour)
	want("one more is of the middle half", 100+(time.Hour-100)/16)
	for range 15 {
		learn(time.Hour)
	}
	for range 24 {
		learn(7)
	}
	want("three quarters of the latest are other ones", 7)
	for range 24 {
		learn(1000 * time.Hour)
	}
	want("impossible values are bounded", time.Hour)
}

// Requests for two models arrive at random at one engine that is busy 60 % of the time. If the
// engine processes all requests concurrently, the learned service times are those of each model
// alone. If it processes them one by one, the learned times of the two models are closer to each
// other, because a sample is divided by the number of earlier requests and ignores their durations.
func TestServiceTimesOfTwoModels(t *testing.T) {
	takes := []float64{0.002, 0.02}
	for _, c := range []struct {
		name   string
		atOnce bool
		want   [2]float64
	}{{"all at once", true, [2]float64{0.002, 0.0207}}, {"one after the other", false, [2]float64{0.004, 0.017}}} {
		paces := make([]endpointstate.ServiceTime, 2)
		var got [2][]float64
		for n, model := range simulate(takes, c.atOnce, paces) {
			if n > 2000 {
				got[model] = append(got[model], float64(paces[model].Nanoseconds())*1e-9)
			}
		}
		for i, want := range c.want {
			slices.Sort(got[i])
			if median := got[i][len(got[i])/2]; math.Abs(median-want) > 0.05*want {
				t.Errorf("%s: the service time of the model that takes %g s is %.4f s, want %.4f", c.name, takes[i], median, want)
			}
		}
	}
}

// simulate sends 10,000 requests to an engine that is busy 60 % of the time. When a request ends,
// it yields how many requests have ended so far, and the request's model.
func simulate(takes []float64, atOnce bool, paces []endpointstate.ServiceTime) func(func(int, int) bool) {
	return func(yield func(int, int) bool) {
		type request struct {
			model              int
			began, left, among float64
		}
		random := rand.New(rand.NewPCG(31, 32))
		var there []request
		now, ended := 0.0, 0
		every := (takes[0] + takes[1]) / 2 / 0.6
		next := random.ExpFloat64() * every
		for ended < 10_000 {
			// The request that ends next is the first one or, if all run at once, the one with the
			// least work left.
			first, speed := 0, 1.0
			for i := range there {
				if atOnce && there[i].left < there[first].left {
					first = i
				}
			}
			if atOnce && len(there) > 0 {
				speed = 1 / float64(len(there))
			}
			if len(there) > 0 && now+there[first].left/speed <= next {
				took := there[first].left / speed
				if atOnce {
					for i := range there {
						there[i].left -= took * speed
					}
				}
				now += took
				r := there[first]
				there = slices.Delete(there, first, first+1)
				paces[r.model].Learn(time.Duration((now - r.began) / r.among * 1e9))
				if ended++; !yield(ended, r.model) {
					return
				}
				continue
			}
			for i := range there {
				if atOnce || i == 0 {
					there[i].left -= (next - now) * speed
				}
			}
			now = next
			next += random.ExpFloat64() * every
			r := request{model: random.IntN(2), began: now, left: 0}
			r.left = takes[r.model] * (0.9 + 0.2*random.Float64())
			r.among = float64(len(there) + 1)
			there = append(there, r)
		}
	}
}
