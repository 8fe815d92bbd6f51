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

// Path are the numbers of fields that lead from the top of a message down to a string: all but the last are of messages, here called
// containers, each within the one before.
type Path []uint32

const maxLevels = 16

// CheckPath returns an error for a path that leads to no field: one without a number, of more than 16, or with a number that no
// field can have. It is written for who wrote the path.
func CheckPath(path Path) error {
	switch {
	case len(path) == 0:
		return errors.New("a path has at least one number of a field")
	case len(path) > maxLevels:
		return fmt.Errorf("a path has at most %d numbers of fields, and this one %d", maxLevels, len(path))
	}
	for _, number := range path {
		switch {
		case number == 0 || number > uint32(protowire.MaxValidNumber):
			return fmt.Errorf("no field has the number %d: they go from 1 to %d", number, protowire.MaxValidNumber)
		case number >= uint32(protowire.FirstReservedNumber) && number <= uint32(protowire.LastReservedNumber):
			return fmt.Errorf("no field has the number %d: protobuf keeps those from %d to %d for itself", number, protowire.FirstReservedNumber, protowire.LastReservedNumber)
		}
	}
	return nil
}

// Extract returns the string at the path, and whether it is there: a string that is there may be empty. It shares no memory with
// the message. The path must pass [CheckPath].
//
// The message and each container on the path are read to their end, and refused, with an [*Error] of [InvalidArgument], if
// they are no protobuf, if they have the field on the path more than once or with another wire type, if the string is not UTF-8,
// or if they have a group, which only old messages have. What lies in other fields is not looked at. Nor is it known which
// fields exclude each other, so that a field of a oneof should not be on a path.
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

// Inject returns the message with another string at the path, and every other byte as it was, but for the lengths of what the string
// lies in. Where it is not there, it comes to the end of the innermost container that is there, within those that are missing. Where
// it is there and the same, the result is the message itself.
//
// The message is not changed. The path must pass [CheckPath], and id must not be empty. What [Extract] refuses is refused.
func Inject(message []byte, path Path, id string) ([]byte, error) {
	if id == "" || !utf8.ValidString(id) {
		return nil, fault(Internal, "The gateway has no id of the model that a message can have.")
	}
	var s sight
	if err := s.find(message, path); err != nil {
		return nil, err
	}
	cut := span{start: len(message), end: len(message)} // what id comes in the place of
	if s.levels > 0 {
		cut = s.at[s.levels-1]
	}
	if s.levels < len(path) {
		cut.start = cut.end
	} else if string(message[cut.start:cut.end]) == id {
		return message, nil
	}

	// How long each level becomes, from the string up. grown is by how many bytes what lies in a level does.
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

	var pieces [2*maxLevels + 4][]byte // not appended to, so that they stay on the stack
	n := 0
	var numbers [maxLevels * (binary.MaxVarintLen32 + binary.MaxVarintLen64)]byte
	written := numbers[:0]
	from := 0
	for level, at := range s.at[:s.levels] {
		if lengths[level] == at.end-at.start {
			continue // a length that is right stays as it was written
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
	return bytes.Join(pieces[:n+4], nil), nil // of what copies to new memory, this alone does not clear it first
}

// span is where a string or message lies: its length in message[length:start], itself in message[start:end].
type span struct{ length, start, end int }

// sight is how much of a path is in a message.
type sight struct {
	at     [maxLevels]span // by level of the path
	levels int             // that are there
}

// find follows the path as far as there is something.
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
		return fault(InvalidArgument, "The id of the model in the message is not UTF-8.")
	}
	return nil
}

// only reads the message that begins at i and ends where all does, and returns where it has the one field of that number.
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
			return at, false, fault(InvalidArgument, "In the message the field that names the model, or one around it, has another type.")
		case hit && there:
			return at, false, fault(InvalidArgument, "The message has the field that names the model, or one around it, more than once.")
		case kind == protowire.StartGroupType || kind == protowire.EndGroupType:
			return at, false, fault(InvalidArgument, "The message has a group, which the gateway does not read.")
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
	return fault(InvalidArgument, "The message is no protobuf: a field has no valid number, type or length.")
}
