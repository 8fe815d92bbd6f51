package ads_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/internal/objects"
)

// world is a Server and the Envoys that connect to it, in a synctest bubble.
type world struct {
	t      *testing.T
	server *ads.Server
	conn   *grpc.ClientConn
}

func inMemory(t *testing.T, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, server: ads.New(ads.Config{
			Identify: func(_ context.Context, node *corev3.Node) (objects.Name, error) {
				if node.GetCluster() == "" {
					return objects.Name{}, errors.New("it names no Gateway")
				}
				return objects.Name{Namespace: "ns", Name: node.GetCluster()}, nil
			},
			Log: slog.New(slog.DiscardHandler),
		})}
		door := bufconn.Listen(1 << 20)
		server := grpc.NewServer()
		edsv3.RegisterEndpointDiscoveryServiceServer(server, w.server)
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(door) })
		var err error
		if w.conn, err = grpc.NewClient("passthrough:///control", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return door.DialContext(ctx) })); err != nil {
			t.Fatal(err)
		}
		test(w)
		w.server.Close()
		server.GracefulStop() // the bubble hangs if a stream is still open
		serving.Wait()
		_ = w.conn.Close()
		if n := ads.Followed(w.server); n != 0 {
			t.Errorf("%d clusters are followed by ended streams", n)
		}
	})
}

// set sets the endpoints. Each line contains a Gateway, a cluster, and addresses.
func (w *world) set(lines ...string) {
	w.t.Helper()
	all := make(map[objects.Name]map[string][]netip.AddrPort)
	for _, line := range lines {
		words := strings.Fields(line)
		of := objects.Name{Namespace: "ns", Name: words[0]}
		if all[of] == nil {
			all[of] = make(map[string][]netip.AddrPort)
		}
		if len(words) == 1 {
			continue
		}
		all[of][words[1]] = nil
		for _, at := range words[2:] {
			all[of][words[1]] = append(all[of][words[1]], netip.MustParseAddrPort(at))
		}
	}
	if err := w.server.SetEndpoints(all); err != nil {
		w.t.Fatal(err)
	}
}

// envoyStream is one stream of an Envoy.
type envoyStream struct {
	t    *testing.T
	wire edsv3.EndpointDiscoveryService_DeltaEndpointsClient
	slow bool // answers only when the test calls take
	end  func()

	mu       sync.Mutex // guards the fields below
	told     []string
	versions map[string]string
	nonce    string
	err      error
}

// follow opens a stream of an Envoy, which subscribes to some clusters. The Envoy already has the
// given versions.
func (w *world) follow(of string, slow bool, versions map[string]string, clusters ...string) *envoyStream {
	w.t.Helper()
	ctx, end := context.WithCancel(w.t.Context())
	s := &envoyStream{t: w.t, slow: slow, end: end, versions: maps.Clone(versions)}
	if s.versions == nil {
		s.versions = make(map[string]string)
	}
	var err error
	if s.wire, err = edsv3.NewEndpointDiscoveryServiceClient(w.conn).DeltaEndpoints(ctx); err != nil {
		w.t.Fatal(err)
	}
	s.send(&discoveryv3.DeltaDiscoveryRequest{
		Node: &corev3.Node{Cluster: of}, TypeUrl: order.Endpoints, ResourceNamesSubscribe: clusters,
		InitialResourceVersions: versions,
	})
	go s.listen()
	synctest.Wait()
	return s
}

func (s *envoyStream) send(r *discoveryv3.DeltaDiscoveryRequest) {
	if err := s.wire.Send(r); err != nil {
		s.t.Errorf("cannot write to the stream: %v", err)
	}
}

// listen records each response. It acknowledges them at once unless the stream is slow.
func (s *envoyStream) listen() {
	for {
		r, err := s.wire.Recv()
		s.mu.Lock()
		if err != nil {
			s.err = err
			s.mu.Unlock()
			return
		}
		s.nonce = r.GetNonce()
		for _, resource := range r.GetResources() {
			s.versions[resource.GetName()] = resource.GetVersion()
			is := new(endpointv3.ClusterLoadAssignment)
			if err := resource.GetResource().UnmarshalTo(is); err != nil || is.GetClusterName() != resource.GetName() ||
				r.GetTypeUrl() != order.Endpoints {
				s.t.Errorf("the stream receives %v, %v", r, err)
			}
			words := []string{resource.GetName()}
			for _, locality := range is.GetEndpoints() {
				for _, host := range locality.GetLbEndpoints() {
					at := host.GetEndpoint().GetAddress().GetSocketAddress()
					words = append(words, fmt.Sprintf("%s:%d", at.GetAddress(), at.GetPortValue()))
				}
			}
			s.told = append(s.told, strings.Join(words, " "))
		}
		for _, name := range r.GetRemovedResources() {
			s.told = append(s.told, "-"+name)
		}
		s.mu.Unlock()
		if !s.slow {
			s.take()
		}
	}
}

