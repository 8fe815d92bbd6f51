package place

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/headgate/headgate/internal/hash"
)

// alias draws weighted random numbers in constant time (Vose's method).
type alias struct {
	share []float64
	other []int32
}

func newAlias(weights []float64) alias {
	n := len(weights)
	a := alias{make([]float64, n), make([]int32, n)}
	total := 0.0
	for _, w := range weights {
		total += w
	}
	var small, large []int32
	for i, w := range weights {
		a.share[i], a.other[i] = w*float64(n)/total, int32(i) //nolint:gosec // there are fewer
		if a.share[i] < 1 {
			small = append(small, a.other[i])
		} else {
			large = append(large, a.other[i])
		}
	}
	for len(small) > 0 && len(large) > 0 {
		s, l := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		a.other[s] = l
		if a.share[l] -= 1 - a.share[s]; a.share[l] < 1 {
			large, small = large[:len(large)-1], append(small, l)
		}
	}
	for _, i := range slices.Concat(small, large) { // their weight is 1 except for rounding errors
		a.share[i] = 1
	}
	return a
}

func (a alias) draw(random *rand.Rand) int {
	i := random.IntN(len(a.share))
	if random.Float64() < a.share[i] {
		return i
	}
	return int(a.other[i])
}

// zipf returns the weight of each popularity rank for the exponent s.
func zipf(models int, s float64) []float64 {
	all := make([]float64, models)
	for i := range all {
		all[i] = math.Pow(float64(i+1), -s)
	}
	return all
}

// popularity returns the weight of each popularity rank in the World.
func (w World) popularity() []float64 {
	all := zipf(w.Models, w.Zipf)
	if w.Hot > 0 {
		rest := 0.0
		for _, weight := range all[1:] {
			rest += weight
		}
		all[0] = rest * w.Hot / (1 - w.Hot)
	}
	return all
}

// shift returns by how many models the popularity has rotated at a time.
func (w World) shift(at float64) int {
	if w.Drift == 0 {
		return 0
	}
	return int(float64(w.Models) * at / w.Drift)
}

// flashes returns when the flash crowd starts.
func (w World) flashes() float64 { return w.Warmup + w.Measured/2 }

// cold returns the model that the flash crowd requests: the least popular one when it starts.
func (w World) cold() int { return (w.Models - 1 + w.shift(w.flashes())) % w.Models }

// noisy returns the random factor on the rate of a model in the minute that contains a time.
func (w World) noisy(model int, at float64) float64 {
	x := uint64(model)<<32 | uint64(at/60) //nolint:gosec // neither is negative
	x = hash.Mix(x)
	return 1 + w.Noise*(2*float64(x>>11)/(1<<53)-1)
}

// requests draws Poisson arrivals, each for a model by its popularity at that time. The model
// number is the popularity rank plus the rotation: no policy depends on model numbers.
func requests(w World, seed uint64) []Request {
	if w.Clients != nil {
		return w.population(seed).requests(w.Models, seed, w.Warmup+w.Measured)
	}
	random := rand.New(rand.NewPCG(seed, 4)) //nolint:gosec // no secret
	draws := newAlias(w.popularity())
	rate, end := w.Rate*(1+w.Noise), w.Warmup+w.Measured
	all := make([]Request, 0, int(1.01*w.Rate*end)+100)
	for at := random.ExpFloat64() / rate; at < end; at += random.ExpFloat64() / rate {
		model := (draws.draw(random) + w.shift(at)) % w.Models
		if w.Flash > 0 && at >= w.flashes() && random.Float64() < w.Flash {
			model = w.cold()
		}
		if w.Noise > 0 && random.Float64()*(1+w.Noise) > w.noisy(model, at) {
			continue
		}
		all = append(all, Request{at, int32(model)}) //nolint:gosec // there are fewer
	}
	return all
}

// rate returns the rate of each model at a time, without noise.
func (f *Fleet) rate(at float64) []float64 {
	all := make([]float64, f.Models)
	if f.Clients != nil {
		for model := range all {
			all[model] = f.population.window(model, int(at/windowed)).Rate
		}
		return all
	}
	weights, total := f.popularity(), 0.0
	for _, w := range weights {
		total += w
	}
	flash := f.Flash
	if at < f.flashes() {
		flash = 0
	}
	for rank, w := range weights {
		all[(rank+f.shift(at))%f.Models] = f.Rate * (1 - flash) * w / total
	}
	all[f.cold()] += f.Rate * flash
	return all
}

// ranked returns all models in order of a value, the highest first.
func ranked(value []float64) []int {
	all := make([]int, len(value))
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(value[b], value[a]) })
	return all
}
