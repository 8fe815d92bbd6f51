package statuswriter_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/internal/objects/kube"
	"github.com/headgate/headgate/test/apiserver"
)

const gatewayAPI = "apiVersion: gateway.networking.k8s.io/v1\n"

const others = gatewayv1.GatewayController("example.com/other")

// gatewayObjects contains one object of each kind of Gateway API to whose status Headgate writes.
const gatewayObjects = gatewayAPI +
	"kind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n" +
	gatewayAPI + "kind: Gateway\nmetadata: {name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP}], allowedListeners: {namespaces: {from: Same}}}\n---\n" +
	gatewayAPI + "kind: ListenerSet\nmetadata: {name: l}\nspec: {parentRef: {name: g}, listeners: [{name: more, port: 81, protocol: HTTP}]}\n---\n" +
	gatewayAPI + "kind: GRPCRoute\nmetadata: {name: r}\nspec: {parentRefs: [{name: g, sectionName: http}], hostnames: [grpc.test], rules: [{backendRefs: [{name: missing, port: 80}]}]}\n---\n" +
	gatewayAPI + "kind: HTTPRoute\nmetadata: {name: foreign}\nspec: {parentRefs: [{name: another}]}\n"

func httpRoute(name, parents string) string {
	return gatewayAPI + "kind: HTTPRoute\nmetadata: {name: " + name + "}\nspec: {parentRefs: [" + parents + "], hostnames: [http.test], " +
		"rules: [{backendRefs: [{name: p, group: inference.networking.k8s.io, kind: InferencePool}]}]}"
}

// newGateways returns a cluster with the CRDs of Gateway API and an object of each kind.
func newGateways(t *testing.T) cluster {
	t.Helper()
	c := cluster{apiserver.RunGateways(t)}
	c.Apply(gatewayObjects + "---\n" + httpRoute("h", "{name: g, sectionName: http}, {name: g, sectionName: nothing}") + "\n---\n" +
		route("a", "{parentRefs: [{name: g}], backendRefs: [{name: p}], modelNames: [sql]}") + "\n---\n" + inferencePool(""))
	return c
}

// gatewayWriter returns the config of a user with exactly the permissions that the comment of
// Writer lists.
func gatewayWriter(c cluster, name string) *rest.Config {
	return c.Allowed(name, `
- {apiGroups: [inference.x-k8s.io], resources: [llmroutes], verbs: [get, list]}
- {apiGroups: [inference.x-k8s.io], resources: [models, vmodels], verbs: [list]}
- {apiGroups: [inference.x-k8s.io], resources: [llmroutes/status], verbs: [update]}
- {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [get, list]}
- {apiGroups: [inference.networking.k8s.io], resources: [inferencepools/status], verbs: [update]}
- {apiGroups: [gateway.networking.k8s.io], resources: [gatewayclasses, gateways, listenersets, httproutes, grpcroutes], verbs: [get, list]}
- {apiGroups: [gateway.networking.k8s.io], resources: [gatewayclasses/status, gateways/status, listenersets/status, httproutes/status, grpcroutes/status], verbs: [update]}
- {apiGroups: [gateway.networking.k8s.io], resources: [gatewayclasses], verbs: [patch]}
- {apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], resourceNames: [gateways.gateway.networking.k8s.io], verbs: [get]}
`)
}

// gateways returns the input of statuses for the objects in the API server.
func (c cluster) gateways(facts conditions.Facts) conditions.Input {
	c.Helper()
	set, err := kube.Read(c.Context(), c.Admin(), "", kinds.WithNetwork())
	if err != nil {
		c.Fatal(err)
	}
	a := attach.Of(set.Network)
	return conditions.Input{
		Attachments: a, Plans: plan.Of(a, set.Network, plan.Known{}), Network: set.Network, Facts: facts, World: objects.Build(set),
	}
}

