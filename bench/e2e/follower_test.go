package e2e

import (
	"bytes"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// follower is an xDS client of control, like a Gateway's Envoy. It acknowledges every resource at
// once and records when the resource arrived.
type follower struct {
	t testing.TB

	mu   sync.Mutex // guards the fields below
	told map[string]told
	news chan struct{} // closed and replaced at each update
}

// told is the last update of a resource that the follower received.
type told struct {
	at   time.Time
	text []byte // the serialized message
}

// follow subscribes to a Gateway's resources at control's xDS socket until the test ends.
func follow(t testing.TB, socket, gateway string) *follower {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{t: t, told: make(map[string]told), news: make(chan struct{})}
	all, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	endpoints, err := edsv3.NewEndpointDiscoveryServiceClient(conn).DeltaEndpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var listening sync.WaitGroup
	t.Cleanup(func() {
		_ = conn.Close()
		listening.Wait()
	})
	for stream, types := range map[deltas][]string{
		all: {resource.ClusterType, resource.ListenerType, resource.RouteType}, endpoints: {resource.EndpointType},
	} {
		for _, of := range types { // subscribe to all resources of each type
			if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
				Node:    &corev3.Node{Cluster: gateway, Id: "follower"},
				TypeUrl: of,
			}); err != nil {
				t.Fatal(err)
			}
		}
		listening.Go(func() { f.listen(stream) })
	}
	return f
}

// deltas is a delta xDS stream, of ADS or of EDS.
type deltas interface {
	Send(*discoveryv3.DeltaDiscoveryRequest) error
	Recv() (*discoveryv3.DeltaDiscoveryResponse, error)
}

// listen records and acknowledges updates until the stream ends.
func (f *follower) listen(stream deltas) {
	for {
		r, err := stream.Recv()
		if err != nil {
			return
		}
		at := time.Now()
		f.mu.Lock()
		for _, is := range r.GetResources() {
			f.told[r.GetTypeUrl()+" "+is.GetName()] = told{at, is.GetResource().GetValue()}
		}
		close(f.news)
		f.news = make(chan struct{})
		f.mu.Unlock()
		_ = stream.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}) // Recv returns its error
	}
}

// has waits until a resource contains a text, such as an address. It returns when the update with
// that text arrived.
func (f *follower) has(of, name, text string) time.Time {
	f.t.Helper()
	for late := time.After(20 * time.Second); ; {
		f.mu.Lock()
		last, news := f.told[of+" "+name], f.news
		f.mu.Unlock()
		if bytes.Contains(last.text, []byte(text)) {
			return last.at
		}
		select {
		case <-news:
		case <-late:
			f.t.Fatalf("control does not tell Envoys of %s that %s is in it", name, text)
		}
	}
}
