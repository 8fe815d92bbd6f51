package ads_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/objects"
)

// Each change adds a route with a new cluster, and removes the previous route and its cluster.
// Requests fail if a route is sent before its cluster, or a cluster is removed before its route.
func TestChangesFailNoRequest(t *testing.T) {
	const changes = 50
	s := start(t, 1)
	for i := range changes {
		s.backend(fmt.Sprint("s", i), 21000+i)
	}
	s.apply(to("s0"))
	t.Logf("the first response comes after %v", s.await("200 s0").Round(time.Millisecond))
	var sent atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if got := s.get(); !strings.HasPrefix(got, "200 ") && ctx.Err() == nil {
					t.Errorf("the response is %s", got)
				}
				sent.Add(1)
			}
		})
	}
	var took []time.Duration
	for i := 1; i < changes; i++ {
		s.apply(to(fmt.Sprint("s", i)))
		took = append(took, s.await(fmt.Sprint("200 s", i)))
	}
	stop()
	clients.Wait()
	slices.Sort(took)
	t.Logf("%d requests while %d changes were in force after %v (p50), %v at most", sent.Load(), len(took),
		took[len(took)/2].Round(100*time.Microsecond), took[len(took)-1].Round(100*time.Microsecond))
	for _, a := range s.heard() {
		if a.Refused != "" {
			t.Errorf("Envoy rejects %v: %s", a.Names, a.Refused)
		}
	}
}

// An Envoy that reconnects to another control is not sent the resources that it already has. Later
// changes are sent.
func TestKnownResourcesAreNotSentAgain(t *testing.T) {
	s := start(t, 2)
	s.backend("a", 21000)
	s.backend("b", 21001)
	s.apply(to("a"))
	s.await("200 a")
	s.stop()
	if got := s.get(); got != "200 a" {
		t.Errorf("without control the response is %s", got)
	}
	s.heard()
	s.server = s.newServer()
	s.apply(to("a"))
	s.serve()
	await(t, "Envoy is back", func() bool { return s.connected() })
	<-time.After(200 * time.Millisecond) // a resend would arrive by then
	if told := s.heard(); len(told) > 0 {
		t.Errorf("it is sent again: %v", told)
	}
	s.apply(to("b"))
	s.await("200 b")
}

// Before all objects are known, Envoy gets no response, not even one without resources.
func TestNoResponseBeforeObjectsAreKnown(t *testing.T) {
	s := start(t, 3)
	s.backend("a", 21000)
	s.apply(to("a"))
	s.await("200 a")
	s.stop()
	s.server = s.newServer()
	s.serve()
	await(t, "Envoy is back", func() bool { return s.connected() })
	<-time.After(200 * time.Millisecond) // Envoy would drop its resources by then
	if got := s.get(); got != "200 a" {
		t.Errorf("with a control that has no objects yet, the response is %s", got)
	}
}

// A NACK is reported with Envoy's message. The old version stays, and other resources are still
// updated.
func TestRejectionsAreReported(t *testing.T) {
	s := start(t, 4)
	s.backend("a", 21000)
	s.backend("b", 21001)
	s.apply(to("a"))
	s.await("200 a")
	s.heard()
	s.apply(to("b"), func(r *envoy.Resources) {
		regex := &matcherv3.RegexMatcher{Regex: "(("}
		r.Routes[0].VirtualHosts[0].Routes[0].Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{SafeRegex: regex}
	})
	var refused order.Answer
	await(t, "Envoy refuses it", func() bool {
		for _, a := range s.heard() {
			if a.Refused != "" {
				refused = a
			}
		}
		return refused.Refused != ""
	})
	if refused.Type != order.Routes || !slices.Equal(refused.Names, []string{"port-80"}) ||
		!strings.Contains(refused.Refused, "missing )") {
		t.Errorf("the answer is %+v", refused)
	}
	if got := s.get(); got != "200 a" {
		t.Errorf("the response is %s", got)
	}
	s.apply(to("b"))
	s.await("200 b")
}

// An Envoy that names no Gateway is refused. An Envoy of an unknown Gateway is served nothing.
func TestEnvoyGetsOnlyItsGateway(t *testing.T) {
	s := start(t, 5)
	s.backend("a", 21000)
	s.apply(to("a"))
	s.await("200 a")
	conn, err := grpc.NewClient("unix:"+filepath.Join(s.dir, "control.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for cluster, want := range map[string]codes.Code{"nobody": codes.PermissionDenied, "ns/other": codes.DeadlineExceeded} {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&discoveryv3.DeltaDiscoveryRequest{
			Node:    &corev3.Node{Cluster: cluster},
			TypeUrl: order.Clusters,
		}); err != nil {
			t.Fatal(err)
		}
		if r, err := stream.Recv(); status.Code(err) != want {
			t.Errorf("an Envoy of %s receives %v, %v", cluster, r, err)
		}
		cancel()
	}
}

