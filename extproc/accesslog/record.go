package accesslog

import (
	"bytes"
	"strconv"
	"time"
	"unicode/utf8"

	accesslogdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/extproc/outcome"
)

// record contains the fields of an envoy.data.accesslog.v3.HTTPAccessLogEntry that extproc uses.
// Each method that takes a tag reads one field of a message. [codec.Fields] calls it for all fields
// in their order. So a repeated field replaces the earlier one, or is merged into it if it is a
// message, as protobuf prescribes. Byte slices are parts of the message that was read.
type record struct {
	kind     accesslogdatav3.AccessLogType
	start    instant
	received interval // until the last byte of the request
	duration interval
	remote   address // the endpoint, as Envoy reached it
	flags    flags
	attempts uint32
	size     uint64 // received from the endpoint
	status   uint32
	details  []byte
	stream   bool // the response is a stream of events

	call                         outcome.Call
	firstBody, answered, gateway time.Duration // from the tags

	lb    lb
	pick  pick
	usage usage
	error engineError
}

// read reads a field of an HTTPAccessLogEntry.
func (r *record) read(t tag, _ uint64, data []byte) bool {
	switch t {
	case 1<<3 | length: // common_properties
		return codec.Fields(data, r.common)
	case 4<<3 | length: // response
		return codec.Fields(data, r.response)
	}
	return true
}

// common reads a field of an AccessLogCommon.
func (r *record) common(t tag, bits uint64, data []byte) bool {
	switch t {
	case 5<<3 | length: // start_time
		r.start.known = true
		return codec.Fields(data, r.start.read)
	case 6<<3 | length: // time_to_last_rx_byte
		return codec.Fields(data, r.received.read)
	case 13<<3 | length: // upstream_remote_address
		return codec.Fields(data, r.remote.read)
	case 16<<3 | length: // response_flags
		return codec.Fields(data, r.flags.read)
	case 17<<3 | length: // metadata
		return codec.Fields(data, r.metadata)
	case 22<<3 | length: // custom_tags
		return r.tag(data)
	case 23<<3 | length: // duration
		return codec.Fields(data, r.duration.read)
	case 24<<3 | varint: // upstream_request_attempt_count
		r.attempts = uint32(bits)
	case 32<<3 | varint: // upstream_wire_bytes_received
		r.size = bits
	case 33<<3 | varint: // access_log_type
		r.kind = accesslogdatav3.AccessLogType(bits)
	}
	return true
}

// response reads a field of an HTTPResponseProperties.
func (r *record) response(t tag, _ uint64, data []byte) bool {
	switch t {
	case 1<<3 | length: // response_code, a UInt32Value
		return codec.Fields(data, func(t tag, bits uint64, _ []byte) bool {
			if t == 1<<3|varint {
				r.status = uint32(bits)
			}
			return true
		})
	case 4<<3 | length: // response_headers
		key, value, ok := pair(data)
		if string(key) == "content-type" {
			r.stream = outcome.IsEventStream(string(value))
		}
		return ok
	case 6<<3 | length: // response_code_details
		return text(&r.details, data)
	}
	return true
}

// tag reads an entry of custom_tags.
func (r *record) tag(entry []byte) bool {
	key, value, ok := pair(entry)
	switch string(key) {
	case wire.TagCall:
		r.call = call(value)
	case wire.TagFirstBody:
		r.firstBody = microseconds(value)
	case wire.TagAnswered:
		r.answered = microseconds(value)
	case wire.TagGateway:
		r.gateway = microseconds(value)
	}
	return ok
}

// interval is a google.protobuf.Duration.
type interval struct {
	seconds int64
	nanos   int32
}

func (i *interval) read(t tag, bits uint64, _ []byte) bool {
	switch t {
	case 1<<3 | varint:
		i.seconds = int64(bits)
	case 2<<3 | varint:
		i.nanos = int32(bits)
	}
	return true
}

// duration returns the longest possible duration instead of a longer one.
func (i interval) duration() time.Duration {
	d := durationpb.Duration{Seconds: i.seconds, Nanos: i.nanos}
	return d.AsDuration()
}

// instant is a google.protobuf.Timestamp, whose fields are those of a duration.
type instant struct {
	interval
	known bool
}

// time returns the zero time if it is unknown.
func (i instant) time() time.Time {
	if !i.known {
		return time.Time{}
	}
	return time.Unix(i.seconds, int64(i.nanos)).UTC()
}

// flags are the true fields of an envoy.data.accesslog.v3.ResponseFlags. The number of a field is
// the number of its bit.
type flags uint32

func (s *flags) read(t tag, bits uint64, _ []byte) bool {
	number, kind := t>>3, t&7
	if kind != varint || number >= 32 {
		return true
	}
	*s &^= 1 << number
	if protowire.DecodeBool(bits) {
		*s |= 1 << number
	}
	return true
}

// address is an envoy.config.core.v3.Address: a socket or a pipe. The last kind counts. An address
// inside of Envoy is neither.
type address struct {
	kind tag
	path []byte
	host []byte
	port uint32
}

func (a *address) read(t tag, _ uint64, data []byte) bool {
	switch t {
	case 1<<3 | length, 2<<3 | length, 3<<3 | length:
		if a.kind != t {
			*a = address{kind: t}
		}
	}
	switch t {
	case 1<<3 | length:
		return codec.Fields(data, a.socket)
	case 2<<3 | length:
		return codec.Fields(data, a.pipe)
	}
	return true
}

// socket reads a field of an envoy.config.core.v3.SocketAddress.
func (a *address) socket(t tag, bits uint64, data []byte) bool {
	switch t {
	case 2<<3 | length: // address
		return text(&a.host, data)
	case 3<<3 | varint: // port_value
		a.port = uint32(bits)
	case 4<<3 | length: // named_port, instead of a port_value
		a.port = 0
		return utf8.Valid(data)
	}
	return true
}

// pipe reads a field of an envoy.config.core.v3.Pipe.
func (a *address) pipe(t tag, _ uint64, data []byte) bool {
	return t != 1<<3|length || text(&a.path, data)
}

// appendTo appends "ip:port", or the path of a pipe; nothing if there is neither. It formats as
// [net.JoinHostPort] does.
func (a address) appendTo(to []byte) []byte {
	switch {
	case len(a.host) == 0:
		return append(to, a.path...)
	case bytes.IndexByte(a.host, ':') >= 0:
		to = append(append(append(to, '['), a.host...), ']')
	default:
		to = append(to, a.host...)
	}
	return strconv.AppendUint(append(to, ':'), uint64(a.port), 10)
}
