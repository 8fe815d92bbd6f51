package ext

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec of all other services
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// frame is a message on the wire.
type frame struct{ data mem.BufferSlice }

// codec passes frames through, and encodes all other messages as usual.
type codec struct{ other encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(*frame); ok {
		return f.data, nil
	}
	return c.other.Marshal(v)
}

// Unmarshal implements encoding.CodecV2. The receiver of a frame must free its data.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if f, ok := v.(*frame); ok {
		data.Ref()
		f.data = data
		return nil
	}
	return c.other.Unmarshal(data, v)
}

// Name implements encoding.CodecV2.
func (c codec) Name() string { return c.other.Name() }

// raw is a no-op on raw bytes. It reads only the fields of messages that decide the kind of the
// reply, and assembles its replies in advance.
type raw struct {
	headers []*frame // replies to headers, used in turn
	turn    atomic.Uint64
	replies [responseTrailers + 1]*frame // by kind
}

// newRaw returns a no-op that names these endpoints in turn.
func newRaw(endpoints []string) (*raw, error) {
	var n raw
	for _, m := range headerReplies(endpoints) {
		f, err := encoded(m)
		if err != nil {
			return nil, err
		}
		n.headers = append(n.headers, f)
	}
	for k := requestHeaders; k <= responseTrailers; k++ {
		var err error
		if n.replies[k], err = encoded(reply(k)); err != nil {
			return nil, err
		}
	}
	return &n, nil
}

func encoded(m proto.Message) (*frame, error) {
	b, err := proto.Marshal(m)
	return frameOf(b), err
}

func frameOf(b []byte) *frame { return &frame{mem.BufferSlice{mem.SliceBuffer(b)}} }

func (n *raw) register(server *grpc.Server) {
	for _, s := range []struct {
		desc   grpc.ServiceDesc
		handle grpc.StreamHandler
	}{
		{extprocv3.ExternalProcessor_ServiceDesc, n.process},
		{accesslogv3.AccessLogService_ServiceDesc, drop},
	} {
		streams := append([]grpc.StreamDesc(nil), s.desc.Streams...)
		streams[0].Handler = s.handle // each of the two services has one method
		s.desc.Streams = streams
		server.RegisterService(&s.desc, nil)
	}
}

// process is the method Process of envoy.service.ext_proc.v3.ExternalProcessor.
func (n *raw) process(_ any, stream grpc.ServerStream) error {
	var p passage
	var in frame
	for {
		if err := stream.RecvMsg(&in); err != nil {
			return unlessEnded(err)
		}
		out, err := n.reply(&p, in.data)
		in.data.Free()
		if err != nil {
			return err
		}
		if out == nil {
			continue
		}
		if err := stream.SendMsg(out); err != nil {
			return unlessEnded(err)
		}
	}
}

// reply returns the reply to a message; nil if there is none. It keeps nothing of data.
func (n *raw) reply(p *passage, data mem.BufferSlice) (*frame, error) {
	// Envoy writes the part of the request before all other fields. If a body is not echoed, its
	// first bytes suffice. It then stays in the buffers in which it arrived.
	if k := firstKind(data); !p.observed && (k == requestBody || k == responseBody) && !p.duplex[k-requestBody] {
		return n.replies[k], nil
	}
	whole := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer whole.Free()
	of, content, err := p.scan(whole.ReadOnlyData())
	if err != nil || p.observed {
		return nil, err
	}
	switch of {
	case requestHeaders:
		return n.headers[n.turn.Add(1)%uint64(len(n.headers))], nil
	case requestBody, responseBody:
		if !p.duplex[of-requestBody] {
			break
		}
		chunk, end, err := scanBody(content)
		if err != nil || !p.echoes(of, end) {
			return nil, err
		}
		return frameOf(echoOf(of, chunk, end)), nil
	}
	return n.replies[of], nil // nil for a message without a part of a request
}

