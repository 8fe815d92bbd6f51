package envoy_test

import (
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/test/network"
)

// doing contains the Gateway and the routes of this test.
const doing = `kind: Gateway
metadata: {namespace: ns, name: g}
spec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP}, {name: alt, port: 8080, protocol: HTTP}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: redirect}
spec:
  parentRefs: [{name: g}]
  hostnames: [redirect.test]
  rules:
  - {matches: [{path: {value: /foo}}], filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /xyz/}}}]}
  - {matches: [{path: {value: /gone}}], filters: [{type: RequestRedirect, requestRedirect: {statusCode: 301, path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}]}
  - {matches: [{path: {value: /a+b}}], filters: [{type: RequestRedirect, requestRedirect: {statusCode: 303, path: {type: ReplacePrefixMatch, replacePrefixMatch: ''}}}]}
  - {matches: [{path: {value: /whole}}], filters: [{type: RequestRedirect, requestRedirect: {statusCode: 307, hostname: other.test, path: {type: ReplaceFullPath, replaceFullPath: /one}}}]}
  - {matches: [{path: {value: /scheme}}], filters: [{type: RequestRedirect, requestRedirect: {statusCode: 308, scheme: https}}]}
  - {matches: [{path: {value: /port}}], filters: [{type: RequestRedirect, requestRedirect: {port: 8443}}]}
  - {matches: [{path: {value: /}}], filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /under}}}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: rewrite}
spec:
  parentRefs: [{name: g}]
  hostnames: [rewrite.test]
  rules:
  - {matches: [{path: {value: /foo}}], filters: [{type: URLRewrite, urlRewrite: {hostname: inner.test, path: {type: ReplacePrefixMatch, replacePrefixMatch: /xyz/}}}], backendRefs: [{name: a, port: 80}]}
  - {matches: [{path: {value: /a+b}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}], backendRefs: [{name: a, port: 80}]}
  - {matches: [{path: {value: /whole}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplaceFullPath, replaceFullPath: '/one\1'}}}], backendRefs: [{name: a, port: 80}]}
  - {matches: [{path: {value: /}}], filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /under}}}], backendRefs: [{name: a, port: 80}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: headers}
spec:
  parentRefs: [{name: g}]
  hostnames: [headers.test]
  rules:
  - filters:
    - {type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-set, value: 100%}, {name: x-empty, value: ''}], add: [{name: x-add, value: '%REQ(:path)%'}], remove: [x-remove]}}
    - {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-answer, value: set}], add: [{name: x-more, value: '2'}], remove: [x-inner]}}
    backendRefs: [{name: a, port: 80, filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: x-backend, value: a}]}}, {type: ResponseHeaderModifier, responseHeaderModifier: {set: [{name: x-from, value: a}]}}]}]
---
kind: HTTPRoute
metadata: {namespace: ns, name: times}
spec:
  parentRefs: [{name: g}]
  hostnames: [times.test]
  rules:
  - {matches: [{path: {value: /both}}], timeouts: {request: 10s, backendRequest: 50ms}, backendRefs: [{name: a, port: 80}]}
  - {matches: [{path: {value: /request}}], timeouts: {request: 50ms}, backendRefs: [{name: a, port: 80}]}
  - {backendRefs: [{name: a, port: 80}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: shares}
spec:
  parentRefs: [{name: g}]
  hostnames: [shares.test]
  rules:
  - {matches: [{path: {value: /mirror}}], filters: [{type: RequestMirror, requestMirror: {backendRef: {name: b, port: 80}}}], backendRefs: [{name: a, port: 80}]}
  - {matches: [{path: {value: /missing}}], backendRefs: [{name: missing, port: 80, weight: 1000000}, {name: a, port: 80}]}
  - {matches: [{path: {value: /heavy}}], backendRefs: [{name: b, port: 80}, {name: a, port: 80, weight: 1000000}]}
  - {matches: [{path: {value: /none}}], backendRefs: [{name: missing, port: 80}]}
---
kind: HTTPRoute
metadata: {namespace: ns, name: cors}
spec:
  parentRefs: [{name: g}]
  hostnames: [cors.test]
  rules:
  - matches: [{path: {value: /some}}]
    filters: [{type: CORS, cors: {allowOrigins: ['https://a.test', 'https://*.b.test'], allowMethods: [GET, PUT], allowHeaders: [x-one, x-two], exposeHeaders: [x-three, x-four], allowCredentials: true, maxAge: 60}}]
    backendRefs: [{name: a, port: 80}]
  - {matches: [{path: {value: /any}}], filters: [{type: CORS, cors: {allowOrigins: ['*'], allowMethods: ['*'], allowHeaders: ['*'], allowCredentials: true}}], backendRefs: [{name: a, port: 80}]}
  - {matches: [{path: {value: /open}}], filters: [{type: CORS, cors: {allowOrigins: ['*'], allowMethods: ['*'], allowCredentials: false}}], backendRefs: [{name: a, port: 80}]}
---
kind: GRPCRoute
metadata: {namespace: ns, name: grpc}
spec:
  parentRefs: [{name: g}]
  hostnames: [grpc.test]
  rules:
  - {matches: [{method: {service: org.Share}}], backendRefs: [{name: missing, port: 80, weight: 1000000}, {name: a, port: 80}]}
  - {backendRefs: [{name: missing, port: 80}]}`

