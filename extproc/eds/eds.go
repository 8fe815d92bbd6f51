// Package eds serves Envoy's endpoint discovery (delta EDS) on extproc's own socket. Envoy needs
// the lists of endpoints because override_host, which sends a request to its next pick, finds only
// hosts of its own cluster.
//
// Envoy must know every endpoint that a decision can name. So the fleet uses a new endpoint only
// after Envoy has acknowledged it. A removed endpoint stays listed until no decision that names it
// can still be in progress.
package eds

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/delta/v3"

	"github.com/headgate/headgate/api/wire"
)

const (
	// patience is how long [Server.Set] waits for Envoys to acknowledge new endpoints, which
	// usually takes some milliseconds. If an Envoy is slower, its requests for a new endpoint go to
	// their next pick. Requests for other endpoints are not affected.
	patience = 200 * time.Millisecond
	// patienceForPools is how long [Server.Await] waits for Envoys to subscribe to a new pool.
	// Control first has to make a plan and send it to the Envoys.
	patienceForPools = time.Second
)

// Server serves endpoint discovery. Its methods are safe for concurrent use, except Set and Await,
// which one goroutine calls. Create it with [New], and call Set before you serve it.
type Server struct {
	edsv3.UnimplementedEndpointDiscoveryServiceServer
	log   *slog.Logger
	cache *cache.LinearCache
	delta delta.Server
	end   context.CancelFunc

	mu       sync.Mutex // guards the fields below
	lists    lists
	version  uint64           // version of the cache: the number of its updates
	streams  map[int64]*envoy // by stream number; Envoy opens one stream for each cluster
	taken    chan struct{}    // closed and replaced when an Envoy acknowledges something or disconnects
	timedOut map[want]bool    // subscriptions for which Await has timed out
}

// want is a subscription that an Envoy should have: to the resource name of a pool. Gateway and
// node identify the Envoy.
type want struct{ gateway, node, name string }

// envoy is the state of one stream.
type envoy struct {
	// gateway is the Gateway whose configuration the Envoy has. node distinguishes the Envoy from
	// the Gateway's other Envoys.
	gateway, node string
	names         map[string]bool // resources that the Envoy subscribes to
	sent          uint64          // last version sent to the Envoy; nonce is the nonce of that response
	nonce         string
	taken         uint64 // latest version that the Envoy acknowledged or rejected
	late          bool   // Set has timed out waiting for this Envoy, and ignores it until it answers
	knew          bool   // another extproc has already sent this Envoy the resources of its subscription
}

// New returns a Server without endpoints.
func New(log *slog.Logger) *Server {
	ctx, end := context.WithCancel(context.Background())
	s := &Server{
		log: log, cache: cache.NewLinearCache(resource.EndpointType), end: end,
		lists: make(lists), streams: make(map[int64]*envoy), taken: make(chan struct{}), timedOut: make(map[want]bool),
	}
	s.delta = delta.NewServer(ctx, s.cache, callbacks{s})
	return s
}

// Standalone reports whether an Envoy follows the endpoints of all pools, as one with envoy.yaml
// does. Envoys of Gateways follow single pools.
func (s *Server) Standalone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.streams {
		if e.names[wire.EndpointsCluster] {
			return true
		}
	}
	return false
}

// DeltaEndpoints implements EndpointDiscoveryServiceServer.
func (s *Server) DeltaEndpoints(stream edsv3.EndpointDiscoveryService_DeltaEndpointsServer) error {
	return s.delta.DeltaStreamHandler(stream, resource.EndpointType)
}

// Close ends every stream. Envoys keep their endpoints and reconnect.
func (s *Server) Close() { s.end() }

// Set replaces the endpoints of every resource; each list is sorted. It returns when every
// connected Envoy has acknowledged the new endpoints of its resources, when patience has passed, or
// when ctx ends.
func (s *Server) Set(ctx context.Context, endpoints map[string][]Endpoint) {
	s.mu.Lock()
	n := s.lists.set(endpoints, time.Now())
	s.update(n)
	waiting := s.followers(n.more)
	version, taken := s.version, s.taken
	s.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case <-taken:
		case <-ctx.Done():
			return
		case <-late.C:
			s.log.Warn("Envoy did not acknowledge new endpoints in time; its requests may go to their second choice", "after",
				patience.String())
			s.mu.Lock()
			s.took(waiting, version, func(e *envoy) { e.late = true })
			s.mu.Unlock()
			return
		}
		s.mu.Lock()
		done := s.took(waiting, version, func(*envoy) {})
		taken = s.taken
		s.mu.Unlock()
		if done {
			return
		}
	}
}

// Await waits until every connected Envoy of a Gateway has the Gateway's pools, as returned by
// [Needed]. It gives up after patienceForPools, or when ctx ends. If an Envoy does not subscribe to
// a pool, only the first call waits for that. Call it from the goroutine that calls Set.
func (s *Server) Await(ctx context.Context, needed map[string][]string) {
	var late <-chan time.Time
	for {
		s.mu.Lock()
		unknown := s.unknown(needed)
		taken := s.taken
		s.mu.Unlock()
		if len(unknown) == 0 {
			return
		}
		if late == nil {
			timer := time.NewTimer(patienceForPools)
			defer timer.Stop()
			late = timer.C
		}
		select {
		case <-taken:
		case <-ctx.Done():
			return
		case <-late:
			s.mu.Lock()
			for _, w := range unknown {
				s.timedOut[w] = true
			}
			s.mu.Unlock()
			s.log.Warn("Envoy has no cluster for a pool yet; requests for the pool get 503 until control configures the cluster",
				"gateway", unknown[0].gateway, "envoy", unknown[0].node, "pool", unknown[0].name, "pools", len(unknown), "after",
				patienceForPools.String())
			return
		}
	}
}

