// Package decode undoes the content codings of a request's body (RFC 9110, section 8.4): zstd, gzip, brotli and deflate.
// It is pure, returns the whole body or an error, and bounds what a body may grow to.
package decode

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/zstd"
)

// Coding is one content coding.
type Coding uint8

const (
	Zstd Coding = iota
	Gzip
	Brotli
	Deflate // in the format of zlib, as RFC 9110 has it
)

// Accept is the codings that [Parse] takes, as the value of an Accept-Encoding header.
const Accept = "zstd, gzip, br, deflate"

// names are the codings by their names in lower case. Identity changes nothing, and is no coding.
var names = map[string]Coding{"zstd": Zstd, "gzip": Gzip, "x-gzip": Gzip, "br": Brotli, "deflate": Deflate}

func (c Coding) String() string {
	return [...]string{Zstd: "zstd", Gzip: "gzip", Brotli: "br", Deflate: "deflate"}[c]
}

// maxCodings bounds how many codings one body has. Clients apply one; a proxy between may add another.
const maxCodings = 3

var (
	// ErrUnsupported is a Content-Encoding that names a coding which is not supported, or too many.
	ErrUnsupported = errors.New("the content encoding is not supported")
	// ErrTooLarge is a body that is larger than its limit once it is decoded.
	ErrTooLarge = errors.New("the decoded body is too large")
)

// Fault is what is wrong with a body.
type Fault uint8

const (
	Invalid Fault = iota // it is not what its coding says, or something follows its end
	Cut                  // it ends too early
	Window               // it wants a larger window of zstd than a body may be long
)

// Error is a body that cannot be decoded, in words for the client. It quotes nothing of the body.
type Error struct {
	Coding Coding
	Fault  Fault
}

func (e *Error) Error() string {
	switch e.Fault {
	case Cut:
		return fmt.Sprintf("The body ends before its content encoding (%s) does.", e.Coding)
	case Window:
		return fmt.Sprintf("The body's content encoding (%s) needs a larger window than the gateway has: encode it with one of at most 8 MiB.", e.Coding)
	}
	return fmt.Sprintf("The body is not valid in its content encoding (%s).", e.Coding)
}

// Parse returns the codings that the value of a Content-Encoding header names, in the order in which they were applied.
// It returns none for an empty value and for identity.
func Parse(header string) ([]Coding, error) {
	if header == "" {
		return nil, nil
	}
	var all []Coding
	for name := range strings.SplitSeq(header, ",") {
		name = strings.ToLower(strings.Trim(name, " \t"))
		if name == "" || name == "identity" {
			continue
		}
		c, ok := names[name]
		if !ok || len(all) == maxCodings {
			return nil, ErrUnsupported
		}
		all = append(all, c)
	}
	return all, nil
}

// Decoder undoes codings. It keeps buffers from one body to the next, and is used by one goroutine at a time.
type Decoder struct {
	limit int
	zstd  *zstd.Decoder
	gzip  *gzip.Reader
}

// New returns a Decoder of bodies that have at most limit bytes after each of their codings is undone.
func New(limit int) *Decoder { return &Decoder{limit: limit} }

// Decode returns a body without its codings, which were applied in this order. The body is not changed. The error is
// ErrTooLarge or an [*Error].
func (d *Decoder) Decode(body []byte, applied []Coding) ([]byte, error) {
	for _, c := range slices.Backward(applied) {
		var err error
		if body, err = d.undo(body, c); err != nil {
			return nil, err
		}
	}
	return body, nil
}

func (d *Decoder) undo(body []byte, c Coding) ([]byte, error) {
	if len(body) == 0 {
		return nil, &Error{c, Cut} // none of the codings makes nothing out of nothing
	}
	plain, err := d.read(body, c)
	switch {
	case err == nil:
		return plain, nil
	case errors.Is(err, ErrTooLarge), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return nil, ErrTooLarge
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, &Error{c, Cut}
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return nil, &Error{c, Window}
	}
	return nil, &Error{c, Invalid}
}

func (d *Decoder) read(body []byte, c Coding) ([]byte, error) {
	in := bytes.NewReader(body)
	switch c {
	case Zstd:
		// A frame's window costs nothing here: what was decoded is the window, so that the limit bounds both.
		if d.zstd == nil {
			var err error
			d.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(d.limit)))
			if err != nil {
				return nil, err
			}
		}
		return d.zstd.DecodeAll(body, nil)
	case Gzip: // of one member or more
		if d.gzip == nil {
			d.gzip = new(gzip.Reader)
		}
		if err := d.gzip.Reset(in); err != nil {
			return nil, err
		}
		return d.readAll(d.gzip, len(body))
	case Brotli:
		return d.readAll(brotli.NewReader(in), len(body))
	case Deflate:
		r, err := zlib.NewReader(in)
		if err != nil {
			return nil, err
		}
		plain, err := d.readAll(r, len(body))
		if err == nil && in.Len() > 0 {
			err = zlib.ErrHeader // of what follows its end
		}
		return plain, err
	}
	return nil, ErrUnsupported
}

// ratio is how much longer a body is expected to be than what is decoded: JSON and prose come to three to five.
const ratio = 4

// readAll reads to the end, or until more has come than the limit.
func (d *Decoder) readAll(r io.Reader, encoded int) ([]byte, error) {
	most := d.limit + 1
	out := make([]byte, 0, min(ratio*encoded, most))
	for {
		if len(out) == most {
			return nil, ErrTooLarge
		}
		if len(out) == cap(out) {
			out = append(out, 0)[:len(out)]
		}
		n, err := r.Read(out[len(out):min(cap(out), most)])
		out = out[:len(out)+n]
		if err != nil && len(out) == most {
			return nil, ErrTooLarge
		}
		switch err {
		case nil:
		case io.EOF:
			return out, nil
		default:
			return nil, err
		}
	}
}
