package kube_test

import (
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/kube"
	"github.com/headgate/headgate/test/apiserver"
)

// withNetwork is both tables.
var withNetwork = kinds.WithNetwork()

const gatewayAPI = "apiVersion: gateway.networking.k8s.io/v1\n"

// attached are objects of a Network, one of each kind, by kind.
var attached = map[string]string{
	"GatewayClass": gatewayAPI + "kind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/control}",
	"Gateway": gatewayAPI +
		"kind: Gateway\nmetadata: {name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP}]}",
	"ListenerSet": gatewayAPI +
		"kind: ListenerSet\nmetadata: {name: l}\nspec: {parentRef: {name: g}, listeners: [{name: more, port: 81, protocol: HTTP}]}",
	"HTTPRoute": gatewayAPI +
		"kind: HTTPRoute\nmetadata: {name: h}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: s, port: 80}]}]}",
	"GRPCRoute": gatewayAPI +
		"kind: GRPCRoute\nmetadata: {name: r}\nspec: {parentRefs: [{name: g}], rules: [{backendRefs: [{name: s, port: 80}]}]}",
	"ReferenceGrant": gatewayAPI + "kind: ReferenceGrant\nmetadata: {name: g}\n" +
		"spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}], to: [{group: '', kind: Service}]}",
	"BackendTLSPolicy": gatewayAPI + "kind: BackendTLSPolicy\nmetadata: {name: b}\n" +
		"spec: {targetRefs: [{group: '', kind: Service, name: s}], validation: {hostname: a.test, wellKnownCACertificates: System}}",
	"Namespace":     "apiVersion: v1\nkind: Namespace\nmetadata: {name: other}",
	"Service":       "apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {selector: {app: llama}, ports: [{port: 80, appProtocol: kubernetes.io/h2c}]}",
	"LLMRoute":      route("{backendRefs: [{name: p}]}"),
	"InferencePool": inferencePool("{" + base + "}"),
	"PoolSettings":  settings("{poolRef: {name: p}}"),
}

const slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s-1, labels: {kubernetes.io/service-name: s}}\n" +
	"addressType: IPv6\nendpoints: [{addresses: ['fd00::7'], conditions: {ready: false}}]\nports: [{name: http, port: 8080}]"

// network returns the Network published last, nil if there is none.
func (f *followed) network() *objects.Network {
	if set := f.set.Load(); set != nil {
		return set.Network
	}
	return nil
}

// slices returns those of the World published last.
func (f *followed) slices() []objects.Slice { return f.world.Load().Slices }

// sees waits until the World has n objects of a kind.
func (c cluster) sees(f *followed, kind string, n int) {
	c.Helper()
	c.Await("there are as many of "+kind, func() bool { return f.world.Load().Objects[kind] == n })
}

// own waits for the objects that API servers create: their namespaces and a Service.
func (c cluster) own(f *followed) {
	c.Helper()
	c.sees(f, "Namespace", 4)
	c.sees(f, "Service", 1)
}

