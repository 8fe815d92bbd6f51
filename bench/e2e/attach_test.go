package e2e

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// onGateway has tests that say nothing else of their data plane run on that of a Gateway, which control drives.
var onGateway = flag.Bool("gateway", false, "run on the Envoy of a Gateway in the place of envoy.yaml")

// aGateway is a Gateway with one listener, at the port 8080 of an address.
func aGateway(address string) string {
	return fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n"+
		"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: gateway}\nspec:\n"+
		"  gatewayClassName: headgate\n  addresses: [{type: IPAddress, value: %s}]\n  listeners: [{name: http, port: 8080, protocol: HTTP}]\n", address)
}

// attached has each LLMRoute that names no parent attach to the Gateway.
func attached(t testing.TB, text string) string {
	t.Helper()
	docs := strings.Split(text, "---\n")
	for i, doc := range docs {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil || o["kind"] != "LLMRoute" {
			continue // some tests write what is no YAML
		}
		spec, ok := o["spec"].(map[string]any)
		if !ok || spec["parentRefs"] != nil {
			continue
		}
		spec["parentRefs"] = []any{map[string]any{"name": "gateway"}}
		with, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		docs[i] = string(with)
	}
	return strings.Join(docs, "---\n")
}

// make run GATEWAY=1: what it prints can be pasted, an HTTPRoute leads to the servers, and an edit of the routes is in force.
func TestTheQuickstartOfAGateway(t *testing.T) {
	t.Parallel()
	q := newQuickstartOf(t, "gateway")
	q.args = append(q.args, "--gateway")
	q.start()
	said := q.until("Ctrl-C stops everything")
	curls := regexp.MustCompile(`(?ms)^  curl .*?(\n$|\}'$)`).FindAllString(said, -1)
	if len(curls) != 3 {
		t.Fatalf("%d lines to paste in:\n%s", len(curls), said)
	}
	for i, want := range []string{`"object":"list"`, `"object":"chat.completion"`, "data: [DONE]"} {
		out, err := exec.Command("bash", "-c", "set -e; "+strings.TrimSpace(curls[i])+" --silent --show-error --max-time 30").CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v\n%s", curls[i], err, out)
		}
	}
	ask := func(method, path string) (status int, body string) {
		t.Helper()
		r, err := http.NewRequest(method, "http://"+q.network+"1:8080"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(text)
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/servers/v1/models", 200},
		{"GET", "/servers/health", 200},
		{"POST", "/servers/v1/load_lora_adapter", 404},
		{"GET", "/servers/metrics", 404},
		{"GET", "/health", 200},
		{"GET", "/other", 404},
	} {
		if got, body := ask(c.method, c.path); got != c.want {
			t.Errorf("%s %s: %d %s", c.method, c.path, got, body)
		}
	}
	routes := filepath.Join(q.dir, "routes.yaml")
	text, err := os.ReadFile(routes)
	if err != nil {
		t.Fatal(err)
	}
	edited := strings.ReplaceAll(string(text), "assistant", "poet")
	edited = strings.ReplaceAll(edited, "value: /servers", "value: /engines")
	if err := os.WriteFile(routes, []byte(edited), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &stack{t: t}
	s.promised(2*time.Second, "what was written anew is in force", func() bool {
		is, models := ask("GET", "/engines/v1/models")
		was, _ := ask("GET", "/servers/v1/models")
		_, all := ask("GET", "/v1/models")
		return is == 200 && was == 404 && strings.Contains(models, `"poet"`) && strings.Contains(all, `"poet"`) && !strings.Contains(all, `"assistant"`)
	})
	q.interrupt()
	q.nothingLeft()
}
