package conditions_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
)

var (
	before = metav1.NewTime(time.Unix(1e9, 0))
	now    = metav1.NewTime(time.Unix(2e9, 0))
)

// at returns a condition as an object has it, with generation and time.
func at(of string, is metav1.ConditionStatus, generation int64, since metav1.Time) metav1.Condition {
	return metav1.Condition{Type: of, Status: is, Reason: "Because", ObservedGeneration: generation, LastTransitionTime: since}
}

// say returns a condition as a Status has it, without generation and time.
func say(of string, is metav1.ConditionStatus) metav1.Condition {
	return metav1.Condition{Type: of, Status: is, Reason: "Because"}
}

func equal(t *testing.T, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		is, _ := json.Marshal(got)
		should, _ := json.Marshal(want)
		t.Errorf("the status is\n%s\nwant\n%s", is, should)
	}
}

// The time of a condition changes only with its status. Conditions of other controllers stay. Our
// conditions that no longer apply are removed.
func TestConditionsKeepTheirTimesAndThoseOfOthers(t *testing.T) {
	g := &gatewayv1.Gateway{Status: gatewayv1.GatewayStatus{
		Conditions: []metav1.Condition{
			at("example.com/Other", "True", 1, before), at("Accepted", "True", 1, before), at("PartiallyInvalid", "True", 1, before),
			at("Programmed", "Unknown", 1, before),
			at("InsecureFrontendValidationMode", "True", 1, before),
		},
		Listeners: []gatewayv1.ListenerStatus{
			{Name: "gone", Conditions: []metav1.Condition{at("Accepted", "True", 1, before)}},
			{Name: "b", AttachedRoutes: 7, Conditions: []metav1.Condition{
				at("Accepted", "True", 1, before),
				at("OverlappingTLSConfig", "True", 1, before),
			}},
		},
	}}
	s := &conditions.Status{
		Generation: 2, Sets: 3, Addresses: []gatewayv1.GatewayStatusAddress{{Type: ptr.To(gatewayv1.IPAddressType), Value: "10.0.0.1"}},
		Conditions: []metav1.Condition{say("Accepted", "True"), say("Programmed", "True")},
		Listeners: []conditions.Listener{
			{Name: "a", Conditions: []metav1.Condition{say("Accepted", "True")}},
			{
				Name: "b", Kinds: []gatewayv1.RouteGroupKind{{Group: ptr.To[gatewayv1.Group]("g"), Kind: "K"}}, Routes: 1,
				Conditions: []metav1.Condition{say("Accepted", "True")},
			},
		},
	}
	s.Put(g, now)
	equal(t, g.Status, gatewayv1.GatewayStatus{
		Addresses: s.Addresses, AttachedListenerSets: ptr.To[int32](3),
		Conditions: []metav1.Condition{
			at("example.com/Other", "True", 1, before), at("Accepted", "True", 2, before),
			at("Programmed", "True", 2, now),
		},
		Listeners: []gatewayv1.ListenerStatus{
			{Name: "a", SupportedKinds: []gatewayv1.RouteGroupKind{}, Conditions: []metav1.Condition{at("Accepted", "True", 2, now)}},
			{
				Name: "b", SupportedKinds: s.Listeners[1].Kinds, AttachedRoutes: 1,
				Conditions: []metav1.Condition{at("Accepted", "True", 2, before)},
			},
		},
	})
	var set gatewayv1.ListenerSet
	set.Status.Listeners = []gatewayv1.ListenerEntryStatus{
		{Name: "b", Conditions: []metav1.Condition{at("Accepted", "True", 1, before)}},
		{Name: "gone"},
	}
	s.Put(&set, now)
	equal(t, set.Status, gatewayv1.ListenerSetStatus{
		Conditions: []metav1.Condition{at("Accepted", "True", 2, now), at("Programmed", "True", 2, now)},
		Listeners: []gatewayv1.ListenerEntryStatus{
			{Name: "a", SupportedKinds: []gatewayv1.RouteGroupKind{}, Conditions: []metav1.Condition{at("Accepted", "True", 2, now)}},
			{
				Name: "b", SupportedKinds: s.Listeners[1].Kinds, AttachedRoutes: 1,
				Conditions: []metav1.Condition{at("Accepted", "True", 2, before)},
			},
		},
	})
	var class gatewayv1.GatewayClass
	class.Status = gatewayv1.GatewayClassStatus{
		Conditions:        []metav1.Condition{at("SupportedVersion", "True", 1, before)},
		SupportedFeatures: []gatewayv1.SupportedFeature{{Name: "Old"}},
	}
	(&conditions.Status{
		Generation: 2, Features: []gatewayv1.FeatureName{"A", "B"},
		Conditions: []metav1.Condition{say("Accepted", "True")},
	}).Put(&class, now)
	equal(t, class.Status, gatewayv1.GatewayClassStatus{
		Conditions:        []metav1.Condition{at("Accepted", "True", 2, now)},
		SupportedFeatures: []gatewayv1.SupportedFeature{{Name: "A"}, {Name: "B"}},
	})
}