// Each listener serves its hostname with its own certificate. A request for another host on the
// same connection gets 421. A replaced certificate or a new listener does not interrupt responses
// of other listeners.
func TestListenersOverTLS(t *testing.T) {
	s := start(t, 6)
	s.backend("a", 21000)
	objectsOf := func(more string) string {
		return "kind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n" +
			"kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec:\n  gatewayClassName: headgate\n  listeners:\n" +
			"  - {name: one, port: 443, protocol: HTTPS, hostname: one.test, tls: {certificateRefs: [{name: one}]}}\n" +
			"  - {name: two, port: 443, protocol: HTTPS, hostname: '*.two.test', tls: {certificateRefs: [{name: two}]}}\n" + more + to("a")
	}
	certificates := map[objects.Name]plan.Certificate{
		{Namespace: "ns", Name: "one"}: certificate(t, "one.test"), {Namespace: "ns", Name: "two"}: certificate(t, "*.two.test"),
		{Namespace: "ns", Name: "three"}: certificate(t, "three.test"),
	}
	s.put(objectsOf(""), certificates)
	// dial connects with a server name (SNI). It returns the hostname in the certificate, empty if
	// the server sent no certificate.
	dial := func(name string) (*tls.Conn, string) {
		conn, err := tls.Dial("tcp", s.own+":20443",
			&tls.Config{ServerName: name, InsecureSkipVerify: true}) //nolint:gosec // it signs itself
		if err != nil {
			return nil, ""
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn, strings.Join(conn.ConnectionState().PeerCertificates[0].DNSNames, ",") +
			conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	ask := func(conn *tls.Conn, host string) string {
		if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n", host); err != nil {
			return err.Error()
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err.Error()
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != http.StatusOK {
			return response.Status
		}
		return string(body)
	}
	var one *tls.Conn
	await(t, "Envoy serves", func() bool { one, _ = dial("one.test"); return one != nil })
	two, whose := dial("x.two.test")
	if two == nil || !strings.HasPrefix(whose, "*.two.test") {
		t.Fatalf("the second listener presents the certificate of %q", whose)
	}
	if conn, whose := dial("other.test"); conn != nil {
		t.Errorf("for an unknown name, the certificate of %s is presented", whose)
	}
	for _, c := range []struct {
		conn       *tls.Conn
		host, want string
	}{
		{one, "one.test", "a"},
		{one, "one.test:20443", "a"},
		{one, "x.two.test", "421 Misdirected Request"},
		{one, "nobody.test", "404 Not Found"},
		{two, "x.two.test", "a"},
		{two, "one.test", "421 Misdirected Request"},
	} {
		if got := ask(c.conn, c.host); got != c.want {
			t.Errorf("the response for %s is %s, want %s", c.host, got, c.want)
		}
	}

	// The connections survive another certificate and another listener.
	_, before := dial("one.test")
	certificates[objects.Name{Namespace: "ns", Name: "one"}] = certificate(t, "one.test")
	s.put(objectsOf("  - {name: three, port: 443, protocol: HTTPS, hostname: three.test, tls: {certificateRefs: [{name: three}]}}\n"),
		certificates)
	await(t, "the certificate is another", func() bool { conn, now := dial("one.test"); return conn != nil && now != before })
	await(t, "the third listener serves", func() bool { conn, _ := dial("three.test"); return conn != nil })
	<-time.After(1500 * time.Millisecond) // Envoy would have drained by then: --drain-time-s 1
	if got := ask(one, "one.test") + " " + ask(two, "x.two.test"); got != "a a" {
		t.Errorf("over earlier connections: %s", got)
	}
}

// When pods start and stop, Envoy is sent only endpoints, and no request fails. For a Service
// without endpoints Envoy is sent an empty list, since it would wait for a missing one.
func TestPodChangesUpdateOnlyEndpoints(t *testing.T) {
	s := start(t, 7)
	old, open := s.says("old", 21000)
	s.says("new", 21001)
	s.slice("a", 21000)
	s.apply(to("a"))
	s.await("200 old")
	await(t, "the Envoy has taken its routes", func() bool {
		return slices.ContainsFunc(s.heard(), func(a order.Answer) bool { return a.Type == order.Routes })
	})
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for ctx.Err() == nil {
				if got := s.get(); got != "200 old" && got != "200 new" && ctx.Err() == nil {
					t.Errorf("the response is %s", got)
				}
			}
		})
	}
	var told []order.Answer
	for i, ports := range [][]int{{21000, 21001}, {21001}} {
		s.slice("a", ports...)
		s.tell()
		s.tell() // nothing has changed
		await(t, "the Envoy takes endpoints", func() bool { told = append(told, s.heard()...); return len(told) > i })
	}
	await(t, "none of Envoy's threads has a connection to the old one", func() bool { return open.Load() == 0 })
	if err := old.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range 50 {
		if got := s.get(); got != "200 new" {
			t.Errorf("after the old pod ended, the response is %s", got)
		}
	}
	stop()
	clients.Wait()
	told = append(told, s.heard()...)
	if len(told) != 2 {
		t.Errorf("the answers are %v", told)
	}
	for _, a := range told {
		if a.Type != order.Endpoints || !slices.Equal(a.Names, []string{"service/ns/a/80"}) || a.Refused != "" {
			t.Errorf("the answer is %+v", a)
		}
	}

	s.slice("a")
	s.tell()
	await(t, "without endpoints it answers 503", func() bool { return strings.HasPrefix(s.get(), "503 ") })
	s.slice("a", 21001)
	s.tell()
	s.await("200 new")
	s.heard()
	began := time.Now()
	s.apply(to("none"))
	await(t, "of a new Service that never had any it is told that there are none", func() bool {
		return slices.ContainsFunc(s.heard(), func(a order.Answer) bool {
			return a.Type == order.Endpoints && slices.Equal(a.Names, []string{"service/ns/none/80"}) && a.Refused == ""
		})
	})
	await(t, "and answers 503", func() bool { return strings.HasPrefix(s.get(), "503 ") })
	t.Logf("a Service without endpoints is in force after %v", time.Since(began).Round(time.Millisecond))
}
