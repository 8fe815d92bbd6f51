package kinds

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/internal/objects"
)

// of returns the row of a kind.
func of(t *testing.T, kind string) Kind {
	t.Helper()
	for _, k := range both() {
		if k.Kind == kind {
			return k
		}
	}
	t.Fatalf("there is no %s", kind)
	return Kind{}
}

// read decodes an object from YAML.
func read(t *testing.T, k Kind, text string) Object {
	t.Helper()
	o := k.New()
	if err := yaml.UnmarshalStrict([]byte(text), o); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	return o
}

const conditions = `conditions: [{type: Accepted, status: "True", reason: Accepted, message: "", lastTransitionTime: "2026-11-01T10:00:00Z"}]`

// Everything of a Gateway API object is kept except unused fields: writing status must not look
// like a change.
func TestGatewayAPIObjectsAreTrimmed(t *testing.T) {
	for _, c := range []struct{ kind, spec, status string }{
		{"GatewayClass", "spec: {controllerName: headgate.dev/control}", "status: {" + conditions + "}"},
		{"Gateway", "spec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP}]}", "status: {" +
			conditions + "}"},
		{"ListenerSet", "spec: {parentRef: {name: g}, listeners: [{name: http, port: 80, protocol: HTTP}]}", "status: {" +
			conditions + "}"},
		{
			"HTTPRoute", "spec: {rules: [{backendRefs: [{name: s, port: 80}]}]}",
			"status: {parents: [{parentRef: {name: g}, controllerName: a/b, " + conditions + "}]}",
		},
		{
			"GRPCRoute", "spec: {rules: [{backendRefs: [{name: s, port: 80}]}]}",
			"status: {parents: [{parentRef: {name: g}, controllerName: a/b, " + conditions + "}]}",
		},
		{
			"ReferenceGrant",
			"spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: a}], to: [{group: '', kind: Service}]}", "",
		},
		{
			"BackendTLSPolicy",
			"spec: {targetRefs: [{group: '', kind: Service, name: s}], validation: {hostname: a.test, wellKnownCACertificates: System}}",
			"status: {ancestors: [{ancestorRef: {name: g}, controllerName: a/b, " + conditions + "}]}",
		},
	} {
		k := of(t, c.kind)
		const kept = `metadata: {name: x, namespace: default, uid: u, generation: 7, labels: {a: b}, creationTimestamp: "2026-11-01T10:00:00Z"`
		want := read(t, k, kept+"}\n"+c.spec)
		whole := read(t, k, kept+", annotations: {c: d}, resourceVersion: '9', finalizers: [e/f], managedFields: [{manager: kubectl}]}\n"+
			c.spec+"\n"+c.status)
		k.Trim(whole)
		if whole.GetResourceVersion() != "9" {
			t.Errorf("the versions of a %s cannot be told apart", c.kind)
		}
		got, faults := k.Server(whole)
		wanted, _ := k.Server(want)
		if diff := cmp.Diff(wanted, got); diff != "" || len(faults) > 0 {
			t.Errorf("%s (-want +got): %v\n%s", c.kind, faults, diff)
		}
		if k.CRD() == "" || !k.Optional || k.Strict {
			t.Errorf("%s needs the CRD %q, is optional %v and strict %v", c.kind, k.CRD(), k.Optional, k.Strict)
		}
	}
}

// Objects that an API server accepted are judged by the plan, in their status; a folder has no
// status.
func TestGatewaysAreValidatedInAFolder(t *testing.T) {
	k := of(t, "Gateway")
	bad := read(t, k, "metadata: {name: G}\nspec: {}")
	if _, faults := k.Folder(bad); len(faults) != 3 {
		t.Errorf("in a folder its faults are %v", faults)
	}
	if kept, faults := k.Server(bad); len(faults) != 0 || kept.(gatewayv1.Gateway).Name != "G" {
		t.Errorf("in an API server its faults are %v", faults)
	}
	for _, kind := range []string{
		"GatewayClass", "ListenerSet", "HTTPRoute", "GRPCRoute", "ReferenceGrant", "BackendTLSPolicy",
		"Namespace", "Service",
	} {
		k := of(t, kind)
		o := k.New()
		for name, want := range map[string]int{"": 1, "a b": 1, "a-b": 0} {
			o.SetName(name)
			if _, faults := k.Folder(o); len(faults) != want {
				t.Errorf("%s of the name %q has faults %v", kind, name, faults)
			}
		}
	}
}

