package transcode

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth limits the nesting of JSON values. Engines convert tensors to NumPy arrays, which have
// at most 64 dimensions.
const maxDepth = 128

var (
	errDeep = fmt.Errorf("it is nested deeper than %d levels", maxDepth)
	errEnd  = errors.New("it ends too early")
)

// scanner parses JSON (RFC 8259) in one pass. The text must be valid UTF-8. Except for peek, each
// method parses the next value and stops after it. An error is the second part of a sentence whose
// first part names the value.
type scanner struct {
	b     []byte
	i     int
	depth int
}

// peek skips white space and returns the next byte, without consuming it; 0 at the end.
func (s *scanner) peek() byte {
	for ; s.i < len(s.b); s.i++ {
		switch s.b[s.i] {
		case ' ', '\n', '\r', '\t':
		default:
			return s.b[s.i]
		}
	}
	return 0
}

// unexpected returns the error for a missing value. The argument want describes the expected value.
func (s *scanner) unexpected(want string) error {
	if s.peek() == 0 && s.i >= len(s.b) {
		return errEnd
	}
	return fmt.Errorf("at byte %d %s is missing", s.i, want)
}

// members parses an object. It calls read for each member with the key, and read must parse the
// value. It rejects duplicate keys, because engines differ in which of the two values they use.
func (s *scanner) members(read func(key string) error) error {
	seen := make(map[string]bool)
	return s.list('{', '}', "an object", func() error {
		key, err := s.text()
		switch {
		case err != nil:
			return err
		case seen[key]:
			return fmt.Errorf("the key %s comes twice", quote(key))
		case s.peek() != ':':
			return s.unexpected("a colon")
		}
		seen[key] = true
		s.i++
		return read(key)
	})
}

// elements parses an array. It calls read for each element, and read must parse the element.
func (s *scanner) elements(read func() error) error { return s.list('[', ']', "an array", read) }

// list parses a comma-separated list between two brackets.
func (s *scanner) list(from, to byte, what string, read func() error) error {
	if s.peek() != from {
		return s.unexpected(what)
	}
	if s.depth++; s.depth > maxDepth {
		return errDeep
	}
	s.i++
	if s.peek() == to {
		s.i++
		s.depth--
		return nil
	}
	for {
		if err := read(); err != nil {
			return err
		}
		switch s.peek() {
		case ',':
			s.i++
		case to:
			s.i++
			s.depth--
			return nil
		default:
			return s.unexpected("a comma or the end of " + what)
		}
	}
}

// flat parses an array that may contain nested arrays. It calls read for each element that is not
// an array, in order. As in MLServer and Triton, the nesting does not define the shape. For tensors
// with millions of elements, flat is faster than elements.
func (s *scanner) flat(read func() error) error {
	if s.peek() != '[' {
		return s.unexpected("an array")
	}
	for outer := s.depth; ; {
		for s.peek() == '[' {
			if s.depth++; s.depth > maxDepth {
				return errDeep
			}
			s.i++
		}
		if empty := s.peek() == ']' && s.before() == '['; !empty {
			if err := read(); err != nil {
				return err
			}
		}
		for s.peek() == ']' {
			s.i++
			if s.depth--; s.depth == outer {
				return nil
			}
		}
		if s.peek() != ',' {
			return s.unexpected("a comma or the end of an array")
		}
		s.i++
	}
}

// before returns the last byte before the current position that is not white space.
func (s *scanner) before() byte {
	head := bytes.TrimRight(s.b[:s.i], " \n\r\t")
	return head[len(head)-1]
}

// skip parses any value and ignores it.
func (s *scanner) skip() error {
	switch s.peek() {
	case '{':
		return s.list('{', '}', "an object", func() error { // an ignored value may have duplicate keys
			if _, err := s.text(); err != nil {
				return err
			}
			if s.peek() != ':' {
				return s.unexpected("a colon")
			}
			s.i++
			return s.skip()
		})
	case '[':
		return s.elements(s.skip)
	case '"':
		_, err := s.text()
		return err
	case 't', 'f', 'n':
		if s.word("true") || s.word("false") || s.word("null") {
			return nil
		}
		return s.unexpected("a value")
	}
	_, err := s.number()
	return err
}

// word consumes a word, such as true, false or null. It returns false if another text comes next.
func (s *scanner) word(word string) bool {
	s.peek()
	if !bytes.HasPrefix(s.b[s.i:], []byte(word)) {
		return false
	}
	s.i += len(word)
	return true
}

