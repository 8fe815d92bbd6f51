package llm

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tidwall/gjson"
)

// line is one line of a stream, and the time in seconds at which it arrived.
type line struct {
	at   float64
	text string
}

// lines reads a stream to its end and returns the lines that are not empty.
func (w *world) lines(resp *http.Response) (all []line) {
	w.Helper()
	defer w.close(resp)
	scanner := bufio.NewScanner(resp.Body)
	for scanner.Scan() {
		if scanner.Text() != "" {
			all = append(all, line{w.elapsed(), scanner.Text()})
		}
	}
	if err := scanner.Err(); err != nil {
		w.Errorf("the stream ended with %v", err)
	}
	return all
}

// wantTimes checks at which times lines arrived.
func (w *world) wantTimes(lines []line, want ...float64) {
	w.Helper()
	if len(lines) != len(want) {
		w.Fatalf("%d lines, want %d: %v", len(lines), len(want), lines)
	}
	for i, l := range lines {
		if l.at < want[i]-1e-6 || l.at > want[i]+1e-6 {
			w.Errorf("line %d came at %.6f s, want %.6f s: %s", i, l.at, want[i], l.text)
		}
	}
}

const stream4 = `{"prompt":"abcdefgh","max_tokens":4,"stream":true}` // two prompt tokens and four output tokens

func TestTokensArriveAtTheProfilesRate(t *testing.T) {
	inWorld(t, Config{Profile: slow()}, func(w *world) {
		resp := w.open(context.Background(), "/v1/completions", stream4)
		w.at(0, "headers")
		// The first token takes 0.1 s plus 0.001 s for each of two prompt tokens, each other token
		// 0.05 s. [DONE] arrives with the last token.
		w.wantTimes(w.lines(resp), 0.102, 0.152, 0.202, 0.252, 0.252)

		w.start = time.Now()
		a := w.post("/v1/completions", `{"prompt":"other","max_tokens":3}`)
		w.at(0.202, "the answer")
		if n := a.get("usage.total_tokens").Int(); n != 5 {
			t.Errorf("%d tokens in all, want 5", n)
		}
	})
}

func TestChatRoleComesWithTheFirstToken(t *testing.T) {
	inWorld(t, Config{Profile: slow()}, func(w *world) {
		resp := w.open(context.Background(), "/v1/chat/completions",
			`{"messages":[{"role":"user","content":"abcd"}],"max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`)
		w.at(0, "headers")
		lines := w.lines(resp)
		w.wantTimes(lines, 0.103, 0.103, 0.153, 0.153, 0.153)
		data := func(i int) gjson.Result { return gjson.Parse(strings.TrimPrefix(lines[i].text, "data: ")) }
		if data(0).Get("choices.0.delta.role").Str != "assistant" || data(0).Get("choices.0.delta.content").Str != "" {
			t.Errorf("the first chunk is %s", data(0))
		}
		if data(2).Get("choices.0.finish_reason").Str != "length" {
			t.Errorf("the last chunk with content is %s", data(2))
		}
		if u := data(3); u.Get("choices.#").Int() != 0 || u.Get("usage.prompt_tokens").Int() != 3 ||
			u.Get("usage.completion_tokens").Int() != 2 {
			t.Errorf("the chunk with the usage is %s", u)
		}
	})
}

