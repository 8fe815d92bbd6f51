package place

import (
	"container/heap"
	"container/list"
	"math"
	"slices"
)

// base is shared by policies that keep one copy of each model. It has the models that wait for
// room.
type base struct {
	*Fleet
	stuck []int
	// settling is true while an eviction makes room for a model that is being placed.
	settling bool
	// settle chooses an endpoint for a model and loads it there. It returns false if there is no
	// room.
	settle func(model int) bool
	// touch records the use of a loaded model.
	touch func(model int)
}

func (b *base) Request(model int, missing bool) {
	b.touch(model)
	if missing && !slices.Contains(b.stuck, model) {
		b.settling = true
		if !b.settle(model) {
			b.stuck = append(b.stuck, model)
		}
		b.settling = false
	}
}

// retry tries to place the waiting models again.
func (b *base) retry() {
	if len(b.stuck) == 0 || b.settling {
		return
	}
	b.settling = true
	defer func() { b.settling = false }()
	left := b.stuck[:0]
	for i, model := range b.stuck {
		if !slices.ContainsFunc(b.Nodes, b.idle) {
			left = append(left, b.stuck[i:]...)
			break
		}
		if len(b.Copies[model]) == 0 && !b.settle(model) {
			left = append(left, model)
		}
	}
	b.stuck = left
}

// idle reports whether an endpoint would start another load immediately. Policies evict nothing for
// a load that would have to wait, because the copy can serve requests until then.
func (b *base) idle(n Node) bool { return n.Up && n.loading+len(n.queue) < b.AtOnce }

func (b *base) Ready(*Copy) { b.retry() }
func (b *base) Gone(*Copy)  { b.retry() }
func (b *base) Joined(int)  { b.retry() }

// Left retries to place models that have waiting requests and no copy.
func (b *base) Left(int) {
	for model, waiting := range b.waiting {
		if len(waiting) > 0 && len(b.Copies[model]) == 0 && !slices.Contains(b.stuck, model) {
			b.stuck = append(b.stuck, model)
		}
	}
	b.retry()
}

// roomiest returns the endpoint with the most room; -1 if a model does not fit even there.
func (b *base) roomiest(model int) int {
	best := -1
	for e := range b.Nodes {
		if b.idle(b.Nodes[e]) && b.Room(e) >= b.Size[model] && (best < 0 || b.Room(e) > b.Room(best)) {
			best = e
		}
	}
	return best
}

// recency is a list of models, least recently used first.
type recency struct {
	order list.List
	of    []*list.Element
}

func newRecency(f *Fleet) *recency {
	r := &recency{of: make([]*list.Element, f.Models)}
	if f.Warm {
		for _, model := range slices.Backward(ranked(f.rate(0))) {
			r.touch(model)
		}
	}
	return r
}

func (r *recency) touch(model int) {
	if r.of[model] == nil {
		r.of[model] = r.order.PushBack(model)
		return
	}
	r.order.MoveToBack(r.of[model])
}

// lru keeps one copy of each model. It evicts the least recently used model of all endpoints.
type lru struct {
	base
	recency *recency
	atEach  bool // evicts within the endpoint that choose selects
	used    []int
	choose  func(model int) (endpoint int)
}

// LRU is the policy with one LRU cache over the whole fleet.
func LRU() Policy { return &lru{} }

// Start implements [Policy].
func (l *lru) Start(f *Fleet) {
	l.Fleet, l.used = f, make([]int, f.Models)
	if !l.atEach {
		l.recency = newRecency(f)
	}
	l.touch = func(model int) {
		l.used[model] = f.Number + 1
		if !l.atEach {
			l.recency.touch(model)
		}
	}
	l.settle = func(model int) bool {
		if l.atEach {
			e := l.choose(model)
			return e >= 0 && l.replace(model, e)
		}
		if e := l.roomiest(model); e >= 0 {
			f.Load(model, e)
			return true
		}
		for at := l.recency.order.Front(); at != nil; {
			oldest := at.Value.(int)
			next := at.Next()
			switch waits := len(f.waiting[oldest]) > 0; {
			case waits:
			case len(f.Copies[oldest]) == 0: // the copy was removed
				l.recency.order.Remove(at)
				l.recency.of[oldest] = nil
			case f.Copies[oldest][0].State == Loaded && l.replace(model, f.Copies[oldest][0].Endpoint):
				return true
			}
			at = next
		}
		return false
	}
}

// replace evicts the least recently used models of endpoint e until a model fits, and loads the
// model there.
func (l *lru) replace(model, e int) bool {
	if !l.idle(l.Nodes[e]) {
		return false
	}
	room := l.Room(e)
	var going []*Copy
	if room < l.Size[model] {
		loaded := slices.DeleteFunc(slices.Clone(l.Nodes[e].Copies), func(c *Copy) bool { return c.State != Loaded })
		slices.SortFunc(loaded, func(a, b *Copy) int {
			if d := l.used[a.Model] - l.used[b.Model]; d != 0 {
				return d
			}
			return b.Model - a.Model
		})
		for _, c := range loaded {
			if room >= l.Size[model] {
				break
			}
			room += l.Size[c.Model]
			going = append(going, c)
		}
		if room < l.Size[model] {
			return false
		}
	}
	l.Load(model, e)
	for _, c := range going {
		l.Unload(c)
	}
	return true
}

