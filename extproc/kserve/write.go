package kserve

import "google.golang.org/protobuf/encoding/protowire"

// AppendNumber appends a field of a number, or of an enum, to a message. 0 is not written, as protobuf has it.
func AppendNumber(message []byte, field uint32, n uint64) []byte {
	if n == 0 {
		return message
	}
	return protowire.AppendVarint(protowire.AppendTag(message, protowire.Number(field), protowire.VarintType), n)
}

// AppendBool appends a field of a bool to a message.
func AppendBool(message []byte, field uint32, is bool) []byte {
	if !is {
		return message
	}
	return AppendNumber(message, field, 1)
}

// AppendText appends a field of a string to a message. An empty one is not written.
func AppendText(message []byte, field uint32, text string) []byte {
	if text == "" {
		return message
	}
	return protowire.AppendString(protowire.AppendTag(message, protowire.Number(field), protowire.BytesType), text)
}
