package gateway_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/control/pods/gateway"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/golden"
	"github.com/headgate/headgate/test/network"
)

// The input of a block is objects in YAML; the output is the objects that control makes for their
// Gateways.
func TestScenarios(t *testing.T) {
	template, err := gateway.Read(headgate.GatewayYAML)
	if err != nil {
		t.Fatal(err)
	}
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			var out strings.Builder
			for _, g := range attach.Of(network.Read(t, network.Standard(input))).Gateways {
				is := template.Of(g, gateway.Options{
					Namespace: "system", EnvoyImage: "registry.test/envoy:1", ExtprocImage: "registry.test/extproc:1",
					Bootstrap: []byte("{node: $(POD_NAME)}"),
				})
				all := []any{is.Deployment, is.Budget, is.Policy}
				if is.Service != nil {
					all = append(all, is.Service)
				}
				for _, o := range all {
					text, err := yaml.Marshal(o)
					if err != nil {
						t.Fatal(err)
					}
					out.Write(text)
				}
			}
			return out.String()
		}
	})
}

// Names of objects are unique, and valid for Services and labels.
func TestNamesDiffer(t *testing.T) {
	long := strings.Repeat("long.", 50) + "x"
	seen := make(map[string]objects.Name)
	for _, of := range []objects.Name{
		{Namespace: "a", Name: "b-c"},
		{Namespace: "a-b", Name: "c"},
		{Namespace: "a", Name: "b.c"},
		{Namespace: "a", Name: "b"},
		{Namespace: "a", Name: long + "1"},
		{Namespace: "a", Name: long + "2"},
		{Namespace: strings.Repeat("n", 63), Name: long},
		{Namespace: "7", Name: "7"},
		{Namespace: strings.Repeat("n", 36), Name: "-x"},
	} {
		name := gateway.Name(of)
		if other, taken := seen[name]; taken {
			t.Errorf("%s and %s have the same name %s", of, other, name)
		}
		seen[name] = of
		if faults := append(validation.IsDNS1035Label(name), validation.IsValidLabelValue(name)...); len(faults) > 0 {
			t.Errorf("%s: %s: %v", of, name, faults)
		}
	}
}

func TestAddressesForClients(t *testing.T) {
	for _, c := range []struct{ service, want string }{
		{"spec: {type: ClusterIP, clusterIPs: [10.0.0.1, 'fd00::1']}", "IPAddress 10.0.0.1, IPAddress fd00::1"},
		{"spec: {type: NodePort, clusterIPs: [10.0.0.1]}", "IPAddress 10.0.0.1"},
		{"spec: {type: LoadBalancer, clusterIPs: [10.0.0.1]}", ""},
		{
			"{spec: {type: LoadBalancer, clusterIPs: [10.0.0.1]}, status: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {hostname: lb.test}]}}}",
			"IPAddress 192.0.2.1, Hostname lb.test",
		},
		{"spec: {type: ClusterIP, clusterIPs: [None]}", ""},
	} {
		var s corev1.Service
		if err := yaml.UnmarshalStrict([]byte(c.service), &s); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range gateway.Addresses(&s) {
			got = append(got, string(*a.Type)+" "+a.Value)
		}
		if strings.Join(got, ", ") != c.want {
			t.Errorf("%s: %v, want %s", c.service, got, c.want)
		}
	}
	many := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	many.Status.LoadBalancer.Ingress = slices.Repeat([]corev1.LoadBalancerIngress{{IP: "192.0.2.1"}}, 17)
	if n := len(gateway.Addresses(many)); n != 16 { // an API server rejects a status with more
		t.Errorf("%d of 17 addresses are returned", n)
	}
}

// A manifest without a part that a Gateway needs is rejected.
func TestManifestWithoutEnvoyIsRejected(t *testing.T) {
	withoutBudget, _, cut := strings.Cut(string(headgate.GatewayYAML), "\n---\napiVersion: policy/v1\n")
	if !cut {
		t.Fatal("the manifest has no PodDisruptionBudget")
	}
	for _, text := range []string{
		"kind: Service", "kind: Deployment\nspec: {template: {spec: {containers: [{name: other}]}}}", "kind: [",
		"kind: Deployment\nspecs: {}", withoutBudget,
	} {
		if _, err := gateway.Read([]byte(text)); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}
