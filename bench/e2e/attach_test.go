package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/test/times"
)

// throughGateway makes Envoy the data plane of a Gateway, whatever marks the test has.
func throughGateway(c *rig.Config) { c.Gateway = theGateway }

// standalone makes Envoy run envoy.yaml, whatever marks the test has.
func standalone(c *rig.Config) {
	c.EnvoyChanges = append(c.EnvoyChanges, func(any) error { return nil })
}

// theGateway is the NAMESPACE/NAME of the Gateway that the tests use.
const theGateway = "default/gateway"

// aGateway returns the YAML of a Gateway with one listener, on port 8080 of address.
func aGateway(address string) string {
	return fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n"+
		"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: gateway}\nspec:\n"+
		"  gatewayClassName: headgate\n  addresses: [{type: IPAddress, value: %s}]\n  listeners: [{name: http, port: 8080, protocol: HTTP}]\n",
		address)
}

// useGateway switches to the Envoy of a Gateway and attaches all LLMRoutes to the Gateway, both
// those already written and those that the test writes later.
func (s *stack) useGateway(c *rig.Config) {
	s.t.Helper()
	s.gateway, c.Gateway = true, theGateway
	files, err := os.ReadDir(s.objects)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(s.objects, f.Name()))
		if err != nil {
			s.t.Fatal(err)
		}
		s.write(f.Name(), string(text))
	}
	s.write("gateway.yaml", aGateway(strings.TrimSuffix(c.Listen, ":8080")))
}

// cluster returns the name of the pool's cluster in Envoy.
func (s *stack) cluster() string {
	if s.gateway {
		return wire.PoolCluster("default", "pool")
	}
	return wire.EndpointsCluster
}

// attached returns YAML in which each LLMRoute that names no parent is attached to the Gateway.
func attached(t testing.TB, text string) string {
	t.Helper()
	docs := strings.Split(text, "---\n")
	for i, doc := range docs {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil || o["kind"] != "LLMRoute" {
			continue // some tests write invalid YAML
		}
		spec, ok := o["spec"].(map[string]any)
		if !ok || spec["parentRefs"] != nil {
			continue
		}
		spec["parentRefs"] = []any{map[string]any{"name": "gateway"}}
		with, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		docs[i] = string(with)
	}
	return strings.Join(docs, "---\n")
}

