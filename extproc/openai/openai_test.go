package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/internal/engine"
)

// openai accepts exactly the inference paths that package wire defines.
func TestPathsMatchWire(t *testing.T) {
	var inference []string
	for _, served := range openai.Served() {
		if path, ok := strings.CutPrefix(served, "POST "); ok {
			inference = append(inference, path)
		}
	}
	if want := slices.Sorted(slices.Values(wire.InferencePaths)); !slices.Equal(inference, want) {
		t.Errorf("inference is %v, the wire says %v", inference, want)
	}
}

func TestOnlyInferenceMayPass(t *testing.T) {
	for _, c := range []struct {
		method, path string
		want         openai.Operation
	}{
		{"POST", "/v1/chat/completions", openai.JSON},
		{"POST", "/v1/messages?beta=true", openai.JSON},
		{"POST", "/v1/audio/transcriptions", openai.Form},
		{"GET", "/v1/models", openai.ListModels},
		{"GET", "/v1/models?limit=3", openai.ListModels},
		{"GET", "/v1/models/meta-llama%2FLlama", openai.RetrieveModel},

		{"GET", "/v1/models/", openai.None},
		{"GET", "/v1/chat/completions", openai.None},
		{"HEAD", "/v1/models", openai.ListModels},
		{"OPTIONS", "/v1/chat/completions", openai.None},
		{"post", "/v1/chat/completions", openai.None},
		{"POST", "", openai.None},
		{"POST", "/", openai.None},
		{"POST", "/v1/chat/completions/", openai.None},
		{"POST", "/V1/chat/completions", openai.None},
		{"POST", "/v1%2fchat/completions", openai.None},
		{"POST", "//v1/chat/completions", openai.None},
		{"POST", "/v1/chat/completions;x", openai.None},
		{"POST", "/v1/load_lora_adapter", openai.None},
		{"POST", "/v1/unload_lora_adapter", openai.None},
		{"POST", "/v1/models", openai.None},
		{"POST", "/invocations", openai.None},
		{"POST", "/adapters", openai.None},
		{"DELETE", "/adapters/x", openai.None},
		{"GET", "/metrics", openai.None},
		{"POST", "/sleep", openai.None},
		{"POST", "/wake_up", openai.None},
		{"POST", "/tokenize", openai.JSON},
		{"POST", "/detokenize", openai.JSON},
		{"POST", "/pooling", openai.JSON},
		{"POST", "/classify", openai.JSON},
		{"GET", "/tokenize", openai.None},
		{"POST", "/tokenize/", openai.None},
		{"POST", "/tokenizer_info", openai.None},
		{"GET", "/tokenizer_info", openai.None},
		{"POST", "/v1/tokenize", openai.None},
		{"POST", "/v1/pooling", openai.None},
		{"POST", "/v1/classify", openai.None},
		{"POST", "/v1/chat/completions/render", openai.None},
		{"GET", "/v1/responses/resp_1", openai.Stored},
		{"GET", "/v1/responses/resp_1?stream=true", openai.Stored},
		{"POST", "/v1/responses/resp_1/cancel", openai.Stored},
		{"DELETE", "/v1/responses/resp_1", openai.Stored},
		{"GET", "/v1/responses/resp_1/input_items", openai.Stored},
		{"GET", "/v1/responses/resp_1/input_items?limit=20&after=msg_1", openai.Stored},
		{"POST", "/v1/responses/resp_1", openai.None},
		{"PUT", "/v1/responses/resp_1", openai.None},
		{"DELETE", "/v1/responses/", openai.None},
		{"DELETE", "/v1/responses/..", openai.None},
		{"DELETE", "/v1/responses/resp_1/cancel", openai.None},
		{"DELETE", "/v1/responses/resp_1/input_items", openai.None},
		{"DELETE", "/v1/responses/../models", openai.None},
		{"DELETE", "/v1/chat/completions", openai.None},
		{"GET", "/v1/responses/resp_1/cancel", openai.None},
		{"GET", "/v1/responses/input_items", openai.Stored},
		{"GET", "/v1/responses//input_items", openai.None},
		{"GET", "/v1/responses/%2e%2e/input_items", openai.None},
		{"GET", "/v1/responses/a/b/input_items", openai.None},
		{"GET", "/v1/responses/resp_1/input_items/", openai.None},
		{"GET", "/v1/responses/resp_1/INPUT_ITEMS", openai.None},
		{"POST", "/v1/responses/resp_1/input_items", openai.None},
		{"GET", "/v1/responses/resp_1/", openai.None},
		{"GET", "/v1/responses/..", openai.None},
		{"GET", "/v1/responses/resp_1%2Fcancel", openai.None},
		{"GET", "/health", openai.Health},
		{"HEAD", "/health", openai.Health},
		{"POST", "/health", openai.None},
		{"GET", "/health/", openai.None},
		{"HEAD", "/v1/models/llama", openai.RetrieveModel},
		{"HEAD", "/v1/responses/resp_1", openai.None},
		{"HEAD", "/v1/chat/completions", openai.None},
		{"POST", "/collective_rpc", openai.None},
	} {
		if got, _ := openai.Find(c.method, c.path); got != c.want {
			t.Errorf("%s %s is %d, want %d", c.method, c.path, got, c.want)
		}
	}
	if _, model := openai.Find("GET", "/v1/models/a/b%20c?x"); model != "a/b%20c" {
		t.Errorf("the model is %q", model)
	}
	for _, about := range []string{
		"GET /v1/responses/r-1", "GET /v1/responses/r-1/input_items?a=b", "DELETE /v1/responses/r-1",
		"POST /v1/responses/r-1/cancel",
	} {
		method, path, _ := strings.Cut(about, " ")
		if _, id := openai.Find(method, path); id != "r-1" {
			t.Errorf("%s is about %q", about, id)
		}
	}
}