// Pods change all the time, and users of the Network write status: neither builds a new Network.
// Every other change of an object in a Network does.
func TestNetworkChangesWithItsObjects(t *testing.T) {
	c := cluster{apiserver.RunGateways(t)}
	c.Apply(attached["Gateway"]) // listed first, then watched for changes
	f := followKinds(t, readerOfNetwork(c), "", withNetwork, slog.New(slog.DiscardHandler))
	c.own(f)
	c.sees(f, "Gateway", 1)

	another := func(what string, was *objects.Network) {
		t.Helper()
		c.Await("there is another Network: "+what, func() bool { return f.network() != was })
	}
	pods := 0
	same := func(what string, was *objects.Network) {
		t.Helper()
		for range 3 {
			pods++
			turn := "a" + strconv.Itoa(pods)
			c.Apply(strings.Replace(pod("a", "10.0.0.1", "True"), "app: llama", "app: llama, turn: "+turn, 1))
			c.Await("the pod is seen", func() bool { is := f.set.Load(); return len(is.Pods) == 1 && is.Pods[0].Labels["turn"] == turn })
		}
		c.Delete("apiVersion: v1\nkind: Pod\nmetadata: {name: a}")
		c.sees(f, "Pod", 0)
		if f.network() != was {
			t.Errorf("there is another Network: %s", what)
		}
	}
	was := f.network()
	same("pods came and went", was)
	c.Apply(slice)
	c.Await("a slice is seen", func() bool { return len(f.slices()) == 1 && !f.slices()[0].Endpoints[0].Ready })
	c.Apply(strings.Replace(slice, "ready: false", "ready: true", 1))
	c.Await("its endpoint is ready", func() bool { return f.slices()[0].Endpoints[0].Ready })
	same("a slice came and changed", was)
	want := []objects.Slice{{
		Name: objects.Name{Namespace: "default", Name: "s-1"}, Service: objects.Name{Namespace: "default", Name: "s"}, Type: objects.IPv6,
		Endpoints: []objects.SliceEndpoint{{Address: netip.MustParseAddr("fd00::7"), Ready: true, Serving: true}},
		Ports:     []objects.SlicePort{{Name: "http", Number: 8080, Protocol: "TCP"}},
	}}
	once, err := kube.Read(t.Context(), readerOfNetwork(c), "", withNetwork)
	if err != nil || !reflect.DeepEqual(f.slices(), want) || !reflect.DeepEqual(once.Slices, want) ||
		f.world.Load().Objects["EndpointSlice"] != 1 {
		t.Errorf("the slices are %+v, and read once %+v, %v", f.slices(), once.Slices, err)
	}
	c.Delete(slice)
	c.Await("the slice is gone", func() bool { return len(f.slices()) == 0 })
	same("a slice went", was)

	g := apiserver.ReadObjects(t, attached["Gateway"])[0]
	for what, patch := range map[string]string{
		"annotations": `{"metadata": {"annotations": {"a": "b"}}}`,
		"status":      `{"status": {"addresses": [{"type": "IPAddress", "value": "10.96.0.7"}]}}`,
	} {
		var sub []string
		if what == "status" {
			sub = []string{what}
		}
		if _, err := c.At(g).Patch(t.Context(), "g", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, sub...); err != nil {
			t.Fatal(err)
		}
		same(what+" of a Gateway", was)
	}
	c.Delete(attached["Gateway"])
	another("a Gateway is gone", was)

	there := map[string]int{"Namespace": 4, "Service": 1}
	for _, kind := range slices.Sorted(maps.Keys(attached)) {
		text := attached[kind]
		was := f.network()
		c.Apply(text)
		another("of "+kind+" one came", was)
		c.sees(f, kind, there[kind]+1)
		was = f.network()
		o := apiserver.ReadObjects(t, text)[0]
		if _, err := c.At(o).Patch(t.Context(), o.GetName(), types.MergePatchType, []byte(`{"metadata": {"labels": {"edited": "yes"}}}`),
			metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		another("of "+kind+" one was edited", was)
		if kind == "Namespace" { // without a namespace controller, a namespace is never removed
			continue
		}
		was = f.network()
		c.Delete(text)
		another("of "+kind+" one went", was)
		c.sees(f, kind, there[kind])
	}
	was = f.network()
	c.Apply(model("{poolRef: {name: p}}") + "\n---\n" + list(`{addresses: ["10.0.0.9:1"]}`))
	c.sees(f, "Model", 1)
	c.sees(f, "EndpointList", 1)
	same("a Model and an EndpointList came", was)

	for _, text := range attached {
		c.Apply(text)
	}
	for kind := range attached {
		if kind != "Namespace" {
			c.sees(f, kind, there[kind]+1)
		}
	}
	set, err := kube.Read(t.Context(), readerOfNetwork(c), "", withNetwork)
	if diff := cmp.Diff(set.Network, f.network()); err != nil || diff != "" {
		t.Errorf("%v; the Network read once and the one that is followed differ:\n%s", err, diff)
	}
	n := f.network()
	if got := objects.Build(objects.Set{Network: n}).Objects; len(n.Routes) != 1 || len(n.Pools) != 1 || len(n.Settings) != 1 ||
		got["Service"] != 2 || got["BackendTLSPolicy"] != 1 {
		t.Errorf("the Network has %v, and %d, %d, %d of what a Set has too", got, len(n.Routes), len(n.Pools), len(n.Settings))
	}
	ports := []objects.ServicePort{{Port: 80, Protocol: "TCP", AppProtocol: "kubernetes.io/h2c"}}
	if s := n.Services[1]; !cmp.Equal(s.Ports, ports) || s.Name.String() != "default/s" || n.Classes[0].Namespace != "" ||
		n.Namespaces[4].Name != "other" {
		t.Errorf("the Network is %+v", n)
	}
	c.NothingDenied("reader")
}

// A Source of one namespace also reads cluster-scoped objects, including namespaces, by whose
// labels a Gateway can allow routes.
func TestNetworkOfOneNamespace(t *testing.T) {
	c := cluster{apiserver.RunGateways(t)}
	for _, text := range attached {
		c.Apply(text)
	}
	c.In("other").Apply(attached["Gateway"] + "\n---\n" + attached["Service"])
	f := followKinds(t, readerOfNetwork(c), "default", withNetwork, slog.New(slog.DiscardHandler))
	// none is read
	want := map[string]int{
		"Pod": 0, "Model": 0, "VModel": 0, "EndpointList": 0, "EndpointSlice": 0, "Namespace": 5, "Service": 2,
		"Secret": 0, "ConfigMap": 0, "GatewaySettings": 0,
	}
	for kind := range attached {
		want[kind] = max(want[kind], 1)
	}
	c.Await("all of it is in force, and nothing else", func() bool { return maps.Equal(f.world.Load().Objects, want) && f.readable.Load() })
	set, err := kube.Read(t.Context(), readerOfNetwork(c), "default", withNetwork)
	if diff := cmp.Diff(set.Network, f.network()); err != nil || diff != "" {
		t.Errorf("%v; the Network read once and the one that is followed differ:\n%s", err, diff)
	}
	c.NothingDenied("reader")
}

// Without Gateway API nothing is wrong, and the Network lacks its objects.
func TestGatewayAPIIsOptional(t *testing.T) {
	c := newCluster(t)
	c.Apply(inferencePool("{" + base + "}"))
	var log lockedLog
	f := followKinds(t, readerOfNetwork(c), "", withNetwork,
		slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	c.own(f)
	c.sees(f, "InferencePool", 1)
	c.Await("all else is in force", f.readable.Load)
	if n := log.count("level=WARN"); n != 0 || log.count("crd=gateways.gateway.networking.k8s.io") != 1 {
		t.Errorf("it is told of by %d warnings:\n%s", n, log.String())
	}
	set, err := kube.Read(t.Context(), readerOfNetwork(c), "", withNetwork)
	if diff := cmp.Diff(set.Network, f.network()); err != nil || diff != "" || len(set.Absent) > 0 {
		t.Errorf("read once there lack %q, %v:\n%s", set.Absent, err, diff)
	}

	c.GatewayAPI()
	c.Apply(attached["Gateway"] + "\n---\n" + attached["GatewayClass"])
	c.sees(f, "Gateway", 1)
	c.sees(f, "GatewayClass", 1)
	const crd = "gateways.gateway.networking.k8s.io"
	c.Delete("apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: " + crd + "}")
	c.gone(crd)
	c.sees(f, "Gateway", 0)
	c.Await("all else is in force again", f.readable.Load) // an API server that drops a CRD refuses requests for a moment
	if f.world.Load().Objects["GatewayClass"] != 1 || len(f.network().Pools) != 1 || log.count("level=WARN msg=\"the API") != 0 {
		t.Errorf("without the CRD %s there are %v:\n%s", crd, f.world.Load().Objects, log.String())
	}
}

// An API server with Gateway API's CRDs and none of ours is the wrong one, or Headgate is not
// installed there yet.
func TestGatewayAPIDoesNotReplaceOurCRDs(t *testing.T) {
	s := apiserver.Run(t)
	s.Objects(t).GatewayAPI()
	set, err := kube.Read(t.Context(), s.Admin(), "", withNetwork)
	if err == nil || !strings.Contains(err.Error(), "kubectl apply -k manifests/crds") {
		t.Errorf("it is read as %+v, %v", set, err)
	}
}

// Kinds that are read only from folders are not requested from the API server: a permission to list
// Secrets would expose all of them.
func TestSecretsAreNotListed(t *testing.T) {
	c := cluster{apiserver.RunGateways(t)}
	c.Apply(attached["Gateway"])
	reader, table := readerOfNetwork(c), slices.Concat(withNetwork, kinds.ByName())
	if set, err := kube.Read(t.Context(), reader, "", table); err != nil || len(set.Network.Gateways) != 1 {
		t.Errorf("read once there is %+v, %v", set.Network, err)
	}
	f := followKinds(t, reader, "", table, slog.New(slog.DiscardHandler))
	c.sees(f, "Gateway", 1)
	requests := c.Requests()
	for _, r := range requests {
		if r.User.Name == "reader" && r.Object.Resource == "secrets" {
			t.Errorf("it is asked to %s secrets", r.Verb)
		}
	}
}

// readerOfNetwork is reader for both tables.
func readerOfNetwork(c cluster) *rest.Config {
	return c.Allowed("reader", `
- {apiGroups: [""], resources: [pods, services, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
- {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [list, watch]}
- {apiGroups: [inference.x-k8s.io], resources: [llmroutes, models, vmodels, poolsettings, endpointlists, gatewaysettings], verbs: [list, watch]}
- {apiGroups: [gateway.networking.k8s.io], resources: [gatewayclasses, gateways, listenersets, httproutes, grpcroutes, referencegrants, backendtlspolicies], verbs: [list, watch]}
`)
}
