package eds

import (
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/objects"
)

// linger is how long an endpoint stays listed after its pool has lost it. An earlier decision can
// be in progress for at most 9 s: the message timeout in envoy.yaml (5 s) and two connect timeouts
// (2 s each).
const linger = 10 * time.Second

// Endpoint is an endpoint in the lists for Envoys.
type Endpoint struct {
	Address string // "ip:port", or the path of a socket
	// Avoid makes Envoy prefer other endpoints when Envoy itself chooses. It does not affect
	// extproc's picks.
	Avoid bool
}

// Endpoints returns the endpoints of a World by the resource names that Envoys subscribe to. Each
// pool, and the set of all endpoints, has one list for gRPC calls and one for other requests. In
// pools that fail open Envoy itself may choose, so there Avoid marks pods that are not ready, are
// terminating, or are on a silent node. Other lists have no marks, so a pod's change of state does
// not resend them. If inner, the relay's socket, is not empty, every list contains it, except those
// of pools that fail open.
func Endpoints(w *objects.World, inner string) map[string][]Endpoint {
	all := make(map[string][]Endpoint, 2+2*len(w.Pools))
	for name, p := range w.Pools {
		avoided := func(i int) bool {
			e := &p.Endpoints[i]
			return p.Picker.Open && (!e.Ready || e.NodeSilent || e.Terminating)
		}
		address := func(i int) string { return p.Endpoints[i].Address }
		beside := inner
		if p.Picker.Open {
			beside = ""
		}
		all[wire.PoolCluster(name.Namespace, name.Name)] = reached(w, objects.HTTP, len(p.Endpoints), address, avoided, beside)
		all[wire.PoolCallsCluster(name.Namespace, name.Name)] = reached(w, objects.GRPC, len(p.Endpoints), address, avoided, beside)
	}
	address := func(i int) string { return w.Engines[i].Address }
	never := func(int) bool { return false }
	all[wire.EndpointsCluster] = reached(w, objects.HTTP, len(w.Engines), address, never, inner)
	all[wire.CallsCluster] = reached(w, objects.GRPC, len(w.Engines), address, never, inner)
	return all
}

// reached returns the addresses at which n endpoints accept requests of a protocol, without
// duplicates. If the endpoints have other ports for that protocol, it sorts the addresses. It
// appends the relay's address inner, unless that is empty.
func reached(w *objects.World, p objects.Protocol, n int, address func(int) string, avoided func(int) bool, inner string) []Endpoint {
	of := make([]Endpoint, n, n+1)
	for i := range of {
		of[i] = Endpoint{w.Reached(address(i), p), avoided(i)}
	}
	if w.HasPorts() {
		slices.SortStableFunc(of, byAddress)
		of = slices.CompactFunc(of, func(a, b Endpoint) bool { return a.Address == b.Address })
	}
	if inner != "" {
		of = append(of, Endpoint{inner, true})
	}
	return of
}

// Needed returns, for each Gateway, the sorted resource names of the pools that the LLMRoutes of
// its listeners refer to. Unless extproc waits until Envoys have these pools, it can send a request
// to a cluster that Envoy does not know yet.
func Needed(w *objects.World) map[string][]string {
	all := make(map[string][]string)
	for _, o := range w.Offers {
		for _, pool := range o.Pools() {
			if w.Pools[pool] != nil {
				all[o.Gateway.String()] = append(all[o.Gateway.String()], wire.PoolCluster(pool.Namespace, pool.Name))
			}
		}
	}
	for gateway, names := range all {
		slices.Sort(names)
		all[gateway] = slices.Compact(names)
	}
	return all
}

// lists maps each resource name to the endpoints that the resource lists: its current endpoints,
// and for a while those that it has lost. It is pure: callers pass the time.
type lists map[string]*list

type list struct {
	has     []Endpoint             // current endpoints, sorted
	left    map[Endpoint]time.Time // endpoints that the resource has lost, with their last mark, and when it lost them
	sent    []Endpoint             // the last result of changes, sorted
	removed bool                   // the last call of set did not name this resource
}

// news is what has changed since the last call of changes.
type news struct {
	lists   map[string][]Endpoint // the changed resources and their endpoints, sorted
	more    []string              // the changed resources whose lists contain a new address
	removed []string              // resources that have been removed
}

// set replaces the endpoints of every resource; each list is sorted. If the new map lacks a
// resource, all of its endpoints are former ones. Former endpoints stay listed for a while; when
// the last one is no longer listed, the resource is removed.
func (l lists) set(has map[string][]Endpoint, now time.Time) news {
	for name, of := range l {
		if _, named := has[name]; !named {
			of.removed = true
			of.set(nil, now)
		}
	}
	for name, endpoints := range has {
		of := l[name]
		if of == nil {
			of = &list{left: make(map[Endpoint]time.Time)}
			l[name] = of
		}
		of.removed = false
		of.set(endpoints, now)
	}
	return l.changes(now)
}

func (l *list) set(endpoints []Endpoint, now time.Time) {
	if slices.Equal(l.has, endpoints) {
		return
	}
	for _, e := range l.has {
		l.left[e] = now
	}
	for _, e := range endpoints {
		delete(l.left, Endpoint{e.Address, true})
		delete(l.left, Endpoint{e.Address, false})
	}
	l.has = slices.Clone(endpoints)
}

// changes returns what has changed since the last call.
func (l lists) changes(now time.Time) news {
	n := news{lists: make(map[string][]Endpoint)}
	for name, of := range l {
		all := of.listed(now)
		if of.removed && len(all) == 0 {
			n.removed = append(n.removed, name)
			delete(l, name)
			continue
		}
		if of.sent != nil && slices.Equal(all, of.sent) {
			continue
		}
		if slices.ContainsFunc(all, func(e Endpoint) bool { return !contains(of.sent, e.Address) }) {
			n.more = append(n.more, name)
		}
		of.sent, n.lists[name] = all, all
	}
	slices.Sort(n.more)
	slices.Sort(n.removed)
	return n
}

// listed returns the endpoints to list, sorted and never nil. It deletes endpoints whose linger
// time is over.
func (l *list) listed(now time.Time) []Endpoint {
	all := append([]Endpoint{}, l.has...)
	for e, since := range l.left {
		if now.Sub(since) >= linger {
			delete(l.left, e)
			continue
		}
		all = append(all, e)
	}
	slices.SortFunc(all, byAddress)
	return all
}

func byAddress(a, b Endpoint) int { return strings.Compare(a.Address, b.Address) }

func contains(sorted []Endpoint, address string) bool {
	_, found := slices.BinarySearchFunc(sorted, Endpoint{Address: address}, byAddress)
	return found
}
