package openai

import (
	"bytes"
	"encoding/json"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"
)

// maxDepth limits the nesting of a body, as encoding/json does. Deeper bodies would overflow the
// validator's stack: 32 MiB of "[" would end the process. (Real requests nest far less; Python's
// own parser stops at 1,000 levels.)
const maxDepth = 10_000

const jsonAbsent = "The body has no model: name one of GET /v1/models."

func parseJSON(body []byte) (Request, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return Request{}, fault("", "The request has no body: send a JSON object.")
	}
	if tooDeep(body) {
		return Request{}, fault("", "The body is nested too deep.")
	}
	if !gjson.ValidBytes(body) {
		return Request{}, fault("", "The body is not valid JSON.")
	}
	r, models := walk(body)
	switch {
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

// tooDeep reports whether body nests deeper than maxDepth. For nearly every body, counting brackets
// decides this, which is cheap.
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

// walk scans the members of the object in a valid body. It needs one pass and decodes only short
// keys. It returns the place of the last model, or the place to insert a model, and the number of
// models. Op is None if the body is not an object.
//
// gjson's own ForEach would decode every string, including the prompt.
func walk(body []byte) (r Request, models int) {
	i := skipSpace(body, 0)
	if body[i] != '{' {
		return r, 0
	}
	r.op = JSON
	first := i + 1
	for i = skipSpace(body, i+1); body[i] != '}'; i = skipSpace(body, i) {
		if body[i] == ',' {
			i = skipSpace(body, i+1)
		}
		keyEnd := endOfString(body, i)
		key := unquote(body[i:keyEnd])
		start := skipSpace(body, skipSpace(body, keyEnd)+1) // index of the value after the colon
		i = endOfValue(body, start)
		switch {
		case key == "stream":
			r.Stream = body[start] == 't'
		case key == "previous_response_id" && body[start] == '"' && i-start <= maxID:
			r.Previous = strings.Clone(unquote(body[start:i]))
		case strings.EqualFold(key, "model"):
			// Engines written in Go also accept "Model", so a key in another case is counted, too.
			models++
			if key == "model" {
				r.start, r.end = start, i
			}
		}
	}
	if models == 0 {
		r.start, r.end = first, first
		r.before = `"model":`
		if body[skipSpace(body, first)] != '}' {
			r.after = ","
		}
	}
	return r, models
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

// endOfValue returns the index after the valid value that begins at i.
func endOfValue(body []byte, i int) int {
	switch body[i] {
	case '"':
		return endOfString(body, i)
	case '{', '[':
		for depth := 0; ; i++ {
			switch body[i] {
			case '"':
				i = endOfString(body, i) - 1
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
