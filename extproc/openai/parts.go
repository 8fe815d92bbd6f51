package openai

// span is body[start:end]. The zero value is empty.
type span struct{ start, end int }

func (s span) of(body []byte) []byte { return body[s.start:s.end] }

// parts are the values of those members of a body that [Request.Prompt] reads. A member that the
// body does not have is empty.
type parts struct {
	tools        span
	system       span // in Anthropic's messages API
	instructions span // in the responses API
	messages     span
	input        span // in the responses, embeddings and other APIs
	prompt       span // in the completions API

	salt                   span
	most, mostNew, mostOut span // limits of output tokens
	choices, best          span
}

// named returns the part with a key, which is as it is in the body; nil if there is none.
func (p *parts) named(key []byte) *span {
	switch string(key) {
	case "tools":
		return &p.tools
	case "system":
		return &p.system
	case "instructions":
		return &p.instructions
	case "messages":
		return &p.messages
	case "input":
		return &p.input
	case "prompt":
		return &p.prompt
	case "cache_salt":
		return &p.salt
	case "max_tokens":
		return &p.most
	case "max_completion_tokens":
		return &p.mostNew
	case "max_output_tokens":
		return &p.mostOut
	case "n":
		return &p.choices
	case "best_of":
		return &p.best
	}
	return nil
}

// partsOf returns the parts of a body that may be truncated. It stops at invalid JSON.
func partsOf(body []byte) (p parts) {
	for all := inside(body); all.next(); {
		if part := p.named(all.key); part != nil {
			end := len(body) - len(all.rest)
			*part = span{end - len(all.value), end}
		}
	}
	return p
}
