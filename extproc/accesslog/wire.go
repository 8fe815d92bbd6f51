package accesslog

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/internal/engine"
)

// tag is the number of a field and its wire type, as they are encoded. A known field with another
// wire type than its own is unknown, as protobuf prescribes.
type tag uint32

// Wire types.
const (
	varint  = tag(protowire.VarintType)
	fixed64 = tag(protowire.Fixed64Type)
	length  = tag(protowire.BytesType)
)

// number reads a varint and returns its length, which is negative if it is invalid. Most lengths
// have one byte.
func number(message []byte) (v uint64, n int) {
	if len(message) > 0 && message[0] < 0x80 {
		return uint64(message[0]), 1
	}
	return protowire.ConsumeVarint(message)
}

// each calls read for the fields of a message, in their order, until read returns false. It reports
// whether the message is valid. Bits is the value of a varint or of a field of 64 bits. Data is the
// content of a field with a length. Fields of other types, which Envoy does not send, have neither.
// These are separate arguments, because Go keeps no struct of this size in registers.
func each(message []byte, read func(t tag, bits uint64, data []byte) bool) bool {
	for len(message) > 0 {
		key, n := uint64(message[0]), 1
		if key >= 0x80 {
			key, n = protowire.ConsumeVarint(message)
		}
		if n < 0 || key>>3 < uint64(protowire.MinValidNumber) || key>>3 > uint64(protowire.MaxValidNumber) {
			return false
		}
		message = message[n:]
		var bits uint64
		var data []byte
		switch kind := protowire.Type(key & 7); kind {
		case protowire.VarintType:
			bits, n = number(message)
		case protowire.BytesType:
			size, start := number(message)
			if start < 0 || size > uint64(len(message)-start) {
				return false
			}
			n = start + int(size)
			data = message[start:n]
		case protowire.Fixed64Type:
			bits, n = protowire.ConsumeFixed64(message)
		default:
			n = protowire.ConsumeFieldValue(protowire.Number(key>>3), kind, message)
		}
		if n < 0 || !read(tag(key), bits, data) {
			return false
		}
		message = message[n:]
	}
	return true
}

// text stores a string, and reports whether it is UTF-8. The string is a part of the message.
func text(to *[]byte, from []byte) bool {
	*to = from
	return utf8.Valid(from)
}

// pair reads an entry of a map from strings to strings.
func pair(entry []byte) (key, value []byte, ok bool) {
	ok = each(entry, func(t tag, _ uint64, data []byte) bool {
		switch t {
		case 1<<3 | length:
			return text(&key, data)
		case 2<<3 | length:
			return text(&value, data)
		}
		return true
	})
	return key, value, ok
}

// keyOf reads the key of an entry of a map from strings.
func keyOf(entry []byte) (key []byte, ok bool) {
	ok = each(entry, func(t tag, _ uint64, data []byte) bool { return t != 1<<3|length || text(&key, data) })
	return key, ok
}

// value is a google.protobuf.Value. All of its fields are unset if it is null, a struct or a list.
type value struct {
	text   []byte
	flag   bool
	number engine.Value
}

// read reads a field of the value. The last field counts.
func (v *value) read(t tag, bits uint64, data []byte) bool {
	switch t {
	case 1<<3 | varint, 5<<3 | length, 6<<3 | length: // null, a struct, a list
		*v = value{}
	case 2<<3 | fixed64:
		*v = value{number: engine.Known(math.Float64frombits(bits))}
	case 3<<3 | length:
		*v = value{}
		return text(&v.text, data)
	case 4<<3 | varint:
		*v = value{flag: protowire.DecodeBool(bits)}
	}
	return true
}

// member reads an entry of the fields of a google.protobuf.Struct.
func member(entry []byte) (key []byte, v value, ok bool) {
	ok = each(entry, func(t tag, _ uint64, data []byte) bool {
		switch t {
		case 1<<3 | length:
			return text(&key, data)
		case 2<<3 | length:
			return each(data, v.read)
		}
		return true
	})
	return key, v, ok
}
