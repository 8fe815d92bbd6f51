// Package mutate changes encoded protobuf messages at random, and removes fields that a reader does
// not use, so that tests can compare a reader of its own with generated code.
package mutate

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// part is a field of an encoded message: its number and type, and its value with a length, if the
// type has one.
type part struct {
	number protowire.Number
	kind   protowire.Type
	value  []byte
}

// parts splits a message into its fields; ok is false if it is none.
func parts(message []byte) (all []part, ok bool) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, false
		}
		message = message[n:]
		if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
			return nil, false
		}
		all = append(all, part{number, kind, message[:n]})
		message = message[n:]
	}
	return all, true
}

// Compare calls compare with n mutated messages, which are the same in each run. The function
// compare checks a message, and reports whether it is valid. The test fails unless a tenth of the
// messages are valid and a tenth are not.
func Compare(t *testing.T, seeds [][]byte, n int, compare func(message []byte) (valid bool)) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	valid, invalid := 0, 0
	for range n {
		message := slices.Clone(seeds[rng.IntN(len(seeds))])
		for range 1 + rng.IntN(3) {
			message = Message(rng, message)
		}
		if compare(message) {
			valid++
		} else {
			invalid++
		}
	}
	t.Logf("%d valid messages, %d invalid ones", valid, invalid)
	if valid < n/10 || invalid < n/10 {
		t.Error("either are too few to compare")
	}
}

// Message changes a message at random: mostly one of its fields or a field of a message in it, so
// that lengths stay right, and otherwise any byte. It may change the bytes of the argument.
func Message(rng *rand.Rand, message []byte) []byte {
	all, ok := parts(message)
	if !ok || len(all) == 0 || rng.IntN(40) == 0 {
		return scramble(rng, message)
	}
	i := largest(rng, all)
	if all[i].kind == protowire.BytesType && rng.IntN(8) > 0 {
		all[i] = inside(rng, all[i])
	} else {
		all = rearrange(rng, all, i)
	}
	var result []byte
	for _, p := range all {
		result = append(protowire.AppendTag(result, p.number, p.kind), p.value...)
	}
	return result
}

// largest chooses a field at random, mostly a large one.
func largest(rng *rand.Rand, all []part) int {
	total := 0
	for _, p := range all {
		total += 1 + len(p.value)
	}
	at := rng.IntN(total)
	return slices.IndexFunc(all, func(p part) bool {
		at -= 1 + len(p.value)
		return at < 0
	})
}

// inside changes the content of a field that has a length.
func inside(rng *rand.Rand, p part) part {
	inner, _ := protowire.ConsumeBytes(p.value)
	p.value = protowire.AppendBytes(nil, Message(rng, slices.Clone(inner)))
	return p
}

// scramble changes, removes, repeats or adds bytes.
func scramble(rng *rand.Rand, b []byte) []byte {
	at := rng.IntN(len(b) + 1)
	switch end := at + rng.IntN(len(b)-at+1); rng.IntN(5) {
	case 0:
		return b[:at]
	case 1:
		return slices.Delete(b, at, end)
	case 2:
		return slices.Insert(b, at, b[at:end]...)
	case 3:
		return slices.Insert(b, at, 0xff, byte(rng.Uint32()))
	}
	if at < len(b) {
		b[at] ^= 1 << rng.IntN(8)
	}
	return b
}

var (
	oddTexts   = []string{"", "é", "\xff", "-1", "10.0.0.2:80,", "text/event-stream", "500"}
	oddNumbers = []float64{-1, 5, math.NaN(), 1e300}
)

// rearrange removes, repeats, moves, renumbers or replaces the field i, or adds one.
func rearrange(rng *rand.Rand, all []part, i int) []part {
	j := rng.IntN(len(all))
	number := protowire.Number(1 + rng.IntN(35))
	switch rng.IntN(9) {
	case 0:
		return slices.Delete(all, i, i+1)
	case 1:
		repeated := all[i]
		if repeated.kind == protowire.BytesType && rng.IntN(2) > 0 {
			repeated = inside(rng, repeated)
		}
		return slices.Insert(all, j, repeated)
	case 2:
		all[i], all[j] = all[j], all[i]
	case 3:
		all[i].number = number
	case 4:
		all[i].value = bytes.Clone(all[j].value)
	case 5:
		all[i].kind, all[i].value = protowire.VarintType, protowire.AppendVarint(nil, rng.Uint64()>>rng.IntN(64))
	case 6:
		all[i].kind, all[i].value = protowire.BytesType, protowire.AppendString(nil, oddTexts[rng.IntN(len(oddTexts))])
	case 7:
		number := oddNumbers[rng.IntN(len(oddNumbers))]
		all[i].kind, all[i].value = protowire.Fixed64Type, protowire.AppendFixed64(nil, math.Float64bits(number))
	case 8:
		group := protowire.AppendTag([]byte{1<<3 | byte(protowire.VarintType), 1}, number, protowire.EndGroupType)
		odd := []part{
			{number, protowire.StartGroupType, group},
			{number, protowire.Fixed32Type, []byte{1, 2, 3, 4}},
			{protowire.MaxValidNumber, protowire.VarintType, []byte{0x81, 0x80, 0}},
			{protowire.MaxValidNumber + 1, protowire.VarintType, []byte{1}},
			{2, protowire.Fixed64Type, protowire.AppendFixed64(nil, math.Float64bits(7))}, // kinds of a google.protobuf.Value
			{3, protowire.BytesType, protowire.AppendString(nil, "7")},
			{4, protowire.VarintType, []byte{1}},
		}
		return slices.Insert(all, rng.IntN(len(all)+1), odd[rng.IntN(len(odd))])
	}
	return all
}

// Used are the parts of messages that a reader uses.
type Used struct {
	// Fields are the used fields, by the message that contains them. Fields of other messages are
	// all used.
	Fields map[protoreflect.FullName][]protoreflect.Name
	// Opaque are fields whose presence is used at most, and not their content.
	Opaque []protoreflect.FullName
	// Flat are fields whose content is used, unless they are inside themselves: lists in lists.
	Flat []protoreflect.FullName
}

// Parts returns a message without the fields that are not used. What follows an invalid field stays
// as it is.
func (u Used) Parts(of protoreflect.MessageDescriptor, message []byte) []byte {
	return u.parts(of, message, nil)
}

// parts returns the used parts of a message that is inside of these fields.
func (u Used) parts(of protoreflect.MessageDescriptor, message []byte, inside []protoreflect.FullName) (kept []byte) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return append(kept, message...)
		}
		size := protowire.ConsumeFieldValue(number, kind, message[n:])
		if size < 0 {
			return append(kept, message...)
		}
		whole := message[:n+size]
		message = message[n+size:]
		f := of.Fields().ByNumber(number)
		names, some := u.Fields[of.FullName()]
		switch {
		case f == nil || kind != protowire.BytesType:
			kept = append(kept, whole...)
		case slices.Contains(u.Opaque, f.FullName()), slices.Contains(u.Flat, f.FullName()) && slices.Contains(inside, f.FullName()):
			kept = append(append(kept, whole[:n]...), 0)
		case some && !slices.Contains(names, f.Name()):
		case f.Message() == nil:
			kept = append(kept, whole...)
		default:
			inner, _ := protowire.ConsumeBytes(whole[n:])
			kept = protowire.AppendBytes(append(kept, whole[:n]...), u.parts(f.Message(), inner, append(slices.Clip(inside), f.FullName())))
		}
	}
	return kept
}
