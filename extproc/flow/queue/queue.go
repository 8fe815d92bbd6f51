// Package queue orders the requests that wait for the engines of one pool. It has no locks and
// reads no clock; package flow adds both.
//
// The queue is a tree of priority bands, routes, tenants and programs. Bands are strict: a request
// of a lower band is next only while no higher band has one that can go. Below a band, one rule
// holds on each level: next is the child that has had the least service per share. The rule is
// start-time fair queueing (Goyal, Vin and Chen, SIGCOMM 1996), on each level of the tree. With
// tokens as the unit of service it is the virtual token counter (VTC; Sheng et al., OSDI 2024).
//
// Each child has a start tag: the service per share that it has been charged. The node's virtual
// time is the start tag of the child that went last. A child that returns from a pause starts at
// the virtual time, or at its own tag if that is later. A request is charged when it is dispatched,
// by estimate, and corrected later. A correction downwards does not take a waiting child's tag
// below the virtual time; what remains reduces its next charges.
//
// A child is passed over while no model that it waits for is ready. It keeps its tag, so it is
// usually first when a model is ready again. But it is not compensated for the time in between: its
// next request is charged from the virtual time on.
//
// A leaf of the tree is a flow. It has one line of requests per model, in order of arrival.
package queue

import (
	"math"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// Path identifies a flow.
type Path struct {
	// Band is the priority. Higher bands go first.
	Band  int32
	Route objects.Name
	// Share is the weight of the route among the routes of its band. Values below 1 count as 1.
	Share int32
	// Tenant and Program are hashes of header values; 0 stands for requests without the header.
	Tenant, Program uint64
}

// Request describes a request that joins the queue.
type Request struct {
	Path
	Model string
	// Service is the expected service, in any unit that all requests of the queue have in common.
	// It is limited to the range from 0 to MaxService; NaN counts as 0.
	Service float64
	// Bytes is the size of the body.
	Bytes int64
	// Since is the time of arrival. It does not affect the order.
	Since time.Time
}

// MaxService is the largest service that one request can be charged. Wrong estimates beyond it do
// not cost the tags their precision.
const MaxService = 1e9

// Queue contains the waiting requests of one pool, and a value of type W for each. It is not safe
// for concurrent use. Create it with [New].
type Queue[W any] struct {
	root   *node[W]
	routes map[objects.Name]*node[W]
	models map[string]*model[W]
	// ready is the number of models in models that are ready.
	ready int
	// idle is the number of nodes in the idle heaps.
	idle int
	// clock numbers arrivals and dispatches.
	clock uint64
}

// model is a model that requests wait for.
type model[W any] struct {
	name     string
	ready    bool
	requests int
	// parked contains the lines that are not in the heap of their flow, because the model was not
	// ready when their turn came.
	parked []*line[W]
}

// line contains the requests of one flow for one model, in order of arrival.
type line[W any] struct {
	leaf        *node[W]
	model       *model[W]
	first, last *Place[W]
	requests    int
	at          int // index in leaf.heads; -1 while parked
	parked      int // index in model.parked; -1 while not parked
}

func (l *line[W]) before(other *line[W]) bool { return l.first.number < other.first.number }
func (l *line[W]) index() *int                { return &l.at }

// Place is the position of one waiting request.
type Place[W any] struct {
	Waiter     W
	line       *line[W] // nil after the request has left
	prev, next *Place[W]
	number     uint64 // in order of arrival
	service    float64
	bytes      int64
	since      time.Time
}

// New returns an empty queue.
func New[W any]() *Queue[W] {
	q := &Queue[W]{routes: make(map[objects.Name]*node[W]), models: make(map[string]*model[W])}
	q.root = &node[W]{at: -1, virtual: math.Inf(-1)}
	return q
}

// Join adds a request to the queue, with the value w. The queue has no bound: if it is too long
// after the call, the caller removes the request that [Queue.Victim] returns. Band and Share of the
// request apply to all waiting requests of its route, as with [Queue.Reprioritize]. A model without
// other waiting requests is ready.
func (q *Queue[W]) Join(w W, r Request) *Place[W] {
	leaf := q.leaf(r.Path)
	m := q.models[r.Model]
	if m == nil {
		m = &model[W]{name: r.Model, ready: true}
		q.models[r.Model] = m
		q.ready++
	}
	p := &Place[W]{Waiter: w, number: q.tick(), service: limited(r.Service), bytes: max(r.Bytes, 0), since: r.Since}
	for n := leaf; n != nil; n = n.parent {
		if n.waiting == 0 {
			q.begin(n, p.number)
		}
		n.add(1, p.bytes, p.service)
		n.resize(p.number)
	}
	m.requests++
	l := leaf.lines[m]
	if l == nil {
		l = &line[W]{leaf: leaf, model: m, at: -1, parked: -1}
		if leaf.lines == nil {
			leaf.lines = make(map[*model[W]]*line[W], 1)
		}
		leaf.lines[m] = l
	}
	l.append(p)
	if l.requests == 1 {
		if m.ready {
			l.enable()
		} else {
			l.park()
		}
	}
	return p
}

// SetReady records whether a request for a model can go. It does nothing if no request waits for
// the model.
func (q *Queue[W]) SetReady(name string, ready bool) {
	m := q.models[name]
	if m == nil || m.ready == ready {
		return
	}
	m.ready = ready
	if !ready {
		q.ready-- // its lines are parked when their turn comes
		return
	}
	q.ready++
	parked := m.parked
	m.parked = parked[:0] // enable parks nothing
	for _, l := range parked {
		l.parked = -1
		l.enable()
	}
	clear(parked)
}

// Next returns the first request, in order, of a model that is ready; nil if there is none. The
// request stays in the queue.
func (q *Queue[W]) Next() *Place[W] {
	if q.ready == 0 || !q.root.clean() {
		return nil
	}
	n := q.root
	for n.depth < depthLeaf {
		n = n.ready[0]
	}
	return n.heads[0].first
}

// First returns the first request in order, whether its model is ready or not; nil if the queue is
// empty. Its cost grows with the number of flows.
func (q *Queue[W]) First() *Place[W] {
	if q.root.waiting == 0 {
		return nil
	}
	n := q.root
	for n.depth < depthLeaf {
		var first *node[W]
		for _, c := range n.children {
			if c.waiting > 0 && (first == nil || c.before(first)) {
				first = c
			}
		}
		n = first
	}
	var first *Place[W]
	for _, l := range n.lines {
		if first == nil || l.first.number < first.number {
			first = l.first
		}
	}
	return first
}

// Leave removes a request without service. It does nothing if the request has left before.
func (q *Queue[W]) Leave(p *Place[W]) {
	if p.line != nil {
		q.remove(p)
	}
}

// Dispatch removes a request and charges its service to its flow. The caller must call Settle on
// the account at the end. Dispatch returns nil if the request has left before. The methods of a nil
// Account do nothing.
func (q *Queue[W]) Dispatch(p *Place[W]) *Account[W] {
	if p.line == nil {
		return nil
	}
	a := q.charge(p.line.leaf, p.service)
	q.remove(p)
	return a
}

// SetService changes the expected service of a waiting request.
func (q *Queue[W]) SetService(p *Place[W], service float64) {
	if p.line == nil {
		return
	}
	service = limited(service)
	for n := p.line.leaf; n != nil; n = n.parent {
		n.add(0, 0, service-p.service)
	}
	p.service = service
}

// Reprioritize changes the band and the share of a route, for the requests that wait as well. It
// does nothing if the queue does not contain the route.
func (q *Queue[W]) Reprioritize(route objects.Name, band, share int32) {
	n := q.routes[route]
	if n == nil {
		return
	}
	if weight := int64(max(share, 1)); weight != n.weight {
		if n.waiting > 0 {
			n.parent.weights += weight - n.weight
		}
		n.weight = weight
	}
	if n.parent.band() != band {
		q.move(n, band)
	}
}

// remove removes a waiting request from all nodes.
func (q *Queue[W]) remove(p *Place[W]) {
	l := p.line
	leaf, m := l.leaf, l.model
	l.unlink(p)
	switch {
	case l.requests == 0:
		if l.at >= 0 {
			leaf.heads.remove(l)
		} else {
			l.unpark()
		}
		delete(leaf.lines, m)
	case l.at >= 0:
		leaf.heads.fix(l)
	}
	if m.requests--; m.requests == 0 {
		delete(q.models, m.name)
		if m.ready {
			q.ready--
		}
	}
	for n := leaf; n != nil; n = n.parent {
		n.add(-1, -p.bytes, -p.service)
		n.resize(0)
		if n.waiting == 0 {
			q.end(n)
			q.rest(n)
		}
	}
}

func (q *Queue[W]) tick() uint64 {
	q.clock++
	return q.clock
}

// limited returns the service that is charged for an estimate.
func limited(service float64) float64 {
	if service > 0 { // not NaN
		return min(service, MaxService)
	}
	return 0
}

// append appends a request to the line.
func (l *line[W]) append(p *Place[W]) {
	p.line, p.prev = l, l.last
	if l.last != nil {
		l.last.next = p
	} else {
		l.first = p
	}
	l.last = p
	l.requests++
}

// unlink removes a request from the line.
func (l *line[W]) unlink(p *Place[W]) {
	if p.prev != nil {
		p.prev.next = p.next
	} else {
		l.first = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	} else {
		l.last = p.prev
	}
	p.line, p.prev, p.next = nil, nil, nil
	l.requests--
}

// park adds the line to those that wait until their model is ready.
func (l *line[W]) park() {
	l.parked = len(l.model.parked)
	l.model.parked = append(l.model.parked, l)
}

func (l *line[W]) unpark() {
	all := l.model.parked
	last := all[len(all)-1]
	all[l.parked], last.parked = last, l.parked
	all[len(all)-1] = nil
	l.model.parked = all[:len(all)-1]
	l.parked = -1
}
