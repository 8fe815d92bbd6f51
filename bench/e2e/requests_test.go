package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// apiError is OpenAI's error format.
type apiError struct {
	Error *struct {
		Message string
		Type    string
		Param   *string
		Code    string
	}
}

// refused checks that a response is an error in OpenAI's format and reveals no internals of the
// gateway.
func refused(t *testing.T, name string, a answer, status int, code string) {
	t.Helper()
	var e apiError
	if err := json.Unmarshal([]byte(a.body), &e); err != nil || e.Error == nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("%s: %d %s is no error of OpenAI's: %v", name, a.status, a.body, err)
		return
	}
	if a.status != status || e.Error.Code != code {
		t.Errorf("%s: %d %s, want %d %s", name, a.status, e.Error.Code, status, code)
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("%s: the content type is %q", name, got)
	}
	again := (a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests) && a.header.Get("x-should-retry") == ""
	if again != (a.header.Get("Retry-After") != "") {
		t.Errorf("%s: %d with Retry-After %q", name, a.status, a.header.Get("Retry-After"))
	}
	for _, inside := range []string{"upstream", "nvoy", "ext_proc", "headgate", "127."} {
		if strings.Contains(a.body, inside) {
			t.Errorf("%s: the client is told of %q: %s", name, inside, a.body)
		}
	}
}

func TestBadInputGetsAClearError(t *testing.T) { onBothPlanes(t, badInputGetsAClearAnswer) }

func badInputGetsAClearAnswer(t *testing.T) {
	s := start(t)
	s.write("more.yaml", routes("nobody-lists-this"))
	s.await("the new route is in force", func() bool {
		return strings.Contains(s.must(request{method: "GET", path: "/v1/models"}).body, "nobody-lists-this")
	})
	big := strings.Repeat("a", 33<<20)
	for _, c := range []struct {
		name   string
		r      request
		status int
		code   string
	}{
		{"invalid JSON", request{body: "{bad"}, 400, "invalid_request"},
		{"bytes after the document", request{body: `{"model":"llama"} x`}, 400, "invalid_request"},
		{"no model", request{body: `{"prompt":"x"}`}, 400, "invalid_request"},
		{"empty model", request{body: `{"model":""}`}, 400, "invalid_request"},
		{"a number as model", request{body: `{"model":7}`}, 400, "invalid_request"},
		{"two models", request{body: `{"model":"llama","model":"a01"}`}, 400, "invalid_request"},
		{"two models, one escaped", request{body: `{"model":"llama","mod\u0065l":"a01"}`}, 400, "invalid_request"},
		{"a path as model", request{body: `{"model":"../a01"}`}, 400, "invalid_request"},
		{"an absolute path as model", request{body: `{"model":"/models/a01"}`}, 400, "invalid_request"},
		{"NUL in the model", request{body: `{"model":"a01\u0000"}`}, 400, "invalid_request"},
		{"empty body", request{}, 400, "invalid_request"},
		{"nested too deep", request{body: strings.Repeat("[", 8<<20)}, 400, "invalid_request"},
		{"unknown model", request{body: `{"model":"gpt-9"}`}, 404, "model_not_found"},
		{"the engine's own name", request{body: `{"model":"` + baseName + `"}`}, 404, "model_not_found"},
		{"too large", request{body: big}, 413, "request_too_large"},
		{"too large, in chunks", request{body: big, header: map[string]string{"Transfer-Encoding": "chunked"}}, 413, "request_too_large"},
		{"encoded", request{body: "x", header: map[string]string{"Content-Encoding": "compress"}}, 415, "unsupported_content_encoding"},
		{"no engine lists it", request{body: `{"model":"nobody-lists-this"}`}, 503, "no_endpoint"},
		{"the engine drops the connection", request{
			body:   `{"model":"llama","prompt":"x"}`,
			header: map[string]string{"X-Sim-Fault": "reset"},
		}, 503, "server_ended"},
		{"an unknown path", request{path: "/v1/foo", body: "{}"}, 404, "unknown_url"},
		{"a method that is not served", request{method: "DELETE", path: "/v1/models"}, 404, "unknown_url"},
	} {
		refused(t, c.name, s.must(c.r), c.status, c.code)
	}
	// At a Gateway such requests may go to Services, so they are not rejected.
	if !s.gateway {
		upgrade := map[string]string{"Connection": "upgrade", "Upgrade": "websocket"}
		refused(t, "an upgrade", s.must(request{method: "GET", path: "/v1/realtime", header: upgrade}), 403, "invalid_http")
		underscore := map[string]string{"a_b": "c"}
		if a := s.must(request{method: "GET", path: "/v1/models", header: underscore}); a.status != 200 { // gRPC metadata contains underscores
			t.Errorf("a header with an underscore: %d %s", a.status, a.body)
		}
		// Envoy treats none of these media types as gRPC.
		for _, contentType := range []string{"application/grpc;x", "application/grpcx", "application/grpc-web"} {
			refused(t, contentType, s.must(request{
				method: "POST", path: "/v1/load_lora_adapter", body: `{"lora_name":"a01"}`,
				header: map[string]string{"content-type": contentType, "mm-model-id": "llama"},
			}), 404, "unknown_url")
		}
		// Engines with an OpenAI API serve no gRPC.
		for _, path := range []string{
			"/v1/unload_lora_adapter", "/v1/embeddings", "/v1/completions",
			"/inference.GRPCInferenceService/ModelInfer",
		} {
			a := s.must(request{
				method: "POST", path: path,
				header: map[string]string{"content-type": "application/grpc", "mm-model-id": "llama"},
			})
			if a.status != 200 || a.header.Get("grpc-status") != "12" || a.header.Get("endpoint") != "" {
				t.Errorf("a call of %s: %d %v %s", path, a.status, a.header, a.body)
			}
		}
	}
	named := s.must(request{body: `{"model":"nobody-lists-this"}`})
	if !strings.Contains(named.body, "nobody-lists-this") {
		t.Errorf("503 does not name the model: %s", named.body)
	}
}

