package decide

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/headgate/headgate/internal/objects"
)

// naive is a ghost list that chooses the model to evict by a search of all its models.
type naive struct {
	decayTime float64
	capacity  amount
	held      map[string]*held
	known     map[string]*held
}

type held struct {
	usage
	bytes            int64
	loadCosts, value float64
}

func (n *naive) used(id string, requests int, at, loadCost float64, bytes int64) (missed bool) {
	h := n.known[id]
	if h == nil {
		h = &held{}
		n.known[id] = h
	}
	h.usage, h.loadCosts = h.after(requests, at, n.decayTime), loadCost
	h.value = h.usage.value(n.decayTime, loadCost)
	if n.held[id] != nil {
		return false
	}
	h.bytes = bytes
	for {
		total := amount{1, bytes}
		least, worth := "", math.Inf(1)
		for id, o := range n.held {
			total = total.plus(o.bytes)
			if w := o.value; w < worth || w == worth && id < least {
				least, worth = id, w
			}
		}
		if total.models <= n.capacity.models && total.bytes <= n.capacity.bytes || least == "" {
			n.held[id] = h
			return true
		}
		delete(n.held, least)
	}
}

// A ghost list has the same misses as the naive one, even after the decay of use counts has
// changed, and after models were removed or were not used for a long time.
func TestGhostListMatchesTheNaiveOne(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		capacity := amount{8, 900}
		s := ghostList{capacity: capacity}
		s.update(0, 100)
		n := naive{decayTime: 100, capacity: capacity, held: map[string]*held{}, known: map[string]*held{}}
		models := make([]*model, 30)
		for i := range models {
			models[i] = &model{Entry: objects.Entry{ModelKey: Key{ID: fmt.Sprintf("m%02d", i)}}, bytes: 50 + int64(rng.IntN(200))}
		}
		at := 1e9
		for step := range 4000 {
			at += rng.Float64() * 10
			m := models[min(rng.IntN(30), rng.IntN(30))]
			switch rng.IntN(200) {
			case 0:
				decayTime := 20 + rng.Float64()*1000
				for _, h := range n.held {
					h.usage = h.rescaled(decayTime / n.decayTime)
					h.value = h.usage.value(decayTime, h.loadCosts)
				}
				n.decayTime = decayTime
				s.update(0, decayTime)
				continue
			case 1:
				s.forget(m, 0)
				delete(n.held, m.ID)
				continue
			case 2, 3, 4:
				s.tick(at)
				for _, h := range n.held {
					h.value = h.valueAt(at, n.decayTime, h.loadCosts)
				}
				continue
			}
			requests, loadCost := rng.IntN(4), rng.Float64()*2-1
			if got, want := s.used(m, 0, requests, at, loadCost), n.used(m.ID, requests, at, loadCost, m.bytes); got != want {
				t.Fatalf("seed %d, step %d: %s missed is %v, and by looking at everything %v", seed, step, m.ID, got, want)
			}
			if len(s.held.models) != len(n.held) || s.has.models != len(n.held) {
				t.Fatalf("seed %d, step %d: holds %d models and counts %d, by looking at everything %d", seed, step, len(s.held.models),
					s.has.models, len(n.held))
			}
		}
	}
}
