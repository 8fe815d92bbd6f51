package llm

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"math"
	"mime/multipart"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/profile"
)

func TestEmbeddedProfileHasTheFiguresOfInternalProfile(t *testing.T) {
	text, err := os.ReadFile("../../../internal/profile/testdata/llama-2-70b-a100x4.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, err := profile.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, DefaultProfile()); diff != "" {
		t.Error(diff)
	}
}

func TestFullQueueIsRefusedInTheRecordedWords(t *testing.T) {
	var want string
	for _, r := range readRecording(t, "flags") {
		if strings.HasPrefix(r.name, "21st request, --max") {
			want = r.answer
		}
	}
	inWorld(t, Config{Profile: slow(), MaxQueued: 3}, func(w *world) {
		ctx, leave := context.WithCancel(context.Background())
		w.queueRequests(ctx, 3)
		for _, body := range []string{ask4("", 1), stream4} {
			if a := w.post("/v1/completions", body); a.status != http.StatusServiceUnavailable || a.body != want ||
				a.header.Get("Retry-After") != "" {
				t.Errorf("%d %s", a.status, a.body)
			}
		}
		w.wantMetrics(`vllm:admission_rejections_total{model_name="base",reason="max_num_queued_reqs"}`, "2.0")
		leave()
		synctest.Wait()
		if a := w.post("/v1/completions", ask4("", 1)); a.status != http.StatusOK {
			t.Errorf("with room again: %d", a.status)
		}
	})
}

