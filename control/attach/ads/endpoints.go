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

// everything is how an Envoy asks for whatever there is (xDS, wildcard subscriptions).
const everything = "*"

// cluster is one of a Gateway's.
type cluster struct {
	gateway objects.Name
	name    string
}

// lists are the endpoints of clusters, and who follows them. There may be a stream for each cluster of each Envoy, so that who follows
// another cluster is not woken.
type lists struct {
	mu        sync.Mutex                                   // guards the following
	given     map[objects.Name]map[string][]netip.AddrPort // as given last
	resources map[objects.Name]map[string]order.Resource   // the same for Envoys; maps are not changed once they are here
	latest    change
	followers map[cluster]map[*follower]bool
}

// SetEndpoints says which endpoints the clusters of each Gateway have, by the name of the cluster, once all objects are known and again
// when that changes. An empty list is told as such; what is missing is told nobody, and who has something of it keeps that. Whoever
// follows a cluster whose list is another is told, and nobody else. What is given is not changed afterwards. After an error all is as it
// was.
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
			if !there || !slices.Equal(l.given[gateway][name], list) {
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
	l.given, l.resources = all, resources
	if len(changed) > 0 {
		l.latest.at = time.Now()
	}
	for _, c := range changed {
		for f := range l.followers[c] {
			select {
			case f.wake <- struct{}{}:
			default: // it has not looked since it was woken last
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

// follower is the feed of a stream of endpoints.
type follower struct {
	*lists
	gateway objects.Name
	wake    chan struct{} // capacity 1: something that it follows is another
	follows map[cluster]bool
}

// hear is told before the lists are looked at, so that no change falls between the two.
func (f *follower) hear(r *discoveryv3.DeltaDiscoveryRequest) {
	r.TypeUrl = order.Endpoints // the service says it
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

// leave has it follow a cluster no more. The caller holds mu.
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
