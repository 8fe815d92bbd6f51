package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
)

// maxBody is the maximum length of a body in bytes. It is far longer than any valid prompt.
const maxBody = 64 << 20

// ask has the members of a JSON body that the server supports, for all paths. If a member is
// repeated, the last one is used. A member that is null is treated as absent.
type ask struct {
	members int
	model   string
	// previous is the id of the response that the request continues.
	previous string

	stream                         bool
	streamOptions                  gjson.Result
	includeUsage, everyUsage       bool
	maxTokens                      int // 0 if absent; values out of range are kept
	maxTokensSet, maxCompletionSet bool
	n                              int
	temperature                    float64
	ignoreEOS                      bool
	complete                       bool // the text is complete when it reaches maxTokens, not cut off
	dimensions                     int
	encoding                       string
	// values has all other members that are present, by name.
	values map[string]gjson.Result
}

// read reads the body and parses it. The body must be a JSON object with a JSON content type.
func (c *call) read() (gjson.Result, *failure) {
	media, _, _ := strings.Cut(c.r.Header.Get("Content-Type"), ";")
	if !strings.EqualFold(strings.TrimSpace(media), "application/json") {
		return gjson.Result{}, invalid("", "Unsupported Media Type: Only 'application/json' is allowed")
	}
	body, f := c.readAll()
	if f != nil {
		return gjson.Result{}, f
	}
	if len(body) == 0 {
		return gjson.Result{}, malformed("missing", "body", "Field required", "None")
	}
	if !gjson.ValidBytes(body) {
		return gjson.Result{}, notJSON(body)
	}
	switch root := gjson.ParseBytes(body); {
	case root.Type == gjson.Null:
		return gjson.Result{}, malformed("missing", "body", "Field required", "None")
	case !root.IsObject():
		return gjson.Result{}, malformed("model_attributes_type", "body",
			"Input should be a valid dictionary or object to extract fields from", describe(root))
	default:
		return root, nil
	}
}

func (c *call) readAll() ([]byte, *failure) {
	var b bytes.Buffer
	if n := c.r.ContentLength; n > 0 && n <= maxBody {
		b.Grow(int(n) + bytes.MinRead)
	}
	_, err := b.ReadFrom(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &failure{http.StatusRequestEntityTooLarge, "Bad Request", fmt.Sprintf("the body is longer than %d bytes", maxBody), ""}
	case err != nil && !errors.Is(err, io.EOF):
		return nil, bad("", "the body ended early: %v", err)
	}
	return b.Bytes(), nil
}

// notJSON reports where a body stops being JSON, in the words of Python's decoder.
func notJSON(body []byte) *failure {
	at, expecting := int64(0), "Expecting value"
	var syntax *json.SyntaxError
	if err := json.Unmarshal(body, new(json.RawMessage)); errors.As(err, &syntax) {
		at = max(0, syntax.Offset-1)
		if strings.Contains(syntax.Error(), "object key") {
			expecting = "Expecting property name enclosed in double quotes"
		}
	}
	loc := fmt.Sprintf("body.%d", at)
	return invalid(loc,
		fmt.Sprintf("{'type': 'json_invalid', 'loc': '%s', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': '%s'}}", loc,
			expecting))
}

// ask parses the body of a request to the model. It fails if one of the members needed is missing.
func (c *call) ask(needed ...string) (ask, *failure) {
	root, f := c.read()
	if f != nil {
		return ask{}, f
	}
	a := ask{n: 1, temperature: 1, encoding: "float", values: make(map[string]gjson.Result)}
	root.ForEach(func(key, value gjson.Result) bool {
		a.members++
		if value.Type == gjson.Null {
			a.forget(key.Str)
		} else {
			f = a.take(key.Str, value)
		}
		return f == nil
	})
	if f != nil {
		return ask{}, f
	}
	if a.streamOptions.Exists() && !a.stream {
		return ask{}, bad("stream_options", "Stream options can only be defined when `stream=True`. (parameter=stream_options)")
	}
	for _, name := range needed {
		if !a.values[name].Exists() {
			return ask{}, a.missing(name)
		}
	}
	return a, nil
}

