package processing

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// Struct is a google.protobuf.Struct, encoded while it is built. Each method that adds a value must
// be called with another key: of equal keys the last one counts. The zero Struct has no fields.
type Struct struct{ writer }

// NewStruct returns an empty Struct with room for this many bytes.
func NewStruct(bytes int) Struct { return Struct{writer{bytes: make([]byte, 0, bytes)}} }

// Empty reports whether it has no fields.
func (s *Struct) Empty() bool { return len(s.bytes) == 0 }

// Text adds a string.
func (s *Struct) Text(key, value string) {
	at := s.member(key, len(value))
	of := s.open(2, len(value))
	s.text(3, value)
	s.close(of)
	s.close(at)
}

// Number adds a number.
func (s *Struct) Number(key string, value float64) {
	at := s.member(key, 0)
	of := s.open(2, 0)
	s.bytes = append(s.bytes, 2<<3|byte(protowire.Fixed64Type))
	s.bytes = protowire.AppendFixed64(s.bytes, math.Float64bits(value))
	s.close(of)
	s.close(at)
}

// Bool adds a bool.
func (s *Struct) Bool(key string, value bool) {
	at := s.member(key, 0)
	s.bytes = append(s.bytes, 2<<3|byte(protowire.BytesType), 2, 4<<3|byte(protowire.VarintType), byte(protowire.EncodeBool(value)))
	s.close(at)
}

// Begin begins a Struct in the Struct. All values are added to it until End is called with the
// result.
func (s *Struct) Begin(key string) Begun {
	const probably = 128
	return Begun{s.member(key, probably), s.open(2, probably), s.open(5, probably)}
}

// Begun is a Struct that has begun.
type Begun [3]int

// End ends a Struct.
func (s *Struct) End(b Begun) {
	for i := len(b) - 1; i >= 0; i-- {
		s.close(b[i])
	}
}

// member begins an entry, whose value has probably at least so many bytes.
func (s *Struct) member(key string, least int) (at int) {
	at = s.open(1, len(key)+least)
	s.text(1, key)
	return at
}
