package network

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// Walk returns a random walk of Networks. Each step changes one object, most often a route. An
// unchanged object is sometimes the same pointer and sometimes an equal copy. Equal seeds return
// equal walks.
func Walk(t testing.TB, seed uint64, steps int) []*objects.Network {
	t.Helper()
	w := walk{t, rand.New(rand.NewPCG(seed, 0)), make(map[string]string), make(map[string]any)} //nolint:gosec // a test's
	for name := range variants {
		w.texts[name] = w.variant(name)
	}
	all := make([]*objects.Network, steps)
	for i := range all {
		all[i] = w.network()
		names := slices.Sorted(maps.Keys(variants))
		if w.IntN(4) > 0 {
			names = slices.DeleteFunc(names, func(name string) bool { return !strings.Contains(name, "Route") })
		}
		name := names[w.IntN(len(names))]
		if w.texts[name] = ""; w.IntN(4) > 0 || strings.HasPrefix(name, "GatewayClass") {
			w.texts[name] = w.variant(name)
		}
		if w.IntN(8) == 0 {
			clear(w.read)
		}
	}
	return all
}

type walk struct {
	t testing.TB
	*rand.Rand
	texts map[string]string // current YAML of each object; empty if the object does not exist
	read  map[string]any    // parsed objects by their YAML
}

// variants has for each object (kind, namespace and name) its parts, and for each part the
// alternative texts.
var variants = map[string][][]string{
	"GatewayClass /headgate": {{"spec: {controllerName: headgate.dev/gateway-controller}"}},
	"Gateway ns/g": {
		{"spec:\n  gatewayClassName: headgate"},
		{"", "\n  tls: {frontend: {default: {validation: {caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}}}}"},
		{"\n  listeners:\n  - {name: a, port: 80, protocol: HTTP, hostname: '*.a.test'}"},
		{
			"\n  - {name: all, port: 80, protocol: HTTP}",
			"\n  - {name: all, port: 80, protocol: HTTP, allowedRoutes: {namespaces: {from: All}}}",
			"\n  - {name: b, port: 80, protocol: HTTP, hostname: b.test}",
		},
		{"", "\n  - {name: tls, port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: x}]}}\n  - {name: tls2, port: 443, protocol: HTTPS, hostname: b.test, tls: {certificateRefs: [{name: x}, {name: none}]}}"},
	},
	"Gateway ns/h": {
		{"spec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP}"},
		{"", ", {name: more, port: 81, protocol: HTTP}"},
		{"]}"},
	},
	"ListenerSet ns/s":     {{"spec: {parentRef: {name: h}, listeners: [{name: s, port: "}, {"82", "81"}, {", protocol: HTTP}]}"}},
	"GatewaySettings ns/g": {{"spec: {timeouts: {idle: 60s}}"}},
	"Service ns/a": {
		{"spec: {ports: [{port: 80"},
		{"", ", appProtocol: kubernetes.io/h2c", ", appProtocol: kubernetes.io/wss"},
		{"}]}"},
	},
	"Service ns/b":    {{"spec: {ports: [{port: "}, {"80", "81"}, {"}]}"}},
	"Service other/a": {{"spec: {ports: [{port: 80}]}"}},
	"InferencePool ns/llama": {{
		"spec: {}", "spec: {appProtocol: kubernetes.io/h2c}",
		"spec: {endpointPickerRef: {name: b, port: {number: 80}}}",
		"spec: {endpointPickerRef: {name: b, port: {number: 80}, failureMode: FailOpen}}",
	}},
	"InferencePool ns/phi":  {{"spec: {}"}},
	"PoolSettings ns/llama": {{"spec: {engineTLS: {hostname: e.test}, poolRef: {name: llama}}", "spec: {poolRef: {name: llama}}"}},
	"BackendTLSPolicy ns/b": {
		{"spec: {targetRefs: [{group: '', kind: Service, name: b}], validation: {hostname: b.test, "},
		{"wellKnownCACertificates: System}}", "caCertificateRefs: [{group: '', kind: ConfigMap, name: ca}]}}"},
	},
	"BackendTLSPolicy ns/b2":  {{"spec: {targetRefs: [{group: '', kind: Service, name: b}], validation: {hostname: b2.test, wellKnownCACertificates: System}}"}},
	"ReferenceGrant other/to": {{"spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: ns}], to: [{group: '', kind: Service}]}"}},
	"HTTPRoute ns/r0":         httpRoute,
	"HTTPRoute ns/r1":         httpRoute,
	"HTTPRoute ns/r2":         httpRoute,
	"HTTPRoute ns/r3":         httpRoute,
	"HTTPRoute other/r4":      httpRoute,
	"GRPCRoute ns/q0":         grpcRoute,
	"GRPCRoute ns/q1":         grpcRoute,
	"LLMRoute ns/m0":          llmRoute,
	"LLMRoute ns/m1":          llmRoute,
}

