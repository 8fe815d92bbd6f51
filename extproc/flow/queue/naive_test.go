package queue_test

import (
	"cmp"
	"math"
	"slices"

	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/internal/objects"
)

// naive is the oracle: the same order as queue.Queue by definition, without heaps and without sums.
// Every answer is found by a scan of all requests and nodes.
type naive struct {
	root     *nnode
	nodes    []*nnode // except the root; children after their parents
	requests []*nrequest
	accounts []*naccount
	ready    map[string]bool // models with waiting requests
	clock    int
}

// nnode is a band, route, tenant or program.
type nnode struct {
	parent         *nnode
	depth          int
	band           int32
	route          objects.Name
	hash           uint64
	start, virtual float64
	credit         float64
	turn           int
	last           int // number of the last arrival
	weight         float64
}

type nrequest struct {
	name    int
	leaf    *nnode
	model   string
	service float64
	bytes   int64
	number  int
}

type naccount struct {
	leaf       *nnode
	total, tag float64
}

func newNaive() *naive { return &naive{root: &nnode{}, ready: make(map[string]bool)} }

func (q *naive) tick() int { q.clock++; return q.clock }

// below reports whether n is at or below the ancestor.
func (n *nnode) below(ancestor *nnode) bool {
	for ; n != nil; n = n.parent {
		if n == ancestor {
			return true
		}
	}
	return false
}

func (q *naive) waiting(n *nnode) (all []*nrequest) {
	for _, r := range q.requests {
		if r.leaf.below(n) {
			all = append(all, r)
		}
	}
	return all
}

// canGo reports whether a request of a ready model waits below n.
func (q *naive) canGo(n *nnode) bool {
	return slices.ContainsFunc(q.waiting(n), func(r *nrequest) bool { return q.ready[r.model] })
}

func (q *naive) used(n *nnode) bool {
	return len(q.waiting(n)) > 0 || slices.ContainsFunc(q.accounts, func(a *naccount) bool { return a.leaf.below(n) })
}

// children returns the children of n in their order.
func (q *naive) children(n *nnode) (all []*nnode) {
	for _, c := range q.nodes {
		if c.parent == n {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b *nnode) int {
		if a.depth == 1 {
			return cmp.Compare(b.band, a.band)
		}
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.turn, b.turn))
	})
	return all
}

// tidy deletes nodes whose busy period is over, unless they are ahead of their siblings.
func (q *naive) tidy() {
	for again := true; again; {
		again = false
		for i, n := range q.nodes {
			if q.used(n) {
				continue
			}
			n.virtual = 0
			if n.depth == 1 || !slices.Contains(append(q.nodes, q.root), n.parent) || !q.used(n.parent) || n.start <= n.parent.virtual {
				q.nodes = slices.Delete(q.nodes, i, i+1)
				again = true
				break
			}
		}
	}
}

func (q *naive) child(parent *nnode, like nnode) *nnode {
	for _, c := range q.nodes {
		if c.parent == parent && c.band == like.band && c.route == like.route && c.hash == like.hash {
			return c
		}
	}
	like.parent, like.depth, like.start = parent, parent.depth+1, parent.virtual
	like.weight = max(like.weight, 1)
	q.nodes = append(q.nodes, &like)
	return &like
}

func (q *naive) find(route objects.Name) *nnode {
	for _, n := range q.nodes {
		if n.depth == 2 && n.route == route {
			return n
		}
	}
	return nil
}

// path returns n and the nodes above it, without root and band.
func (n *nnode) path() (all []*nnode) {
	for ; n.depth > 1; n = n.parent {
		all = append(all, n)
	}
	return all
}

// change runs f, and makes the nodes level that wait anew or can go again after it.
func (q *naive) change(f func()) {
	waited, could := make(map[*nnode]bool), make(map[*nnode]bool)
	for _, n := range q.nodes {
		waited[n], could[n] = len(q.waiting(n)) > 0, q.canGo(n)
	}
	f()
	for _, n := range q.nodes {
		waits := len(q.waiting(n)) > 0
		if n.depth > 1 && (waits && !waited[n] || q.canGo(n) && !could[n]) {
			n.catchUp()
		}
		if waits && !waited[n] {
			n.turn = q.clock
		}
	}
}

func (q *naive) join(name int, r queue.Request) *nrequest {
	q.reprioritize(r.Route, r.Band, r.Share)
	p := &nrequest{name: name, model: r.Model, service: nlimited(r.Service), bytes: r.Bytes}
	q.change(func() {
		route := q.find(r.Route)
		if route == nil {
			route = q.child(q.child(q.root, nnode{band: r.Band}), nnode{route: r.Route, weight: float64(r.Share)})
		}
		p.leaf = q.child(q.child(route, nnode{hash: r.Tenant}), nnode{hash: r.Program})
		if _, known := q.ready[r.Model]; !known {
			q.ready[r.Model] = true
		}
		p.number = q.tick()
		for _, n := range p.leaf.path() {
			n.last = p.number
		}
		q.requests = append(q.requests, p)
	})
	return p
}

func (n *nnode) catchUp() {
	if n.start < n.parent.virtual {
		n.start, n.credit = n.parent.virtual, 0
	}
}

func (q *naive) setReady(model string, ready bool) {
	if _, known := q.ready[model]; known {
		q.change(func() { q.ready[model] = ready })
	}
}

