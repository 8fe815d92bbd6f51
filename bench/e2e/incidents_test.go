package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/headgate/status"
	"github.com/headgate/headgate/internal/process"
)

// freeze stops a process as if it hung, and returns when it has stopped. It ends with the test.
func (s *stack) freeze(p *process.Process) {
	s.t.Helper()
	p.Signal(syscall.SIGSTOP)
	s.await(p.Name+" has stopped", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		_, state, _ := strings.Cut(string(text), ") ")
		return err == nil && strings.HasPrefix(state, "T")
	})
	s.t.Cleanup(func() { p.Signal(syscall.SIGCONT) })
}

// An engine answers 500, hangs, or is killed. The answers, the access log, extproc's log, the
// metrics, /endpoints and headgate status show it, with what the engine answered. The log has one
// line for each change of the endpoint's state.
func TestLogNamesTheEngineThatFails(t *testing.T) {
	runs(t)
	s := start(t, pods(t, 2))
	sound := func(what string) {
		t.Helper()
		if a := s.must(completion(baseRoute, 1, false)); a.status != http.StatusOK {
			t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}

	r := completion(baseRoute, 1, false)
	r.header = map[string]string{"X-Sim-Fault": "status=500"}
	a, l := s.tell(r)
	if a.status != http.StatusInternalServerError || !strings.Contains(a.body, "fault injected") {
		t.Fatalf("the client gets %d %s", a.status, a.body)
	}
	if l.Status != a.status || l.Details != "via_upstream" || l.Endpoint != a.served || l.Usage.Error != "InjectedFault" || l.Usage.ErrorCode != "500" {
		t.Errorf("the access log has %+v", l)
	}
	engine := a.served
	s.changed(engine, "suspect", `"was":"healthy","reason":"requests_fail","kind":"error","status":500,"error_type":"InjectedFault","error_code":"500"}`,
		"500 InjectedFault", "a request failed there")
	s.await("the failure is counted", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_failures_total", "endpoint", engine, "kind", "error") == 1
	})
	s.await("a request at the engine succeeds", func() bool { return s.must(completion(baseRoute, 1, false)).served == engine })
	s.healthyAgain(engine, "suspect")

	process := s.Engines[engine]
	s.freeze(process)
	s.changed(engine, "stale", `"was":"healthy","reason":"scrapes_unanswered","kind":"scrape_timeout"}`, "it accepts connections but does not answer")
	sound("while an engine hangs")
	process.Signal(syscall.SIGCONT)
	s.healthyAgain(engine, "stale")

	killed := s.endpoint(1)
	if killed == engine {
		killed = s.endpoint(2)
	}
	s.Engines[killed].Kill()
	s.changed(killed, "out", `"was":"healthy","reason":"connection_refused","kind":"`, "refused", "it refuses connections")
	sound("without an engine")
	if err := s.StartEngine(t.Context(), killed); err != nil {
		t.Fatal(err)
	}
	s.healthyAgain(killed, "out")
	if lines := s.count("extproc.log", `"pool":"default/pool","was":`); lines != 6 {
		t.Errorf("%d lines about 6 changes", lines)
	}
}

// changed waits until an endpoint is in a state, and checks that each place reports it. A line of
// the log has this end, and headgate status prints the texts.
func (s *stack) changed(endpoint, state, end string, texts ...string) {
	s.t.Helper()
	s.await(endpoint+" is "+state, func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_state", "endpoint", endpoint, "state", state) == 1
	})
	s.shows(append(texts, endpoint+"  "+state)...)
	s.expectEndpoint(state)
	s.logs("extproc.log", `"level":"WARN","msg":"endpoint is `+state+`","endpoint":"`+endpoint+`","pool":"default/pool",`+end)
}

// healthyAgain waits until an endpoint is healthy, and checks that each place reports it.
func (s *stack) healthyAgain(endpoint, was string) {
	s.t.Helper()
	s.await(endpoint+" is healthy", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_state", "endpoint", endpoint, "state", "healthy") == 1
	})
	s.logs("extproc.log", `"level":"INFO","msg":"endpoint is healthy again","endpoint":"`+endpoint+`","pool":"default/pool","was":"`+was+`"}`)
	s.shows(endpoint + "  healthy")
}

