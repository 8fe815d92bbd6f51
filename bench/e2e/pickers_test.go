package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/process"
)

// picker starts an endpoint picker process for a pool: an extproc that Envoy calls as other
// gateways call their picker.
func (s *stack) picker(pool string) *process.Process {
	s.t.Helper()
	starter := process.NewStarter()
	host := s.pickerHost()
	p, err := starter.Start("picker-"+pool, s.Dir,
		exec.Command(programs(s.t).Headgate, "extproc", "--objects", s.objects, "--pool-name", pool, "--grpc-host", host, "--grpc-health-port", "-1",
			"--metrics-host", host, "--endpoints-per-request", "3", "--conformance-headers"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		p.Stop(5 * time.Second)
		close(starter)
	})
	if err := p.AwaitOK(s.t.Context(), "http://"+host+":9090/readyz"); err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *stack) pickerHost() string { return strings.TrimSuffix(s.Listen, "1:8080") + "51" }

// picked returns the YAML of a pool of the engines, of the Service of the pool's own picker, and of
// an HTTPRoute to the pool for the host POOL.test. more adds fields to the pool's reference to the
// Service, port adds fields to the Service's port, and address is the Service's address.
func picked(pool, more, port, address string) string {
	return aPool(pool, "app: llama", "{number: 8000}", ", endpointPickerRef: {name: "+pool+"-epp, port: {number: 9002}"+more+"}") +
		pickerService(pool, port, address) + toPool(pool, pool)
}

// pickerService returns the YAML of the Service of a pool's picker. more adds fields to the
// Service's port.
func pickerService(pool, more, address string) string {
	host, port, _ := strings.Cut(address, ":")
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %[1]s-epp}\nspec: {selector: {app: epp}, ports: [{name: grpc, port: 9002%[2]s}]}\n---\n"+
		"apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %[1]s-epp-1, labels: {kubernetes.io/service-name: %[1]s-epp}}\naddressType: IPv4\n"+
		"ports: [{name: grpc, port: %[4]s, protocol: TCP}]\nendpoints: [{addresses: ['%[3]s']}]\n---\n", pool, more, host, port)
}

// toPool returns the YAML of an HTTPRoute that sends requests for the host NAME.test to a pool.
func toPool(name, pool string) string {
	return fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: %[1]s}\nspec:\n  parentRefs: [{name: gateway}]\n  hostnames: [%[1]s.test]\n"+
		"  rules: [{backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: %[2]s}]}]\n", name, pool)
}

// plain is YAML that makes Envoy use HTTP/2 without TLS at a Service's port.
const plain = ", appProtocol: kubernetes.io/h2c"

// at returns a request with the host NAME.test.
func at(name string, r request) request {
	header := map[string]string{"Host": name + ".test"}
	maps.Copy(header, r.header)
	r.header = header
	return r
}

// awaitRoute waits until an HTTPRoute sends requests for the host NAME.test to a pool. Its requests
// use the engines' own model name, which LLMRoutes do not accept.
func (s *stack) awaitRoute(name string) {
	s.t.Helper()
	s.await("requests to "+name+".test reach the pool", func() bool {
		return s.must(at(name, completion(baseName, 1, false))).status == http.StatusOK
	})
}

// overTLS listens at address with a self-signed certificate and forwards the decrypted bytes.
func overTLS(t *testing.T, address, to string) {
	t.Helper()
	certificate, err := listen.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", address, &tls.Config{
		Certificates: []tls.Certificate{*certificate}, NextProtos: []string{"h2"},
		MinVersion: tls.VersionTLS12,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				on, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer on.Close()
				go func() { _, _ = io.Copy(on, from) }()
				_, _ = io.Copy(from, on)
			}()
		}
	}()
}

