package ads

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/internal/objects"
)

// everything is the wildcard of xDS subscriptions.
const everything = "*"

// cluster is a cluster of a Gateway.
type cluster struct {
	gateway objects.Name
	name    string
}

// lists has the endpoints of clusters, and their subscribers. Each cluster of each Envoy may have a
// stream of its own, so a change wakes only the subscribers of its cluster.
type lists struct {
	mu        sync.Mutex                                   // guards the following
	sent      map[objects.Name]map[string][]netip.AddrPort // the last argument of SetEndpoints
	resources map[objects.Name]map[string]order.Resource   // the same, encoded; the inner maps do not change
	latest    change
	followers map[cluster]map[*follower]bool
}

// SetEndpoints sets the endpoints of each Gateway's clusters by cluster name. The first call comes
// when all objects are known. An empty list is sent as such. Envoys keep the list of a cluster that
// is missing. Only subscribers of a changed list are woken. The caller must not change the argument
// afterwards. After an error nothing has changed.
func (s *Server) SetEndpoints(all map[objects.Name]map[string][]netip.AddrPort) error {
	l := &s.lists
	l.mu.Lock()
	defer l.mu.Unlock()
	resources := make(map[objects.Name]map[string]order.Resource, len(all))
	var changed []cluster
	for gateway, clusters := range all {
		was, is := l.resources[gateway], make(map[string]order.Resource, len(clusters))
		news := was == nil
		for name, list := range clusters {
			r, there := was[name]
			if !there || !slices.Equal(l.sent[gateway][name], list) {
				var err error
				if r, err = resource(order.Endpoints, envoy.Endpoints(name, list)); err != nil {
					return err
				}
				changed, news = append(changed, cluster{gateway, name}), true
			}
			is[name] = r
		}
		if news {
			changed = append(changed, cluster{gateway, everything})
		}
		resources[gateway] = is
	}
	l.sent, l.resources = all, resources
	if len(changed) > 0 {
		l.latest.at = time.Now()
	}
	for _, c := range changed {
		for f := range l.followers[c] {
			select {
			case f.wake <- struct{}{}:
			default: // it has not read since the last wake
			}
		}
	}
	return nil
}

// DeltaEndpoints implements EndpointDiscoveryServiceServer.
func (s *Server) DeltaEndpoints(stream edsv3.EndpointDiscoveryService_DeltaEndpointsServer) error {
	return s.serve(stream, func(gateway objects.Name, _ string) feed {
		return &follower{lists: &s.lists, gateway: gateway, wake: make(chan struct{}, 1)}
	})
}

// follower is the feed of an EDS stream.
type follower struct {
	*lists
	gateway objects.Name
	wake    chan struct{} // capacity 1: a subscribed list has changed
	follows map[cluster]bool
}

// receive subscribes before it reads the lists, so that it misses no change between the two.
func (f *follower) receive(r *discoveryv3.DeltaDiscoveryRequest) {
	r.TypeUrl = order.Endpoints // the service implies it
	names := r.GetResourceNamesSubscribe()
	if f.follows == nil {
		f.follows = make(map[cluster]bool)
		if len(names) == 0 {
			names = []string{everything}
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		c := cluster{f.gateway, name}
		f.follows[c] = true
		if f.followers[c] == nil {
			f.followers[c] = make(map[*follower]bool)
		}
		f.followers[c][f] = true
	}
	for _, name := range r.GetResourceNamesUnsubscribe() {
		f.leave(cluster{f.gateway, name})
	}
}

// leave unsubscribes from a cluster. The caller holds mu.
func (f *follower) leave(c cluster) {
	delete(f.follows, c)
	delete(f.followers[c], f)
	if len(f.followers[c]) == 0 {
		delete(f.followers, c)
	}
}

func (f *follower) now() (order.Snapshot, change, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.resources[f.gateway]
	if all == nil {
		return nil, f.latest, f.wake
	}
	return order.Snapshot{order.Endpoints: all}, f.latest, f.wake
}

func (f *follower) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.follows {
		f.leave(c)
	}
}
