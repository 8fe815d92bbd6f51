package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/headgate/headgate/headgate/rig"
)

// Envoy parses the events of a stream only if the client asked for token usage, or if the API
// always states it. Of other streams, it reads the end: an error of the engine, and usage that it
// states unasked.
func TestStreamsThatStateNoUsageAreNotParsed(t *testing.T) { onBothPlanes(t, streamsThatStateNoUsage) }

func streamsThatStateNoUsage(t *testing.T) {
	const (
		chat      = "/v1/chat/completions"
		asks      = `,"stream_options":{"include_usage":true}`
		usage     = `{"choices":[],"usage":{"prompt_tokens":5,"prompt_tokens_details":{"prompt_tokens":1},"completion_tokens":7}}`
		text      = `{"choices":[{"index":0,"delta":{"content":"\"usage\":{\"prompt_tokens\":1} data: {\"error\":1}"},"finish_reason":null}],"usage":null}`
		completed = `{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":4},"error":null}}`
		failure   = `{"error":{"message":"} \" {","type":"InternalServerError","param":null,"code":500}}`
	)
	many := strings.Repeat(event(text), 50)
	cases := map[string]struct {
		scripted
		path, options      string
		parsed             bool
		prompt, completion float64
		failure            string
	}{
		"asked":     {scripted{stream, []string{many, event(usage), event("[DONE]")}}, chat, asks, true, 5, 7, ""},
		"options":   {scripted{stream, []string{many, event("[DONE]")}}, chat, `,"stream_options":{}`, true, 0, 0, ""},
		"responses": {scripted{stream, []string{event(completed)}}, "/v1/responses", "", true, 3, 4, ""},
		"plain":     {scripted{stream, []string{many, event("[DONE]")}}, chat, "", false, 0, 0, ""},
		"empty":     {scripted{stream, []string{many, event("[DONE]")}}, "/v1/completions", `,"stream_options":null`, false, 0, 0, ""},
		"unasked":   {scripted{stream, []string{many, "5ms", event(usage), "5ms", event("[DONE]")}}, chat, "", false, 5, 7, ""},
		"crlf": {
			scripted{stream, []string{strings.ReplaceAll(many+event(usage)+event("[DONE]"), "\n", "\r\n")}},
			chat, "", false, 5, 7,
			"",
		},
		"cut":     {scripted{stream, []string{many, "data: " + usage[:30], "5ms", usage[30:] + "\n\n"}}, chat, "", false, 5, 7, ""},
		"failed":  {scripted{stream, []string{many, "5ms", event(failure), "5ms", event("[DONE]")}}, chat, "", false, 0, 0, "stream_error"},
		"rewords": {scripted{stream, []string{many, event(`{"error":"x"}`)}}, chat, "", false, 0, 0, "stream_error"},
		"blames":  {scripted{stream, []string{event(`{"error":{"message":"x","type":"BadRequestError","code":400}}`)}}, chat, "", false, 0, 0, ""},
	}
	answers := make(map[string]scripted)
	var names []string
	for name, c := range cases {
		answers[name], names = c.scripted, append(names, name)
	}
	s := start(t, scriptedPool(t, 1, names...), func(c *rig.Config) {
		startScripted(t, strings.TrimSuffix(c.Listen, "1:8080")+"11:8000", answers)
	})
	// The filter counts events without JSON, such as [DONE], and those without a field data.
	parsed := func() float64 {
		return s.envoyGauge(`sse_to_metadata.resp.json.metadata_added`) +
			s.envoyGauge(`sse_to_metadata.resp.json.parse_error`)
	}
	for _, name := range names {
		c, before := cases[name], parsed()
		a := s.must(request{path: c.path, body: fmt.Sprintf(`{"model":%q,"stream":true%s}`, name, c.options)})
		if a.status != http.StatusOK || !a.stream {
			t.Fatalf("%s: %d %s", name, a.status, a.body)
		}
		for header := range a.header {
			if strings.HasPrefix(strings.ToLower(header), "x-gateway-") {
				t.Errorf("%s: the client gets the header %s", name, header)
			}
		}
		s.await(name+" is counted", func() bool { return s.sum(s.Metrics, "headgate_requests_total", "route", "default/"+name) == 1 })
		if got := parsed() > before; got != c.parsed {
			t.Errorf("%s: parsed is %v, want %v", name, got, c.parsed)
		}
		s.counted(name, c.prompt, c.completion, c.failure)
	}
}

// counted checks the tokens of a route's requests, and its only failure, which is empty for none.
func (s *stack) counted(route string, prompt, completion float64, failure string) {
	s.t.Helper()
	gotPrompt := s.sum(s.Metrics, "headgate_tokens_total", "route", "default/"+route, "kind", "prompt")
	gotCompletion := s.sum(s.Metrics, "headgate_tokens_total", "route", "default/"+route, "kind", "completion")
	if gotPrompt != prompt || gotCompletion != completion {
		s.t.Errorf("%s: %v and %v tokens, want %v and %v", route, gotPrompt, gotCompletion, prompt, completion)
	}
	all := s.sum(s.Metrics, "headgate_failures_total", "route", "default/"+route)
	counted := s.sum(s.Metrics, "headgate_failures_total", "route", "default/"+route, "kind", failure)
	if want := map[bool]float64{true: 1}[failure != ""]; all != want || counted != want {
		s.t.Errorf("%s: %v failures, %v of them %q", route, all, counted, failure)
	}
}