// If a pool has its own picker, that picker decides, not the extproc beside Envoy. Envoy calls the
// picker over TLS and accepts its self-signed certificate.
func TestPoolHasItsOwnPicker(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	prefix := strings.TrimSuffix(s.Listen, "1:8080")
	s.picker("theirs")
	overTLS(t, prefix+"52:9443", s.pickerHost()+":9002")
	s.write("theirs.yaml", picked("theirs", "", "", prefix+"52:9443"))
	s.awaitRoute("theirs")
	for n := 1; n <= 4; n++ {
		q := at("theirs", completion(baseName, 2, n%2 == 0))
		q.header["Test-Epp-Endpoint-Selection"] = s.endpoint(n)
		a := s.must(q)
		if a.status != http.StatusOK || a.served != s.endpoint(n) || a.header.Get("x-conformance-test-served-endpoint") != s.endpoint(n) {
			t.Errorf("%d from %s, said to be %s, want %s: %s", a.status, a.served, a.header.Get("x-conformance-test-served-endpoint"),
				s.endpoint(n), a.body)
		}
	}
	large := fmt.Sprintf(`{"model":%q,"prompt":"x","user":%q,"max_tokens":1}`, baseName, strings.Repeat("x", 5<<20))
	if a := s.must(at("theirs", request{body: large})); a.status != http.StatusOK {
		t.Errorf("a large request gets %d %s", a.status, a.body)
	}
	if n := s.sum(s.Metrics, "headgate_picks_total", "pool", "default/theirs"); n != 0 {
		t.Errorf("the extproc beside Envoy picked %v times", n)
	}
}

// When a picker is killed, no stream is cut. A pool that fails open keeps serving, and one that
// fails closed answers 503. When the picker is back, it decides again.
func TestPickerDiesAndNoStreamDoes(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	picker := s.picker("closed")
	address := s.pickerHost() + ":9002"
	s.write("closed.yaml", picked("closed", "", plain, address))
	s.write("open.yaml", picked("open", ", failureMode: FailOpen", plain, address))
	s.awaitRoute("closed")
	s.awaitRoute("open")
	const streams = 16
	ends := s.streamsOf(streams, func(i int) request { return at([]string{"closed", "open"}[i%2], completion(baseName, 2000, true)) })
	large := strings.Repeat("x", 600_000)
	ask := func(name string, i int) answer {
		switch i % 5 {
		case 3:
			return s.must(at(name, request{body: fmt.Sprintf(`{"model":%q,"prompt":"x","user":%q,"max_tokens":1}`, baseName, large)}))
		case 4:
			return s.must(at(name, request{method: "GET", path: "/v1/models"}))
		}
		return s.must(at(name, completion(baseName, 1, i%2 == 0)))
	}
	picker.Kill()
	first := 0
	s.promised(time.Second, "the pool that fails open is served on", func() bool {
		first++
		return ask("open", 0).status == http.StatusOK
	})
	t.Logf("request %d after the kill was the first to be served", first)
	for i := range 40 {
		if a := ask("open", i); a.status != http.StatusOK {
			t.Errorf("request %d of the pool that fails open gets %d %s", i, a.status, a.body)
		}
		a := ask("closed", i)
		refused(t, fmt.Sprintf("request %d of the pool that does not", i), a, http.StatusServiceUnavailable, "no_endpoint")
	}
	for range streams {
		if err := <-ends; err != nil {
			t.Errorf("a stream did not survive: %v", err)
		}
	}
	s.picker("closed")
	s.promised(5*time.Second, "the picker is asked again", func() bool {
		return ask("closed", 0).status == http.StatusOK && ask("open", 0).header.Get("x-conformance-test-served-endpoint") != ""
	})
}