// First loads a model on the first endpoint with room. In a full fleet it uses endpoints
// round-robin.
func First() Policy {
	l := &lru{atEach: true}
	turn := 0
	l.choose = func(model int) int {
		for e := range l.Nodes {
			if l.idle(l.Nodes[e]) && l.Room(e) >= l.Size[model] {
				return e
			}
		}
		for range l.Nodes {
			turn = (turn + 1) % len(l.Nodes)
			if l.idle(l.Nodes[turn]) {
				return turn
			}
		}
		return -1
	}
	return l
}

// Random loads a model on a random endpoint.
func Random() Policy {
	l := &lru{atEach: true}
	l.choose = func(int) int {
		for {
			if e := l.Random.IntN(len(l.Nodes)); l.Nodes[e].Up {
				return e
			}
		}
	}
	return l
}

// belady knows all future requests. It keeps one copy of each model and evicts the model whose next
// request is farthest in the future.
type belady struct {
	base
	next   []int32 // by request: number of the next request for the same model
	coming []int32 // by model: number of its next request
	far    farthest
}

// Belady is the offline policy: it evicts the model whose next request is farthest in the future.
func Belady() Policy { return &belady{} }

// never is the request number for a model that is not requested again.
const never = math.MaxInt32

// Start implements [Policy].
func (b *belady) Start(f *Fleet) {
	b.Fleet = f
	b.next, b.coming = make([]int32, len(f.Requests)), make([]int32, f.Models)
	for i := range b.coming {
		b.coming[i] = never
	}
	for i := len(f.Requests) - 1; i >= 0; i-- {
		m := f.Requests[i].Model
		b.next[i], b.coming[m] = b.coming[m], int32(i) //nolint:gosec // there are fewer
	}
	for model, copies := range f.Copies {
		if len(copies) > 0 {
			b.note(model)
		}
	}
	b.touch = func(model int) {
		b.coming[model] = b.next[f.Number]
		if len(f.Copies[model]) > 0 {
			b.note(model)
		}
	}
	b.settle = func(model int) bool {
		e := b.roomiest(model)
		var kept []due
		for e < 0 && len(b.far) > 0 {
			d := heap.Pop(&b.far).(due)
			if b.coming[d.model] != d.at || len(f.Copies[d.model]) == 0 {
				continue // the entry is outdated
			}
			c := f.Copies[d.model][0]
			if c.State != Loaded || !b.idle(f.Nodes[c.Endpoint]) {
				kept = append(kept, d)
				continue
			}
			f.Unload(c)
			if f.Room(c.Endpoint) >= f.Size[model] {
				e = c.Endpoint
			}
		}
		for _, d := range kept {
			heap.Push(&b.far, d)
		}
		if e < 0 {
			return false
		}
		f.Load(model, e)
		b.note(model)
		return true
	}
}

func (b *belady) note(model int) { heap.Push(&b.far, due{b.coming[model], model}) }

// due is the next request for a model, by its number.
type due struct {
	at    int32
	model int
}

// farthest is a heap whose first element is the request farthest in the future.
type farthest []due

func (q farthest) Len() int { return len(q) }
func (q farthest) Less(i, j int) bool {
	return q[i].at > q[j].at || q[i].at == q[j].at && q[i].model > q[j].model
}
func (q farthest) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *farthest) Push(d any)   { *q = append(*q, d.(due)) }
func (q *farthest) Pop() any {
	last := len(*q) - 1
	d := (*q)[last]
	*q = (*q)[:last]
	return d
}

// optimum keeps one copy of the models with the highest true rate times load time per byte, as many
// as fit into the bytes of all endpoints. Other models load for each request and need no room. So
// it bounds what a policy can achieve that knows only rates. If rates change over time, it updates
// the set every minute, which takes no time.
type optimum struct {
	*Fleet
	resident []bool
}

// Optimum is the policy that always has the best set of models for the current rates.
func Optimum() Policy { return &optimum{} }

// Start implements [Policy].
func (o *optimum) Start(f *Fleet) {
	o.Fleet, o.resident = f, make([]bool, f.Models)
	f.clear()
	if f.Drift == 0 && f.Clients == nil {
		o.choose()
		if f.Flash > 0 {
			f.loop.At(f.flashes(), o.choose)
		}
		if f.Join > 0 || f.Leave > 0 {
			for _, at := range []float64{f.Warmup + f.Join, f.Warmup + f.Leave} {
				f.loop.At(at, o.choose)
			}
		}
		return
	}
	f.loop.Every(0, 60, func() bool {
		o.choose()
		return f.Now() < f.Warmup+f.Measured
	})
}

// choose updates the set of resident models.
func (o *optimum) choose() {
	value := o.rate(o.Now())
	for model := range value {
		value[model] *= o.loadTime[model] / float64(o.Size[model])
	}
	room := int64(0)
	for e := range o.Nodes {
		if o.Nodes[e].Up {
			room += o.Capacity
		}
	}
	for _, model := range ranked(value) {
		o.resident[model] = o.Size[model] <= room
		if o.resident[model] {
			room -= o.Size[model]
		}
	}
}

// Request serves a resident model; for another it only simulates the time of a load.
func (o *optimum) Request(model int, missing bool) {
	switch {
	case !missing:
	case o.resident[model] && !o.passing[model]:
		o.waiting[model] = o.waiting[model][:0]
		o.waits[o.Number] = 0
	default:
		o.Pass(model)
	}
}

// Ready implements [Policy].
func (o *optimum) Ready(*Copy) {}

// Gone implements [Policy].
func (o *optimum) Gone(*Copy) {}

// Joined chooses the resident models again, with more room.
func (o *optimum) Joined(int) { o.choose() }

// Left chooses the resident models again, with less room.
func (o *optimum) Left(int) { o.choose() }
