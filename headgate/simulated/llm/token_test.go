package llm

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// If a client sends an answer back in a prompt, the answer has the same tokens that the engine
// generated, whatever precedes it.
func FuzzTokensOfAnAnswerAreTheSameInAPrompt(f *testing.F) {
	for _, s := range []string{"", "hello world", "  two  spaces ", "ünïcödé 世界", "\x00\xff", "abcd efgh"} {
		f.Add(s, uint64(1))
	}
	f.Fuzz(func(t *testing.T, prompt string, seed uint64) {
		tokens := appendTokens(nil, prompt)
		output := newSpeech(seed, "", tokens).tokens(9)
		var text []byte
		for _, token := range output {
			if word := appendText(nil, token); len(word) > tokenBytes || word[0] != ' ' {
				t.Fatalf("the word %q", word)
			}
			text = appendText(text, token)
		}
		if got, want := appendTokens(nil, prompt+string(text)), slices.Concat(tokens, output); !slices.Equal(got, want) {
			t.Errorf("%q and %q have the tokens %v, want %v", prompt, text, got, want)
		}
		if strings.IndexByte(prompt, 0) < 0 {
			var back []byte
			for _, token := range tokens {
				back = appendText(back, token)
			}
			if string(back) != prompt {
				t.Errorf("the tokens of %q say %q", prompt, back)
			}
		}
	})
}

// The engine accepts a body or reports what is wrong with it. It accepts only JSON.
func FuzzABodyIsReadOrRefused(f *testing.F) {
	for _, s := range []string{
		``, `{`, `null`, `[]`, `"x"`, `{"model":5}`, `{"messages":[{"role":"user","content":"x"}]}`,
		`{"messages":[{"role":"user","content":[{"text":"x"},{"image_url":{}}]}]}`,
		`{"model":"a","model":null,"prompt":[1,2,"x",[3]],"max_tokens":1e99,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":"\ud800","n":-1,"temperature":-0.0}`, `{"messages":{"role":"user"}}`, `{"messages":[1,null,{}]}`,
	} {
		f.Add(s)
	}
	s, err := New(Config{Profile: slow()})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body string) {
		r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		c := &call{s: s, w: w, r: r}
		a, failed := c.ask()
		if failed == nil {
			if !json.Valid([]byte(body)) || !bytes.HasPrefix(bytes.TrimSpace([]byte(body)), []byte("{")) {
				t.Fatalf("%q was read", body)
			}
			_, failed = c.prepare(a, 0, func() (prompt, *failure) { return chatPrompt(a.values["system"], a.values["messages"]) })
			if failed == nil {
				_, failed = c.prepare(a, 16, func() (prompt, *failure) { return onePrompt(a.values["prompt"]) })
			}
		}
		if failed == nil {
			return
		}
		var said struct {
			Error struct {
				Message, Type string
				Code          int
			}
		}
		if err := json.Unmarshal(failed.body(), &said); err != nil || said.Error.Message == "" || said.Error.Type == "" ||
			said.Error.Code != failed.status || failed.status < 400 {
			t.Errorf("%q is refused with %s: %v", body, failed.body(), err)
		}
		if utf8.ValidString(body) && !json.Valid([]byte(body)) && failed.status != http.StatusBadRequest {
			t.Errorf("%q is no JSON and is refused with %d", body, failed.status)
		}
	})
}