// Clients can reach only inference on an engine, however they disguise the path.
func TestOnlyInferenceReachesAnEngine(t *testing.T) { onBothPlanes(t, onlyInferenceReachesAnEngine) }

func onlyInferenceReachesAnEngine(t *testing.T) {
	s := start(t, engineFlags("--enable-sleep-mode"))
	load := `{"lora_name":"stolen","lora_path":"sim:","model":"llama"}`
	for _, r := range []request{
		{path: "/v1/load_lora_adapter", body: load},
		{path: "/v1/unload_lora_adapter", body: `{"lora_name":"a01","model":"llama"}`},
		{path: "//v1//load_lora_adapter", body: load},
		{path: "/v1/chat/completions/../../load_lora_adapter", body: load},
		{path: "/v1/%6coad_lora_adapter", body: load},
		{path: "/v1%2fload_lora_adapter", body: load},
		{path: "/v1/load_lora_adapter?x=/v1/chat/completions", body: load},
		{path: "/invocations", body: `{"model":"llama","prompt":"x"}`},
		{path: "/adapters", body: `{"name":"stolen","src":"sim:","model":"llama"}`},
		{method: "DELETE", path: "/adapters/a01"},
		{path: "/tokenize/", body: `{"model":"llama","prompt":"x"}`},
		{method: "GET", path: "/tokenizer_info"},
		{path: "/sleep", body: `{"model":"llama"}`},
		{path: "/wake_up", body: `{"model":"llama"}`},
		{method: "GET", path: "/metrics"},
		{path: "/health", body: `{"model":"llama"}`},
		{method: "GET", path: "/version"},
		{method: "PUT", path: "/v1/completions", body: `{"model":"llama","prompt":"x"}`},
		{method: "GET", path: "/"},
	} {
		refused(t, r.method+" "+r.path, s.must(r), 404, "unknown_url")
	}
	for _, path := range []string{"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/invocations", "/adapters", "/sleep", "/wake_up"} {
		if n := s.engineSum("sim:requests_total", "path", path); n != 0 {
			t.Errorf("%v requests for %s reached an engine", n, path)
		}
	}
	if a := s.must(completion("a01", 1, false)); a.status != 200 {
		t.Errorf("inference: %d %s", a.status, a.body)
	}
	for path, body := range map[string]string{
		"/tokenize":   `{"model":"a01","prompt":"hello world"}`,
		"/detokenize": `{"model":"a01","tokens":[104,105]}`,
		"/pooling":    `{"model":"a01","input":"hello world"}`,
		"/classify":   `{"model":"a01","input":"hello world"}`,
	} {
		if a := s.must(request{path: path, body: body}); a.status != 200 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		refused(t, path, s.must(request{path: path, body: `{"model":"gpt-9"}`}), 404, "model_not_found")
		var tried []int // attempts from Envoy's log; engines' own logs also contain control's calls
		s.await("Envoy has logged both", func() bool {
			tried = nil
			for _, l := range s.accessLog(func(l logged) bool { return l.Path == path }) {
				tried = append(tried, l.Attempts)
			}
			return len(tried) == 2
		})
		if !slices.Equal(tried, []int{1, 0}) {
			t.Errorf("engines were tried %v times for %s, want once for the first and not for the second", tried, path)
		}
	}
}

