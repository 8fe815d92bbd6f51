package doctor_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/internal/version"
)

// A pool without endpoints is no fault if requests wait for its first endpoint.
func TestEmptyPool(t *testing.T) {
	for empty, code := range map[string]int{"60s": 0, "0s": 1} {
		dir := t.TempDir()
		text := "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p}\n" +
			"spec: {selector: {matchLabels: {app: p}}, targetPorts: [{number: 8000}]}\n---\n" +
			"apiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: p}\n" +
			"spec: {poolRef: {name: p}, timeouts: {empty: " + empty + "}}\n---\n" +
			"apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: r}\nspec: {backendRefs: [{name: p}]}\n"
		if err := os.WriteFile(filepath.Join(dir, "objects.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		result, err := json.Marshal(admin.EndpointsResult{Pools: []admin.Pool{{Name: "default/p", HoldsWhileEmpty: code == 0}}})
		if err != nil {
			t.Fatal(err)
		}
		answers, err := json.Marshal(admin.Answers{Extprocs: []admin.Answer{{Extproc: "x", Version: version.Read().Program, Result: result}}})
		if err != nil {
			t.Fatal(err)
		}
		control := pages(t, map[string]string{
			"/metrics":   fmt.Sprintf("headgate_build_info{goversion=\"go\",program=\"control\",version=%q} 1\n", version.Read().Program),
			"/endpoints": string(answers), "/conditions": "[]",
		})
		out, got := run(t, "--objects", dir, "--listen", "", "--envoy-admin", "", "--control-url", control.URL, "--extproc-url", "")
		if got != code || strings.Count(out, "timeouts.empty") != 4*(1-code) {
			t.Errorf("timeouts.empty %s: exit status %d\n%s", empty, got, out)
		}
	}
}