func TestModelOfARequest(t *testing.T) {
	for _, c := range []struct {
		body   string
		model  string
		stream bool
	}{
		{`{"model":"a"}`, "a", false},
		{" \n{\t\"model\" :\r\n\"a/b\" , \"x\":1}\n ", "a/b", false},
		{`{"messages":[{"role":"user","content":"say \"model\": {} \\"}],"model":"a","stream":true}`, "a", true},
		{`{"stream":false,"metadata":{"model":"other"},"x":[{"model":"other"}],"model":"a"}`, "a", false},
		{`{"mod\u0065l":"\u0061\u00e9"}`, "aé", false},
		{`{"model":"a","":null,"n":-1.5e3,"t":true,"s":"","e":{},"l":[]}`, "a", false},
		{`{"stream":true,"model":"a","stream":false}`, "a", false},
		{`{"prompt":"\\","model":"a"}`, "a", false},
		{`{"model":"模型"}`, "模型", false},
	} {
		r, err := openai.Parse(openai.JSON, "", []byte(c.body))
		if err != nil || r.Model != c.model || r.Stream != c.stream {
			t.Errorf("%s is read as %q, stream %v, %v", c.body, r.Model, r.Stream, err)
		}
	}
}

// Only a stream of a chat or of completions whose complete request has no stream_options states no
// usage.
func TestStreamsWithoutOptionsStateNoUsage(t *testing.T) {
	const chat = "/v1/chat/completions"
	for _, c := range []struct {
		path, body string
		want       bool
	}{
		{chat, `{"model":"a","stream":true}`, false},
		{"/v1/completions?x=1", `{"model":"a","stream":true,"stream_options":null}`, false},
		{chat, `{"model":"a","stream":true,"messages":[{"stream_options":{"include_usage":true}}]}`, false},
		{chat, `{"model":"a"}`, true},
		{chat, `{"model":"a","stream":false}`, true},
		{chat, `{"stream_options":{"include_usage":true},"model":"a","stream":true}`, true},
		{chat, `{"model":"a","stream":true,"stream\u005foptions":{"include_usage":true}}`, true},
		{chat, `{"model":"a","stream":true,"Stream_Options":{"include_usage":true}}`, true}, // engines in Go accept it
		{chat, `{"stream_options":{},"model":"a","stream":true,"stream_options":null}`, true},
		{"/v1/responses", `{"model":"a","stream":true}`, true},
		{"/v1/messages", `{"model":"a","stream":true}`, true},
		{"/generate", `{"model":"a","stream":true}`, true},
	} {
		r, err := openai.Parse(openai.JSON, "", []byte(c.body))
		if got := r.StatesUsage(c.path); err != nil || got != c.want {
			t.Errorf("%s %s: %v, %v", c.path, c.body, got, err)
		}
		// The rest of a prefix may have any option.
		if r, err := openai.ParsePrefix(openai.JSON, "", []byte(c.body)); err == nil && !r.StatesUsage(c.path) {
			t.Errorf("%s %s: a prefix states no usage", c.path, c.body)
		}
	}
	if !(openai.Request{}).StatesUsage(chat) {
		t.Error("an unknown body states no usage")
	}
}

