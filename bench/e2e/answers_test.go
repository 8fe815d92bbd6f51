package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/headgate/headgate/headgate/rig"
)

// scripted is a response that a scripted engine sends: the media type and the parts of the body. A
// part that parses as a duration is a pause.
type scripted struct {
	media string
	parts []string
}

// startScripted serves an engine at address until the test ends. The engine lists the models that
// are keys of answers and sends each model's scripted response. The status is 200, or 500 if
// "500" is the first of two parts.
func startScripted(t *testing.T, address string, answers map[string]scripted) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		var data []map[string]string
		for name := range answers {
			data = append(data, map[string]string{"id": name, "object": "model"})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": data})
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Model string }
		_ = json.NewDecoder(r.Body).Decode(&asked)
		a := answers[asked.Model]
		w.Header().Set("Content-Type", a.media)
		if len(a.parts) == 2 && a.parts[0] == "500" {
			w.Header().Set("Content-Length", strconv.Itoa(len(a.parts[1])))
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, a.parts[1])
			return
		}
		for _, part := range append([]string{"0s"}, a.parts...) {
			if pause, err := time.ParseDuration(part); err == nil {
				_ = http.NewResponseController(w).Flush()
				time.Sleep(pause)
				continue
			}
			_, _ = io.WriteString(w, part)
		}
	})
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

