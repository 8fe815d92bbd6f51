package stream_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// withLimits returns a server whose route for "llama" has these limits, with the tenant in
// x-tenant-id, and the Book of the server.
func withLimits(t *testing.T, route, tenant *v1alpha1.Limit) (*stream.Server, *limits.Book, *fleet.Fleet) {
	t.Helper()
	f := newFleetWith(fleet.Config{}, func(s *objects.Set) {
		for i := range s.Routes {
			if s.Routes[i].Name == "for-llama" {
				s.Routes[i].Spec.TenantHeader = "x-tenant-id"
				if tenant != nil { // no fallback serves a request beyond a limit
					s.Routes[i].Spec.Fallback = &v1alpha1.Fallback{Pool: "sticky"}
				}
				s.Routes[i].Spec.Limits = &v1alpha1.RouteLimits{Route: route, Tenant: tenant}
			}
		}
	})
	book := limits.New()
	s, _ := newServer(t, f, func(c *stream.Config) { c.Limits = book })
	return s, book, f
}

// llama sends a request for "llama" through Headgate's own Envoy.
func llama(t *testing.T, s *stream.Server, headers, body string) (stream.Exchange, *extprocv3.ProcessingResponse) {
	t.Helper()
	x := s.ExchangeAt("", objects.Name{}, nil)
	if headers == "" {
		headers = ":path=/v1/chat/completions x-tenant-id=a"
	}
	if body == "" {
		body = `{"model":"llama","messages":[{"role":"user","content":"hello"}]}`
	}
	return x, decide(t, x, "headers :method=POST "+headers, "body "+body)
}

func forwarded(m *extprocv3.ProcessingResponse) bool { return m.GetRequestBody() != nil }

// Beyond the limit of requests the answer is 429, in the shape of the API. It and the answers of
// engines show the limits. Other tenants and other routes are not limited by it.
func TestRequestsPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, book, f := withLimits(t, nil, &v1alpha1.Limit{RequestsPerMinute: new(int32(2))})
		s.Meter.SetWorld(f.View().World)
		x, m := llama(t, s, "", "")
		if got := render(t, m); !forwarded(m) || !strings.Contains(got, `"gateway.ratelimit":{"x-ratelimit-limit-requests":"2",`+
			`"x-ratelimit-remaining-requests":"1","x-ratelimit-reset-requests":"30s"}`) {
			t.Errorf("the first request: %s", got)
		}
		second, _ := llama(t, s, "", "")
		refused, m := llama(t, s, "", "")
		want := "reply: 429 details=headgate_rate_limit_exceeded content-type=application/json retry-after=30 " +
			"x-ratelimit-limit-requests=2 x-ratelimit-remaining-requests=0 x-ratelimit-reset-requests=1m0s\n" +
			`{"error":{"message":"The limit of requests per minute is reached. Try again in 30 s.","type":"requests","param":null,` +
			`"code":"rate_limit_exceeded"}}` + "\n"
		if got := render(t, m); got != want {
			t.Errorf("the third request:\n%swant\n%s", got, want)
		}
		counted := []string{`headgate_band_refused_total{band="0",pool="ns/base",reason="limit"} 1`}
		if got := series(s.Meter, "headgate_band_refused_total"); !slices.Equal(got, counted) {
			t.Errorf("refused requests: %q, want %q", got, counted)
		}
		_, m = llama(t, s, ":path=/v1/messages x-tenant-id=a", "")
		if got := render(t, m); !strings.Contains(got, "reply: 429") || !strings.Contains(got, `"type":"rate_limit_error"`) {
			t.Errorf("Anthropic's API: %s", got)
		}
		if _, m := llama(t, s, ":path=/v1/chat/completions x-tenant-id=b", ""); !forwarded(m) {
			t.Errorf("another tenant: %v", m)
		}
		if _, m := llama(t, s, "", `{"model":"gpt-4","messages":[]}`); !forwarded(m) || strings.Contains(render(t, m), "ratelimit") {
			t.Errorf("another route: %s", render(t, m))
		}
		time.Sleep(30 * time.Second)
		if _, m := llama(t, s, "", ""); !forwarded(m) {
			t.Errorf("after Retry-After: %s", render(t, m))
		}
		for _, x := range []stream.Exchange{x, second, refused} {
			x.End(time.Now())
		}
		if is := book.Sweep(); is.InFlight != 2 {
			t.Errorf("%+v are left, want the two requests that run", is)
		}
	})
}