// A pool that fails open has unready pods. Envoy chooses an unready pod only if no pod is ready. It
// does not reject an unready pod that a picker picked, and cuts no stream there.
func TestPoolFailsOpenToPodsThatAreReady(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	picker := s.picker("open")
	s.write("open.yaml", picked("open", ", failureMode: FailOpen", plain, s.pickerHost()+":9002"))
	s.awaitRoute("open")
	theirs := func(n int, r request) request {
		q := at("open", r)
		q.header["Test-Epp-Endpoint-Selection"] = s.endpoint(n)
		return q
	}
	ends := s.streamsOf(12, func(i int) request { return theirs(1+i%4, completion(baseName, 2000, true)) })
	const silent, unready = `{type: Ready, status: "False"}, {type: ContainersReady, status: "True"}`,
		`{type: Ready, status: "False"}, {type: ContainersReady, status: "False"}`
	become := func(conditions ...string) {
		text := strings.Split(engines(strings.TrimSuffix(s.Listen, "1:8080"), len(conditions)), "---\n")
		for i, c := range conditions {
			text[1+i] = strings.Replace(text[1+i], "status: {", "status: {conditions: ["+c+"], ", 1)
		}
		s.write("engines.yaml", strings.Join(text, "---\n"))
	}
	become(silent, unready, unready, `{type: Ready, status: "True"}`)
	s.await("the picker has no ready pod but one", func() bool {
		a := s.must(theirs(2, completion(baseName, 1, false)))
		return a.status != http.StatusOK || a.served != s.endpoint(2)
	})
	if a := s.must(theirs(1, completion(baseName, 1, false))); a.status != http.StatusOK || a.served != s.endpoint(1) {
		t.Errorf("a pod of a silent node that is picked is asked: %d by %s, want %s: %s", a.status, a.served, s.endpoint(1), a.body)
	}
	picker.Kill()
	s.await("the pool is served on", func() bool { return s.must(at("open", completion(baseName, 1, false))).status == http.StatusOK })
	for i := range 40 {
		if a := s.must(at("open", completion(baseName, 1, false))); a.status != http.StatusOK || a.served != s.endpoint(4) {
			t.Errorf("request %d gets %d from %s, want it from %s: %s", i, a.status, a.served, s.endpoint(4), a.body)
		}
	}
	become(unready, unready, unready, unready)
	s.await("with no ready pod others serve, too", func() bool {
		a := s.must(at("open", completion(baseName, 1, false)))
		if a.status != http.StatusOK {
			t.Errorf("it gets %d %s", a.status, a.body)
		}
		return a.served != s.endpoint(4)
	})
	for range cap(ends) {
		if err := <-ends; err != nil {
			t.Errorf("a stream did not survive: %v", err)
		}
	}
}

