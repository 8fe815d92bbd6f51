package kserve

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"slices"
)

// MaxInflated bounds the decompressed size of a message, even if configured limits are larger: 16
// MiB.
const MaxInflated = 16 << 20

// prefixSize is the size of the prefix of each message: a compression flag, and the length in four
// bytes, big-endian. See https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md.
const prefixSize = 5

// inflation is the maximum compression ratio of DEFLATE.
const inflation = 1032

// ErrPartial is the [*Error] for a body that ends within a message.
var ErrPartial = fault(Internal, "The body ends inside a message.")

// Message is one message of a call.
type Message struct {
	// Frame is the message as it arrived, with its prefix.
	Frame []byte
	// Bytes is the message, decompressed.
	Bytes []byte
}

// Messages reads the messages of a body that arrives in chunks of any size. It stores at most the
// current message and the rest of the latest chunk.
type Messages struct {
	encoding string
	limit    int
	chunk    []byte       // the unread rest of the latest chunk
	ours     bool         // whether no other code uses the chunk's memory
	begun    []byte       // the beginning of a message, from earlier chunks
	packed   bytes.Reader // the message that is being decompressed
	inflater gzip.Reader
	err      error
}

// NewMessages returns a reader of a body. Encoding is the call's grpc-encoding header. Limit bounds
// the size of a message, as it arrives and decompressed. An unknown encoding is an error only for
// messages that are compressed.
func NewMessages(encoding string, limit int) *Messages {
	return &Messages{encoding: encoding, limit: limit}
}

// Add adds the next chunk of the body. The caller must not change it until Next has returned false,
// and while it uses messages that share its memory. Before the next Add, call Next until it returns
// false; otherwise Add copies the rest.
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

// Next returns the next message; ok is false if the message is incomplete. A message that lies
// within one chunk shares the chunk's memory, so it is valid until the next Add. Every error is an
// [*Error], and all later calls return the same error, because the rest of the body cannot be read.
//
// [Internal] means that gRPC's rules forbid the message, [Unimplemented] that its compression is
// unknown, and [ResourceExhausted] that it is too large; Next returns the latter once the message's
// length has arrived. The rules are those of
// https://github.com/grpc/grpc/blob/master/doc/compression.md.
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

// Partial reports whether there are bytes that Next has not returned. If that is so at the end of
// the body, the body's error is [ErrPartial].
func (m *Messages) Partial() bool { return m.Kept() > 0 }

// Kept returns the number of bytes that Next has not returned yet.
func (m *Messages) Kept() int { return len(m.chunk) + len(m.begun) }

// AppendFrame appends a message with its prefix to dst, uncompressed. The message must be smaller
// than 4 GiB.
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

// check checks the compression flag of a message.
func (m *Messages) check(flag byte) error {
	switch {
	case flag == 0, flag == 1 && m.encoding == "gzip":
		return nil
	case flag != 1:
		return fault(Internal, "The first byte of a message, its compressed flag, must be 0 or 1.")
	case m.encoding == "" || m.encoding == "identity":
		return fault(Internal, "A message is compressed, but the header grpc-encoding names no compression.")
	}
	return fault(Unimplemented, "The gateway does not support the compression of a message: use gzip, or none.")
}

// take moves bytes of the chunk to the current message, until the message has size bytes. It
// allocates at most twice as much memory as bytes have arrived, because a client can claim any
// length.
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

// inflate decompresses gzip data of one or more members. A message far above the limit costs no
// more memory than a message just above it.
func (m *Messages) inflate(packed []byte) ([]byte, error) {
	m.packed.Reset(packed)
	defer m.packed.Reset(nil) // releases the caller's memory
	if err := m.inflater.Reset(&m.packed); err != nil {
		return nil, errGzip()
	}
	limit := min(m.limit, MaxInflated)
	// The last bytes of a member are its uncompressed size. There may be other members, and the
	// size may be wrong.
	told := binary.LittleEndian.Uint32(packed[len(packed)-4:])
	size := int(min(uint64(told), uint64(len(packed))*inflation, uint64(limit)))

	var parts [][]byte
	part, had := make([]byte, size), 0
	var beyond [1]byte
	for total := 0; ; {
		n, err := fill(&m.inflater, part[had:])
		parts = append(parts, part[:had+n])
		total += had + n
		if err == nil { // the buffer is full, and the message may continue
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

// fill reads until into is full or an error occurs. The error [io.EOF] may arrive with the last
// byte.
func fill(from io.Reader, into []byte) (n int, err error) {
	for n < len(into) && err == nil {
		var more int
		more, err = from.Read(into[n:])
		n += more
	}
	return n, err
}

func errLarge() error {
	return fault(ResourceExhausted, "A message is larger than the gateway accepts.")
}

func errGzip() error {
	return fault(Internal, "A compressed message is not valid gzip.")
}
