package queue

// Account is the service that a dispatched request has been charged. It belongs to its queue and is
// not safe for concurrent use. All methods do nothing on nil, and after Settle.
type Account[W any] struct {
	queue *Queue[W]
	leaf  *node[W]
	total float64
	// tag is what the request added to the start tag of its route: total per share, with the share
	// at the time of each charge.
	tag float64
}

// charge opens an account for a request of a flow, and charges its service.
func (q *Queue[W]) charge(leaf *node[W], service float64) *Account[W] {
	turn := q.tick()
	for n := leaf; n.depth >= depthRoute; n = n.parent {
		n.catchUp()
		start := n.start
		// The caller may dispatch another request than the next one, which stays the earliest.
		if n.parent.clean() {
			start = min(start, n.parent.ready[0].start)
		}
		q.setVirtual(n.parent, start)
		n.turn = turn
		if n.at >= 0 {
			n.parent.ready.fix(n)
		}
	}
	for n := leaf; n != nil; n = n.parent {
		n.accounts++
	}
	a := &Account[W]{queue: q, leaf: leaf}
	a.Charge(service)
	return a
}

// Charge raises the charge to total, in the unit of Request.Service, if it is less. It is for
// answers that run longer than expected.
func (a *Account[W]) Charge(total float64) {
	if a == nil || a.queue == nil {
		return
	}
	if total = limited(total); total > a.total {
		a.set(total)
	}
}

// Settle corrects the charge to total, in either direction, and closes the account.
func (a *Account[W]) Settle(total float64) {
	if a == nil || a.queue == nil {
		return
	}
	a.set(limited(total))
	q, leaf := a.queue, a.leaf
	a.queue, a.leaf = nil, nil
	for n := leaf; n != nil; n = n.parent {
		n.accounts--
		q.rest(n)
	}
}

// set changes the charge to total. A correction downwards returns the same part of each charge, so
// a change of the share in between cannot return more than was charged.
func (a *Account[W]) set(total float64) {
	delta := total - a.total
	for n := a.leaf; n.depth >= depthRoute; n = n.parent {
		by := delta
		if n.depth == depthRoute {
			if delta < 0 {
				by = a.tag * delta / a.total
			} else {
				by = delta / float64(n.weight)
			}
			a.tag += by
		}
		n.advance(by)
	}
	a.total = total
}

// advance adds to the start tag of a node. The tag of a waiting node does not fall below the
// virtual time, so that it does not go before newcomers, which start there. The rest of a
// correction becomes a credit for its next charges. A node that was passed over gets no credit.
func (n *node[W]) advance(by float64) {
	virtual := n.parent.virtual
	level := n.waiting > 0 && n.start >= virtual
	if used := min(n.credit, max(by, 0)); used > 0 {
		n.credit -= used
		by -= used
	}
	n.start += by
	if level && n.start < virtual {
		n.credit += virtual - n.start
		n.start = virtual
	}
	if n.at >= 0 {
		n.parent.ready.fix(n)
	}
}