// No spelling of the destination header lets a client choose its endpoint. It cannot choose an
// address of its own, an engine that extproc did not pick, or any endpoint while extproc is down.
func TestDestinationCannotBeForged(t *testing.T) { onBothPlanes(t, aDestinationCannotBeForged) }

func aDestinationCannotBeForged(t *testing.T) {
	for name, settings := range map[string][]setting{"override_host": nil, "original_dst": {originalDst}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			destinationCannotBeForged(t, start(t, settings...))
		})
	}
}

func destinationCannotBeForged(t *testing.T, s *stack) {
	decoy, err := net.Listen("tcp", strings.TrimSuffix(s.Listen, "1:8080")+"99:0")
	if err != nil {
		t.Fatal(err)
	}
	defer decoy.Close()
	var reached atomic.Int32
	go func() {
		for {
			conn, err := decoy.Accept()
			if err != nil {
				return
			}
			reached.Add(1)
			_ = conn.Close()
		}
	}()
	// While this stream is open, extproc picks the same engine for every request for the adapter.
	held, err := s.open(t.Context(), completion("a01", 15_000, true))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Body.Close()
	holder := held.Header.Get("x-served-endpoint")
	others := s.Simulated()
	others = slices.DeleteFunc(others, func(e string) bool { return e == holder })

	forge := func(headers []string, value, model string) *http.Response {
		t.Helper()
		conn, err := net.Dial("tcp", s.Listen)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		body := `{"model":"` + model + `","prompt":"x","max_tokens":1}`
		var q strings.Builder
		fmt.Fprintf(&q,
			"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n",
			len(body))
		for _, h := range headers {
			fmt.Fprintf(&q, "%s: %s\r\n", h, value)
		}
		fmt.Fprintf(&q, "\r\n%s", body)
		if _, err := io.WriteString(conn, q.String()); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response
	}
	forms := [][]string{
		{"x-gateway-destination-endpoint"},
		{"X-Gateway-Destination-Endpoint"},
		{"X-GATEWAY-DESTINATION-ENDPOINT"},
		{"x-gateway-destination-endpoint", "x-gateway-destination-endpoint"},
		{"x-gateway-destination-endpoint", "X-Gateway-Destination-Endpoint", "X-GATEWAY-destination-endpoint"},
		{"x-gateway-destination-endpoint-served", "x-gateway-elsewhere", "envoy.lb", "x-envoy-original-dst-host"},
	}
	values := []string{decoy.Addr().String(), others[0], strings.Join(others, ","), others[0] + "," + decoy.Addr().String()}
	for _, headers := range forms {
		for _, value := range values {
			if r := forge(headers, value, "a01"); r.StatusCode != http.StatusOK || r.Header.Get("x-served-endpoint") != holder {
				t.Errorf("%v: %s: %d from %q, want 200 from %s", headers, value, r.StatusCode, r.Header.Get("x-served-endpoint"), holder)
			}
			if r := forge(headers, value, "no-such-model"); r.StatusCode != http.StatusNotFound {
				t.Errorf("%v: %s: %d for an unknown model", headers, value, r.StatusCode)
			}
		}
	}
	s.Extproc.Kill()
	for _, headers := range forms {
		for _, value := range values {
			if r := forge(headers, value, "a01"); r.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%v: %s: %d without extproc, want 503", headers, value, r.StatusCode)
			}
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("the decoy was reached %d times", n)
	}
}

