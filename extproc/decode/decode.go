// Package decode removes the content codings of a request's body (RFC 9110, section 8.4): zstd,
// gzip, brotli and deflate. It is pure, returns either the whole body or an error, and limits the
// size of the decoded body.
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
	Deflate // in the zlib format, as RFC 9110 defines it
)

// Accept lists the codings that [Parse] accepts, as an Accept-Encoding header.
const Accept = "zstd, gzip, br, deflate"

// names maps lower-case names to codings. It omits identity, which changes nothing.
var names = map[string]Coding{"zstd": Zstd, "gzip": Gzip, "x-gzip": Gzip, "br": Brotli, "deflate": Deflate}

func (c Coding) String() string {
	return [...]string{Zstd: "zstd", Gzip: "gzip", Brotli: "br", Deflate: "deflate"}[c]
}

// maxCodings limits the number of codings of a body. Clients apply one; a proxy may add another.
const maxCodings = 3

var (
	// ErrUnsupported means that Content-Encoding names an unsupported coding, or too many.
	ErrUnsupported = errors.New("the content encoding is not supported")
	// ErrTooLarge means that the decoded body exceeds its limit.
	ErrTooLarge = errors.New("the decoded body is too large")
)

// Fault is the reason why a body cannot be decoded.
type Fault uint8

const (
	Invalid Fault = iota // the body is not in the format of its coding, or has bytes after its end
	Cut                  // the body is truncated
	Window               // the body's zstd window is larger than the limit for a body
)

// Error means that a body cannot be decoded. Its text is written for the client, and quotes nothing
// of the body.
type Error struct {
	Coding Coding
	Fault  Fault
}

func (e *Error) Error() string {
	switch e.Fault {
	case Cut:
		return fmt.Sprintf("The body ends before its content encoding (%s) does.", e.Coding)
	case Window:
		return fmt.Sprintf("The body's content encoding (%s) needs a larger window than the gateway has: encode it with one of at most 8 MiB.",
			e.Coding)
	}
	return fmt.Sprintf("The body is not valid in its content encoding (%s).", e.Coding)
}

// Parse returns the codings that a Content-Encoding header lists, in the order in which they were
// applied. It returns none for an empty header and for identity.
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

// Decoder decodes bodies. It reuses its buffers. Only one goroutine may use it at a time.
type Decoder struct {
	limit int
	zstd  *zstd.Decoder
	gzip  *gzip.Reader
}

// New returns a Decoder for bodies that have at most limit bytes after each coding is removed.
func New(limit int) *Decoder { return &Decoder{limit: limit} }

// Decode returns body without the codings in applied, which are in the order in which they were
// applied. It does not change body. The error is ErrTooLarge or an [*Error].
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
		return nil, &Error{c, Cut} // an empty body is truncated: each coding adds bytes
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
		// zstd's window consists of the decoded bytes, so one limit bounds both.
		if d.zstd == nil {
			var err error
			d.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(d.limit)))
			if err != nil {
				return nil, err
			}
		}
		return d.zstd.DecodeAll(body, nil)
	case Gzip: // a gzip body has one or more members
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
			err = zlib.ErrHeader // bytes follow the end of the body
		}
		return plain, err
	}
	return nil, ErrUnsupported
}

// ratio is the expected compression ratio. JSON and prose reach three to five.
const ratio = 4

// readAll reads r until its end. If r has more bytes than the limit, it returns an error.
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
