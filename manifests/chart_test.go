package manifests

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	syaml "sigs.k8s.io/yaml"

	"github.com/headgate/headgate/test/apiserver"
)

const chart = "../packaging/chart"

// helm runs a command of Helm and returns its output and its error output.
func helm(t *testing.T, args ...string) (out, errors string, err error) {
	t.Helper()
	if testing.Short() {
		t.Skip("short runs build no Helm")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	binaries, err := apiserver.Build(ctx, "..", os.Stderr, "helm")
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr strings.Builder
	command := exec.CommandContext(ctx, filepath.Join(binaries, "helm"), args...)
	command.Env = append(os.Environ(), "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	command.Stdout, command.Stderr = &stdout, &stderr
	err = command.Run()
	return stdout.String(), stderr.String(), err
}

// rendered returns the objects of the chart with the values of args, by kind and name.
func rendered(t *testing.T, args ...string) map[string]*unstructured.Unstructured {
	t.Helper()
	out, stderr, err := helm(t, append([]string{"template", "headgate", chart, "--namespace", "headgate-system"}, args...)...)
	if err != nil {
		t.Fatalf("helm template: %s", stderr)
	}
	return byName(apiserver.ReadObjects(t, out))
}

// byName returns objects by kind and name. Objects without a namespace are in the namespace
// headgate-system, as Helm and kustomize decide with their flags.
func byName(all []*unstructured.Unstructured) map[string]*unstructured.Unstructured {
	named := make(map[string]*unstructured.Unstructured)
	for _, o := range all {
		o = o.DeepCopy()
		unstructured.RemoveNestedField(o.Object, "metadata", "namespace")
		named[o.GetKind()+" "+o.GetName()] = o
	}
	return named
}

// base returns the objects of manifests/base without those that the chart leaves to Helm.
func base(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	want := byName(built(t)["base"])
	if len(want) == 0 {
		t.Fatal("manifests/base has no objects")
	}
	delete(want, "Namespace headgate-system") // helm install --create-namespace
	return want
}

// images are the values with which the chart has the images of manifests/base.
var images = []string{"--set", "image.tag=dev,envoyImage.tag=dev"}

// TestChartIsTheBase compares the chart, object by object, with manifests/base. It fails if a
// change of one is missing in the other.
func TestChartIsTheBase(t *testing.T) {
	want, got := base(t), rendered(t, images...)
	for name, o := range want {
		other, ok := got[name]
		if !ok {
			t.Errorf("the chart lacks %s", name)
			continue
		}
		removeDefaults(t, other)
		if !reflect.DeepEqual(o.Object, other.Object) {
			t.Errorf("%s differs. manifests/base has:\n%s\nthe chart has:\n%s", name, text(t, o), text(t, other))
		}
	}
	for name := range got {
		if want[name] == nil {
			t.Errorf("manifests/base lacks %s", name)
		}
	}
}

// removeDefaults removes from an object of the chart what only the chart has.
func removeDefaults(t *testing.T, o *unstructured.Unstructured) {
	t.Helper()
	switch o.GetKind() {
	case "CustomResourceDefinition":
		annotations := o.GetAnnotations()
		if annotations["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s: Helm would delete it, and with it all objects of its kind", o.GetName())
		}
		delete(annotations, "helm.sh/resource-policy")
		o.SetAnnotations(annotations)
	case "Deployment":
		containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		for _, c := range containers {
			delete(c.(map[string]any), "imagePullPolicy")
		}
		if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
			t.Fatal(err)
		}
	}
}

func text(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	out, err := syaml.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestChartValues sets each value of the chart and checks what becomes of it.
func TestChartValues(t *testing.T) {
	tests := map[string]struct {
		args []string
		// gone and present are names of objects.
		gone, present []string
		// contains is part of the Deployment of control.
		contains []string
	}{
		"one replica has no disruption budget, which would block every drain": {
			args: []string{"--set", "control.replicas=1"}, gone: []string{"PodDisruptionBudget headgate-control"},
			contains: []string{"replicas: 1\n"},
		},
		"no Gateway": {
			args: []string{"--set", "gateway.create=false"}, gone: []string{"Gateway headgate", "GatewayClass headgate", "Service headgate"},
		},
		"no network policy": {args: []string{"--set", "networkPolicy.create=false"}, gone: []string{"NetworkPolicy headgate-control"}},
		"no CRDs": {
			args: []string{"--set", "crds.install=false"},
			gone: []string{
				"CustomResourceDefinition llmroutes.inference.x-k8s.io", "CustomResourceDefinition inferencepools.inference.networking.k8s.io",
			},
		},
		"InferencePool of another project": {
			args:    []string{"--set", "crds.inferencePool=false"},
			gone:    []string{"CustomResourceDefinition inferencepools.inference.networking.k8s.io"},
			present: []string{"CustomResourceDefinition llmroutes.inference.x-k8s.io"},
		},
		"images": {
			args: []string{
				"--set", "image.repository=r.test/h,image.tag=v1,image.pullPolicy=Always,envoyImage.repository=r.test/e,envoyImage.tag=v2",
				"--set", "imagePullSecrets[0].name=pull",
			},
			contains: []string{
				"image: r.test/h:v1\n", "- --extproc-image=r.test/h:v1\n", "- --envoy-image=r.test/e:v2\n", "imagePullPolicy: Always\n", "- name: pull\n",
			},
		},
		"flags and resources": {
			args:     []string{"--set", "control.extraArgs={--scrape-interval=2s},control.resources.limits.memory=1Gi"},
			contains: []string{"- --scrape-interval=2s\n", "memory: 1Gi\n"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := rendered(t, test.args...)
			for _, object := range test.gone {
				if got[object] != nil {
					t.Errorf("the chart has %s", object)
				}
			}
			for _, object := range test.present {
				if got[object] == nil {
					t.Errorf("the chart lacks %s", object)
				}
			}
			if account := text(t, got["ServiceAccount headgate-gateway"]); name == "images" && !strings.Contains(account, "- name: pull\n") {
				t.Errorf("the pods of Gateways have no pull secret:\n%s", account)
			}
			deployment := text(t, got["Deployment headgate-control"])
			for _, part := range test.contains {
				if !strings.Contains(deployment, part) {
					t.Errorf("the Deployment of control lacks %q:\n%s", part, deployment)
				}
			}
		})
	}
}

// TestChartRejectsWrongValues gives the chart wrong values. Its schema rejects each with the name
// of the value.
func TestChartRejectsWrongValues(t *testing.T) {
	for set, want := range map[string]string{
		"control.replicas=0":           "/control/replicas",
		"control.replica=3":            "replica",
		"image.pullPolicy=Sometimes":   "/image/pullPolicy",
		"control.extraArgs={listen}":   "/control/extraArgs/0",
		"crds.install=maybe":           "/crds/install",
		"imagePullSecrets[0].nam=pull": "/imagePullSecrets/0",
	} {
		if _, stderr, err := helm(t, "template", "headgate", chart, "--set", set); err == nil || !strings.Contains(stderr, want) {
			t.Errorf("helm template --set %s: %v, want an error with %q:\n%s", set, err, want, stderr)
		}
	}
}