// forget removes a member that the body repeats as null.
func (a *ask) forget(key string) {
	switch key {
	case "model":
		a.model = ""
	case "stream":
		a.stream = false
	case "messages", "prompt", "input":
		delete(a.values, key)
	}
}

// take parses one member of the body.
func (a *ask) take(key string, v gjson.Result) (f *failure) {
	switch key {
	case "model":
		a.model, f = text(key, v)
	case "previous_response_id":
		a.previous, f = text(key, v)
	case "stream":
		a.stream, f = truthOf(key, v)
	case "stream_options":
		a.streamOptions = v
		a.includeUsage, a.everyUsage = v.Get("include_usage").Bool(), v.Get("continuous_usage_stats").Bool()
	case "max_tokens", "max_output_tokens":
		if !a.maxCompletionSet {
			a.maxTokens, f = integer(key, v)
			a.maxTokensSet = true
		}
	case "max_completion_tokens": // the newer name overrides max_tokens
		a.maxTokens, f = integer(key, v)
		a.maxTokensSet, a.maxCompletionSet = true, true
	case "n":
		a.n, f = integer(key, v)
	case "temperature":
		a.temperature, f = float(key, v)
	case "ignore_eos":
		a.ignoreEOS, f = truthOf(key, v)
	case "dimensions":
		a.dimensions, f = integer(key, v)
	case "encoding_format":
		a.encoding, f = text(key, v)
	case "messages":
		if a.values[key] = v; !v.IsArray() {
			f = malformed("list_type", "body.messages", "Input should be a valid list", describe(v))
		}
	case "system", "instructions", "prompt", "input", "query", "documents", "text_1", "text_2", "tokens":
		a.values[key] = v
	case "queries":
		a.values["text_1"] = v
	case "items":
		a.values["text_2"] = v
	}
	return f
}

// missing returns the failure for a body without a required member.
func (a *ask) missing(name string) *failure {
	return malformed("missing", "body."+name, "Field required", fmt.Sprintf("<dict of %d items>", a.members))
}

func text(key string, v gjson.Result) (string, *failure) {
	if v.Type != gjson.String {
		return "", malformed("string_type", "body."+key, "Input should be a valid string", describe(v))
	}
	return v.Str, nil
}

func truthOf(key string, v gjson.Result) (bool, *failure) {
	if v.Type != gjson.True && v.Type != gjson.False {
		return false, malformed("bool_parsing", "body."+key, "Input should be a valid boolean, unable to interpret input", describe(v))
	}
	return v.Bool(), nil
}

func integer(key string, v gjson.Result) (int, *failure) {
	if n := int(v.Num); v.Type == gjson.Number && float64(n) == v.Num {
		return n, nil
	}
	return 0, malformed("int_type", "body."+key, "Input should be a valid integer", describe(v))
}

func float(key string, v gjson.Result) (float64, *failure) {
	if v.Type != gjson.Number {
		return 0, malformed("float_type", "body."+key, "Input should be a valid number", describe(v))
	}
	return v.Num, nil
}

// describe formats a value as vLLM does in errors. It never shows prompt text.
func describe(v gjson.Result) string {
	switch {
	case v.IsArray():
		return fmt.Sprintf("<list of %d items>", v.Get("#").Int())
	case v.IsObject():
		n := 0
		v.ForEach(func(_, _ gjson.Result) bool { n++; return true })
		return fmt.Sprintf("<dict of %d items>", n)
	case v.Type == gjson.Number:
		return v.Raw
	case v.Type == gjson.True:
		return "True"
	case v.Type == gjson.False:
		return "False"
	}
	return fmt.Sprintf("<str of %d characters>", characters(v.Str))
}
