package openai

import (
	"bytes"
	"encoding/json"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"
)

// maxDepth limits the nesting of a body, as encoding/json does. Deeper bodies would overflow the
// stack: 32 MiB of "[" would end the process. (Real requests nest far less; Python's own parser
// stops at 1,000 levels.)
const maxDepth = 10_000

const jsonAbsent = "The body has no model: name one of GET /v1/models."

func parseJSON(body []byte) (Request, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return Request{}, fault("", "The request has no body: send a JSON object.")
	}
	r, models, ok := walk(body)
	switch {
	case !ok && tooDeep(body):
		return Request{}, fault("", "The body is nested too deep.")
	case !ok:
		return Request{}, fault("", "The body is not valid JSON.")
	case r.op == None:
		return Request{}, fault("", "The body must be a JSON object.")
	case models == 0:
		r.absent = true
		return r, absent(jsonAbsent)
	case r.end == 0: // the key is in another case, which some engines accept
		return Request{}, fault("model", jsonAbsent)
	case models > 1:
		return Request{}, fault("model", "The body exceeds one model.")
	case string(body[r.start:r.end]) == `""`, string(body[r.start:r.end]) == "null":
		r.absent = true
		return r, absent(jsonAbsent)
	case body[r.start] != '"':
		return Request{}, fault("model", "The model must be a string.")
	}
	r.Model = strings.Clone(unquote(body[r.start:r.end]))
	if err := CheckText(r.Model); err != nil {
		return Request{}, err
	}
	return r, nil
}

// tooDeep reports whether an invalid body nests deeper than maxDepth. For nearly every body,
// counting brackets decides this, which is cheap.
func tooDeep(body []byte) bool {
	if bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) <= maxDepth {
		return false
	}
	depth := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			if i = endOfString(body, i) - 1; i < 0 {
				return false // invalid JSON, which the validator reports
			}
		case '[', '{':
			if depth++; depth > maxDepth {
				return true
			}
		case ']', '}':
			depth--
		}
	}
	return false
}

// walk validates the body, and scans the members of its object in the same pass. It decodes only
// short keys. It returns the places of the last model, or the place to insert a model, and of the
// members that make up the prompt, and the number of models. Op is None if the body is not an
// object. It returns false for ok if the body is not valid JSON, or is nested too deep.
func walk(body []byte) (r Request, models int, ok bool) {
	i := skipSpace(body, 0)
	if at(body, i) != '{' {
		end := validValue(body, i, 0)
		return r, 0, end > 0 && skipSpace(body, end) == len(body)
	}
	r.op, r.noOptions = JSON, true
	first := i + 1
	i = skipSpace(body, first)
	empty := at(body, i) == '}'
	for more := !empty; more; {
		key, keyEnd := i, validString(body, i)
		start := validColon(body, keyEnd)
		if start == 0 {
			return r, 0, false
		}
		end := validValue(body, start, 1)
		if i, more = validComma(body, end, '}'); i == 0 {
			return r, 0, false
		}
		models += r.member(body, body[key:keyEnd], start, end)
	}
	if models == 0 {
		r.start, r.end = first, first
		r.before = `"model":`
		if !empty {
			r.after = ","
		}
	}
	return r, models, skipSpace(body, i+1) == len(body)
}

// member reads a member of the body's object, whose value is body[start:end]. It returns 1 if the
// member is a model, otherwise 0.
func (r *Request) member(body, quoted []byte, start, end int) (models int) {
	if part := r.parts.named(quoted[1 : len(quoted)-1]); part != nil {
		*part = span{start, end}
		return 0
	}
	switch key := unquote(quoted); {
	case key == "stream":
		r.Stream = body[start] == 't'
	case strings.EqualFold(key, "stream_options"):
		r.noOptions = r.noOptions && body[start] == 'n' // null
	case key == "previous_response_id" && body[start] == '"' && end-start <= maxID:
		r.Previous = strings.Clone(unquote(body[start:end]))
	case strings.EqualFold(key, "model"):
		// Engines written in Go also accept "Model", so a key in another case is counted, too.
		if key == "model" {
			r.start, r.end = start, end
		}
		return 1
	}
	return 0
}

func skipSpace(body []byte, i int) int {
	for i < len(body) && (body[i] == ' ' || body[i] == '\n' || body[i] == '\r' || body[i] == '\t') {
		i++
	}
	return i
}

// endOfString returns the index after the closing quote of the string that begins at i, or 0 if
// there is no closing quote.
func endOfString(body []byte, i int) int {
	for i++; i < len(body); i++ {
		quote := bytes.IndexByte(body[i:], '"')
		if quote < 0 {
			return 0
		}
		i += quote
		escapes := 0
		for body[i-1-escapes] == '\\' { // the loop ends at the opening quote at the latest
			escapes++
		}
		if escapes%2 == 0 {
			return i + 1
		}
	}
	return 0
}

// unquote decodes a valid JSON string. The result may share memory with quoted.
func unquote(quoted []byte) string {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return unsafe.String(unsafe.SliceData(inner), len(inner))
	}
	return gjson.ParseBytes(quoted).Str
}

// appendQuoted appends a name as a JSON string.
func appendQuoted(dst []byte, name string) []byte {
	quoted, _ := json.Marshal(name)
	return append(dst, quoted...)
}
