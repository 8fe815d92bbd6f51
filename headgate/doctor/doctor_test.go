package doctor_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/headgate/doctor"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/internal/query"
	"github.com/headgate/headgate/internal/version"
)

// pages is a server with these pages.
func pages(t *testing.T, all map[string]string) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, ok := all[r.URL.Path]; ok {
			_, _ = w.Write([]byte(text))
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func at(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }

// run returns what the command prints, and its exit status.
func run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	err := doctor.Command(t.Context(), args, &out)
	if status, ok := errors.AsType[cli.Status](err); ok {
		return out.String(), status.Code
	}
	if err != nil {
		t.Errorf("%v: %v", args, err)
	}
	return out.String(), 0
}

// folder returns a folder with a pool and an EndpointList of these addresses.
func folder(t *testing.T, addresses ...string) string {
	t.Helper()
	dir := t.TempDir()
	text := "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\n" +
		"spec: {selector: {matchLabels: {app: p}}, targetPorts: [{number: 8000}]}\n---\n" +
		"apiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: l, labels: {app: p}}\nspec: {addresses: ['" +
		strings.Join(addresses, "', '") + "']}\n"
	if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// All programs answer, then each of them does not.
func TestDoctor(t *testing.T) {
	result, err := json.Marshal(admin.EndpointsResult{
		At: time.Now(), Endpoints: []admin.Endpoint{{Address: "10.0.0.1:8000", State: "healthy"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	answers, err := json.Marshal(admin.Answers{Extprocs: []admin.Answer{{
		Extproc: "here/7", Version: version.Read().Program, Result: result,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	control := pages(t, map[string]string{
		"/metrics":   fmt.Sprintf("headgate_build_info{goversion=\"go\",program=\"control\",version=%q} 1\n", version.Read().Program),
		"/endpoints": string(answers), "/conditions": "[]",
	})
	envoy := pages(t, map[string]string{"/server_info": `{"version": "abc/1.40.0/Clean/RELEASE/BoringSSL", "state": "LIVE"}`})
	listener := pages(t, map[string]string{"/healthz": "ok\n"})
	model := pages(t, map[string]string{"/v1/models": `{"object": "list", "data": [{"id": "llama", "object": "model"}]}`})
	closed := httptest.NewServer(nil)
	closed.Close()
	well := []string{
		"--objects", folder(t, at(model)), "--listen", at(listener), "--envoy-admin", at(envoy), "--control-url", control.URL,
		"--extproc-url", closed.URL,
	}
	out, code := run(t, well...)
	if code != 0 || !strings.HasSuffix(out, "\n0 faults, 0 warnings\n") {
		t.Errorf("exit status %d\n%s", code, out)
	}
	for _, want := range []string{
		"✓ objects ", "2 objects, 1 endpoint", "✓ envoy         Envoy 1.40.0 runs", "the listener at " + at(listener) + " answers",
		"extproc here/7: 1 of 1 endpoint serves", "✓ control ", "✓ engines       1 of 1 engine answers", "✓ clock         clocks agree with ours: 2 asked",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it lacks %q:\n%s", want, out)
		}
	}
	broken := filepath.Join(folder(t, at(model)), "..", "bad")
	if err := os.MkdirAll(broken, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, "a.yaml"), []byte("kind: LLMRoute\napiVersion: inference.x-k8s.io/v1alpha1\nspec: {x: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(broken, "tls.crt")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wants := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	t.Cleanup(wants.Close)
	secure := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(secure.Close)
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"objects":                       {[]string{"--objects", broken}, broken + "/a.yaml"},
		"an engine that is away":        {[]string{"--objects", folder(t, at(closed))}, at(closed) + " refuses connections"},
		"an engine that wants a token":  {[]string{"--objects", folder(t, at(wants))}, at(wants) + " wants a token, and gets none: 401"},
		"an engine that speaks TLS":     {[]string{"--objects", folder(t, strings.TrimPrefix(secure.URL, "https://"))}, "speaks TLS, and is called without"},
		"an engine of another CA":       {[]string{"--objects", folder(t, strings.TrimPrefix(secure.URL, "https://")), "--engine-tls"}, "fails in TLS: "},
		"another program at the port":   {[]string{"--envoy-admin", at(closed), "--listen", at(model)}, "another program listens at " + at(model)},
		"another program as admin port": {[]string{"--envoy-admin", at(model)}, "another program than Envoy listens at " + at(model)},
		"no extproc":                    {[]string{"--control-url", closed.URL}, "no extproc answers at " + closed.URL},
		"another program as control":    {[]string{"--control-url", model.URL}, "another program than control listens at " + model.URL},
		"a certificate":                 {[]string{"--tls-cert", empty, "--tls-key", empty}, empty + ": tls: failed to find any PEM data"},
	} {
		out, code := run(t, append(append([]string{}, well...), c.args...)...)
		if code != 1 || !strings.Contains(out, c.want) || !strings.Contains(out, "✗") {
			t.Errorf("%s: exit status %d\n%s", name, code, out)
		}
	}
	// Control does not have the extproc that answers, or has none.
	apart := pages(t, map[string]string{
		"/metrics":   fmt.Sprintf("headgate_build_info{goversion=\"go\",program=\"control\",version=%q} 1\n", version.Read().Program),
		"/endpoints": `{"extprocs": []}`, "/conditions": "[]",
	})
	out, code = run(t, append(append([]string{}, well...), "--control-url", apart.URL, "--extproc-url", control.URL)...)
	if code != 1 || !strings.Contains(out, "✗ control       no extproc is connected to the control at "+apart.URL+", although one answers at "+control.URL) {
		t.Errorf("an extproc apart from control: exit status %d\n%s", code, out)
	}
	out, code = run(t, append(append([]string{}, well...), "--control-url", apart.URL)...)
	if code != 1 || !strings.Contains(out, "✗ extproc       no extproc is connected to the control at "+apart.URL+", and none answers at "+closed.URL) {
		t.Errorf("a control without extprocs: exit status %d\n%s", code, out)
	}
	out, code = run(t, append(well, "-o", "json")...)
	var all []map[string]string
	if err := json.Unmarshal([]byte(out), &all); err != nil || code != 0 || len(all) < 7 || all[0]["level"] != "ok" {
		t.Errorf("%v: %s", err, out)
	}
}

// Doctor computes the conditions of a folder's objects as control does, and prints each once.
func TestConditionsOfAFolder(t *testing.T) {
	model := pages(t, map[string]string{"/v1/models": `{"object": "list", "data": [{"id": "llama", "object": "model"}]}`})
	closed := httptest.NewServer(nil)
	closed.Close()
	dir := folder(t, at(model), at(closed))
	more := `apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: {name: good}
spec: {modelNames: [good], backendRefs: [{name: p}]}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: {name: lost}
spec: {modelNames: [lost], backendRefs: [{name: none}]}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: EndpointList
metadata: {name: unused, labels: {app: x}}
spec: {addresses: ['10.0.0.1:8000']}
`
	if err := os.WriteFile(filepath.Join(dir, "more.yaml"), []byte(more), 0o600); err != nil {
		t.Fatal(err)
	}
	live := []admin.Condition{
		{Kind: "LLMRoute", Name: "default/lost", Type: "Ready", Reason: "NoEndpoints", Message: "InferencePool none does not exist"},
		{Kind: "Model", Name: "default/m", Type: "Ready", Reason: "Loading", Message: "0 of at least 1 copies are loaded"},
	}
	text, err := json.Marshal(live)
	if err != nil {
		t.Fatal(err)
	}
	control := pages(t, map[string]string{
		"/metrics":   fmt.Sprintf("headgate_build_info{goversion=\"go\",program=\"control\",version=%q} 1\n", version.Read().Program),
		"/endpoints": `{"extprocs": []}`, "/conditions": string(text),
	})
	for url, others := range map[string][]string{"": nil, control.URL: {"! conditions    Model default/m: Ready is False: Loading: "}} {
		out, code := run(t, "--objects", dir, "--listen", "", "--envoy-admin", "", "--control-url", url, "--extproc-url", closed.URL)
		for _, want := range append([]string{
			"! conditions    EndpointList default/l: Endpoints is False: SomeOut: 1/2\n",
			"! conditions    EndpointList default/unused: Accepted and Ready are False: NotSelected: ",
			"✗ conditions    LLMRoute default/lost: ResolvedRefs is False: BackendNotFound: spec.backendRefs names InferencePool default/none",
			"✗ conditions    LLMRoute default/lost: Ready is False: NoEndpoints: InferencePool none does not exist",
			"names InferencePool default/none",
		}, others...) {
			if strings.Count(out, want) != 1 {
				t.Errorf("control %q: not once %q", url, want)
			}
		}
		if code != 1 || strings.Contains(out, "default/good") || t.Failed() {
			t.Errorf("control %q: exit status %d\n%s", url, code, out)
		}
	}
}

// In the folder of a headgate run, its objects and addresses are the defaults.
func TestFolderOfARun(t *testing.T) {
	model := pages(t, map[string]string{"/v1/models": `{"object": "list", "data": [{"id": "llama", "object": "model"}]}`})
	objects := folder(t, at(model))
	t.Chdir(t.TempDir())
	if err := (query.Local{Objects: objects, Extproc: at(model)}).Write(query.RunDir); err != nil {
		t.Fatal(err)
	}
	unlock, err := process.TryLock(filepath.Join(query.RunDir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	out, _ := run(t)
	for _, want := range []string{"✓ objects       " + objects + ": 2 objects, 1 endpoint\n", "1 of 1 engine answers", "✗ extproc       " + model.URL} {
		if !strings.Contains(out, want) {
			t.Errorf("it lacks %q:\n%s", want, out)
		}
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	kubeconfig := filepath.Join(t.TempDir(), "none")
	if out, code := run(t, "--kube", "--kubeconfig", kubeconfig, "--control-url", closed.URL); code != 1 || strings.Contains(out, "engines") {
		t.Errorf("with --kube: exit status %d\n%s", code, out)
	}
}

func TestWrongCommandLines(t *testing.T) {
	for args, want := range map[string]string{
		"-o xml": "want text or json", "--tls-cert x": "set both", "x": "unexpected argument", "--kube --objects x": "leave one of them out",
		"--control-url x":     "want http://HOST:PORT",
		"--service-account x": "want NAMESPACE/NAME", "--service-account /x": "want NAMESPACE/NAME",
	} {
		var out bytes.Buffer
		if err := doctor.Command(t.Context(), strings.Fields(args), &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