// "make run GATEWAY=1" works: the printed commands can be pasted into a shell, an HTTPRoute reaches
// the servers, and an edit of the routes takes effect.
func TestQuickstartOfAGateway(t *testing.T) {
	runs(t)
	q := newQuickstartOf(t, "gateway")
	q.args = append(q.args, "--gateway")
	q.start()
	said := q.until("Ctrl-C stops everything")
	q.pastes(said)
	client := &http.Client{Timeout: 30 * time.Second}
	ask := func(method, path string) (status int, body string) {
		t.Helper()
		r, err := http.NewRequest(method, "http://"+q.network+"1:8080"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/servers/v1/models", 200},
		{"GET", "/servers/health", 200},
		{"POST", "/servers/v1/load_lora_adapter", 404},
		{"GET", "/servers/metrics", 404},
		{"GET", "/health", 200},
		{"GET", "/other", 404},
	} {
		if got, body := ask(c.method, c.path); got != c.want {
			t.Errorf("%s %s: %d %s", c.method, c.path, got, body)
		}
	}
	routes := filepath.Join(q.dir, "routes.yaml")
	text, err := os.ReadFile(routes)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.ReplaceAll(string(text), "assistant", "poet")
	edited = strings.ReplaceAll(edited, "value: /servers", "value: /engines")
	if err := os.WriteFile(routes, []byte(edited), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &stack{t: t}
	s.promised(2*time.Second, "what was written anew is in force", func() bool {
		is, models := ask("GET", "/engines/v1/models")
		was, _ := ask("GET", "/servers/v1/models")
		_, all := ask("GET", "/v1/models")
		return is == 200 && was == 404 && strings.Contains(models, `"poet"`) && strings.Contains(all, `"poet"`) &&
			!strings.Contains(all, `"assistant"`)
	})
	q.interrupt()
	q.nothingLeft()
}

// byPath returns the YAML of an HTTPRoute that sends a path prefix to the pool.
func byPath(path string) string {
	return "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: by-path}\nspec:\n  parentRefs: [{name: gateway}]\n  rules:\n" +
		"  - matches: [{path: {type: PathPrefix, value: " + path + "}}]\n" +
		"    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}]\n" +
		"    backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool}]\n"
}

// rounds is the number of changes of each kind. With more changes, latency is measured more
// precisely.
var rounds = flag.Int("changes", 10,
	"make this many changes of routes, HTTPRoutes and pools under load; with 100 and more, fail where they take too long")

// Routes, HTTPRoutes, pools and backend protocols change under load. Each change soon takes effect
// in Envoy, and no request is lost.
func TestChangesAtAGatewayLoseNoRequest(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	status := func(path, body string) int { return s.must(request{path: path, body: body}).status }
	ask := func(model string) int {
		return status("/v1/completions", `{"model":"`+model+`","prompt":"x","max_tokens":1}`)
	}
	took := make(map[string]times.Times)
	measure := func(what string, holds func() bool) {
		t.Helper()
		began := time.Now()
		s.await(what, holds)
		took[what] = append(took[what], time.Since(began))
	}
	llm := func(name, pool string) string {
		return fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: %s}\nspec: {backendRefs: [{name: %s}]}\n---\n",
			name, pool)
	}
	another := func(name string) string {
		first, _, _ := strings.Cut(engines(strings.TrimSuffix(s.Listen, "1:8080"), 4), "---")
		return strings.Replace(first, "name: pool}", "name: "+name+"}", 1) + "---\n"
	}
	// Two models move from pool to pool. The other models stay.
	s.write("moving.yaml", llm("moving", "pool"))
	s.write("http.yaml", byPath("/p"))
	// The pool's only endpoint speaks two protocols. The pool's configuration says which one to
	// use.
	both := new(http.Protocols)
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	speaks := strings.TrimSuffix(s.Listen, "1:8080") + "61:8000"
	s.engine(t, speaks, both)
	askedBy := func() string {
		proto, _, _ := strings.Cut(s.must(at("speaks", completion("x", 1, false))).body, " ")
		return proto
	}
	s.write("speaks.yaml", listed("speaks", speaks, "")+toPool("speaks", "speaks"))
	s.await("it is there", func() bool {
		return ask("moving") == 200 && status("/p/v1/completions", `{"model":"moving","prompt":"x"}`) == 200 && askedBy() == "HTTP/1.1"
	})
	l := s.pour(16, func(client, n int) request {
		switch {
		case client%4 == 0:
			return request{path: "/v1/completions", body: `{"model":"moving","prompt":"x","max_tokens":5}`}
		case client%4 == 1:
			return completion(adapters[(client+n)%12], 200, true) // long streams, so that some are in flight during each change
		case client%4 == 2 && n%2 == 0:
			return at("speaks", completion("x", 1, false))
		default:
			return completion(adapters[(client+n)%12], 5, n%2 == 0)
		}
	}, isOK)
	for i := range *rounds {
		name := fmt.Sprintf("new-%d", i)
		s.write("new.yaml", llm(name, "pool"))
		measure("a new LLMRoute is served", func() bool { return ask(name) == 200 })
		s.write("new.yaml", "")
		measure("a removed LLMRoute is not", func() bool { return ask(name) == 404 })

		below := func(path string) int { return status(path+"/v1/completions", `{"model":"moving","prompt":"x"}`) }
		s.write("http.yaml", byPath("/p-"+name))
		measure("a changed HTTPRoute is served", func() bool { return below("/p-"+name) == 200 })
		s.write("new.yaml", strings.Replace(byPath("/"+name), "name: by-path}", "name: "+name+"}", 1))
		measure("a new HTTPRoute is served", func() bool { return below("/"+name) == 200 })
		s.write("new.yaml", "")
		measure("a removed HTTPRoute is not", func() bool { return below("/"+name) == 404 })

		s.write("speaks.yaml", listed("speaks", speaks, plain)+toPool("speaks", "speaks"))
		measure("a changed cluster is in force", func() bool { return askedBy() == "HTTP/2.0" })
		s.write("speaks.yaml", listed("speaks", speaks, "")+toPool("speaks", "speaks"))
		measure("a cluster as it was before is", func() bool { return askedBy() == "HTTP/1.1" })

		// The model moves to a new pool, and back when that pool is deleted.
		s.write("moving.yaml", another(name)+llm("moving", name))
		measure("requests go to a new pool", func() bool { return s.sum(s.Metrics, "headgate_picks_total", "pool", "default/"+name) > 0 })
		l.goesOn(s, 2)
		s.write("moving.yaml", llm("moving", "pool"))
		measure("a removed pool is gone", func() bool { return s.sum(s.Metrics, "headgate_objects", "kind", "InferencePool") == 2 })
		l.goesOn(s, 2)
	}
	l.stop()
	for _, what := range slices.Sorted(maps.Keys(took)) {
		t.Logf("%s after: %v", what, took[what])
		took[what].Bound(t, what, 500*time.Millisecond)
	}
	t.Logf("%d requests", l.sent.Load())
	for _, fault := range l.faults {
		t.Error(fault)
	}
}