// number parses a number, and returns its text.
func (s *scanner) number() ([]byte, error) {
	s.peek()
	start := s.i
	s.sign('-', '-')
	switch {
	case s.i < len(s.b) && s.b[s.i] == '0':
		s.i++
	case !s.digits():
		s.i = start
		return nil, s.unexpected("a number")
	}
	if s.i < len(s.b) && s.b[s.i] == '.' {
		if s.i++; !s.digits() {
			return nil, s.unexpected("a digit")
		}
	}
	if s.i < len(s.b) && s.b[s.i]|0x20 == 'e' {
		s.i++
		if s.sign('-', '+'); !s.digits() {
			return nil, s.unexpected("a digit")
		}
	}
	return s.b[start:s.i], nil
}

func (s *scanner) sign(one, other byte) {
	if s.i < len(s.b) && (s.b[s.i] == one || s.b[s.i] == other) {
		s.i++
	}
}

func (s *scanner) digits() bool {
	start := s.i
	for s.i < len(s.b) && s.b[s.i]-'0' < 10 {
		s.i++
	}
	return s.i > start
}

// text parses a string.
func (s *scanner) text() (string, error) {
	text, err := s.appendText(nil)
	return string(text), err
}

// appendText parses a string, and appends its content to dst.
func (s *scanner) appendText(dst []byte) ([]byte, error) {
	if s.peek() != '"' {
		return nil, s.unexpected("a string")
	}
	s.i++
	for start := s.i; s.i < len(s.b); {
		switch c := s.b[s.i]; {
		case c == '"':
			dst = append(dst, s.b[start:s.i]...)
			s.i++
			return dst, nil
		case c < ' ':
			return nil, fmt.Errorf("at byte %d a string has a control character that is not escaped", s.i)
		case c != '\\':
			s.i++
		default:
			dst = append(dst, s.b[start:s.i]...)
			var err error
			if dst, err = s.unescape(dst); err != nil {
				return nil, err
			}
			start = s.i
		}
	}
	return nil, errEnd
}

// escapes is a list of pairs: a character after a backslash, and the character that both stand for.
const escapes = `""\\//b` + "\b" + `f` + "\f" + `n` + "\n" + `r` + "\r" + `t` + "\t"

// unescape parses an escape sequence. Like MLServer and Triton it rejects a surrogate without its
// other half.
func (s *scanner) unescape(dst []byte) ([]byte, error) {
	if s.i+1 < len(s.b) && s.b[s.i+1] == 'u' {
		r, ok := s.hex()
		if ok && utf16.IsSurrogate(r) {
			var low rune
			if low, ok = s.hex(); ok {
				r = utf16.DecodeRune(r, low)
				ok = r != utf8.RuneError
			}
		}
		if !ok {
			return nil, fmt.Errorf("at byte %d a string has an escape that is not a character", s.i)
		}
		return utf8.AppendRune(dst, r), nil
	}
	for i := 0; s.i+1 < len(s.b) && i < len(escapes); i += 2 {
		if escapes[i] == s.b[s.i+1] {
			s.i += 2
			return append(dst, escapes[i+1]), nil
		}
	}
	return nil, fmt.Errorf("at byte %d a string has an unknown escape", s.i)
}

// hex parses \u and four hexadecimal digits. It returns false if another text comes next.
func (s *scanner) hex() (r rune, ok bool) {
	if len(s.b)-s.i < 6 || s.b[s.i] != '\\' || s.b[s.i+1] != 'u' {
		return 0, false
	}
	for _, c := range s.b[s.i+2 : s.i+6] {
		digit := strings.IndexByte("0123456789abcdef0123456789ABCDEF", c)
		if digit < 0 {
			return 0, false
		}
		r = r<<4 | rune(digit%16)
	}
	s.i += 6
	return r, true
}

// end returns an error unless the text ends here.
func (s *scanner) end() error {
	if s.peek(); s.i < len(s.b) {
		return fmt.Errorf("unexpected data after its end, at byte %d", s.i)
	}
	return nil
}

// maxQuoted limits how many bytes of the request an error repeats.
const maxQuoted = 128

func quote(name string) string { return "'" + short(name) + "'" }

// short truncates a name that an error repeats.
func short(name string) string {
	if len(name) > maxQuoted {
		return strings.ToValidUTF8(name[:maxQuoted], "") + "…"
	}
	return name
}
