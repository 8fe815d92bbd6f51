package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/headgate/headgate/bench/rig"
	"github.com/headgate/headgate/internal/apiserver"
)

// kubernetes is a real API server with our CRDs and RBAC, whose pods are patched objects.
type kubernetes struct {
	*apiserver.Server
	t      testing.TB
	client dynamic.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

func newKubernetes(t testing.TB) *kubernetes {
	t.Helper()
	server := apiserver.Run(t)
	client, err := dynamic.NewForConfig(server.Admin())
	if err != nil {
		t.Fatal(err)
	}
	found, err := discovery.NewDiscoveryClientForConfig(server.Admin())
	if err != nil {
		t.Fatal(err)
	}
	k := &kubernetes{Server: server, t: t, client: client, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(found))}
	for _, pattern := range []string{"/manifests/base/namespace.yaml", "/manifests/crds/inference.*.yaml", "/manifests/base/*/rbac.yaml"} {
		files, err := filepath.Glob(root + pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", pattern, files, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			k.apply(string(text))
		}
	}
	return k
}

// documents are the objects of a text.
func documents(t testing.TB, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(text)), 4096); ; {
		o := new(unstructured.Unstructured)
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if o.Object != nil {
			all = append(all, o)
		}
	}
}

// at is where an object is: in the namespace default if it names none, but for the service accounts and roles of manifests,
// whose kustomization names it.
func (k *kubernetes) at(o *unstructured.Unstructured) dynamic.ResourceInterface {
	k.t.Helper()
	var mapping *meta.RESTMapping
	for deadline := time.Now().Add(20 * time.Second); ; { // a CRD is served a moment after it was made
		var err error
		if mapping, err = k.mapper.RESTMapping(o.GroupVersionKind().GroupKind(), o.GroupVersionKind().Version); err == nil {
			break
		}
		if time.Now().After(deadline) {
			k.t.Fatal(err)
		}
		k.mapper.Reset()
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return k.client.Resource(mapping.Resource)
	}
	namespace := o.GetNamespace()
	switch {
	case namespace != "":
	case strings.Contains(o.GetAPIVersion(), "rbac") || o.GetKind() == "ServiceAccount":
		namespace = system
	default:
		namespace = "default"
	}
	o.SetNamespace(namespace)
	return k.client.Resource(mapping.Resource).Namespace(namespace)
}

const system = "headgate-system"

// apply writes objects as kubectl apply does, with the status of those that have one. A pod needs a container, and is
// ready.
func (k *kubernetes) apply(text string) {
	k.t.Helper()
	options := metav1.ApplyOptions{FieldManager: "test", Force: true}
	for _, o := range documents(k.t, text) {
		if o.GetKind() == "Pod" {
			_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"name": "engine", "image": "engine"}}, "spec", "containers")
			_ = unstructured.SetNestedSlice(o.Object, []any{map[string]any{"type": "Ready", "status": "True"}}, "status", "conditions")
		}
		if _, err := k.at(o).Apply(k.t.Context(), o.GetName(), o, options); err != nil {
			k.t.Fatal(err)
		}
		if o.Object["status"] != nil && o.GetKind() != "CustomResourceDefinition" {
			delete(o.Object, "spec")
			if _, err := k.at(o).ApplyStatus(k.t.Context(), o.GetName(), o, options); err != nil {
				k.t.Fatal(err)
			}
		}
	}
}

func (k *kubernetes) remove(text string) {
	k.t.Helper()
	for _, o := range documents(k.t, text) {
		if err := k.at(o).Delete(k.t.Context(), o.GetName(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			k.t.Fatal(err)
		}
	}
}

// get returns an object of our kinds in the namespace default, nil if there is none.
func (k *kubernetes) get(resource, name string) *unstructured.Unstructured {
	k.t.Helper()
	r := schema.GroupVersionResource{Group: "inference.x-k8s.io", Version: "v1alpha1", Resource: resource}
	o, err := k.client.Resource(r).Namespace("default").Get(k.t.Context(), name, metav1.GetOptions{})
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
		text, err := apiserver.Kubeconfig(config)
		if err != nil {
			k.t.Fatal(err)
		}
		*file = filepath.Join(k.t.TempDir(), account)
		if err := os.WriteFile(*file, text, 0o600); err != nil {
			k.t.Fatal(err)
		}
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
	k.remove(newcomer)
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
	s.await("control decides nothing", func() bool { return s.sum(s.ControlMetrics, "headgate_decides") == 0 })
	l.goesOn(s, 50)
	if err := k.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.promised(20*time.Second, "control decides again", func() bool { return s.sum(s.ControlMetrics, "headgate_decides") == 1 })
	k.apply(modelObject("late", ""))
	s.await("what was made since can be asked for", func() bool { return status("late") == http.StatusOK })
	l.goesOn(s, 20)

	// A pod that goes gets nothing any more.
	victim := strings.TrimSuffix(s.Listen, "1:8080") + "11:8000"
	k.remove("apiVersion: v1\nkind: Pod\nmetadata: {name: engine-11}")
	s.await("the deleted pod is no endpoint", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "endpoint", victim) == 0 })
	l.goesOn(s, 20)
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	k.checkRights()
}

// checkRights compares what the programs asked the API server with what the manifests let them: nothing may be denied that
// was not allowed at another time, for a server that begins knows no rules for a moment. Rules that nobody used are told.
func (k *kubernetes) checkRights() {
	k.t.Helper()
	requests, err := apiserver.Requests(k.AuditLog)
	if err != nil {
		k.t.Fatal(err)
	}
	allowed, denied := make(map[string]int), make(map[string]int)
	for _, r := range requests {
		account, ours := strings.CutPrefix(r.User.Name, "system:serviceaccount:"+system+":")
		if !ours {
			continue
		}
		what := fmt.Sprintf("%s: %s %s", account, r.Verb, strings.TrimSuffix(r.Object.Resource+"/"+r.Object.Subresource, "/"))
		if r.Denied() {
			denied[what]++
		} else {
			allowed[what]++
		}
	}
	for what, n := range denied {
		if allowed[what] == 0 {
			k.t.Errorf("%s was denied %d times", what, n)
		}
	}
	var lines []string
	for what, n := range allowed {
		lines = append(lines, fmt.Sprintf("%s, %d times", what, n))
	}
	slices.Sort(lines)
	k.t.Logf("requests made:\n%s", strings.Join(lines, "\n"))
}
