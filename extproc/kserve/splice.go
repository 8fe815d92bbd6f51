package kserve

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// Path is the list of field numbers that lead from the top of a message to a string. All numbers
// but the last are those of nested messages, here called containers.
type Path []uint32

const maxLevels = 16

// CheckPath returns an error for a path that leads to no field: it is empty, has more than 16
// numbers, or contains a number that no field can have. The error is for the author of the path.
func CheckPath(path Path) error {
	switch {
	case len(path) == 0:
		return errors.New("a path needs at least one field number")
	case len(path) > maxLevels:
		return fmt.Errorf("a path has at most %d field numbers, and this one has %d", maxLevels, len(path))
	}
	for _, number := range path {
		switch {
		case number == 0 || number > uint32(protowire.MaxValidNumber):
			return fmt.Errorf("field number %d is invalid: use 1 to %d", number, protowire.MaxValidNumber)
		case number >= uint32(protowire.FirstReservedNumber) && number <= uint32(protowire.LastReservedNumber):
			return fmt.Errorf("field number %d is invalid: protobuf reserves %d to %d",
				number, protowire.FirstReservedNumber, protowire.LastReservedNumber)
		}
	}
	return nil
}

// Extract returns the string at the path, which may be empty, and whether it exists. The string
// shares no memory with the message. The path must pass [CheckPath].
//
// Extract scans the message and each container on the path to the end. It returns an [*Error] with
// [InvalidArgument] if these are not valid protobuf, if they contain the field on the path more
// than once or with another wire type, if the string is not UTF-8, or if they contain a group,
// which only old messages have. It does not scan fields beside the path. It does not support
// oneofs, so a path must not contain a field of a oneof.
func Extract(message []byte, path Path) (id string, found bool, err error) {
	var s sight
	if err := s.find(message, path); err != nil {
		return "", false, err
	}
	if s.levels < len(path) {
		return "", false, nil
	}
	at := s.at[s.levels-1]
	return string(message[at.start:at.end]), true, nil
}

// Inject returns the message with id as the string at the path. Every other byte is unchanged,
// except the lengths of the containers. If the string is missing, Inject appends it to the
// innermost existing container, together with the missing containers. If the string equals id,
// Inject returns the message itself.
//
// Inject does not change the message. The path must pass [CheckPath], and id must not be empty.
// Inject returns the same errors as [Extract].
func Inject(message []byte, path Path, id string) ([]byte, error) {
	if id == "" || !utf8.ValidString(id) {
		return nil, fault(Internal, "The gateway has no valid model id to write into the message.")
	}
	var s sight
	if err := s.find(message, path); err != nil {
		return nil, err
	}
	cut := span{start: len(message), end: len(message)} // the part that id replaces
	if s.levels > 0 {
		cut = s.at[s.levels-1]
	}
	if s.levels < len(path) {
		cut.start = cut.end
	} else if string(message[cut.start:cut.end]) == id {
		return message, nil
	}

	// lengths are the new lengths of the levels, beginning with the string. grown is the number of
	// bytes by which the content of a level grows.
	var lengths [maxLevels]int
	grown := len(id)
	for level := len(path) - 1; level >= s.levels; level-- {
		lengths[level] = grown
		grown += protowire.SizeTag(protowire.Number(path[level])) + protowire.SizeVarint(uint64(grown))
	}
	grown -= cut.end - cut.start
	for level := s.levels - 1; level >= 0; level-- {
		at := s.at[level]
		lengths[level] = at.end - at.start + grown
		if grown != 0 {
			grown += protowire.SizeVarint(uint64(lengths[level])) - (at.start - at.length)
		}
	}

	var pieces [2*maxLevels + 4][]byte // written by index instead of append, so that they stay on the stack
	n := 0
	var numbers [maxLevels * (binary.MaxVarintLen32 + binary.MaxVarintLen64)]byte
	written := numbers[:0]
	from := 0
	for level, at := range s.at[:s.levels] {
		if lengths[level] == at.end-at.start {
			continue // a length that stays correct keeps its encoding
		}
		begin := len(written)
		written = protowire.AppendVarint(written, uint64(lengths[level]))
		pieces[n], pieces[n+1] = message[from:at.length], written[begin:]
		n += 2
		from = at.start
	}
	begin := len(written)
	for level := s.levels; level < len(path); level++ {
		written = protowire.AppendTag(written, protowire.Number(path[level]), protowire.BytesType)
		written = protowire.AppendVarint(written, uint64(lengths[level]))
	}
	pieces[n], pieces[n+1] = message[from:cut.start], written[begin:]
	pieces[n+2], pieces[n+3] = unsafe.Slice(unsafe.StringData(id), len(id)), message[cut.end:]
	return bytes.Join(pieces[:n+4], nil), nil // only Join copies into new memory without clearing that memory first
}

// span is the place of a string or message: its length is in message[length:start], its content in
// message[start:end].
type span struct{ length, start, end int }

// sight is the existing part of a path in a message.
type sight struct {
	at     [maxLevels]span // place of each field, by its level in the path
	levels int             // number of existing levels
}

// find sets s to the part of the path that exists.
func (s *sight) find(message []byte, path Path) error {
	within := span{end: len(message)}
	for _, number := range path {
		at, there, err := only(message[:within.end], within.start, number)
		if err != nil || !there {
			return err
		}
		s.at[s.levels] = at
		s.levels++
		within = at
	}
	if !utf8.Valid(message[within.start:within.end]) {
		return fault(InvalidArgument, "The model id in the message is not valid UTF-8.")
	}
	return nil
}

// only is the place of the single field with this number in the message all[i:]. there is false if
// the message does not have the field. Several such fields are an error.
func only(all []byte, i int, number uint32) (at span, there bool, err error) {
	for i < len(all) {
		n, kind, size := protowire.ConsumeTag(all[i:])
		if size < 0 || n > protowire.MaxValidNumber {
			return at, false, errMalformed()
		}
		start := i + size
		hit := n == protowire.Number(number)
		switch {
		case hit && kind != protowire.BytesType:
			return at, false, fault(InvalidArgument, "In the message, the field that names the model, or a field around it, has the wrong type.")
		case hit && there:
			return at, false, fault(InvalidArgument, "In the message, the field that names the model, or a field around it, occurs more than once.")
		case kind == protowire.StartGroupType || kind == protowire.EndGroupType:
			return at, false, fault(InvalidArgument, "The message has a protobuf group, which the gateway does not support.")
		}
		if !hit {
			size = protowire.ConsumeFieldValue(n, kind, all[start:])
		} else {
			var value []byte
			value, size = protowire.ConsumeBytes(all[start:])
			at, there = span{start, start + size - len(value), start + size}, true
		}
		if size < 0 {
			return at, false, errMalformed()
		}
		i = start + size
	}
	return at, there, nil
}

func errMalformed() error {
	return fault(InvalidArgument, "The message is not valid protobuf: a field has an invalid number, type or length.")
}
