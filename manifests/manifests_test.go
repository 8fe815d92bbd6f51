// Package manifests tests the manifests. It builds each kustomization as kubectl does, and applies
// its objects to a real API server that has the CRDs of the projects they are for. It does not run
// gateways of other projects. Instead it checks objects against their CRDs, and the names that
// gateways send according to their sources.
package manifests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	syaml "sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/test/apiserver"
)

// noSchema has the kinds whose schema no available Go module contains. Their objects follow the
// source and documentation of their projects; no test checks their fields.
var noSchema = map[schema.GroupKind]string{
	{Group: "networking.gke.io", Kind: "HealthCheckPolicy"}:   "GKE brings its CRDs itself",
	{Group: "networking.gke.io", Kind: "GCPBackendPolicy"}:    "GKE brings its CRDs itself",
	{Group: "serving.kserve.io", Kind: "LLMInferenceService"}: "the Go module proxy may refuse github.com/kserve/kserve",
	{Group: "kaito.sh", Kind: "InferenceSet"}:                 "the Go module proxy may refuse github.com/kaito-project/kaito",
}

// crds has, for each module of tools/gateways, the pattern of its files with CRDs.
var crds = map[string]string{
	"sigs.k8s.io/gateway-api":       "config/crd/standard/*.yaml",
	"istio.io/api":                  "kubernetes/customresourcedefinitions.gen.yaml",
	"github.com/envoyproxy/gateway": "charts/gateway-helm/charts/crds/crds/generated/*.yaml",
	// The CRDs of GIE with which Istio tests.
	"istio.io/istio": "tests/integration/pilot/testdata/gateway-api-inference-extension-crd.yaml",
}

// folders returns the folders that contain a kustomization.
func folders(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == "kustomization.yaml" {
			all = append(all, filepath.Dir(path))
		}
		return err
	})
	if err != nil || len(all) < 10 {
		t.Fatalf("kustomizations are in %v, %v", all, err)
	}
	return all
}

// built returns the objects that the kustomization of each folder builds.
func built(t *testing.T) map[string][]*unstructured.Unstructured {
	t.Helper()
	if testing.Short() {
		t.Skip("short runs build no kubectl")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	binaries, err := apiserver.Build(ctx, "..", os.Stderr, "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string][]*unstructured.Unstructured)
	for _, folder := range folders(t) {
		command := exec.CommandContext(ctx, filepath.Join(binaries, "kubectl"), "kustomize", folder)
		text, err := command.Output()
		if err != nil {
			if exit, ok := errors.AsType[*exec.ExitError](err); ok {
				t.Fatalf("kubectl kustomize %s: %s", folder, exit.Stderr)
			}
			t.Fatal(err)
		}
		all[folder] = apiserver.ReadObjects(t, string(text))
	}
	return all
}

// definitions returns the CRDs of other projects, by module.
func definitions(t *testing.T) map[string][]*unstructured.Unstructured {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "-C", "../tools/gateways", "mod", "download", "-json")
	command.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := command.Output()
	all := make(map[string][]*unstructured.Unstructured)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var module struct{ Path, Dir, Error string }
		if d.Decode(&module) != nil {
			break
		}
		if module.Error != "" {
			t.Errorf("%s: %s", module.Path, module.Error)
			continue
		}
		files, _ := filepath.Glob(filepath.Join(module.Dir, crds[module.Path]))
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range apiserver.ReadObjects(t, string(text)) {
				if o.GetKind() == "CustomResourceDefinition" {
					all[module.Path] = append(all[module.Path], o)
				}
			}
		}
	}
	for module := range crds {
		if len(all[module]) == 0 {
			t.Fatalf("no CRDs of %s (%v): they are in Go modules, of 24 MB in all, which are had from the Go module proxy once; try: go -C tools/gateways mod download",
				module, err)
		}
	}
	return all
}

// pod returns the pod template of an object. Kinds of other projects have none, because those
// projects complete their templates.
func pod(o *unstructured.Unstructured) (template map[string]any, ok bool) {
	switch o.GetKind() {
	case "Deployment", "StatefulSet", "DaemonSet", "Job":
		template, ok, _ = unstructured.NestedMap(o.Object, "spec", "template")
	}
	return template, ok
}