func TestBadBodyErrors(t *testing.T) {
	for _, c := range []struct{ body, param, want string }{
		{"", "", "The request has no body: send a JSON object."},
		{" \n", "", "The request has no body: send a JSON object."},
		{"{bad", "", "The body is not valid JSON."},
		{`{"model":"a"} x`, "", "The body is not valid JSON."},
		{`{"model":"a"}{"model":"b"}`, "", "The body is not valid JSON."},
		{`{"model":"a",}`, "", "The body is not valid JSON."},
		{`{"model":"a"`, "", "The body is not valid JSON."},
		{`{"model":"a`, "", "The body is not valid JSON."},
		{"{\"model\":\"a\x00\"}", "", "The body is not valid JSON."},
		{"\xef\xbb\xbf{\"model\":\"a\"}", "", "The body is not valid JSON."},
		{"{\x00\"\x00m\x00", "", "The body is not valid JSON."},
		{`{"model":NaN}`, "", "The body is not valid JSON."},
		{`[]`, "", "The body must be a JSON object."},
		{`null`, "", "The body must be a JSON object."},
		{`"model"`, "", "The body must be a JSON object."},
		{`{}`, "model", "The body has no model: name one of GET /v1/models."},
		{`{"Model":"a"}`, "model", "The body has no model: name one of GET /v1/models."},
		{`{"model":null}`, "model", "The body has no model: name one of GET /v1/models."},
		{`{"model":5}`, "model", "The model must be a string."},
		{`{"model":["a"]}`, "model", "The model must be a string."},
		{`{"model":""}`, "model", "The body has no model: name one of GET /v1/models."},
		{`{"model":"a","model":"a"}`, "model", "The body exceeds one model."},
		{`{"model":"a","mod\u0065l":"b"}`, "model", "The body exceeds one model."},
		{`{"\u006d\u006fdel":"a","model":"b"}`, "model", "The body exceeds one model."},
		{`{"model":"a","MODEL":"b"}`, "model", "The body exceeds one model."},
		{`{"model":"a\u0000"}`, "model", "No model can have this name: it holds control characters."},
		{`{"model":"\ud800"}`, "model", "No model can have this name: it is not valid UTF-8."},
		{"{\"model\":\"\xff\"}", "model", "No model can have this name: it is not valid UTF-8."},
		{strings.Repeat("[", 10_001) + strings.Repeat("]", 10_001), "", "The body is nested too deep."},
		{strings.Repeat("[", 10_001), "", "The body is nested too deep."},
		{strings.Repeat("[", 10_000), "", "The body is not valid JSON."},
	} {
		_, err := openai.Parse(openai.JSON, "", []byte(c.body))
		var e *openai.Error
		if !errors.As(err, &e) || e.Reason != c.want || e.Param != c.param {
			t.Errorf("%.40q: %+v, want %q at %q", c.body, err, c.want, c.param)
		}
	}
	// Brackets within strings do not add to the depth.
	if _, err := openai.Parse(openai.JSON, "", []byte(`{"p":"`+strings.Repeat("[", 20_000)+`","model":"a"}`)); err != nil {
		t.Errorf("a prompt of brackets: %v", err)
	}
}

