package controller

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headgate/headgate/control/attach/certificates"
	"github.com/headgate/headgate/control/attach/pki"
	"github.com/headgate/headgate/control/broadcast"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
	"github.com/headgate/headgate/test/network"
)

// named contains the Secrets or ConfigMaps of an API server. It reports changes at once.
type named struct {
	user kube.User

	mu  sync.Mutex // guards the map
	all map[objects.Name]map[string][]byte
}

func (s *named) Add(u kube.User) { s.user = u }

func (s *named) Read(_ context.Context, names []objects.Name) {
	for _, name := range names {
		s.mu.Lock()
		data := s.all[name]
		s.mu.Unlock()
		if data == nil {
			s.user.Take(name, nil, errors.New("connection refused"))
			continue
		}
		s.user.Take(name, data, nil)
	}
}

func (s *named) set(name objects.Name, data map[string][]byte) {
	s.mu.Lock()
	s.all[name] = data
	s.mu.Unlock()
	s.user.Take(name, data, nil)
}

// peersOf implements Peers. Tests set the reports of the other controls.
type peersOf struct {
	mu    sync.Mutex // guards the fields below
	seen  map[string]Seen
	newer chan struct{}
}

func (o *peersOf) Share(Seen) {}

func (o *peersOf) Seen() (map[string]Seen, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen, o.newer
}

func (o *peersOf) say(seen map[string]Seen) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = seen
	close(o.newer)
	o.newer = make(chan struct{})
}

// running is a Controller that runs, with its latest plans.
type running struct {
	*testing.T
	plans  chan Plans
	latest Plans
}

// run runs a Controller and its Server until the test ends, and returns a connection to it.
func run(t *testing.T, d *Controller, worlds *broadcast.Value[objects.World]) (*running, *grpc.ClientConn) {
	r := &running{T: t, plans: make(chan Plans, 100)}
	d.Planned = func(p Plans) { r.plans <- p }
	socket := filepath.Join(t.TempDir(), "control.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	all.Go(func() { _ = d.Run(ctx, worlds.Get) })
	all.Go(func() { _ = d.Envoys.Run(ctx, l, nil) })
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		all.Wait()
		_ = conn.Close()
	})
	return r, conn
}

// await waits until holds returns true for the plans.
func (r *running) await(what string, holds func(Plans) bool) {
	r.Helper()
	for limit := time.After(20 * time.Second); r.latest.Plans == nil || !holds(r.latest); {
		select {
		case r.latest = <-r.plans:
		case <-limit:
			r.Fatalf("timeout waiting until %s", what)
		}
	}
}

