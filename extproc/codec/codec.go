// Package codec is the gRPC codec of extproc's servers. It lets messages that arrive often decode
// themselves from the wire. All other messages are decoded by generated code.
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

// New returns the codec, for [grpc.ForceServerCodecV2]. It is safe for concurrent use.
func New() encoding.CodecV2 { return codec{encoding.GetCodecV2(proto.Name)} }

type codec struct{ encoding.CodecV2 }

// Unmarshal decodes a message that arrived.
func (c codec) Unmarshal(data mem.BufferSlice, message any) error {
	m, ok := message.(Message)
	if !ok {
		return c.CodecV2.Unmarshal(data, message)
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	return m.Decode(whole.ReadOnlyData())
}