func TestRenameChangesOnlyTheModel(t *testing.T) {
	for _, c := range []struct{ body, model, want string }{
		{`{"a": 1.0,  "model" : "gpt-4" ,"b":"é\u00e9"}`, "llama", `{"a": 1.0,  "model" : "llama" ,"b":"é\u00e9"}`},
		{`{"mod\u0065l":"x"}`, `we"ird`, `{"mod\u0065l":"we\"ird"}`},
	} {
		before := []byte(c.body)
		r, err := openai.Parse(openai.JSON, "", before)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(r.Rename(before, c.model)); got != c.want || string(before) != c.body {
			t.Errorf("%s becomes %s, want %s", c.body, got, c.want)
		}
	}
}

func TestModelIsAddedToABody(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{`{}`, `{"model":"a"}`},
		{" { \n} ", ` {"model":"a"` + " \n} "},
		{`{"stream":true}`, `{"model":"a","stream":true}`},
		{`{ "x":{"model":"b"}}`, `{"model":"a", "x":{"model":"b"}}`},
		{`{"model":"","x":1}`, `{"model":"a","x":1}`},
		{`{"x":1,"model" : null}`, `{"x":1,"model" : "a"}`},
	} {
		r, err := openai.Parse(openai.JSON, "", []byte(c.body))
		if !errors.Is(err, openai.ErrAbsent) || !r.Absent() {
			t.Errorf("%s: %v", c.body, err)
		}
		if got := string(r.Rename([]byte(c.body), "a")); got != c.want {
			t.Errorf("%s becomes %s, want %s", c.body, got, c.want)
		}
	}
	for _, c := range []struct{ body, want string }{
		{part(`name="x"`, "1") + "--XX--\r\n", part(`name="model"`, "a") + part(`name="x"`, "1") + "--XX--\r\n"},
		{part(`name="x"`, "1") + part(`name="model"`, "") + "--XX--\r\n", part(`name="x"`, "1") + part(`name="model"`, "a") + "--XX--\r\n"},
	} {
		r, err := openai.Parse(openai.Form, formType, []byte(c.body))
		if !errors.Is(err, openai.ErrAbsent) || !r.Absent() {
			t.Errorf("%q: %v", c.body, err)
		}
		if got := string(r.Rename([]byte(c.body), "a")); got != c.want {
			t.Errorf("%q becomes %q, want %q", c.body, got, c.want)
		}
	}
	// Some engines accept the key "model" in another case.
	for _, body := range []string{`{"Model":"a"}`, `{"Model":"a","MODEL":"b"}`, `{"model":"","Model":"a"}`, `{"model":5}`} {
		if r, err := openai.Parse(openai.JSON, "", []byte(body)); err == nil || errors.Is(err, openai.ErrAbsent) || r.Absent() {
			t.Errorf("%s: %v", body, err)
		}
	}
}

const formType = `multipart/form-data; boundary=XX`

func part(header, value string) string {
	return "--XX\r\nContent-Disposition: form-data; " + header + "\r\n\r\n" + value + "\r\n"
}