// The outcomes of requests appear in the metrics. The usage that Envoy reports to extproc does not
// appear in responses.
func TestOutcomesBecomeMetrics(t *testing.T) { onBothPlanes(t, outcomesBecomeMetrics) }

func outcomesBecomeMetrics(t *testing.T) {
	s := start(t)
	plain := s.must(completion("a01", 7, false))
	if plain.status != 200 || plain.header.Get("endpoint-load-metrics") != "" {
		t.Errorf("%d, load report %q", plain.status, plain.header.Get("endpoint-load-metrics"))
	}
	if !strings.Contains(plain.body, `"model":"a01"`) {
		t.Errorf("the answer does not keep the engine's name: %s", plain.body)
	}
	if a := s.must(completion(baseRoute, 1, false)); !strings.Contains(a.body, `"model":"`+baseName+`"`) {
		t.Errorf("the engine did not get its own name for the base model: %s", a.body)
	}
	stream := s.must(request{body: `{"model":"a02","prompt":"x","max_tokens":9,"stream":true,"stream_options":{"include_usage":true}}`})
	if !stream.done() {
		t.Errorf("the stream ends with %q", stream.body)
	}
	s.must(request{body: `{"model":"a03","prompt":"x"}`, header: map[string]string{"X-Sim-Fault": "status=500"}})
	if response, err := s.open(t.Context(), request{
		body:   `{"model":"a04","prompt":"x","max_tokens":500,"stream":true}`,
		header: map[string]string{"X-Sim-Fault": "reset-after=3"},
	}); err == nil {
		_, _ = io.ReadAll(response.Body) // reads until the stream is cut
		_ = response.Body.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	left, err := s.open(ctx, completion("a05", 5000, true))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = left.Body.Read(make([]byte, 10))
	cancel()
	_ = left.Body.Close()

	for _, want := range []struct {
		metric string
		labels []string
		value  float64
	}{
		{"headgate_requests_total", []string{"route", "default/a01", "pool", "default/pool", "code", "200"}, 1},
		{"headgate_tokens_total", []string{"route", "default/a01", "pool", "default/pool", "kind", "completion"}, 7},
		{"headgate_tokens_total", []string{"route", "default/a02", "kind", "completion"}, 9},
		{"headgate_tokens_total", []string{"route", "default/a02", "kind", "prompt"}, 1},
		{"headgate_requests_total", []string{"route", "default/a03", "code", "500"}, 1},
		{"headgate_failures_total", []string{"route", "default/a04", "kind", "reset"}, 1},
		{"headgate_failures_total", []string{"route", "default/a05", "kind", "client_gone"}, 1},
		{"headgate_endpoint_requests_total", []string{"pool", "default/pool"}, 6},
		{"headgate_endpoint_failures_total", []string{"pool", "default/pool", "kind", "error"}, 1},
		{"headgate_endpoint_failures_total", []string{"pool", "default/pool", "kind", "reset"}, 1},
		{"headgate_endpoint_failures_total", nil, 2},
	} {
		s.await(fmt.Sprintf("%s%v is %v", want.metric, want.labels, want.value), func() bool {
			return s.sum(s.Metrics, want.metric, want.labels...) == want.value
		})
	}
	page := s.page(s.Metrics)
	for _, line := range []string{
		`headgate_time_to_first_token_seconds_count{pool="default/pool",route="default/a02"} 1`,
		`headgate_endpoint_requests_total{endpoint="` + plain.served + `",pool="default/pool"} `,
		`headgate_endpoint_requests_total{endpoint="` + stream.served + `",pool="default/pool"} `,
		`headgate_endpoint_engine_requests_waiting{endpoint="` + plain.served + `",pool="default/pool"} `,
	} {
		if !strings.Contains(page, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
	s.await("every request has ended", func() bool { return s.inFlight() == 0 })
}

func TestHTTP2Clients(t *testing.T) { onBothPlanes(t, http2Clients) }

func http2Clients(t *testing.T) {
	s := start(t)
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	s.client = &http.Client{Transport: transport}
	response, err := s.open(t.Context(), completion("a01", 20, true))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if a := (answer{body: string(body)}); err != nil || response.ProtoMajor != 2 || !a.done() {
		t.Errorf("HTTP/%d, %v: %s", response.ProtoMajor, err, body)
	}
	s.client = &http.Client{Timeout: 10 * time.Second} // client for metrics pages
}
