package stream_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
)

// address is the endpoint of ns/base in the fleet of the scenarios:
//
//	ns/base    10.0.0.1:8000 with the base model "llama" and the adapter "sql-v2". Routes admit
//	           "text-to-sql" for that adapter, "gpt-4" and "llama" for the base model, "missing"
//	           for an adapter without a copy, and "nowhere" for a pool that does not exist.
//	           Gateways call base-picker:9002.
//	ns/open    data-parallel ranks: 10.0.1.1, 10.0.1.2 and [fd00::1], each with the ports 8000
//	           and 8001. No route names the pool. The endpoints list "qwen", and the path of its
//	           weights, "/models/qwen.gguf". Gateways call open-picker:9002.
//	ns/silent  10.0.2.1:8000, which lists no models. No route names the pool. Gateways call
//	           silent-picker:9002.
//	ns/empty   no endpoints. Gateways call empty-picker:9002.
//	ns/sticky  10.0.3.1 to 10.0.3.4:8000 with "sticky". PoolSettings define session affinity by
//	           the header x-session, two retries, a request timeout of 90 s, and the default model
//	           "sticky". Gateways call sticky-picker:9002.
//	ns/keyed   10.0.4.1:8000, and 10.0.4.2:8000, which is a pod of another namespace. Each
//	           destination header names both endpoints, and requests carry the token "s3cret".
//	           Gateways call keyed-picker:9002.
//
// The Gateway ns/g has three listeners. The routes of "text-to-sql", "gpt-4", "llama" and "missing"
// attach to the listener chat. Routes of "sticky", and of "gpt-4" for ns/sticky, attach to the
// listener other. No route attaches to the listener none.
const address = "10.0.0.1:8000"

// at attaches a route to a listener of the Gateway.
func at(listener string, r v1alpha1.LLMRoute) v1alpha1.LLMRoute {
	r.Spec.ParentRefs = []v1alpha1.ParentReference{{Name: "g", SectionName: &listener}}
	return r
}

// aNetwork returns the Gateway ns/g and the objects that attach to it.
func aNetwork(routes []v1alpha1.LLMRoute, pools []pool.InferencePool) *objects.Network {
	n := &objects.Network{Classes: make([]gatewayv1.GatewayClass, 1), Gateways: make([]gatewayv1.Gateway, 1), Routes: routes, Pools: pools}
	n.Classes[0].Name, n.Classes[0].Spec.ControllerName = "headgate", attach.Controller
	g := &n.Gateways[0]
	g.Namespace, g.Name, g.Spec.GatewayClassName = "ns", "g", "headgate"
	for i, name := range []gatewayv1.SectionName{"chat", "other", "none"} {
		g.Spec.Listeners = append(g.Spec.Listeners,
			gatewayv1.Listener{Name: name, Port: int32(80 + i), Protocol: gatewayv1.HTTPProtocolType})
	}
	return n
}

func aRoute(name, pool, adapter string) v1alpha1.LLMRoute {
	r := v1alpha1.LLMRoute{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "for-" + name}}
	r.Spec.ModelNames = []string{name}
	r.Spec.BackendRefs = []v1alpha1.BackendReference{{Name: pool}}
	if adapter != "" {
		r.Spec.Adapter = &v1alpha1.Adapter{Name: adapter}
	}
	return r
}

func aPool(name string, ports ...int32) pool.InferencePool {
	p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	p.Spec.Selector.MatchLabels = map[string]string{"pool": name}
	for _, n := range ports {
		p.Spec.TargetPorts = append(p.Spec.TargetPorts, pool.Port{Number: n})
	}
	p.Spec.EndpointPickerRef = &pool.EndpointPickerRef{Name: name + "-picker", Port: &pool.Port{Number: 9002}}
	return p
}

func aPod(pool, ip string) objects.Pod {
	return objects.Pod{
		Name: objects.Name{Namespace: "ns", Name: "pod-" + ip}, IP: netip.MustParseAddr(ip), Ready: true,
		Labels: map[string]string{"pool": pool, engine.KindLabel: string(engine.Triton)}, // Triton accepts gRPC
	}
}

func newFleet() *fleet.Fleet { return newFleetWith(fleet.Config{}) }