// take acknowledges the last response.
func (s *envoyStream) take() {
	s.mu.Lock()
	nonce := s.nonce
	s.mu.Unlock()
	s.send(&discoveryv3.DeltaDiscoveryRequest{ResponseNonce: nonce, TypeUrl: order.Endpoints})
}

// hears fails the test unless the given clusters and addresses arrived since the last call.
func (s *envoyStream) hears(want ...string) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.told)
	if s.err != nil || !slices.Equal(s.told, want) {
		s.t.Errorf("the stream received %q, %v, want %q", s.told, s.err, want)
	}
	s.told = nil
}

func TestStreamGetsOnlyItsClusters(t *testing.T) {
	inMemory(t, func(w *world) {
		early := w.follow("g", false, nil, "a")
		early.hears()
		w.set("g a 10.0.0.1:80", "g b 10.0.0.2:80 [fd00::1]:80", "g none", "other c 10.0.0.3:80")
		early.hears("a 10.0.0.1:80")
		b := w.follow("g", false, nil, "b")
		b.hears("b 10.0.0.2:80 fd00::1:80")
		none := w.follow("g", false, nil, "none")
		none.hears("none")
		foreign, unknown, own := w.follow("g", false, nil, "c"), w.follow("g", false, nil, "d"), w.follow("other", false, nil, "c")
		foreign.hears()
		unknown.hears()
		own.hears("c 10.0.0.3:80")

		// Only the endpoints of b change. The clusters none and d, and the Gateway other, are new.
		w.set("g a 10.0.0.1:80", "g b 10.0.0.2:80", "g none", "g d 10.0.0.4:80", "other c 10.0.0.5:80")
		early.hears()
		b.hears("b 10.0.0.2:80")
		none.hears()
		unknown.hears("d 10.0.0.4:80")
		foreign.hears()
		own.hears("c 10.0.0.5:80")

		// Endpoints are added and removed. A list in another order is a change.
		w.set("g a", "g b 10.0.0.2:80 10.0.0.1:80", "g none 10.0.0.6:80", "other c 10.0.0.5:80")
		early.hears("a")
		b.hears("b 10.0.0.2:80 10.0.0.1:80")
		none.hears("none 10.0.0.6:80")

		// Envoys keep the list of a removed cluster or Gateway until it returns with another list.
		w.set("g b 10.0.0.2:80 10.0.0.1:80")
		w.set()
		w.set("g a", "g none 10.0.0.7:80", "other c 10.0.0.5:80")
		for _, s := range []*envoyStream{early, b, unknown, foreign, own} {
			s.hears()
		}
		none.hears("none 10.0.0.7:80")
		w.set("g a 10.0.0.1:80", "g none")
		early.hears("a 10.0.0.1:80")
		none.hears("none")
	})
}

func TestStreamMayFollowSeveralClustersOrAll(t *testing.T) {
	inMemory(t, func(w *world) {
		all := w.follow("g", false, nil)
		w.set("g a 10.0.0.1:80", "g b 10.0.0.2:80", "other c 10.0.0.3:80")
		all.hears("a 10.0.0.1:80", "b 10.0.0.2:80")
		some := w.follow("g", false, nil, "a", "b")
		some.hears("a 10.0.0.1:80", "b 10.0.0.2:80")
		some.send(&discoveryv3.DeltaDiscoveryRequest{ResourceNamesUnsubscribe: []string{"a"}, ResourceNamesSubscribe: []string{"c"}})
		synctest.Wait()
		w.set("g a 10.0.0.4:80", "g b 10.0.0.5:80", "g c 10.0.0.6:80")
		all.hears("a 10.0.0.4:80", "b 10.0.0.5:80", "c 10.0.0.6:80")
		some.hears("b 10.0.0.5:80", "c 10.0.0.6:80")
	})
}

