package queue

import (
	"cmp"
	"slices"
	"time"
)

// Len returns the number of waiting requests.
func (q *Queue[W]) Len() int { return q.root.waiting }

// Bytes returns the total size of the bodies of the waiting requests.
func (q *Queue[W]) Bytes() int64 { return q.root.bytes }

// Empty reports whether no request waits.
func (q *Queue[W]) Empty() bool { return q.root.waiting == 0 }

// Band returns the present band of a waiting request; 0 after it has left.
func (p *Place[W]) Band() int32 {
	if p.line == nil {
		return 0
	}
	return p.line.leaf.parent.parent.parent.band()
}

// Others returns how many other requests of the same tenant wait; 0 after the request has left.
func (p *Place[W]) Others() int {
	if p.line == nil {
		return 0
	}
	return p.line.leaf.parent.waiting - 1
}

// Since returns the time of arrival.
func (p *Place[W]) Since() time.Time { return p.since }

// Ahead returns what the wait of a newcomer depends on: the service queued before it in its flow,
// and the part of the pool's rate that the flow would get now. The expected wait is service / (part
// × rate). Service includes requests of higher bands, which go first at the full rate. It does not
// include requests that arrive later.
func (q *Queue[W]) Ahead(r Request) (service, part float64) {
	var higher float64
	for _, b := range q.root.children {
		if b.band() > r.Band {
			higher += b.service
		}
	}
	part = 1
	n := q.root.children[bandKey(r.Band)]
	for i, k := range [...]key{{route: r.Route}, {id: r.Tenant}, {id: r.Program}} {
		var weight, others int64 = 1, 0
		if i == 0 {
			weight = int64(max(r.Share, 1))
		}
		var c *node[W]
		if n != nil {
			others = n.weights
			if c = n.children[k]; c != nil && c.waiting > 0 {
				others -= c.weight
			}
		}
		part *= float64(weight) / float64(weight+others)
		n = c
	}
	if n != nil {
		service = n.service
	}
	return service + higher*part, part
}

// Band describes the waiting requests of one band.
type Band struct {
	Band     int32
	Requests int
	// Shares is the sum of the shares of the routes with waiting requests.
	Shares int64
	// Service is the sum of the expected service.
	Service float64
}

// Bands returns the bands with waiting requests, highest first.
func (q *Queue[W]) Bands() []Band {
	var all []Band
	for _, b := range q.root.children {
		if b.waiting > 0 {
			all = append(all, Band{b.band(), b.waiting, b.weights, b.service})
		}
	}
	slices.SortFunc(all, func(a, b Band) int { return cmp.Compare(b.Band, a.Band) })
	return all
}

// Debug is the size of a queue, for tests that look for leaks.
type Debug struct{ Requests, Models, Nodes, Idle, Routes, Accounts int }

// Debug returns the size of the queue. All numbers are 0 if no request waits and no account is
// open.
func (q *Queue[W]) Debug() Debug {
	return Debug{q.root.waiting, len(q.models), q.root.below(), q.idle, len(q.routes), q.root.accounts}
}

// below returns the number of nodes below n.
func (n *node[W]) below() int {
	sum := len(n.children)
	for _, c := range n.children {
		sum += c.below()
	}
	return sum
}
