package queue

import (
	"math"

	"github.com/headgate/headgate/internal/objects"
)

// The depths of the tree. The root has depth 0.
const (
	depthBand = 1 + iota
	depthRoute
	depthTenant
	depthLeaf // programs
)

// maxIdle bounds the nodes per queue that are kept only for their tag, because they have had more
// service than their siblings. A node and its entry in the map of its parent take about 500 bytes,
// so all of them take 2 MB per queue. Each request and each account keeps at most four other nodes.
// So memory is bounded, however many tenants exist.
const maxIdle = 4096

// key identifies a node among its siblings.
type key struct {
	route objects.Name
	id    uint64 // the bits of a band, or the hash of a tenant or program
}

// node is a band, route, tenant or program.
type node[W any] struct {
	parent *node[W]
	key    key
	depth  uint8

	// The position among the siblings. The start tag is in units of service per share; of a band it
	// is the negative priority, which never changes. Turn breaks ties: it is the number of the last
	// dispatch, or of the arrival that ended the last pause. So children without service take
	// turns.
	start  float64
	turn   uint64
	credit float64 // what it was charged too much, in the unit of the tag; see advance
	weight int64
	at     int // index in parent.ready, or in parent.idle while the node is idle; -1 while in none
	idles  bool

	// The children. Ready contains those that may have a request of a model that is ready; method
	// clean removes the others from it when their turn comes. Idle contains those without waiting
	// requests and open accounts, earliest tag first. They have no children.
	virtual  float64
	children map[key]*node[W]
	ready    heap[*node[W]]
	idle     heap[*node[W]]
	weights  int64 // of the children with waiting requests

	// Only a leaf has lines. Heads contains those that are not parked.
	lines map[*model[W]]*line[W]
	heads heap[*line[W]]

	// sizes are the entries of a tenant or program in the heaps of its parent. largest are these
	// heaps of a band or tenant, largest size first; see Victim.
	sizes   *sizes[W]
	largest [2]heap[*size[W]]

	// The waiting requests and open accounts below.
	waiting  int
	bytes    int64
	service  float64
	accounts int
}

func (n *node[W]) before(other *node[W]) bool {
	return n.start < other.start || n.start == other.start && n.turn < other.turn
}

func (n *node[W]) index() *int { return &n.at }

// band returns the priority of a band.
func (n *node[W]) band() int32 { return int32(uint32(n.key.id)) }

// child returns the child with the key, and creates it if needed.
func (n *node[W]) child(k key) *node[W] {
	c := n.children[k]
	if c == nil {
		c = &node[W]{parent: n, key: k, depth: n.depth + 1, weight: 1, at: -1, start: n.virtual}
		if n.children == nil {
			n.children = make(map[key]*node[W], 1)
		}
		n.children[k] = c
	}
	return c
}

func bandKey(band int32) key { return key{id: uint64(uint32(band))} }

// bandNode returns the node of a band, and creates it if needed.
func (q *Queue[W]) bandNode(band int32) *node[W] {
	n := q.root.child(bandKey(band))
	n.start = -float64(band)
	return n
}

// leaf returns the node of a flow, and creates it if needed.
func (q *Queue[W]) leaf(p Path) *node[W] {
	q.Reprioritize(p.Route, p.Band, p.Share)
	route := q.routes[p.Route]
	if route == nil {
		route = q.bandNode(p.Band).child(key{route: p.Route})
		route.weight = int64(max(p.Share, 1))
		q.routes[p.Route] = route
	}
	return route.child(key{id: p.Tenant}).child(key{id: p.Program})
}

// add adds to the numbers of the waiting requests.
func (n *node[W]) add(requests int, bytes int64, service float64) {
	n.waiting += requests
	n.bytes += bytes
	if n.service += service; n.waiting == 0 || n.service < 0 {
		n.service = 0 // no rounding errors remain
	}
}

// begin ends the pause of a node: it starts level.
func (q *Queue[W]) begin(n *node[W], turn uint64) {
	n.turn = turn
	if n.parent == nil {
		return
	}
	if n.idles {
		q.unidle(n)
	}
	n.parent.weights += n.weight
	n.catchUp()
}

// catchUp makes a node level that is behind the others, because it paused or was passed over.
func (n *node[W]) catchUp() {
	if n.start < n.parent.virtual {
		n.start, n.credit = n.parent.virtual, 0
	}
}

// end begins the pause of a node: nobody waits below any more.
func (q *Queue[W]) end(n *node[W]) {
	if n.parent == nil {
		return
	}
	n.credit = 0
	n.parent.weights -= n.weight
	if n.at >= 0 {
		n.parent.ready.remove(n)
	}
}

