package outcome_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/engine"
)

// read returns the outcome of a body that arrives in two chunks, which are cut at an index.
func read(contentType, body string, cut int) outcome.Outcome {
	var a outcome.Answer
	a.Headers(200, contentType, "", "")
	a.Body([]byte(body[:cut]), time.Unix(1, 0))
	a.Body([]byte(body[cut:]), time.Unix(2, 0))
	var o outcome.Outcome
	a.Fill(&o, time.Unix(0, 0))
	return o
}

// plain is the oracle for a JSON answer: it decodes the complete answer with encoding/json.
func plain(t *testing.T, body string) outcome.Outcome {
	t.Helper()
	type usage struct {
		Prompt     *float64 `json:"prompt_tokens"`
		Completion *float64 `json:"completion_tokens"`
		Input      *float64 `json:"input_tokens"`
		Output     *float64 `json:"output_tokens"`
	}
	var all struct {
		ID    string `json:"id"`
		Usage *usage `json:"usage"`
	}
	if err := json.Unmarshal([]byte(body), &all); err != nil {
		t.Fatal(err)
	}
	o := outcome.Outcome{ResponseID: all.ID}
	if all.Usage != nil {
		for _, c := range []struct {
			from *float64
			to   *engine.Value
		}{
			{all.Usage.Input, &o.Prompt},
			{all.Usage.Prompt, &o.Prompt},
			{all.Usage.Output, &o.Completion},
			{all.Usage.Completion, &o.Completion},
		} {
			if c.from != nil {
				*c.to = engine.Known(*c.from)
			}
		}
	}
	return o
}

var answers = []string{
	`{"id":"cmpl-1","choices":[{"text":"\"usage\":{\"prompt_tokens\":9}"}],"usage":{"prompt_tokens":3,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":1}}}`,
	`{"usage" : { "input_tokens" : 3 , "output_tokens" : 8 } , "id" : "resp_1", "output":[{"id":"msg_1","usage":{"prompt_tokens":1}}]}`,
	`{"choices":[{"usage":{"prompt_tokens":1}}],"id":"x"}`,
	`{"usage":null}`,
	`{"x":{"usage":{"prompt_tokens":9},"y":{"usage":{"prompt_tokens":9}},"id":"no"},"usage":{"prompt_tokens":4}}`,
	`{"a":"\\","usage":{"prompt_tokens":0},"b":"}]"}`,
	`{}`,
}

func TestResponseInChunks(t *testing.T) {
	for _, body := range answers {
		want := plain(t, body)
		for cut := range len(body) + 1 {
			got := read("application/json", body, cut)
			if got.Prompt != want.Prompt || got.Completion != want.Completion || got.ResponseID != want.ResponseID {
				t.Fatalf("%s cut at %d: %v, %v, %q, want %v, %v, %q", body, cut, got.Prompt, got.Completion, got.ResponseID, want.Prompt,
					want.Completion, want.ResponseID)
			}
		}
	}
}

func TestStreamInChunks(t *testing.T) {
	for _, end := range []string{"\n", "\r\n", "\r"} {
		body := strings.ReplaceAll(": ping\n\nevent: x\ndata: {\"choices\":[]}\n\ndata:{\"usage\":{\"prompt_tokens\":3,\ndata: {\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":2}}\n\ndata: [DONE]\n\n",
			"\n", end)
		for cut := range len(body) + 1 {
			got := read("text/event-stream", body, cut)
			if got.Prompt != engine.Known(7) || got.Completion != engine.Known(2) {
				t.Fatalf("cut at %d: %v, %v", cut, got.Prompt, got.Completion)
			}
			// Neither the comment nor the event without choices is output. Data in an unknown
			// format is output as soon as its line ends.
			want := time.Second
			if first := `{"usage":{"prompt_tokens":3,`; cut <= strings.Index(body, first)+len(first) {
				want = 2 * time.Second
			}
			if got.FirstBody != want {
				t.Fatalf("cut at %d, the first token is after %v", cut, got.FirstBody)
			}
		}
	}
}

// However arbitrary bytes are cut into chunks, the scanner returns the same result. For valid JSON
// the result equals that of a JSON decoder.
func FuzzAnswer(f *testing.F) {
	for _, body := range answers {
		f.Add(body, uint(7))
	}
	f.Fuzz(func(t *testing.T, body string, at uint) {
		whole := read("application/json", body, 0)
		got := read("application/json", body, int(at%uint(len(body)+1)))
		if got.Prompt != whole.Prompt || got.Completion != whole.Completion || got.ResponseID != whole.ResponseID {
			t.Fatalf("cut: %v, %v, %q, whole: %v, %v, %q", got.Prompt, got.Completion, got.ResponseID, whole.Prompt, whole.Completion,
				whole.ResponseID)
		}
		read("text/event-stream", body, int(at%uint(len(body)+1)))
	})
}

func TestResponseReportsAMissingModel(t *testing.T) {
	const unknown = `{"error":{"message":"The model x does not exist.","type":"NotFoundError","param":"model","code":404}}`
	for _, c := range []struct {
		status int
		want   []string
	}{{404, []string{"a"}}, {200, nil}, {503, nil}} {
		var answer outcome.Answer
		answer.Headers(c.status, "application/json", "", "1")
		answer.Body([]byte(unknown[:20]), time.Unix(1, 0))
		answer.Body([]byte(unknown[20:]), time.Unix(1, 0))
		o := outcome.Outcome{Endpoint: "a"}
		answer.Fill(&o, time.Unix(0, 0))
		if !slices.Equal(o.Missing, c.want) || o.Elsewhere != nil {
			t.Errorf("%d: missing %v, elsewhere %v", c.status, o.Missing, o.Elsewhere)
		}
	}
}