// Requests that run no inference count against no limit: whether a model is ready and what it is,
// by REST and by gRPC. Those that count tokens are requests without tokens.
func TestLimitsCountInference(t *testing.T) {
	const call = "headers :method=POST content-type=application/grpc mode=NONE shown=NONE :path=/inference.GRPCInferenceService/"
	const named = `body "\x00\x00\x00\x00\x07\x0a\x05llama"`
	s, book, _ := withLimits(t, &v1alpha1.Limit{
		Concurrent: new(int32(1)), RequestsPerMinute: new(int32(2)), TokensPerMinute: new(int32(1000)),
	}, nil)
	ask := func(want string, lines ...string) {
		t.Helper()
		x := s.ExchangeAt("", objects.Name{}, nil)
		if got := render(t, decide(t, x, lines...)); !strings.Contains(got, want) || strings.Contains(got, "ratelimit") != (want == "429") {
			t.Errorf("%s: %s, want %s", lines[0], got, want)
		}
		x.End(time.Now())
	}
	metadata := func() {
		t.Helper()
		for range 3 {
			ask(`"ready":true`, "headers :method=GET end mode=NONE shown=NONE :path=/v2/models/llama/ready")
			ask("go on", "headers :method=GET end mode=NONE shown=NONE :path=/v2/models/llama")
			ask("go on chunk", call+"ModelMetadata", named)
			ask("grpc-status=0", call+"ModelReady", named)
		}
	}
	metadata()
	x, m := llama(t, s, ":path=/tokenize", `{"model":"llama","prompt":"`+strings.Repeat("word ", 5000)+`"}`)
	if got := render(t, m); !strings.Contains(got, `"x-ratelimit-remaining-requests":"1"`) ||
		!strings.Contains(got, `"x-ratelimit-remaining-tokens":"1000"`) {
		t.Errorf("a request that counts tokens: %s", got)
	}
	metadata() // while a request runs
	x.End(time.Now())
	if x, m = llama(t, s, "", `{"model":"llama","max_tokens":1,"prompt":"x"}`); !forwarded(m) {
		t.Errorf("inference: %s", render(t, m))
	}
	x.End(time.Now())
	ask("429", "headers :method=POST :path=/v1/completions", `body {"model":"llama","max_tokens":1,"prompt":"x"}`)
	metadata()
	if is := book.Sweep(); is.InFlight != 0 {
		t.Errorf("left: %+v", is)
	}
}

// A gRPC call beyond a limit ends with RESOURCE_EXHAUSTED.
func TestLimitedCall(t *testing.T) {
	s, _, _ := withLimits(t, &v1alpha1.Limit{RequestsPerMinute: new(int32(1))}, nil)
	for _, want := range []string{"go on", "ResourceExhausted"} {
		x := s.ExchangeAt("", objects.Name{}, nil)
		m := decide(t, x, "headers :method=POST content-type=application/grpc mode=NONE shown=NONE mm-model-id=llama "+
			":path=/my.Service/Run")
		if got := render(t, m); !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// Each way in which a request can end makes room for one other: its end, the end of its lease, the
// client's leaving before the decision was sent, and a refusal for another reason.
func TestConcurrentRequestsEnd(t *testing.T) {
	s, book, f := withLimits(t, &v1alpha1.Limit{Concurrent: new(int32(1)), RequestsPerMinute: new(int32(1000))}, nil)
	for name, end := range map[string]func(x stream.Exchange){
		"stream":  func(x stream.Exchange) { x.End(time.Now()) },
		"outcome": func(x stream.Exchange) { x.ReleaseLease() },
		"both":    func(x stream.Exchange) { x.ReleaseLease(); x.End(time.Now()); x.End(time.Now()) },
	} {
		x := s.ExchangeAt("", objects.Name{}, nil)
		lines := []string{"headers :method=POST :path=/v1/chat/completions", `body {"model":"llama","messages":[]}`}
		if name != "stream" { // the ext_proc stream ends before the response
			lines = []string{"headers @model=llama :method=POST :path=/v1/chat/completions mode=NONE shown=NONE"}
		}
		m := decide(t, x, lines...)
		if m.GetImmediateResponse() != nil {
			t.Fatalf("%s: %s", name, render(t, m))
		}
		if _, m := llama(t, s, "", ""); !strings.Contains(render(t, m), "retry-after=1 ") {
			t.Errorf("%s: a second request: %s", name, render(t, m))
		}
		if end(x); book.Sweep().InFlight != 0 {
			t.Errorf("%s: %+v", name, book.Sweep())
		}
		x.End(time.Now())
	}
	f.SetWorld(withoutEndpoint(f.View().World, *f.View().World.Pools[objects.Name{Namespace: "ns", Name: "base"}]))
	x, m := llama(t, s, "", "")
	if got := render(t, m); !strings.Contains(got, "reply: 503") || !strings.Contains(got, "x-ratelimit-limit-requests=1000") {
		t.Errorf("without an endpoint: %s", got)
	}
	if book.Sweep().InFlight != 0 {
		t.Errorf("after a refusal: %+v", book.Sweep())
	}
	x.End(time.Now())
}

// Tokens are reserved by estimate: of a prompt of 4,000 bytes and max_tokens 10 about 1,000. The
// outcome replaces them; without usage, the estimate stays.
func TestTokensPerMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, book, _ := withLimits(t, nil, &v1alpha1.Limit{TokensPerMinute: new(int32(3000))})
		body := `{"model":"llama","max_tokens":10,"messages":[{"role":"user","content":"` + strings.Repeat("word", 1000) + `"}]}`
		left := func(m *extprocv3.ProcessingResponse) string {
			return m.GetDynamicMetadata().GetFields()["gateway.ratelimit"].GetStructValue().GetFields()["x-ratelimit-remaining-tokens"].
				GetStringValue()
		}
		x, m := llama(t, s, "", body)
		if n := left(m); n < "1900" || n > "2100" {
			t.Errorf("%s tokens are left, want about 2000", n)
		}
		o := outcome.Outcome{ID: idOf(m), Status: 200, Endpoint: address, Prompt: engine.Known(500), Completion: engine.Known(9)}
		book.Observe(o)
		x.End(time.Now())
		x, m = llama(t, s, "", body)
		if n := left(m); n < "1390" || n > "1590" {
			t.Errorf("%s tokens are left after the outcome, want about 1490", n)
		}
		x.End(time.Now())
		book.Observe(outcome.Outcome{ID: idOf(m), Status: 200, Endpoint: address, Stream: true})
		x, m = llama(t, s, "", body)
		if n := left(m); n < "380" || n > "590" {
			t.Errorf("%s tokens are left after a stream without usage, want about 490", n)
		}
		_, refused := llama(t, s, "", body)
		if got := render(t, refused); !strings.Contains(got, `"type":"tokens"`) || !strings.Contains(got, "retry-after=1") {
			t.Errorf("too many tokens: %s", got)
		}
		large := strings.ReplaceAll(body, "word", "a large word")
		_, refused = llama(t, s, ":path=/v1/chat/completions x-tenant-id=b", strings.ReplaceAll(large, "word", "word word"))
		if got := render(t, refused); !strings.Contains(got, "too large") || strings.Contains(got, "retry-after") {
			t.Errorf("a request that never fits: %s", got)
		}
		x.End(time.Now())
		time.Sleep(10 * time.Minute)
		if is := book.Sweep(); is != (limits.State{Routes: 1}) {
			t.Errorf("left: %+v", is)
		}
	})
}