// scriptedPool configures a pool of n engines and a route for each model. The engines' addresses
// begin at .11, and the test itself serves them.
func scriptedPool(t *testing.T, n int, models ...string) setting {
	return func(c *rig.Config) {
		text := strings.ReplaceAll(engines(strings.TrimSuffix(c.Listen, "1:8080"), n), ", "+rig.SimulateLabel+": 'true'", "")
		for file, text := range map[string]string{"engines.yaml": text, "routes.yaml": routes(models...)} {
			if err := os.WriteFile(filepath.Join(c.Objects, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// ofRoute returns the only series of a metric with the route's label, nil if there is none.
func (s *stack) ofRoute(metric, route string) *dto.Metric {
	s.t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(s.page(s.Metrics)))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, m := range families[metric].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == "route" && l.GetValue() == "default/"+route {
				return m
			}
		}
	}
	return nil
}

// event formats a server-sent event.
func event(data string) string { return "data: " + data + "\n\n" }

const stream = "text/event-stream"

// Envoy's filters parse the responses of every supported API, engine and media type.
func TestEnvoyParsesResponses(t *testing.T) {
	runs(t)
	const usage = `{"id":"x","usage":{"prompt_tokens":5,"completion_tokens":7}}`
	cases := map[string]struct {
		scripted
		prompt, completion float64
		failure            string
	}{
		"json":            {scripted: scripted{"application/json", []string{usage}}, prompt: 5, completion: 7},
		"json-charset":    {scripted: scripted{"application/json; charset=utf-8", []string{usage}}, prompt: 5, completion: 7},
		"json-upper-case": {scripted: scripted{"Application/JSON;charset=UTF-8", []string{usage}}, prompt: 5, completion: 7},
		"json-suffix":     {scripted: scripted{"application/vnd.api+json", []string{usage}}, prompt: 5, completion: 7},
		"text":            {scripted: scripted{"text/plain", []string{usage}}},
		"jsonl":           {scripted: scripted{"application/jsonl", []string{usage}}},
		"stream":          {scripted: scripted{stream, []string{event(usage), event("[DONE]")}}, prompt: 5, completion: 7},
		"stream-charset":  {scripted: scripted{"text/event-stream; charset=utf-8", []string{event(usage)}}, prompt: 5, completion: 7},
		"responses": {
			scripted: scripted{
				stream,
				[]string{event(`{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":4},"error":null}}`)},
			},
			prompt: 3, completion: 4,
		},
		"messages": {scripted: scripted{stream, []string{
			event(`{"type":"message_start","message":{"usage":{"input_tokens":25,"cache_read_input_tokens":3,"cache_creation_input_tokens":null,"output_tokens":1}}}`),
			event(`{"type":"message_delta","usage":{"output_tokens":15}}`),
		}}, prompt: 28, completion: 15},
		"messages-late": {scripted: scripted{stream, []string{
			event(`{"type":"message_start","message":{"usage":{"input_tokens":0,"output_tokens":0}}}`),
			event(`{"type":"message_delta","usage":{"input_tokens":9,"output_tokens":2}}`),
		}}, prompt: 9, completion: 2},
		"messages-zero": {scripted: scripted{stream, []string{
			event(`{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":0}}}`),
			event(`{"type":"message_delta","usage":{"input_tokens":0,"output_tokens":2}}`),
		}}, prompt: 9, completion: 2},
		"messages-cached": {scripted: scripted{stream, []string{ // cached prompt tokens as vLLM 0.26 reports them
			event(`{"type":"message_start","message":{"usage":{"input_tokens":604,"output_tokens":0}}}`),
			event(`{"type":"message_delta","usage":{"input_tokens":92,"cache_read_input_tokens":512,"output_tokens":2}}`),
		}}, prompt: 604, completion: 2},
		"messages-json": {
			scripted: scripted{
				"application/json",
				[]string{`{"usage":{"input_tokens":2,"cache_read_input_tokens":40,"cache_creation_input_tokens":null,"output_tokens":3}}`},
			},
			prompt: 42, completion: 3,
		},
		"huge": {
			scripted:   scripted{"application/json", []string{`{"usage":{"prompt_tokens":1e300,"completion_tokens":7}}`}},
			completion: 7,
		},
		"negative": {scripted: scripted{stream, []string{event(`{"usage":{"prompt_tokens":5,"completion_tokens":-7}}`)}}, prompt: 5},
		"broken":   {scripted: scripted{"application/json", []string{`{"usage":`}}},

		"error-first": {
			scripted: scripted{
				stream,
				[]string{event(`{"error":{"message":"x","type":"InternalServerError","param":null,"code":500}}`), event("[DONE]")},
			},
			failure: "stream_error",
		},
		"error-later": {scripted: scripted{
			stream,
			[]string{
				event(`{"choices":[{"text":"a"}]}`), "10ms",
				event(`{"error":{"message":"x","type":"InternalServerError","code":500}}`),
			},
		}, failure: "stream_error"},
		"error-text": {scripted: scripted{stream, []string{event(`{"error":"x"}`)}}, failure: "stream_error"},
		"error-flat": {scripted: scripted{
			stream,
			[]string{event(`{"object":"error","message":"x","type":"InternalServerError","code":500}`)},
		}, failure: "stream_error"},
		"error-messages": {
			scripted: scripted{
				stream,
				[]string{"event: error\n" + event(`{"type":"error","error":{"type":"overloaded_error","message":"x"}}`)},
			},
			failure: "stream_error",
		},
		"error-responses": {
			scripted: scripted{
				stream,
				[]string{"event: error\n" + event(`{"type":"error","code":"server_error","message":"x","param":null}`)},
			},
			failure: "stream_error",
		},
		"error-failed": {
			scripted: scripted{
				stream,
				[]string{event(`{"type":"response.failed","response":{"error":{"code":"server_error","message":"x"}}}`)},
			},
			failure: "stream_error",
		},
		"error-whole": {
			scripted: scripted{"application/json; charset=utf-8", []string{`{"error":{"message":"x","code":502}}`}},
			failure:  "stream_error",
		},
		"error-bad": {scripted: scripted{stream, []string{event(`{"error":{"message":"x","type":"BadRequestError","code":400}}`)}}},
		"error-long": {scripted: scripted{
			stream,
			[]string{event(`{"error":{"message":"x","type":"invalid_request_error","code":"context_length_exceeded"}}`)},
		}},
		"error-null": {scripted: scripted{stream, []string{event(`{"error":null,"code":null,"choices":[{"text":"a \"error\": {"}]}`)}}},
		"error-none": {scripted: scripted{"application/json", []string{`{"error":null,"id":"x","choices":[{"error":{"code":500}}]}`}}},
	}
	answers := make(map[string]scripted)
	var names []string
	for name, c := range cases {
		answers[name], names = c.scripted, append(names, name)
	}
	net := ""
	s := start(t, scriptedPool(t, 1, names...), func(c *rig.Config) {
		net = strings.TrimSuffix(c.Listen, "1:8080")
		startScripted(t, net+"11:8000", answers)
	})
	for _, name := range names {
		r := completion(name, 1, strings.HasPrefix(cases[name].media, stream))
		switch { // streams of other paths state usage only if the request asks for it
		case strings.Contains(name, "messages"):
			r.path = "/v1/messages"
		case strings.Contains(name, "responses"), name == "error-failed":
			r.path = "/v1/responses"
		}
		if a := s.must(r); a.status != 200 {
			t.Fatalf("%s: %d %s", name, a.status, a.body)
		}
	}
	s.await("every request is counted", func() bool {
		return s.sum(s.Metrics, "headgate_requests_total") == float64(len(cases))
	})
	for _, name := range names {
		c := cases[name]
		s.counted(name, c.prompt, c.completion, c.failure)
	}
	log, err := os.ReadFile(filepath.Join(s.Dir, "extproc.log"))
	if err != nil || strings.Contains(string(log), "panic") {
		t.Errorf("extproc's log: %v\n%s", err, log)
	}
}

// An engine that immediately answers every request with an error event must not attract most of the
// requests.
func TestEngineThatStreamsErrorsAttractsNoRequests(t *testing.T) {
	runs(t)
	const clients, each = 16, 20
	net := ""
	s := start(t, scriptedPool(t, 2, "m"), func(c *rig.Config) {
		net = strings.TrimSuffix(c.Listen, "1:8080")
		startScripted(t, net+"11:8000", map[string]scripted{"m": {
			stream,
			[]string{event(`{"error":{"message":"x","type":"InternalServerError","code":500}}`), event("[DONE]")},
		}})
		startScripted(t, net+"12:8000", map[string]scripted{"m": {
			stream,
			[]string{"20ms", event(`{"choices":[{"text":"a"}]}`), event("[DONE]")},
		}})
	})
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range each {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				if _, err := s.ask(ctx, completion("m", 1, true)); err != nil {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	s.await("every request is counted", func() bool { return s.sum(s.Metrics, "headgate_requests_total") == clients*each })
	bad := s.sum(s.Metrics, "headgate_endpoint_requests_total", "endpoint", net+"11:8000")
	if faults := s.sum(s.Metrics, "headgate_endpoint_failures_total", "endpoint", net+"11:8000", "kind", "stream_error"); faults != bad ||
		bad == 0 {
		t.Errorf("%v of the %v answers that were errors are counted", faults, bad)
	}
	t.Logf("%v of %d requests went to the engine that streams errors", bad, clients*each)
	if bad > clients*each/5 {
		t.Errorf("%v of %d requests went to the engine that streams errors", bad, clients*each)
	}
}

// The time to first token is the time of the first output, even if other events precede the output.
// If that time cannot be determined, none is recorded.
func TestFirstTokenIsTheFirstOutput(t *testing.T) {
	runs(t)
	const pause = "1s" // a busy machine delays a first token by hundreds of milliseconds
	role := event(`{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`)
	chat := event(`{"choices":[{"index":0,"delta":{"content":"\"a\""},"finish_reason":null}]}`)
	text := event(`{"choices":[{"index":0,"text":"a","finish_reason":null}]}`)
	created := "event: response.created\n" +
		event(`{"response":{"instructions":"say \"a\"","status":"in_progress"},"sequence_number":0,"type":"response.created"}`)
	delta := event(`{"type":"response.output_text.delta","delta":"a"}`)
	begun := "event: message_start\n" + event(`{"type":"message_start","message":{"content":[],"usage":{"input_tokens":1}}}`)
	answers := map[string]scripted{
		"early-at-once": {stream, []string{role + chat, pause, chat}},
		// Output that arrives within 10 ms of the role event is taken as the first token. On a busy
		// machine the gap may be longer.
		"soon-role":        {stream, []string{role, "1ms", chat, pause, chat}},
		"early-completion": {stream, []string{text, pause, text}},
		"early-unknown":    {stream, []string{event(`{"token":"a"}`), pause, event(`{"token":"a"}`)}},
		"early-tool":       {stream, []string{event(`{"choices":[{"delta":{"content":null,"tool_calls":[{"index":0}]}}]}`), pause, chat}},
		"early-reasoning":  {stream, []string{event(`{"choices":[{"delta":{"reasoning_content":"a"}}]}`), pause, chat}},
		"late-headers":     {stream, []string{pause, chat}},
		"late-comment":     {stream, []string{": keep-alive\n\n", pause, role + chat}},
		"late-crlf":        {stream, []string{": ping\r\n\r\n", pause, strings.ReplaceAll(text, "\n", "\r\n")}},
		"late-usage":       {stream, []string{event(`{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":0}}`), pause, text}},
		"late-responses": {stream, []string{created, pause, event(`{"type":"response.output_item.added","item":{"type":"message"}}`) +
			delta}},
		"late-messages": {stream, []string{
			begun + event(`{"type":"ping"}`), pause,
			event(`{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}`),
		}},
		"late-cut": {stream, []string{": x\n\nda", "1ms", `ta: {"choices":[{"te`, pause, text[len(`data: {"choices":[{"te`):]}},
		// vLLM repeats the request's instructions and tools in the first event.
		"late-long": {stream, []string{event(`{"type":"response.created","response":{"instructions":"` +
			strings.Repeat("x ", 20_000) + `"}}`), pause, delta}},
		"never-long": {stream, []string{`data: {"type":"response.created","response":{"instructions":"` +
			strings.Repeat("x ", 300_000), pause, `"}}` + "\n\n" + delta}},
		"never-role":        {stream, []string{role, pause, chat}}, // the first token is unknown: the engine may hold a tool call back
		"never-comments":    {stream, []string{": x\n\n", pause, ": y\n\n"}},
		"never-only-opened": {stream, []string{created, pause, event("[DONE]")}},
		"never-an-error":    {stream, []string{": x\n\n", pause, event(`{"error":{"message":"x","code":400}}`)}},
	}
	var names []string
	for name := range answers {
		names = append(names, name)
	}
	s := start(t, scriptedPool(t, 1, names...), func(c *rig.Config) {
		startScripted(t, strings.TrimSuffix(c.Listen, "1:8080")+"11:8000", answers)
	})
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			if a, err := s.ask(t.Context(), completion(name, 1, true)); err != nil || a.status != 200 ||
				a.body != strings.Join(withoutPauses(answers[name].parts), "") {
				t.Errorf("%s: %d %q, %v", name, a.status, a.body, err)
			}
		})
	}
	all.Wait()
	s.await("every request is counted", func() bool { return s.sum(s.Metrics, "headgate_requests_total") == float64(len(answers)) })
	for _, name := range names {
		h := s.ofRoute("headgate_time_to_first_token_seconds", name).GetHistogram()
		took := time.Duration(h.GetSampleSum() * float64(time.Second))
		switch kind, _, _ := strings.Cut(name, "-"); {
		case kind == "never" && h.GetSampleCount() != 0,
			kind == "early" && (h.GetSampleCount() != 1 || took > 950*time.Millisecond),
			kind == "soon" && took > 950*time.Millisecond,
			kind == "late" && (h.GetSampleCount() != 1 || took < 990*time.Millisecond):
			t.Errorf("%s: the first token came after %v, of %d samples", name, took, h.GetSampleCount())
		}
	}
}

func withoutPauses(parts []string) (texts []string) {
	for _, part := range parts {
		if _, err := time.ParseDuration(part); err != nil {
			texts = append(texts, part)
		}
	}
	return texts
}