// An Envoy that answers slowly gets only the latest of several changes.
func TestChangesForASlowEnvoyAreNotLost(t *testing.T) {
	inMemory(t, func(w *world) {
		w.set("g a 10.0.0.1:80")
		slow, other := w.follow("g", true, nil, "a"), w.follow("g", false, nil, "a")
		slow.hears("a 10.0.0.1:80")
		other.hears("a 10.0.0.1:80")
		w.set("g a 10.0.0.2:80")
		other.hears("a 10.0.0.2:80")
		w.set("g a 10.0.0.3:80")
		slow.hears()
		other.hears("a 10.0.0.3:80")
		slow.take()
		slow.hears("a 10.0.0.3:80")
		w.set("g a 10.0.0.4:80")
		w.set("g a 10.0.0.3:80")
		slow.take()
		slow.hears()
	})
}

// Versions are hashes of the content in every control, so an Envoy that reconnects gets only lists
// that differ.
func TestReconnectedEnvoyGetsNoKnownEndpoints(t *testing.T) {
	var versions map[string]string
	inMemory(t, func(w *world) {
		w.set("g a 10.0.0.1:80 10.0.0.2:80", "g b 10.0.0.3:80")
		s := w.follow("g", false, nil, "a", "b")
		s.hears("a 10.0.0.1:80 10.0.0.2:80", "b 10.0.0.3:80")
		versions = s.versions
	})
	inMemory(t, func(w *world) {
		s := w.follow("g", false, versions, "a", "b")
		s.hears()
		w.set("g a 10.0.0.1:80 10.0.0.2:80", "g b 10.0.0.3:80 10.0.0.4:80")
		s.hears("b 10.0.0.3:80 10.0.0.4:80")
	})
}

func TestEnvoyWithoutAGatewayGetsNoEndpoints(t *testing.T) {
	inMemory(t, func(w *world) {
		w.set("g a 10.0.0.1:80")
		s := w.follow("", false, nil, "a")
		if s.err == nil || status.Code(s.err) != codes.PermissionDenied || len(s.told) > 0 {
			t.Errorf("the stream receives %v, %v", s.told, s.err)
		}
	})
}

// A stream ends when the Server closes, and when its Envoy disconnects.
func TestStreamsOfEndpointsEnd(t *testing.T) {
	inMemory(t, func(w *world) {
		w.set("g a 10.0.0.1:80")
		leaves, stays := w.follow("g", false, nil, "a"), w.follow("g", false, nil, "b")
		also := w.follow("g", false, nil, "a")
		also.hears("a 10.0.0.1:80")
		leaves.end()
		synctest.Wait()
		w.set("g a 10.0.0.2:80")
		also.hears("a 10.0.0.2:80")
		also.end()
		synctest.Wait()
		if n := ads.Followed(w.server); n != 1 {
			t.Errorf("%d clusters are followed, want that of the remaining stream", n)
		}
		w.server.Close()
		synctest.Wait()
		if stays.err == nil {
			t.Error("the stream does not end")
		}
	})
}

// Many streams each subscribe to one cluster, and lists change before Envoys have answered. Once no
// message is under way, each Envoy has the latest list.
func TestNoUpdateIsLost(t *testing.T) {
	inMemory(t, func(w *world) {
		const clusters, rounds = 20, 200
		var streams []*envoyStream
		for i := range 2 * clusters {
			streams = append(streams, w.follow("g", false, nil, fmt.Sprint("c", i%clusters)))
		}
		random := rand.New(rand.NewPCG(1, 2))
		last := make([]string, clusters)
		for round := range rounds {
			for range 1 + random.IntN(3) {
				lines := make([]string, clusters)
				for i := range clusters {
					if last[i] == "" || random.IntN(2) == 0 {
						last[i] = fmt.Sprintf("c%d 10.0.0.%d:80", i, random.IntN(3))
					}
					lines[i] = "g " + last[i]
				}
				w.set(lines...)
				for range random.IntN(1000) { // the streams progress by a random amount
					runtime.Gosched()
				}
			}
			synctest.Wait()
			for i, s := range streams {
				if got := s.told[len(s.told)-1]; got != last[i%clusters] {
					t.Errorf("in round %d a stream has %s, want %s", round, got, last[i%clusters])
					return
				}
			}
		}
	})
}
