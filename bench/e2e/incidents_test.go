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
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

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

// An engine that answers 500 and one that hangs have a line in extproc's log at each change, with
// what the engine answered, and are visible in metrics and at /endpoints. Only
// --log-engine-errors shows the engine's message.
func TestLogNamesTheEngineThatFails(t *testing.T) {
	for name, flags := range map[string][]string{"message hidden": nil, "message shown": {"--log-engine-errors"}} {
		t.Run(name, func(t *testing.T) {
			runs(t)
			s := start(t, pods(t, 1), extprocFlags(flags...))
			engine := s.Simulated()[0]
			r := completion(baseRoute, 1, false)
			r.header = map[string]string{"X-Sim-Fault": "status=500"}
			if a := s.must(r); a.status != http.StatusInternalServerError {
				t.Fatalf("the client gets %d %s", a.status, a.body)
			}
			line := `"msg":"endpoint is suspect","endpoint":"` + engine + `","pool":"default/pool","was":"healthy",` +
				`"reason":"requests_fail","kind":"error","status":500,"error_type":"InjectedFault","error_code":"500"`
			if flags != nil {
				line += `,"error_message":"fault injected: status=500"`
			}
			s.logs("extproc.log", line+"}")
			s.expectEndpoint("suspect")
			if got := s.printed(); !strings.Contains(got, "suspect") || !strings.Contains(got, "500 InjectedFault") {
				t.Errorf("status prints %s", got)
			}
			s.await("the failure is counted", func() bool {
				return s.sum(s.Metrics, "headgate_endpoint_failures_total", "endpoint", engine, "kind", "error") == 1
			})
			if a := s.must(completion(baseRoute, 1, false)); a.status != http.StatusOK {
				t.Errorf("the next request gets %d %s", a.status, a.body)
			}
			s.logs("extproc.log", `"msg":"endpoint is healthy again","endpoint":"`+engine+`","pool":"default/pool","was":"suspect"}`)
			if flags != nil {
				if text, err := os.ReadFile(s.Envoy.Log); err != nil || strings.Contains(string(text), "fault injected") {
					t.Errorf("Envoy's log has the message, too, or %v", err)
				}
				return
			}

			process := s.Engines[engine]
			s.freeze(process)
			s.logs("extproc.log", `"level":"WARN","msg":"endpoint is stale","endpoint":"`+engine+
				`","pool":"default/pool","was":"healthy","reason":"scrapes_unanswered"`)
			s.expectEndpoint("stale")
			process.Signal(syscall.SIGCONT)
			s.logs("extproc.log", `"msg":"endpoint is healthy again","endpoint":"`+engine+`","pool":"default/pool","was":"stale"}`)
			s.expectEndpoint("healthy")
		})
	}
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

// While control hangs, requests for loaded models are answered. Requests that need a load get 503
// after --control-lost, instead of waiting for minutes. Log and metric name control.
func TestErrorNamesTheControlThatHangs(t *testing.T) {
	runs(t)
	s := start(t, pods(t, 1), placed(t, 4, adapters...), extprocFlags("--control-lost", "3s"))
	if a := s.must(completion("a01", 1, false)); a.status != http.StatusOK {
		t.Fatalf("with control: %d %s", a.status, a.body)
	}
	s.freeze(s.Control)
	began := time.Now()
	refused(t, "a request that needs a load", s.must(completion("a02", 1, false)), http.StatusServiceUnavailable, "control_unavailable")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it waited for %v", took)
	}
	if a := s.must(completion("a01", 1, false)); a.status != http.StatusOK {
		t.Errorf("a request for a loaded model: %d %s", a.status, a.body)
	}
	if got := s.sum(s.Metrics, "headgate_control_connected"); got != 0 {
		t.Errorf("headgate_control_connected is %v", got)
	}
	s.logs("extproc.log", `"level":"WARN","msg":"control is silent`)
	if got := s.printed(); !strings.Contains(got, s.ControlMetrics+" has not answered") || !strings.Contains(got, "healthy") {
		t.Errorf("status prints %s", got)
	}
	s.Control.Signal(syscall.SIGCONT)
	s.await("a request that needs a load is answered", func() bool { return s.must(completion("a02", 1, false)).status == http.StatusOK })
	s.await("control is connected", func() bool { return s.sum(s.Metrics, "headgate_control_connected") == 1 })
	s.logs("extproc.log", `"level":"INFO","msg":"control answers again"`)
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

// While extproc is dead or hangs, clients read in their API's format that the picker is away, and
// so does the operator in the access log. If the engines are away, the code stays no_endpoint.
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

	s.Engines[s.Simulated()[0]].Kill()
	s.await("extproc knows that the engine is gone", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_state", "state", "out") == 1
	})
	refused(t, "without engines", s.must(named("engine-gone", completion(baseRoute, 1, false))), http.StatusServiceUnavailable, "no_endpoint")
	if got := reason("engine-gone"); got != "" {
		t.Errorf("without engines the access log has the error %q", got)
	}

	s.freeze(s.Extproc)
	check("hangs", completion(baseRoute, 1, false), `"code":"picker_unavailable"`)
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
}
