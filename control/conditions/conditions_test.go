package conditions_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/golden"
	"github.com/headgate/headgate/test/network"
)

// The input of a block is objects in YAML, which are added to those of [network.Standard], and
// facts. The output is the status of each object whose status is not empty.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string { return show(conditions.Of(read(t, input))) }
	})
}

// The input of a block is as in [TestScenarios], with the observed state of endpoints. The output
// is the statuses that depend on endpoints, and those of duplicates.
func TestEndpointScenarios(t *testing.T) {
	golden.Run(t, "testdata/endpoints/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			in := read(t, input)
			in.World = objects.Build(network.Set(t, objectsOf(input)))
			if strings.Contains(input, "alone: true") {
				in.Attachments, in.Plans, in.Network = nil, nil, nil
			}
			if in.Pending = strings.Contains(input, "pending: true"); in.Pending {
				in.Attachments, in.Plans, in.Network = nil, nil, nil
			}
			return show(append(conditions.OfEndpoints(in), conditions.OfDuplicates(in.World)...))
		}
	})
}

// objectsOf returns the objects of a block without its facts.
func objectsOf(input string) string {
	return network.Standard(strings.Join(slices.DeleteFunc(strings.Split(input, "\n---\n"), func(doc string) bool {
		return strings.HasPrefix(doc, "kind: Known\n")
	}), "\n---\n"))
}

// certificates are the results of reading Secrets.
var certificates = map[objects.Name]plan.Certificate{
	{Namespace: "ns", Name: "cert"}:     {Chain: []byte("chain"), Key: []byte("key")},
	{Namespace: "ns", Name: "was-good"}: {Chain: []byte("chain"), Key: []byte("key"), Fault: "tls.key does not fit tls.crt"},
}

// authorities are the results of reading ConfigMaps.
var authorities = map[objects.Name]plan.Certificate{
	{Namespace: "ns", Name: "ca"}:     {Chain: []byte("authority")},
	{Namespace: "ns", Name: "broken"}: {Fault: "it has no ca.crt"},
}

// known is the YAML document with the facts.
type known struct {
	Versions []string
	Gateways map[string]struct {
		Addresses []string
		Ports     map[int32]string
		Fault     string
	}
	// Reports and Scrapes are states of endpoints: STATE, or STATE REASON.
	Reports, Scrapes map[string]string
	Extprocs         []conditions.Extproc
	Failures         map[string]string // by NAMESPACE/POOL/MODEL
	Alone            bool              // no Gateways are served
	Pending          bool              // Gateways are unknown
}

// observed returns the state of endpoints.
func (k known) observed(t *testing.T) conditions.Observed {
	t.Helper()
	states := func(all map[string]string) map[string]conditions.Endpoint {
		out := make(map[string]conditions.Endpoint)
		for address, text := range all {
			state, reason, _ := strings.Cut(text, " ")
			is := conditions.Endpoint{Reason: reason}
			for is.State.String() != state {
				is.State++ // an unknown state panics
			}
			out[address] = is
		}
		return out
	}
	o := conditions.Observed{
		Reports: states(k.Reports), Scrapes: states(k.Scrapes), Extprocs: k.Extprocs,
		Failures: make(map[objects.ModelKey]string),
	}
	for text, why := range k.Failures {
		parts := strings.Split(text, "/")
		o.Failures[objects.ModelKey{Pool: objects.Name{Namespace: parts[0], Name: parts[1]}, ID: parts[2]}] = why
	}
	return o
}

// read reads the input of statuses.
func read(t *testing.T, input string) conditions.Input {
	t.Helper()
	var facts conditions.Facts
	var observed conditions.Observed
	var docs []string
	for doc := range strings.SplitSeq(input, "\n---\n") {
		rest, is := strings.CutPrefix(doc, "kind: Known\n")
		if doc == "" {
			continue
		}
		if !is {
			docs = append(docs, doc)
			continue
		}
		var k known
		if err := yaml.UnmarshalStrict([]byte(rest), &k); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		observed = k.observed(t)
		facts.Versions, facts.Gateways = k.Versions, make(map[objects.Name]conditions.Gateway)
		for name, g := range k.Gateways {
			is := conditions.Gateway{Ports: make(map[int32]conditions.Port)}
			if g.Fault != "" {
				is.Fault = attach.Verdict{Reason: string(gatewayv1.GatewayReasonNoResources), Message: g.Fault}
			}
			for _, a := range g.Addresses {
				is.Addresses = append(is.Addresses, gatewayv1.GatewayStatusAddress{Type: ptr.To(gatewayv1.IPAddressType), Value: a})
			}
			for number, refused := range g.Ports {
				is.Ports[number] = conditions.Port{Refused: refused}
			}
			facts.Gateways[objects.Name{Namespace: "ns", Name: name}] = is
		}
	}
	if len(docs) == 0 {
		docs = []string{"kind: Namespace\nmetadata: {name: ns}"}
	}
	n := network.Read(t, network.Standard(strings.Join(docs, "\n---\n")))
	a := attach.Of(n)
	return conditions.Input{
		Attachments: a, Plans: plan.Of(a, n, plan.Known{Certificates: certificates, Authorities: authorities}),
		Network: n, Facts: facts, Observed: observed,
	}
}

