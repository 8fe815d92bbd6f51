package stream

import (
	"testing"

	"github.com/headgate/headgate/extproc/openai"
)

// The bound follows from the body and max_tokens. What they do not bound, the context does.
func TestTokensAtMost(t *testing.T) {
	const template, unknown = 4096, 1 << 20
	short := func(change func(*size)) size {
		s := size{body: 100, prompt: openai.Prompt{MaxTokens: 10, Answers: 1}}
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		is      size
		context int
		want    int64
	}{
		"text":                    {short(func(*size) {}), 8192, template + 100 + 10},
		"text, unknown context":   {short(func(*size) {}), 0, template + 100 + 10},
		"several answers":         {short(func(s *size) { s.prompt.Answers = 6 }), 8192, template + 100 + 60},
		"no max_tokens":           {short(func(s *size) { s.prompt.MaxTokens = 0 }), 8192, template + 100 + 8192},
		"no max_tokens, unknown":  {short(func(s *size) { s.prompt.MaxTokens = 0 }), 0, template + 100 + unknown},
		"max_tokens above it":     {short(func(s *size) { s.prompt.MaxTokens = 1e8 }), 8192, template + 100 + 8192},
		"an image":                {short(func(s *size) { s.prompt.Attached = true }), 8192, template + 100 + 8192 + 10},
		"after a stored response": {short(func(s *size) { s.elsewhere = true }), 8192, template + 100 + 8192 + 10},
		"a query and documents":   {short(func(s *size) { s.prompt = openai.Prompt{} }), 8192, (template+100)*100 + 8192},
		"no body":                 {size{}, 8192, template + 2*8192},
		"many answers":            {size{body: 1, prompt: openai.Prompt{Answers: 999_999_999}}, 0, template + 1 + 999_999_999*unknown},
	} {
		if got := c.is.tokens(c.context); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
