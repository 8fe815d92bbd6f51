package scrape

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
)

// maxHead is the maximum size of the head of a response that is parsed here.
const maxHead = 16 << 10

var (
	// errRefused means that a response must be read by net/http, which has more features and
	// reports errors in detail.
	errRefused = errors.New("the response is left to net/http")
	errTooLong = fmt.Errorf("the page has more than %d bytes", maxPage)
)

// response parses a plain HTTP/1.1 response to a GET request, as engines send them: with a
// Content-Length or in chunks, without trailers, encodings or continuation lines. It refuses
// everything else, so that each response that it accepts means the same to net/http. It is pure.
//
// The caller appends received bytes to a buffer, and calls advance after each read. Data of chunks
// moves to the place where the body begins, so that the body is one slice of the buffer.
type response struct {
	limit int // maximum length of the body

	// The head, valid once body is not 0.
	status int
	media  string // value of Content-Type
	last   bool   // whether the connection ends with this response
	body   int    // index of the first byte of the body; 0 before the head is complete

	size  int  // Content-Length; with chunks, the sum of the chunks that have begun
	have  int  // length of the body so far, at buffer[body:]
	parts bool // whether the body has chunks
	state chunkState
}

// chunkState says which part of a chunked body (RFC 9112, section 7.1) comes next.
type chunkState uint8

const (
	chunkSize chunkState = iota // the line with the size of a chunk
	chunkData                   // data of a chunk
	chunkEnd                    // the line break after the data
	noTrailer                   // the empty line at the end of the body
	allParts                    // nothing
)

// advance parses what was received so far, and returns the buffer without bytes that are not needed
// any more. Done reports that the response is complete; bytes after it remain in the buffer, after
// the body. Errors are errRefused, and errTooLong if the body is longer than the limit.
func (r *response) advance(buffer []byte) (rest []byte, done bool, err error) {
	if r.body == 0 {
		if err := r.head(buffer); err != nil || r.body == 0 {
			return buffer, false, err
		}
	}
	if !r.parts {
		r.have = min(len(buffer)-r.body, r.size)
		return buffer, r.have == r.size, nil
	}
	return r.chunks(buffer)
}

// excess returns the number of bytes in the buffer after a complete response.
func (r *response) excess(buffer []byte) int { return len(buffer) - r.body - r.have }

// missing returns how many bytes of the response are still to come at least; 0 if that is unknown.
func (r *response) missing() int {
	if r.body == 0 {
		return 0
	}
	return r.size - r.have
}

// head parses the head if it is complete.
func (r *response) head(buffer []byte) error {
	*r = response{limit: r.limit}
	var encoded, length, typed bool
	var media []byte
	at, first := 0, true
	for {
		end := bytes.IndexByte(buffer[at:], '\n')
		if end < 0 || at+end > maxHead {
			if len(buffer) > maxHead {
				return errRefused
			}
			return nil
		}
		line := buffer[at : at+end]
		at += end + 1
		if len(line) == 0 || line[len(line)-1] != '\r' {
			return errRefused
		}
		line = line[:len(line)-1]
		if first {
			if first = false; !r.statusLine(line) {
				return errRefused
			}
			continue
		}
		if len(line) == 0 {
			break
		}
		name, value, ok := header(line)
		if !ok {
			return errRefused
		}
		switch {
		case is(name, "content-length"):
			if length || !r.length(value) {
				return errRefused
			}
			length = true
		case is(name, "transfer-encoding"):
			if encoded || !is(value, "chunked") {
				return errRefused
			}
			encoded = true
		case is(name, "content-type"):
			if !typed { // the first one counts
				media, typed = value, true
			}
		case is(name, "connection"):
			if r.last || !is(value, "close") && !is(value, "keep-alive") {
				return errRefused
			}
			r.last = is(value, "close")
		case is(name, "content-encoding"), is(name, "trailer"), is(name, "upgrade"):
			return errRefused
		}
	}
	if encoded == length { // without either, the body ends with the connection
		return errRefused
	}
	if r.size > r.limit {
		return errTooLong
	}
	r.media, r.parts, r.body = string(media), encoded, at
	return nil
}