// backend serves a Service's endpoint. It responds with its name, and can stream until the client
// tells it to stop.
func (s *stack) backend(t *testing.T, address, name string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	is := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("x-gateway-destination-endpoint") != "" {
			t.Errorf("%s is asked with what is for engines", name)
		}
		_, _ = io.WriteString(w, name)
	})}
	go func() { _ = is.Serve(l) }()
	t.Cleanup(func() { _ = is.Close() })
}

// aSecret returns the YAML of a Secret with a certificate for host.
func aSecret(t *testing.T, name, host string) string {
	t.Helper()
	pair, err := listen.Certify(time.Now(), time.Hour, false, host)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	text := func(kind string, der []byte) string {
		return base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s}\ntype: kubernetes.io/tls\ndata: {tls.crt: %s, tls.key: %s}\n",
		name, text("CERTIFICATE", pair.Certificate[0]), text("PRIVATE KEY", key))
}

// A Gateway serves a Service at an HTTPS listener, with objects from a folder. The Service's
// endpoints and the certificate change, and no request is lost.
func TestServiceBehindAGateway(t *testing.T) {
	runs(t)
	s := start(t, throughGateway)
	prefix := strings.TrimSuffix(s.Listen, "1:8080")
	s.backend(t, prefix+"41:9000", "one")
	s.backend(t, prefix+"42:9000", "two")
	endpoints := func(hosts ...string) string {
		return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: shop-1, labels: {kubernetes.io/service-name: shop}}\n" +
			"addressType: IPv4\nports: [{name: web, port: 9000, protocol: TCP}]\nendpoints: [" + strings.Join(hosts, ", ") + "]\n"
	}
	host := func(n string) string { return "{addresses: ['" + prefix + n + "']}" }
	s.write("shop.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: shop}\nspec: {ports: [{name: web, port: 80}]}\n---\n"+
		"apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: shop}\n"+
		"spec: {parentRefs: [{name: gateway}], hostnames: [shop.test], rules: [{backendRefs: [{name: shop, port: 80}]}]}\n")
	s.write("endpoints.yaml", endpoints(host("41")))
	s.write("secret.yaml", aSecret(t, "shop", "shop.test"))
	s.write("gateway.yaml", strings.Replace(aGateway(prefix+"1"), "port: 8080, protocol: HTTP}", "port: 8080, protocol: HTTP}, "+
		"{name: https, port: 8443, protocol: HTTPS, hostname: shop.test, tls: {certificateRefs: [{name: shop}]}}", 1))

	// Each request opens its own connection, so that the test sees each certificate.
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, ServerName: "shop.test"}, //nolint:gosec // the test checks the certificate
	}}
	ask := func(url string) (name, serial string, err error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			return "", "", err
		}
		r.Host = "shop.test"
		response, err := client.Do(r)
		if err != nil {
			return "", "", err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err == nil && response.StatusCode != http.StatusOK {
			err = fmt.Errorf("%d %s", response.StatusCode, text)
		}
		if response.TLS != nil {
			serial = response.TLS.PeerCertificates[0].SerialNumber.String()
		}
		return string(text), serial, err
	}
	secure, plain := "https://"+prefix+"1:8443/", "http://"+prefix+"1:8080/"
	var first string
	s.await("the Service answers over TLS", func() bool {
		name, serial, err := ask(secure)
		first = serial
		return err == nil && name == "one"
	})
	faults, stop, done := make(chan error, 1000), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if _, _, err := ask([]string{secure, plain}[i%2]); err != nil {
				faults <- err
			}
		}
	}()
	s.write("endpoints.yaml", endpoints(host("41"), host("42")))
	s.await("the second server is asked too", func() bool { name, _, err := ask(plain); return err == nil && name == "two" })
	s.write("endpoints.yaml", endpoints(host("42")))
	s.await("the first server is asked no more", func() bool {
		for range 10 {
			if name, _, err := ask(plain); err != nil || name != "two" {
				return false
			}
		}
		return true
	})
	s.write("secret.yaml", aSecret(t, "shop", "shop.test"))
	s.await("the new certificate is served", func() bool { _, serial, err := ask(secure); return err == nil && serial != first })
	s.write("secret.yaml", strings.Replace(aSecret(t, "shop", "shop.test"), "tls.key: ", "tls.key: AAAA", 1)) // the Secret has no valid key
	s.write("endpoints.yaml", endpoints(host("41")))
	s.await("the first server is asked again, over TLS", func() bool { name, _, err := ask(secure); return err == nil && name == "one" })
	close(stop)
	<-done
	close(faults)
	for err := range faults {
		t.Error(err)
	}
	if a := s.must(completion("a01", 2, false)); a.status != http.StatusOK {
		t.Errorf("inference beside it gets %d %s", a.status, a.body)
	}
}

