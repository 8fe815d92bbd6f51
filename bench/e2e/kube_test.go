package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/headgate/headgate/bench/rig"
	"github.com/headgate/headgate/internal/apiserver"
)

// kubernetes is a real API server with our CRDs and RBAC, whose pods are patched objects.
type kubernetes struct {
	*apiserver.Server
	t       testing.TB
	objects *apiserver.Objects
}

func newKubernetes(t testing.TB) *kubernetes {
	t.Helper()
	server := apiserver.Run(t)
	k := &kubernetes{server, t, server.Objects(t)}
	k.objects.ApplyFiles("manifests/base/namespace.yaml")
	k.objects.CRDs()
	k.objects.In(system).ApplyFiles("manifests/base/*/rbac.yaml")
	return k
}

const system = "headgate-system"

// apply writes objects. A pod needs a container, and is ready.
func (k *kubernetes) apply(text string) {
	k.t.Helper()
	for _, o := range apiserver.ReadObjects(k.t, text) {
		if o.GetKind() == "Pod" {
			_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"name": "engine", "image": "engine"}}, "spec", "containers")
			_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"type": "Ready", "status": "True"}}, "status", "conditions")
		}
		if err := k.objects.Put(o); err != nil {
			k.t.Fatal(err)
		}
	}
}

// get returns an object of our kinds in the namespace default, nil if there is none.
func (k *kubernetes) get(resource, name string) *unstructured.Unstructured {
	k.t.Helper()
	r := schema.GroupVersionResource{Group: "inference.x-k8s.io", Version: "v1alpha1", Resource: resource}
	o, err := k.objects.Resource(r).Namespace("default").Get(k.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		k.t.Fatal(err)
	}
	return o
}

// condition is the status of a condition, with its reason, and whether it is said of the object as it is.
func condition(o *unstructured.Unstructured, kind string) string {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			return fmt.Sprintf("%v %v current=%v", c["status"], c["reason"], c["observedGeneration"] == o.GetGeneration())
		}
	}
	return ""
}

// called makes the rig's programs call the API server as their service accounts.
func (k *kubernetes) called(c *rig.Config) {
	for account, file := range map[string]*string{"headgate-gateway": &c.ExtprocKube, "headgate-control": &c.ControlKube} {
		config, err := k.ServiceAccount(k.t.Context(), system, account)
		if err != nil {
			k.t.Fatal(err)
		}
		*file = apiserver.KubeconfigFile(k.t, config)
	}
	c.ControlFlags = append(c.ControlFlags, "--pod", system+"/control-0", "--pod-ip", "127.0.0.1", "--credentials-dir", k.t.TempDir())
	files, err := filepath.Glob(c.Objects + "/*.yaml")
	if err != nil {
		k.t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			k.t.Fatal(err)
		}
		k.apply(string(text))
	}
}

// With objects from an API server, and no more rights than the manifests give: edits are in force at once, models are loaded
// where requests need them, their objects and routes tell of it, and an outage of the API server costs no request.
func TestObjectsFromAnAPIServer(t *testing.T) {
	t.Parallel()
	k := newKubernetes(t)
	s := start(t, pods(t, 2), placed(t, 4, "a01"), k.called)
	status := func(model string) int { return s.must(completion(model, 1, false)).status }

	// An adapter comes, by a route and by a Model, and goes.
	k.apply(modelObject("m1", "copies: {min: 1}"))
	s.promised(2*time.Second, "a Model that must have a copy is loaded", func() bool {
		return strings.HasPrefix(condition(k.get("models", "m1"), "Ready"), "True Loaded current=true")
	})
	newcomer := routes("newcomer")
	k.apply(newcomer)
	s.promised(2*time.Second, "a new route's adapter is loaded for the first that asks", func() bool { return status("newcomer") == http.StatusOK })
	s.await("the route says so", func() bool {
		o := k.get("llmroutes", "newcomer")
		return condition(o, "Accepted") == "True Accepted current=true" && condition(o, "ResolvedRefs") == "True ResolvedRefs current=true"
	})
	k.objects.Delete(newcomer)
	s.promised(time.Second, "a deleted route is gone", func() bool { return status("newcomer") == http.StatusNotFound })
	k.apply("apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: lost}\nspec: {backendRefs: [{name: nowhere}]}")
	s.await("a route without a pool says so", func() bool {
		return condition(k.get("llmroutes", "lost"), "ResolvedRefs") == "False BackendNotFound current=true"
	})
	k.apply(modelObject("m1", "copies: {min: 1, max: 2}"))
	s.await("an edited Model's status is of the edit", func() bool {
		return strings.HasPrefix(condition(k.get("models", "m1"), "Ready"), "True Loaded current=true")
	})

	// The API server is away.
	l := s.pour(4, func(client, n int) request { return completion([]string{"m1", "a01"}[(client+n)%2], 5, n%2 == 0) }, isOK)
	l.goesOn(s, 20)
	k.Outage()
	s.await("extproc knows", func() bool { return s.sum(s.Metrics, "headgate_objects_connected") == 0 })
	s.await("control does not lead", func() bool { return s.sum(s.ControlMetrics, "headgate_leads") == 0 })
	l.goesOn(s, 50)
	if err := k.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.promised(20*time.Second, "control leads again", func() bool { return s.sum(s.ControlMetrics, "headgate_leads") == 1 })
	k.apply(modelObject("late", ""))
	s.await("what was made since can be asked for", func() bool { return status("late") == http.StatusOK })
	l.goesOn(s, 20)

	// Nodes that nobody hears of take the readiness of all pods, but not that of their containers: requests go on.
	for _, silent := range []string{"False", "True"} {
		readiness := fmt.Appendf(nil, `{"status": {"conditions": [{"type": "Ready", "status": %q}, {"type": "ContainersReady", "status": "True"}]}}`, silent)
		for i := range 2 {
			pod := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
			if _, err := k.objects.Resource(pod).Namespace("default").Patch(t.Context(), fmt.Sprintf("engine-%d", 11+i), types.StrategicMergePatchType, readiness, metav1.PatchOptions{}, "status"); err != nil {
				t.Fatal(err)
			}
		}
		if silent == "False" {
			s.await("extproc knows", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "state", "stale") == 2 })
		}
		l.goesOn(s, 20)
	}

	// A pod that goes gets nothing any more.
	victim := strings.TrimSuffix(s.Listen, "1:8080") + "11:8000"
	k.objects.Delete("apiVersion: v1\nkind: Pod\nmetadata: {name: engine-11}")
	s.await("the deleted pod is no endpoint", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "endpoint", victim) == 0 })
	l.goesOn(s, 20)
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	k.checkRights()
}

// checkRights fails the test if the programs asked the API server for what the manifests do not let them. That they let them
// nothing else is seen on a whole cluster.
func (k *kubernetes) checkRights() {
	k.t.Helper()
	requests, err := apiserver.Requests(k.AuditLog)
	if err != nil {
		k.t.Fatal(err)
	}
	if _, denied, err := apiserver.Rights(k.t.Context(), k.Admin(), system, requests); err != nil || len(denied) > 0 {
		k.t.Errorf("%v: denied was:\n%s", err, strings.Join(denied, "\n"))
	}
}
