package dir

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects/kinds"
)

const goodRoute = `apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata:
  name: sentiment
spec:
  parentRefs:
  - name: gateway
  backendRefs:
  - name: base
  adapter:
    name: sentiment-v2
  priority: 3
  objectives:
  - type: OutputTokenLatency
    latency:
      value: 200ms
      quantile: {numerator: 99, denominator: 100}
  metrics:
    format: Prometheus
`

const goodPool = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata:
  name: base
spec:
  selector:
    matchLabels: {app: llama}
  targetPorts:
  - number: 8000
`

const goodPod = `apiVersion: v1
kind: Pod
metadata:
  name: engine-1
  labels: {app: llama}
status:
  podIP: 127.0.0.11
`

const goodList = `apiVersion: inference.x-k8s.io/v1alpha1
kind: EndpointList
metadata:
  name: rack-1
  labels: {app: llama}
spec:
  engine: sglang
  addresses:
  - 10.0.0.7:8000
  - engine-1.internal:8000
`

const clusterSettings = `apiVersion: inference.x-k8s.io/v1alpha1
kind: PoolSettings
metadata: {name: base}
spec:
  poolRef: {name: base}
  engineToken: {secretRef: {name: engine-token}}
`

// profileFile is a profile in a file of its own.
const profileFile = `name: 8B
prefill: {base: 0.01, perToken: 0.0001}
decode:
  base: 0.02
  perSequence: 0.0001
