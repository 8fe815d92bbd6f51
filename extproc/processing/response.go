package processing

import (
	"errors"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/extproc/codec"
)

// Response is a ProcessingResponse. It implements [codec.Encoder].
type Response struct {
	// Part is the part of the HTTP request that the message answers; 0 for none.
	Part Part
	// Changes are the changes to that part; nil for none. Trailers cannot be changed.
	Changes *Changes
	// Immediate and Streamed are replies of extproc itself. They need no Part.
	Immediate *Immediate
	Streamed  *Streamed
	// Mode is an encoded ProcessingMode, which replaces the data plane's; nil for none.
	Mode []byte
	// Metadata is the dynamic metadata; the empty Struct for none.
	Metadata Struct
	// Timeout replaces the data plane's timeout for the current message; 0 for none.
	Timeout time.Duration

	encoded []byte
}

// Changes is a CommonResponse.
type Changes struct {
	Set    []Header // headers that replace all headers of their names
	Remove []string // names of headers
	// Replaces means that Body replaces the whole body. Streams means that Body is the next chunk,
	// and the last one if End is set.
	Replaces, Streams bool
	Body              []byte
	End               bool
	// ClearRouteCache makes the data plane choose the route again.
	ClearRouteCache bool
}

// Immediate is an ImmediateResponse.
type Immediate struct {
	Status  int
	Set     []Header
	Body    []byte
	Call    bool   // the reply to a gRPC call
	Code    uint32 // its gRPC status
	Details string
}

// Streamed is one part of a StreamedImmediateResponse: its headers, its body or its trailers.
type Streamed struct {
	Headers  []Header
	Body     []byte
	Trailers []Header
}

var _ codec.Encoder = (*Response)(nil)

// Encode returns a message with the same content that is encoded in advance. The message must not
// be changed afterwards. It panics if the message cannot be encoded.
func (r *Response) Encode() *Response {
	encoded, err := r.Append(nil)
	if err != nil {
		panic(err)
	}
	whole := *r
	whole.encoded = encoded
	return &whole
}

// Encoded implements [codec.Encoder].
func (r *Response) Encoded() []byte { return r.encoded }

// Size implements [codec.Encoder].
func (r *Response) Size() int {
	size := 256 + len(r.Metadata.bytes)
	switch {
	case r.Changes != nil:
		size += len(r.Changes.Body) + 128*(len(r.Changes.Set)+len(r.Changes.Remove))
	case r.Immediate != nil:
		size += len(r.Immediate.Body) + 128*len(r.Immediate.Set)
	case r.Streamed != nil:
		size += len(r.Streamed.Body) + 128*(len(r.Streamed.Headers)+len(r.Streamed.Trailers))
	}
	return size
}

var errText = errors.New("a text in the ProcessingResponse is not UTF-8")

// Append implements [codec.Encoder]. It returns an error for a name or a text that is not UTF-8.
func (r *Response) Append(to []byte) ([]byte, error) {
	w := writer{bytes: to}
	if len(r.Metadata.bytes) > 0 {
		w.content(8, r.Metadata.bytes)
		w.invalid = w.invalid || r.Metadata.invalid
	}
	if r.Mode != nil {
		w.content(9, r.Mode)
	}
	if r.Timeout != 0 {
		at := w.open(10, 0)
		w.number(1, uint64(r.Timeout/time.Second)) //nolint:gosec // protobuf's form of an int64
		w.number(2, uint64(r.Timeout%time.Second)) //nolint:gosec // protobuf's form of an int32
		w.close(at)
	}
	switch { // generated code, too, writes the fields of a oneof last
	case r.Immediate != nil:
		w.immediate(r.Immediate)
	case r.Streamed != nil:
		w.streamed(r.Streamed)
	case r.Part == RequestTrailers, r.Part == ResponseTrailers:
		w.empty(protowire.Number(r.Part) - 1)
	case r.Part != 0:
		w.answer(r.Part, r.Changes)
	}
	if w.invalid {
		return to, errText
	}
	return w.bytes, nil
}

// answer writes the answer to headers or to a body.
func (w *writer) answer(part Part, c *Changes) {
	number := protowire.Number(part) - 1
	if c == nil {
		w.empty(number)
		return
	}
	least := len(c.Body) + 64*len(c.Set)
	of := w.open(number, least)
	response := w.open(1, least) // response of HeadersResponse and BodyResponse
	w.mutation(2, c.Set, c.Remove)
	if c.Replaces || c.Streams {
		mutation := w.open(3, len(c.Body))
		if c.Replaces {
			w.content(1, c.Body)
		} else {
			chunk := w.open(3, len(c.Body))
			if len(c.Body) > 0 {
				w.content(1, c.Body)
			}
			w.bool(2, c.End)
			w.close(chunk)
		}
		w.close(mutation)
	}
	w.bool(5, c.ClearRouteCache)
	w.close(response)
	w.close(of)
}

