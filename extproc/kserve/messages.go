package kserve

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"slices"
)

// MaxInflated is how many bytes a message may have once it is inflated, whatever else is allowed: 16 MiB.
const MaxInflated = 16 << 20

// prefixSize is how many bytes stand before each message: whether it is compressed, and its length in four bytes, the highest first.
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md says so.
const prefixSize = 5

// inflation is how many bytes one byte can become by DEFLATE, at most.
const inflation = 1032

// ErrPartial is the [*Error] of a body that ends inside a message.
var ErrPartial = fault(Internal, "The body ends inside a message.")

// Message is one message of a call.
type Message struct {
	// Frame is the message as it came, with the 5 bytes before it.
	Frame []byte
	// Bytes is the message itself, inflated if it came compressed.
	Bytes []byte
}

// Messages are the messages of a body that comes in chunks of any size. It keeps at most the message that has begun, and what is
// left of the latest chunk.
type Messages struct {
	encoding string
	limit    int
	chunk    []byte       // what is left of it
	ours     bool         // no one else has the chunk's memory
	begun    []byte       // of a message that began in an earlier chunk
	packed   bytes.Reader // what is being inflated
	inflater gzip.Reader
	err      error
}

// NewMessages returns a reader of a body. Encoding is the header grpc-encoding of the call, and limit how many bytes a message may
// have: as it came, and inflated. An encoding that cannot be read is an error where a message is compressed by it, and only there.
func NewMessages(encoding string, limit int) *Messages {
	return &Messages{encoding: encoding, limit: limit}
}

// Add gives the next chunk of the body, which must stay as it is until the next Add. Before that one, Next is to be asked until it
// has no more: what it was not asked for is copied.
func (m *Messages) Add(chunk []byte) {
	switch {
	case m.err != nil:
	case len(m.chunk) == 0:
		m.chunk, m.ours = chunk, false
	case !m.ours:
		m.chunk, m.ours = slices.Concat(m.chunk, chunk), true
	default:
		m.chunk = append(m.chunk, chunk...)
	}
}

// Next returns the next message; not ok is that the rest of it has not come yet. A message that lies whole in one chunk shares its
// memory, so that it is good until the next Add. Every error is an [*Error], and is returned from then on: what comes after it
// cannot be read.
//
// [Internal] is a message that gRPC's rules forbid, [Unimplemented] one that is compressed in an unknown way, and
// [ResourceExhausted] one that is larger than allowed, as soon as its length is there. The rules are
// https://github.com/grpc/grpc/blob/master/doc/compression.md's.
func (m *Messages) Next() (message Message, ok bool, err error) {
	if m.err != nil {
		return Message{}, false, m.err
	}
	message, ok, m.err = m.next()
	if m.err != nil {
		m.chunk, m.begun = nil, nil
	}
	return message, ok, m.err
}

// Partial says whether there are bytes that Next has not returned. Where Next has no more and the body has ended, that is
// [ErrPartial].
func (m *Messages) Partial() bool { return m.Kept() > 0 }

// Kept is how many bytes there are that Next has not returned.
func (m *Messages) Kept() int { return len(m.chunk) + len(m.begun) }

// AppendFrame appends a message to dst as it is sent, uncompressed. It must have less than 4 GiB.
func AppendFrame(dst, message []byte) []byte {
	dst = append(dst, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(message)))
	return append(dst, message...)
}

func (m *Messages) next() (message Message, ok bool, err error) {
	prefix := m.chunk
	if len(m.begun) > 0 || len(m.chunk) < prefixSize {
		m.take(prefixSize)
		prefix = m.begun
	}
	if len(prefix) < prefixSize {
		return Message{}, false, nil
	}
	if err := m.check(prefix[0]); err != nil {
		return Message{}, false, err
	}
	length := binary.BigEndian.Uint32(prefix[1:])
	if uint64(length) > uint64(m.limit) {
		return Message{}, false, errLarge()
	}
	size := prefixSize + int(length)
	frame := m.chunk
	if len(m.begun) > 0 || len(m.chunk) < size {
		if m.take(size); len(m.begun) < size {
			return Message{}, false, nil
		}
		frame, m.begun = m.begun, nil
	} else if m.chunk = m.chunk[size:]; len(m.chunk) == 0 {
		m.chunk = nil
	}
	message = Message{Frame: frame[:size:size], Bytes: frame[prefixSize:size:size]}
	if frame[0] == 1 {
		if message.Bytes, err = m.inflate(message.Bytes); err != nil {
			return Message{}, false, err
		}
	}
	return message, true, nil
}

// check looks at the byte that says whether a message is compressed.
func (m *Messages) check(flag byte) error {
	switch {
	case flag == 0, flag == 1 && m.encoding == "gzip":
		return nil
	case flag != 1:
		return fault(Internal, "A message is neither compressed nor not: its first byte is not 0 or 1.")
	case m.encoding == "" || m.encoding == "identity":
		return fault(Internal, "A message is compressed, but the header grpc-encoding does not say how.")
	}
	return fault(Unimplemented, "A message is compressed in a way that the gateway does not read: send gzip, or none.")
}

// take moves bytes of the chunk to the message that has begun, until that has so many. Room is made for no more than twice
// what is there, for a length is cheap to write.
func (m *Messages) take(size int) {
	n := min(size-len(m.begun), len(m.chunk))
	if n <= 0 {
		return
	}
	if need := len(m.begun) + n; need > cap(m.begun) {
		room := min(max(need, 2*cap(m.begun)), size)
		m.begun = append(make([]byte, 0, room), m.begun...)
	}
	m.begun = append(m.begun, m.chunk[:n]...)
	if m.chunk = m.chunk[n:]; len(m.chunk) == 0 {
		m.chunk = nil
	}
}

// inflate returns what gzip had packed, in one member or more. What is too large costs no more memory than what is just not.
func (m *Messages) inflate(packed []byte) ([]byte, error) {
	m.packed.Reset(packed)
	defer m.packed.Reset(nil) // it is not ours to keep
	if err := m.inflater.Reset(&m.packed); err != nil {
		return nil, errGzip()
	}
	limit := min(m.limit, MaxInflated)
	// At its end a member says how large it was. There may be others before it, and it may lie.
	told := binary.LittleEndian.Uint32(packed[len(packed)-4:])
	size := int(min(uint64(told), uint64(len(packed))*inflation, uint64(limit)))

	var parts [][]byte
	part, had := make([]byte, size), 0
	var beyond [1]byte
	for total := 0; ; {
		n, err := fill(&m.inflater, part[had:])
		parts = append(parts, part[:had+n])
		total += had + n
		if err == nil { // the part is full
			if had, err = fill(&m.inflater, beyond[:]); had == 1 {
				err = nil
			}
		}
		switch {
		case errors.Is(err, io.EOF) && len(parts) == 1:
			return parts[0], nil
		case errors.Is(err, io.EOF):
			return bytes.Join(parts, nil), nil
		case err != nil:
			return nil, errGzip()
		case total >= limit:
			return nil, errLarge()
		}
		part = make([]byte, min(max(total, 512), limit-total))
		part[0] = beyond[0]
	}
}

// fill reads until into is full, or an error comes: [io.EOF] may come with the last byte.
func fill(from io.Reader, into []byte) (n int, err error) {
	for n < len(into) && err == nil {
		var more int
		more, err = from.Read(into[n:])
		n += more
	}
	return n, err
}

func errLarge() error {
	return fault(ResourceExhausted, "A message is larger than the gateway takes.")
}

func errGzip() error {
	return fault(Internal, "A message cannot be inflated: it is not what gzip makes.")
}
