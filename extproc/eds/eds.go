// Package eds tells the Envoys beside extproc which endpoints there are, by the delta variant of
// Envoy's endpoint discovery service on extproc's own socket: override_host, by which a request
// goes on to its next pick, finds hosts only among those of its cluster.
//
// What Envoy knows comes before and goes after what extproc picks: an endpoint is listed, and Envoy
// has said that it took the list, before the fleet knows it, and it is listed until no decision
// that names it can be under way.
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
)

const (
	// patience is how long [Server.Set] waits for Envoys to take new endpoints. One takes them
	// within some milliseconds; where one does not, its requests for a new endpoint go on to their
	// next pick, and all others are served on.
	patience = 200 * time.Millisecond
	// patienceForPools is how long it waits for Envoys to know a new pool: control tells them of
	// it, after it has made a plan.
	patienceForPools = time.Second
)

// Server serves endpoint discovery. Its methods are safe for concurrent use, but for Set, which is
// called from one goroutine. Make one with [New], and serve nobody before the first Set.
type Server struct {
	edsv3.UnimplementedEndpointDiscoveryServiceServer
	log   *slog.Logger
	cache *cache.LinearCache
	delta delta.Server
	end   context.CancelFunc

	mu      sync.Mutex // guards the following
	lists   lists
	version uint64           // of the cache: how often it was updated
	streams map[int64]*envoy // by the number of the stream; Envoy opens one for each cluster
	taken   chan struct{}    // closed and made anew when an Envoy has taken something, or has left
	missed  map[want]bool    // what was waited for in vain
}

// want is that an Envoy asks for a pool's endpoints.
type want struct{ gateway, node, name string }

// envoy is what is known of a stream.
type envoy struct {
	// gateway is whose configuration the Envoy has, and node tells it from others of the same
	// Gateway.
	gateway, node string
	names         map[string]bool // the resources that it follows
	sent          uint64          // the version that was sent last, by this nonce
	nonce         string
	taken         uint64 // the latest version that it has taken or refused
	late          bool   // it was waited for in vain: it is not waited for again before it answers
	knew          bool   // it was told of what it follows by an extproc before
}

// New returns a Server without endpoints.
func New(log *slog.Logger) *Server {
	ctx, end := context.WithCancel(context.Background())
	s := &Server{
		log: log, cache: cache.NewLinearCache(resource.EndpointType), end: end,
		lists: make(lists), streams: make(map[int64]*envoy), taken: make(chan struct{}), missed: make(map[want]bool),
	}
	s.delta = delta.NewServer(ctx, s.cache, callbacks{s})
	return s
}

// DeltaEndpoints implements EndpointDiscoveryServiceServer.
func (s *Server) DeltaEndpoints(stream edsv3.EndpointDiscoveryService_DeltaEndpointsServer) error {
	return s.delta.DeltaStreamHandler(stream, resource.EndpointType)
}

// Close ends every stream: nothing else does. Envoys keep what they know, and call whoever serves
// next.
func (s *Server) Close() { s.end() }

// Set says which endpoints there are, by the names under which Envoys ask for them, in order. It
// returns when every Envoy that is connected has taken those that are new to it, or after a while,
// or when ctx ends.
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
			s.log.Warn("an Envoy has not taken new endpoints in time; its requests may go to their next pick", "after", patience.String())
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

// Await returns when the Envoys of Gateways that are connected know the pools that they need, by
// Gateway as of [Needed], or after a while, or when ctx ends. What was waited for in vain is not
// waited for again before it is known. It is called from the goroutine of Set.
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
				s.missed[w] = true
			}
			s.mu.Unlock()
			s.log.Warn("an Envoy does not know a pool yet, of which control is to tell it; its requests for it get 503 until then",
				"gateway", unknown[0].gateway, "envoy", unknown[0].node, "pool", unknown[0].name, "pools", len(unknown), "after",
				patienceForPools.String())
			return
		}
	}
}

// unknown returns what Envoys that are connected need and do not know, and were not waited for in
// vain. The caller holds mu.
func (s *Server) unknown(needed map[string][]string) (all []want) {
	connected, known := make(map[want]bool), make(map[want]bool) // of no name
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
			case s.missed[w]:
				still[w] = true
			default:
				all = append(all, w)
			}
		}
	}
	s.missed = still
	return all
}

// followers are the streams that follow one of these resources, and answer. The caller holds mu.
func (s *Server) followers(names []string) (all []int64) {
	for id, e := range s.streams {
		if !e.late && slices.ContainsFunc(names, func(name string) bool { return e.names[name] }) {
			all = append(all, id)
		}
	}
	return all
}

// took says whether each of these streams has taken a version, or has ended; what has not is given
// to missing. The caller holds mu.
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

// Run takes endpoints out of the lists some time after they left, until ctx ends.
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
		s.update(s.lists.look(time.Now()))
		s.mu.Unlock()
	}
}

// update gives news to the cache. The caller holds mu.
func (s *Server) update(n news) {
	if len(n.lists) == 0 && len(n.gone) == 0 {
		return
	}
	resources := make(map[string]types.Resource, len(n.lists))
	for name, endpoints := range n.lists {
		a, err := assignment(name, endpoints)
		if err != nil {
			s.log.Error("cannot tell Envoy of an endpoint", "cluster", name, "err", err)
		}
		resources[name] = a
	}
	s.version++
	if err := s.cache.UpdateResources(resources, n.gone); err != nil {
		s.log.Error("cannot tell Envoy of endpoints", "err", err)
	}
}

// assignment returns the resource that lists endpoints, in this order, and an error that names one
// whose address is none and that is left out.
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
			is.HealthStatus = corev3.HealthStatus_UNHEALTHY // override_host asks nobody for it
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

// callbacks notes what Envoys have taken.
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
	c.tell()
}

// OnStreamDeltaRequest implements delta.Callbacks.
func (c callbacks) OnStreamDeltaRequest(id int64, r *discoveryv3.DeltaDiscoveryRequest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.streams[id]
	if n := r.GetNode(); n != nil { // the first request has it
		e.gateway, e.node = n.GetCluster(), n.GetId()
		e.knew = len(r.GetInitialResourceVersions()) > 0
		c.tell()
	}
	for _, name := range r.GetResourceNamesSubscribe() {
		e.names[name] = true
	}
	for _, name := range r.GetResourceNamesUnsubscribe() {
		delete(e.names, name)
	}
	if fault := r.GetErrorDetail(); fault != nil {
		c.log.Error("Envoy refuses a list of endpoints", "err", fault.GetMessage())
	}
	if nonce := r.GetResponseNonce(); nonce != "" && nonce == e.nonce {
		e.taken, e.late = e.sent, false
		c.tell()
	}
	return nil
}

// OnStreamDeltaResponse implements delta.Callbacks.
func (c callbacks) OnStreamDeltaResponse(id int64, _ *discoveryv3.DeltaDiscoveryRequest, r *discoveryv3.DeltaDiscoveryResponse) {
	version, err := strconv.ParseUint(r.GetSystemVersionInfo(), 10, 64)
	if err != nil {
		return // the cache counts its updates
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.streams[id]
	e.sent, e.nonce = version, r.GetNonce()
}

// tell wakes who waits. The caller holds mu.
func (s *Server) tell() {
	close(s.taken)
	s.taken = make(chan struct{})
}