func (w *writer) immediate(i *Immediate) {
	of := w.open(7, len(i.Body))
	status := w.open(1, 0)
	w.number(1, uint64(i.Status)) //nolint:gosec // a status is positive
	w.close(status)
	w.mutation(2, i.Set, nil)
	if len(i.Body) > 0 {
		w.content(3, i.Body)
	}
	if i.Call {
		call := w.open(4, 0)
		w.number(1, uint64(i.Code))
		w.close(call)
	}
	if i.Details != "" {
		w.text(5, i.Details)
	}
	w.close(of)
}

func (w *writer) streamed(s *Streamed) {
	of := w.open(11, len(s.Body))
	switch {
	case s.Headers != nil:
		part := w.open(1, 0)
		w.headerMap(1, s.Headers)
		w.close(part)
	case s.Trailers != nil:
		w.headerMap(3, s.Trailers)
	default:
		part := w.open(2, len(s.Body))
		if len(s.Body) > 0 {
			w.content(1, s.Body)
		}
		w.close(part)
	}
	w.close(of)
}

// headerMap writes a HeaderMap.
func (w *writer) headerMap(number protowire.Number, all []Header) {
	of := w.open(number, 0)
	for i := range all {
		w.header(1, &all[i])
	}
	w.close(of)
}

// mutation writes a HeaderMutation, unless it changes nothing.
func (w *writer) mutation(number protowire.Number, set []Header, remove []string) {
	if len(set) == 0 && len(remove) == 0 {
		return
	}
	of := w.open(number, 64*len(set))
	for i := range set {
		option := w.open(1, 0)
		w.header(1, &set[i])
		w.bytes = append(w.bytes, overwrite...)
		w.close(option)
	}
	for _, name := range remove {
		w.text(2, name)
	}
	w.close(of)
}

// overwrite is the append_action of all header options: OVERWRITE_IF_EXISTS_OR_ADD.
var overwrite = []byte{3<<3 | byte(protowire.VarintType), 2}

// header writes a HeaderValue. It uses raw_value, because Envoy reads that.
func (w *writer) header(number protowire.Number, h *Header) {
	of := w.open(number, 0)
	if h.Name != "" {
		w.text(1, h.Name)
	}
	if h.Value != "" {
		w.raw(3, h.Value)
	}
	w.close(of)
}

// writer appends fields to a message. All of their numbers are at most 15.
type writer struct {
	bytes   []byte
	invalid bool // a text is not UTF-8
}

// open begins a message in a field. The content has probably at least so many bytes. It returns
// what close needs.
func (w *writer) open(number protowire.Number, least int) (at int) {
	w.bytes = append(w.bytes, byte(number)<<3|byte(protowire.BytesType))
	at = len(w.bytes)
	w.bytes = append(w.bytes, room[:protowire.SizeVarint(uint64(least))]...) //nolint:gosec // a length
	return at<<3 | (len(w.bytes) - at)
}

// room is the room for a length: a message of 2 GiB has a length of five bytes.
var room [5]byte

// close writes the length of a message that open has begun. If the estimate was wrong, it moves the
// content.
func (w *writer) close(opened int) {
	at, reserved := opened>>3, opened&7
	n := len(w.bytes) - at - reserved
	size := protowire.SizeVarint(uint64(n)) //nolint:gosec // a length
	switch {
	case size > reserved:
		w.bytes = append(w.bytes, room[:size-reserved]...)
		copy(w.bytes[at+size:], w.bytes[at+reserved:at+reserved+n])
	case size < reserved:
		copy(w.bytes[at+size:], w.bytes[at+reserved:])
		w.bytes = w.bytes[:at+size+n]
	}
	protowire.AppendVarint(w.bytes[:at], uint64(n)) //nolint:gosec // a length
}

func (w *writer) empty(number protowire.Number) {
	w.bytes = append(w.bytes, byte(number)<<3|byte(protowire.BytesType), 0)
}

// text writes a string.
func (w *writer) text(number protowire.Number, s string) {
	w.invalid = w.invalid || !utf8.ValidString(s)
	w.raw(number, s)
}

// raw writes the content of a field.
func (w *writer) raw(number protowire.Number, s string) {
	w.bytes = append(w.bytes, byte(number)<<3|byte(protowire.BytesType))
	w.bytes = append(protowire.AppendVarint(w.bytes, uint64(len(s))), s...)
}

// content writes the content of a field.
func (w *writer) content(number protowire.Number, b []byte) {
	w.bytes = append(w.bytes, byte(number)<<3|byte(protowire.BytesType))
	w.bytes = append(protowire.AppendVarint(w.bytes, uint64(len(b))), b...)
}

// number writes a varint, unless it is 0.
func (w *writer) number(number protowire.Number, v uint64) {
	if v != 0 {
		w.bytes = append(w.bytes, byte(number)<<3|byte(protowire.VarintType))
		w.bytes = protowire.AppendVarint(w.bytes, v)
	}
}

func (w *writer) bool(number protowire.Number, v bool) {
	if v {
		w.number(number, 1)
	}
}
