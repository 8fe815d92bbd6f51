package accesslog

import (
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/internal/engine"
)

// tag is a tag of a field; see [codec.Tag].
type tag = codec.Tag

// Wire types.
const (
	varint  = codec.Varint
	fixed64 = codec.Fixed64
	length  = codec.Length
)

// text stores a string, and reports whether it is UTF-8. The string is a part of the message.
func text(to *[]byte, from []byte) bool {
	*to = from
	return utf8.Valid(from)
}

// pair reads an entry of a map from strings to strings.
func pair(entry []byte) (key, value []byte, ok bool) {
	ok = codec.Fields(entry, func(t tag, _ uint64, data []byte) bool {
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
	ok = codec.Fields(entry, func(t tag, _ uint64, data []byte) bool { return t != 1<<3|length || text(&key, data) })
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
	ok = codec.Fields(entry, func(t tag, _ uint64, data []byte) bool {
		switch t {
		case 1<<3 | length:
			return text(&key, data)
		case 2<<3 | length:
			return codec.Fields(data, v.read)
		}
		return true
	})
	return key, v, ok
}
