package kserve

import "google.golang.org/protobuf/encoding/protowire"

// AppendNumber appends a number or enum field to a message. As in proto3, it omits 0.
func AppendNumber(message []byte, field uint32, n uint64) []byte {
	if n == 0 {
		return message
	}
	return protowire.AppendVarint(protowire.AppendTag(message, protowire.Number(field), protowire.VarintType), n)
}

// AppendBool appends a bool field to a message. It omits false.
func AppendBool(message []byte, field uint32, is bool) []byte {
	if !is {
		return message
	}
	return AppendNumber(message, field, 1)
}

// AppendText appends a string field to a message. It omits an empty string.
func AppendText(message []byte, field uint32, text string) []byte {
	if text == "" {
		return message
	}
	return protowire.AppendString(protowire.AppendTag(message, protowire.Number(field), protowire.BytesType), text)
}
