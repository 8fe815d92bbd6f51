package outcome

import (
	"bytes"

	"github.com/tidwall/gjson"

	"github.com/headgate/headgate/internal/engine"
)

// scanner parses a JSON text in chunks of any size, in one pass and constant memory. It finds the
// few values that an outcome needs: the token counts in "usage" and the "id", at the top or within
// "response" (OpenAI's responses) or "message" (Anthropic's streams), and the type and code of an
// "error", at the top or within "response". A text that is not a JSON object yields no values. The
// zero scanner is ready for use.
type scanner struct {
	counts               Counts
	id                   string
	errorType, errorCode string
	message              string // the error's message

	depth    int
	isObject uint64 // bit d is 1 if the container at depth d is an object
	path     [3]string
	wantKey  bool // the scanner is in an object, before a key
	inString bool
	isKey    bool // the current string is a key
	escaped  bool
	token    []byte // the current string so far; nil if it is not needed
	usage    []byte // the current usage or error object so far; nil outside such an object
	usageAt  int    // depth of the object in usage
	isError  bool   // whether usage contains an error object
}

const (
	maxToken = 256     // maximum size of a stored key or id
	maxUsage = 4 << 10 // maximum size of a usage or error object; vLLM's usage has 300 bytes
)

// restart prepares the scanner for another text. Values that it found earlier remain until the new
// text has them, too.
func (s *scanner) restart() {
	*s = scanner{counts: s.counts, id: s.id, errorType: s.errorType, errorCode: s.errorCode, message: s.message}
}

func (s *scanner) read(chunk []byte) {
	for len(chunk) > 0 {
		n := 1
		if s.inString {
			n = s.inside(chunk)
		} else {
			s.outside(chunk[0])
		}
		if s.usage != nil {
			s.keep(chunk[:n])
		}
		chunk = chunk[n:]
	}
}

// keep appends part to the usage or error object, and parses the object when it is complete.
func (s *scanner) keep(part []byte) {
	if len(s.usage)+len(part) > maxUsage {
		s.usage = nil
		return
	}
	s.usage = append(s.usage, part...)
	if s.depth < s.usageAt {
		if s.isError {
			s.err(s.usage)
		} else {
			s.count(s.usage)
		}
		s.usage = nil
	}
}

// inside scans a chunk within a string. It returns the number of bytes that it consumed.
func (s *scanner) inside(chunk []byte) int {
	if s.escaped {
		s.escaped = false
		s.append(chunk[:1])
		return 1
	}
	end := bytes.IndexAny(chunk, `"\`)
	switch {
	case end < 0:
		s.append(chunk)
		return len(chunk)
	case end > 0:
		s.append(chunk[:end])
		return end
	case chunk[0] == '\\':
		s.escaped = true
		s.append(chunk[:1])
		return 1
	}
	s.inString = false
	s.endString()
	return 1
}

func (s *scanner) append(part []byte) {
	if s.token == nil {
		return
	}
	if len(s.token)+len(part) > maxToken {
		s.token = nil
		return
	}
	s.token = append(s.token, part...)
}

func (s *scanner) endString() {
	switch {
	case s.isKey && s.depth < len(s.path):
		s.path[s.depth] = string(s.token)
	case !s.isKey && s.token != nil && s.wants("id"):
		s.id = string(s.token)
	case !s.isKey && s.token != nil && s.depth == 1 && s.path[1] == "code":
		s.errorCode = string(s.token)
	}
	s.token = nil
}

// wants is true if the value of a key is needed at the current place.
func (s *scanner) wants(key string) bool {
	switch s.depth {
	case 1:
		return s.path[1] == key
	case 2:
		return s.path[2] == key && (s.path[1] == "response" || s.path[1] == "message") && s.isObject&(1<<1) != 0
	}
	return false
}

// outside scans a byte that is not within a string.
func (s *scanner) outside(c byte) {
	switch c {
	case '"':
		s.inString, s.isKey = true, s.wantKey
		if (s.isKey && s.depth < len(s.path)) || (!s.isKey && s.inObject() && (s.wants("id") || s.depth == 1 && s.path[1] == "code")) {
			s.token = make([]byte, 0, 16)
		}
		if !s.isKey && s.inObject() && s.wants("error") && s.errorType == "" {
			s.errorType = UnknownError
		}
		s.wantKey = false
	case '{', '[':
		if c == '{' && s.usage == nil && s.inObject() && (s.wants("usage") || s.wants("error")) {
			s.usage, s.usageAt, s.isError = make([]byte, 0, 256), s.depth+1, s.wants("error")
			if s.isError {
				s.errorType = UnknownError // used if the object is too long to keep
			}
		}
		s.depth++
		if s.depth < 64 {
			s.isObject &^= 1 << s.depth
			if c == '{' {
				s.isObject |= 1 << s.depth
			}
		}
		if s.depth < len(s.path) {
			s.path[s.depth] = ""
		}
		s.wantKey = c == '{'
	case '}', ']':
		s.depth = max(0, s.depth-1)
		s.wantKey = false
	case ',':
		s.wantKey = s.inObject()
	}
}

func (s *scanner) inObject() bool { return s.depth > 0 && s.depth < 64 && s.isObject&(1<<s.depth) != 0 }

// UnknownError is the type of an error that states no type.
const UnknownError = "unknown"

// err parses an error object: its type, its code and its message, each of which may be missing.
func (s *scanner) err(object []byte) {
	s.message = gjson.GetBytes(object, "message").Str
	if kind := gjson.GetBytes(object, "type"); kind.Type == gjson.String {
		s.errorType = kind.Str
	}
	if code := gjson.GetBytes(object, "code"); code.Type == gjson.String || code.Type == gjson.Number {
		s.errorCode = code.String()
	}
}

// count parses a usage object with the names of OpenAI's older APIs, of OpenAI's responses API, or
// of Anthropic's API. It ignores the completion in the first event of a stream of messages, which
// is 0 or 1 whatever follows.
func (s *scanner) count(usage []byte) {
	input, completion := &s.counts.Input, &s.counts.Completion
	if s.path[1] == "message" {
		input, completion = &s.counts.Begun, new(engine.Value)
	}
	for _, c := range []struct {
		name string
		to   *engine.Value
	}{
		{"input_tokens", &input.Tokens},
		{"prompt_tokens", &s.counts.Prompt},
		{"output_tokens", completion},
		{"completion_tokens", completion},
		{"cache_read_input_tokens", &input.CacheRead},
		{"cache_creation_input_tokens", &input.CacheCreation},
	} {
		if v := gjson.GetBytes(usage, c.name); v.Type == gjson.Number {
			*c.to = engine.Known(v.Num)
		}
	}
}