func TestForm(t *testing.T) {
	file := "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\n\x00\r\n--X\r\n\r\n"
	body := file + part(`name="model"`, "whisper") + part(`name="stream"`, "True") + part(`name="timestamp_granularities[]"`, "word") +
		"--XX--\r\n"
	r, err := openai.Parse(openai.Form, formType, []byte(body))
	if err != nil || r.Model != "whisper" || !r.Stream {
		t.Fatalf("%+v, %v", r, err)
	}
	if got, want := string(r.Rename([]byte(body), "big")), strings.Replace(body, "whisper", "big", 1); got != want {
		t.Errorf("the renamed form is %q", got)
	}

	end := "--XX--\r\n"
	for _, c := range []struct{ name, contentType, body, want string }{
		{"empty", formType, "", "The request has no body: send a multipart form."},
		{"JSON", "application/json", `{"model":"a"}`, "The content type must be multipart/form-data with a boundary."},
		{"no boundary", "multipart/form-data", end, "The content type must be multipart/form-data with a boundary."},
		{"no model", formType, file + end, "The form has no model: name one of GET /v1/models."},
		{"two models", formType, part(`name="model"`, "a") + part(`name=model`, "b") + end, "The form has more than one model."},
		{"a file", formType, part(`name="model"; filename="x"`, "a") + end, "The model must be a text field, not a file."},
		{"control characters", formType, part(`name="model"`, "a\x00") + end, "No model can have this name: it holds control characters."},
		{
			"too many parts", formType, part(`name="model"`, "a") + strings.Repeat(part(`name="x"`, "a"), 2000) + end,
			"The form has more than 2000 parts.",
		},
		{"not closed", formType, part(`name="model"`, "a"), "The body is not a valid multipart form."},
		{"cut", formType, "--XX\r\nContent-Disp", "The body is not a valid multipart form."},
		{
			"another boundary", formType, "--YY" + strings.TrimPrefix(part(`name="model"`, "a"), "--XX") + end,
			"The body is not a valid multipart form.",
		},
		{"preamble", formType, "hi\r\n" + part(`name="model"`, "a") + end, "The body is not a valid multipart form."},
		{
			"more after the end", formType, part(`name="model"`, "a") + end + part(`name="model"`, "b") + end,
			"The body is not a valid multipart form.",
		},
		{"a boundary at once", formType, part(`name="prompt"`, "--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nb") +
			part(`name="model"`, "a") + end, "The body is not a valid multipart form."},
		{"longer delimiter", formType, part(`name="model"`, "a") + "--XXY\r\n\r\n" + end, "The body is not a valid multipart form."},
		{"escaped name", formType, part(`name="mo\del"`, "a") + end, "The body is not a valid multipart form."},
		{"percent name", formType, part(`name="mod%65l"`, "a") + end, "The body is not a valid multipart form."},
		{"extended name", formType, part(`name*=UTF-8''model`, "a") + end, "The body is not a valid multipart form."},
		{
			"folded header", formType, "--XX\r\nContent-Disposition: form-data;\r\n name=\"model\"\r\n\r\na\r\n" + end,
			"The body is not a valid multipart form.",
		},
		{
			"two dispositions", formType,
			"--XX\r\nContent-Disposition: form-data; name=\"x\"\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\na\r\n" + end,
			"The body is not a valid multipart form.",
		},
		{
			"transfer encoding", formType,
			"--XX\r\nContent-Disposition: form-data; name=\"model\"\r\nContent-Transfer-Encoding: base64\r\n\r\nYQ==\r\n" + end,
			"The body is not a valid multipart form.",
		},
		{"LF", formType, strings.ReplaceAll(part(`name="model"`, "a")+end, "\r\n", "\n"), "The body is not a valid multipart form."},
	} {
		_, err := openai.Parse(openai.Form, c.contentType, []byte(c.body))
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// FuzzParseJSON compares Parse with a simple parser that uses encoding/json, and with the parser
// that it replaced.
func FuzzParseJSON(f *testing.F) {
	for _, seed := range []string{
		`{"model":"a"}`, `{"messages":[{"role":"user","content":"hi \"x\" \\"}],"model":"a/b","stream":true}`,
		`{"mod\u0065l":"a","x":{"model":1}}`, `{"model":"a","model":"b"}`, `{"Model":"a"}`, `{}`, ` { "x":1 }`, `{"model":null,"x":""}`,
		`[]`, ` {"model" : "\ud83d\ude00" } `, `{"model":"\ud83d"}`, `{"n":-0.1e+5,"model":"a"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		parsesAsTheOracles(t, body)
		r, err := openai.Parse(openai.JSON, "", body)
		model, oracleErr := oracle(body)
		if (err == nil) != (oracleErr == nil) {
			t.Fatalf("%q: %v, but encoding/json says %v", body, err, oracleErr)
		}
		if errors.Is(err, openai.ErrAbsent) {
			named := r.Rename(body, "new")
			if model, err := oracle(named); err != nil || model != "new" {
				t.Fatalf("%q gets a model as %q: %q, %v", body, named, model, err)
			}
		}
		if err != nil {
			return
		}
		if r.Model != model {
			t.Fatalf("%q: the model is %q, but encoding/json says %q", body, r.Model, model)
		}
		renamed := r.Rename(body, "new")
		if model, err := oracle(renamed); err != nil || model != "new" {
			t.Fatalf("%q is renamed to %q: %q, %v", body, renamed, model, err)
		}
		if back := r.Rename(body, r.Model); !bytes.Equal(back, body) {
			again, err := openai.Parse(openai.JSON, "", back)
			if err != nil || again.Model != r.Model {
				t.Fatalf("%q is read back as %q: %v", body, back, err)
			}
		}
	})
}

func oracle(body []byte) (string, error) {
	if !json.Valid(body) {
		return "", errors.New("invalid")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber() // JSON numbers may be larger than Go's numbers
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return "", errors.New("no object")
	}
	var values []any
	exact := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return "", err
		}
		var value any
		if err := d.Decode(&value); err != nil {
			return "", err
		}
		if strings.EqualFold(key.(string), "model") {
			values = append(values, value)
			exact = exact || key == "model"
		}
	}
	if len(values) != 1 || !exact {
		return "", fmt.Errorf("%d models", len(values))
	}
	model, ok := values[0].(string)
	if !ok {
		return "", errors.New("no string")
	}
	return model, engine.CheckText(model)
}

// FuzzParseForm compares Parse with mime/multipart: if Parse accepts a body, mime/multipart must
// find the same model and no other.
func FuzzParseForm(f *testing.F) {
	f.Add(part(`name="model"`, "a") + "--XX--\r\n")
	f.Add("--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\nContent-Type: audio/wav\r\n\r\n\x00--XX\r\n" +
		part(`name=model`, "b") + "--XX--")
	f.Fuzz(func(t *testing.T, body string) {
		r, err := openai.Parse(openai.Form, formType, []byte(body))
		if err != nil {
			return
		}
		_, params, _ := mime.ParseMediaType(formType)
		reader := multipart.NewReader(strings.NewReader(body), params["boundary"])
		var models []string
		for {
			p, err := reader.NextPart()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%q is accepted, but mime/multipart says %v", body, err)
			}
			value, err := io.ReadAll(p)
			if err != nil {
				t.Fatalf("%q is accepted, but mime/multipart says %v", body, err)
			}
			if strings.EqualFold(p.FormName(), "model") {
				models = append(models, string(value))
			}
		}
		if len(models) != 1 || models[0] != r.Model {
			t.Fatalf("%q: the model is %q, but mime/multipart says %q", body, r.Model, models)
		}
	})
}

func TestAnthropicCalls(t *testing.T) {
	for path, want := range map[string]bool{
		"/v1/messages": true, "/v1/messages?beta=true": true, "/v1/messages/count_tokens": true, "/v1/messages/batches": true,
		"/v1/messagesx": false, "/v1/message": false, "/": false, "/x/v1/messages": false,
	} {
		if got := openai.IsMessages(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// Served lists exactly what Find accepts.
func TestServedListsWhatFindAccepts(t *testing.T) {
	all := openai.Served()
	for _, want := range []string{"POST /v1/chat/completions", "POST /tokenize", "POST /v1/messages", "GET /v1/models", "GET /health"} {
		if !slices.Contains(all, want) {
			t.Errorf("%v lacks %s", all, want)
		}
	}
	for _, s := range all {
		method, path, ok := strings.Cut(s, " /")
		if method != "POST" || !ok {
			continue
		}
		if op, _ := openai.Find(method, "/"+path); op == openai.None {
			t.Errorf("%s is rejected", s)
		}
	}
}