func newFleetWith(c fleet.Config, more ...func(*objects.Set)) *fleet.Fleet {
	f := fleet.New(c)
	attempts := int32(2)
	sticky := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sticky"}}
	sticky.Spec.PoolRef.Name = "sticky"
	sticky.Spec.SessionAffinity = &v1alpha1.SessionAffinity{Header: "x-session"}
	sticky.Spec.DefaultModel = "sticky"
	sticky.Spec.Retry = &v1alpha1.Retry{Attempts: &attempts}
	sticky.Spec.Timeouts = &v1alpha1.PoolTimeouts{Request: &metav1.Duration{Duration: 90 * time.Second}}
	keyed := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "keyed"}}
	keyed.Spec.PoolRef.Name, keyed.Spec.Authorization = "keyed", v1alpha1.AuthorizationOfEngine
	keyed.Spec.Retry = &v1alpha1.Retry{Attempts: &attempts}
	keyed.Spec.EngineToken = &v1alpha1.EngineToken{SecretRef: v1alpha1.SecretKeyReference{Name: "keys"}}
	theirs, theirPod := aPool("theirs", 8000), aPod("theirs", "10.0.4.2")
	theirs.Namespace, theirPod.Name.Namespace = "other", "other"
	second := aRoute("gpt-4", "sticky", "")
	second.Name = "for-gpt-4-too"
	set := objects.Set{
		Pools: []pool.InferencePool{
			aPool("base", 8000), aPool("open", 8000, 8001), aPool("silent", 8000), aPool("empty", 8000), aPool("sticky", 8000),
			aPool("keyed", 8000), theirs,
		},
		Routes: []v1alpha1.LLMRoute{
			at("chat", aRoute("text-to-sql", "base", "sql-v2")), at("chat", aRoute("gpt-4", "base", "")),
			at("chat", aRoute("llama", "base", "")),
			at("chat", aRoute("missing", "base", "nobody")), aRoute("nowhere", "no-pool", ""), at("other", aRoute("sticky", "sticky", "")),
			at("other", second),
		},
		Pods: []objects.Pod{
			aPod("base", "10.0.0.1"), aPod("open", "10.0.1.1"), aPod("open", "10.0.1.2"), aPod("open", "fd00::1"),
			aPod("silent", "10.0.2.1"),
			aPod("sticky", "10.0.3.1"), aPod("sticky", "10.0.3.2"), aPod("sticky", "10.0.3.3"), aPod("sticky", "10.0.3.4"),
			aPod("keyed", "10.0.4.1"), theirPod,
		},
		Lists: []objects.List{{EndpointList: v1alpha1.EndpointList{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "more", Labels: map[string]string{"pool": "keyed"}},
			Spec:       v1alpha1.EndpointListSpec{Addresses: []string{"10.0.4.2:8000"}},
		}}},
		Settings: []v1alpha1.PoolSettings{sticky, keyed},
	}
	for _, add := range more {
		add(&set)
	}
	set.Network = aNetwork(set.Routes, set.Pools)
	w := objects.Build(set)
	w.Offers = attach.Of(w.Network).Offers(w)
	f.SetWorld(w)
	for _, a := range w.Addresses() {
		f.Scrape(a).Succeeded(engine.Load{})
		switch at := netip.MustParseAddrPort(a).Addr().String(); {
		case a == address:
			f.SetModels(a, engine.Models{Base: []string{"llama"}, Adapters: []string{"sql-v2"}})
		case at[:4] == "fd00" || at[:7] == "10.0.1.":
			f.SetModels(a, engine.Models{Base: []string{"qwen", "/models/qwen.gguf"}})
		case at[:7] == "10.0.3.":
			f.SetModels(a, engine.Models{Base: []string{"sticky"}})
		default:
			f.SetModels(a, engine.Models{Unlisted: true})
		}
	}
	f.Made("resp_base", fleet.Maker{Pool: objects.Name{Namespace: "ns", Name: "base"}, Address: address})
	f.Made("resp_known", fleet.Maker{Pool: objects.Name{Namespace: "ns", Name: "open"}, Address: "10.0.1.2:8001"})
	f.SetWorld(w) // publishes a new view
	return f
}