// show formats statuses.
func show(all []*conditions.Status) string {
	var out strings.Builder
	for _, s := range all {
		if s.Empty() {
			continue
		}
		fmt.Fprintf(&out, "%s\n", s.Object)
		if s.Object.Kind == objects.GatewayClassKind {
			fmt.Fprintf(&out, "  %d features\n", len(s.Features))
		}
		if s.Object.Kind == objects.GatewayKind {
			var addresses []string
			for _, a := range s.Addresses {
				addresses = append(addresses, a.Value)
			}
			fmt.Fprintf(&out, "  addresses %v, ListenerSets %d\n", addresses, s.Sets)
		}
		if s.Endpoints != "" || len(s.Models) > 0 {
			fmt.Fprintf(&out, "  endpoints %q, models %v, pools %v\n", s.Endpoints, s.Models, s.Pools)
		}
		write(&out, "  ", s.Conditions)
		for _, l := range s.Listeners {
			var kinds []string
			for _, k := range l.Kinds {
				kinds = append(kinds, strings.TrimPrefix(string(*k.Group)+"/"+string(k.Kind), gatewayv1.GroupName+"/"))
			}
			fmt.Fprintf(&out, "  listener %s for %s, with %d routes\n", l.Name, strings.Join(kinds, ", "), l.Routes)
			write(&out, "    ", l.Conditions)
		}
		for _, p := range s.Parents {
			where := string(ptr.Deref(p.Ref.Namespace, "")) + "/" + string(p.Ref.Name)
			if p.Ref.SectionName != nil {
				where += "/" + string(*p.Ref.SectionName)
			}
			if p.Ref.Port != nil {
				where += fmt.Sprintf(":%d", *p.Ref.Port)
			}
			fmt.Fprintf(&out, "  parent %s/%s %s\n", *p.Ref.Group, *p.Ref.Kind, strings.TrimPrefix(where, "/"))
			write(&out, "    ", p.Conditions)
		}
	}
	return out.String()
}

func write(out *strings.Builder, indent string, all []metav1.Condition) {
	for _, c := range all {
		words := c.Message
		if words != "" {
			words = ": " + words
		}
		fmt.Fprintf(out, "%s%s %s %s%s\n", indent, c.Type, c.Status, c.Reason, words)
		if c.ObservedGeneration != 0 || !c.LastTransitionTime.IsZero() {
			fmt.Fprintf(out, "%sit has a generation or a time\n", indent)
		}
	}
}

// The features of a GatewayClass are sorted, as the conformance suite requires.
func TestFeaturesAreInOrderEachOnce(t *testing.T) {
	in := read(t, "")
	for _, s := range conditions.Of(in) {
		if s.Object.Kind != objects.GatewayClassKind {
			continue
		}
		if !slices.IsSorted(s.Features) || len(slices.Compact(slices.Clone(s.Features))) != len(s.Features) ||
			!slices.Contains(s.Features, "HTTPRoute") {
			t.Errorf("the features are %v", s.Features)
		}
		return
	}
	t.Error("the GatewayClass has no status")
}

// Routes and pools that refer to no Gateway of ours also get a status, which is empty: it removes
// an earlier one.
func TestForeignReferencesReportNothing(t *testing.T) {
	all := make(map[string]bool)
	for _, s := range conditions.Of(read(t,
		"kind: HTTPRoute\nmetadata: {namespace: ns, name: r}\nspec: {parentRefs: [{name: another}]}\n---\n"+
			"kind: GRPCRoute\nmetadata: {namespace: ns, name: r}\n---\nkind: LLMRoute\nmetadata: {namespace: ns, name: r}\nspec: {backendRefs: [{name: llama}]}\n---\n"+
			"kind: GatewayClass\nmetadata: {name: other}\nspec: {controllerName: example.com/other}\n---\n"+
			"kind: Gateway\nmetadata: {namespace: ns, name: others}\nspec: {gatewayClassName: other, listeners: [{name: http, port: 80, protocol: HTTP}]}\n---\n"+
			"kind: ListenerSet\nmetadata: {namespace: ns, name: others}\nspec: {parentRef: {name: others}, listeners: [{name: http, port: 81, protocol: HTTP}]}")) {
		all[s.Object.String()] = s.Empty()
	}
	want := map[string]bool{
		"GatewayClass headgate": false, "HTTPRoute ns/r": true, "GRPCRoute ns/r": true, "LLMRoute ns/r": true,
		"InferencePool ns/llama": true, "InferencePool other/phi": true,
	}
	if !maps.Equal(all, want) {
		t.Errorf("objects without a status: %v, want %v", all, want)
	}
}

// A status contains the UID and generation of its object, which decide whether it is written.
func TestStatusBelongsToOneVersionOfAnObject(t *testing.T) {
	for _, s := range conditions.Of(read(t, "kind: HTTPRoute\nmetadata: {namespace: ns, name: r, uid: abc, generation: 7}")) {
		if s.Object.Kind == objects.HTTPRouteKind {
			if s.UID != "abc" || s.Generation != 7 || s.Object.Name != (objects.Name{Namespace: "ns", Name: "r"}) {
				t.Errorf("the status is for %+v", s)
			}
			return
		}
	}
	t.Error("the route has no status")
}

// An API server accepts at most 32768 characters of a message, else it rejects the whole status.
func TestLongMessageIsTruncated(t *testing.T) {
	long := strings.Repeat("m", 32766)
	for words, want := range map[string]string{
		long + "mm": long + "mm", long + "mmm": long[:32765] + "…", long[:32764] + "…mm": long[:32764] + "…",
	} {
		if got := conditions.Message(words); got != want {
			t.Errorf("a message of %d bytes is cut to %d, want %d", len(words), len(got), len(want))
		}
	}
}
