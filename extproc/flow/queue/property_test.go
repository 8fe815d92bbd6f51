package queue_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/extproc/flow/queue"
)

// wait is a request of a random history, with the service that it really takes.
type wait struct {
	queue.Request
	actual float64
	nodes  [3]string // the names of its route, tenant and program
}

// weights are the shares of the routes; all other nodes have 1.
var weights = map[string]float64{"a": 1, "b": 4}

func weight(node string) float64 { return max(weights[node], 1) }

// siblings are the pairs of nodes that are compared.
func siblings() (pairs [][2]string) {
	pairs = append(pairs, [2]string{"a", "b"})
	for _, r := range []string{"a", "b"} {
		pairs = append(pairs, [2]string{r + "/1", r + "/2"}, [2]string{r + "/1/1", r + "/1/2"}, [2]string{r + "/2/1", r + "/2/2"})
	}
	return pairs
}

// fairness checks a random history of one band: nobody waits for room that is free in its turn, and
// of two siblings that could go for a while none is ahead by more than a request of each and what
// is unsettled.
type fairness struct {
	random   *rand.Rand
	queue    *queue.Queue[*wait]
	waiting  map[*queue.Place[*wait]]bool
	open     map[*queue.Account[*wait]]*wait
	served   map[string]float64    // service that the dispatched requests really take, by node
	error    map[string]float64    // the largest sum of the errors of open accounts, by node
	since    map[[2]string]float64 // the difference of the service per share when both could go first
	largest  float64               // service of one request, estimated or real
	worst    float64               // largest difference, as a part of what is allowed
	estimate func(actual float64) float64
}

// could returns the nodes that have a request of a ready model.
func (f *fairness) could() map[string]bool {
	all := make(map[string]bool)
	for p := range f.waiting {
		if f.queue.Ready(p.Model()) {
			for _, n := range p.Waiter.nodes {
				all[n] = true
			}
		}
	}
	return all
}

func (f *fairness) step() {
	r := f.random
	switch op := r.IntN(100); {
	case op < 45:
		w := &wait{actual: float64(1+r.IntN(32)) / 8}
		w.Route, w.Tenant, w.Program = route([]string{"a", "b"}[r.IntN(2)]), 1+r.Uint64N(2), 1+r.Uint64N(2)
		tenant := fmt.Sprintf("%s/%d", w.Route.Name, w.Tenant)
		w.nodes = [3]string{w.Route.Name, tenant, fmt.Sprintf("%s/%d", tenant, w.Program)}
		w.Share = int32(weight(w.Route.Name))
		w.Model, w.Service = string(rune('m'+r.IntN(3))), f.estimate(w.actual)
		f.largest = max(f.largest, w.actual, w.Service)
		f.waiting[f.queue.Join(w, w.Request)] = true
	case op < 85:
		if p := f.queue.Next(); p != nil {
			w := p.Waiter
			delete(f.waiting, p)
			f.open[f.queue.Dispatch(p)] = w
			for _, n := range w.nodes {
				f.served[n] += w.actual
			}
		}
	case op < 87:
		for p := range f.waiting {
			delete(f.waiting, p)
			f.queue.Leave(p)
			break
		}
	case op < 89:
		f.queue.SetReady(string(rune('m'+r.IntN(3))), r.IntN(3) > 0)
	default:
		for a, w := range f.open {
			if a.Charge(w.actual * r.Float64()); r.IntN(2) == 0 {
				a.Settle(w.actual)
				delete(f.open, a)
			}
			break
		}
	}
}

// check compares all siblings. It returns a description of an unfair pair.
func (f *fairness) check() string {
	errors := make(map[string]float64)
	for a, w := range f.open {
		for _, n := range w.nodes {
			errors[n] += math.Abs(w.actual - a.Total())
		}
	}
	for n, e := range errors {
		f.error[n] = max(f.error[n], e)
	}
	could := f.could()
	if (f.queue.Next() != nil) != (len(could) > 0) {
		return fmt.Sprintf("next is %v, but %v could go", f.queue.Next(), could)
	}
	for _, pair := range siblings() {
		a, b := pair[0], pair[1]
		ahead := f.served[a]/weight(a) - f.served[b]/weight(b)
		began, both := f.since[pair]
		switch now := could[a] && could[b]; {
		case !now:
			delete(f.since, pair)
		case !both:
			f.since[pair] = ahead
		default:
			// Unsettled service counts at most twice at each end of the time in between: when it
			// was charged, and in what both really had.
			allowed := (f.largest+4*f.error[a])/weight(a) + (f.largest+4*f.error[b])/weight(b)
			d := math.Abs(ahead - began)
			f.worst = max(f.worst, d/allowed)
			if d > allowed+1e-9 {
				return fmt.Sprintf("%s and %s could go: one was ahead by %v more than before, allowed are %v", a, b, d, allowed)
			}
		}
	}
	return ""
}

func TestSharesAreFairWhileBothCouldGo(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 40))
	for name, estimate := range map[string]func(float64) float64{
		"exact":    func(actual float64) float64 { return actual },
		"too low":  func(actual float64) float64 { return actual / 4 },
		"too high": func(actual float64) float64 { return actual * 4 },
		"random":   func(float64) float64 { return random.Float64() * 4 },
	} {
		t.Run(name, func(t *testing.T) {
			worst := 0.0
			for seed := range uint64(12) {
				f := &fairness{
					random: rand.New(rand.NewPCG(seed, 41)), queue: queue.New[*wait](), waiting: make(map[*queue.Place[*wait]]bool),
					open: make(map[*queue.Account[*wait]]*wait), served: make(map[string]float64), error: make(map[string]float64),
					since: make(map[[2]string]float64), estimate: estimate,
				}
				for i := range 1000 {
					f.step()
					if unfair := f.check(); unfair != "" {
						t.Fatalf("seed %d, step %d: %s", seed, i, unfair)
					}
				}
				worst = max(worst, f.worst)
				for p := range maps.Clone(f.waiting) {
					f.queue.Leave(p)
				}
				for a, w := range f.open {
					a.Settle(w.actual)
				}
				if d := f.queue.Debug(); d != (queue.Debug{}) {
					t.Fatalf("seed %d: left at the end: %+v", seed, d)
				}
			}
			t.Logf("largest lead: %.2f of what is allowed", worst)
		})
	}
}