func TestKeyIsAskedForUnderV1Only(t *testing.T) {
	inWorld(t, Config{Profile: slow(), APIKey: "sek"}, func(w *world) {
		for _, path := range []string{"/v1/models", "/v1/chat/completions", "/v1/nothing"} {
			if a := w.do("GET "+path, ""); a.status != http.StatusUnauthorized || a.body != `{"error":"Unauthorized"}` {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
		if a := w.do("GET /v1/models", "", "Authorization", "Bearer sek"); a.status != http.StatusOK {
			t.Errorf("with the key: %d", a.status)
		}
		// A gateway must block all of these paths except /tokenize, which it routes by model.
		for path, body := range map[string]string{
			"/invocations": ask4("", 1), "/adapters": `{"name":"x","src":"sim:"}`, "/tokenize": `{"prompt":"x"}`,
		} {
			if a := w.post(path, body); a.status != http.StatusOK {
				t.Errorf("%s without a key: %d", path, a.status)
			}
		}
	})
}

func TestConversationFindsItsPastInThePrefixCache(t *testing.T) {
	p := slow()
	inWorld(t, Config{Profile: p}, func(w *world) {
		question := strings.Repeat("what is the weather like today? ", 4)
		messages := fmt.Sprintf(`{"role":"user","content":%q}`, question)
		first := w.post("/v1/chat/completions", `{"messages":[`+messages+`],"max_tokens":50}`)
		said := first.get("choices.0.message.content").Str
		total := int(first.get("usage.total_tokens").Int())

		messages += fmt.Sprintf(`,{"role":"assistant","content":%q},{"role":"user","content":"and tomorrow?"}`, said)
		w.post("/v1/chat/completions", `{"messages":[`+messages+`],"max_tokens":5}`)
		// The engine never computes the KV of the last token of an answer. All other full blocks
		// are cache hits.
		hits := (total - 1) / p.Limits.BlockSize * p.Limits.BlockSize
		w.wantMetrics("vllm:prefix_cache_hits_total{", number(float64(hits)), "vllm:prompt_tokens_cached_total{", number(float64(hits)))
		if hits < 80 {
			t.Errorf("only %d tokens: the test shows little", hits)
		}
	})
}

// The frontend overhead of a request comes before the engine's queue. The client waits for it, but
// no metric of the engine includes it. A request that is cancelled during it leaves no trace.
func TestIntakeIsBeforeTheQueue(t *testing.T) {
	took := func(frontendOverhead float64) (whole, news float64) {
		p := slow()
		p.FrontendOverhead = frontendOverhead
		inWorld(t, Config{Profile: p}, func(w *world) {
			began := time.Now()
			w.post("/v1/completions", `{"prompt":"x","max_tokens":5}`)
			whole = time.Since(began).Seconds()
			if _, err := fmt.Sscan(w.metric("vllm:time_to_first_token_seconds_sum{"), &news); err != nil {
				t.Fatal(err)
			}
			ctx, leave := context.WithTimeout(context.Background(), 10*time.Millisecond)
			defer leave()
			if answer, err := w.send(ctx, "POST /v1/completions", `{"prompt":"x","max_tokens":5}`); err == nil {
				w.close(answer)
				t.Error("who gives up is answered")
			}
			synctest.Wait()
			w.wantMetrics("vllm:num_requests_running{", "0.0", "vllm:num_requests_waiting{", "0.0")
		})
		return whole, news
	}
	at, first := took(0)
	late, second := took(0.25)
	if math.Abs(late-at-0.25) > 1e-6 || math.Abs(first-second) > 1e-6 {
		t.Errorf("an answer takes %g s and with the frontend overhead %g, of which the engine tells %g and %g", at, late, first, second)
	}
}

func TestSameSeedSaysTheSame(t *testing.T) {
	ask := func(seed uint64, model string) answer {
		var a answer
		inWorld(t, Config{Profile: slow(), Seed: seed, Adapters: []Adapter{{"x", "sim:"}}}, func(w *world) {
			a = w.post("/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":"hi"}]}`)
		})
		return a
	}
	base := ask(1, "")
	if again := ask(1, ""); again.body != base.body {
		t.Errorf("the same seed says\n%s and then\n%s", base.body, again.body)
	}
	said := base.get("choices.0.message.content").Str
	for name, other := range map[string]answer{"another seed": ask(2, ""), "an adapter": ask(1, "x")} {
		if other.get("choices.0.message.content").Str == said {
			t.Errorf("%s says the same", name)
		}
	}
	if got := base.get("choices.0.finish_reason").Str; got != "stop" {
		t.Errorf("without a limit the model ended because of %q", got)
	}
}

func TestAnswerEndsAtItsLimit(t *testing.T) {
	inWorld(t, Config{Profile: slow(), MaxModelLen: 40}, func(w *world) {
		for _, c := range []struct {
			path, body string
			tokens     int64
			reason     string
		}{
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":7}`, 7, "length"},
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_tokens":7,"max_completion_tokens":5}`, 5, "length"},
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"max_completion_tokens":5,"max_tokens":7}`, 5, "length"},
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"x"}],"ignore_eos":true}`, 37, "length"},
			{"/v1/chat/completions", `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 120) + `"}]}`, 8, "length"},
			{"/v1/completions", `{"prompt":"x"}`, 16, "length"},
			{"/v1/completions", `{"prompt":[120,121],"max_tokens":2}`, 2, "length"},
			{"/v1/completions", `{"prompt":["x"],"max_tokens":38}`, 38, "length"},
		} {
			a := w.post(c.path, c.body)
			if a.get("usage.completion_tokens").Int() != c.tokens || a.get("choices.0.finish_reason").Str != c.reason {
				t.Errorf("%s: %s", c.body, a.body)
			}
		}
		for _, body := range []string{
			`{"prompt":["x","y"]}`, `{"prompt":""}`, `{"prompt":{}}`, `{"prompt":[true]}`, `{"prompt":"x","n":2}`, `{"prompt":"x","n":0}`,
			`{"prompt":"x","max_tokens":40}`, `{"prompt":"x","max_tokens":1.5}`, `{"prompt":"x","stream":"yes"}`, `{"prompt":null}`,
		} {
			if a := w.post("/v1/completions", body); a.status != http.StatusBadRequest || a.get("error.code").Int() != 400 ||
				a.get("error.message").Str == "" {
				t.Errorf("%s: %d %s", body, a.status, a.body)
			}
		}
	})
}

