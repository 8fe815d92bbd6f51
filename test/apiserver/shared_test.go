package apiserver_test

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/headgate/headgate/test/apiserver"
)

// TestMain makes the tests share one API server.
func TestMain(m *testing.M) { apiserver.Main(m) }

const leftovers = `apiVersion: v1
kind: Namespace
metadata: {name: left}
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: left, finalizers: [example.com/never]}
spec: {containers: [{name: engine, image: none}]}
---
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {clusterIP: 10.96.0.7, ports: [{port: 80}]}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: Model
metadata: {name: m}
spec: {poolRef: {name: p}}
`

const gateways = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: c}
spec: {controllerName: example.com/c}
`

// Each test gets the shared server in its state after the start, whatever earlier tests did.
func TestSharedServerIsReset(t *testing.T) {
	addresses := make(map[string]bool)
	t.Run("changes it", func(t *testing.T) {
		c := apiserver.RunCluster(t)
		addresses[c.Address] = true
		if n := c.Asked("writer"); n != 0 {
			t.Errorf("writer has made %d requests in this test", n)
		}
		c.Apply(leftovers) // the next test uses the same address for its Service
		c.GatewayAPI()
		c.Apply(gateways)
		writer := c.Allowed("writer", "[{apiGroups: [\"\"], resources: [pods], verbs: [list]}]")
		if _, err := client(t, writer).Resource(pods).List(t.Context(), metav1.ListOptions{}); err != nil || c.Asked("writer") != 1 {
			t.Errorf("writer lists pods: %v, in %d requests", err, c.Asked("writer"))
		}
		c.Outage()
	})
	t.Run("finds it empty", func(t *testing.T) {
		c := apiserver.RunCluster(t)
		addresses[c.Address] = true
		for _, o := range apiserver.ReadObjects(t, leftovers) {
			all, err := c.At(o).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Error(err)
				continue
			}
			for _, is := range all.Items {
				if name := is.GetName(); name == o.GetName() {
					t.Errorf("%s %s is still there", o.GetKind(), name)
				}
			}
		}
		if _, err := c.Find(apiserver.ReadObjects(t, gateways)[0]); !meta.IsNoMatchError(err) {
			t.Errorf("GatewayClass is still served: %v", err)
		}
	})
	if len(addresses) != 1 {
		t.Errorf("the tests used %d API servers", len(addresses))
	}
	t.Run("asks for no CRDs", func(t *testing.T) {
		all, err := apiserver.Run(t).Objects(t).At(apiserver.ReadObjects(t,
			"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition}")[0]).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(all.Items) > 0 {
			t.Errorf("there are %d CRDs, %v", len(all.Items), err)
		}
	})
	t.Run("changes a CRD", func(t *testing.T) {
		c := apiserver.RunCluster(t)
		crds := apiserver.ReadObjects(t, "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition}")[0]
		all, err := c.At(crds).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(all.Items, func(o unstructured.Unstructured) bool { return strings.HasPrefix(o.GetName(), "models.") })
		if err := c.At(crds).Delete(t.Context(), all.Items[i].GetName(), metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("finds all CRDs", func(t *testing.T) { apiserver.RunCluster(t).Apply(strings.SplitAfter(leftovers, "---\n")[3]) })
}