// With --log-engine-errors, extproc logs the engine's message: of an error with status 500, also of
// an old vLLM, and of an error in a stream. Envoy's log never has it.
func TestLogHasTheEnginesMessageByAFlag(t *testing.T) {
	runs(t)
	const secret = `a \"secret\" prompt`
	const fields = `"message":"` + secret + `","type":"InternalServerError","param":null,"code":500}`
	answers := map[string]scripted{
		"nested": {"application/json", []string{"500", `{"error":{` + fields + `}`}},
		"flat":   {"application/json", []string{"500", `{"object":"error",` + fields}},
		"stream": {stream, []string{event(`{"choices":[{"text":"a"}]}`), event(`{"error":{` + fields + `}`), event("[DONE]")}},
		"sound":  {"application/json", []string{`{"choices":[{"text":"a"}]}`}},
	}
	s := start(t, scriptedPool(t, 1, "nested", "flat", "stream", "sound"), extprocFlags("--log-engine-errors"), func(c *rig.Config) {
		startScripted(t, strings.TrimSuffix(c.Listen, "1:8080")+"11:8000", answers)
	})
	for n, model := range []string{"nested", "flat", "stream"} {
		_, l := s.tell(completion(model, 1, model == "stream"))
		if l.Usage.Error != "InternalServerError" || l.Usage.ErrorCode != "500" {
			t.Errorf("%s: the access log has %+v", model, l.Usage)
		}
		const end = `"error_type":"InternalServerError","error_code":"500","error_message":"` + secret + `"}`
		s.await(model+" is in the log", func() bool { return s.count("extproc.log", end) == n+1 })
		s.must(completion("sound", 1, false))
		s.await("the endpoint is healthy", func() bool { return s.count("extproc.log", "endpoint is healthy again") == n+1 })
	}
	if text, err := os.ReadFile(s.Envoy.Log); err != nil || strings.Contains(string(text), "secret") {
		t.Errorf("Envoy's log has the message, too, or %v", err)
	}
}

// count returns how often a log contains a text.
func (s *stack) count(file, text string) int {
	s.t.Helper()
	all, err := os.ReadFile(filepath.Join(s.Dir, file))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Count(string(all), text)
}

// expectEndpoint waits until extproc reports this state at /endpoints.
func (s *stack) expectEndpoint(state string) {
	s.t.Helper()
	s.await("/endpoints has an endpoint that is "+state, func() bool {
		response, err := s.client.Get("http://" + s.Metrics + "/endpoints")
		if err != nil {
			s.t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		return err == nil && strings.Contains(strings.ReplaceAll(string(text), " ", ""), `"state":"`+state+`"`)
	})
}

// While control hangs or is dead, requests for loaded models are answered. Requests that need a
// load get 503 after --control-lost, instead of waiting for minutes. The access log, the log,
// metrics and headgate status name control.
func TestErrorNamesTheControlThatHangs(t *testing.T) {
	runs(t)
	s := start(t, pods(t, 1), placed(t, 4, adapters...), extprocFlags("--control-lost", "3s"))
	if a := s.must(completion("a01", 1, false)); a.status != http.StatusOK {
		t.Fatalf("with control: %d %s", a.status, a.body)
	}
	s.freeze(s.Control)
	began := time.Now()
	a, l := s.tell(completion("a02", 1, false))
	refused(t, "a request that needs a load", a, http.StatusServiceUnavailable, "control_unavailable")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it waited for %v", took)
	}
	if l.Status != a.status || l.Details != "headgate_control_unavailable" || l.Endpoint != "" || a.header.Get("Retry-After") == "" {
		t.Errorf("Retry-After is %q, and the access log has %+v", a.header.Get("Retry-After"), l)
	}
	if a := s.must(completion("a01", 1, false)); a.status != http.StatusOK {
		t.Errorf("a request for a loaded model: %d %s", a.status, a.body)
	}
	if got := s.sum(s.Metrics, "headgate_control_connected"); got != 0 {
		t.Errorf("headgate_control_connected is %v", got)
	}
	if got := s.sum(s.Metrics, "headgate_replies_total", "code", "503", "error", "control_unavailable"); got != 1 {
		t.Errorf("%v replies are counted", got)
	}
	s.logs("extproc.log", `"level":"WARN","msg":"control is silent`)
	if got := s.printed(); !strings.Contains(got, s.ControlMetrics+" has not answered") || !strings.Contains(got, "healthy") {
		t.Errorf("status prints %s", got)
	}
	s.Control.Signal(syscall.SIGCONT)
	s.await("a request that needs a load is answered", func() bool { return s.must(completion("a02", 1, false)).status == http.StatusOK })
	s.await("control is connected", func() bool { return s.sum(s.Metrics, "headgate_control_connected") == 1 })
	s.logs("extproc.log", `"level":"INFO","msg":"control answers again"`)

	s.Control.Kill()
	s.logs("extproc.log", `"level":"WARN","msg":"cannot reach control`)
	s.await("control is not connected", func() bool { return s.sum(s.Metrics, "headgate_control_connected") == 0 })
	if a := s.must(completion("a01", 1, false)); a.status != http.StatusOK {
		t.Errorf("without control, a request for a loaded model: %d %s", a.status, a.body)
	}
	if got := s.printed(); !strings.Contains(got, "no control at http://"+s.ControlMetrics) || !strings.Contains(got, "healthy") {
		t.Errorf("without control, status prints %s", got)
	}
	s.shows("! control is silent: requests whose model is not loaded get 503 control_unavailable")
}