// firstKind returns the kind of a message by its first field; 0 if that is another field.
func firstKind(data mem.BufferSlice) kind {
	if len(data) == 0 || data[0].Len() == 0 {
		return 0
	}
	field, wireType := protowire.DecodeTag(uint64(data[0].ReadOnlyData()[0])) // the tags up to field 15 have one byte
	if wireType != protowire.BytesType || !isKind(field) {
		return 0
	}
	return kind(field)
}

func isKind(field protowire.Number) bool {
	return field >= protowire.Number(requestHeaders) && field <= protowire.Number(responseTrailers)
}

var errTruncated = errors.New("the message is truncated")

// scan reads a ProcessingRequest: it returns its kind and that part of the request, and stores what
// the message states about the stream. The kind is 0 if the message has no part of a request.
func (p *passage) scan(b []byte) (of kind, content []byte, err error) {
	err = fields(b, func(field protowire.Number, number uint64, bytes []byte) {
		switch {
		case isKind(field):
			of, content = kind(field), bytes
		case field == 10: // observability_mode
			p.observed = p.observed || number != 0
		case field == 11: // protocol_config
			var modes [2]extprocfilterv3.ProcessingMode_BodySendMode
			_ = fields(bytes, func(field protowire.Number, number uint64, _ []byte) {
				if field == 1 || field == 2 {
					modes[field-1] = extprocfilterv3.ProcessingMode_BodySendMode(number)
				}
			})
			p.configure(modes[0], modes[1])
		}
	})
	return of, content, err
}

// scanBody reads an HttpBody.
func scanBody(b []byte) (chunk []byte, end bool, err error) {
	err = fields(b, func(field protowire.Number, number uint64, bytes []byte) {
		switch field {
		case 1:
			chunk = bytes
		case 2:
			end = number != 0
		}
	})
	return chunk, end, err
}

// fields calls use with each field of a message that is a number or has bytes.
func fields(b []byte, use func(field protowire.Number, number uint64, bytes []byte)) error {
	for len(b) > 0 {
		field, wireType, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("%w: %w", errTruncated, protowire.ParseError(n))
		}
		b = b[n:]
		var number uint64
		var bytes []byte
		switch wireType {
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			bytes, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(field, wireType, b)
		}
		if n < 0 {
			return fmt.Errorf("%w: %w", errTruncated, protowire.ParseError(n))
		}
		use(field, number, bytes)
		b = b[n:]
	}
	return nil
}

// echoOf returns on the wire what [echo] returns.
func echoOf(to kind, chunk []byte, end bool) []byte {
	var streamed []byte // StreamedBodyResponse up to the chunk's bytes
	if len(chunk) > 0 {
		streamed = protowire.AppendVarint(protowire.AppendTag(streamed, 1, protowire.BytesType), uint64(len(chunk)))
	}
	size := len(streamed) + len(chunk)
	if end {
		size += 2
	}
	// Each message is a field of the next one: streamed_response of BodyMutation, body_mutation of
	// CommonResponse, response of BodyResponse, and the body of ProcessingResponse, whose numbers
	// are one less than those of ProcessingRequest.
	path := [...]protowire.Number{3, 3, 1, protowire.Number(to) - 1}
	var sizes [len(path)]int
	for i := range path {
		sizes[i] = size
		size = protowire.SizeTag(path[i]) + protowire.SizeBytes(size)
	}
	b := make([]byte, 0, size)
	for i := len(path) - 1; i >= 0; i-- {
		b = protowire.AppendVarint(protowire.AppendTag(b, path[i], protowire.BytesType), uint64(sizes[i]))
	}
	b = append(append(b, streamed...), chunk...)
	if end {
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), 1)
	}
	return b
}

// drop reads records of requests until the end of the stream.
func drop(_ any, stream grpc.ServerStream) error {
	var in frame
	for {
		switch err := stream.RecvMsg(&in); {
		case errors.Is(err, io.EOF):
			return stream.SendMsg(frameOf(nil)) // the response has no fields
		case err != nil:
			return unlessEnded(err)
		}
		in.data.Free()
	}
}