// ref is a reference to a Gateway with group and kind.
func ref(name string, section ...string) gatewayv1.ParentReference {
	r := gatewayv1.ParentReference{
		Group: ptr.To[gatewayv1.Group](gatewayv1.GroupName), Kind: ptr.To[gatewayv1.Kind]("Gateway"),
		Name: gatewayv1.ObjectName(name),
	}
	if len(section) > 0 {
		r.SectionName = new(gatewayv1.SectionName(section[0]))
	}
	return r
}

// Entries of other controllers stay in their places. Our entries stay while they apply, and keep
// the times of their conditions.
func TestParentsOfOtherControllersStay(t *testing.T) {
	const others = gatewayv1.GatewayController("example.com/other")
	entry := func(by gatewayv1.GatewayController, r gatewayv1.ParentReference, c metav1.Condition) gatewayv1.RouteParentStatus {
		return gatewayv1.RouteParentStatus{ParentRef: r, ControllerName: by, Conditions: []metav1.Condition{c}}
	}
	bare := gatewayv1.ParentReference{Name: "a", SectionName: ptr.To[gatewayv1.SectionName]("x")} // without group and kind
	are := gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{
		entry(attach.Controller, ref("gone"), at("Accepted", "True", 1, before)),
		entry(others, ref("a"), at("Accepted", "True", 1, before)),
		entry(attach.Controller, bare, at("Accepted", "True", 1, before)),
		entry(attach.Controller, ref("a", "x"), at("Accepted", "False", 1, before)), // duplicate
		entry(attach.Controller, ref("a"), at("Accepted", "False", 1, before)),
	}}
	s := &conditions.Status{Generation: 2, Parents: []conditions.Parent{
		{Ref: ref("new"), Conditions: []metav1.Condition{say("Accepted", "True")}},
		{Ref: ref("a"), Conditions: []metav1.Condition{say("Accepted", "True")}},
		{Ref: ref("a", "x"), Conditions: []metav1.Condition{say("Accepted", "True")}},
	}}
	want := gatewayv1.RouteStatus{Parents: []gatewayv1.RouteParentStatus{
		entry(others, ref("a"), at("Accepted", "True", 1, before)),
		entry(attach.Controller, bare, at("Accepted", "True", 2, before)),
		entry(attach.Controller, ref("a"), at("Accepted", "True", 2, now)),
		entry(attach.Controller, ref("new"), at("Accepted", "True", 2, now)),
	}}
	http, grpc := gatewayv1.HTTPRoute{}, gatewayv1.GRPCRoute{}
	http.Status.RouteStatus, grpc.Status.RouteStatus = *are.DeepCopy(), *are.DeepCopy()
	s.Put(&http, now)
	equal(t, http.Status.RouteStatus, want)
	s.Put(&grpc, now)
	equal(t, grpc.Status.RouteStatus, want)
	equal(t, s.Parents[0].Conditions[0], say("Accepted", "True"))

	(&conditions.Status{}).Put(&http, now)
	equal(t, http.Status.Parents, want.Parents[:1])
	http.Status.Parents = http.Status.Parents[1:1]
	if (&conditions.Status{}).Put(&http, now); http.Status.Parents == nil {
		t.Error("without parents the list is null, which API servers reject")
	}
}

