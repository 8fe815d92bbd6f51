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
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/bench/rig"
)

// onGateway has tests that say nothing else of their data plane run on that of a Gateway, which control drives.
var onGateway = flag.Bool("gateway", false, "run on the Envoy of a Gateway in the place of envoy.yaml")

// throughGateway has Envoy be that of a Gateway, whatever the flag says.
func throughGateway(c *rig.Config) { c.Gateway = theGateway }

// standalone has Envoy be that of envoy.yaml, whatever the flag says.
func standalone(c *rig.Config) {
	c.EnvoyChanges = append(c.EnvoyChanges, func(any) error { return nil })
}

// theGateway is the one of the tests.
const theGateway = "default/gateway"

// aGateway is a Gateway with one listener, at the port 8080 of an address.
func aGateway(address string) string {
	return fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n"+
		"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: gateway}\nspec:\n"+
		"  gatewayClassName: headgate\n  addresses: [{type: IPAddress, value: %s}]\n  listeners: [{name: http, port: 8080, protocol: HTTP}]\n", address)
}

// useGateway has Envoy be that of a Gateway, to which all LLMRoutes attach that were written or are.
func (s *stack) useGateway(c *rig.Config) {
	s.t.Helper()
	s.gateway, c.Gateway = true, theGateway
	files, err := os.ReadDir(s.objects)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(s.objects, f.Name()))
		if err != nil {
			s.t.Fatal(err)
		}
		s.write(f.Name(), string(text))
	}
	s.write("gateway.yaml", aGateway(strings.TrimSuffix(c.Listen, ":8080")))
}

// cluster is Envoy's name of that of the pool.
func (s *stack) cluster() string {
	if s.gateway {
		return wire.PoolCluster("default", "pool")
	}
	return wire.EndpointsCluster
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

// rounds is how many changes of each sort a test makes: the more, the more is seen of how long they take.
var rounds = flag.Int("changes", 10, "make this many changes of routes, HTTPRoutes and pools under load")

// Routes, HTTPRoutes and pools come, change and go under load: each is in force at Envoy soon, and no request is lost.
func TestChangesAtAGatewayLoseNoRequest(t *testing.T) {
	t.Parallel()
	s := start(t, throughGateway)
	status := func(path, body string) int { return s.must(request{path: path, body: body}).status }
	ask := func(model string) int {
		return status("/v1/completions", `{"model":"`+model+`","prompt":"x","max_tokens":1}`)
	}
	took := make(map[string][]time.Duration)
	measure := func(what string, holds func() bool) {
		t.Helper()
		began := time.Now()
		s.await(what, holds)
		took[what] = append(took[what], time.Since(began))
	}
	llm := func(name, pool string) string {
		return fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: %s}\nspec: {backendRefs: [{name: %s}]}\n---\n", name, pool)
	}
	http := func(path string) string {
		return "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: by-path}\nspec:\n  parentRefs: [{name: gateway}]\n  rules:\n" +
			"  - matches: [{path: {type: PathPrefix, value: " + path + "}}]\n" +
			"    filters: [{type: URLRewrite, urlRewrite: {path: {type: ReplacePrefixMatch, replacePrefixMatch: /}}}]\n" +
			"    backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: pool}]\n"
	}
	another := func(name string) string {
		first, _, _ := strings.Cut(engines(strings.TrimSuffix(s.Listen, "1:8080"), 4), "---")
		return strings.Replace(first, "name: pool}", "name: "+name+"}", 1) + "---\n"
	}
	// Two models move from pool to pool, and others stay.
	s.write("moving.yaml", llm("moving", "pool"))
	s.write("http.yaml", http("/p"))
	s.await("it is there", func() bool {
		return ask("moving") == 200 && status("/p/v1/completions", `{"model":"moving","prompt":"x"}`) == 200
	})
	l := s.pour(16, func(client, n int) request {
		switch client % 4 {
		case 0:
			return request{path: "/v1/completions", body: `{"model":"moving","prompt":"x","max_tokens":5}`}
		case 1:
			return completion(adapters[(client+n)%12], 200, true) // some are under way whatever changes
		default:
			return completion(adapters[(client+n)%12], 5, n%2 == 0)
		}
	}, isOK)
	for i := range *rounds {
		name := fmt.Sprintf("new-%d", i)
		s.write("new.yaml", llm(name, "pool"))
		measure("a new LLMRoute is served", func() bool { return ask(name) == 200 })
		s.write("new.yaml", "")
		measure("a removed LLMRoute is not", func() bool { return ask(name) == 404 })

		path := fmt.Sprintf("/p-%d", i)
		s.write("http.yaml", http(path))
		measure("a changed HTTPRoute is served", func() bool { return status(path+"/v1/completions", `{"model":"moving","prompt":"x"}`) == 200 })

		// The model moves to a pool that is new, and back from one that is gone.
		s.write("moving.yaml", another(name)+llm("moving", name))
		measure("requests go to a new pool", func() bool { return s.sum(s.Metrics, "headgate_picks_total", "pool", "default/"+name) > 0 })
		l.goesOn(s, 2)
		s.write("moving.yaml", llm("moving", "pool"))
		measure("a removed pool is gone", func() bool { return s.sum(s.Metrics, "headgate_objects", "kind", "InferencePool") == 1 })
		l.goesOn(s, 2)
	}
	l.stop()
	for what, all := range took {
		slices.Sort(all)
		t.Logf("%s after %v (median of %d), at most %v", what, all[len(all)/2].Round(time.Millisecond), len(all), all[len(all)-1].Round(time.Millisecond))
	}
	t.Logf("%d requests", l.sent.Load())
	for _, fault := range l.faults {
		t.Error(fault)
	}
}
