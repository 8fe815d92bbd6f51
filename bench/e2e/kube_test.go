package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/test/apiserver"
)

// kubernetes is a real API server with Headgate's CRDs and RBAC. Its pods are only objects, whose
// status the tests patch.
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

// apply writes objects. It adds a container to each pod and makes the pod ready.
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

// get returns an object of Headgate's API group in the namespace default, nil if there is none.
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

// condition returns a condition's status and reason, and whether the condition is about the
// object's current generation.
func condition(o *unstructured.Unstructured, kind string) string {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		if c, ok := c.(map[string]any); ok && c["type"] == kind {
			return fmt.Sprintf("%v %v current=%v", c["status"], c["reason"], c["observedGeneration"] == o.GetGeneration())
		}
	}
	return ""
}

// called makes the rig's programs use the API server, each with its service account.
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

// Objects come from an API server, and the programs have only the rights that the manifests grant.
// Edits take effect at once, models are loaded where requests need them, the status of Models and
// routes reports that, and an outage of the API server fails no request.
func TestObjectsFromAnAPIServer(t *testing.T) {
	runs(t)
	k := newKubernetes(t)
	s := start(t, pods(t, 2), placed(t, 4, "a01"), k.called)
	status := func(model string) int { return s.must(completion(model, 1, false)).status }

	// A Model's adapter is added. A route's adapter is added and removed.
	k.apply(modelObject("m1", "copies: {min: 1}"))
	s.promised(2*time.Second, "a Model that must have a copy is loaded", func() bool {
		return strings.HasPrefix(condition(k.get("models", "m1"), "Ready"), "True Loaded current=true")
	})
	newcomer := routes("newcomer")
	k.apply(newcomer)
	s.promised(2*time.Second, "a new route's adapter is loaded for the first that asks", func() bool {
		return status("newcomer") == http.StatusOK
	})
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

	// Requests continue while the API server is down.
	l := s.pour(4, func(client, n int) request { return completion([]string{"m1", "a01"}[(client+n)%2], 5, n%2 == 0) }, isOK)
	l.goesOn(s, 20)
	k.Outage()
	s.await("extproc knows", func() bool { return s.sum(s.Metrics, "headgate_objects_connected") == 0 })
	s.await("control does not lead", func() bool { return s.sum(s.ControlMetrics, "headgate_leader") == 0 })
	l.goesOn(s, 50)
	if err := k.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.promised(20*time.Second, "control leads again", func() bool { return s.sum(s.ControlMetrics, "headgate_leader") == 1 })
	k.apply(modelObject("late", ""))
	s.await("what was made since can be asked for", func() bool { return status("late") == http.StatusOK })
	l.goesOn(s, 20)

	// When nodes go silent, all pods become unready but their containers stay ready. Requests
	// continue.
	for _, silent := range []string{"False", "True"} {
		readiness := fmt.Appendf(nil,
			`{"status": {"conditions": [{"type": "Ready", "status": %q}, {"type": "ContainersReady", "status": "True"}]}}`, silent)
		for i := range 2 {
			pod := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
			if _, err := k.objects.Resource(pod).Namespace("default").Patch(t.Context(), fmt.Sprintf("engine-%d", 11+i),
				types.StrategicMergePatchType, readiness, metav1.PatchOptions{}, "status"); err != nil {
				t.Fatal(err)
			}
		}
		if silent == "False" {
			s.await("extproc knows", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "state", "stale") == 2 })
		}
		l.goesOn(s, 20)
	}

	// A deleted pod gets no more requests.
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