// A new certificate, new authorities and a report of another control take effect without a change
// of objects.
func TestResourcesWithoutAnObjectAreInUse(t *testing.T) {
	secrets, maps := &named{all: make(map[objects.Name]map[string][]byte)}, &named{all: make(map[objects.Name]map[string][]byte)}
	controls := &peersOf{newer: make(chan struct{})}
	d := driver(t)
	d.Certificates, d.Authorities = certificates.New(secrets, certificates.KeyPairs, d.Log),
		certificates.New(maps, certificates.Authorities, d.Log)
	d.Peers = controls
	worlds := broadcast.New[objects.World]()
	worlds.Set(objects.Build(network.Set(t, network.Standard(`kind: Gateway
metadata: {namespace: ns, name: g}
spec:
  gatewayClassName: headgate
  listeners: [{name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: cert}]}}]
  tls: {frontend: {default: {validation: {caCertificateRefs: [{group: "", kind: ConfigMap, name: ca}]}}}}
---
kind: HTTPRoute
metadata: {namespace: ns, name: r}
spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 80}]}]}
`))))
	r, _ := run(t, d, worlds)
	cert, ca := objects.Name{Namespace: "ns", Name: "cert"}, objects.Name{Namespace: "ns", Name: "ca"}
	made := func() (chain, key []byte) {
		a, err := pki.New(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if chain, key, err = a.PEM(); err != nil {
			t.Fatal(err)
		}
		return chain, key
	}
	r.await("nothing is served before they are known", func(p Plans) bool { return len(p.Plans.Gateways[0].Ports) == 0 })
	await := func(what string, chain, authority []byte) {
		t.Helper()
		r.await(what, func(p Plans) bool {
			g := p.Plans.Gateways[0]
			return len(g.Ports) == 1 && string(g.Certificates[cert].Chain) == string(chain) &&
				string(g.Ports[0].Listeners[0].Clients.Authorities) == string(authority)
		})
	}
	chain, key := made()
	authority, _ := made()
	maps.set(ca, map[string][]byte{"ca.crt": authority})
	secrets.set(cert, map[string][]byte{"tls.crt": chain, "tls.key": key})
	await("the certificate is served to clients of the authority", chain, authority)
	chain, key = made()
	secrets.set(cert, map[string][]byte{"tls.crt": chain, "tls.key": key})
	await("another certificate is served", chain, authority)
	authority, _ = made()
	maps.set(ca, map[string][]byte{"ca.crt": authority})
	await("it is served to clients of another authority", chain, authority)

	route := objects.Object{Kind: objects.HTTPRouteKind, Name: objects.Name{Namespace: "ns", Name: "r"}}
	content := r.latest.Plans.Gateways[0].Contents[route]
	controls.say(map[string]Seen{"other": {"ns/g": {Routes: map[string]SeenRoute{route.String(): {Content: content, Message: "no"}}}}})
	r.await("a route that another control's Envoy refuses is left out", func(p Plans) bool {
		return len(p.Plans.Routes[route].Envoys) == 1
	})
}

// Endpoints of a Service are sent with the route that leads to it, and again when they change.
func TestEndpointsFollowTheirCluster(t *testing.T) {
	set := func(address string) objects.Set {
		return network.Set(t,
			network.Standard("kind: HTTPRoute\nmetadata: {namespace: ns, name: r}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: a, port: 80}]}]}\n---\n"+
				"kind: EndpointSlice\nmetadata: {namespace: ns, name: a-1, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{name: '', port: 8000, protocol: TCP}]\nendpoints: [{addresses: ["+
				address+"]}]"))
	}
	worlds := broadcast.New[objects.World]()
	first := set("10.0.0.1")
	worlds.Set(objects.Build(first))
	d := driver(t)
	_, conn := run(t, d, worlds)
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	stream, err := edsv3.NewEndpointDiscoveryServiceClient(conn).DeltaEndpoints(ctx)
	if err != nil {
		t.Fatal(err)
	}
	is := &discoveryv3.DeltaDiscoveryRequest{
		Node:                   &corev3.Node{Id: "envoy", Cluster: "ns/g"},
		ResourceNamesSubscribe: []string{"service/ns/a/80"},
	}
	for _, want := range []string{"10.0.0.1", "10.0.0.2"} {
		if err := stream.Send(is); err != nil {
			t.Fatal(err)
		}
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		told := new(endpointv3.ClusterLoadAssignment)
		if err := r.GetResources()[0].GetResource().UnmarshalTo(told); err != nil {
			t.Fatal(err)
		}
		if got := told.GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress().GetAddress(); got != want {
			t.Errorf("the endpoint is %s, want %s", got, want)
		}
		is = &discoveryv3.DeltaDiscoveryRequest{ResponseNonce: r.GetNonce()}
		second := set("10.0.0.2")
		second.Network = first.Network // a World that differs only in pods
		worlds.Set(objects.Build(second))
	}
}

// Envoys in pods that control creates listen at the pods' addresses. Other Envoys listen at the
// addresses of their Gateway.
func TestWhereEnvoysListen(t *testing.T) {
	for _, c := range []struct {
		pods    bool
		managed string
		want    string
	}{{true, "true", "0.0.0.0"}, {true, "false", "192.0.2.1"}, {false, "true", "192.0.2.1"}} {
		n := network.Read(t,
			network.Standard("kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, addresses: [{value: 192.0.2.1}], listeners: [{name: http, port: 80, protocol: HTTP}], infrastructure: {parametersRef: {group: inference.x-k8s.io, kind: GatewaySettings, name: s}}}\n---\n"+
				"kind: GatewaySettings\nmetadata: {namespace: ns, name: s}\nspec: {managed: "+c.managed+"}"))
		d := driver(t)
		d.Pods = c.pods
		if got, _ := d.options(attach.Of(n).Gateways[0]).Bind(80); got != c.want {
			t.Errorf("with pods %v, managed %s: Envoys listen at %s, want %s", c.pods, c.managed, got, c.want)
		}
	}
}