// first returns the first request in order among those that may go.
func (q *naive) first(may func(*nrequest) bool) *nrequest {
	n := q.root
	for n.depth < 4 {
		at := slices.IndexFunc(q.children(n), func(c *nnode) bool { return slices.ContainsFunc(q.waiting(c), may) })
		if at < 0 {
			return nil
		}
		n = q.children(n)[at]
	}
	all := q.waiting(n)
	return all[slices.IndexFunc(all, may)]
}

func (q *naive) leave(p *nrequest) {
	q.requests = slices.DeleteFunc(q.requests, func(r *nrequest) bool { return r == p })
	for _, n := range p.leaf.path() {
		if len(q.waiting(n)) == 0 {
			n.credit = 0
		}
	}
	if !slices.ContainsFunc(q.requests, func(r *nrequest) bool { return r.model == p.model }) {
		delete(q.ready, p.model)
	}
	q.tidy()
}

func (q *naive) dispatch(p *nrequest) *naccount {
	turn := q.tick()
	for _, n := range p.leaf.path() {
		n.catchUp()
		n.parent.virtual = n.start
		for _, c := range q.children(n.parent) {
			if q.canGo(c) {
				n.parent.virtual = min(n.start, c.start)
				break
			}
		}
		n.turn = turn
	}
	a := &naccount{leaf: p.leaf}
	q.accounts = append(q.accounts, a)
	q.set(a, p.service)
	q.leave(p)
	return a
}

func (q *naive) set(a *naccount, total float64) {
	delta := total - a.total
	for _, n := range a.leaf.path() {
		by := delta
		if n.depth == 2 {
			if by = delta / n.weight; delta < 0 {
				by = a.tag * delta / a.total
			}
			a.tag += by
		}
		switch v := n.parent.virtual; {
		case by >= 0:
			used := min(by, n.credit)
			n.credit -= used
			n.start += by - used
		case len(q.waiting(n)) == 0 || n.start < v:
			n.start += by
		default:
			n.start += by
			n.credit += max(v-n.start, 0)
			n.start = max(v, n.start)
		}
	}
	a.total = total
}

func (q *naive) charge(a *naccount, total float64) {
	if total = nlimited(total); total > a.total {
		q.set(a, total)
	}
}

func (q *naive) settle(a *naccount, total float64) {
	q.set(a, nlimited(total))
	q.accounts = slices.DeleteFunc(q.accounts, func(b *naccount) bool { return a == b })
	q.tidy()
}

func (q *naive) reprioritize(route objects.Name, band, share int32) {
	n := q.find(route)
	if n == nil {
		return
	}
	n.weight = float64(max(share, 1))
	if from := n.parent; from.band != band {
		to := q.child(q.root, nnode{band: band})
		n.parent, n.start = to, to.virtual+max(n.start-from.virtual, 0)
	}
	q.tidy()
}

func (q *naive) victim(band int32, byBytes bool) *nrequest {
	bands := q.children(q.root)
	for _, b := range slices.Backward(bands) {
		if len(q.waiting(b)) == 0 {
			continue
		}
		if b.band > band {
			return nil
		}
		most := func(depth int, below *nnode) *nnode {
			var found *nnode
			for _, n := range q.nodes {
				if n.depth != depth || !n.below(below) || len(q.waiting(n)) == 0 {
					continue
				}
				if found == nil || cmp.Or(cmp.Compare(q.size(n, byBytes), q.size(found, byBytes)), cmp.Compare(n.last, found.last)) > 0 {
					found = n
				}
			}
			return found
		}
		return q.newest(most(4, most(3, b)))
	}
	return nil
}

func (q *naive) newest(n *nnode) *nrequest {
	all := q.waiting(n)
	return all[len(all)-1]
}

func (q *naive) size(n *nnode, byBytes bool) (size int64) {
	for _, r := range q.waiting(n) {
		if byBytes {
			size += r.bytes
		} else {
			size++
		}
	}
	return size
}

// ahead adds up what Ahead returns.
func (q *naive) ahead(r queue.Request) (service, part float64) {
	var routes, tenants, programs float64 // weights of the others
	for _, n := range q.nodes {
		if len(q.waiting(n)) == 0 || n.depth < 2 || n.path()[n.depth-2].parent.band != r.Band {
			continue
		}
		switch n.depth {
		case 2:
			if n.route != r.Route {
				routes += n.weight
			}
		case 3:
			if n.parent.route == r.Route && n.hash != r.Tenant {
				tenants++
			}
		case 4:
			if n.parent.hash == r.Tenant && n.parent.parent.route == r.Route && n.hash != r.Program {
				programs++
			}
		}
	}
	share := float64(max(r.Share, 1))
	part = share / (share + routes) / (1 + tenants) / (1 + programs)
	for _, w := range q.requests {
		program, tenant, route := w.leaf, w.leaf.parent, w.leaf.parent.parent
		switch band := route.parent.band; {
		case band > r.Band:
			service += w.service * part
		case band == r.Band && route.route == r.Route && tenant.hash == r.Tenant && program.hash == r.Program:
			service += w.service
		}
	}
	return service, part
}

func nlimited(service float64) float64 {
	if math.IsNaN(service) {
		return 0
	}
	return min(max(service, 0), queue.MaxService)
}
