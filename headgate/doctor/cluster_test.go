package doctor_test

import (
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/headgate/headgate/test/apiserver"
)

// TestMain lets the tests share one API server.
func TestMain(m *testing.M) { apiserver.Main(m) }

// kube returns what "doctor --kube" prints for a user of an API server, and its exit status. No
// port is forwarded to control.
func kube(t *testing.T, user *rest.Config) (string, int) {
	t.Helper()
	closed := httptest.NewServer(nil)
	closed.Close()
	return run(t, "--kube", "--kubeconfig", apiserver.KubeconfigFile(t, user), "--control-url", closed.URL)
}

// installed applies the roles of control.
func installed(t *testing.T, a *apiserver.Objects) {
	t.Helper()
	a.Apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: headgate-system}\n")
	a.In("headgate-system").ApplyFiles("manifests/base/*/rbac.yaml")
}

// This test must be the first one: later ones add CRDs.
func TestClusterWithoutHeadgate(t *testing.T) {
	s := apiserver.Run(t)
	out, code := kube(t, s.Admin())
	for _, want := range []string{
		"has no kind InferencePool (inference.networking.k8s.io/v1)\n", "has no kind LLMRoute (inference.x-k8s.io/v1alpha1)\n",
		"✗ cluster       the service account headgate-system/headgate-control of control does not exist\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it lacks %q:\n%s", want, out)
		}
	}
	if code != 1 || strings.Contains(out, "kind Gateway ") {
		t.Errorf("exit status %d\n%s", code, out)
	}
}

const healthy = `
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: p}
spec: {selector: {matchLabels: {app: p}}, targetPorts: [{number: 8000}]}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: EndpointList
metadata: {name: l, labels: {app: p}}
spec: {addresses: ['10.0.0.1:8000', '10.0.0.2:8000']}
status:
  conditions:
  - {type: Ready, status: 'True', reason: EndpointsAnswer, message: 1 of 2 endpoints answer, lastTransitionTime: '2026-01-01T00:00:00Z'}
  - {type: Endpoints, status: 'False', reason: SomeOut, message: 1/2, lastTransitionTime: '2026-01-01T00:00:00Z'}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: {name: r}
spec: {modelNames: [m], backendRefs: [{name: p}]}
status:
  conditions:
  - {type: Ready, status: 'True', reason: EndpointsAnswer, message: '', lastTransitionTime: '2026-01-01T00:00:00Z'}
`

// broken has conditions that are False because something is wrong.
const broken = `
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: {name: r}
spec: {modelNames: [m], backendRefs: [{name: p}]}
status:
  conditions:
  - {type: Ready, status: 'False', reason: NoEndpoints, message: no endpoint answers, lastTransitionTime: '2026-01-01T00:00:00Z'}
  parents:
  - controllerName: headgate.dev/gateway-controller
    parentRef: {kind: Gateway, name: g}
    conditions: [{type: Accepted, status: 'False', reason: NoMatchingParent, message: ours, lastTransitionTime: '2026-01-01T00:00:00Z'}]
`

// write applies objects with their status.
func write(t *testing.T, a *apiserver.Objects, text string) {
	t.Helper()
	a.Apply(text)
	for _, o := range apiserver.ReadObjects(t, text) {
		if o.Object["status"] == nil {
			continue
		}
		at := a.At(o)
		is, err := at.Get(t.Context(), o.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		is.Object["status"] = o.Object["status"]
		if _, err := at.UpdateStatus(t.Context(), is, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCluster(t *testing.T) {
	c := apiserver.RunCluster(t)
	installed(t, c.Objects)
	write(t, c.Objects, healthy)
	out, code := kube(t, c.Admin())
	for _, want := range []string{
		"all CRDs are installed\n", "✓ cluster       control has the rights that it needs\n", "✓ objects       the cluster: ",
		"! control       control and its extprocs were not asked: nothing listens at ", "Endpoints is False: SomeOut: 1/2\n",
	} {
		if strings.Count(out, want) != 1 {
			t.Errorf("not once %q:\n%s", want, out)
		}
	}
	if code != 0 || !strings.HasSuffix(out, "\n0 faults, 2 warnings\n") {
		t.Errorf("a healthy cluster: exit status %d\n%s", code, out)
	}

	write(t, c.Objects, broken)
	var role unstructured.Unstructured
	role.SetUnstructuredContent(map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": map[string]any{"name": "headgate-places"},
		"rules": []any{},
	})
	if err := c.Put(&role); err != nil {
		t.Fatal(err)
	}
	out, code = kube(t, c.Admin())
	for _, want := range []string{
		"✗ conditions    LLMRoute default/r: Ready is False: NoEndpoints: no endpoint answers\n",
		"✗ conditions    LLMRoute default/r (Gateway g): Accepted is False: NoMatchingParent: ours\n",
		"✗ cluster       control may not create, delete models.inference.x-k8s.io\n",
	} {
		if strings.Count(out, want) != 1 {
			t.Errorf("not once %q:\n%s", want, out)
		}
	}
	if code != 1 {
		t.Errorf("exit status %d\n%s", code, out)
	}

	limited := c.Allowed("limited", `
- {apiGroups: [inference.x-k8s.io], resources: [llmroutes, endpointlists], verbs: [list]}
`)
	out, code = kube(t, limited)
	for _, want := range []string{
		"! cluster       Models cannot be listed: models.inference.x-k8s.io is forbidden", "the rights of control are unknown: ",
		"✗ conditions    LLMRoute default/r: Ready is False",
	} {
		if strings.Count(out, want) != 1 {
			t.Errorf("not once %q:\n%s", want, out)
		}
	}
	if code != 1 {
		t.Errorf("exit status %d\n%s", code, out)
	}

	// Control itself may ask what it may do.
	self, err := c.ServiceAccount(t.Context(), "headgate-system", "headgate-control")
	if err != nil {
		t.Fatal(err)
	}
	if out, _ = kube(t, self); !strings.Contains(out, "control may not create, delete models.inference.x-k8s.io\n") {
		t.Errorf("as control:\n%s", out)
	}
}