// statusLine parses the first line. It refuses informational responses, redirects, and responses
// without a body.
func (r *response) statusLine(line []byte) bool {
	const version = "HTTP/1.1 "
	if len(line) < len(version)+3 || string(line[:len(version)]) != version {
		return false
	}
	for _, digit := range line[len(version) : len(version)+3] {
		if digit < '0' || digit > '9' {
			return false
		}
		r.status = 10*r.status + int(digit-'0')
	}
	reason := line[len(version)+3:]
	if len(reason) > 0 && reason[0] != ' ' || !plain(reason) {
		return false
	}
	return r.status == 200 || r.status >= 400 && r.status < 600
}

// header splits a line of the head.
func header(line []byte) (name, value []byte, ok bool) {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 {
		return nil, nil, false
	}
	for _, b := range line[:colon] {
		if !token(b) {
			return nil, nil, false
		}
	}
	value = bytes.Trim(line[colon+1:], " \t")
	return line[:colon], value, plain(value)
}

// token reports whether a name may contain a byte (RFC 9110, section 5.6.2).
func token(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", b) >= 0
}

// plain reports whether a text has no control characters other than tabs.
func plain(text []byte) bool {
	for _, b := range text {
		if b < ' ' && b != '\t' || b == 0x7f {
			return false
		}
	}
	return true
}

// is compares a text with one in lower case, without regard to the case of ASCII letters.
func is(text []byte, lower string) bool {
	if len(text) != len(lower) {
		return false
	}
	for i, b := range text {
		if b >= 'A' && b <= 'Z' {
			b += 'a' - 'A'
		}
		if b != lower[i] {
			return false
		}
	}
	return true
}

// length parses a Content-Length.
func (r *response) length(value []byte) bool {
	if len(value) == 0 || len(value) > 15 {
		return false
	}
	for _, digit := range value {
		if digit < '0' || digit > '9' {
			return false
		}
		r.size = 10*r.size + int(digit-'0')
	}
	return true
}

// chunks parses a body of chunks.
func (r *response) chunks(buffer []byte) (rest []byte, done bool, err error) {
	next := r.body + r.have // index of the first byte that is not parsed
	for more := true; more; {
		raw := buffer[next:]
		switch more = len(raw) > 0; r.state {
		case chunkSize:
			n, used, ok := sizeLine(raw)
			if !ok {
				return buffer, false, errRefused
			}
			if more = used > 0; !more {
				break
			}
			next += used
			r.size += n
			switch r.state = chunkData; {
			case n == 0:
				r.state = noTrailer
			case r.size > r.limit:
				return buffer, false, errTooLong
			}
		case chunkData:
			n := copy(buffer[r.body+r.have:], raw[:min(len(raw), r.size-r.have)])
			next += n
			if r.have += n; r.have == r.size {
				r.state = chunkEnd
			}
		case chunkEnd, noTrailer:
			const lineBreak = "\r\n"
			if n := min(len(raw), len(lineBreak)); string(raw[:n]) != lineBreak[:n] {
				return buffer, false, errRefused
			}
			if more = len(raw) >= len(lineBreak); !more {
				break
			}
			next += len(lineBreak)
			if r.state++; r.state == noTrailer {
				r.state = chunkSize
			}
		case allParts:
			more = false
		}
	}
	n := copy(buffer[r.body+r.have:], buffer[next:])
	return buffer[:r.body+r.have+n], r.state == allParts, nil
}

// sizeLine parses the line before a chunk, with at most seven digits and without extensions. It
// returns the number of bytes of the line, which is 0 if the line is incomplete.
func sizeLine(raw []byte) (size, used int, ok bool) {
	for i, b := range raw {
		switch {
		case b == '\r' && i > 0:
			if i+1 == len(raw) {
				return 0, 0, true
			}
			return size, i + 2, raw[i+1] == '\n'
		case i == 7:
			return 0, 0, false
		case b >= '0' && b <= '9':
			size = size<<4 + int(b-'0')
		case b >= 'a' && b <= 'f':
			size = size<<4 + int(b-'a') + 10
		case b >= 'A' && b <= 'F':
			size = size<<4 + int(b-'A') + 10
		default:
			return 0, 0, false
		}
	}
	return 0, 0, true
}
