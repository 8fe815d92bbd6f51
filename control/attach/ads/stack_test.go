package ads_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	edsv3 "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"google.golang.org/grpc"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/attach/services"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/test/network"
)

// gateway is the Gateway of the tests.
var gateway = objects.Name{Namespace: "ns", Name: "g"}

// stack is a real Envoy, the Server that configures it, and the Services behind it.
type stack struct {
	t        *testing.T
	own      string // loopback address that no other test uses
	server   *ads.Server
	template *envoy.Template
	slices   map[string]objects.Slice // EndpointSlices by Service
	network  *objects.Network
	plans    *plan.Plans
	envoy    *process.Process
	dir      string
	stop     func() // ends the servers

	mu      sync.Mutex // guards the fields below
	answers []order.Answer
}

func start(t *testing.T, number int) *stack {
	t.Helper()
	s := newStack(t, number)
	s.stop = s.serve()
	s.run(s.place())
	return s
}

// place returns the configuration of the stack's Envoy.
func (s *stack) place() envoy.Place {
	return envoy.Place{
		Gateway: gateway, Node: "envoy-0", Admin: netip.MustParseAddrPort(s.own + ":9901"), Extproc: filepath.Join(s.dir, "extproc.sock"),
		Control: filepath.Join(s.dir, "control.sock"),
	}
}

// newStack returns a stack whose Envoy is not started. Its Server has no resources yet.
func newStack(t *testing.T, number int) *stack {
	t.Helper()
	text, err := os.ReadFile("../../../envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := &stack{t: t, own: fmt.Sprintf("127.%d.%d.2", 200+os.Getpid()%50, number), slices: make(map[string]objects.Slice)}
	if s.template, err = envoy.Read(text); err != nil {
		t.Fatal(err)
	}
	s.server = s.newServer()
	s.dir = t.TempDir()
	return s
}

// run starts the Envoy.
func (s *stack) run(at envoy.Place) {
	t := s.t
	t.Helper()
	binary, err := find.Envoy(t.Context(), "../../../.cache", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	config, err := s.template.Bootstrap(at)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.dir, "envoy.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		t.Fatal(err)
	}
	starter := process.NewStarter()
	if s.envoy, err = starter.Start("envoy", s.dir,
		exec.Command(binary, "--config-path", file, "--disable-hot-restart", "--log-level", "warning", "--drain-time-s", "1")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		s.envoy.Stop(5 * time.Second)
		close(starter)
		if t.Failed() {
			t.Log(s.envoy.LastWords())
		}
	})
}

func (s *stack) newServer() *ads.Server {
	return ads.New(ads.Config{
		Identify: func(_ context.Context, node *corev3.Node) (objects.Name, error) {
			namespace, name, ok := strings.Cut(node.GetCluster(), "/")
			if !ok {
				return objects.Name{}, errors.New("it names no Gateway")
			}
			return objects.Name{Namespace: namespace, Name: name}, nil
		},
		Answered: func(from ads.Envoy, a order.Answer) {
			if from.Gateway != gateway || from.Node != "envoy-0" {
				s.t.Errorf("the answer is from %v", from)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.answers = append(s.answers, a)
		},
		Log: slog.New(slog.DiscardHandler),
	})
}

// serve runs the Server on a Unix socket, as control does, until stop is called.
func (s *stack) serve() (stop func()) {
	l, err := net.Listen("unix", filepath.Join(s.dir, "control.sock"))
	if err != nil {
		s.t.Fatal(err)
	}
	grpcServer := grpc.NewServer()
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(grpcServer, s.server)
	edsv3.RegisterEndpointDiscoveryServiceServer(grpcServer, s.server)
	go func() { _ = grpcServer.Serve(l) }()
	own := s.server
	stop = func() {
		own.Close()
		grpcServer.Stop()
	}
	s.t.Cleanup(stop)
	return stop
}

// backend runs an HTTP server for the Service ns/NAME at a port. It answers with the Service's
// name.
func (s *stack) backend(name string, port int) {
	s.t.Helper()
	s.says(name, port)
	s.slice(name, port)
}

// says runs an HTTP server at a port that answers each request with a word. It returns the server
// and its number of open connections.
func (s *stack) says(word string, port int) (is *http.Server, open *atomic.Int64) {
	s.t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", s.own, port))
	if err != nil {
		s.t.Fatal(err)
	}
	open = new(atomic.Int64)
	is = &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, word) }),
		ReadHeaderTimeout: time.Minute,
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed:
				open.Add(-1)
			}
		},
	}
	go func() { _ = is.Serve(l) }()
	s.t.Cleanup(func() { _ = is.Close() })
	return is, open
}