var lasting = flag.Duration("lasting", 10*time.Second,
	"how long streams flow while a Gateway changes; with 10m control is away for a minute of it")

// Streams survive changes of routes, pools, certificates and other listeners. They also survive an
// outage of control, during which no request fails. When control returns, it sends Envoy nothing
// that Envoy already has.
func TestStreamsOutliveChangesAtAGateway(t *testing.T) {
	runs(t)
	s := start(t, throughGateway, func(c *rig.Config) {
		slow := filepath.Join(filepath.Dir(c.Objects), "slow.yaml") // profile with which 4,000 tokens take as long as -lasting
		step := strings.Replace(profile, "decode: {base: 0.002,", fmt.Sprintf("decode: {base: %.4f,", lasting.Seconds()/4000-0.0005), 1)
		if err := os.WriteFile(slow, []byte(step), 0o644); err != nil {
			t.Fatal(err)
		}
		c.EngineFlags = append(c.EngineFlags, "--profile", slow)
	})
	prefix := strings.TrimSuffix(s.Listen, "1:8080")
	with := func(listeners string) string {
		return strings.Replace(aGateway(prefix+"1"), "port: 8080, protocol: HTTP}", "port: 8080, protocol: HTTP}"+listeners, 1)
	}
	const secure = ", {name: https, port: 8443, protocol: HTTPS, hostname: a.test, tls: {certificateRefs: [{name: a}]}}"
	s.write("secret.yaml", aSecret(t, "a", "a.test"))
	s.write("gateway.yaml", with(secure))
	updates := func(of string) float64 { return s.envoyGauge(of + ".update_success") }
	// The three are two listeners of the Gateway and the relay's listener.
	s.await("the other listener is there", func() bool { return s.envoyGauge("listener_manager.total_listeners_active") == 3 })
	const streams, tokens = 16, 4000
	ended := s.streams(streams, tokens)
	s.await("they flow", func() bool { return s.engineSum("vllm:num_requests_running") == streams })

	changed := updates("cluster_manager.cds") + updates("listener_manager.lds")
	for i := range *rounds {
		name := fmt.Sprintf("m%d", i)
		s.write("new.yaml", routes(name)) // a route for an adapter that no engine has
		s.write("secret.yaml", aSecret(t, "a", "a.test"))
		s.write("gateway.yaml", with(secure+fmt.Sprintf(", {name: other, port: %d, protocol: HTTP}", 12000+i)))
		s.await("it is in force", func() bool {
			return s.must(completion(name, 1, false)).status == http.StatusServiceUnavailable &&
				s.accepts(fmt.Sprintf("%s1:%d", prefix, 12000+i))
		})
	}
	s.write("gateway.yaml", with(secure))
	// The three are two listeners of the Gateway and the relay's listener.
	s.await("the last listener is gone", func() bool { return s.envoyGauge("listener_manager.total_listeners_active") == 3 })
	if updates("cluster_manager.cds")+updates("listener_manager.lds") == changed {
		t.Error("Envoy says that it took no change")
	}

	// While control is down, extproc keeps the pools working.
	l := s.pour(8, func(client, n int) request { return completion(adapters[(client+n)%12], 5, n%2 == 0) }, isOK)
	s.Control.Kill()
	before := map[string]float64{}
	for _, of := range []string{"cluster_manager.cds", "listener_manager.lds"} {
		before[of] = updates(of)
	}
	for away := time.Now(); ; {
		s.write("engines.yaml", engines(prefix, 3))
		s.await("an endpoint is gone", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "state", "healthy") == 3 })
		s.write("engines.yaml", engines(prefix, 4))
		s.await("it is back", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "state", "healthy") == 4 })
		l.goesOn(s, 5)
		if time.Since(away) > (*lasting-10*time.Second)/10 {
			break
		}
	}
	if err := s.StartControl(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.write("new.yaml", routes("after"))
	s.write("after.yaml", byPath("/after"))
	s.await("control drives it again", func() bool {
		return s.must(request{path: "/after/v1/completions", body: completion("a01", 1, false).body}).status == http.StatusOK
	})
	for of, n := range before {
		if got := updates(of); got != n {
			t.Errorf("on control's return %s took %v updates", of, got-n)
		}
	}
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	for range streams {
		if err := <-ended; err != nil {
			t.Errorf("a stream: %v", err)
		}
	}
}