func TestTrimmedNamespaceAndService(t *testing.T) {
	meta := metav1.ObjectMeta{
		Namespace: "n", Name: "x", UID: "u", ResourceVersion: "9", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"c": "d"},
	}
	h2c := "kubernetes.io/h2c"
	name := objects.Name{Namespace: "n", Name: "x"}
	for _, c := range []struct {
		kind          string
		object        Object
		kept, trimmed any
	}{
		{
			"Namespace", &corev1.Namespace{
				ObjectMeta: meta, Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{"kubernetes"}},
				Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
			},
			objects.Namespace{Name: "x", Labels: meta.Labels},
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x", ResourceVersion: "9", Labels: meta.Labels}},
		},
		{
			"Service", &corev1.Service{
				ObjectMeta: meta,
				Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.7", Selector: map[string]string{"app": "llama"},
					Ports: []corev1.ServicePort{
						{Name: "http", Port: 80, NodePort: 30080},
						{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, AppProtocol: &h2c},
					},
				},
				Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}}}},
			},
			objects.Service{
				Name: name, Labels: meta.Labels, Selector: map[string]string{"app": "llama"},
				Ports: []objects.ServicePort{
					{Name: "http", Port: 80, Protocol: "TCP"},
					{Name: "dns", Port: 53, Protocol: "UDP", AppProtocol: h2c},
				},
			},
			&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "x", ResourceVersion: "9", Labels: meta.Labels},
				Spec: corev1.ServiceSpec{
					Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "llama"},
					Ports: []corev1.ServicePort{
						{Name: "http", Port: 80},
						{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, AppProtocol: &h2c},
					},
				},
			},
		},
		{
			"Service", &corev1.Service{
				ObjectMeta: meta,
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "a.test"},
			},
			objects.Service{Name: name, Labels: meta.Labels, External: true},
			&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "x", ResourceVersion: "9", Labels: meta.Labels},
				Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName},
			},
		},
	} {
		k := of(t, c.kind)
		whole, _ := k.Folder(c.object)
		k.Trim(c.object)
		kept, faults := k.Server(c.object)
		if diff := cmp.Diff(c.kept, kept); diff != "" || len(faults) > 0 || !cmp.Equal(whole, kept) {
			t.Errorf("%s (-want +got): %v, %+v before it was trimmed\n%s", c.kind, faults, whole, diff)
		}
		if diff := cmp.Diff(c.trimmed, any(c.object)); diff != "" {
			t.Errorf("%s, trimmed (-want +got):\n%s", c.kind, diff)
		}
		if k.CRD() != "" || k.Optional || k.ClusterScoped != (c.kind == "Namespace") {
			t.Errorf("%s needs the CRD %q, is optional %v and cluster-scoped %v", c.kind, k.CRD(), k.Optional, k.ClusterScoped)
		}
	}
}

func TestSeveralOfAKind(t *testing.T) {
	want := map[string]string{
		"LLMRoute": "LLMRoutes", "Model": "Models", "VModel": "VModels", "EndpointList": "EndpointLists", "PoolSettings": "PoolSettings",
		"GatewaySettings": "GatewaySettings", "InferencePool": "InferencePools", "Pod": "Pods",
		"GatewayClass": "GatewayClasses", "Gateway": "Gateways", "ListenerSet": "ListenerSets", "HTTPRoute": "HTTPRoutes",
		"GRPCRoute":      "GRPCRoutes",
		"ReferenceGrant": "ReferenceGrants", "BackendTLSPolicy": "BackendTLSPolicies", "Namespace": "Namespaces", "Service": "Services",
		"EndpointSlice": "EndpointSlices",
	}
	for _, k := range both() {
		if k.Plural() != want[k.Kind] {
			t.Errorf("several of %s are %s", k.Kind, k.Plural())
		}
	}
}
