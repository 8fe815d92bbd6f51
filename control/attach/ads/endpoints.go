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

// lists contains the endpoints of clusters, and the EDS streams that subscribe to them. An Envoy
// may open one stream per cluster, so a change wakes only the subscribers of its cluster.
type lists struct {
	mu        sync.Mutex                                   // guards the fields below
	sent      map[objects.Name]map[string][]netip.AddrPort // last argument of SetEndpoints
	resources map[objects.Name]map[string]order.Resource   // encoded lists; the inner maps are immutable
	latest    change
	followers map[cluster]map[*follower]bool
}

// SetEndpoints sets the endpoints of each Gateway's clusters, by cluster name. Call it only when
// all objects are known. An empty list is sent to Envoys. If a cluster is missing, Envoys keep its
// list. Only subscribers of a changed list are woken. The caller must not change the maps and lists
// afterwards. SetEndpoints changes nothing if it returns an error.
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
			default: // the last wake is still unread
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
	wake    chan struct{} // signals that a subscribed list has changed; capacity 1
	follows map[cluster]bool
}

// receive updates the subscriptions of the stream. The stream subscribes before it reads the lists,
// so it misses no change in between.
func (f *follower) receive(r *discoveryv3.DeltaDiscoveryRequest) {
	r.TypeUrl = order.Endpoints // EDS requests may omit the type
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