// accepts reports whether something accepts connections at address.
func (s *stack) accepts(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	return err == nil
}

// Gateway API objects come from an API server, and the programs have only the rights that the
// manifests grant. Gateways are served once their CRDs are installed, control may read a
// certificate only by name, and an outage of the API server fails no request.
func TestGatewayOfAnAPIServer(t *testing.T) {
	runs(t)
	k := newKubernetes(t)
	s := start(t, standalone, pods(t, 2), placed(t, 4, "a01"), k.called, func(c *rig.Config) {
		c.ControlFlags = append(c.ControlFlags, "--xds-address", "unix:"+filepath.Join(c.Dir, "envoys.sock"))
	})
	ask := func(model string) int { return s.must(completion(model, 1, false)).status }
	if got := ask("a01"); got != http.StatusOK {
		t.Fatalf("without Gateway API's kinds a request gets %d", got)
	}
	// A Gateway's Envoy runs beside the Envoy of envoy.yaml. Both use the same extproc and the same
	// control.
	prefix := strings.TrimSuffix(s.Listen, "1:8080")
	beside := *s
	copied := *s.Rig
	beside.Rig = &copied
	beside.Gateway, beside.Admin, beside.Listen, beside.url = theGateway, prefix+"2:9901", prefix+"2:8080", "http://"+prefix+"2:8080"
	if err := beside.StartEnvoy(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { beside.Envoy.Stop(5 * time.Second) })
	k.objects.GatewayAPI()
	k.apply(aGateway(prefix + "2"))
	k.apply(attached(t, routes("a01")))
	at := func(model string) int {
		a, err := beside.ask(t.Context(), completion(model, 1, false))
		if err != nil {
			return 0
		}
		return a.status
	}
	s.await("the Gateway is served", func() bool { return at("a01") == http.StatusOK })
	s.await("the listener says that an Envoy has all", func() bool {
		o, err := k.objects.Resource(schema.GroupVersionResource{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "gateways"}).
			Namespace("default").Get(t.Context(), "gateway", metav1.GetOptions{})
		listeners, _, _ := unstructured.NestedSlice(o.Object, "status", "listeners")
		if err != nil || len(listeners) != 1 {
			return false
		}
		listener, _ := listeners[0].(map[string]any)
		conditions, _, _ := unstructured.NestedSlice(listener, "conditions")
		return slices.ContainsFunc(conditions, func(c any) bool {
			is, _ := c.(map[string]any)
			return is["type"] == "Programmed" && is["status"] == "True"
		})
	})
	if got := at("b00"); got != http.StatusNotFound {
		t.Errorf("a model that does not attach gets %d there", got)
	}
	l := beside.pour(4, func(_, n int) request { return completion("a01", 5, n%2 == 0) }, isOK)
	k.apply(attached(t, routes("late")))
	s.promised(2*time.Second, "a new route is served", func() bool { return at("late") == http.StatusOK })

	// control reads a certificate by name once a Role allows that.
	k.apply(aSecret(t, "own", "own.test"))
	k.apply(strings.Replace(aGateway(prefix+"2"), "port: 8080, protocol: HTTP}", "port: 8080, protocol: HTTP}, "+
		"{name: https, port: 8443, protocol: HTTPS, hostname: own.test, tls: {certificateRefs: [{name: own}]}}", 1))
	s.await("control says what is missing", func() bool { return strings.Contains(s.logOf("control"), "control may not read it") })
	if beside.accepts(prefix + "2:8443") {
		t.Error("a listener without a certificate is served")
	}
	k.apply("apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: certificates}\n" +
		"rules: [{apiGroups: [''], resources: [secrets], resourceNames: [own], verbs: [get]}]\n---\n" +
		"apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: certificates}\n" +
		"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: certificates}\n" +
		"subjects: [{kind: ServiceAccount, name: headgate-control, namespace: " + system + "}]\n")
	s.await("the listener is served", func() bool { return beside.accepts(prefix + "2:8443") })

	k.Outage()
	s.await("extproc knows", func() bool { return s.sum(s.Metrics, "headgate_objects_connected") == 0 })
	l.goesOn(s, 20)
	if err := k.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.apply(attached(t, routes("after")))
	s.await("what was made since is served", func() bool { return at("after") == http.StatusOK })
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
}