// unknown returns the subscriptions that connected Envoys lack, except those for which Await has
// already timed out. The caller holds mu.
func (s *Server) unknown(needed map[string][]string) (all []want) {
	connected, known := make(map[want]bool), make(map[want]bool) // the keys of connected have an empty name
	for _, e := range s.streams {
		connected[want{gateway: e.gateway, node: e.node}] = true
		if e.taken == 0 && !e.knew {
			continue
		}
		for name := range e.names {
			known[want{e.gateway, e.node, name}] = true
		}
	}
	still := make(map[want]bool)
	for e := range connected {
		for _, name := range needed[e.gateway] {
			w := want{e.gateway, e.node, name}
			switch {
			case known[w]:
			case s.timedOut[w]:
				still[w] = true
			default:
				all = append(all, w)
			}
		}
	}
	s.timedOut = still
	return all
}

// followers returns the streams that subscribe to one of these resources and are not late. The
// caller holds mu.
func (s *Server) followers(names []string) (all []int64) {
	for id, e := range s.streams {
		if !e.late && slices.ContainsFunc(names, func(name string) bool { return e.names[name] }) {
			all = append(all, id)
		}
	}
	return all
}

// took is true if each of these streams has acknowledged a version or has ended. It calls missing
// for each stream that has not. The caller holds mu.
func (s *Server) took(streams []int64, version uint64, missing func(*envoy)) bool {
	all := true
	for _, id := range streams {
		if e := s.streams[id]; e != nil && e.taken < version {
			all = false
			missing(e)
		}
	}
	return all
}

// Run removes lost endpoints from the lists when their linger time is over, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		s.mu.Lock()
		s.update(s.lists.changes(time.Now()))
		s.mu.Unlock()
	}
}

// update writes changed lists to the cache. The caller holds mu.
func (s *Server) update(n news) {
	if len(n.lists) == 0 && len(n.removed) == 0 {
		return
	}
	resources := make(map[string]types.Resource, len(n.lists))
	for name, endpoints := range n.lists {
		a, err := assignment(name, endpoints)
		if err != nil {
			s.log.Error("cannot send an endpoint to Envoy", "cluster", name, "err", err)
		}
		resources[name] = a
	}
	s.version++
	if err := s.cache.UpdateResources(resources, n.removed); err != nil {
		s.log.Error("cannot tell Envoy of endpoints", "err", err)
	}
}

// assignment returns the resource that lists these endpoints, in this order. It omits endpoints
// with an invalid address; the error names one of them.
func assignment(name string, endpoints []Endpoint) (*endpointv3.ClusterLoadAssignment, error) {
	var fault error
	hosts := &endpointv3.LocalityLbEndpoints{LbEndpoints: make([]*endpointv3.LbEndpoint, 0, len(endpoints))}
	for _, e := range endpoints {
		address, err := addressOf(e)
		if err != nil {
			fault = fmt.Errorf("endpoint %s: %w", e.Address, err)
			continue
		}
		is := &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}}}
		if e.Avoid {
			is.HealthStatus = corev3.HealthStatus_UNHEALTHY // override_host ignores the health status
		}
		hosts.LbEndpoints = append(hosts.LbEndpoints, is)
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{hosts}}, fault
}

func addressOf(e Endpoint) (*corev3.Address, error) {
	if strings.Contains(e.Address, "/") {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: e.Address}}}, nil
	}
	a, err := netip.ParseAddrPort(e.Address)
	if err != nil {
		return nil, err
	}
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: a.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
	}}}, nil
}

// callbacks records what Envoys have acknowledged.
type callbacks struct{ *Server }

// OnDeltaStreamOpen implements delta.Callbacks.
func (c callbacks) OnDeltaStreamOpen(_ context.Context, id int64, _ string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.streams[id] = &envoy{names: make(map[string]bool)}
	return nil
}

// OnDeltaStreamClosed implements delta.Callbacks.
func (c callbacks) OnDeltaStreamClosed(id int64, _ *corev3.Node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.streams, id)
	c.wake()
}

// OnStreamDeltaRequest implements delta.Callbacks.
func (c callbacks) OnStreamDeltaRequest(id int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.streams[id]
	if n := r.GetNode(); n != nil { // only the first request of a stream has a node
		e.gateway, e.node = n.GetCluster(), n.GetId()
		e.knew = len(r.GetInitialResourceVersions()) > 0
		c.wake()
	}
	for _, name := range r.GetResourceNamesSubscribe() {
		e.names[name] = true
	}
	for _, name := range r.GetResourceNamesUnsubscribe() {
		delete(e.names, name)
	}
	if fault := r.GetErrorDetail(); fault != nil {
		c.log.Error("Envoy rejected a list of endpoints", "err", fault.GetMessage())
	}
	if nonce := r.GetResponseNonce(); nonce != "" && nonce == e.nonce {
		e.taken, e.late = e.sent, false
		c.wake()
	}
	return nil
}

// OnStreamDeltaResponse implements delta.Callbacks.
func (c callbacks) OnStreamDeltaResponse(id int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
	version, err := strconv.ParseUint(r.GetSystemVersionInfo(), 10, 64)
	if err != nil {
		return // cannot happen: the cache's versions are numbers
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.streams[id]
	e.sent, e.nonce = version, r.GetNonce()
}

// wake wakes Set and Await. The caller holds mu.
func (s *Server) wake() {
	close(s.taken)
	s.taken = make(chan struct{})
}