// slice sets the ports of the endpoints of the Service ns/NAME. Call tell to send them.
func (s *stack) slice(name string, ports ...int) {
	is := objects.Slice{
		Service: objects.Name{Namespace: "ns", Name: name}, Type: objects.IPv4,
		Endpoints: []objects.SliceEndpoint{{Address: netip.MustParseAddr(s.own), Ready: true}},
	}
	for _, port := range ports {
		is.Ports = append(is.Ports, objects.SlicePort{Number: int32(port), Protocol: "TCP"})
	}
	s.slices[name] = is
}

// tell sends the endpoints of Services to the Envoy.
func (s *stack) tell() {
	s.t.Helper()
	if err := s.server.SetEndpoints(services.Of(s.plans.Gateways, s.network, slices.Collect(maps.Values(s.slices)))); err != nil {
		s.t.Fatal(err)
	}
}

const class = "kind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n" +
	"kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP}]}\n"

// apply applies a text of objects in addition to the GatewayClass and the Gateway. changes modify
// the resulting resources.
func (s *stack) apply(text string, changes ...func(*envoy.Resources)) {
	s.t.Helper()
	s.put(class+text, nil, changes...)
}

// put is like apply, with certificates.
func (s *stack) put(text string, certificates map[objects.Name]plan.Certificate, changes ...func(*envoy.Resources)) {
	s.t.Helper()
	s.network = network.Read(s.t, text)
	s.plans = plan.Of(attach.Of(s.network), s.network, plan.Known{Certificates: certificates})
	s.tell()
	all := make(map[objects.Name]order.Snapshot)
	for _, p := range s.plans.Gateways {
		r, err := s.template.Of(p, s.template.FromControl(func(port int32) (string, uint32) { return s.own, 20000 + uint32(port) }))
		if err != nil {
			s.t.Fatal(err)
		}
		for _, change := range changes {
			change(r)
		}
		if all[p.Gateway], err = ads.SnapshotOf(r); err != nil {
			s.t.Fatal(err)
		}
	}
	s.server.Set(all)
}

// to returns an HTTPRoute that sends every request to one Service.
func to(name string) string {
	return fmt.Sprintf("---\nkind: Service\nmetadata: {namespace: ns, name: %s}\nspec: {ports: [{port: 80}]}\n---\nkind: HTTPRoute\nmetadata: {namespace: ns, name: r}\n"+
		"spec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: %s, port: 80}]}]}\n", name, name)
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}

// get sends a request, and returns the status and body of the response as text.
func (s *stack) get() string {
	q, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.own+":20080/", nil)
	if err != nil {
		return err.Error()
	}
	response, err := client.Do(q)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%d %s", response.StatusCode, body)
}

func (s *stack) await(want string) time.Duration {
	s.t.Helper()
	began := time.Now()
	for limit := began.Add(20 * time.Second); ; {
		got := s.get()
		if got == want {
			return time.Since(began)
		}
		if time.Now().After(limit) {
			s.t.Fatalf("the response is %q, want %q", got, want)
		}
		<-time.After(time.Millisecond)
	}
}

// heard returns the ACKs and NACKs since the last call.
func (s *stack) heard() []order.Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.answers
	s.answers = nil
	return all
}

// connected reports whether the Envoy is connected to control.
func (s *stack) connected() bool {
	response, err := client.Get("http://" + s.own + ":9901/stats?filter=control_plane.connected_state")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return err == nil && strings.Contains(string(text), "control_plane.connected_state: 1")
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for limit := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(limit) {
			t.Fatalf("timeout: %s", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// certificate returns a self-signed certificate for a hostname.
func certificate(t *testing.T, host string) plan.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	is := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	chain, err := x509.CreateCertificate(rand.Reader, is, is, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return plan.Certificate{
		Chain: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain}),
		Key:   pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}
