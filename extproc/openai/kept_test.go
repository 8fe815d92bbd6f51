package openai_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/openai"
)

// A parsed request keeps nothing of the body's memory, which the next request uses.
func TestRequestsKeepNothingOfTheBody(t *testing.T) {
	const form = "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nqwen\r\n--x--\r\n"
	type parser = func(op openai.Operation, contentType string, body []byte) (openai.Request, error)
	for name, c := range map[string]struct {
		parse    parser
		op       openai.Operation
		body     string
		previous string
	}{
		"JSON":              {openai.Parse, openai.JSON, `{"model":"qwen","previous_response_id":"resp_1"}`, "resp_1"},
		"JSON with escapes": {openai.Parse, openai.JSON, `{"model":"qw\u0065n","previous_response_id":"resp\u005f1"}`, "resp_1"},
		"truncated JSON":    {openai.ParsePrefix, openai.JSON, `{"model":"qwen","prompt":"a`, ""},
		"a form":            {openai.Parse, openai.Form, form, ""},
		"a truncated form":  {openai.ParsePrefix, openai.Form, form[:len(form)-4], ""},
	} {
		body := []byte(c.body)
		r, err := c.parse(c.op, "multipart/form-data; boundary=x", body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for i := range body {
			body[i] = 0xa5
		}
		if r.Model != "qwen" || r.Previous != c.previous {
			t.Errorf("%s: the model is %q, the previous response %q", name, r.Model, r.Previous)
		}
	}
}