func TestOtherTasksAreServed(t *testing.T) {
	inWorld(t, Config{Profile: slow(), Adapters: []Adapter{{"x", "sim:"}}}, func(w *world) {
		a := w.post("/v1/embeddings", `{"model":"x","input":["one","two"],"dimensions":4}`)
		length := 0.0
		for _, v := range a.get("data.0.embedding").Array() {
			length += v.Num * v.Num
		}
		if a.get("data.#").Int() != 2 || a.get("model").Str != "x" || math.Abs(length-1) > 1e-9 || a.get("usage.prompt_tokens").Int() != 2 {
			t.Errorf("embeddings: %s", a.body)
		}
		a = w.post("/v1/embeddings", `{"input":"one","encoding_format":"base64"}`)
		if raw, err := base64.StdEncoding.DecodeString(a.get("data.0.embedding").Str); err != nil || len(raw) != 4*dimensions {
			t.Errorf("embeddings in base64: %v, %s", err, a.body)
		}
		a = w.post("/rerank", `{"query":"q","documents":["a","b","c"]}`)
		if s := a.get("results.#.relevance_score").Array(); len(s) != 3 || s[0].Num < s[1].Num || s[1].Num < s[2].Num {
			t.Errorf("rerank: %s", a.body)
		}
		if a = w.post("/v1/score", `{"text_1":"q","text_2":["a","b"]}`); a.get("data.#.score").Get("#").Int() != 2 {
			t.Errorf("score: %s", a.body)
		}
		if a = w.post("/tokenize", `{"prompt":"hello world"}`); a.get("count").Int() != 4 {
			t.Errorf("tokenize: %s", a.body)
		}
		if a = w.post("/detokenize", `{"tokens":`+a.get("tokens").Raw+`}`); a.body != `{"prompt":"hello world"}` {
			t.Errorf("detokenize: %s", a.body)
		}
		if a = w.post("/detokenize",
			`{"model":"x","tokens":[65281,104,65283,4294967295,4294967296]}`); a.body != "{\"prompt\":\"h\ufffd\"}" {
			t.Errorf("detokenize marks and what is no token: %s", a.body)
		}
		for path, body := range map[string]string{
			"/v1/embeddings": `{"input":[]}`, "/pooling": `{"input":[]}`, "/classify": `{"input":[]}`, "/detokenize": `{"tokens":[-1]}`,
			"/rerank": `{"query":"q","documents":[]}`, "/score": `{"text_1":["a","b"],"text_2":["c"]}`,
		} {
			if a := w.post(path, body); a.status != http.StatusBadRequest {
				t.Errorf("%s %s: %d", path, body, a.status)
			}
		}
		w.wantMetrics("vllm:generation_tokens_total{", "0.0", "vllm:prompt_tokens_total{", "13.0")
		a = w.post("/pooling", `{"model":"x","input":["one","two"]}`)
		if a.get("data.#").Int() != 2 || a.get("data.1.index").Int() != 1 || a.get("data.0.data.#").Int() != dimensions ||
			a.get("data.0.object").Str != "pooling" || a.get("model").Str != "x" || a.get("usage.prompt_tokens").Int() != 2 {
			t.Errorf("pooling: %s", a.body)
		}
		if a = w.post("/pooling", `{"input":"one","dimensions":4}`); a.status != http.StatusBadRequest ||
			a.get("error.param").Str != "dimensions" {
			t.Errorf("pooling with dimensions: %d %s", a.status, a.body)
		}
		a = w.post("/classify", `{"model":"x","messages":[{"role":"user","content":"one"}]}`)
		if p := a.get("data.0.probs").Array(); len(p) != 2 || math.Abs(p[0].Num+p[1].Num-1) > 1e-9 ||
			a.get("data.0.num_classes").Int() != 2 ||
			a.get("model").Str != "x" || (a.get("data.0.label").Str == "LABEL_0") != (p[0].Num >= p[1].Num) {
			t.Errorf("classify: %s", a.body)
		}

		var form bytes.Buffer
		m := multipart.NewWriter(&form)
		file, err := m.CreateFormFile("file", "speech.wav")
		if err == nil {
			_, err = file.Write(make([]byte, 64000))
		}
		if err == nil {
			err = m.WriteField("model", "x")
		}
		if err == nil {
			err = m.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		a = w.post("/v1/audio/transcriptions", form.String(), "Content-Type", m.FormDataContentType())
		if a.status != http.StatusOK || len(strings.Fields(a.get("text").Str)) != 5 {
			t.Errorf("audio: %d %s", a.status, a.body)
		}
	})
}

func TestSeveralNamesAreOneModel(t *testing.T) {
	inWorld(t, Config{Profile: slow(), Model: "/weights", ServedNames: []string{"first", "second"}}, func(w *world) {
		if a := w.post("/v1/completions", ask4("second", 1)); a.get("model").Str != "second" {
			t.Error(a.body)
		}
		if a := w.post("/v1/completions", ask4("", 1)); a.get("model").Str != "first" {
			t.Error(a.body)
		}
		if a := w.do("GET /v1/models", ""); a.get("data.#.root").Raw != `["/weights","/weights"]` {
			t.Error(a.body)
		}
		w.wantMetrics(`vllm:prompt_tokens_total{engine="0",model_name="first"}`, "2.0")
	})
}

func TestImpossibleConfigurationIsRejected(t *testing.T) {
	small := slow()
	small.Limits.KVBlocks = 3
	if _, err := New(Config{Profile: small, MaxModelLen: 34}); err == nil || !strings.Contains(err.Error(), "max-model-len 34") {
		t.Errorf("a model longer than the KV cache: %v", err)
	}
	broken := slow()
	broken.Limits.BlockSize = 0
	if _, err := New(Config{Profile: broken}); err == nil || !strings.Contains(err.Error(), "limits.blockSize") {
		t.Errorf("a broken profile: %v", err)
	}
}

func TestErrorsOfMessagesAreAnthropics(t *testing.T) {
	inWorld(t, Config{Profile: slow()}, func(w *world) {
		a := w.post("/v1/messages", `{"model":"nope","messages":[{"role":"user","content":"x"}],"max_tokens":1}`)
		want := `{"type":"error","error":{"type":"NotFoundError","message":"The model ` + "`nope`" +
			` does not exist. Valid aliases: base."}}`
		if a.status != http.StatusNotFound || a.body != want {
			t.Errorf("%d %s", a.status, a.body)
		}
		for path, body := range map[string]string{
			"/v1/messages":              `{"messages":[{"role":"user","content":"x"}]}`,
			"/v1/messages/count_tokens": `{"model":"base"}`,
		} {
			if a := w.post(path, body); a.status != http.StatusBadRequest || a.get("error.code").Int() != 400 {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
		a = w.post("/v1/messages/count_tokens",
			`{"system":[{"type":"text","text":"brief"}],"messages":[{"role":"user","content":[{"type":"image"}]}]}`)
		if a.get("input_tokens").Int() != 1+2+1+1+1 {
			t.Error(a.body)
		}
	})
}

func TestInvocationsFollowTheirBody(t *testing.T) {
	inWorld(t, Config{Profile: slow()}, func(w *world) {
		for body, object := range map[string]string{
			`{"messages":[{"role":"user","content":"x"}],"max_tokens":1}`: "chat.completion",
			`{"prompt":"x","max_tokens":1}`:                               "text_completion",
			`{"input":"x"}`:                                               "list",
			`{"query":"x","documents":["y"]}`:                             "",
		} {
			if a := w.post("/invocations", body); a.status != http.StatusOK || a.get("object").Str != object {
				t.Errorf("%s: %d %s", body, a.status, a.body)
			}
		}
		if a := w.post("/invocations", `{}`); a.status != http.StatusBadRequest {
			t.Errorf("an empty body: %d", a.status)
		}
	})
}