limits: {maxSequences: 256, maxBatchedTokens: 8192, kvBlocks: 1000, blockSize: 16}
`

// poolProfile is a PoolSettings with a profile, which begins on line 6.
func poolProfile(text string) string {
	if !strings.ContainsAny(text, "{\n") {
		text = "{" + text + "}"
	}
	return strings.Replace(clusterSettings, "engineToken: {secretRef: {name: engine-token}}", "profile: "+text, 1)
}

func TestFaultIsNamedByFileLineAndReason(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"syntax", goodPool + "---\nkind: [\n", "f.yaml:11: not valid YAML: did not find expected node content"},
		{
			"tab", "apiVersion: v1\nkind: Pod\nmetadata:\n\tname: x\n",
			"f.yaml:4: not valid YAML: found character that cannot start any token",
		},
		{"key twice", "a: 1\nb: 2\na: 3\n", `f.yaml:3: not valid YAML: key "a" already set in map`},
		{"not an object", "hello\n", "f.yaml:1: not a Kubernetes object: it needs apiVersion, kind and metadata"},
		{"a list", "# pods\n- a\n- b\n", "f.yaml:2: not a Kubernetes object: it needs apiVersion, kind and metadata"},
		{
			"unknown kind", strings.Replace(goodRoute, "LLMRoute", "LLMroute", 1),
			`f.yaml:2: apiVersion "inference.x-k8s.io/v1alpha1", kind "LLMroute" is not an object that Headgate reads; it reads inference.x-k8s.io/v1alpha1 LLMRoute, Model, VModel, EndpointList and PoolSettings, inference.networking.k8s.io/v1 InferencePool and v1 Pod`,
		},
		{
			"a share below 1", strings.Replace(goodRoute, "priority: 3", "share: -3", 1),
			`f.yaml:12: LLMRoute default/sentiment: spec.share: Invalid value: -3: a share is 1 to 1000000`,
		},
		{
			"unknown field", strings.Replace(goodRoute, "priority", "prioritty", 1),
			`f.yaml:12: LLMRoute default/sentiment: unknown field "spec.prioritty"; known fields are adapter, backendRefs, failurePolicy, fallback, late, limits, metrics, modelNames, objectives, parentRefs, priority, programHeader, share and tenantHeader`,
		},
		{
			"unknown nested field", strings.Replace(goodRoute, "numerator: 99", "nominator: 99", 1),
			`f.yaml:17: LLMRoute default/sentiment: unknown field "spec.objectives[0].latency.quantile.nominator"; known fields are denominator and numerator`,
		},
		{
			"wrong type", strings.Replace(goodRoute, "priority: 3", "priority: high", 1),
			"f.yaml:12: spec.priority: want a whole number, not string",
		},
		{
			"a number that is too large", strings.Replace(goodRoute, "priority: 3", "priority: 99999999999", 1),
			"f.yaml:12: spec.priority: want a whole number, not number 99999999999: it is out of range",
		},
		{
			"a fraction", strings.Replace(goodRoute, "priority: 3", "share: 2.5", 1),
			"f.yaml:12: spec.share: want a whole number, not number 2.5",
		},
		{
			"a bool in place of a text", strings.Replace(goodRoute, "priority: 3", "late: On", 1),
			"f.yaml:12: spec.late: want a string, not bool: put it in quotes, since without them YAML reads On, Off, Yes and No as true or false",
		},
		{
			"a number in place of a text", strings.Replace(goodRoute, "priority: 3", "late: 60", 1),
			`f.yaml:12: spec.late: want a string, not number: put it in quotes, and give a time its unit, such as "60s"`,
		},
		{
			"wrong shape", strings.Replace(goodPool, "matchLabels: {app: llama}", "matchLabels: app", 1),
			"f.yaml:7: spec.selector.matchLabels: want a mapping, not string",
		},
		{"bad duration", strings.Replace(goodRoute, "200ms", "fast", 1), `f.yaml:16: time: invalid duration "fast"`},
		{
			"no name", strings.Replace(goodRoute, "name: sentiment\n", "labels: {}\n", 1),
			"f.yaml:3: LLMRoute default/: metadata.name: Required value: give the object a name",
		},
		{
			"no pool", strings.Replace(goodRoute, "  - name: base\n", "", 1),
			"f.yaml:8: LLMRoute default/sentiment: spec.backendRefs: Required value: name the InferencePool that serves the route",
		},
		{
			"other backend", strings.Replace(goodRoute, "- name: base", "- {name: base, kind: Service}", 1),
			`f.yaml:9: LLMRoute default/sentiment: spec.backendRefs[0].kind: Unsupported value: "Service": supported values: "InferencePool"`,
		},
		{
			"path as adapter", strings.Replace(goodRoute, "sentiment-v2", "../x", 1),
			`f.yaml:11: LLMRoute default/sentiment: spec.adapter.name: Invalid value: "../x": no model can have this name: it is a path`,
		},
		{
			"metrics", strings.Replace(goodRoute, "Prometheus", "OpenTelemetry", 1),
			`f.yaml:19: LLMRoute default/sentiment: spec.metrics.format: Unsupported value: "OpenTelemetry": supported values: "Prometheus"`,
		},
		{
			"objective", strings.Replace(goodRoute, "OutputTokenLatency", "Throughput", 1),
			`f.yaml:14: LLMRoute default/sentiment: spec.objectives[0].type: Unsupported value: "Throughput": supported values: "OutputTokenLatency", "TimeToFirstToken"`,
		},
		{
			"quantile", strings.Replace(goodRoute, "denominator: 100", "denominator: 98", 1),
			`f.yaml:17: LLMRoute default/sentiment: spec.objectives[0].latency.quantile: Invalid value: "99/98": a quantile is above 0 and at most 1, such as {numerator: 99, denominator: 100}`,
		},
		{
			"port", strings.Replace(goodPool, "8000", "80000", 1),
			"f.yaml:9: InferencePool default/base: spec.targetPorts[0].number: Invalid value: 80000: must be between 1 and 65535, inclusive",
		},
		{
			"port twice", goodPool + "  - number: 8000\n",
			"f.yaml:10: InferencePool default/base: spec.targetPorts[1].number: Duplicate value: 8000",
		},
		{
			"no labels", strings.Replace(goodPool, "{app: llama}", "{}", 1),
			"f.yaml:7: InferencePool default/base: spec.selector.matchLabels: Required value: name at least one label of the pods that serve",
		},
		{
			"bad ports", strings.Replace(goodPod, "  labels:",
				"  annotations: {inference.networking.k8s.io/active-ports: '8000;8001'}\n  labels:", 1),
			`f.yaml:5: Pod default/engine-1: metadata.annotations: Invalid value: "8000;8001": inference.networking.k8s.io/active-ports is a list of ports, such as 8000,8001`,
		},
		{
			"bad IP", strings.Replace(goodPod, "127.0.0.11", "127.0.0", 1),
			`f.yaml:7: Pod default/engine-1: status.podIP: Invalid value: "127.0.0": want an IP address, such as 10.0.0.7`,
		},
		{
			"address with a scheme", strings.Replace(goodList, "10.0.0.7:8000", "http://10.0.0.7:8000", 1),
			`f.yaml:9: EndpointList default/rack-1: spec.addresses[0]: Invalid value: "http://10.0.0.7:8000": want host:port alone, without scheme and path`,
		},
		{
			"address without a port", strings.Replace(goodList, "internal:8000", "internal", 1),
			`f.yaml:10: EndpointList default/rack-1: spec.addresses[1]: Invalid value: "engine-1.internal": want host:port, such as 10.0.0.7:8000, [fd00::7]:8000 or engine-1.internal:8000`,
		},
		{
			"address twice", goodList + "  - 10.0.0.7:8000\n",
			`f.yaml:11: EndpointList default/rack-1: spec.addresses[2]: Duplicate value: "10.0.0.7:8000"`,
		},
		{
			"no addresses", strings.Split(goodList, "  - ")[0],
			"f.yaml:8: EndpointList default/rack-1: spec.addresses: Required value: name at least one address, such as 10.0.0.7:8000",
		},
		{
			"engine", strings.Replace(goodList, "sglang", "xllm", 1),
			`f.yaml:7: EndpointList default/rack-1: spec.engine: Unsupported value: "xllm": supported values: "vllm", "nim", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton", "tgi", "llama.cpp", "lmdeploy", "mlserver", "torchserve", "tfserving", "modelruntime"`,
		},
		{
			"unknown field of a list", strings.Replace(goodList, "engine:", "engines:", 1),
			`f.yaml:7: EndpointList default/rack-1: unknown field "spec.engines"; known fields are addresses, engine, management and ports`,
		},
		{
			"EndpointList of another group is no list of objects", strings.Replace(goodList, "inference.x-k8s.io/v1alpha1", "v1", 1),
			`f.yaml:2: apiVersion "v1", kind "EndpointList" is not an object that Headgate reads; it reads inference.x-k8s.io/v1alpha1 LLMRoute, Model, VModel, EndpointList and PoolSettings, inference.networking.k8s.io/v1 InferencePool and v1 Pod`,
		},
		{
			"a Secret", clusterSettings,
			`f.yaml:6: PoolSettings default/base: spec.engineToken: Forbidden: engine tokens cannot come from a folder: remove it, and set --engine-token-file`,
		},
		{
			"no profile", poolProfile("acceleratorLabel: gpu"),
			`f.yaml:6: PoolSettings default/base: spec.profile: Invalid value: "": set one of inline, file, and hardware with parameters`,
		},
		{
			"two profiles", poolProfile("{file: a.yaml, hardware: L4, parameters: 8B}"),
			`f.yaml:6: PoolSettings default/base: spec.profile: Invalid value: "": set one of inline, file, and hardware with parameters`,
		},
		{
			"unknown hardware", poolProfile("\n    parameters: 8B\n    hardware: 2 x B300"),
			`f.yaml:8: PoolSettings default/base: spec.profile.hardware: Invalid value: "2 x B300": no GPU in the table is called "B300"; known are T4, V100-16GB, V100-32GB, A10, A10G, L4, L40S, A100-40GB, A100-80GB, H100-80GB, H200-141GB`,
		},
		{
			"inline profile",
			poolProfile("\n    inline:\n      prefill: {base: 0.1}\n      decode: {adapterSlowdown: 0.5}\n      limits: {maxSequences: 1, maxBatchedTokens: 1, kvBlocks: 1, blockSize: 1}"),
			`f.yaml:9: PoolSettings default/base: spec.profile.inline.decode.adapterSlowdown: Invalid value: 0.5: it is how many times as long a step takes with adapters, at least 1`,
		},
		{
			"unknown field of a profile", poolProfile("{inline: {prefil: {}}}"),
			`f.yaml:6: PoolSettings default/base: unknown field "spec.profile.inline.prefil"; known fields are adapterActivation, adapterLoad, asyncScheduling, decode, frontendOverhead, launchOverhead, limits, mixedBatchOverhead, name, prefill and source`,
		},
		{
			"profile outside", poolProfile("{file: ../a.yaml}"),
			`f.yaml:6: PoolSettings default/base: spec.profile.file: Invalid value: "../a.yaml": want the name of a file in this folder, such as profile.yaml`,
		},
		{
			"unknown field of a profile's file", strings.Replace(profileFile, "perSequence", "perSequenze", 1),
			`f.yaml:5: profile: unknown field "decode.perSequenze"; known fields are adapterSlowdown, base, perKVToken and perSequence`,
		},
		{
			"wrong time in a profile's file", strings.Replace(profileFile, "0.02", "soon", 1),
			"f.yaml:4: decode.base: want a number, not string",
		},
		{
			"negative time in a profile's file", strings.Replace(profileFile, "0.02", "-1", 1),
			"f.yaml:4: profile: decode.base is -1: a time in seconds is finite and not negative",
		},
		{
			"limits of a profile's file", strings.Replace(profileFile, "blockSize: 16", "blockSize: 0", 1),
			"f.yaml:6: profile: limits.blockSize is 0: it must be at least 1",
		},
		{"an object with a profile's field", goodRoute + "prefill: {}\n", `f.yaml:20: LLMRoute default/sentiment: unknown field "prefill"; known fields are apiVersion, kind, metadata, spec and status`},
		{
			"a profile and more", profileFile + "---\n" + goodPod,
			`f.yaml:1: apiVersion "", kind "" is not an object that Headgate reads; it reads inference.x-k8s.io/v1alpha1 LLMRoute, Model, VModel, EndpointList and PoolSettings, inference.networking.k8s.io/v1 InferencePool and v1 Pod`,
		},
		{"list twice", goodList + "---\n" + goodList, "f.yaml:15: EndpointList default/rack-1 is defined twice, first at line 4"},
		{"defined twice", goodPod + "---\n" + goodPod, "f.yaml:12: Pod default/engine-1 is defined twice, first at line 4"},
		{
			"in a list", "apiVersion: v1\nkind: List\nitems:\n- " +
				strings.ReplaceAll(strings.Replace(goodPod, "127.0.0.11", "x", 1), "\n", "\n  "),
			`f.yaml:10: Pod default/engine-1: status.podIP: Invalid value: "x": want an IP address, such as 10.0.0.7`,
		},
		{
			"second document", goodPod + "---\n# a comment\n---\n" + strings.Replace(goodPool, "8000", "0", 1),
			"f.yaml:19: InferencePool default/base: spec.targetPorts[0].number: Invalid value: 0: must be between 1 and 65535, inclusive",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse("f.yaml", []byte(c.text), kinds.All())
			if _, ok := errors.AsType[*Fault](err); !ok {
				t.Fatalf("the error is %v, want a Fault", err)
			}
			if err.Error() != c.want {
				t.Errorf("got  %s\nwant %s", err, c.want)
			}
		})
	}
}