// The estimate stays if a stream of messages is cut before the event with the tokens of the answer.
func TestCutStreamOfMessages(t *testing.T) {
	s, book, _ := withLimits(t, &v1alpha1.Limit{TokensPerMinute: new(int32(3000))}, nil)
	x := s.Exchange(stream.Gateway, "base-picker", 9002)
	decide(t, x, "headers :method=POST :path=/v1/messages mode=BUFFERED shown=STREAMED",
		`body {"model":"llama","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"`+strings.Repeat("word", 1000)+`"}]}`)
	decide(t, x, "response :status=200 content-type=text/event-stream",
		`answer data: {"type":"message_start","message":{"usage":{"input_tokens":900,"output_tokens":1}}}`+"\n\n")
	x.End(time.Now())
	_, a := book.Admit(objects.Name{Namespace: "ns", Name: "for-llama"}, &objects.Sharing{PerRoute: objects.Limit{TokensPerMinute: 3000}}, 0, 0)
	if a.Tokens.Left < 1800 || a.Tokens.Left > 1950 {
		t.Errorf("%d tokens are left, want about 1900", a.Tokens.Left)
	}
}

// An engine cannot report more tokens than the request can have: of a prompt of 4,000 bytes and
// max_tokens 10 about 8,100, with what a chat template may add.
func TestImpossibleUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, book, _ := withLimits(t, nil, &v1alpha1.Limit{TokensPerMinute: new(int32(3000))})
		body := `{"model":"llama","max_tokens":10,"messages":[{"role":"user","content":"` + strings.Repeat("word", 1000) + `"}]}`
		x, m := llama(t, s, "", body)
		book.Observe(outcome.Outcome{
			ID: idOf(m), Status: 200, Endpoint: address, Prompt: engine.Known(1e8), Completion: engine.Known(1e8),
		})
		x.End(time.Now())
		time.Sleep(130 * time.Second) // the debt of 5,100 tokens, and 1,100 for the next request
		if _, m = llama(t, s, "", body); !forwarded(m) {
			t.Errorf("after the debt is paid: %s", render(t, m))
		}
	})
}

// Another gateway gets the headers with the response, and the tokens of the response count.
func TestLimitsAtAnotherGateway(t *testing.T) {
	s, book, _ := withLimits(t, &v1alpha1.Limit{TokensPerMinute: new(int32(3000)), Concurrent: new(int32(1))}, nil)
	x := s.Exchange(stream.Gateway, "base-picker", 9002)
	decide(t, x, "headers :method=POST :path=/v1/chat/completions mode=BUFFERED shown=BUFFERED",
		`body {"model":"llama","max_tokens":10,"messages":[]}`)
	m := decide(t, x, "response :status=200 content-type=application/json")
	if got := render(t, m); !strings.Contains(got, "x-ratelimit-limit-tokens=3000") {
		t.Errorf("the response: %s", got)
	}
	decide(t, x, `answer {"usage":{"prompt_tokens":1000,"completion_tokens":500}}`)
	x.End(time.Now())
	q, a := book.Admit(objects.Name{Namespace: "ns", Name: "for-llama"},
		&objects.Sharing{PerRoute: objects.Limit{TokensPerMinute: 3000, Concurrent: 1}}, 0, 0)
	if q == nil || a.Tokens.Left < 1490 || a.Tokens.Left > 1510 {
		t.Errorf("%d tokens are left, want 1500", a.Tokens.Left)
	}
}
