package objects_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
)

func aPool(name string, labels map[string]string, ports ...int32) pool.InferencePool {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	p.Spec.Selector.MatchLabels = labels
	for _, n := range ports {
		p.Spec.TargetPorts = append(p.Spec.TargetPorts, pool.Port{Number: n})
	}
	return p
}

func aPod(name, ip string, ready bool, labels map[string]string) objects.Pod {
	pod := objects.Pod{Name: objects.Name{Namespace: "default", Name: name}, Ready: ready, Labels: labels}
	if ip != "" {
		pod.IP = netip.MustParseAddr(ip)
	}
	return pod
}

func aRoute(name, backend string, age time.Duration, models ...string) v1alpha1.LLMRoute {
	r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	if age > 0 {
		r.CreationTimestamp = metav1.NewTime(time.Unix(1e9, 0).Add(-age))
	}
	r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: backend}}
	r.Spec.ModelNames = models
	return r
}

var llama = map[string]string{"app": "llama"}

func TestEveryPortOfEverySelectedPodIsAnEndpoint(t *testing.T) {
	extra := map[string]string{"app": "llama", "extra": "x"}
	other := aPod("elsewhere", "10.0.0.9", true, llama)
	other.Name.Namespace = "other"
	ending := aPod("b", "10.0.0.2", false, llama)
	ending.Terminating = true
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000, 8001)},
		Pods: []objects.Pod{
			ending,
			aPod("a", "fd00::1", true, extra),
			aPod("starting", "", true, llama),
			aPod("stranger", "10.0.0.3", true, map[string]string{"app": "qwen"}),
			other,
		},
	})
	got := w.Pools[objects.Name{Namespace: "default", Name: "base"}].Endpoints
	b, a := objects.Name{Namespace: "default", Name: "b"}, objects.Name{Namespace: "default", Name: "a"}
	want := []objects.Endpoint{
		{Address: "10.0.0.2:8000", Pod: b, Labels: llama, Terminating: true},
		{Address: "10.0.0.2:8001", Pod: b, Labels: llama, Terminating: true},
		{Address: "[fd00::1]:8000", Pod: a, Labels: extra, Ready: true},
		{Address: "[fd00::1]:8001", Pod: a, Labels: extra, Ready: true},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

// A pod may serve only some of the pool's ports: it runs fewer ranks than others.
func TestPodServesOnItsActivePorts(t *testing.T) {
	some, none := aPod("some", "10.0.0.2", true, llama), aPod("none", "10.0.0.3", true, llama)
	some.Ports, none.Ports = []int32{8001, 9999}, []int32{}
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000, 8001)},
		Pods:  []objects.Pod{some, none, aPod("all", "10.0.0.1", true, llama)},
	})
	if got, want := w.Addresses(), []string{"10.0.0.1:8000", "10.0.0.1:8001", "10.0.0.2:8001"}; !slices.Equal(got, want) {
		t.Errorf("endpoints are %v, want %v", got, want)
	}
}

// An address that a stopping pod shares with its successor belongs to the ready one.
func TestSharedAddressBelongsToTheReadyPod(t *testing.T) {
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000)},
		Pods:  []objects.Pod{aPod("a-old", "10.0.0.2", false, llama), aPod("b-new", "10.0.0.2", true, llama)},
	})
	got := w.Pools[objects.Name{Namespace: "default", Name: "base"}].Endpoints
	if len(got) != 1 || got[0].Pod.Name != "b-new" || !got[0].Ready {
		t.Errorf("endpoints are %+v, want the one of b-new", got)
	}
}

func TestRouteAdmitsItsNamesElseItsAdapterElseItself(t *testing.T) {
	named := aRoute("named", "base", 0, "gpt-4", "gpt-4o")
	adapter := aRoute("adapter", "base", 0)
	adapter.Spec.Adapter = &v1alpha1.Adapter{Name: "sql"}
	plain := aRoute("plain", "base", 0)
	w := objects.Build(objects.Set{
		Pools:  []pool.InferencePool{aPool("base", llama, 8000)},
		Routes: []v1alpha1.LLMRoute{named, adapter, plain},
	})
	for model, want := range map[string]string{"gpt-4": "named", "gpt-4o": "named", "sql": "adapter", "plain": "plain"} {
		if r := w.Route(model); r == nil || r.Name.Name != want {
			t.Errorf("%s is admitted by %+v, want %s", model, r, want)
		}
	}
	for _, model := range []string{"named", "adapter", "", "GPT-4"} {
		if r := w.Route(model); r != nil {
			t.Errorf("%q is admitted by %s, want by none", model, r.Name)
		}
	}
	var names []string
	for _, m := range w.Models() {
		names = append(names, m.Name)
	}
	if got := strings.Join(names, " "); got != "gpt-4 gpt-4o plain sql" {
		t.Errorf("models are %s", got)
	}
}