// wrote writes the current statuses with a new Writer, then closes it. It returns the requests of
// that user, without the lists of Models and VModels.
func (c cluster) wrote(typed client.Client, user string, in conditions.Input) []string {
	c.Helper()
	before := c.Asked(user)
	r := c.open(typed, always)
	setAll(r, in)
	if err := r.Close(); err != nil {
		c.Fatal(err)
	}
	return c.Calls(user)[before+2:]
}

// setAll sets the whole input of a Writer. Nothing is known of endpoints.
func setAll(r *statuswriter.Writer, in conditions.Input) {
	r.SetGateways(in)
	if in.World != nil {
		r.SetWorld(in.World)
		r.SetObserved(conditions.Observed{})
	}
}

// get reads an object, which may be in the namespace "default" or a GatewayClass.
func get[O client.Object](c cluster, name string, o O) O {
	c.Helper()
	key := client.ObjectKey{Namespace: "default", Name: name}
	if _, class := any(o).(*gatewayv1.GatewayClass); class {
		key.Namespace = ""
	}
	if err := c.typed(c.Admin()).Get(c.Context(), key, o); err != nil {
		c.Fatal(err)
	}
	return o
}

// says fails the test unless the conditions, as "Type Status Reason", equal want and have the given
// generation.
func says(t *testing.T, what string, are []metav1.Condition, generation int64, want ...string) {
	t.Helper()
	var got []string
	for _, c := range are {
		got = append(got, fmt.Sprint(c.Type, " ", c.Status, " ", c.Reason))
		if c.ObservedGeneration != generation || c.LastTransitionTime.IsZero() {
			t.Errorf("%s: %s has generation %d and time %v, want generation %d",
				what, c.Type, c.ObservedGeneration, c.LastTransitionTime, generation)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has the conditions %q, want %q", what, got, want)
	}
}

var reached = conditions.Facts{
	Gateways: map[objects.Name]conditions.Gateway{{Namespace: "default", Name: "g"}: {
		Addresses: []gatewayv1.GatewayStatusAddress{{Type: ptr.To(gatewayv1.IPAddressType), Value: "10.0.0.1"}},
		Ports:     map[int32]conditions.Port{80: {}, 81: {}},
	}},
}

func TestGatewayStatusIsWrittenOnce(t *testing.T) {
	c := newGateways(t)
	typed := c.typed(gatewayWriter(c, "writer"))
	in := c.gateways(reached)
	c.wrote(typed, "writer", in)

	class := get(c, "headgate", new(gatewayv1.GatewayClass))
	says(t, "the class", class.Status.Conditions, 1, "Accepted True Accepted", "SupportedVersion True SupportedVersion")
	if n := len(class.Status.SupportedFeatures); n < 20 {
		t.Errorf("the GatewayClass has %d features", n)
	}
	listener := []string{
		"Accepted True Accepted", "Programmed True Programmed", "ResolvedRefs True ResolvedRefs",
		"Conflicted False NoConflicts",
	}
	g := get(c, "g", new(gatewayv1.Gateway))
	says(t, "the Gateway", g.Status.Conditions, 1, "Accepted True Accepted", "Programmed True Programmed")
	if s := g.Status; len(s.Addresses) != 1 || s.Addresses[0].Value != "10.0.0.1" || *s.AttachedListenerSets != 1 ||
		len(s.Listeners) != 1 || s.Listeners[0].AttachedRoutes != 3 {
		t.Errorf("the Gateway's status is %+v", s)
	}
	says(t, "its listener", g.Status.Listeners[0].Conditions, 1, listener...)
	set := get(c, "l", new(gatewayv1.ListenerSet))
	says(t, "the ListenerSet", set.Status.Conditions, 1, "Accepted True Accepted", "Programmed True Programmed")
	says(t, "its listener", set.Status.Listeners[0].Conditions, 1, listener...)
	h := get(c, "h", new(gatewayv1.HTTPRoute)).Status.Parents
	if len(h) != 2 || h[0].ControllerName != attach.Controller {
		t.Fatalf("the parents of the HTTPRoute are %+v", h)
	}
	says(t, "the HTTPRoute", h[0].Conditions, 1, "Accepted True Accepted", "ResolvedRefs True ResolvedRefs")
	says(t, "the HTTPRoute elsewhere", h[1].Conditions, 1, "Accepted False NoMatchingParent", "ResolvedRefs True ResolvedRefs")
	says(t, "the GRPCRoute", get(c, "r", new(gatewayv1.GRPCRoute)).Status.Parents[0].Conditions, 1, "Accepted True Accepted",
		"ResolvedRefs False BackendNotFound")
	says(t, "the pool", get(c, "p", new(pool.InferencePool)).Status.Parents[0].Conditions, 1, "Accepted True Accepted",
		"ResolvedRefs True ResolvedRefs", "Ready False NoEndpoints", "Endpoints False NoEndpoints")
	says(t, "the LLMRoute", c.routeNamed("a").Status.Parents[0].Conditions, 1, "Accepted True Accepted", "ResolvedRefs True ResolvedRefs")
	says(t, "the LLMRoute itself", c.routeNamed("a").Status.Conditions, 1, "Accepted True Accepted", "ResolvedRefs True ResolvedRefs",
		"Ready False NoEndpoints")
	if n := len(get(c, "foreign", new(gatewayv1.HTTPRoute)).Status.Parents); n > 0 {
		t.Errorf("an HTTPRoute of other controllers has %d parents", n)
	}

	// The next leader lists the objects of each kind, and writes nothing.
	again := c.wrote(typed, "writer", c.gateways(reached))
	slices.Sort(again)
	if want := []string{
		"get customresourcedefinitions gateways.gateway.networking.k8s.io", "list gatewayclasses", "list gateways",
		"list grpcroutes", "list httproutes", "list inferencepools", "list listenersets", "list llmroutes",
	}; !slices.Equal(again, want) {
		t.Errorf("later calls are %q, want %q", again, want)
	}

	// A new leader writes only changes. New objects that refer to no Gateway of ours cause no
	// requests.
	r := c.open(typed, always)
	before := len(c.Calls("writer"))
	setAll(r, in)
	c.Await("it has listed all", func() bool { return len(c.Calls("writer")) == before+len(again) })
	bare, network := in, *in.Network
	network.HTTPRoutes, bare.Network = nil, &network
	r.SetGateways(bare) // as if the routes did not exist for a moment
	r.SetGateways(in)
	c.Await("it has read the route", func() bool { return len(c.Calls("writer")) > before+len(again) })
	c.Apply(gatewayAPI + "kind: HTTPRoute\nmetadata: {name: new}\nspec: {parentRefs: [{name: another}]}")
	c.Apply(httpRoute("h", "{name: g, sectionName: http}, {name: g, sectionName: other}"))
	r.SetGateways(in)
	r.SetGateways(c.gateways(reached))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if calls := c.Calls("writer")[before+len(again):]; !slices.Equal(calls,
		[]string{"get httproutes h", "get httproutes h", "update httproutes/status h"}) {
		t.Errorf("the calls for one change are %q", calls)
	}
	h = get(c, "h", new(gatewayv1.HTTPRoute)).Status.Parents
	if len(h) != 2 || *h[1].ParentRef.SectionName != "other" {
		t.Errorf("the parents are %+v", h)
	}
	says(t, "the HTTPRoute", h[0].Conditions, 2, "Accepted True Accepted", "ResolvedRefs True ResolvedRefs")
	c.NothingDenied("writer")
}

// interrupted is a client that lets another client write before each of its writes.
type interrupted struct {
	client.Client
	by func()
}

func (i *interrupted) Patch(ctx context.Context, o client.Object, p client.Patch, options ...client.PatchOption) error {
	i.by()
	return i.Client.Patch(ctx, o, p, options...)
}

func (i *interrupted) Status() client.SubResourceWriter {
	return interruptedStatus{i.Client.Status(), i.by}
}

type interruptedStatus struct {
	client.SubResourceWriter
	by func()
}

func (i interruptedStatus) Update(ctx context.Context, o client.Object, options ...client.SubResourceUpdateOption) error {
	i.by()
	return i.SubResourceWriter.Update(ctx, o, options...)
}

// The status of other controllers stays, even if they write at the same time. Our status is removed
// when it no longer applies.
func TestStatusOfOtherControllersStays(t *testing.T) {
	c := newGateways(t)
	typed := c.typed(gatewayWriter(c, "writer"))
	admin := c.typed(c.Admin())
	theirs := func(name string) gatewayv1.RouteParentStatus {
		return gatewayv1.RouteParentStatus{
			ParentRef: gatewayv1.ParentReference{Name: gatewayv1.ObjectName(name)}, ControllerName: others,
			Conditions: []metav1.Condition{{
				Type: "Accepted", Status: "True", Reason: "Theirs", LastTransitionTime: metav1.NewTime(time.Unix(1e9, 0)),
			}},
		}
	}
	write := func(name string) {
		h := get(c, "h", new(gatewayv1.HTTPRoute))
		h.Status.Parents = append(h.Status.Parents, theirs(name))
		if err := admin.Status().Update(t.Context(), h); err != nil {
			t.Error(err)
		}
	}
	parents := func() (all []string) {
		for _, p := range get(c, "h", new(gatewayv1.HTTPRoute)).Status.Parents {
			all = append(all, fmt.Sprint(p.ControllerName, " ", p.ParentRef.Name, " ", ptr.Deref(p.ParentRef.SectionName, ""), " ",
				p.Conditions[0].Reason))
		}
		return all
	}
	expect := func(want ...string) {
		t.Helper()
		if got := parents(); !slices.Equal(got, want) {
			t.Errorf("the parents are %q, want %q", got, want)
		}
	}
	const ours = string(attach.Controller)
	write("g")
	in := c.gateways(reached)
	in.Network.Gateways, in.Network.Classes, in.Network.Listeners, in.Network.GRPCRoutes, in.Network.Pools, in.Network.Routes = nil, nil,
		nil, nil, nil, nil
	in.Attachments.Gateways, in.Plans.Gateways, in.World = nil, nil, nil
	c.wrote(&interrupted{typed, sync.OnceFunc(func() { write("late") })}, "writer", in)
	if n := count(c.Calls("writer"), "update httproutes/status h"); n != 2 {
		t.Errorf("%d writes, want one that is rejected and one that is accepted", n)
	}
	expect("example.com/other g  Theirs", "example.com/other late  Theirs", ours+" g http Accepted", ours+" g nothing NoMatchingParent")

	c.Apply(httpRoute("h", "{name: g, sectionName: http}"))
	c.wrote(typed, "writer", c.gateways(reached))
	expect("example.com/other g  Theirs", "example.com/other late  Theirs", ours+" g http Accepted")

	c.Apply(httpRoute("h", "{name: another}"))
	newer := c.gateways(reached)
	c.Apply(httpRoute("h", "{name: g}"))
	c.wrote(typed, "writer", newer) // a status for an older spec of the route
	expect("example.com/other g  Theirs", "example.com/other late  Theirs", ours+" g http Accepted")
	c.Apply(httpRoute("h", "{name: another}"))
	c.wrote(typed, "writer", c.gateways(reached))
	expect("example.com/other g  Theirs", "example.com/other late  Theirs")

	// When a Gateway is deleted, the status about it is removed from other objects.
	llm := c.routeNamed("a")
	if len(llm.Status.Parents) != 1 {
		t.Errorf("the parents of the LLMRoute are %+v", llm.Status.Parents)
	}
	c.Delete(gatewayAPI + "kind: Gateway\nmetadata: {name: g}")
	r := c.open(typed, always)
	r.SetWorld(c.world())
	r.SetObserved(standalone)
	r.SetGateways(c.gateways(conditions.Facts{}))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	llm = c.routeNamed("a")
	if n := len(get(c, "p", new(pool.InferencePool)).Status.Parents); len(llm.Status.Parents) > 0 || n > 0 {
		t.Errorf("the parents of the LLMRoute are %+v, and the pool has %d", llm.Status.Parents, n)
	}
	if got := llm.Status.Models; !slices.Equal(got, []string{"sql"}) ||
		meta.FindStatusCondition(llm.Status.Conditions, v1alpha1.ConditionAccepted) == nil {
		t.Errorf("the status of the LLMRoute is %+v", llm.Status)
	}
	c.NothingDenied("writer")
}

// manifestsControl returns the config of a user with the permissions of control in manifests/base.
func manifestsControl(c cluster) *rest.Config {
	c.Helper()
	c.Apply("{apiVersion: v1, kind: Namespace, metadata: {name: headgate-system}}")
	c.In("headgate-system").ApplyFiles("manifests/base/gateway/rbac.yaml")
	c.In("headgate-system").ApplyFiles("manifests/base/control/rbac.yaml")
	config, err := c.ServiceAccount(c.Context(), "headgate-system", "headgate-control")
	if err != nil {
		c.Fatal(err)
	}
	return config
}

// A GatewayClass in use has Gateway API's finalizer. So it exists until its last Gateway is
// deleted, and deleting it does not stop Gateways. Other finalizers stay, even if they are added at
// the same time.
func TestGatewayClassOutlivesItsGateways(t *testing.T) {
	c := newGateways(t)
	const user = "system:serviceaccount:headgate-system:headgate-control"
	const other, late = "example.com/other", "example.com/late"
	typed, admin := c.typed(manifestsControl(c)), c.typed(c.Admin())
	add := func(finalizer string) {
		class := get(c, "headgate", new(gatewayv1.GatewayClass))
		class.Finalizers = append(class.Finalizers, finalizer)
		if err := admin.Update(t.Context(), class); err != nil {
			t.Error(err)
		}
	}
	expect := func(want ...string) {
		t.Helper()
		if got := get(c, "headgate", new(gatewayv1.GatewayClass)).Finalizers; !slices.Equal(got, want) {
			t.Errorf("the finalizers are %q, want %q", got, want)
		}
	}
	add(other)
	c.wrote(typed, user, c.gateways(reached))
	expect(other, gatewayv1.GatewayClassFinalizerGatewaysExist)

	// A person removes the finalizer. While control adds it again, another client writes.
	class := get(c, "headgate", new(gatewayv1.GatewayClass))
	class.Finalizers = []string{other}
	if err := admin.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	calls := c.wrote(&interrupted{typed, sync.OnceFunc(func() { add(late) })}, user, c.gateways(reached))
	if n := count(calls, "patch gatewayclasses headgate"); n != 2 {
		t.Errorf("%d writes, want one that is rejected and one that is accepted: %q", n, calls)
	}
	expect(other, late, gatewayv1.GatewayClassFinalizerGatewaysExist)

	// After the class is deleted, all objects stay, and the class's status has the generation of
	// the deletion.
	c.Delete(gatewayAPI + "kind: GatewayClass\nmetadata: {name: headgate}")
	in := c.gateways(reached)
	if n := len(in.Attachments.Gateways); n != 1 || len(in.Plans.Gateways) != 1 {
		t.Errorf("the GatewayClass has %d Gateways, and there are %d plans", n, len(in.Plans.Gateways))
	}
	c.wrote(typed, user, in)
	expect(other, late, gatewayv1.GatewayClassFinalizerGatewaysExist)
	class = get(c, "headgate", new(gatewayv1.GatewayClass))
	if class.DeletionTimestamp == nil {
		t.Error("the GatewayClass is not being deleted")
	}
	says(t, "the class", class.Status.Conditions, class.Generation, "Accepted True Accepted", "SupportedVersion True SupportedVersion")

	// While one control runs, the last Gateway is deleted. The class then only has the finalizers
	// of other controllers.
	r := c.open(typed, always)
	r.SetGateways(in)
	c.Delete(gatewayAPI + "kind: Gateway\nmetadata: {name: g}")
	r.SetGateways(c.gateways(reached))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	expect(other, late)
	class = get(c, "headgate", new(gatewayv1.GatewayClass))
	class.Finalizers = nil
	if err := admin.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	if set := c.gateways(reached); len(set.Network.Classes) > 0 {
		t.Error("the GatewayClass still exists")
	}
	c.NothingDenied(user)
}

// Only the leader writes. It is no error if an object was deleted.
func TestFollowerWritesNoGatewayStatus(t *testing.T) {
	c := newGateways(t)
	follower := c.open(c.typed(gatewayWriter(c, "follower")), func() bool { return false })
	leader := c.open(c.typed(gatewayWriter(c, "leader")), always)
	in := c.gateways(reached)
	c.Delete(httpRoute("h", "{name: g}"))
	follower.SetGateways(in)
	leader.SetGateways(in)
	for _, r := range []*statuswriter.Writer{leader, follower} {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if calls := c.Calls("follower"); !slices.Equal(calls, []string{"list models", "list vmodels"}) {
		t.Errorf("the calls of a follower are %q", calls)
	}
	if calls := c.Calls("leader"); count(calls, "update gateways/status g") != 1 || count(calls, "get httproutes h") != 1 ||
		count(calls, "update httproutes/status h") != 0 {
		t.Errorf("the calls of the leader are %q", calls)
	}
	c.NothingDenied("leader")
}

func count(all []string, what string) (n int) {
	for _, is := range all {
		if is == what {
			n++
		}
	}
	return n
}

// busy returns an input with a Gateway, some HTTPRoutes that attach to it, and their plan.
func busy(routes int) conditions.Input {
	n := &objects.Network{Classes: []gatewayv1.GatewayClass{{
		ObjectMeta: metav1.ObjectMeta{Name: "headgate"},
		Spec:       gatewayv1.GatewayClassSpec{ControllerName: attach.Controller},
	}}}
	n.Gateways = []gatewayv1.Gateway{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g"}, Spec: gatewayv1.GatewaySpec{
		GatewayClassName: "headgate", Listeners: []gatewayv1.Listener{{Name: "http", Port: 80, Protocol: gatewayv1.HTTPProtocolType}},
	}}}
	for i := range routes {
		var r gatewayv1.HTTPRoute
		r.Namespace, r.Name = "default", fmt.Sprintf("r%03d", i)
		r.Spec.ParentRefs = []gatewayv1.ParentReference{{Name: "g"}}
		n.HTTPRoutes = append(n.HTTPRoutes, r)
	}
	a := attach.Of(n)
	return conditions.Input{Attachments: a, Plans: plan.Of(a, n, plan.Known{}), Network: n}
}