// spec returns the pod spec in the template of an object; nil if the object has no template.
func spec(t *testing.T, o *unstructured.Unstructured) *corev1.PodSpec {
	t.Helper()
	template, ok := pod(o)
	if !ok {
		return nil
	}
	p := new(corev1.PodTemplateSpec)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, p); err != nil {
		t.Fatal(err)
	}
	return &p.Spec
}

// Containers have what the standard "restricted" does not require: read-only root filesystems and
// memory limits.
func TestContainersAreContained(t *testing.T) {
	seen := 0
	for folder, objects := range built(t) {
		for _, o := range objects {
			s := spec(t, o)
			if s == nil {
				continue
			}
			for _, c := range slices.Concat(s.InitContainers, s.Containers) {
				seen++
				at := folder + ": " + o.GetName() + "/" + c.Name
				security := c.SecurityContext
				if security == nil || security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
					t.Errorf("%s may write to its root filesystem", at)
				}
				if security == nil || security.Capabilities == nil || !slices.Contains(security.Capabilities.Drop, "ALL") {
					t.Errorf("%s keeps capabilities", at)
				}
				if c.Resources.Limits.Memory().IsZero() {
					t.Errorf("%s may take all memory", at)
				}
				if c.ReadinessProbe == nil && slices.ContainsFunc(s.Containers, func(m corev1.Container) bool { return m.Name == c.Name }) {
					t.Errorf("%s does not say when it is ready", at)
				}
			}
		}
	}
	if seen < 10 {
		t.Errorf("%d containers were looked at", seen)
	}
}

// The kubelet and Prometheus call the address of a pod. control serves that address only if its
// flags say so.
func TestProbesReachControl(t *testing.T) {
	seen := 0
	for folder, objects := range built(t) {
		for _, o := range objects {
			s := spec(t, o)
			if s == nil {
				continue
			}
			for _, c := range s.Containers {
				if !slices.Equal(c.Command, []string{"/control"}) {
					continue
				}
				for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
					if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Host != "" {
						continue
					}
					seen++
					if !slices.Contains(c.Args, "--metrics-host=") {
						t.Errorf("%s: %s is probed at the pod's address and serves loopback alone: say --metrics-host=", folder, c.Name)
					}
				}
			}
		}
	}
	if seen < 2 {
		t.Errorf("%d probes were looked at", seen)
	}
}

// hookOf returns the longest duration of a container's preStop hook. The hook either sleeps, or
// waits for control at most as long as the annotations of its pod say.
func hookOf(c corev1.Container, annotations map[string]string) (time.Duration, bool) {
	switch {
	case c.Lifecycle == nil || c.Lifecycle.PreStop == nil:
		return 0, false
	case c.Lifecycle.PreStop.Sleep != nil:
		return time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second, true
	}
	limit, migrates := strings.CutPrefix(annotations[v1alpha1.PreStop], v1alpha1.PreStopMigrate+" ")
	takes, err := time.ParseDuration(limit)
	return takes + v1alpha1.PreStopMargin, migrates && err == nil && c.Lifecycle.PreStop.Exec != nil
}

func podAnnotations(o *unstructured.Unstructured) map[string]string {
	all, _, _ := unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "annotations")
	return all
}