// kubectl's output has many fields that Headgate does not use, and some that this version may not
// know.
func TestKubectlOutputWorksAsItIs(t *testing.T) {
	const list = `apiVersion: v1
items:
- apiVersion: v1
  kind: Pod
  metadata:
    creationTimestamp: "2026-11-01T10:00:00Z"
    generateName: llama-7c9-
    labels: {app: llama}
    name: llama-7c9-abcde
    namespace: serving
    resourceVersion: "1234"
    uid: 0b6f
  spec:
    containers: [{name: vllm, image: vllm, futureField: 7}]
  status:
    conditions:
    - {type: Ready, status: "False", lastTransitionTime: "2026-11-01T10:00:00Z"}
    podIP: 10.1.2.3
    podIPs: [{ip: 10.1.2.3}]
- apiVersion: v1
  kind: Pod
  metadata: {name: llama-leaving, namespace: serving, deletionTimestamp: "2026-11-01T10:00:00Z"}
  status: {podIP: 10.1.2.4, conditions: [{type: Ready, status: "True"}]}
- apiVersion: inference.networking.k8s.io/v1
  kind: InferencePool
  metadata: {name: llama, namespace: serving}
  spec:
    selector: {matchLabels: {app: llama}}
    targetPorts: [{number: 8000}]
    endpointPickerRef: {name: epp, port: {number: 9002}, failureMode: FailOpen}
  status:
    parents:
    - parentRef: {name: gateway, kind: Gateway, group: gateway.networking.k8s.io}
      conditions: [{type: Accepted, status: "True", reason: Accepted, message: "", lastTransitionTime: "2026-11-01T10:00:00Z"}]
kind: List
metadata:
  resourceVersion: ""
`
	c, err := parse("f.yaml", []byte(list), kinds.All())
	if err != nil {
		t.Fatal(err)
	}
	if len(c.set.Pods) != 2 || c.set.Pods[0].Ready || c.set.Pods[1].Ready || c.set.Pods[0].Name.String() != "serving/llama-7c9-abcde" {
		t.Errorf("pods are %+v", c.set.Pods)
	}
	if len(c.set.Pools) != 1 {
		t.Errorf("pools are %+v", c.set.Pools)
	}
	want := []string{`f.yaml:14: Pod serving/llama-7c9-abcde: unknown field "spec.containers[0].futureField": ignored`}
	if diff := cmp.Diff(want, c.notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

func TestPodWrittenByHandIsReady(t *testing.T) {
	c, err := parse("f.yaml", []byte(goodPod), kinds.All())
	if err != nil || len(c.set.Pods) != 1 || !c.set.Pods[0].Ready {
		t.Errorf("pods are %+v, %v", c, err)
	}
}

func TestEndpointListIsRead(t *testing.T) {
	c, err := parse("f.yaml", []byte(goodList), kinds.All())
	if err != nil || len(c.set.Lists) != 1 || c.set.Lists[0].Namespace != "default" || len(c.set.Lists[0].Spec.Addresses) != 2 ||
		!c.set.Lists[0].Loopback {
		t.Errorf("lists are %+v, %v", c, err)
	}
	local := strings.Replace(strings.Replace(goodList, "sglang", "modelruntime\n  management: unix:/run/x.sock", 1),
		"  - 10.0.0.7:8000\n  - engine-1.internal:8000\n", "  - '[::1]:8000'\n", 1)
	if c, err := parse("f.yaml", []byte(local), kinds.All()); err != nil || len(c.set.Lists) != 1 ||
		c.set.Lists[0].Spec.Management != "unix:/run/x.sock" {
		t.Errorf("lists of this machine are %+v, %v", c, err)
	}
}

// The oracle is sigs.k8s.io/yaml: what it refuses as an LLMRoute must be refused, and an accepted
// object must equal the one that it decodes.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		goodRoute, goodPool, goodPod, goodList, goodRoute + "---\n" + goodPool + "...\n---\n# end\n",
		"kind: List\nitems: [{}]", "{}", "--- |\n---\n", "a: &a [*a]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse("f.yaml", text, kinds.All())
		if err != nil {
			var fault *Fault
			if !errors.As(err, &fault) || fault.Line < 1 || fault.Line > bytes.Count(text, []byte("\n"))+1 {
				t.Fatalf("the error of %q is %v: want a Fault within the file", text, err)
			}
		}
		docs := documents(text)
		var joined []byte
		for _, d := range docs {
			joined = append(joined, d.text...)
		}
		if len(docs) == 1 && !bytes.Equal(joined, text) {
			t.Fatalf("the documents of %q are %q", text, joined)
		}
		if err != nil || len(docs) != 1 || len(c.set.Routes) != 1 || len(c.set.Pods)+len(c.set.Pools)+len(c.set.Lists) > 0 {
			return
		}
		var list struct {
			Kind string `json:"kind"`
		}
		if yaml.Unmarshal(text, &list) != nil || list.Kind != v1alpha1.LLMRouteKind {
			return // a route inside a List
		}
		var want v1alpha1.LLMRoute
		if err := yaml.UnmarshalStrict(text, &want); err != nil {
			t.Fatalf("accepted %q, which sigs.k8s.io/yaml refuses: %v", text, err)
		}
		if want.Namespace == "" {
			want.Namespace = defaultNamespace
		}
		if diff := cmp.Diff(want, c.set.Routes[0]); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", text, diff)
		}
	})
}