// The status of a new Gateway is written soon, however many HTTPRoutes and Models are queued. Their
// statuses are also written, although the Gateway's changes with each of them.
func TestGatewaysAreWrittenFirstWithoutDelayingOthers(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
		r.SetGateways(busy(100))
		for i := range 100 {
			r.PutStatuses([]store.Status{record(fmt.Sprint("m", i), "no room")})
		}
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if calls := s.noted(); !slices.Contains(calls, "update g") || slices.Contains(calls, "patch") {
			t.Errorf("the calls in half a second are %v", calls)
		}
		written := func() (n int) {
			for _, call := range s.noted() {
				if strings.HasPrefix(call, "update r") {
					n++
				}
			}
			return n
		}
		restless := count(s.noted(), "update r000")
		for i := range 600 { // 20 Worlds per second; each changes the class and one HTTPRoute
			in := busy(101 + i%2)
			in.Network.Classes[0].Generation, in.Network.HTTPRoutes[0].Generation = int64(i+1), int64(i+1)
			r.SetGateways(in)
			time.Sleep(50 * time.Millisecond)
		}
		synctest.Wait()
		if n := written(); n < 100 {
			t.Errorf("in 30 s %d of 102 HTTPRoutes were written", n)
		}
		if count(s.noted(), "update r000") == restless {
			t.Error("the HTTPRoute that changes all the time was not written")
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if n := count(s.noted(), "patch"); n != 100 {
			t.Errorf("%d of 100 Models were written", n)
		}
	})
}

