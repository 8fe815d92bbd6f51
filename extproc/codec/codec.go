// Package codec is the gRPC codec of extproc's servers. It lets messages that are exchanged often
// decode and encode themselves. All other messages are left to generated code.
package codec

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// Message is a message that decodes itself. Decode gets a whole message in protobuf's wire format.
// The bytes are valid only during the call, because gRPC uses their buffer again. An error ends the
// stream with the status INTERNAL, as an error of generated code does.
type Message interface{ Decode(wire []byte) error }

// Holder is a Message that refers to a part of its wire format after it was decoded.
type Holder interface {
	Message
	// Held returns where the message refers to that part; it may be empty. The codec moves the part
	// to a buffer of its own.
	Held() *[]byte
	// Hold passes the buffer to the message, which must release it. It is not called if the part is
	// empty, or if Decode returned an error.
	Hold(Buffer)
}

// Encoder is a message that encodes itself.
type Encoder interface {
	// Encoded returns the message if it was encoded in advance; nil if it was not.
	Encoded() []byte
	// Size returns an estimate of the encoded size.
	Size() int
	// Append appends the encoded message. The bytes are copied.
	Append(to []byte) ([]byte, error)
}

// Buffer is a part of a message that arrived. The zero Buffer is empty.
type Buffer struct {
	bytes *[]byte
	pool  *Buffers
}

// Release returns the buffer to its pool. Nothing may use its bytes afterwards. Further calls, and
// calls for an empty Buffer, do nothing.
func (b *Buffer) Release() {
	if b.bytes != nil {
		b.pool.Put(b.bytes)
		*b = Buffer{}
	}
}

// shared are the buffers of all servers of the process.
var shared Buffers

// New returns the codec, for [grpc.ForceServerCodecV2]. It is safe for concurrent use.
func New() encoding.CodecV2 { return With(&shared) }

// With is New with buffers of its own.
func With(buffers *Buffers) encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name), buffers} }

type codec struct {
	encoding.CodecV2
	buffers *Buffers
}

// Unmarshal decodes a message that arrived.
func (c codec) Unmarshal(data mem.BufferSlice, message any) error {
	m, ok := message.(Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, message)
	}
	if len(data) == 1 {
		return c.decode(data[0].ReadOnlyData(), nil, m)
	}
	whole := c.buffers.Get(data.Len())
	data.CopyTo(*whole)
	return c.decode(*whole, whole, m)
}

// decode decodes a message. Whole is the buffer of wire; nil if that belongs to gRPC.
func (c codec) decode(wire []byte, whole *[]byte, m Message) error {
	err := m.Decode(wire)
	h, holds := m.(Holder)
	if err == nil && holds {
		if held := h.Held(); len(*held) > 0 {
			if whole == nil {
				whole = c.buffers.Get(len(*held))
				copy(*whole, *held)
				*held = *whole
			}
			h.Hold(Buffer{whole, c.buffers})
			return nil
		}
	}
	if whole != nil {
		c.buffers.Put(whole)
	}
	return err
}

// Marshal encodes a message that is sent.
func (c codec) Marshal(message any) (mem.BufferSlice, error) {
	m, ok := message.(Encoder)
	if !ok {
		return c.CodecV2.Marshal(message)
	}
	if encoded := m.Encoded(); encoded != nil {
		return mem.BufferSlice{mem.SliceBuffer(encoded)}, nil
	}
	buffer := c.buffers.Get(max(m.Size(), leastEncoded))
	got := cap(*buffer)
	encoded, err := m.Append((*buffer)[:0])
	if err != nil || cap(encoded) != got { // the estimate was too small
		c.buffers.Put(buffer)
		return mem.BufferSlice{mem.SliceBuffer(encoded)}, err
	}
	*buffer = encoded
	return mem.BufferSlice{mem.NewBuffer(buffer, c.buffers)}, nil
}

// leastEncoded is the least size of a buffer for a message that is sent. gRPC returns no smaller
// buffers to their pool.
const leastEncoded = 1<<10 + 1
