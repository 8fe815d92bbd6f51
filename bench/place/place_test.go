package place

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/headgate/headgate/test/race"
)

// small is a World that is fast to simulate.
func small() World {
	return World{Endpoints: 4, Models: 40, Share: 0.4, Zipf: 1, Rate: 4, Load: 2, AtOnce: 2, Service: 0.05, Warmup: 600, Measured: 1200}
}

// alias draws numbers in proportion to their weights.
func TestAlias(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // a test's
	weights := []float64{5, 0, 1, 3, 1}
	a, drawn := newAlias(weights), make([]float64, len(weights))
	for range 100_000 {
		drawn[a.draw(random)]++
	}
	for i, n := range drawn {
		if want := weights[i] * 10_000; math.Abs(n-want) > 4*math.Sqrt(want) {
			t.Errorf("%d was drawn %g times, want %g", i, n, want)
		}
	}
}

// If loads take no time, the global LRU cache misses exactly when a list of last uses predicts it.
func TestLRUIsAList(t *testing.T) {
	w := small()
	w.Load, w.Service, w.Warmup = 1e-9, 1e-10, 0
	f, err := newFleet(w, 1)
	if err != nil {
		t.Fatal(err)
	}
	var list []int32
	misses := 0
	for _, r := range f.Requests {
		if at := slices.Index(list, r.Model); at >= 0 {
			list = slices.Delete(list, at, at+1)
		} else if misses++; len(list) == 16 {
			list = list[1:]
		}
		list = append(list, r.Model)
	}
	is, err := Run(w, 1, LRU())
	if want := float64(misses) / float64(len(f.Requests)); err != nil || math.Abs(is.Misses-want) > 1e-9 {
		t.Errorf("%.5f of the requests missed, want %.5f (%v)", is.Misses, want, err)
	}
}

// If loads are the bottleneck, control misses no more often than one LRU cache over the fleet; with
// eviction by LRU, about as often.
func TestNoCopyIsEvictedEarly(t *testing.T) {
	race.Skip(t)
	w := World{Endpoints: 1, Models: 100, Share: 0.1, Zipf: 1, Rate: 10, Load: 2, AtOnce: 2, Service: 0.05, Warmup: 1800, Measured: 600}
	misses := func(policy func() Policy) (all float64) {
		for seed := range uint64(2) {
			is, err := Run(w, seed, policy())
			if err != nil {
				t.Fatal(err)
			}
			all += is.Misses / 2
		}
		return all
	}
	lru, optimum := misses(LRU), misses(Optimum)
	if is := misses(Headgate); is > 0.95*lru || is > 1.15*optimum {
		t.Errorf("headgate misses %.4f, one LRU cache %.4f, the optimum %.4f", is, lru, optimum)
	}
	if is := misses(HeadgateLRU); is > 1.02*lru {
		t.Errorf("headgate-lru misses %.4f, one LRU cache %.4f", is, lru)
	}
}

// No order of evictions has fewer misses than belady: the test tries all orders.
func TestBeladyIsBest(t *testing.T) {
	for seed := range uint64(20) {
		w := World{Endpoints: 2, Models: 5, Share: 0.4, Zipf: 0.5, Rate: 1, Load: 1e-9, AtOnce: 2, Service: 1e-10, Measured: 12}
		f, err := newFleet(w, seed)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Requests) == 0 {
			continue
		}
		var least func(rest []Request, cache []int32) int
		least = func(rest []Request, cache []int32) int {
			if len(rest) == 0 {
				return 0
			}
			m := rest[0].Model
			if slices.Contains(cache, m) {
				return least(rest[1:], cache)
			}
			if len(cache) < 2 {
				return 1 + least(rest[1:], append(slices.Clone(cache), m))
			}
			best := math.MaxInt
			for i := range cache {
				with := slices.Clone(cache)
				with[i] = m
				best = min(best, 1+least(rest[1:], with))
			}
			return best
		}
		is, err := Run(w, seed, Belady())
		if want := float64(least(f.Requests, nil)) / float64(len(f.Requests)); err != nil || math.Abs(is.Misses-want) > 1e-9 {
			t.Errorf("seed %d: %.3f of %d requests missed, want %.3f (%v)", seed, is.Misses, len(f.Requests), want, err)
		}
	}
}

// Requests miss under the policy optimum exactly if their model is not in its set.
func TestOptimumByHand(t *testing.T) {
	w := small()
	w.Load, w.Rate, w.Warmup = 1e-6, 20, 0
	is, err := Run(w, 1, Optimum())
	if err != nil {
		t.Fatal(err)
	}
	weights, all, out := zipf(40, 1), 0.0, 0.0
	for i, v := range weights {
		if all += v; i >= 16 {
			out += v
		}
	}
	if want := out / all; math.Abs(is.Misses-want) > 0.01 {
		t.Errorf("%.4f of the requests missed, want %.4f", is.Misses, want)
	}
}

// watched is a policy that checks the invariants of the Fleet at each request.
type watched struct {
	Policy
	t *testing.T
	f *Fleet
}

func (w *watched) Start(f *Fleet) {
	w.f = f
	w.Policy.Start(f)
}