// The hook of a pod with the migrate annotation waits for control as long as the annotation says,
// at an address where control answers.
func TestPodsThatMigrateWaitForControl(t *testing.T) {
	all := built(t)
	const at = "http://headgate-control.headgate-system:8036/prestop"
	answers := slices.ContainsFunc(all["base"], func(o *unstructured.Unstructured) bool {
		ports, _, _ := unstructured.NestedSlice(o.Object, "spec", "ports")
		return o.GetKind() == "Service" && o.GetName() == "headgate-control" && o.GetNamespace() == "headgate-system" &&
			slices.ContainsFunc(ports, func(p any) bool { return fmt.Sprint(p.(map[string]any)["port"]) == "8036" })
	})
	if !answers {
		t.Error("no Service has the port of hooks")
	}
	hooks := 0
	for folder, objects := range all {
		for _, o := range objects {
			s := spec(t, o)
			if s == nil {
				continue
			}
			migrates := podAnnotations(o)[v1alpha1.PreStop] != ""
			for _, c := range s.Containers {
				if slices.Contains(c.Args, "--prestop-address=:8036") &&
					!slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
						return p.Name == "prestop" && p.ContainerPort == 8036
					}) {
					t.Errorf("%s: the port of hooks is not said", folder)
				}
				if c.Lifecycle == nil || c.Lifecycle.PreStop == nil || c.Lifecycle.PreStop.Exec == nil {
					continue
				}
				command := strings.Join(c.Lifecycle.PreStop.Exec.Command, " ")
				if asks := strings.Contains(command, at); asks != migrates {
					t.Errorf("%s: %s %s migrates: %v, and its hook asks control: %v", folder, o.GetKind(), o.GetName(), migrates, asks)
				}
				if !migrates {
					continue
				}
				hooks++
				takes, ok := hookOf(c, podAnnotations(o))
				if seconds := strconv.Itoa(int(takes.Seconds())); !ok || !strings.Contains(command, "--within="+seconds+"s") &&
					!strings.Contains(command, "time.monotonic() + "+seconds+"\n") {
					t.Errorf("%s: %s may wait %v, and its hook asks for another time: %s", folder, c.Name, takes, command)
				}
				if strings.Contains(command, "python3") {
					runHook(t, c.Lifecycle.PreStop.Exec.Command, at)
				}
			}
		}
	}
	if hooks < 3 {
		t.Errorf("%d hooks were looked at", hooks)
	}
}

// runHook runs a preStop hook that is a Python command against a control whose first answer is an
// error. It does nothing if Python is not installed.
func runHook(t *testing.T, command []string, at string) {
	t.Helper()
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Logf("%s is not here: the hook is not run", command[0])
		return
	}
	asked := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch asked++; {
		case r.URL.Path != "/prestop/llm/qwen-0":
			w.WriteHeader(http.StatusNotFound)
		case asked == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_, _ = io.WriteString(w, "3 models moved\n")
		}
	}))
	defer s.Close()
	args := slices.Clone(command)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], at, s.URL+"/prestop")
	}
	run := exec.CommandContext(t.Context(), args[0], args[1:]...)
	run.Env = append(os.Environ(), "POD_NAMESPACE=llm", "POD_NAME=qwen-0", "no_proxy=*")
	out, err := run.CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "3 models moved" || asked != 2 {
		t.Errorf("asked %d times, the hook says %q, %v", asked, out, err)
	}
}

// Streaming answers can end before a pod is killed: the termination grace period is longer than the
// preStop hook and the shutdown of the server together.
func TestServersEndTheirAnswers(t *testing.T) {
	seen := 0
	check := func(at string, s *corev1.PodSpec, annotations map[string]string) {
		for _, c := range s.Containers {
			for _, arg := range c.Args {
				seconds, ok := strings.CutPrefix(arg, "--shutdown-timeout=")
				if !ok {
					continue
				}
				seen++
				takes, err := time.ParseDuration(seconds + "s")
				if err != nil {
					t.Fatal(err)
				}
				hook, ok := hookOf(c, annotations)
				if !ok {
					t.Errorf("%s: %s is stopped while gateways still pick it", at, c.Name)
					continue
				}
				takes += hook
				if grace := time.Duration(*s.TerminationGracePeriodSeconds) * time.Second; grace <= takes {
					t.Errorf("%s: %s is killed after %v, and may take %v", at, c.Name, grace, takes)
				}
			}
		}
	}
	for folder, objects := range built(t) {
		for _, o := range objects {
			if s := spec(t, o); s != nil {
				check(folder, s, podAnnotations(o))
			}
			if o.GetKind() == "LLMInferenceService" { // its template is a pod spec
				template, _, _ := unstructured.NestedMap(o.Object, "spec", "template")
				text, err := json.Marshal(template)
				s := new(corev1.PodSpec)
				if err == nil {
					err = syaml.UnmarshalStrict(text, s)
				}
				if err != nil {
					t.Errorf("%s: %v", folder, err)
				}
				check(folder, s, nil)
			}
		}
	}
	if seen < 4 {
		t.Errorf("%d servers were looked at", seen)
	}
}