// Gateways with the same name in different namespaces are different parents. So are the listeners
// and the ports of one Gateway.
func TestParentsAreDistinguished(t *testing.T) {
	var s conditions.Status
	for _, namespace := range []gatewayv1.Namespace{"a", "b"} {
		r := ref("g")
		r.Namespace = &namespace
		s.Parents = append(s.Parents, conditions.Parent{Ref: r})
	}
	r := ref("g")
	r.Kind = ptr.To[gatewayv1.Kind]("ListenerSet")
	s.Parents = append(s.Parents, conditions.Parent{Ref: r}, conditions.Parent{Ref: ref("g")}, conditions.Parent{Ref: ref("g", "x")},
		conditions.Parent{Ref: ref("g", "y")})
	for _, port := range []int32{80, 81} {
		r := ref("g")
		r.Port = &port
		s.Parents = append(s.Parents, conditions.Parent{Ref: r})
	}
	var route gatewayv1.HTTPRoute
	for range 2 {
		s.Put(&route, now)
		for i := range s.Parents {
			if len(route.Status.Parents) != len(s.Parents) || !reflect.DeepEqual(route.Status.Parents[i].ParentRef, s.Parents[i].Ref) {
				t.Fatalf("the parents are %+v", route.Status.Parents)
			}
		}
	}
}

// LLMRoutes and InferencePools have their own Go types for parents.
func TestParentsOfOurOwnKinds(t *testing.T) {
	r := ref("g", "x")
	r.Namespace, r.Port = ptr.To[gatewayv1.Namespace]("ns"), ptr.To[int32](80)
	plain := ref("g")
	plain.Namespace = ptr.To[gatewayv1.Namespace]("ns")
	accepted := []metav1.Condition{say("Accepted", "True")}
	s := &conditions.Status{
		Generation: 2, Attached: true, Parents: []conditions.Parent{{Ref: r, Conditions: accepted}, {Ref: plain, Conditions: accepted}},
	}

	var llm v1alpha1.LLMRoute
	foreign := v1alpha1.ParentStatus{ControllerName: "example.com/other", ParentRef: v1alpha1.ParentReference{Name: "g"}}
	llm.Status.Models, llm.Status.Parents = []string{"sql"}, []v1alpha1.ParentStatus{foreign}
	want := func(generation int64) v1alpha1.LLMRouteStatus {
		conditions := []metav1.Condition{at("Accepted", "True", generation, now)}
		parent := v1alpha1.ParentReference{Group: new(gatewayv1.GroupName), Kind: new("Gateway"), Namespace: new("ns"), Name: "g"}
		of := parent
		of.SectionName, of.Port = new("x"), ptr.To[int32](80)
		return v1alpha1.LLMRouteStatus{Models: []string{"sql"}, Parents: []v1alpha1.ParentStatus{
			foreign,
			{ParentRef: of, ControllerName: string(attach.Controller), Conditions: conditions},
			{ParentRef: parent, ControllerName: string(attach.Controller), Conditions: conditions},
		}}
	}
	s.Put(&llm, now)
	equal(t, llm.Status, want(2))
	s.Generation = 3
	s.Put(&llm, metav1.NewTime(now.Add(time.Hour)))
	equal(t, llm.Status, want(3))

	s = &conditions.Status{Generation: 2, Parents: []conditions.Parent{{Ref: plain, Conditions: accepted}}}
	var ip pool.InferencePool
	others := pool.ParentStatus{ControllerName: "example.com/other", ParentRef: pool.ParentReference{Name: "g", Namespace: "ns"}}
	ours := pool.ParentStatus{
		ControllerName: string(attach.Controller), Conditions: []metav1.Condition{at("Accepted", "True", 2, now)},
		ParentRef: pool.ParentReference{Group: new(gatewayv1.GroupName), Kind: "Gateway", Namespace: "ns", Name: "g"},
	}
	ip.Status.Parents = []pool.ParentStatus{{
		ControllerName: string(attach.Controller),
		ParentRef:      pool.ParentReference{Name: "gone"},
	}, others}
	s.Put(&ip, now)
	equal(t, ip.Status.Parents, []pool.ParentStatus{others, ours})
	s.Put(&ip, metav1.NewTime(now.Add(time.Hour)))
	equal(t, ip.Status.Parents, []pool.ParentStatus{others, ours})
	(&conditions.Status{}).Put(&ip, now)
	equal(t, ip.Status.Parents, []pool.ParentStatus{others})
}