// newFleetOfVModels returns the fleet of the scenarios with these VModels added:
//
//	sql      in ns/base, for the adapter "sql-v2"; a route at chat admits "analyst" for it
//	tried    in ns/sticky, for the adapter "sticky-v1"; half of its requests go to "sticky-v2"
//	runtime  in ns/base, for "mm-1", a model of a model runtime
//	lost     in ns/base, for the adapter "nobody", which has no copy
func newFleetOfVModels(c fleet.Config, more ...func(*objects.Set)) *fleet.Fleet {
	f := newFleetWith(c, append(more, func(s *objects.Set) {
		tried := aVModel("tried", "sticky", "sticky-v1")
		tried.Spec.Canary = &v1alpha1.Canary{Target: "sticky-v2", Percent: 50}
		s.VModels = []v1alpha1.VModel{
			aVModel("sql", "base", "sql-v2"), tried, aVModel("runtime", "base", "mm-1"),
			aVModel("lost", "base", "nobody"),
		}
		s.Routes = append(s.Routes, at("chat", aRoute("analyst", "base", "sql")))
		mm := v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "mm-1"}}
		mm.Spec.PoolRef.Name, mm.Spec.Type = "base", "onnx"
		s.Models = []*v1alpha1.Model{&mm}
	})...)
	for _, ip := range []string{"10.0.3.1", "10.0.3.2", "10.0.3.3", "10.0.3.4"} {
		f.SetModels(ip+":8000", engine.Models{Base: []string{"sticky"}, Adapters: []string{"sticky-v1", "sticky-v2"}})
	}
	f.SetWorld(f.View().World) // publishes a new view
	return f
}

// newFleetOfRPCs returns the fleet of newFleetOfVModels with rules for gRPC methods:
//
//	ns/base    calls of my.Service/Run name the model in field 1 of field 2; calls of ModelInfer
//	           name a model that is no VModel; other methods are rejected
//	ns/sticky  calls of my.Service/Run name the model in field 3
func newFleetOfRPCs() *fleet.Fleet {
	return newFleetOfVModels(fleet.Config{}, func(s *objects.Set) {
		base := v1alpha1.PoolSettings{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "base"}}
		base.Spec.PoolRef.Name, base.Spec.AllowOtherRPCs = "base", new(false)
		base.Spec.RPCConfigs = map[string]v1alpha1.RPCConfig{
			"my.Service/Run": {IDExtractionPath: []int32{2, 1}, VModelID: true},
			"inference.GRPCInferenceService/ModelInfer": {IDExtractionPath: []int32{1}},
			"mmesh.ModelRuntime/loadModel":              {IDExtractionPath: []int32{1}},
			"my.Service/Headers":                        {},
		}
		s.Settings[0].Spec.RPCConfigs = map[string]v1alpha1.RPCConfig{"my.Service/Run": {IDExtractionPath: []int32{3}, VModelID: true}}
		s.Settings = append(s.Settings, base)
	})
}

func aVModel(name, pool, target string) v1alpha1.VModel {
	v := v1alpha1.VModel{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	v.Spec.PoolRef.Name, v.Spec.Target = pool, target
	return v
}

// newServer returns a server with a fixed random seed, and the outcomes that it observes.
func newServer(tb testing.TB, f *fleet.Fleet, change func(*stream.Config)) (*stream.Server, *[]outcome.Outcome) {
	tb.Helper()
	observed := new([]outcome.Outcome)
	var mu sync.Mutex // guards random: several waiting requests may be decided at the same time
	random := rand.New(rand.NewPCG(1, 2))
	tokens := engineclient.NewTokens(nil)
	if _, err := tokens.Set("ns/keys/token", []byte("s3cret")); err != nil {
		tb.Fatal(err)
	}
	c := stream.Config{
		Tokens: tokens,
		Fleet:  f, Meter: metrics.New(f), Log: slog.New(slog.DiscardHandler), Settings: settings.Default(),
		Observe: func(o outcome.Outcome) { *observed = append(*observed, o) },
		Random: func() uint64 {
			mu.Lock()
			defer mu.Unlock()
			return random.Uint64()
		},
	}
	c.Settings.Policy = pick.Policy{Threshold: 4}
	if change != nil {
		change(&c)
	}
	return stream.New(c), observed
}

func inFlight(f *fleet.Fleet) int64 {
	n := int64(0)
	for _, e := range fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) }) {
		n += e.InFlight
	}
	return n
}

// places lists the endpoints with requests in flight.
func places(f *fleet.Fleet) string {
	var out strings.Builder
	for _, e := range fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) }) {
		if e.InFlight > 0 {
			fmt.Fprintf(&out, " %s=%d", e.Address, e.InFlight)
		}
	}
	return out.String()
}
