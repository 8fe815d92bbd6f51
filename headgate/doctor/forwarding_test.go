package doctor_test

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate"
)

// With --objects, doctor compares the headers that routes name with those that the running Envoy
// forwards.
func TestHeadersThatEnvoyDoesNotForward(t *testing.T) {
	var bootstrap struct {
		Resources struct {
			Listeners []any `json:"listeners"`
		} `json:"static_resources"`
	}
	if err := yaml.Unmarshal(headgate.EnvoyYAML, &bootstrap); err != nil {
		t.Fatal(err)
	}
	dump, err := json.Marshal(map[string]any{"configs": bootstrap.Resources.Listeners})
	if err != nil {
		t.Fatal(err)
	}
	envoy := pages(t, map[string]string{
		"/server_info": `{"version": "abc/1.40.0/Clean/RELEASE/BoringSSL", "state": "LIVE"}`, "/config_dump": string(dump),
	})
	listener := pages(t, map[string]string{"/healthz": "ok\n"})
	closed := httptest.NewServer(nil)
	closed.Close()
	for header, warned := range map[string]bool{"x-team": true, "x-tenant-id": false} {
		dir := folder(t, at(listener))
		route := "apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: chat}\n" +
			"spec: {backendRefs: [{name: p}], tenantHeader: " + header + "}\n"
		if err := os.WriteFile(filepath.Join(dir, "route.yaml"), []byte(route), 0o600); err != nil {
			t.Fatal(err)
		}
		out, _ := run(t, "--objects", dir, "--listen", at(listener), "--envoy-admin", at(envoy), "--control-url", "", "--extproc-url", closed.URL)
		want := "! envoy         Envoy does not forward the header " + header + " to extproc, which is the tenantHeader of LLMRoute default/chat: "
		if strings.Contains(out, want) != warned {
			t.Errorf("%s:\n%s", header, out)
		}
	}
}