// A GatewayClass has the finalizer while Gateways use it. Other finalizers keep their order.
func TestClassThatGatewaysUseHasTheFinalizer(t *testing.T) {
	const ours, other, another = gatewayv1.GatewayClassFinalizerGatewaysExist, "example.com/other", "example.com/another"
	const unused = "kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: unknown}"
	const using = "kind: Gateway\nmetadata: {namespace: ns, name: h}\nspec: {gatewayClassName: own}"
	const class = "kind: GatewayClass\nmetadata: {name: own}\nspec: {controllerName: headgate.dev/gateway-controller}"
	const refused = "kind: GatewayClass\nmetadata: {name: own}\n" +
		"spec: {controllerName: headgate.dev/gateway-controller, parametersRef: {group: inference.x-k8s.io, kind: GatewaySettings, namespace: ns, name: missing}}"
	for _, c := range []struct {
		name, yaml string
		deleted    bool
		has, want  []string
	}{
		{"no Gateway, none", class, false, nil, nil},
		{"Gateways of another class alone", unused + "\n---\n" + class, false, nil, nil},
		{"a Gateway", using + "\n---\n" + class, false, nil, []string{ours}},
		{"a Gateway, and others' finalizers", using + "\n---\n" + class, false, []string{other, another}, []string{other, another, ours}},
		{"a Gateway, and it is there", using + "\n---\n" + class, false, []string{other, ours, another}, []string{other, ours, another}},
		{"a Gateway of a class that is not accepted", using + "\n---\n" + refused, false, nil, []string{ours}},
		{"being deleted", using + "\n---\n" + class, true, []string{ours, other}, []string{ours, other}},
		{"being deleted without it", using + "\n---\n" + class, true, []string{other}, []string{other}},
		{"the last Gateway is gone", class, false, []string{other, ours, another}, []string{other, another}},
		{"the last Gateway is gone, being deleted", class, true, []string{ours}, []string{}},
	} {
		o := gatewayv1.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "own", Finalizers: slices.Clone(c.has)}}
		if c.deleted {
			o.DeletionTimestamp = &now
		}
		all := conditions.Of(read(t, c.yaml))
		i := slices.IndexFunc(all, func(s *conditions.Status) bool {
			return s.Object.Kind == objects.GatewayClassKind && s.Object.Name.Name == "own"
		})
		all[i].PutFinalizer(&o)
		if !slices.Equal(o.Finalizers, c.want) {
			t.Errorf("%s: from %q to %q, want %q", c.name, c.has, o.Finalizers, c.want)
		}
	}
	g := gatewayv1.Gateway{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{ours}}}
	if (&conditions.Status{Object: objects.Object{Kind: objects.GatewayKind}}).PutFinalizer(&g); len(g.Finalizers) != 1 {
		t.Errorf("the finalizers of a Gateway become %q", g.Finalizers)
	}
}

// An API server rejects more than 32 parents, and more than 16 ancestors of a policy. Entries of
// other controllers have precedence, and our entries that exceed the limit are left out.
func TestParentsThatDoNotFitAreLeftOut(t *testing.T) {
	var r gatewayv1.HTTPRoute
	r.Status.Parents = []gatewayv1.RouteParentStatus{{ControllerName: "example.com/other", ParentRef: ref("g")}}
	s := new(conditions.Status)
	for i := range 33 {
		s.Parents = append(s.Parents, conditions.Parent{Ref: ref(fmt.Sprint("g", i))})
	}
	s.Put(&r, now)
	if n := len(r.Status.Parents); n != 32 || r.Status.Parents[0].ControllerName != "example.com/other" ||
		r.Status.Parents[31].ParentRef.Name != "g30" {
		t.Errorf("the route has %d parents", n)
	}
	var p gatewayv1.BackendTLSPolicy
	p.Status.Ancestors = []gatewayv1.PolicyAncestorStatus{{ControllerName: "example.com/other", AncestorRef: ref("g")}}
	s.Put(&p, now)
	if n := len(p.Status.Ancestors); n != 16 || p.Status.Ancestors[0].ControllerName != "example.com/other" ||
		p.Status.Ancestors[15].AncestorRef.Name != "g14" {
		t.Errorf("the policy has %d ancestors", n)
	}
}