// printed returns what headgate status prints.
func (s *stack) printed() string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	var out bytes.Buffer
	control := ""
	if s.ControlMetrics != "" {
		control = "http://" + s.ControlMetrics
	}
	if err := status.Command(ctx, []string{"--control-url=" + control, "--extproc-url=http://" + s.Metrics}, &out); err != nil {
		return err.Error()
	}
	return out.String()
}

// logs waits until a log contains a text.
func (s *stack) logs(file, text string) {
	s.t.Helper()
	s.await(file+" contains "+text, func() bool {
		all, err := os.ReadFile(filepath.Join(s.Dir, file))
		return err == nil && strings.Contains(string(all), text)
	})
}

const pickerAway = "The gateway's picker (extproc) does not answer."

// While extproc is dead or hangs, clients get an error in their API's format that names the picker.
// The access log, Envoy's metrics and headgate status report it, too. If the engines are away, the
// code stays no_endpoint.
func TestErrorNamesThePickerThatIsAway(t *testing.T) { onBothPlanes(t, errorNamesThePicker) }

func errorNamesThePicker(t *testing.T) {
	s := start(t, pods(t, 1))
	reason := func(id string) string {
		var all []logged
		s.await("the request is in the access log", func() bool {
			all = s.accessLog(func(l logged) bool { return l.ID == id })
			return len(all) == 1
		})
		return all[0].Error
	}
	named := func(id string, r request) request {
		r.header = map[string]string{"X-Request-Id": id}
		return r
	}
	check := func(id string, r request, want string) {
		t.Helper()
		a := s.must(named(id, r))
		if a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, want) ||
			!json.Valid([]byte(a.body)) {
			t.Errorf("%s: %d, Retry-After %q: %s, want %s", id, a.status, a.header.Get("Retry-After"), a.body, want)
		}
		if got := a.header.Get("x-gateway-error"); got != "" {
			t.Errorf("%s: the client gets x-gateway-error %s", id, got)
		}
		if got := reason(id); got != "picker_unavailable" {
			t.Errorf("%s: the access log has the error %q", id, got)
		}
	}

	engine := s.Simulated()[0]
	s.Engines[engine].Kill()
	s.changed(engine, "out", `"was":"healthy","reason":"connection_refused"`, "it refuses connections")
	refused(t, "without engines", s.must(named("engine-gone", completion(baseRoute, 1, false))), http.StatusServiceUnavailable, "no_endpoint")
	if got := reason("engine-gone"); got != "" {
		t.Errorf("without engines the access log has the error %q", got)
	}
	if got := s.sum(s.Metrics, "headgate_replies_total", "code", "503", "error", "no_endpoint"); got != 1 {
		t.Errorf("without engines, %v replies are counted", got)
	}

	s.freeze(s.Extproc)
	printed := make(chan string, 1)
	go func() { printed <- s.printed() }() // at the same time, since both wait for some seconds
	check("hangs", completion(baseRoute, 1, false), `"code":"picker_unavailable"`)
	if got := <-printed; !strings.Contains(got, s.Metrics+" has not answered within") {
		t.Errorf("while extproc hangs, status prints %s", got)
	}
	if s.envoyGauge("http.ingress.ext_proc.headgate.message_timeouts") != 1 {
		t.Error("Envoy does not count that extproc has not answered")
	}
	s.Extproc.Kill()
	if got := s.printed(); !strings.Contains(got, s.Metrics) {
		t.Errorf("status prints %s", got)
	}
	refused(t, "without extproc", s.must(completion(baseRoute, 1, false)), http.StatusServiceUnavailable, "picker_unavailable")
	check("dead", completion(baseRoute, 1, true), `{"error":{"message":"`+pickerAway+`","type":"server_error"`)
	check("messages", request{path: "/v1/messages", body: `{"model":"llama","max_tokens":2,"messages":[{"role":"user","content":"x"}]}`},
		`{"type":"error","error":{"type":"overloaded_error","message":"`+pickerAway+`"}}`)
	check("v2", request{path: "/v2/models/llama/infer", body: `{"inputs":[]}`}, `{"error":"`+pickerAway+`"}`)
	_, err := s.calls().ModelInfer(t.Context(), tensor("llama", 1))
	if grpcstatus.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), pickerAway) {
		t.Errorf("a gRPC call ends with %v", err)
	}
	if s.envoyGauge("cluster.extproc.upstream_cx_connect_fail") == 0 {
		t.Error("Envoy does not count that extproc accepts no connections")
	}
}

