package manifests

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/headgate/headgate/test/apiserver"
)

// cluster is an API server with CRDs.
type cluster struct {
	*testing.T
	*apiserver.Objects
}

// newCluster starts an API server with those CRDs that define one of the kinds.
func newCluster(t *testing.T, kinds map[schema.GroupKind]bool, definitions []*unstructured.Unstructured) *cluster {
	t.Helper()
	c := &cluster{t, apiserver.Run(t).Objects(t)}
	c.Define(slices.DeleteFunc(slices.Clone(definitions), func(crd *unstructured.Unstructured) bool { return !kinds[defines(crd)] }))
	return c
}

// defines returns the kind that a CRD defines.
func defines(crd *unstructured.Unstructured) schema.GroupKind {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	kind, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "kind")
	return schema.GroupKind{Group: group, Kind: kind}
}

func (c *cluster) await(what string, ok func() bool) {
	c.Helper()
	deadline := time.After(time.Minute)
	for tick := time.NewTicker(10 * time.Millisecond); !ok(); {
		select {
		case <-tick.C:
		case <-deadline:
			c.Fatalf("it does not come true that %s", what)
		}
	}
}

// try applies an object as a dry run. A field that is not in the schema is an error.
func (c *cluster) try(o *unstructured.Unstructured) error {
	at, err := c.Find(o)
	if err != nil {
		return err
	}
	text, err := o.MarshalJSON()
	if err != nil {
		return err
	}
	yes := true
	_, err = at.Patch(c.Context(), o.GetName(), types.ApplyPatchType, text, metav1.PatchOptions{
		FieldManager: "test", Force: &yes, DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
	})
	return err
}

// Each object fits its schema. Each of our pods meets the pod security standard "restricted". Each
// pool that a gateway shares with us fits both our CRD and that of the inference extension.
func TestObjectsFitTheirSchemas(t *testing.T) {
	all := built(t)
	kinds := make(map[schema.GroupKind]bool)
	namespaces := map[string]*unstructured.Unstructured{}
	for _, objects := range all {
		for _, o := range objects {
			kinds[o.GroupVersionKind().GroupKind()] = true
			if n := o.GetNamespace(); n != "" && namespaces[n] == nil {
				namespaces[n] = &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": n},
				}}
			}
		}
	}
	modules := definitions(t)
	gie := modules["istio.io/istio"]
	delete(modules, "istio.io/istio") // apply our CRD of pools first
	definitions := slices.Clone(all["crds"])
	definitions = slices.DeleteFunc(definitions, func(o *unstructured.Unstructured) bool {
		return o.GetKind() != "CustomResourceDefinition"
	})
	for _, path := range slices.Sorted(maps.Keys(modules)) {
		definitions = append(definitions, modules[path]...)
	}
	c := newCluster(t, kinds, definitions)
	restricted := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": "restricted", "labels": map[string]any{"pod-security.kubernetes.io/enforce": "restricted"}},
	}}
	for _, n := range append(slices.Collect(maps.Values(namespaces)), restricted) {
		if err := c.Put(n); err != nil {
			t.Fatal(err)
		}
	}

	unknown := make(map[schema.GroupKind]bool)
	var pools []*unstructured.Unstructured
	tried := 0
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		for _, o := range all[folder] {
			kind := o.GroupVersionKind().GroupKind()
			err := c.try(o)
			tried++
			if meta.IsNoMatchError(err) {
				unknown[kind] = true
				if noSchema[kind] == "" {
					t.Errorf("%s: no schema of %v is in the modules of tools/gateways", folder, o.GroupVersionKind())
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %s %s: %v", folder, o.GetKind(), o.GetName(), err)
			}
			if _, picked, _ := unstructured.NestedMap(o.Object, "spec", "endpointPickerRef"); picked && kind.Kind == "InferencePool" {
				pools = append(pools, o)
			}
			if template, ok := pod(o); ok {
				p := &unstructured.Unstructured{Object: template}
				p = p.DeepCopy()
				p.SetGroupVersionKind(schema.GroupVersionKind{Version: "v1", Kind: "Pod"})
				p.SetName(o.GetName())
				p.SetNamespace("restricted")
				if err := c.try(p); err != nil {
					t.Errorf("%s: a pod of %s: %v", folder, o.GetName(), err)
				}
			}
		}
	}
	t.Logf("%d objects of %d kustomizations", tried, len(all))
	for kind, why := range noSchema {
		t.Logf("not checked: %v: %s", kind, why)
		if !unknown[kind] {
			t.Errorf("%v is in no manifest, or has a schema: it needs no excuse", kind)
		}
	}

	// Apply the same pools with the CRD of the inference extension instead of ours. Up to version
	// 1.5 that CRD requires a picker.
	for _, crd := range gie {
		if defines(crd).Kind != "InferencePool" || defines(crd).Group != "inference.networking.k8s.io" {
			continue
		}
		ours, err := c.At(crd).Get(t.Context(), crd.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		crd.SetResourceVersion(ours.GetResourceVersion())
		if _, err := c.At(crd).Update(t.Context(), crd, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		without := pools[0].DeepCopy()
		unstructured.RemoveNestedField(without.Object, "spec", "endpointPickerRef")
		c.await("the inference extension's CRD is in force", func() bool {
			err := c.try(without)
			return err != nil && strings.Contains(err.Error(), "endpointPickerRef")
		})
		for _, p := range pools {
			if err := c.try(p); err != nil {
				t.Errorf("the inference extension's CRD: %s: %v", p.GetName(), err)
			}
		}
		return
	}
	t.Error("the inference extension's CRD of InferencePool is not where it was")
}
