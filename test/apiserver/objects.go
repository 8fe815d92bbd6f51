package apiserver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// servedTimeout is the maximum time until the objects of a new CRD must be served.
const servedTimeout = 20 * time.Second

// Objects reads and writes objects of an API server, as YAML and with all rights. Create one with
// [Server.Objects].
type Objects struct {
	dynamic.Interface
	t         testing.TB
	mapper    *restmapper.DeferredDiscoveryRESTMapper
	namespace string // for objects without a namespace
}

// Objects returns a client that reads and writes the objects of s.
func (s *Server) Objects(t testing.TB) *Objects {
	t.Helper()
	client, err := dynamic.NewForConfig(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(s.Admin())
	if err != nil {
		t.Fatal(err)
	}
	return &Objects{client, t, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds)), metav1.NamespaceDefault}
}

// In returns a copy of a that uses another default namespace.
func (a *Objects) In(namespace string) *Objects {
	return &Objects{a.Interface, a.t, a.mapper, namespace}
}

// ReadObjects parses objects in YAML. It fails the test if one is invalid.
func ReadObjects(t testing.TB, text string) (all []*unstructured.Unstructured) {
	t.Helper()
	for d := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
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

// At returns the client for the resource and namespace of an object. If the object has no
// namespace, At sets the default one. If the object's CRD is not served yet, At waits.
func (a *Objects) At(o *unstructured.Unstructured) dynamic.ResourceInterface {
	a.t.Helper()
	for deadline := time.Now().Add(servedTimeout); ; {
		at, err := a.Find(o)
		if err == nil {
			return at
		}
		if time.Now().After(deadline) {
			a.t.Fatal(err)
		}
		a.mapper.Reset()
	}
}

// Find is like At, but does not wait. If the kind of the object does not exist,
// [meta.IsNoMatchError] is true for the error.
func (a *Objects) Find(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := o.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return a.Resource(mapping.Resource), nil
	}
	if o.GetNamespace() == "" {
		o.SetNamespace(a.namespace)
	}
	return a.Resource(mapping.Resource).Namespace(o.GetNamespace()), nil
}

// Apply applies objects like kubectl apply, and also applies their status.
func (a *Objects) Apply(text string) {
	a.t.Helper()
	a.put(ReadObjects(a.t, text))
}

// Put applies one object as Apply does, and modifies o. It is safe for concurrent use.
func (a *Objects) Put(o *unstructured.Unstructured) error {
	options := metav1.ApplyOptions{FieldManager: "test", Force: true}
	at := a.At(o)
	if _, err := at.Apply(a.t.Context(), o.GetName(), o, options); err != nil {
		return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	if o.Object["status"] == nil || o.GetKind() == "CustomResourceDefinition" {
		return nil
	}
	delete(o.Object, "spec")
	if _, err := at.ApplyStatus(a.t.Context(), o.GetName(), o, options); err != nil {
		return fmt.Errorf("apply the status of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	return nil
}

// Delete deletes objects. Pods are deleted without a grace period.
func (a *Objects) Delete(text string) {
	a.t.Helper()
	for _, o := range ReadObjects(a.t, text) {
		if err := a.At(o).Delete(a.t.Context(), o.GetName(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			a.t.Fatal(err)
		}
	}
}

// ApplyFiles applies the objects in all files that match a pattern. The pattern is relative to the
// root of the repository.
func (a *Objects) ApplyFiles(pattern string) {
	a.t.Helper()
	a.put(a.readFiles(pattern))
}

// CRDs applies Headgate's CRDs and waits until they are served.
func (a *Objects) CRDs() {
	a.t.Helper()
	a.Define(a.readFiles("manifests/crds/inference.*.yaml"))
}

// GatewayAPI applies the CRDs of Gateway API's standard channel and waits until they are served.
// go.mod has their version.
func (a *Objects) GatewayAPI() {
	a.t.Helper()
	a.Define(a.GatewayCRDs())
}

// GatewayCRDs returns the CRDs that GatewayAPI applies.
func (a *Objects) GatewayCRDs() []*unstructured.Unstructured {
	a.t.Helper()
	const module = "sigs.k8s.io/gateway-api"
	out, err := exec.CommandContext(a.t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		a.t.Fatalf("find the module %s: %v", module, err)
	}
	all := a.readAll(filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard", "*.yaml"))
	return slices.DeleteFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() != "CustomResourceDefinition" })
}

// Define applies CRDs and waits until they are served.
func (a *Objects) Define(crds []*unstructured.Unstructured) {
	a.t.Helper()
	a.put(crds)
	for _, crd := range crds {
		some := defined(crd)
		for deadline := time.Now().Add(servedTimeout); ; {
			_, err := a.At(some).List(a.t.Context(), metav1.ListOptions{Limit: 1})
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				a.t.Fatal(err)
			}
		}
	}
}

// defined returns an empty object of the kind that a CRD defines, in its first served version.
func defined(crd *unstructured.Unstructured) *unstructured.Unstructured {
	var kind schema.GroupVersionKind
	kind.Group, _, _ = unstructured.NestedString(crd.Object, "spec", "group")
	kind.Kind, _, _ = unstructured.NestedString(crd.Object, "spec", "names", "kind")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	for _, v := range versions {
		if v := v.(map[string]any); kind.Version == "" && v["served"] == true {
			kind.Version, _ = v["name"].(string)
		}
	}
	o := new(unstructured.Unstructured)
	o.SetGroupVersionKind(kind)
	return o
}

// put applies several objects. It fails the test if one is rejected.
func (a *Objects) put(all []*unstructured.Unstructured) {
	a.t.Helper()
	for _, o := range all {
		if err := a.Put(o); err != nil {
			a.t.Fatal(err)
		}
	}
}

// readFiles reads the objects in all files that match a pattern, which is relative to the root of
// the repository.
func (a *Objects) readFiles(pattern string) []*unstructured.Unstructured {
	a.t.Helper()
	root, err := Root(".")
	if err != nil {
		a.t.Fatal(err)
	}
	return a.readAll(filepath.Join(root, pattern))
}

// readAll reads the objects in all files whose path matches a pattern.
func (a *Objects) readAll(pattern string) (all []*unstructured.Unstructured) {
	a.t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		a.t.Fatalf("%s: %v, %v", pattern, files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			a.t.Fatal(err)
		}
		all = append(all, ReadObjects(a.t, string(text))...)
	}
	return all
}
