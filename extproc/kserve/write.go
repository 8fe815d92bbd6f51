package kserve

import "encoding/binary"

// AppendNumber appends a field of a number, or of an enum, to a message. 0 is not written, as protobuf has it.
func AppendNumber(message []byte, field uint32, n uint64) []byte {
	if n == 0 {
		return message
	}
	return binary.AppendUvarint(binary.AppendUvarint(message, uint64(field)<<3|varintType), n)
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
	message = binary.AppendUvarint(message, uint64(field)<<3|lengthDelimited)
	return append(binary.AppendUvarint(message, uint64(len(text))), text...)
}