func TestOldestRouteKeepsAContestedName(t *testing.T) {
	w := objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000)},
		Routes: []v1alpha1.LLMRoute{
			aRoute("a-young", "base", time.Hour, "m", "only-young"),
			aRoute("z-old", "base", 2*time.Hour, "m"),
		},
	})
	if got := w.Route("m").Name.Name; got != "z-old" {
		t.Errorf("m is admitted by %s, want z-old", got)
	}
	if got := w.Route("only-young").Name.Name; got != "a-young" {
		t.Errorf("only-young is admitted by %s", got)
	}
	want := []string{`LLMRoute default/a-young: model "m" is already admitted by LLMRoute default/z-old, which keeps it`}
	if diff := cmp.Diff(want, w.Problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestInconsistenciesAreProblems(t *testing.T) {
	w := objects.Build(objects.Set{
		Pools:  []pool.InferencePool{aPool("one", llama, 8000), aPool("two", llama, 8000)},
		Pods:   []objects.Pod{aPod("a", "10.0.0.1", true, llama)},
		Routes: []v1alpha1.LLMRoute{aRoute("r", "nowhere", 0)},
	})
	if got := w.Addresses(); len(got) != 1 || got[0] != "10.0.0.1:8000" {
		t.Errorf("the addresses are %v", got)
	}
	want := []string{
		"endpoint 10.0.0.1:8000 belongs to InferencePool default/one and to InferencePool default/two: each pool counts all of its load",
		"LLMRoute default/r: spec.backendRefs names InferencePool default/nowhere, which does not exist: its requests get 503",
	}
	if diff := cmp.Diff(want, w.Problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

// An adapter that is a Model of another pool than its route's is a Problem, because the route's
// engines know only its name. It is none if a source is configured for it there, or if no Model
// states more than an id.
func TestAdapterOfAnotherPool(t *testing.T) {
	model := func(name, of, source, kind string) *v1alpha1.Model {
		m := &v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		m.Spec.ID, m.Spec.PoolRef.Name, m.Spec.Source, m.Spec.Type = "sql-v2", of, source, kind
		return m
	}
	const problem = `LLMRoute default/sql: adapter "sql-v2" is a Model of InferencePool default/b, but its requests go to default/a, which has no such Model: engines there cannot find its files`
	zero := int32(0)
	for name, c := range map[string]struct {
		models   []*v1alpha1.Model
		settings []v1alpha1.PoolSettings
		weight   *int32 // weight of the pool a
		want     []string
	}{
		"it has a source for another pool": {models: []*v1alpha1.Model{model("m", "b", "/lora/sql", "")}, want: []string{problem}},
		"it is of another type there":      {models: []*v1alpha1.Model{model("m", "b", "", "sklearn")}, want: []string{problem}},
		"its name says all everywhere":     {models: []*v1alpha1.Model{model("m", "b", "", "")}},
		"it is a Model of both": {
			models: []*v1alpha1.Model{model("m", "b", "/lora/sql", ""), model("n", "a", "/lora/sql", "")},
			want:   []string{`Model default/n: requests for "sql-v2" belong to Model default/m: no request can name this Model by its id`},
		},
		"the route's pool says where": {
			models: []*v1alpha1.Model{model("m", "b", "/lora/sql", "")},
			settings: []v1alpha1.PoolSettings{someSettings("s", "a", func(s *v1alpha1.PoolSettingsSpec) {
				s.Placement = &v1alpha1.Placement{Source: "/models/{id}"}
			})},
		},
		"no request goes there": {models: []*v1alpha1.Model{model("m", "b", "/lora/sql", "")}, weight: &zero},
		"nobody declares it":    {},
	} {
		r := aRoute("sql", "a", 0, "text-to-sql")
		r.Spec.Adapter = &v1alpha1.Adapter{Name: "sql-v2"}
		r.Spec.BackendRefs[0].Weight = c.weight
		w := objects.Build(objects.Set{
			Pools:  []pool.InferencePool{aPool("a", llama, 8000), aPool("b", map[string]string{"app": "b"}, 8000)},
			Routes: []v1alpha1.LLMRoute{r}, Models: c.models, Settings: c.settings,
		})
		if diff := cmp.Diff(c.want, w.Problems); diff != "" {
			t.Errorf("%s: problems (-want +got):\n%s", name, diff)
		}
	}
}

func TestWeightsDefaultToOne(t *testing.T) {
	zero := int32(0)
	r := aRoute("r", "base", 0)
	r.Spec.BackendRefs = append(r.Spec.BackendRefs, v1alpha1.BackendReference{Name: "next", Weight: &zero})
	w := objects.Build(objects.Set{Routes: []v1alpha1.LLMRoute{r}})
	want := []objects.Backend{
		{Pool: objects.Name{Namespace: "default", Name: "base"}, Weight: 1},
		{Pool: objects.Name{Namespace: "default", Name: "next"}, Weight: 0},
	}
	if diff := cmp.Diff(want, w.Route("r").Backends); diff != "" {
		t.Errorf("backends (-want +got):\n%s", diff)
	}
}

// Each kind is counted: a Model that requests may name is a route, but not an LLMRoute.
func TestObjectsAreCounted(t *testing.T) {
	model := v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}}
	model.Spec.PoolRef.Name = "base"
	got := objects.Build(objects.Set{
		Pools:    []pool.InferencePool{aPool("base", llama, 8000, 8001)},
		Routes:   []v1alpha1.LLMRoute{aRoute("a", "base", 0), aRoute("b", "base", 0)},
		Pods:     []objects.Pod{aPod("a", "10.0.0.1", true, llama), aPod("b", "", false, nil), aPod("c", "10.0.0.3", true, llama)},
		Lists:    make([]objects.List, 4),
		Settings: make([]v1alpha1.PoolSettings, 5),
		Models:   []*v1alpha1.Model{&model},
		VModels:  []v1alpha1.VModel{aVModel("v", "", "m", 0), aVModel("w", "", "m", 0)},
	}).Objects
	want := map[string]int{"InferencePool": 1, "LLMRoute": 2, "Pod": 3, "EndpointList": 4, "PoolSettings": 5, "Model": 1, "VModel": 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if none := objects.Build(objects.Set{}).Objects; len(none) != len(want) || none["Model"] != 0 {
		t.Errorf("of nothing there is %v", none)
	}

	// A kind that both a Network and a Set have is counted once, in the Set: a pool of --endpoints
	// is in no Network.
	got = objects.Build(objects.Set{
		Pools: []pool.InferencePool{aPool("base", llama, 8000), aPool("endpoints", llama, 8000)},
		Network: &objects.Network{
			Gateways: make([]gatewayv1.Gateway, 2), Namespaces: make([]objects.Namespace, 3), Services: make([]objects.Service, 4),
			KeyPairs: make([]objects.KeyPair, 5),
			Pools:    []pool.InferencePool{aPool("base", llama, 8000)},
		},
	}).Objects
	want = map[string]int{
		"InferencePool": 2, "LLMRoute": 0, "Pod": 0, "EndpointList": 0, "PoolSettings": 0, "Model": 0, "VModel": 0, "Gateway": 2,
		"Namespace": 3, "Service": 4, "EndpointSlice": 0, "Secret": 5,
		"GatewayClass": 0, "GatewaySettings": 0, "ConfigMap": 0, "ListenerSet": 0, "HTTPRoute": 0, "GRPCRoute": 0, "ReferenceGrant": 0,
		"BackendTLSPolicy": 0,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("with a Network (-want +got):\n%s", diff)
	}
}

// There may be thousands of slices, which a World does not use: it must not copy them.
func TestSlicesPassThroughTheWorld(t *testing.T) {
	all := make([]objects.Slice, 2)
	w := objects.Build(objects.Set{Slices: all, Network: new(objects.Network)})
	if len(w.Slices) != 2 || &w.Slices[0] != &all[0] || w.Objects["EndpointSlice"] != 2 {
		t.Errorf("the World has the slices %v, and counts %v", w.Slices, w.Objects)
	}
}

func TestNamesWithoutANamespace(t *testing.T) {
	for _, c := range []struct {
		kind string
		name objects.Name
		want string
	}{
		{"Gateway", objects.Name{Namespace: "default", Name: "g"}, "Gateway default/g"},
		{"GatewayClass", objects.Name{Name: "headgate"}, "GatewayClass headgate"},
		{"LLMRoute", objects.Name{Namespace: "default"}, "LLMRoute default/"},
		{"GatewayClass", objects.Name{}, "GatewayClass"},
	} {
		if got := (objects.Object{Kind: c.kind, Name: c.name}).String(); got != c.want {
			t.Errorf("%v is %q, want %q", c.name, got, c.want)
		}
	}
}

func TestGatewayNeedsAClassAndUniqueListeners(t *testing.T) {
	listener := func(name string) gatewayv1.Listener {
		return gatewayv1.Listener{Name: gatewayv1.SectionName(name), Port: 80, Protocol: gatewayv1.HTTPProtocolType}
	}
	for _, c := range []struct {
		name, class string
		listeners   []gatewayv1.Listener
		want        string
	}{
		{"g", "headgate", []gatewayv1.Listener{listener("a"), listener("b")}, "[]"},
		{"G", "headgate", []gatewayv1.Listener{listener("a")}, "[metadata.name]"},
		{"g", "", []gatewayv1.Listener{listener("a")}, "[spec.gatewayClassName]"},
		{"g", "headgate", nil, "[spec.listeners]"},
		{
			"g", "headgate",
			[]gatewayv1.Listener{listener("a"), listener("b"), listener("a"), listener(""), listener("")},
			"[spec.listeners[2].name spec.listeners[3].name spec.listeners[4].name]",
		},
	} {
		g := gatewayv1.Gateway{
			ObjectMeta: metav1.ObjectMeta{Name: c.name},
			Spec:       gatewayv1.GatewaySpec{GatewayClassName: gatewayv1.ObjectName(c.class), Listeners: c.listeners},
		}
		fields := []string{}
		for _, fault := range objects.CheckGateway(&g) {
			fields = append(fields, fault.Field)
		}
		if got := fmt.Sprint(fields); got != c.want {
			t.Errorf("%+v has faults at %s, want %s", c, got, c.want)
		}
	}
}
