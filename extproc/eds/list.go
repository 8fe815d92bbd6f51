package eds

import (
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/objects"
)

// linger is how long an endpoint is listed that its pool has no more. A decision made before is
// under way for at most the message timeout of envoy.yaml, five seconds, and two connections that
// time out, two seconds each.
const linger = 10 * time.Second

// Endpoint is one that Envoys are told of.
type Endpoint struct {
	Address string // "ip:port", or the path of a socket
	// Avoid says that Envoy is not to choose it where it chooses itself, if it has others. A pick
	// is followed all the same.
	Avoid bool
}

// Endpoints returns the endpoints of a World by the names under which Envoys ask for them: those of
// each pool, and of all as one, where they take gRPC calls and where all other requests. Envoy
// chooses itself in pools that fail open: there it avoids pods that are not ready, that are being
// deleted, and those of a silent node. Nothing else tells of them, so that what pods say costs no
// other pool a list. The inner server, if it has a socket, is in every list but those of pools that
// fail open.
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

// reached are n endpoints where they take requests of a protocol, in order, each address once; and
// after them the inner server's, if it has one.
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

// Needed returns the pools whose endpoints Envoys of Gateways come to ask for, by Gateway, in order
// of name: those to which LLMRoutes of its listeners lead. By the model alone Envoy would be told
// of a cluster that it does not know yet.
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

// lists say what each resource lists, by its name: the endpoints that it has, and for a while those
// that it had. They are pure.
type lists map[string]*list

type list struct {
	has  []Endpoint             // in order
	left map[Endpoint]time.Time // endpoints that it had, as they were last, with when they left
	told []Endpoint             // what it listed when somebody looked last, in order
	gone bool                   // nobody sets it any more
}

// news is what changed since somebody looked last.
type news struct {
	lists map[string][]Endpoint // what resources list now, in order
	more  []string              // those of them that list addresses that they did not
	gone  []string              // resources that are no more
}

// set says which endpoints each resource has from a moment on, in order. One that is not named has
// none, and is no more when its last endpoint is not listed any more.
func (l lists) set(has map[string][]Endpoint, now time.Time) news {
	for name, of := range l {
		if _, named := has[name]; !named {
			of.gone = true
			of.set(nil, now)
		}
	}
	for name, endpoints := range has {
		of := l[name]
		if of == nil {
			of = &list{left: make(map[Endpoint]time.Time)}
			l[name] = of
		}
		of.gone = false
		of.set(endpoints, now)
	}
	return l.look(now)
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

// look returns what is listed at a moment, where that is news.
func (l lists) look(now time.Time) news {
	n := news{lists: make(map[string][]Endpoint)}
	for name, of := range l {
		all := of.listed(now)
		if of.gone && len(all) == 0 {
			n.gone = append(n.gone, name)
			delete(l, name)
			continue
		}
		if of.told != nil && slices.Equal(all, of.told) {
			continue
		}
		if slices.ContainsFunc(all, func(e Endpoint) bool { return !contains(of.told, e.Address) }) {
			n.more = append(n.more, name)
		}
		of.told, n.lists[name] = all, all
	}
	slices.Sort(n.more)
	slices.Sort(n.gone)
	return n
}

// listed returns the endpoints to list, in order and never nil, and forgets those that left long
// ago.
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