// Objects that a manifest names exist in its folder or in manifests/base.
func TestReferencedNamesExist(t *testing.T) {
	all := built(t)
	has := func(folder, kind, namespace, name string) bool {
		return slices.ContainsFunc(slices.Concat(all[folder], all["base"]), func(o *unstructured.Unstructured) bool {
			return o.GetKind() == kind && o.GetNamespace() == namespace && o.GetName() == name
		})
	}
	for _, folder := range slices.Sorted(maps.Keys(all)) {
		for _, o := range all[folder] {
			want := func(kind, namespace, name string) {
				t.Helper()
				if !has(folder, kind, namespace, name) {
					t.Errorf("%s: %s %s names the %s %s/%s, which is not there", folder, o.GetKind(), o.GetName(), kind, namespace, name)
				}
			}
			switch o.GetKind() {
			case "ClusterRoleBinding", "RoleBinding":
				subjects, _, _ := unstructured.NestedSlice(o.Object, "subjects")
				for _, s := range subjects {
					s := s.(map[string]any)
					want("ServiceAccount", s["namespace"].(string), s["name"].(string))
				}
			case "PoolSettings":
				name, ok, _ := unstructured.NestedString(o.Object, "spec", "engineToken", "secretRef", "name")
				if ok && !slices.ContainsFunc(all[folder], func(role *unstructured.Unstructured) bool {
					rules, _, _ := unstructured.NestedSlice(role.Object, "rules")
					return role.GetKind() == "Role" && role.GetNamespace() == o.GetNamespace() &&
						slices.ContainsFunc(rules, func(rule any) bool {
							names, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "resourceNames")
							return slices.Contains(names, name)
						})
				}) {
					t.Errorf("%s: no Role lets the Secret %s be read that PoolSettings %s names", folder, name, o.GetName())
				}
			case "InferencePool":
				if ref, ok, _ := unstructured.NestedMap(o.Object, "spec", "endpointPickerRef"); ok {
					want("Service", o.GetNamespace(), ref["name"].(string))
				}
			case "HTTPRoute":
				rules, _, _ := unstructured.NestedSlice(o.Object, "spec", "rules")
				for _, rule := range rules {
					refs, _, _ := unstructured.NestedSlice(rule.(map[string]any), "backendRefs")
					for _, ref := range refs {
						ref := ref.(map[string]any)
						kind, ok := ref["kind"].(string)
						if !ok {
							kind = "Service"
						}
						want(kind, o.GetNamespace(), ref["name"].(string))
					}
				}
			}
			s := spec(t, o)
			if s == nil {
				continue
			}
			if s.ServiceAccountName != "" {
				want("ServiceAccount", o.GetNamespace(), s.ServiceAccountName)
			}
			template, _ := pod(o)
			for _, c := range slices.Concat(s.InitContainers, s.Containers) {
				if !slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--control=") }) {
					continue
				}
				may, _, _ := unstructured.NestedString(template, "metadata", "labels", "headgate.dev/calls-control")
				if o.GetNamespace() != "headgate-system" && may != "true" {
					t.Errorf("%s: the NetworkPolicy of control lets no pod of %s call it from %s", folder, o.GetName(), o.GetNamespace())
				}
			}
		}
	}
}

// No role may read Secrets by list, of all namespaces, or of a whole namespace: only single Secrets
// by name.
func TestSecretsAreReadByTheirNames(t *testing.T) {
	seen := 0
	for folder, objects := range built(t) {
		for _, o := range objects {
			kind := o.GetKind()
			if kind != "ClusterRole" && kind != "Role" {
				continue
			}
			rules, _, _ := unstructured.NestedSlice(o.Object, "rules")
			for _, rule := range rules {
				words := func(field string) []string {
					all, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), field)
					return all
				}
				if all := words("resources"); !slices.Contains(all, "secrets") && !slices.Contains(all, "*") {
					continue
				}
				seen++
				// RBAC cannot restrict create by name. control may update the Secrets that it
				// created.
				verbs, names := words("verbs"), words("resourceNames")
				named := slices.Equal(verbs, []string{"get"}) && len(names) > 0 || slices.Equal(verbs, []string{"create"}) ||
					slices.Equal(verbs, []string{"get", "update"}) &&
						(slices.Equal(names, []string{"headgate-placement"}) || slices.Equal(names, []string{"headgate-identities"}))
				if kind == "ClusterRole" || !named {
					t.Errorf("%s: the %s %s lets %v be done to Secrets of the names %v", folder, kind, o.GetName(), verbs, names)
				}
			}
		}
	}
	if seen < 3 {
		t.Errorf("%d rules were looked at", seen)
	}
}
