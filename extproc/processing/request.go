// Package processing contains the messages of Envoy's ext_proc protocol as far as extproc uses
// them. They are read from the wire and written to it directly. The results are those of generated
// code: of repeated fields the last one counts, messages are merged, and fields may be in any
// order. Faults in parts that extproc does not use are not found.
package processing

import (
	"errors"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/extproc/codec"
)

// Part is a part of an HTTP request or of its response. Its value is the number of its field in a
// ProcessingRequest; 0 means none.
type Part uint8

// The parts.
const (
	RequestHeaders Part = iota + 2
	ResponseHeaders
	RequestBody
	ResponseBody
	RequestTrailers
	ResponseTrailers
)

// Header is a header line.
type Header struct{ Name, Value string }

// Config is a ProtocolConfiguration: how the data plane sends bodies. Modes are the values of the
// enum ProcessingMode.BodySendMode.
type Config struct {
	Announced                         bool // the message has a configuration
	RequestBodyMode, ResponseBodyMode int32
}

// Request is a ProcessingRequest. It implements [codec.Holder].
type Request struct {
	// Part is the part of the HTTP request in this message.
	Part Part
	// Headers are the header lines, in order. All share the memory of one string. The lines of
	// trailers are not read.
	Headers []Header
	// Body is the body or a chunk of it. It is valid until Release.
	Body []byte
	// End means that no further part of the body follows.
	End      bool
	Config   Config
	Metadata Metadata

	buffer codec.Buffer
}

var _ codec.Holder = (*Request)(nil)

// Held implements [codec.Holder].
func (r *Request) Held() *[]byte { return &r.Body }

// Hold implements [codec.Holder].
func (r *Request) Hold(b codec.Buffer) { r.buffer = b }

// Release releases the memory of the body, and clears the message. It may be called more than once.
func (r *Request) Release() {
	r.buffer.Release()
	*r = Request{}
}

var errInvalid = errors.New("the message is not a valid ProcessingRequest")

// Decode implements [codec.Message]. Of wire, the message refers only to the body.
func (r *Request) Decode(wire []byte) error {
	*r = Request{}
	if !codec.Fields(wire, r.field) {
		return errInvalid
	}
	return nil
}

func (r *Request) field(t codec.Tag, _ uint64, data []byte) bool {
	const first, last = codec.Tag(RequestHeaders)<<3 | codec.Length, codec.Tag(ResponseTrailers)<<3 | codec.Length
	switch t {
	case 8<<3 | codec.Length:
		return codec.Fields(data, r.Metadata.field)
	case 11<<3 | codec.Length:
		r.Config.Announced = true
		return codec.Fields(data, r.Config.field)
	}
	if t < first || t > last || t&7 != codec.Length {
		return true
	}
	if part := Part(t >> 3); part != r.Part { // the last one counts; two of the same kind are merged
		r.Part, r.Headers, r.Body, r.End = part, nil, nil, false
	}
	switch r.Part {
	case RequestHeaders, ResponseHeaders:
		return codec.Fields(data, r.headers)
	case RequestBody, ResponseBody:
		return codec.Fields(data, r.body)
	case RequestTrailers, ResponseTrailers:
	}
	return true
}

// headers reads a field of an HttpHeaders.
func (r *Request) headers(t codec.Tag, bits uint64, data []byte) bool {
	switch t {
	case 1<<3 | codec.Length:
		return r.headerMap(data)
	case 3<<3 | codec.Varint:
		r.End = bits != 0
	}
	return true
}

// body reads a field of an HttpBody.
func (r *Request) body(t codec.Tag, bits uint64, data []byte) bool {
	switch t {
	case 1<<3 | codec.Length:
		r.Body = data
	case 2<<3 | codec.Varint:
		r.End = bits != 0
	}
	return true
}

// countLines returns the number of lines of a HeaderMap, unless it has fields of other types, too.
func countLines(data []byte) (lines int) {
	for len(data) > 0 && data[0] == byte(1<<3|codec.Length) {
		size, n := protowire.ConsumeVarint(data[1:])
		if n < 0 || size > uint64(len(data)-1-n) {
			return lines
		}
		data = data[1+n+int(size):] //nolint:gosec // less than the length
		lines++
	}
	return lines
}

// headerMap reads a HeaderMap.
func (r *Request) headerMap(data []byte) bool {
	if r.Headers == nil {
		r.Headers = make([]Header, 0, countLines(data))
	}
	text := string(data)
	// part returns a part of data as a part of text.
	part := func(of []byte) string {
		start := cap(data) - cap(of)
		return text[start : start+len(of)]
	}
	return codec.Fields(data, func(t codec.Tag, _ uint64, line []byte) bool {
		if t != 1<<3|codec.Length {
			return true
		}
		var name, value, raw []byte
		ok := codec.Fields(line, func(t codec.Tag, _ uint64, data []byte) bool {
			switch t {
			case 1<<3 | codec.Length:
				name = data
				return utf8.Valid(data)
			case 2<<3 | codec.Length:
				value = data
				return utf8.Valid(data)
			case 3<<3 | codec.Length:
				raw = data
			}
			return true
		})
		if len(raw) > 0 { // Envoy sets this field, other data planes the field value
			value = raw
		}
		h := Header{}
		if len(name) > 0 {
			h.Name = part(name)
		}
		if len(value) > 0 {
			h.Value = part(value)
		}
		r.Headers = append(r.Headers, h)
		return ok
	})
}

// field reads a field of a ProtocolConfiguration.
func (c *Config) field(t codec.Tag, bits uint64, _ []byte) bool {
	switch t {
	case 1<<3 | codec.Varint:
		c.RequestBodyMode = int32(bits) //nolint:gosec // enums have 32 bits
	case 2<<3 | codec.Varint:
		c.ResponseBodyMode = int32(bits) //nolint:gosec // enums have 32 bits
	}
	return true
}
