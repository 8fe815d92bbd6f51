package openai

import (
	"bytes"
	"strings"

	"github.com/tidwall/gjson"
)

// parsePrefix parses the complete members of a truncated object.
func parsePrefix(prefix []byte) (Request, error) {
	p := prefixReader{body: prefix}
	r := Request{op: JSON, truncated: true}
	models := 0
	p.space()
	if !p.take('{') {
		return Request{}, fault("", "The body must be a JSON object.")
	}
	for first := true; ; first = false {
		p.space()
		if !first && !p.take(',') {
			break
		}
		p.space()
		key, ok := p.text()
		p.space()
		if !ok || !p.take(':') {
			break
		}
		p.space()
		start := p.at
		if !p.value() {
			break
		}
		switch key := unquote(key); {
		case key == "stream":
			r.Stream = prefix[start] == 't'
		case strings.EqualFold(key, "model"):
			models++
			r.start, r.end = start, p.at
			if key != "model" {
				return Request{}, fault("model", "The model's key is written in another case.")
			}
		}
	}
	switch {
	case models == 0:
		return Request{}, errNotInPrefix
	case models > 1:
		return Request{}, fault("model", "The body exceeds one model.")
	case string(prefix[r.start:r.end]) == `""`, string(bytes.TrimSpace(prefix[r.start:r.end])) == "null":
		r.absent = true
		return r, absent(jsonAbsent)
	case prefix[r.start] != '"':
		return Request{}, fault("model", "The model must be a string.")
	}
	r.Model = strings.Clone(unquote(prefix[r.start:r.end]))
	return r, CheckText(r.Model)
}

// prefixReader scans JSON that may end anywhere. Its methods return false where the JSON ends or is
// invalid.
type prefixReader struct {
	body []byte
	at   int
}

func (p *prefixReader) space() { p.at = skipSpace(p.body, p.at) }

func (p *prefixReader) take(c byte) bool {
	if p.at < len(p.body) && p.body[p.at] == c {
		p.at++
		return true
	}
	return false
}

// text returns the next complete string, with its quotes.
func (p *prefixReader) text() ([]byte, bool) {
	if p.at >= len(p.body) || p.body[p.at] != '"' {
		return nil, false
	}
	end := endOfString(p.body, p.at)
	if end == 0 {
		return nil, false
	}
	quoted := p.body[p.at:end]
	p.at = end
	return quoted, gjson.ValidBytes(quoted)
}

// value skips the next complete value. Unless more text follows the value, it may be incomplete,
// and value returns false.
func (p *prefixReader) value() bool {
	depth := 0
	for p.at < len(p.body) {
		switch c := p.body[p.at]; c {
		case '"':
			if _, ok := p.text(); !ok {
				return false
			}
		case '{', '[':
			depth++
			p.at++
		case '}', ']':
			if depth == 0 {
				return true // c belongs to the enclosing object
			}
			depth--
			p.at++
		case ',':
			if depth == 0 {
				return true
			}
			p.at++
			continue
		default:
			p.at++
			continue
		}
		if depth == 0 {
			return true
		}
	}
	return false
}
