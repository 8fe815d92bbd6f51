package queue

// size is the size of a tenant among those of its band, or of a program among those of its tenant.
type size[W any] struct {
	node *node[W]
	is   int64  // requests or bytes
	last uint64 // number of the last arrival
	at   int    // index in the heap of sizes; -1 while nothing waits
}

// before reports whether s is larger than other. Among equals it is the one with the last arrival.
func (s *size[W]) before(other *size[W]) bool {
	return s.is > other.is || s.is == other.is && s.last > other.last
}

func (s *size[W]) index() *int { return &s.at }

// The indices of sizes.
const (
	byRequests = iota
	byBytes
)

// sizes are the sizes of a node by requests and by bytes.
type sizes[W any] [2]size[W]

// among returns the node whose heaps contain the sizes of n; nil for bands and routes.
func (n *node[W]) among() *node[W] {
	switch n.depth {
	case depthTenant:
		return n.parent.parent
	case depthLeaf:
		return n.parent
	}
	return nil
}

// resize updates the sizes of n. Number is that of a new arrival; 0 if there is none.
func (n *node[W]) resize(number uint64) {
	owner := n.among()
	if owner == nil {
		return
	}
	if n.sizes == nil {
		n.sizes = &sizes[W]{{node: n, at: -1}, {node: n, at: -1}}
	}
	for i, is := range [...]int64{byRequests: int64(n.waiting), byBytes: n.bytes} {
		s, h := &n.sizes[i], &owner.largest[i]
		s.is, s.last = is, max(s.last, number)
		switch {
		case n.waiting == 0 && s.at >= 0:
			h.remove(s)
		case n.waiting > 0 && s.at < 0:
			h.push(s)
		case n.waiting > 0:
			h.fix(s)
		}
	}
}

// Victim returns the request that leaves when the queue is too long: the newest one of the flow
// that has the most requests, or bytes, in the lowest band. It returns nil if that band is above
// the band given. A tenant counts as one flow, so that requests of many programs do not count as
// many small flows. Within the tenant, the request comes from the program with the most. Among
// equals it is the one with the last arrival. This is longest queue drop (Suter et al., INFOCOM
// 1998).
func (q *Queue[W]) Victim(band int32, bytes bool) *Place[W] {
	var lowest *node[W]
	for _, b := range q.root.children {
		if b.waiting > 0 && (lowest == nil || b.band() < lowest.band()) {
			lowest = b
		}
	}
	if lowest == nil || lowest.band() > band {
		return nil
	}
	by := byRequests
	if bytes {
		by = byBytes
	}
	program := lowest.largest[by][0].node.largest[by][0].node
	var newest *Place[W]
	for _, l := range program.lines {
		if newest == nil || l.last.number > newest.number {
			newest = l.last
		}
	}
	return newest
}