// rest is called when requests or accounts have left a node. If there are none any more, its busy
// period is over: its children are level again, so they are deleted. The node itself is kept while
// its tag is later than the virtual time.
func (q *Queue[W]) rest(n *node[W]) {
	if n.waiting > 0 || n.accounts > 0 {
		return
	}
	if n.depth == depthBand {
		for k := range n.children {
			delete(q.routes, k.route)
		}
	}
	q.idle -= len(n.idle)
	n.children, n.idle, n.ready, n.virtual = nil, nil, nil, 0
	n.sizes, n.largest = nil, [2]heap[*size[W]]{}
	switch {
	case n.parent == nil:
		n.virtual = math.Inf(-1)
	case n.depth == depthBand:
		delete(n.parent.children, n.key)
	case n.start <= n.parent.virtual:
		q.delete(n)
	default:
		n.idles = true
		n.parent.idle.push(n)
		if q.idle++; q.idle > maxIdle {
			q.forget(n.parent)
		}
	}
}

// unidle removes a node from the idle children of its parent.
func (q *Queue[W]) unidle(n *node[W]) {
	n.parent.idle.remove(n)
	n.idles = false
	q.idle--
}

// forget deletes the idle child of n with the earliest tag.
func (q *Queue[W]) forget(n *node[W]) {
	c := n.idle[0]
	q.unidle(c)
	q.delete(c)
}

// delete deletes a node below the bands, which has no requests and accounts.
func (q *Queue[W]) delete(n *node[W]) {
	delete(n.parent.children, n.key)
	if n.depth == depthRoute {
		delete(q.routes, n.key.route)
	}
}

// setVirtual sets the virtual time of a node. Idle children that are not ahead of it are not
// needed: new ones would start level as well.
func (q *Queue[W]) setVirtual(n *node[W], virtual float64) {
	n.virtual = virtual
	for len(n.idle) > 0 && n.idle[0].start <= virtual {
		q.forget(n)
	}
}

// enable adds a line to the heap of its flow, and the nodes above it to the heaps of theirs.
func (l *line[W]) enable() {
	l.leaf.heads.push(l)
	if l.leaf.at < 0 {
		l.leaf.parent.enable(l.leaf)
	}
}

// enable adds a child to the heap of n, and the nodes above it to the heaps of theirs. A node that
// was passed over starts at the virtual time.
func (n *node[W]) enable(child *node[W]) {
	for c := child; c.parent != nil && c.at < 0; c = c.parent {
		c.catchUp()
		c.parent.ready.push(c)
	}
}

// clean removes children without a ready model from the front of the heap. It reports whether the
// node has a request that can go; the first child of the heap then has it.
func (n *node[W]) clean() bool {
	if n.depth < depthLeaf {
		for len(n.ready) > 0 {
			first := n.ready[0]
			if first.clean() {
				return true
			}
			n.ready.remove(first)
		}
		return false
	}
	for len(n.heads) > 0 {
		l := n.heads[0]
		if l.model.ready {
			return true
		}
		n.heads.remove(l)
		l.park()
	}
	return false
}

// move moves a route to another band. Its lead over the others goes with it.
func (q *Queue[W]) move(n *node[W], band int32) {
	from, to := n.parent, q.bandNode(band)
	enabled, idles := n.at >= 0 && !n.idles, n.idles
	if enabled {
		from.ready.remove(n)
	}
	if idles {
		q.unidle(n)
	}
	for _, tenant := range n.children {
		if tenant.waiting == 0 {
			continue
		}
		for i := range tenant.sizes {
			from.largest[i].remove(&tenant.sizes[i])
			to.largest[i].push(&tenant.sizes[i])
		}
	}
	delete(from.children, n.key)
	if to.children == nil {
		to.children = make(map[key]*node[W], 1)
	}
	to.children[n.key] = n
	n.parent, n.start = to, to.virtual+max(n.start-from.virtual, 0)
	to.accounts += n.accounts
	from.accounts -= n.accounts
	if n.waiting > 0 {
		if to.waiting == 0 {
			q.begin(to, q.tick())
		}
		to.weights += n.weight
		from.weights -= n.weight
		to.add(n.waiting, n.bytes, n.service)
		from.add(-n.waiting, -n.bytes, -n.service)
		if from.waiting == 0 {
			q.end(from)
		}
	}
	if enabled {
		to.enable(n)
	}
	q.rest(from)
	if idles {
		q.rest(n)
		q.rest(to)
	}
}