// A real Envoy handles requests as the rules say. The test checks what clients and backends
// receive.
func TestEnvoyHandlesRequestsByRules(t *testing.T) {
	binary, err := find.Envoy(t.Context(), "../../../.cache", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	own := fmt.Sprintf("127.%d.%d.3", 200+os.Getpid()%50, 1)
	n := network.Read(t, network.Standard(doing))
	o := options(t)
	o.Bind = func(port int32) (string, uint32) { return own, 20000 + uint32(port) }
	r, err := template(t).Of(plan.Of(attach.Of(n), n, plan.Known{Certificates: certificates(n)}).Gateways[0], o)
	if err != nil {
		t.Fatal(err)
	}
	mirrored := make(chan string, 1)
	for _, c := range r.Clusters {
		name := c.GetName()
		at := backend(t, own, func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/mirror") && name == "service/ns/b/80" {
				mirrored <- r.Host
			}
			answer(w, r, name)
		})
		c.ClusterDiscoveryType, c.EdsClusterConfig = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}, nil
		c.LoadAssignment = &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address: at.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port())},
				}}},
			}}}},
		}}}
	}
	stop := serve(t, binary, string(inline(t, r)), own)
	defer stop()

	preflight := func(origin string) map[string]string {
		return map[string]string{"origin": origin, "access-control-request-method": "PUT", "access-control-request-headers": "x-one"}
	}
	for _, test := range []struct {
		port                int
		method, host, path  string
		headers             map[string]string
		status              int
		want                map[string]string // response headers; empty: must be absent
		backendSees, absent []string          // lines that the backend's request contains, or lacks
	}{
		// From the table of HTTPPathModifier, and its text about query strings.
		{host: "redirect.test", path: "/foo/bar?q=1", status: 302, want: location("http://redirect.test/xyz/bar?q=1")},
		{host: "redirect.test", path: "/foo", status: 302, want: location("http://redirect.test/xyz")},
		{host: "redirect.test", path: "/foo/", status: 302, want: location("http://redirect.test/xyz/")},
		{host: "redirect.test", path: "/gone/bar?q=1", status: 301, want: location("http://redirect.test/bar?q=1")},
		{host: "redirect.test", path: "/gone/", status: 301, want: location("http://redirect.test/")},
		{host: "redirect.test", path: "/gone", status: 301, want: location("http://redirect.test/")},
		{host: "redirect.test", path: "/a+b/c", status: 303, want: location("http://redirect.test/c")},
		{host: "redirect.test", path: "/whole/x?q=1", status: 307, want: location("http://other.test/one?q=1")},
		{host: "redirect.test", path: "/else", status: 302, want: location("http://redirect.test/under/else")},
		// From HTTPRequestRedirectFilter.port.
		{host: "redirect.test", path: "/scheme", status: 308, want: location("https://redirect.test/scheme")},
		{host: "redirect.test", path: "/port", status: 302, want: location("http://redirect.test:8443/port")},
		{port: 8080, host: "redirect.test:8080", path: "/scheme", status: 308, want: location("https://redirect.test/scheme")},
		{port: 8080, host: "redirect.test:8080", path: "/whole", status: 307, want: location("http://other.test:8080/one")},
		{port: 8080, host: "redirect.test:8080", path: "/foo", status: 302, want: location("http://redirect.test:8080/xyz")},
		{port: 8080, host: "redirect.test:8080", path: "/port", status: 302, want: location("http://redirect.test:8443/port")},

		{host: "rewrite.test", path: "/foo/bar?q=1", status: 200, backendSees: []string{"GET /xyz/bar?q=1", "host=inner.test"}},
		{host: "rewrite.test", path: "/foo", status: 200, backendSees: []string{"GET /xyz"}},
		{host: "rewrite.test", path: "/a+b/c?q=1", status: 200, backendSees: []string{"GET /c?q=1", "host=rewrite.test"}},
		{host: "rewrite.test", path: "/a+b", status: 200, backendSees: []string{"GET /"}},
		{host: "rewrite.test", path: "/whole/x?q=1", status: 200, backendSees: []string{`GET /one\1?q=1`}},
		{host: "rewrite.test", path: "/else", status: 200, backendSees: []string{"GET /under/else"}},

		{
			host: "headers.test", path: "/x", status: 200,
			headers: map[string]string{
				"x-set": "client", "x-add": "client", "x-remove": "client", "with_underscore": "1",
				"x-gateway-anything": "1", "x-llm-d-anything": "1", "epp-profile": "1", "x-slo-ttft-ms": "1",
			},
			want:        map[string]string{"x-answer": "set", "x-more": "1,2", "x-inner": "", "x-from": "a"},
			backendSees: []string{"x-set=100%", "x-empty=", "x-add=client,%REQ(:path)%", "x-backend=a", "with_underscore=1"},
			absent:      []string{"x-remove=", "x-gateway-", "x-llm-d-", "epp-profile=", "x-slo-"},
		},

		{host: "times.test", path: "/both?wait=1s", status: 504},
		{host: "times.test", path: "/request?wait=1s", status: 504},
		{host: "times.test", path: "/none?wait=100ms", status: 200},

		{host: "shares.test", path: "/mirror", status: 200, backendSees: []string{"of=service/ns/a/80"}},
		{host: "shares.test", path: "/missing", status: 500},
		{host: "shares.test", path: "/heavy", status: 200, backendSees: []string{"of=service/ns/a/80"}},
		{host: "shares.test", path: "/none", status: 500},

		{method: "OPTIONS", host: "cors.test", path: "/some", headers: preflight("https://a.test"), status: 200, want: map[string]string{
			"access-control-allow-origin": "https://a.test", "access-control-allow-methods": "GET,PUT",
			"access-control-allow-headers":     "x-one,x-two",
			"access-control-allow-credentials": "true", "access-control-max-age": "60",
		}},
		{
			method: "OPTIONS", host: "cors.test", path: "/some", headers: preflight("https://x.y.b.test"), status: 200,
			want: allows("https://x.y.b.test"),
		},
		{
			method: "OPTIONS", host: "cors.test", path: "/some", headers: preflight("https://xb.test"), status: 200, want: allows(""),
			absent: []string{"OPTIONS"},
		},
		{
			method: "OPTIONS", host: "cors.test", path: "/some", headers: preflight("https://xbbtest"), status: 200, want: allows(""),
			absent: []string{"OPTIONS"},
		},
		{host: "cors.test", path: "/some", headers: map[string]string{"origin": "https://a.test"}, status: 200, want: map[string]string{
			"access-control-allow-origin": "https://a.test", "access-control-allow-credentials": "true",
			"access-control-expose-headers": "x-three,x-four",
		}},
		{host: "cors.test", path: "/some", headers: map[string]string{"origin": "https://other.test"}, status: 200, want: allows("")},
		// A response with credentials must not contain *, which browsers would take literally.
		{method: "OPTIONS", host: "cors.test", path: "/any", headers: preflight("https://a.test"), status: 200, want: map[string]string{
			"access-control-allow-origin": "https://a.test", "access-control-allow-methods": "PUT", "access-control-allow-headers": "x-one",
			"access-control-max-age": "5",
		}},
		{
			method: "OPTIONS", host: "cors.test", path: "/open", headers: preflight("https://a.test"), status: 200,
			want: map[string]string{"access-control-allow-credentials": ""},
		},

		// Without a route, Envoy's error has a content type. A HEAD request gets none, since it
		// gets no body.
		{host: "nobody.test", path: "/", status: 404, want: map[string]string{"content-type": "application/json"}},
		{method: "HEAD", host: "nobody.test", path: "/", status: 404, want: map[string]string{"content-type": ""}},

		// Envoy's own reply to a gRPC call is a gRPC status, not an error of a model API.
		{
			method: "POST", host: "grpc.test", path: "/org.Echo/Say", headers: map[string]string{"content-type": "application/grpc"},
			status: 200, want: map[string]string{
				"content-type": "application/grpc", "grpc-status": "14", "grpc-message": "",
			},
		},
		{
			method: "POST", host: "grpc.test", path: "/org.Share/Say", headers: map[string]string{"content-type": "application/grpc"},
			status: 200, want: map[string]string{
				"content-type": "application/grpc", "grpc-status": "14",
			},
		},
	} {
		name := fmt.Sprintf("%s %s%s at %d", test.method, test.host, test.path, test.port)
		port := test.port
		if port == 0 {
			port = 80
		}
		q, err := http.NewRequestWithContext(t.Context(), test.method, fmt.Sprintf("http://%s:%d%s", own, 20000+port, test.path), nil)
		if err != nil {
			t.Fatal(err)
		}
		q.Host = test.host
		for key, value := range test.headers {
			q.Header[key] = []string{value}
		}
		answer, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if answer.StatusCode != test.status {
			t.Errorf("%s: response %s, want %d: %s", name, answer.Status, test.status, text)
		}
		for key, want := range test.want {
			if got := strings.Join(answer.Header.Values(key), ","); got != want {
				t.Errorf("%s: response header %s %q, want %q", name, key, got, want)
			}
		}
		lines := strings.Split(string(text), "\n")
		for _, line := range test.backendSees {
			if !slices.Contains(lines, line) {
				t.Errorf("%s: the backend did not receive %q, but\n%s", name, line, text)
			}
		}
		for _, begin := range test.absent {
			if slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, begin) }) {
				t.Errorf("%s: the backend received %q in\n%s", name, begin, text)
			}
		}
	}
	select {
	case host := <-mirrored:
		if !strings.HasPrefix(host, "shares.test") {
			t.Errorf("the mirrored request is for %s", host)
		}
	case <-time.After(10 * time.Second):
		t.Error("timeout waiting for the mirrored request")
	}
}

func location(is string) map[string]string { return map[string]string{"location": is} }

func allows(origin string) map[string]string {
	return map[string]string{"access-control-allow-origin": origin}
}

// backend runs an HTTP/1.1 server until the test ends.
func backend(t *testing.T, own string, h http.HandlerFunc) netip.AddrPort {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", own+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// answer responds with the request that a backend received, after a delay if the request asks for
// one.
func answer(w http.ResponseWriter, r *http.Request, of string) {
	if wait, err := time.ParseDuration(r.URL.Query().Get("wait")); err == nil {
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
		}
	}
	w.Header().Set("x-inner", "1")
	w.Header().Set("x-more", "1")
	w.Header().Set("x-answer", "backend")
	fmt.Fprintf(w, "%s %s\nof=%s\nhost=%s\n", r.Method, r.RequestURI, of, r.Host)
	for _, key := range slices.Sorted(maps.Keys(r.Header)) {
		fmt.Fprintf(w, "%s=%s\n", strings.ToLower(key), strings.Join(r.Header[key], ","))
	}
}
