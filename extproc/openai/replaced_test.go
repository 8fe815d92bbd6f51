package openai_test

import (
	"bytes"
	"errors"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/extproc/openai"
)

// parsed is the result of a parser, for comparison. Renamed is the body with another model.
type parsed struct {
	model, previous string
	stream, absent  bool
	fault, param    string
	renamed         string
}

// parse returns the result of [openai.Parse].
func parse(body []byte) parsed {
	r, err := openai.Parse(openai.JSON, "", body)
	p := parsed{model: r.Model, previous: r.Previous, stream: r.Stream, absent: r.Absent()}
	if e, ok := errors.AsType[*openai.Error](err); ok {
		p.fault, p.param = e.Reason, e.Param
	}
	if err == nil || r.Absent() {
		p.renamed = string(r.Rename(body, "new"))
	}
	return p
}

// replaced is the parser that Parse replaced. It needs three passes: one counts brackets, gjson
// validates, and the last one scans the members of the object.
func replaced(body []byte) parsed {
	if len(bytes.TrimSpace(body)) == 0 {
		return parsed{fault: "The request has no body: send a JSON object."}
	}
	if replacedDepth(body) {
		return parsed{fault: "The body is nested too deep."}
	}
	if !gjson.ValidBytes(body) {
		return parsed{fault: "The body is not valid JSON."}
	}
	const absent = "The body has no model: name one of GET /v1/models."
	w := replacedWalk(body)
	p := parsed{previous: w.previous, stream: w.stream}
	model := ""
	if w.end > 0 {
		model = string(body[w.start:w.end])
	}
	insert := `"new"`
	switch {
	case !w.object:
		return parsed{fault: "The body must be a JSON object."}
	case w.models == 0:
		p.absent, p.fault, p.param = true, absent, "model"
		w.start, w.end = w.first, w.first
		insert = `"model":"new"`
		if !w.empty {
			insert += ","
		}
	case w.end == 0:
		return parsed{fault: absent, param: "model"}
	case w.models > 1:
		return parsed{fault: "The body exceeds one model.", param: "model"}
	case model == `""`, model == "null":
		p.absent, p.fault, p.param = true, absent, "model"
	case model[0] != '"':
		return parsed{fault: "The model must be a string.", param: "model"}
	default:
		p.model = gjson.Parse(model).Str
		if e, ok := errors.AsType[*openai.Error](openai.CheckText(p.model)); ok {
			return parsed{fault: e.Reason, param: e.Param}
		}
	}
	p.renamed = string(body[:w.start]) + insert + string(body[w.end:])
	return p
}

func replacedDepth(body []byte) bool {
	const most = 10_000
	if bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) <= most {
		return false
	}
	depth := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			if i = endOfText(body, i) - 1; i < 0 {
				return false
			}
		case '[', '{':
			if depth++; depth > most {
				return true
			}
		case ']', '}':
			depth--
		}
	}
	return false
}

type walked struct {
	object, empty     bool
	models            int
	start, end, first int
	stream            bool
	previous          string
}

func replacedWalk(body []byte) (w walked) {
	i := afterSpace(body, 0)
	if body[i] != '{' {
		return w
	}
	w.object, w.first = true, i+1
	w.empty = body[afterSpace(body, i+1)] == '}'
	for i = afterSpace(body, i+1); body[i] != '}'; i = afterSpace(body, i) {
		if body[i] == ',' {
			i = afterSpace(body, i+1)
		}
		keyEnd := endOfText(body, i)
		key := text(body[i:keyEnd])
		start := afterSpace(body, afterSpace(body, keyEnd)+1)
		i = endOfAny(body, start)
		switch {
		case key == "stream":
			w.stream = body[start] == 't'
		case key == "previous_response_id" && body[start] == '"' && i-start <= 256:
			w.previous = text(body[start:i])
		case strings.EqualFold(key, "model"):
			w.models++
			if key == "model" {
				w.start, w.end = start, i
			}
		}
	}
	return w
}

func text(quoted []byte) string {
	if inner := quoted[1 : len(quoted)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return string(inner)
	}
	return gjson.ParseBytes(quoted).Str
}

func afterSpace(body []byte, i int) int {
	for i < len(body) && (body[i] == ' ' || body[i] == '\n' || body[i] == '\r' || body[i] == '\t') {
		i++
	}
	return i
}

func endOfText(body []byte, i int) int {
	for i++; i < len(body); i++ {
		quote := bytes.IndexByte(body[i:], '"')
		if quote < 0 {
			return 0
		}
		i += quote
		escapes := 0
		for body[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
	return 0
}

func endOfAny(body []byte, i int) int {
	switch body[i] {
	case '"':
		return endOfText(body, i)
	case '{', '[':
		for depth := 0; ; i++ {
			switch body[i] {
			case '"':
				i = endOfText(body, i) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
	}
	for i < len(body) && strings.IndexByte(",}] \n\r\t", body[i]) < 0 {
		i++
	}
	return i
}
