package eds

import (
	"slices"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/objects"
)

// linger is how long an endpoint is listed that its pool has no more. A decision made before is under way for at most the message
// timeout of envoy.yaml, five seconds, and two connections that time out, two seconds each.
const linger = 10 * time.Second

// Endpoints returns the endpoints of a World by the names under which Envoys ask for them: those of each pool, and of all as one.
func Endpoints(w *objects.World) map[string][]string {
	all := make(map[string][]string, 1+len(w.Pools))
	for name, p := range w.Pools {
		of := make([]string, len(p.Endpoints))
		for i, e := range p.Endpoints {
			of[i] = e.Address
		}
		all[wire.PoolCluster(name.Namespace, name.Name)] = of
	}
	all[wire.EndpointsCluster] = w.Addresses()
	return all
}

// Needed returns the pools whose endpoints Envoys of Gateways come to ask for, by Gateway, in order of name: those to which LLMRoutes of
// its listeners lead. By the model alone Envoy would be told of a cluster that it does not know yet.
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

// lists say what each resource lists, by its name: the endpoints that it has, and for a while those that it had. They are pure.
type lists map[string]*list

type list struct {
	has  []string             // in order
	left map[string]time.Time // endpoints that it had, with when they left
	told []string             // what it listed when somebody looked last, in order
	gone bool                 // nobody sets it any more
}

// news is what changed since somebody looked last.
type news struct {
	lists map[string][]string // what resources list now, in order
	more  []string            // those of them that list endpoints that they did not
	gone  []string            // resources that are no more
}

// set says which endpoints each resource has from a moment on, in order. One that is not named has none, and is no more when its
// last endpoint is not listed any more.
func (l lists) set(has map[string][]string, now time.Time) news {
	for name, of := range l {
		if _, named := has[name]; !named {
			of.gone = true
			of.set(nil, now)
		}
	}
	for name, endpoints := range has {
		of := l[name]
		if of == nil {
			of = &list{left: make(map[string]time.Time)}
			l[name] = of
		}
		of.gone = false
		of.set(endpoints, now)
	}
	return l.look(now)
}

func (l *list) set(endpoints []string, now time.Time) {
	if slices.Equal(l.has, endpoints) {
		return
	}
	for _, address := range l.has {
		l.left[address] = now
	}
	for _, address := range endpoints {
		delete(l.left, address)
	}
	l.has = slices.Clone(endpoints)
}

// look returns what is listed at a moment, where that is news.
func (l lists) look(now time.Time) news {
	n := news{lists: make(map[string][]string)}
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
		if slices.ContainsFunc(all, func(address string) bool { return !contains(of.told, address) }) {
			n.more = append(n.more, name)
		}
		of.told, n.lists[name] = all, all
	}
	slices.Sort(n.more)
	slices.Sort(n.gone)
	return n
}

// listed returns the endpoints to list, in order and never nil, and forgets those that left long ago.
func (l *list) listed(now time.Time) []string {
	all := append([]string{}, l.has...)
	for address, since := range l.left {
		if now.Sub(since) >= linger {
			delete(l.left, address)
			continue
		}
		all = append(all, address)
	}
	slices.Sort(all)
	return all
}

func contains(sorted []string, address string) bool {
	_, found := slices.BinarySearch(sorted, address)
	return found
}