func (w *watched) Request(model int, missing bool) {
	w.Policy.Request(model, missing)
	for e := range w.f.Nodes {
		n := &w.f.Nodes[e]
		var held, promised int64
		loading := 0
		for _, c := range n.Copies {
			if c.State != Queued {
				held += w.f.Size[c.Model]
			}
			if c.State != Leaving {
				promised += w.f.Size[c.Model]
				if !slices.Contains(w.f.Copies[c.Model], c) {
					w.t.Fatalf("the model %d does not know of its copy", c.Model)
				}
			}
			if c.State == Loading {
				loading++
			}
		}
		if held != n.Held || promised != n.Promised || held > w.f.Capacity || loading > w.f.AtOnce || loading != n.loading || !n.Up &&
			len(n.Copies) > 0 {
			w.t.Fatalf("endpoint %d holds %d, promises %d and loads %d, and its books say %d, %d and %d", e, held, promised, loading,
				n.Held, n.Promised, n.loading)
		}
	}
}

// some has one popular client and others that send requests intermittently.
var some = []client{
	{{Rate: 5, Shape: 1}, {Rate: 4, Shape: 0.3, Weibull: true}},
	{{Rate: 1, Shape: 0.1}, {}},
	{{}, {Rate: 2, Shape: 2}},
	{{Rate: 0.5, Shape: 1, Weibull: true}, {Rate: 1, Shape: 1}},
}

// Under every policy and workload the invariants hold, and equal seeds give equal figures. Waiting
// requests are served, except that ModelMesh's churn limit and policies without eviction reject
// some.
func TestBooks(t *testing.T) {
	race.Skip(t)
	for _, p := range policies {
		for _, kind := range workloads {
			t.Run(p.name+"/"+kind.name, func(t *testing.T) {
				w := small()
				w.SizeSigma, w.LoadSigma, w.Share, w.Join, w.Leave = 0.3, 0.3, 0.6, 300, 700
				if kind.set != nil {
					kind.set(&w)
				}
				if kind.file != "" {
					w.Clients = some
				}
				if w.Engine != nil {
					w.Rate = 1 // so little load that engines can serve it with one endpoint fewer
				}
				is, err := Run(w, 3, &watched{Policy: p.make(), t: t})
				if err != nil {
					t.Fatal(err)
				}
				if math.IsInf(is.Wait99, 1) != (is.Refused >= 0.01) || is.Refused > 0 && p.name != "modelmesh" && p.name != "all" &&
					p.name != "known" || is.Misses <= 0 || is.Misses >= 1 {
					t.Errorf("figures are %+v", is)
				}
				if again, _ := Run(w, 3, p.make()); again != is {
					t.Errorf("figures are %+v, and another time %+v", is, again)
				}
			})
		}
	}
}

// After a warm start the most popular models are loaded, under each policy.
func TestWarm(t *testing.T) {
	for _, p := range policies {
		w := small()
		w.Warmup, w.Measured, w.Rate = 0, 20, 50
		cold, err := Run(w, 1, p.make())
		if err != nil {
			t.Fatal(err)
		}
		w.Warm = true
		warm, err := Run(w, 1, p.make())
		if err != nil {
			t.Fatal(err)
		}
		if warm.Misses > cold.Misses {
			t.Errorf("%s: warm %.3f of the requests miss, and cold %.3f", p.name, warm.Misses, cold.Misses)
		}
	}
}

// With --plots, bench draws a plot that names each policy and the workload.
func TestDraw(t *testing.T) {
	dir := t.TempDir()
	args := []string{
		"--models", "40", "--endpoints", "4", "--warmup", "1m", "--measure", "1m", "--seeds", "1", "--cache", "0.3,0.6",
		"--policy", "lru,optimum", "--plots", dir,
	}
	if err := runCommand(t.Context(), args, "", io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	picture, err := os.ReadFile(filepath.Join(dir, "place-zipf-40x4-zipf1.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"lru", "optimum", "zipf: 40 models on 4 endpoints, Zipf 1"} {
		if !bytes.Contains(picture, []byte(">"+text+"<")) {
			t.Errorf("the picture does not say %q", text)
		}
	}
	if err := runCommand(t.Context(), append(args[:len(args)-1], filepath.Join(dir, "none")), "", io.Discard, io.Discard); err == nil {
		t.Error("it draws into a folder that is not there")
	}
}

// A new endpoint gets models, and the models of a removed endpoint are loaded elsewhere. About a
// fourth of the models move, not most.
func TestMoves(t *testing.T) {
	w := small()
	w.Share, w.Zipf, w.Leave, w.Rate = 1.6, 0, 600, 8
	is, err := Run(w, 1, LRU())
	if err != nil || is.Moves < 0.15 || is.Moves > 0.35 {
		t.Errorf("%.2f of all copies moved, want a fourth (%v)", is.Moves, err)
	}
}

// Equal flags give equal figures.
func TestCommand(t *testing.T) {
	args := []string{"--models", "40", "--endpoints", "4", "--warmup", "5m", "--measure", "5m", "--seeds", "2", "--leave", "2m"}
	var one, two bytes.Buffer
	if err := runCommand(t.Context(), args, "", &one, io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := runCommand(t.Context(), args, "", &two, io.Discard); err != nil || one.String() != two.String() {
		t.Errorf("there is\n%s\nand another time\n%s (%v)", one.String(), two.String(), err)
	}
	for _, wrong := range [][]string{
		{"--policy", "none"},
		{"--workload", "none"},
		{"--seeds", "0"},
		{"more"},
		{"--models", "0"},
		{"--load=-1s"},
	} {
		if err := runCommand(t.Context(), wrong, "", io.Discard, io.Discard); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}
