package place

import (
	"cmp"
	"math"
	"slices"

	"github.com/headgate/headgate/internal/hash"
)

// Dynamo's constants (lib/llm/src/lora/config.rs of ai-dynamo/dynamo).
const (
	dynamoTick     = 3.0 // seconds between allocations
	dynamoWindow   = 30  // number of ticks over which requests are counted
	dynamoSmooth   = 0.3 // weight of the newest count in the smoothed load
	dynamoCooldown = 3   // ticks to wait before a model loses replicas
)

// dynamo is NVIDIA Dynamo's allocation controller with rendezvous hashing
// (lib/llm/src/lora/controller.rs and filter.rs). Every 3 s it computes the endpoints that each
// model may use. A model's share of all slots is its share of all requests; an unused model gets
// one endpoint. Endpoints with free slots are chosen by rendezvous hash. The controller does not
// load models itself: a request without a copy goes to the first endpoint of its model, whose
// engine loads the model and evicts the least recently used one. Requests prefer endpoints with a
// copy, so a second copy never appears here. A slot has the mean size of a model.
type dynamo struct {
	lru
	order   [][]int // by model: all endpoints in order of their rendezvous hash
	table   [][]int // by model: the endpoints that it may use
	counts  [dynamoWindow][]int
	window  []int // by model: its requests in all ticks of counts
	load    []float64
	lowered []int // by model: tick (from 1) that lowered its replicas or began to delay that; 0 for none
	tick    int
}

// Dynamo is the policy of NVIDIA Dynamo's allocation of adapters.
func Dynamo() Policy {
	d := &dynamo{lru: lru{atEach: true}}
	d.choose = d.endpoint
	return d
}

// Start computes the first allocation.
func (d *dynamo) Start(f *Fleet) {
	d.lru.Start(f)
	d.order, d.table, d.window = make([][]int, f.Models), make([][]int, f.Models), make([]int, f.Models)
	d.load, d.lowered = make([]float64, f.Models), make([]int, f.Models)
	for i := range d.counts {
		d.counts[i] = make([]int, f.Models)
	}
	for model := range d.order {
		d.order[model] = make([]int, len(f.Nodes))
		for e := range f.Nodes {
			d.order[model][e] = e
		}
		slices.SortFunc(d.order[model], func(a, b int) int { return cmp.Compare(rendezvous(model, b), rendezvous(model, a)) })
	}
	d.allocate()
	d.Every(d.Now()+dynamoTick, dynamoTick, d.allocate)
}

// rendezvous returns the hash of a model at an endpoint. It is the same in every run.
func rendezvous(model, endpoint int) uint64 {
	x := uint64(model)<<32 | uint64(endpoint) //nolint:gosec // neither is negative
	return hash.Mix(x + hash.Gamma)
}

// Request counts a request for a model in the current tick.
func (d *dynamo) Request(model int, missing bool) {
	d.counts[d.tick%dynamoWindow][model]++
	d.window[model]++
	d.lru.Request(model, missing)
}

// endpoint returns the endpoint that should load a model without a copy.
func (d *dynamo) endpoint(model int) int {
	if e := d.up(d.table[model]); e >= 0 {
		return e
	}
	return d.first(model)
}

// first returns the endpoint with the best hash for a model among those that exist.
func (d *dynamo) first(model int) int { return d.up(d.order[model]) }

// up returns the first of some endpoints that exists now; -1 if none does.
func (d *dynamo) up(endpoints []int) int {
	for _, e := range endpoints {
		if d.Nodes[e].Up {
			return e
		}
	}
	return -1
}