func TestUsageIsReportedOnRequest(t *testing.T) {
	inWorld(t, Config{Profile: slow()}, func(w *world) {
		for options, want := range map[string]int{
			``: 0,
			`,"stream_options":{"include_usage":false,"continuous_usage_stats":true}`: 0,
			`,"stream_options":{"include_usage":true}`:                                1,
			`,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`:  1 + 1 + 3,
		} {
			a := w.post("/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":3,"stream":true`+options+`}`)
			if got := strings.Count(a.body, `"usage":`); got != want {
				t.Errorf("with %q usage is stated %d times, want %d", options, got, want)
			}
		}
	})
}

func TestRequestBehindAFullBatchHasItsHeadersAtOnce(t *testing.T) {
	p := slow()
	p.Limits.MaxSequences = 1
	inWorld(t, Config{Profile: p}, func(w *world) {
		first := w.open(context.Background(), "/v1/completions", stream4)
		second := w.open(context.Background(), "/v1/completions", strings.Replace(stream4, "abcdefgh", "hgfedcba", 1))
		w.at(0, "the headers of both")
		w.wantMetrics(`vllm:num_requests_running{`, "1.0", `vllm:num_requests_waiting{`, "1.0",
			`vllm:num_requests_waiting_by_reason{engine="0",model_name="base",reason="capacity"}`, "1.0")
		w.wantTimes(w.lines(first), 0.102, 0.152, 0.202, 0.252, 0.252)
		w.wantTimes(w.lines(second), 0.354, 0.404, 0.454, 0.504, 0.504)
	})
}

func TestKeepAliveCommentsComeBeforeTheRequestIsScheduled(t *testing.T) {
	p := slow()
	p.Limits.MaxSequences = 1
	inWorld(t, Config{Profile: p, KeepAlive: 100 * time.Millisecond}, func(w *world) {
		first := w.open(context.Background(), "/v1/completions", stream4)
		second := w.open(context.Background(), "/v1/completions", strings.Replace(stream4, "abcdefgh", "hgfedcba", 1))
		// A goroutine must read the first stream. Connections have no buffers here, so a stream
		// without a reader would block the engine.
		read := make(chan struct{})
		go func() { w.lines(first); close(read) }()
		lines := w.lines(second)
		<-read
		w.wantTimes(lines, 0.1, 0.2, 0.3, 0.354, 0.404, 0.454, 0.504, 0.504)
		for i, l := range lines {
			if comment := l.text == ": keep-alive"; comment != (i < 3) {
				t.Errorf("line %d is %s", i, l.text)
			}
		}
	})
}

func TestClientThatLeavesEndsItsRequestWithinAStep(t *testing.T) {
	for _, body := range []string{
		`{"prompt":"abcd","max_tokens":2000,"stream":true}`,
		`{"prompt":"abcd","max_tokens":2000}`,
	} {
		p := slow()
		p.Limits.MaxSequences = 1
		inWorld(t, Config{Profile: p}, func(w *world) {
			ctx, leave := context.WithCancel(context.Background())
			for range 2 { // one request runs, the other waits
				go func() {
					if resp, err := w.send(ctx, "POST /v1/completions", body); err == nil {
						_, _ = bufio.NewReader(resp.Body).ReadString(0)
						w.close(resp)
					}
				}()
			}
			time.Sleep(500 * time.Millisecond) // on the clock of synctest
			w.wantMetrics(`vllm:num_requests_running{`, "1.0", `vllm:num_requests_waiting{`, "1.0")
			leave()
			synctest.Wait()
			w.wantMetrics(`vllm:num_requests_running{`, "0.0", `vllm:num_requests_waiting{`, "0.0",
				`vllm:kv_cache_usage_perc{`, "0.0",
				`vllm:request_success_total{engine="0",model_name="base",finished_reason="abort"}`, "0.0",
				`vllm:request_success_total{engine="0",model_name="base",finished_reason="length"}`, "0.0")
			w.start = time.Now()
			w.post("/v1/completions", `{"prompt":"wxyz","max_tokens":1}`)
			if w.elapsed() > 0.05+0.101 {
				t.Errorf("the next request took %.3f s: more than the step that ran and its own", w.elapsed())
			}
		})
	}
}

func TestOtherDialectsStreamInTheirOwnForm(t *testing.T) {
	inWorld(t, Config{Profile: slow(), Adapters: []Adapter{{"a", "sim:"}}}, func(w *world) {
		for path, c := range map[string]struct {
			body string
			want []string
		}{
			"/v1/messages": {
				`{"model":"a","system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"max_tokens":2,"stream":true}`,
				[]string{
					"message_start", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop",
					"message_delta", "message_stop",
				},
			},
			"/v1/responses": {
				`{"model":"a","instructions":"be brief","input":[{"role":"user","content":"hi"}],"max_output_tokens":2,"stream":true}`,
				[]string{
					"response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
					"response.output_text.delta",
					"response.output_text.delta", "response.output_text.done", "response.content_part.done", "response.output_item.done",
					"response.incomplete",
				},
			},
		} {
			var got []string
			for _, l := range w.lines(w.open(context.Background(), path, c.body)) {
				if event, ok := strings.CutPrefix(l.text, "event: "); ok {
					got = append(got, event)
				} else if data, _ := strings.CutPrefix(l.text, "data: "); data != "[DONE]" &&
					gjson.Get(data, "type").Str != got[len(got)-1] {
					t.Errorf("%s: the event %s has the data %s", path, got[len(got)-1], data)
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("%s: the events are\n%v, want\n%v", path, got, c.want)
			}
		}
	})
}