// While policy latency waits for measurements, each access-log record says so. The log, a metric
// and headgate status name the pool. With --explain-picks, the records of every policy have what it
// compared.
func TestPoolWaitsForMeasurements(t *testing.T) {
	runs(t)
	policies := []string{"proposal", "leastRequest", "roundRobin", "random", "latency"}
	var objects strings.Builder
	s := start(t, extprocFlags("--explain-picks"), func(c *rig.Config) {
		net := strings.TrimSuffix(c.Listen, "1:8080")
		for i, policy := range policies {
			fmt.Fprintf(&objects, `---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %[1]s}
spec: {selector: {matchLabels: {app: %[1]s}}, targetPorts: [{number: 8000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s, %[3]s: 'true'}}
status: {podIP: %[4]s}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: PoolSettings
metadata: {name: %[1]s}
spec: {poolRef: {name: %[1]s}, policy: %[2]s}
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: {name: %[1]s}
spec: {backendRefs: [{name: %[1]s}]}
`, strings.ToLower(policy), policy, rig.SimulateLabel, net+strconv.Itoa(11+i))
		}
		for file, text := range map[string]string{"engines.yaml": objects.String(), "routes.yaml": ""} {
			if err := os.WriteFile(filepath.Join(c.Objects, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	})
	const line = `"level":"INFO","msg":"policy latency waits for measurements: policy proposal decides until then","pool":"default/latency"`
	const shown = "policy latency of default/latency waits for measurements"
	s.logs("extproc.log", line)
	for i, policy := range policies {
		a, l := s.tell(completion(strings.ToLower(policy), 1, false))
		want := ""
		if policy == "latency" {
			want = "waiting for measurements"
		}
		if a.status != http.StatusOK || l.Pick.Fallback != want || l.Pick.Expected.Endpoint != s.endpoint(i+1) {
			t.Errorf("%s: %d, the access log has the pick %+v", policy, a.status, l.Pick)
		}
		if waits := strings.Contains(s.printed(), "policy latency of default/"+strings.ToLower(policy)); waits != (want != "") {
			t.Errorf("%s: status prints\n%s", policy, s.printed())
		}
	}
	if got := s.sum(s.Metrics, "headgate_pool_predictions_trusted", "pool", "default/latency"); got != 0 {
		t.Errorf("the predictions of the pool are trusted: %v", got)
	}
	if strings.Contains(s.page(s.Metrics), "headgate_control_connected") {
		t.Error("without --control, a metric says whether control is connected")
	}

	s.write("profile.yaml", profile)
	s.write("engines.yaml", strings.Replace(objects.String(), "policy: latency", "policy: latency, profile: {file: profile.yaml}", 1))
	s.await("the pool has a profile", func() bool {
		return s.sum(s.Metrics, "headgate_pool_predictions_trusted", "pool", "default/latency") == 1
	})
	if _, l := s.tell(completion("latency", 1, false)); l.Pick.Fallback != "" || l.Pick.FirstToken == 0 {
		t.Errorf("with a profile, the access log has the pick %+v", l.Pick)
	}
	if got := s.printed(); strings.Contains(got, shown) {
		t.Errorf("with a profile, status prints\n%s", got)
	}
	if got := s.count("extproc.log", line); got != 1 {
		t.Errorf("the log names the pool %d times", got)
	}
}

// If an adapter cannot be loaded, the client's error contains the kind of reason and says not to
// retry. The access log, control's log, metrics and headgate status have the reason, too. Only
// control's log and headgate status contain the engine's message.
func TestReasonOfAFailedLoadIsReported(t *testing.T) {
	runs(t, raced)
	s := start(t, pods(t, 2), placed(t, 4, "a01"))
	s.write("models.yaml", modelObject("big", "source: 'sim:rank=64'")+"---\n"+modelObject("torn", "source: /no/such/folder"))
	s.await("they are known", func() bool { return s.must(completion("torn", 1, false)).status == http.StatusServiceUnavailable })
	for model, c := range map[string]struct{ says, words, reason string }{
		"big":  {"its rank exceeds the limit of the servers", "LoRA rank 64 is greater than max_lora_rank 16", "rank_too_large"},
		"torn": {"the servers cannot find its files", "No adapter found for", "files_missing"},
	} {
		begun := time.Now()
		a, l := s.tell(completion(model, 1, false))
		refused(t, model, a, http.StatusServiceUnavailable, "model_load_failed")
		if !strings.Contains(a.body, "'"+model+"' could not be loaded: "+c.says) || a.header.Get("x-should-retry") != "false" ||
			strings.Contains(a.body, c.words) || strings.Contains(a.body, "/no/such") {
			t.Errorf("%s: %s, x-should-retry %q", model, a.body, a.header.Get("x-should-retry"))
		}
		if l.Status != a.status || l.Details != "headgate_model_load_failed" || l.Endpoint != "" {
			t.Errorf("%s: the access log has %+v", model, l)
		}
		if !s.tells(s.Control.Log, `"msg":"cannot load a model"`, c.words) || !s.tells(s.Control.Log, c.words, `"model":"`+model+`"`) {
			t.Errorf("control's log lacks the engine's words about %s", model)
		}
		if got := s.sum(s.ControlMetrics, "headgate_place_rejections_total", "reason", c.reason); got != 1 {
			t.Errorf("%s: control counts %v rejections for the reason %s", model, got, c.reason)
		}
		s.shows(model+" of default/pool: 0 loaded", "failed at ", c.words, "("+c.reason+")",
			"Model default/"+model+": Ready: CannotLoad\n")
		t.Logf("%s: told after %v", model, time.Since(begun).Round(time.Millisecond))
	}
	if !strings.Contains(s.page(s.ControlMetrics), `headgate_place_load_seconds_count{result="failed"}`) {
		t.Error("control counts no failed loads")
	}
	if got := s.sum(s.Metrics, "headgate_replies_total", "code", "503", "error", "model_load_failed"); got < 2 {
		t.Errorf("extproc counts %v replies", got)
	}
	if a := s.must(completion("a01", 1, false)); a.status != http.StatusOK {
		t.Errorf("another model: %d %s", a.status, a.body)
	}
}

// shows waits until headgate status prints all texts.
func (s *stack) shows(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		s.await("status prints "+text, func() bool { return strings.Contains(s.printed(), text) })
	}
}