const (
	goodClass = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata:
  name: headgate
spec: {controllerName: headgate.dev/control}
`
	goodGateway = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata:
  name: g
spec:
  gatewayClassName: headgate
  listeners:
  - {name: http, port: 80, protocol: HTTP}
  - {name: https, port: 443, protocol: HTTPS}
`
)

const goodSlice = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s-1, labels: {kubernetes.io/service-name: s}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.1]}]
ports: [{port: 8080}]
`

// withNetwork is both tables.
var withNetwork = kinds.WithNetwork()

func TestErrorsOfNetworkObjectsHaveALine(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{
			"class twice", goodClass + "---\n" + strings.Replace(goodClass, "  name: headgate", "  name: headgate\n  namespace: other", 1),
			"f.yaml:10: GatewayClass headgate is defined twice, first at line 4",
		},
		{
			"no name", strings.Replace(goodClass, "  name: headgate", "  labels: {}", 1),
			"f.yaml:3: GatewayClass: metadata.name: Required value: give the object a name",
		},
		{
			"no class", strings.Replace(goodGateway, "  gatewayClassName: headgate\n", "", 1),
			"f.yaml:5: Gateway default/g: spec.gatewayClassName: Required value: name the GatewayClass, such as headgate",
		},
		{
			"no listeners", strings.Split(goodGateway, "  listeners:")[0],
			"f.yaml:5: Gateway default/g: spec.listeners: Required value: add at least one listener, such as {name: http, port: 80, protocol: HTTP}",
		},
		{
			"listener twice", strings.Replace(goodGateway, "name: https", "name: http", 1),
			`f.yaml:9: Gateway default/g: spec.listeners[1].name: Duplicate value: "http"`,
		},
		{
			"address of another type", strings.Replace(goodSlice, "10.0.0.1", "fd00::1", 1),
			`f.yaml:5: EndpointSlice default/s-1: endpoints[0].addresses[0]: Invalid value: "fd00::1": the addresses of this EndpointSlice are of type IPv4`,
		},
		{"wrong type", strings.Replace(goodGateway, "443", "https", 1), "f.yaml:7: spec.listeners.port: want a whole number, not string"},
		{
			"unknown kind", strings.Replace(goodGateway, "kind: Gateway", "kind: TCPRoute", 1),
			`f.yaml:2: apiVersion "gateway.networking.k8s.io/v1", kind "TCPRoute" is not an object that Headgate reads; it reads inference.x-k8s.io/v1alpha1 LLMRoute, Model, VModel, EndpointList, PoolSettings and GatewaySettings, inference.networking.k8s.io/v1 InferencePool, v1 Pod, Namespace and Service, gateway.networking.k8s.io/v1 GatewayClass, Gateway, ListenerSet, HTTPRoute, GRPCRoute, ReferenceGrant and BackendTLSPolicy and discovery.k8s.io/v1 EndpointSlice`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse("f.yaml", []byte(c.text), withNetwork)
			if err == nil || err.Error() != c.want {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

// An unknown field of Gateway API, which may be of another version, causes only a warning.
func TestUnknownNetworkFieldsAreWarnings(t *testing.T) {
	c, err := parse("f.yaml", []byte(strings.Replace(goodGateway, "  listeners:", "  future: 7\n  listeners:", 1)), withNetwork)
	if err != nil || c.set.Network == nil || len(c.set.Network.Gateways) != 1 {
		t.Fatalf("it is read as %+v, %v", c, err)
	}
	if diff := cmp.Diff([]string{`f.yaml:7: Gateway default/g: unknown field "spec.future": ignored`}, c.notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}