// The extproc beside Envoy is killed. A pool that names this extproc as its picker and fails open
// continues to serve inference, and nothing else, for both kinds of route. A pool that fails closed
// answers 503.
func TestPoolFailsOpenWithoutExtproc(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	prefix := strings.TrimSuffix(s.Listen, "1:8080")
	const ours = "apiVersion: v1\nkind: Service\nmetadata: {name: ours}\nspec: {selector: {app.kubernetes.io/name: headgate}, ports: [{port: 9002}]}\n---\n"
	pool := func(name, mode string) string {
		first, rest, _ := strings.Cut(engines(prefix, 4), "---")
		first = strings.Replace(first, "name: pool}", "name: "+name+"}", 1)
		first = strings.Replace(first, "targetPorts", "endpointPickerRef: {name: ours, port: {number: 9002}, failureMode: "+mode+
			"}, targetPorts", 1)
		if name != "pool" {
			return first
		}
		return first + "---" + rest
	}
	s.write("ours.yaml", ours+pool("closed", "FailClose")+"---\n"+toPool("closed", "closed")+"---\n"+toPool("open", "pool")+"---\n"+
		strings.Replace(byPath("/servers"), "{name: gateway}]", "{name: gateway}]\n  hostnames: [open.test]", 1))
	s.write("engines.yaml", pool("pool", "FailOpen"))
	s.awaitRoute("closed")
	rewritten := at("open", request{path: "/servers/v1/completions?x=/y", body: completion("a01", 1, false).body})
	s.await("the routes are in force", func() bool { return s.must(rewritten).status == http.StatusOK })
	ends := s.streamsOf(16, func(i int) request { return at([]string{"closed", "open"}[i%2], completion("a01", 2000, true)) })
	s.Extproc.Kill()
	for range 5 {
		for _, q := range []struct {
			what string
			r    request
			code string // of the error; a request without one is served
		}{
			{"inference by an LLMRoute", completion("a01", 1, false), ""},
			{"inference by an HTTPRoute", at("open", completion("a01", 1, true)), ""},
			{"inference by an HTTPRoute that rewrites paths", rewritten, ""},
			{"inference of a pool that fails closed", at("closed", completion("a01", 1, false)), "picker_unavailable"},
			{"a list by an LLMRoute", request{method: "GET", path: "/v1/models"}, "picker_unavailable"},
			{"a list by an HTTPRoute", at("open", request{method: "GET", path: "/v1/models"}), "no_endpoint"},
			{"a closed path", at("open", request{path: "/v1/load_lora_adapter", body: `{"lora_name":"stolen","lora_path":"sim:"}`}), "no_endpoint"},
			{"a closed path that is rewritten", at("open",
				request{path: "/servers/v1/load_lora_adapter", body: `{"lora_name":"stolen","lora_path":"sim:"}`}), "no_endpoint"},
			{"a path that only looks rewritten", at("open",
				request{path: "/servers/servers/v1/completions", body: completion("a01", 1, false).body}), "no_endpoint"},
			{"metrics", at("open", request{method: "GET", path: "/metrics"}), "no_endpoint"},
			{"another method", at("open", request{method: "PUT", body: completion("a01", 1, false).body}), "no_endpoint"},
			{"a header that names an endpoint", at("closed",
				request{
					body:   completion("a01", 1, false).body,
					header: map[string]string{"X-Gateway-Destination-Endpoint": s.endpoint(1)},
				}), "picker_unavailable"},
			{"a header that names a pool", request{
				method: "GET", path: "/v1/models",
				header: map[string]string{"X-Gateway-Pool-Cluster": s.cluster()},
			}, "picker_unavailable"},
		} {
			a := s.must(q.r)
			if q.code != "" {
				refused(t, q.what, a, http.StatusServiceUnavailable, q.code)
			} else if a.status != http.StatusOK {
				t.Errorf("%s gets %d %s", q.what, a.status, a.body)
			}
		}
	}
	for range cap(ends) {
		if err := <-ends; err != nil {
			t.Errorf("a stream did not survive: %v", err)
		}
	}
	// Without extproc nothing marks unreachable endpoints, so Envoy retries a request at another
	// endpoint.
	for n := 1; n <= 2; n++ {
		s.Engines[s.endpoint(n)].Kill()
	}
	for i := range 100 {
		q := completion("a01", 1, false)
		if i%2 == 0 {
			q = at("open", q)
		}
		if a := s.must(q); a.status != http.StatusOK {
			t.Errorf("with two of four engines request %d gets %d %s", i, a.status, a.body)
		}
	}
	if err := s.StartExtproc(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.await("extproc decides again", func() bool {
		return s.must(request{method: "GET", path: "/v1/models"}).status == http.StatusOK &&
			s.must(at("closed", completion("a01", 1, false))).status == http.StatusOK
	})
	refused(t, "a closed path", s.must(at("open", request{path: "/v1/load_lora_adapter", body: `{"lora_name":"stolen"}`})), 404,
		"unknown_url")
}

// engine starts a server of an unknown engine kind. Its responses contain the protocol with which
// it was called.
func (s *stack) engine(t *testing.T, address string, speaks *http.Protocols) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	is := &http.Server{
		ReadHeaderTimeout: time.Minute, Protocols: speaks,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("x-served-endpoint", address)
			if r.URL.Path == "/metrics" || r.URL.Path == "/v1/models" {
				http.NotFound(w, r)
				return
			}
			body, err := io.ReadAll(r.Body)
			_, _ = fmt.Fprintf(w, "%s %d bytes %v", r.Proto, len(body), err)
		}),
	}
	go func() { _ = is.Serve(l) }()
	t.Cleanup(func() { _ = is.Close() })
}

// listed returns the YAML of a pool of one address, with more fields of the spec.
func listed(pool, address, more string) string {
	return fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: %[1]s, labels: {app: %[1]s}}\nspec: {addresses: ['%[2]s']}\n---\n"+
		"%[3]s", pool, address, aPool(pool, "app: "+pool, "{number: 8000}", more))
}