// allocate computes which endpoints each model may use until the next tick.
func (d *dynamo) allocate() {
	slots, up := int(d.Capacity/meanSize), 0
	free := make([]int, len(d.Nodes))
	for e := range d.Nodes {
		if d.Nodes[e].Up {
			free[e] = slots
			up++
		}
	}
	for _, copies := range d.Copies {
		for _, c := range copies {
			free[c.Endpoint]--
		}
	}
	for model, n := range d.window {
		d.load[model] += dynamoSmooth * (float64(n) - d.load[model])
	}
	for model, want := range replicas(d.load, slots*up, up) {
		switch {
		case math.Round(d.load[model]) == 0:
			d.table[model], d.lowered[model] = []int{d.first(model)}, 0
		case want == 0: // the model is in use, but there are too few slots
			d.table[model] = d.assign(model, 1, free)
		default:
			is := len(d.table[model])
			switch {
			case want >= is:
				d.lowered[model] = 0
			case d.lowered[model] == 0: // the model loses replicas, but only after dynamoCooldown ticks
				d.lowered[model], want = d.tick+1, is
			case d.tick+1-d.lowered[model] < dynamoCooldown:
				want = is
			default:
				d.lowered[model] = d.tick + 1
			}
			d.table[model] = d.assign(model, want, free)
		}
	}
	d.tick++
	oldest := d.counts[d.tick%dynamoWindow]
	for model, n := range oldest {
		d.window[model] -= n
		oldest[model] = 0
	}
}

// assign returns up to want endpoints for a model: its current ones first, then others, each in
// order of its hash. New endpoints need a free slot, which assign subtracts from free. If no
// endpoint qualifies, it returns the first by hash.
func (d *dynamo) assign(model, want int, free []int) []int {
	set := make([]int, 0, want)
	for _, prior := range []bool{true, false} {
		for _, e := range d.order[model] {
			was, there := slices.Contains(d.table[model], e), d.At(model, e) != nil
			if len(set) < want && d.Nodes[e].Up && was == prior && (there || free[e] > 0) {
				if set = append(set, e); !there {
					free[e]--
				}
			}
		}
	}
	if len(set) == 0 {
		set = append(set, d.first(model))
	}
	return set
}

// replicas returns for each model how many endpoints it may use: its share of all slots, rounded
// up. If the sum exceeds the slots, each share is scaled down, rounded down, and at least 1; the
// remaining slots go to the largest remainders. If more models have load than there are slots,
// those with the least load get none.
func replicas(load []float64, slots, endpoints int) []int {
	all, want := make([]int, len(load)), make([]float64, len(load))
	busy := slices.DeleteFunc(ranked(load), func(model int) bool { return math.Round(load[model]) == 0 })
	busy = busy[:min(len(busy), slots)]
	total, sum := 0.0, 0.0
	for _, model := range busy {
		total += load[model]
	}
	for _, model := range busy {
		want[model] = min(math.Ceil(load[model]/total*float64(slots)), float64(endpoints))
		sum += want[model]
	}
	scale, left := min(1, float64(slots)/sum), slots
	for _, model := range busy {
		want[model] = max(want[model]*scale, 1)
		all[model] = int(want[model])
		want[model] -= float64(all[model])
		left -= all[model]
	}
	if scale < 1 {
		slices.SortStableFunc(busy, func(a, b int) int { return cmp.Compare(want[b], want[a]) })
		for _, model := range busy {
			if left > 0 && all[model] < endpoints {
				all[model]++
				left--
			}
		}
	}
	return all
}

// all loads each requested model on every endpoint with room. It evicts nothing, so requests for
// other models fail when all endpoints are full.
type all struct{ *Fleet }

// All is the policy that loads every model on every endpoint.
func All() Policy { return &all{} }

// Start implements [Policy].
func (a *all) Start(f *Fleet) { a.Fleet = f }

// Request loads a missing model on every endpoint with room.
func (a *all) Request(model int, missing bool) {
	if !missing {
		return
	}
	for e := range a.Nodes {
		if a.Nodes[e].Up && a.Room(e) >= a.Size[model] {
			a.Load(model, e)
		}
	}
	if len(a.Copies[model]) == 0 {
		a.Refuse(model)
	}
}

// Ready implements [Policy].
func (a *all) Ready(*Copy) {}

// Gone implements [Policy].
func (a *all) Gone(*Copy) {}

// Joined implements [Policy]. The next requests for models without a copy load them there.
func (a *all) Joined(int) {}

// Left implements [Policy]. Requests that waited for a load on the removed endpoint fail.
func (a *all) Left(int) {
	for model, waiting := range a.waiting {
		if len(waiting) > 0 && len(a.Copies[model]) == 0 {
			a.Request(model, true)
		}
	}
}
