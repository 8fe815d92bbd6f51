package openai_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/headgate/headgate/extproc/openai"
)

// The beginning of a body gives the same result as the whole body if it contains the model.
func TestPrefixMatchesTheWhole(t *testing.T) {
	for _, body := range []string{
		`{"model":"llama","prompt":"x"}`,
		`{ "messages" : [{"role":"user","content":"a \"model\": {\\"}], "stream": true, "model" : "a\u0062c" , "n": -1.5e3, "x": null}`,
		`{"nested":{"model":"no","a":[[],{}]},"model":"yes","stream":false}`,
	} {
		want, err := openai.Parse(openai.JSON, "", []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		named := strings.Index(body, want.Model[1:]) // -1 for an escaped name, which is not found: only the whole body has the result
		for n := range len(body) {
			got, err := openai.ParsePrefix(openai.JSON, "", []byte(body[:n]))
			switch {
			case err == nil && got.Model != want.Model:
				t.Fatalf("%q is for %q, want %q", body[:n], got.Model, want.Model)
			case err == nil && string(got.Rename([]byte(body[:n]), "z")) != string(want.Rename([]byte(body),
				"z"))[:len(got.Rename([]byte(body[:n]), "z"))]:
				t.Fatalf("%q renamed is %q", body[:n], got.Rename([]byte(body[:n]), "z"))
			case err != nil && named > 0 && n == len(body)-1:
				t.Fatalf("%q: %v", body[:n], err)
			}
		}
	}
}

func TestPrefixErrors(t *testing.T) {
	const notThere = "The gateway sees only the beginning of the body, which does not name the model: put the model first."
	for _, c := range []struct{ prefix, want string }{
		{"", "The body must be a JSON object."},
		{"[1,2", "The body must be a JSON object."},
		{"{", notThere},
		{`{"model"`, notThere},
		{`{"model":"ll`, notThere},
		{`{"prompt":"long`, notThere},
		{`{"a":{"model":"x"}`, notThere},
		{`{x`, notThere},
		{`{"model":5,`, "The model must be a string."},
		{`{"model":"a","model":"b",`, "The body exceeds one model."},
		{`{"Model":"a",`, "The model's key is written in another case."},
		{`{"model":"\ud800",`, "No model can have this name: it is not valid UTF-8."},
	} {
		_, err := openai.ParsePrefix(openai.JSON, "", []byte(c.prefix))
		if err == nil || err.Error() != c.want {
			t.Errorf("%q: %v, want %s", c.prefix, err, c.want)
		}
	}
}

func TestPrefixOfAForm(t *testing.T) {
	const kind = "multipart/form-data; boundary=b"
	named := "--b\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF…"
	got, err := openai.ParsePrefix(openai.Form, kind, []byte(named))
	if err != nil || got.Model != "whisper" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := openai.Parse(openai.Form, kind, []byte(named)); err == nil {
		t.Error("as a whole it is valid")
	}
	_, err = openai.ParsePrefix(openai.Form, kind,
		[]byte("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF…"))
	if err == nil || !strings.Contains(err.Error(), "put the model first") {
		t.Errorf("a form whose file comes first: %v", err)
	}
}

// A path may be a model's name if an engine lists it. CheckName decides that; Parse does not.
func TestCheckName(t *testing.T) {
	_, err := openai.Parse(openai.JSON, "", []byte(`{"model":"a\u0000"}`))
	if !errors.Is(err, openai.ErrName) {
		t.Errorf("%v", err)
	}
	r, err := openai.Parse(openai.JSON, "", []byte(`{"model":"/etc/passwd"}`))
	if err != nil {
		t.Error(err)
	}
	if err := openai.CheckName(r.Model); !errors.Is(err, openai.ErrName) || err.Error() != "No model can have this name: it is a path." {
		t.Errorf("%v", err)
	}
	_, err = openai.Parse(openai.JSON, "", []byte(`{"model":5}`))
	if errors.Is(err, openai.ErrName) {
		t.Errorf("%v", err)
	}
}

func TestRequestContinuesAResponse(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","previous_response_id":"resp_1"}`:                           "resp_1",
		`{"model":"m","previous_response_id":null}`:                               "",
		`{"model":"m","previous_response_id":{}}`:                                 "",
		`{"model":"m","previous_response_id":"` + strings.Repeat("x", 300) + `"}`: "",
	} {
		if got, err := openai.Parse(openai.JSON, "", []byte(body)); err != nil || got.Previous != want {
			t.Errorf("%s: %q, %v", body, got.Previous, err)
		}
	}
}