var (
	parents = []string{
		"{namespace: ns, name: g}", "{namespace: ns, name: g, sectionName: a}", "{namespace: ns, name: h}",
		"{namespace: ns, name: g}, {namespace: ns, name: h}", "{namespace: ns, kind: ListenerSet, name: s}", "{name: none}",
	}
	names   = []string{"", "hostnames: [x.a.test], ", "hostnames: [b.test, '*.a.test'], ", "hostnames: ['*.test'], "}
	targets = []string{
		"{name: a, port: 80}", "{name: b, port: 80, weight: 3}", "{name: none, port: 80}",
		"{namespace: other, name: a, port: 80}", "{name: a, port: 80}, {name: b, port: 81}",
	}

	httpRoute = [][]string{
		{"spec: {parentRefs: ["},
		parents,
		{"], "},
		names,
		{"rules: [{"},
		{
			"", "matches: [{path: {type: PathPrefix, value: /x}}], ", "matches: [{path: {type: Exact, value: /y}}, {method: GET}], ",
			"matches: [{headers: [{name: k, value: v}]}], ",
		},
		{
			"", "filters: [{type: RequestHeaderModifier, requestHeaderModifier: {set: [{name: k, value: v}]}}], ",
			"filters: [{type: RequestMirror, requestMirror: {backendRef: {name: b, port: 80}}}], ",
			"filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /z}}}], ",
		},
		{"backendRefs: ["},
		slices.Concat(targets, []string{"{group: inference.networking.k8s.io, kind: InferencePool, name: llama}"}),
		{"]}]}"},
	}
	grpcRoute = [][]string{{"spec: {parentRefs: ["}, parents, {"], "}, names, {"rules: [{backendRefs: ["}, targets, {"]}]}"}}
	llmRoute  = [][]string{
		{"spec: {parentRefs: ["},
		{"{name: g}", "{name: h}", "{name: g}, {name: h}"},
		{"], backendRefs: [{name: "},
		{"llama", "phi", "none", "llama}, {name: phi"},
		{"}]}"},
	}
)

// variant returns the YAML of a random variant of an object.
func (w walk) variant(of string) string {
	kind, name, _ := strings.Cut(of, " ")
	namespace, name, _ := strings.Cut(name, "/")
	var text strings.Builder
	fmt.Fprintf(&text, "kind: %s\nmetadata: {namespace: '%s', name: %s, creationTimestamp: '2026-01-0%dT00:00:00Z'}\n", kind, namespace,
		name, 1+w.IntN(2))
	for _, alternatives := range variants[of] {
		text.WriteString(alternatives[w.IntN(len(alternatives))])
	}
	return text.String()
}

// network returns the current Network. Its objects are sorted by name.
func (w walk) network() *objects.Network {
	set := objects.Set{Network: new(objects.Network)}
	for _, k := range kinds.WithNetwork() {
		for _, of := range slices.Sorted(maps.Keys(w.texts)) {
			text := w.texts[of]
			if kind, _, _ := strings.Cut(of, " "); kind != k.Kind || text == "" {
				continue
			}
			if w.read[text] == nil {
				o := k.New()
				if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
					w.t.Fatalf("%v in\n%s", err, text)
				}
				w.read[text], _ = k.Server(o)
			}
			k.Keep(&set, w.read[text])
		}
	}
	return set.Network
}