// A status that the API server rejects is retried only when it changes, not with each World.
func TestRejectedStatusIsNotRetried(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
		s.mu.Lock()
		s.invalid = "r000"
		s.mu.Unlock()
		for range 10 {
			r.SetGateways(busy(2))
			time.Sleep(5 * time.Second)
		}
		synctest.Wait()
		if calls := s.noted(); count(calls, "update r000") != 1 || count(calls, "update r001") != 1 {
			t.Errorf("the calls are %v", calls)
		}
		in := busy(2)
		in.Network.HTTPRoutes[0].Generation = 2
		r.SetGateways(in)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := count(s.noted(), "update r000"); n != 2 {
			t.Errorf("after a change there are %d more writes, want one", n-1)
		}
	})
}

// If a new plan arrives during a write, the new status is written afterwards. An unchanged plan
// causes no request.
func TestPlanDuringAWriteIsReported(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
		s.during = sync.OnceFunc(func() { r.SetGateways(busy(0)) })
		in := busy(0)
		in.Network.Classes = nil
		in.Gateways = reached.Gateways
		r.SetGateways(in)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := count(s.noted(), "update g"); n != 2 {
			t.Errorf("%d writes of the Gateway, want 2: %v", n, s.noted())
		}
		before := len(s.noted())
		r.SetGateways(busy(0))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if calls := s.noted()[before:]; len(calls) > 0 {
			t.Errorf("without a change the calls are %v", calls)
		}
	})
}