// The configuration of a pool says which protocol its endpoints speak.
func TestPoolProtocol(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	prefix := strings.TrimSuffix(s.Listen, "1:8080")
	http1, http2 := new(http.Protocols), new(http.Protocols)
	http1.SetHTTP1(true)
	http2.SetUnencryptedHTTP2(true)
	var objects []string
	for i, c := range []struct {
		pool, more string
		speaks     *http.Protocols
	}{{"unsaid", "", http1}, {"http", ", appProtocol: http", http1}, {"h2c", ", appProtocol: kubernetes.io/h2c", http2}} {
		address := fmt.Sprintf("%s6%d:8000", prefix, i)
		s.engine(t, address, c.speaks)
		objects = append(objects, listed(c.pool, address, c.more)+toPool(c.pool, c.pool))
	}
	s.write("pools.yaml", strings.Join(objects, "---\n"))
	large := fmt.Sprintf(`{"model":"x","prompt":%q}`, strings.Repeat("x", 3<<20))
	for pool, proto := range map[string]string{"unsaid": "HTTP/1.1", "http": "HTTP/1.1", "h2c": "HTTP/2.0"} {
		var a answer
		s.await("the pool "+pool+" is served", func() bool {
			a = s.must(at(pool, completion("x", 1, false)))
			return a.status == http.StatusOK
		})
		if a.body != proto+" 60 bytes <nil>" {
			t.Errorf("the pool %s is asked by %s", pool, a.body)
		}
		if a := s.must(at(pool, request{body: large})); a.body != fmt.Sprintf("%s %d bytes <nil>", proto, len(large)) {
			t.Errorf("the pool %s gets of a large body %d %s", pool, a.status, a.body)
		}
	}
}

// Envoy does not ping a picker while requests wait for their responses. gRPC servers close a
// connection with too many pings, and every request without a response would then fail.
func TestSlowResponseSurvivesAQuietPickerStream(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	s.picker("closed")
	s.write("closed.yaml", picked("closed", "", plain, s.pickerHost()+":9002"))
	s.awaitRoute("closed")
	began := time.Now()
	a := s.must(at("closed", completion(baseName, 14000, false)))
	if took := time.Since(began); a.status != http.StatusOK || took < 25*time.Second {
		t.Errorf("after %v it gets %d %.200s", took, a.status, a.body)
	}
}

// Envoy also uses a picker without gRPC's health service: any response to a health check means
// healthy.
func TestPickerNeedsNoHealthService(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	address := s.pickerHost() + ":9002"
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var checked, asked atomic.Int32
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); method == extprocv3.ExternalProcessor_Process_FullMethodName {
			asked.Add(1)
		} else {
			checked.Add(1)
		}
		return status.Error(codes.Unimplemented, "unknown service")
	}))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	s.write("closed.yaml", picked("closed", "", plain, address))
	s.await("it is looked at", func() bool { return checked.Load() >= 3 })
	before := asked.Load()
	s.await("it is asked", func() bool {
		refused(t, "a request", s.must(at("closed", completion(baseName, 1, false))), http.StatusServiceUnavailable, "no_endpoint")
		return asked.Load() > before
	})
}

// A picker that accepts connections and sends nothing is soon detected. After that, requests do not
// wait for it: a pool that fails open keeps serving, and one that fails closed answers 503.
// Requests that the picker already had wait, and are served when the picker continues.
func TestPickerHangs(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	picker := s.picker("closed")
	address := s.pickerHost() + ":9002"
	s.write("closed.yaml", picked("closed", "", plain, address))
	s.write("open.yaml", picked("open", ", failureMode: FailOpen", plain, address))
	s.awaitRoute("closed")
	s.awaitRoute("open")
	picker.Signal(syscall.SIGSTOP)
	waited := make(chan error, 1)
	go func() {
		a, err := s.ask(t.Context(), at("closed", completion(baseName, 1, false)))
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("it gets %d %s", a.status, a.body)
		}
		waited <- err
	}()
	quick := func(name string) (answer, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return s.ask(ctx, at(name, completion(baseName, 1, false)))
	}
	s.promised(5*time.Second, "the pool that fails open is served on", func() bool {
		a, err := quick("open")
		return err == nil && a.status == http.StatusOK
	})
	began := time.Now()
	for i := range 20 {
		if a, err := quick("open"); err != nil || a.status != http.StatusOK {
			t.Errorf("request %d of the pool that fails open gets %d %s: %v", i, a.status, a.body, err)
		}
		refused(t, "a request", s.must(at("closed", completion(baseName, 1, false))), http.StatusServiceUnavailable, "no_endpoint")
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("40 requests were answered after %v", took)
	}
	if len(waited) > 0 {
		t.Errorf("the request that the picker had does not wait: %v", <-waited)
	}
	picker.Signal(syscall.SIGCONT)
	if err := <-waited; err != nil {
		t.Errorf("the request that the picker had: %v", err)
	}
	s.await("it is asked again", func() bool { return s.must(at("closed", completion(baseName, 1, false))).status == http.StatusOK })
}
