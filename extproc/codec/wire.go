package codec

import "google.golang.org/protobuf/encoding/protowire"

// Tag is the number of a field and its wire type, as they are encoded: NUMBER<<3 | TYPE. A known
// field with another wire type than its own is unknown, as protobuf prescribes.
type Tag uint32

// The wire types of the fields that messages decode themselves.
const (
	Varint  = Tag(protowire.VarintType)
	Fixed64 = Tag(protowire.Fixed64Type)
	Length  = Tag(protowire.BytesType)
)

// Fields calls read for the fields of a message, in their order, until read returns false. It
// reports whether the message is valid. Bits is the value of a varint or of a field of 64 bits.
// Data is the content of a field with a length: a part of message, up to whose end it may be
// extended. Fields of other types, which Envoy does not send, have neither. These are separate
// arguments, because Go keeps no struct of this size in registers.
func Fields(message []byte, read func(t Tag, bits uint64, data []byte) bool) bool {
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
		if n < 0 || !read(Tag(key), bits, data) {
			return false
		}
		message = message[n:]
	}
	return true
}

// number reads a varint and returns its length, which is negative if it is invalid. Most lengths
// have one byte.
func number(message []byte) (v uint64, n int) {
	if len(message) > 0 && message[0] < 0x80 {
		return uint64(message[0]), 1
	}
	return protowire.ConsumeVarint(message)
}
