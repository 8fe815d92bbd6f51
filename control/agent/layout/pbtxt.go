package layout

import (
	"errors"
	"fmt"
	"strings"
)

// pbField is a field of a message in the text format of Protocol Buffers.
type pbField struct {
	name       string
	start, end int    // where it is in the text, without a separator after it
	value      string // text of the value
}

var errUnclosed = errors.New("a bracket or a quotation mark is not closed")

// readFields finds the fields of a message in the text format of Protocol Buffers. It needs no
// schema of the message, so it accepts fields of all versions of Triton.
func readFields(message string) (fields []pbField, err error) {
	r := pbReader{text: message}
	for {
		r.space()
		for r.skip(',') || r.skip(';') {
			r.space()
		}
		if r.at == len(r.text) {
			return fields, nil
		}
		f := pbField{start: r.at}
		if f.name, err = r.word(); err != nil {
			return nil, err
		}
		r.space()
		if r.skip(':') {
			r.space()
		}
		from := r.at
		if err := r.value(); err != nil {
			return nil, err
		}
		f.end, f.value = r.at, r.text[from:r.at]
		fields = append(fields, f)
	}
}

// pbReader reads a text from a position on.
type pbReader struct {
	text string
	at   int
}

// space skips white space and comments.
func (r *pbReader) space() {
	for r.at < len(r.text) {
		switch r.text[r.at] {
		case ' ', '\t', '\r', '\n', '\v', '\f':
			r.at++
		case '#':
			line := strings.IndexByte(r.text[r.at:], '\n')
			if line < 0 {
				r.at = len(r.text)
				return
			}
			r.at += line + 1
		default:
			return
		}
	}
}

// skip skips a byte, and reports whether it was there.
func (r *pbReader) skip(b byte) bool {
	if r.at == len(r.text) || r.text[r.at] != b {
		return false
	}
	r.at++
	return true
}

// delimiters end a word.
const delimiters = " \t\r\n\v\f#:,;{}<>[]\"'"

// word reads a name, a number or another value without brackets and quotation marks.
func (r *pbReader) word() (string, error) {
	n := strings.IndexAny(r.text[r.at:], delimiters)
	if n < 0 {
		n = len(r.text) - r.at
	}
	if n == 0 {
		if r.at == len(r.text) {
			return "", errors.New("it ends where a value is missing")
		}
		return "", fmt.Errorf("%q is where a name or a value is missing", r.text[r.at])
	}
	word := r.text[r.at : r.at+n]
	r.at += n
	return word, nil
}

// value reads a value. Several strings in a row are one value.
func (r *pbReader) value() error {
	if r.at == len(r.text) {
		return errors.New("it ends where a value is missing")
	}
	switch r.text[r.at] {
	case '{', '<', '[':
		return r.brackets()
	case '"', '\'':
		for {
			if err := r.quoted(); err != nil {
				return err
			}
			end := r.at
			r.space()
			if r.at == len(r.text) || r.text[r.at] != '"' && r.text[r.at] != '\'' {
				r.at = end
				return nil
			}
		}
	case '-': // white space may follow it
		r.at++
		r.space()
	}
	_, err := r.word()
	return err
}

// brackets reads a message or a list to its end.
func (r *pbReader) brackets() error {
	var open []byte // closing brackets that are due
	for r.at < len(r.text) {
		switch b := r.text[r.at]; b {
		case '{':
			open = append(open, '}')
		case '<':
			open = append(open, '>')
		case '[':
			open = append(open, ']')
		case '}', '>', ']':
			if b != open[len(open)-1] {
				return errUnclosed
			}
			if open = open[:len(open)-1]; len(open) == 0 {
				r.at++
				return nil
			}
		case '"', '\'':
			if err := r.quoted(); err != nil {
				return err
			}
			continue
		case '#':
			r.space()
			continue
		}
		r.at++
	}
	return errUnclosed
}

// quoted reads a string to its quotation mark.
func (r *pbReader) quoted() error {
	mark := r.text[r.at]
	for r.at++; r.at < len(r.text); r.at++ {
		switch r.text[r.at] {
		case '\\':
			r.at++
		case mark:
			r.at++
			return nil
		case '\n':
			return errUnclosed
		}
	}
	return errUnclosed
}

// quote returns a string in the text format of Protocol Buffers.
func quote(text string) string {
	var out strings.Builder
	out.WriteByte('"')
	for i := range len(text) {
		switch b := text[i]; {
		case b == '"' || b == '\\':
			out.WriteByte('\\')
			out.WriteByte(b)
		case b < ' ' || b == 0x7f:
			fmt.Fprintf(&out, `\%03o`, b)
		default:
			out.WriteByte(b)
		}
	}
	out.WriteByte('"')
	return out.String()
}