// tenant returns the YAML of a Secret with the token of a namespace's engines, and of a Role that
// lets extproc and control read it.
func tenant(namespace, token string) string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: Secret
metadata: {name: engine-token, namespace: %[1]s}
stringData: {token: %[2]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: engine-token, namespace: %[1]s}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [engine-token], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: engine-token, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: engine-token}
subjects:
- {kind: ServiceAccount, name: headgate-gateway, namespace: headgate-system}
- {kind: ServiceAccount, name: headgate-control, namespace: headgate-system}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: PoolSettings
metadata: {name: pool, namespace: %[1]s}
spec: {poolRef: {name: pool}, placement: {maxAdapters: 4, source: 'sim:'}, engineToken: {secretRef: {name: engine-token}}}
`, namespace, token)
}

// logOf returns the text of a program's log.
func (s *stack) logOf(program string) string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.Dir, program+".log"))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// Engines that require a token are scraped and managed with the token from the Secret in their own
// namespace. Another tenant's pool lists the same addresses, and a server beside them. That server
// gets only the other tenant's token, and nothing is loaded there. No token appears in a log, in
// /models or in metrics.
func TestEnginesGetTheTokenOfTheirNamespace(t *testing.T) {
	runs(t)
	k := newKubernetes(t)
	s := start(t, pods(t, 1), placed(t, 4), engineFlags("--api-key", "sk-victim"), k.called, func(*rig.Config) {
		k.apply(tenant("default", "sk-victim"))
	})
	k.apply(modelObject("m1", "copies: {min: 1}"))
	s.await("control loads with the token", func() bool {
		return strings.HasPrefix(condition(k.get("models", "m1"), "Ready"), "True Loaded current=true")
	})
	if status := s.must(completion("m1", 1, false)).status; status != http.StatusUnauthorized {
		t.Errorf("a client without the token gets %d", status)
	}
	with := completion("m1", 1, false)
	with.header = map[string]string{"authorization": "Bearer sk-victim"}
	if status := s.must(with).status; status != http.StatusOK {
		t.Errorf("a client with the token gets %d", status)
	}

	network := strings.TrimSuffix(s.Listen, "1:8080")
	var shown sync.Map
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", network+"66:8000")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown.Store(r.Header.Get("Authorization"), true)
		http.Error(w, "nobody knows "+r.Header.Get("Authorization"), http.StatusForbidden)
	})}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	// The other tenant's pods claim both addresses. An EndpointList cannot claim them, because they
	// are loopback addresses.
	theirs := engines(network, 1) +
		fmt.Sprintf("---\napiVersion: v1\nkind: Pod\nmetadata: {name: own, labels: {app: llama}}\nstatus: {podIP: %s66}\n", network) +
		modelObject("evil", "copies: {min: 1}")
	k.apply(tenant("attacker", "sk-attacker") + strings.ReplaceAll("---\n"+theirs, "metadata: {", "metadata: {namespace: attacker, "))
	s.await("both programs have looked at his server", func() bool {
		return strings.Contains(s.logOf("extproc"), network+"66:8000") &&
			strings.Contains(s.logOf("control"), "nobody knows Bearer (the token)")
	})
	s.await("control says whose the token is", func() bool {
		return strings.Contains(s.logOf("control"), "endpoint "+network+
			"11:8000: control loads no model of InferencePool attacker/pool there, because the token belongs to InferencePool default/pool")
	})
	var models json.RawMessage
	s.get("http://"+s.ControlMetrics+"/models", &models)
	shown.Range(func(token, _ any) bool {
		if token != "Bearer sk-attacker" {
			t.Errorf("his server is shown %q", token)
		}
		return true
	})
	for _, e := range s.events() {
		if e.Model == "evil" {
			t.Errorf("the engine is told: %+v", e)
		}
	}
	for what, text := range map[string]string{
		"the log of extproc": s.logOf("extproc"), "the log of control": s.logOf("control"), "/models": string(models),
		"extproc's metrics": s.page(s.Metrics), "control's metrics": s.page(s.ControlMetrics),
	} {
		if strings.Contains(text, "sk-") {
			t.Errorf("a token is in %s:\n%s", what, text)
		}
	}
	k.checkRights()
}

// checkRights fails the test if the programs sent the API server requests that the manifests do not
// permit. Another test, on a whole cluster, checks that the manifests grant no other rights.
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
