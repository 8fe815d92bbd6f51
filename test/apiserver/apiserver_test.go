package apiserver_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/headgate/headgate/test/apiserver"
)

var (
	namespaces      = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	pods            = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	configMaps      = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	serviceAccounts = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
)

// client returns a client with a configuration.
func client(t *testing.T, c *rest.Config) dynamic.Interface {
	t.Helper()
	d, err := dynamic.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// object converts a typed object for use with a dynamic client.
func object(t *testing.T, v any) *unstructured.Unstructured {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(v)
	if err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: content}
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "engine", Image: "none"}}},
	}
}

func TestObjectsSurviveAnOutage(t *testing.T) {
	s := apiserver.Run(t)
	ctx, admin := t.Context(), client(t, s.Admin())
	space := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "llama"}}
	if _, err := admin.Resource(namespaces).Create(ctx, object(t, space), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	of := admin.Resource(pods).Namespace("llama")
	if _, err := of.Create(ctx, object(t, pod("engine-1")), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const status = `{"status":{"podIP":"127.0.0.11","podIPs":[{"ip":"127.0.0.11"}],"conditions":[{"type":"Ready","status":"True"}]}}`
	if _, err := of.Patch(ctx, "engine-1", types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}

	s.Outage()
	hasty, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if _, err := of.Get(hasty, "engine-1", metav1.GetOptions{}); err == nil {
		t.Fatal("a server that is down answers")
	}
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	got, err := of.Get(ctx, "engine-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ip, _, _ := unstructured.NestedString(got.Object, "status", "podIP"); ip != "127.0.0.11" {
		t.Errorf("the pod's address is %q after the outage", ip)
	}
}

func TestRBACAndAuditLog(t *testing.T) {
	s := apiserver.Run(t)
	ctx, admin := t.Context(), client(t, s.Admin())
	account := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ServiceAccount",
		"metadata": map[string]any{"name": "extproc"},
	}}
	if _, err := admin.Resource(serviceAccounts).Namespace("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	roles := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1"}
	for resource, text := range map[string]map[string]any{
		"roles": {"kind": "Role", "rules": []any{map[string]any{
			"apiGroups": []any{""}, "resources": []any{"pods"},
			"verbs": []any{"list"},
		}}},
		"rolebindings": {
			"kind": "RoleBinding", "roleRef": map[string]any{"apiGroup": roles.Group, "kind": "Role", "name": "reader"},
			"subjects": []any{
				map[string]any{"kind": "ServiceAccount", "name": "extproc", "namespace": "default"},
				map[string]any{"kind": "Group", "apiGroup": roles.Group, "name": "readers"},
			},
		},
	} {
		text["apiVersion"], text["metadata"] = "rbac.authorization.k8s.io/v1", map[string]any{"name": "reader"}
		if _, err := admin.Resource(roles.GroupVersion().WithResource(resource)).Namespace("default").Create(ctx,
			&unstructured.Unstructured{Object: text}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	byAccount, err := s.ServiceAccount(ctx, "default", "extproc")
	if err != nil {
		t.Fatal(err)
	}
	byGroup, err := s.User("ann", "readers")
	if err != nil {
		t.Fatal(err)
	}
	byNobody, err := s.User("bob")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config *rest.Config
		may    bool
	}{"account": {byAccount, true}, "group": {byGroup, true}, "nobody": {byNobody, false}} {
		_, err := client(t, c.config).Resource(pods).Namespace("default").List(ctx, metav1.ListOptions{})
		if c.may != (err == nil) || err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s lists pods: %v, want it allowed: %t", name, err, c.may)
		}
	}
	// Programs get the configuration as a kubeconfig file.
	text, err := apiserver.Kubeconfig(byAccount)
	if err != nil {
		t.Fatal(err)
	}
	fromFile, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, fromFile).Resource(pods).Namespace("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("as the kubeconfig says: %v", err)
	}

	all, err := apiserver.Requests(s.AuditLog)
	if err != nil {
		t.Fatal(err)
	}
	saw := make(map[string]bool) // by user who listed pods: whether the request was denied
	for _, r := range all {
		if r.Verb == "list" && r.Object.Resource == "pods" && r.Object.Namespace == "default" {
			saw[r.User.Name] = r.Denied()
			if r.Denied() != (r.Response.Code == http.StatusForbidden) {
				t.Errorf("%s was answered %d and denied: %t", r.User.Name, r.Response.Code, r.Denied())
			}
		}
	}
	for who, denied := range map[string]bool{"system:serviceaccount:default:extproc": false, "ann": false, "bob": true} {
		if got, seen := saw[who]; !seen || got != denied {
			t.Errorf("the audit log on %s: seen %t, denied %t, want it denied: %t", who, seen, got, denied)
		}
	}
}

func TestProgramThatEndsAtStartIsReported(t *testing.T) {
	if testing.Short() {
		t.Skip("short runs start no API server")
	}
	root, err := apiserver.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	binaries, err := apiserver.Build(t.Context(), root, os.Stderr, "etcd", "kube-apiserver")
	if err != nil {
		t.Fatal(err)
	}
	_, err = apiserver.Start(t.Context(), apiserver.Config{
		Binaries: binaries, Dir: t.TempDir(), Address: "127.191.7.7",
		Flags: []string{"--no-such-flag"},
	})
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("the error is %v", err)
	}
}

func TestBuildErrorsSayWhatIsNeeded(t *testing.T) {
	root := t.TempDir()
	if _, err := apiserver.Root(root); err == nil || !strings.Contains(err.Error(), "repository") {
		t.Errorf("a folder elsewhere: %v", err)
	}
	tools := filepath.Join(root, "tools", "kubernetes")
	if err := os.MkdirAll(tools, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tools, "go.mod"), []byte("module none\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if found, err := apiserver.Root(tools); found != root || err != nil {
		t.Errorf("the repository is at %q, %v", found, err)
	}
	var progress strings.Builder
	if _, err := apiserver.Build(t.Context(), root, &progress, "etcd"); err == nil || !strings.Contains(err.Error(), "this needs Go") {
		t.Errorf("a module without etcd: %v", err)
	}
	if !strings.Contains(progress.String(), "building etcd") {
		t.Errorf("progress was %q", progress.String())
	}
	if _, err := apiserver.Build(t.Context(), root, &progress, "kube-dns"); err == nil {
		t.Error("a program that is unknown is built")
	}
}