// When a Gateway is deleted, the statuses of its routes are removed, even those that were still
// queued.
func TestStateOfADeletedGatewayIsDropped(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
		s.parents = make(map[string][]gatewayv1.RouteParentStatus)
		for i := range 100 {
			s.parents[fmt.Sprintf("r%03d", i)] = []gatewayv1.RouteParentStatus{{
				ParentRef:      gatewayv1.ParentReference{Name: "g"},
				ControllerName: attach.Controller,
			}}
		}
		r.SetGateways(busy(100))
		time.Sleep(time.Second)
		synctest.Wait()
		turns := 0
		for _, call := range s.noted() {
			if strings.HasPrefix(call, "get r") {
				turns++
			}
		}
		if turns == 0 || turns >= 100 {
			t.Fatalf("%d turns were taken", turns)
		}
		in := busy(100)
		in.Network.Gateways = nil
		in.Attachments = attach.Of(in.Network)
		in.Plans = plan.Of(in.Attachments, in.Network, plan.Known{})
		r.SetGateways(in)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		for name, are := range s.parents {
			if len(are) > 0 {
				t.Errorf("%s still has the conditions %+v", name, are)
			}
		}
	})
}

// The GatewayClass reports the version of Gateway API from the start, and a new version within a
// minute. If control may not read the version, it still writes other statuses, and logs the missing
// permission once.
func TestClassReportsTheReleaseOfGatewayAPI(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, logged func() string) {
		const crd = "gateways.gateway.networking.k8s.io"
		set := func(release string, may bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.release, s.denied = release, ""
			if !may {
				s.denied = "PartialObjectMetadata"
			}
		}
		expect := func(what string, writes int, want ...string) {
			t.Helper()
			synctest.Wait()
			s.mu.Lock()
			class := s.class
			s.mu.Unlock()
			if n := count(s.noted(), "update headgate"); n != writes {
				t.Errorf("%s: %d writes of the GatewayClass, want %d", what, n, writes)
			}
			says(t, what, class.Status.Conditions, class.Generation, want...)
		}
		set("v1.6.3", true)
		r.SetGateways(busy(0))
		time.Sleep(5 * time.Second)
		expect("from the beginning", 1, "Accepted True Accepted", "SupportedVersion True SupportedVersion")
		set("v9.1.0", true)
		time.Sleep(time.Minute)
		expect("after another is applied", 2, "Accepted True Accepted", "SupportedVersion False UnsupportedVersion")
		set("v1.6.4", false)
		time.Sleep(5 * time.Minute)
		expect("when it may not be read any more", 2, "Accepted True Accepted", "SupportedVersion False UnsupportedVersion")
		if n := strings.Count(logged(), "cannot read the version of Gateway API"); n != 1 {
			t.Errorf("the failure is logged %d times:\n%s", n, logged())
		}
		set("v1.6.4", true)
		time.Sleep(time.Minute)
		expect("when it may", 3, "Accepted True Accepted", "SupportedVersion True SupportedVersion")
		if !strings.Contains(logged(), "can read the CRD of Gateways again") {
			t.Errorf("the log is %s", logged())
		}
		if n := count(s.noted(), "get "+crd); n < 8 || n > 9 {
			t.Errorf("%d reads of the CRD in seven minutes", n)
		}
		none := busy(0)
		none.Network.Classes, none.Network.Gateways = nil, nil
		r.SetGateways(none)
		before := count(s.noted(), "get "+crd)
		time.Sleep(5 * time.Minute)
		if n := count(s.noted(), "get "+crd) - before; n > 0 {
			t.Errorf("%d reads of the CRD without a GatewayClass", n)
		}
	})
}