// Clients decode the API server's response into the object that was passed to them, so an object
// must share no memory with its Status.
func TestObjectSharesNoMemoryWithItsStatus(t *testing.T) {
	s := &conditions.Status{
		Sets: 1, Addresses: []gatewayv1.GatewayStatusAddress{{Type: ptr.To(gatewayv1.IPAddressType), Value: "10.0.0.1"}},
		Listeners: []conditions.Listener{{Kinds: []gatewayv1.RouteGroupKind{{Group: ptr.To[gatewayv1.Group]("g")}}}},
		Parents:   []conditions.Parent{{Ref: ref("g")}},
	}
	var g gatewayv1.Gateway
	s.Put(&g, now)
	*g.Status.AttachedListenerSets, *g.Status.Addresses[0].Type, *g.Status.Listeners[0].SupportedKinds[0].Group = 2, "other", "other"
	g.Status.Addresses[0].Value, g.Status.Listeners[0].SupportedKinds[0].Kind = "other", "other"
	var r gatewayv1.HTTPRoute
	s.Put(&r, now)
	*r.Status.Parents[0].ParentRef.Kind = "other"
	if s.Sets != 1 || *s.Addresses[0].Type != gatewayv1.IPAddressType || s.Addresses[0].Value != "10.0.0.1" ||
		*s.Listeners[0].Kinds[0].Group != "g" ||
		s.Listeners[0].Kinds[0].Kind != "" || !slices.ContainsFunc(s.Parents, func(p conditions.Parent) bool {
		return *p.Ref.Kind == "Gateway"
	}) {
		t.Errorf("the Status changed to %+v", s)
	}
}

// An LLMRoute keeps the parts of its status that a Status does not know. The time of a condition
// moves only with its status.
func TestOwnConditions(t *testing.T) {
	later := metav1.NewTime(now.Add(time.Hour))
	parents := []v1alpha1.ParentStatus{{ControllerName: string(attach.Controller), ParentRef: v1alpha1.ParentReference{Name: "g"}}}
	var r v1alpha1.LLMRoute
	r.Status.Parents = parents
	s := &conditions.Status{
		Generation: 2, Own: true, Models: []string{"sql"}, Pools: []string{"p"},
		Conditions: []metav1.Condition{say("Accepted", "True"), say("Ready", "False")},
	}
	s.Put(&r, now)
	s.Generation, s.Conditions = 3, []metav1.Condition{say("Accepted", "True"), say("Ready", "True")}
	s.Put(&r, later)
	equal(t, r.Status, v1alpha1.LLMRouteStatus{
		Models: []string{"sql"}, Pools: []string{"p"}, Columns: v1alpha1.LLMRouteColumns{Models: "sql", Pools: "p"}, Parents: parents,
		Conditions: []metav1.Condition{at("Accepted", "True", 3, now), at("Ready", "True", 3, later)},
	})
	(&conditions.Status{Attached: true}).Put(&r, later)
	if len(r.Status.Models) != 1 || len(r.Status.Conditions) != 2 || len(r.Status.Parents) != 0 {
		t.Errorf("a status of parents alone leaves %+v", r.Status)
	}

	// A PoolSettings that is no longer in force has no condition Endpoints.
	var p v1alpha1.PoolSettings
	s = &conditions.Status{
		Generation: 2, Own: true, Endpoints: "3/4",
		Conditions: []metav1.Condition{say("Accepted", "True"), say("Endpoints", "False")},
	}
	s.Put(&p, now)
	var l v1alpha1.EndpointList
	s.Put(&l, now)
	equal(t, p.Status, v1alpha1.PoolSettingsStatus{
		ObservedGeneration: 2, Endpoints: "3/4",
		Conditions: []metav1.Condition{at("Accepted", "True", 2, now), at("Endpoints", "False", 2, now)},
	})
	equal(t, l.Status, v1alpha1.EndpointListStatus(p.Status))
	s.Endpoints, s.Conditions = "", []metav1.Condition{say("Accepted", "False")}
	s.Put(&p, later)
	equal(t, p.Status, v1alpha1.PoolSettingsStatus{
		ObservedGeneration: 2, Conditions: []metav1.Condition{at("Accepted", "False", 2, later)},
	})
}

func TestColumnIsText(t *testing.T) {
	for _, c := range []struct {
		names []string
		want  string
	}{
		{nil, ""},
		{[]string{"chat"}, "chat"},
		{[]string{"chat", "code"}, "chat,code"},
		{[]string{strings.Repeat("x", 60), "code", "sql"}, strings.Repeat("x", 60) + ",+2"},
		{[]string{"a", strings.Repeat("y", 35), "sql", "code"}, "a," + strings.Repeat("y", 35) + ",sql,+1"},
	} {
		if got := conditions.Column(c.names); got != c.want {
			t.Errorf("of %q it is %q, want %q", c.names, got, c.want)
		}
	}
}
