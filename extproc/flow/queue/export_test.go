package queue

import (
	"cmp"
	"iter"
	"slices"
	"time"
)

// Ready reports whether a request waits for the model, and the model is ready.
func (q *Queue[W]) Ready(model string) bool { return q.models[model] != nil && q.models[model].ready }

// Waiting is the waiting requests for one model in one band.
type Waiting struct {
	Band     int32
	Model    string
	Requests int
	Since    time.Time // arrival of the oldest
	Ready    bool      // whether the model is ready
}

// Waiting returns the waiting requests by model and band, sorted by model and then by falling
// priority.
func (q *Queue[W]) Waiting() []Waiting {
	type group struct {
		model string
		band  int32
	}
	all := make(map[group]Waiting)
	for leaf := range q.leaves() {
		band := leaf.parent.parent.parent.band()
		for m, l := range leaf.lines {
			g := group{m.name, band}
			w, ok := all[g]
			if !ok || l.first.since.Before(w.Since) {
				w.Since = l.first.since
			}
			w.Band, w.Model, w.Ready = band, m.name, m.ready
			w.Requests += l.requests
			all[g] = w
		}
	}
	sorted := make([]Waiting, 0, len(all))
	for _, w := range all {
		sorted = append(sorted, w)
	}
	slices.SortFunc(sorted, func(a, b Waiting) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(b.Band, a.Band))
	})
	return sorted
}

// leaves returns the flows with waiting requests.
func (q *Queue[W]) leaves() iter.Seq[*node[W]] {
	return func(yield func(*node[W]) bool) { q.root.walk(yield) }
}

func (n *node[W]) walk(yield func(*node[W]) bool) bool {
	if n.depth == depthLeaf {
		return yield(n)
	}
	for _, c := range n.children {
		if c.waiting > 0 && !c.walk(yield) {
			return false
		}
	}
	return true
}

// Service returns the expected service, which Dispatch charges.
func (p *Place[W]) Service() float64 { return p.service }

// Model returns the model of a waiting request; "" after it has left.
func (p *Place[W]) Model() string {
	if p.line == nil {
		return ""
	}
	return p.line.model.name
}

// Total returns the service that has been charged.
func (a *Account[W]) Total() float64 {
	if a == nil {
		return 0
	}
	return a.total
}