// Objects that refer to none of our Gateways cost no requests.
func TestForeignObjectsCauseNoWork(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, logged func() string) {
		s.gone = "r000"
		with := func(uid string, generation int64) conditions.Input {
			in := busy(1)
			foreign := gatewayv1.HTTPRoute{ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "foreign", UID: types.UID(uid),
				Generation: generation,
			}}
			in.Network.HTTPRoutes = append(in.Network.HTTPRoutes, foreign)
			return in
		}
		// The foreign route is changed, deleted, and created again.
		for _, in := range []conditions.Input{with("old", 1), with("old", 2), busy(1), with("new", 1)} {
			r.SetGateways(in)
			time.Sleep(10 * time.Second)
		}
		synctest.Wait()
		if calls := s.noted(); count(calls, "get foreign") != 0 || count(calls, "get r000") != 1 || count(calls, "update r000") != 0 ||
			count(calls, "get g") != 1 {
			t.Errorf("the calls are %v", calls)
		}
		if logged() != "" {
			t.Errorf("the log is %s", logged())
		}
	})
}

// If control may not list a kind, other kinds are still written, and the error is logged once.
func TestUnlistableKindDoesNotDelayOthers(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, logged func() string) {
		s.mu.Lock()
		s.denied = "HTTPRouteList"
		s.mu.Unlock()
		r.SetGateways(busy(3))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if calls := s.noted(); !slices.Contains(calls, "update g") || slices.Contains(calls, "update r000") {
			t.Errorf("the calls are %v", calls)
		}
		if n := strings.Count(logged(), "cannot update the status of an object; retrying"); n != 1 {
			t.Errorf("the failure is logged %d times: %s", n, logged())
		}
		s.mu.Lock()
		s.denied = ""
		s.mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if calls := s.noted(); !slices.Contains(calls, "update r000") {
			t.Errorf("once listing is allowed, the calls are %v", calls)
		}
	})
}
