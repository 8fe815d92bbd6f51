package kserve_test

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/headgate/headgate/extproc/kserve"
)

var splices = flag.Int("splices", 10_000, "compare this many random messages with what protobuf makes of them")

// The oracle is the protobuf library, with message definitions that the test generates.

// define returns the descriptor of message M0. The messages refer to each other as M1, M2 and so
// on.
func define(t testing.TB, messages []*descriptorpb.DescriptorProto) protoreflect.MessageDescriptor {
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{Name: new("m.proto"), MessageType: messages}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return file.Messages().ByName("M0")
}

func message(i int) *descriptorpb.DescriptorProto {
	return &descriptorpb.DescriptorProto{Name: new(fmt.Sprint("M", i))}
}

// field adds a field of a kind to a message definition. If the field is a message, of is the number
// of its type.
func field(to *descriptorpb.DescriptorProto, number uint32, kind protoreflect.Kind, repeated bool, of int) {
	f := &descriptorpb.FieldDescriptorProto{
		Name: new(fmt.Sprint("f", number)), Number: new(int32(number)),
		Type: descriptorpb.FieldDescriptorProto_Type(kind).Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
	}
	if repeated {
		f.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	}
	if kind == protoreflect.MessageKind {
		f.TypeName = new(fmt.Sprint(".M", of))
	}
	to.Field = append(to.Field, f)
}

// bare returns a definition that has only the fields of the path.
func bare(t testing.TB, path kserve.Path) protoreflect.MessageDescriptor {
	var all []*descriptorpb.DescriptorProto
	for i, number := range path {
		kind := protoreflect.MessageKind
		if i == len(path)-1 {
			kind = protoreflect.StringKind
		}
		m := message(i)
		field(m, number, kind, false, i+1)
		all = append(all, m)
	}
	return define(t, all)
}

// at returns the string at a path of a message.
func at(m protoreflect.Message, path kserve.Path) (id string, found bool) {
	for i, number := range path {
		f := m.Descriptor().Fields().ByNumber(protowire.Number(number))
		if !m.Has(f) {
			return "", false
		}
		if i == len(path)-1 {
			return m.Get(f).String(), true
		}
		m = m.Get(f).Message()
	}
	return "", false
}

// set sets the string at a path of a message.
func set(m protoreflect.Message, path kserve.Path, id string) {
	for i, number := range path {
		f := m.Descriptor().Fields().ByNumber(protowire.Number(number))
		if i == len(path)-1 {
			m.Set(f, protoreflect.ValueOfString(id))
			return
		}
		m = m.Mutable(f).Message()
	}
}

func decode(d protoreflect.MessageDescriptor, b []byte) (*dynamicpb.Message, error) {
	m := dynamicpb.NewMessage(d)
	return m, proto.Unmarshal(b, m)
}

// spliced returns the message with id at the path, rebuilt from whole fields. Lengths that do not
// change keep their encoding.
func spliced(b []byte, path kserve.Path, id string) []byte {
	if len(path) == 0 {
		return []byte(id)
	}
	var all []byte
	there := false
	for rest := b; len(rest) > 0; {
		n := protowire.ConsumeFieldValue(number(rest))
		num, wire, head := protowire.ConsumeTag(rest)
		if uint32(num) != path[0] || wire != protowire.BytesType {
			all, rest = append(all, rest[:head+n]...), rest[head+n:]
			continue
		}
		there = true
		old, _ := protowire.ConsumeBytes(rest[head:])
		value := spliced(old, path[1:], id)
		all = append(all, rest[:head]...)
		if len(value) == len(old) {
			all = append(all, rest[head:head+n-len(old)]...)
		} else {
			all = protowire.AppendVarint(all, uint64(len(value)))
		}
		all, rest = append(all, value...), rest[head+n:]
	}
	if !there {
		all = protowire.AppendBytes(protowire.AppendTag(all, protowire.Number(path[0]), protowire.BytesType), spliced(nil, path[1:], id))
	}
	return all
}

// number returns a field's number, its wire type and the bytes after these, as
// [protowire.ConsumeFieldValue] expects them.
func number(b []byte) (protowire.Number, protowire.Type, []byte) {
	num, wire, n := protowire.ConsumeTag(b)
	return num, wire, b[n:]
}

// agree compares Extract and Inject with protobuf for arbitrary bytes. If Extract accepts the
// bytes, protobuf must either reject them or read the same id, before and after Inject.
func agree(t testing.TB, d protoreflect.MessageDescriptor, b []byte, path kserve.Path, id string) (accepted bool) {
	got, found, err := kserve.Extract(b, path)
	if err != nil {
		if _, err := kserve.Inject(b, path, id); err == nil {
			t.Fatalf("%q, %v: is rejected, but %q is injected", b, path, id)
		}
		return false
	}
	m, refused := decode(d, b)
	if refused == nil {
		if want, there := at(m, path); got != want || found != there {
			t.Fatalf("%q, %v: %q, %v, but protobuf reads %q, %v", b, path, got, found, want, there)
		}
	}
	before := bytes.Clone(b)
	injected, err := kserve.Inject(b, path, id)
	if err != nil || len(injected) == 0 {
		t.Fatalf("%q, %v: %q is not injected: %q, %v", b, path, id, injected, err)
	}
	if !bytes.Equal(b, before) {
		t.Fatalf("%q, %v: was changed to %q", before, path, b)
	}
	if want := spliced(b, path, id); !bytes.Equal(injected, want) {
		t.Fatalf("%q, %v: injected it is %q, want %q", b, path, injected, want)
	}
	if cap(injected) > len(injected) && &injected[0] != &b[0] {
		t.Fatalf("%q, %v: injected, it has %d unused bytes", b, path, cap(injected)-len(injected))
	}
	now, err := decode(d, injected)
	if (err == nil) != (refused == nil) {
		t.Fatalf("%q, %v: protobuf says %v, and %v of %q", b, path, refused, err, injected)
	}
	if err == nil {
		set(m, path, id)
		if !proto.Equal(m, now) {
			t.Fatalf("%q, %v: injected it is %v, want %v", b, path, now, m)
		}
	}
	if again, found, err := kserve.Extract(injected, path); err != nil || !found || again != id {
		t.Fatalf("%q, %v: injected it has %q, %v, %v", b, path, again, found, err)
	}
	if got == id && found && (&injected[0] != &b[0] || len(injected) != len(b)) {
		t.Fatalf("%q, %v: the same id again is a copy", b, path)
	}
	return true
}

// chance generates random messages and definitions.
type chance struct{ *rand.Rand }

func (c chance) one(in int) bool { return c.IntN(in) == 0 }

// number returns a field number, usually a small one.
func (c chance) number() uint32 {
	for {
		n := 1 + c.Uint32N([]uint32{4, 18, 3000, 1<<29 - 1}[c.IntN(4)])
		if n < 19000 || n > 19999 {
			return n
		}
	}
}

func (c chance) text() string {
	size := []int{0, 1, 5, 20, 126, 127, 128, 129, 300}[c.IntN(9)]
	if c.one(200) {
		size = 1<<14 - 4 + c.IntN(8)
	}
	var s strings.Builder
	for s.Len() < size {
		s.WriteRune([]rune{'a', '/', 'ö', '字', '😀'}[c.IntN(5)])
	}
	return s.String()
}

// definition returns the definition of a message with several levels, and a path through them. Each
// level has other fields, too.
func (c chance) definition(t testing.TB) (protoreflect.MessageDescriptor, kserve.Path) {
	levels := 1 + c.IntN(4)
	if c.one(10) {
		levels = 1 + c.IntN(16)
	}
	path := make(kserve.Path, levels)
	var all []*descriptorpb.DescriptorProto
	for i := range path {
		m := message(i)
		path[i] = c.number()
		if i < levels-1 {
			field(m, path[i], protoreflect.MessageKind, false, i+1)
		} else {
			field(m, path[i], protoreflect.StringKind, false, 0)
		}
		taken := map[uint32]bool{path[i]: true}
		for range c.IntN(6) {
			n := c.number()
			kind := protoreflect.Kind(1 + c.IntN(18))
			if taken[n] || kind == protoreflect.GroupKind || kind == protoreflect.EnumKind {
				continue
			}
			taken[n] = true
			field(m, n, kind, c.one(2), c.IntN(levels))
		}
		all = append(all, m)
	}
	return define(t, all), path
}

// fill sets random values in a message. Nested is the depth of the message.
func (c chance) fill(m protoreflect.Message, nested int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		switch f := fields.Get(i); {
		case c.one(3), nested > 2 && f.Kind() == protoreflect.MessageKind:
		case f.IsList():
			list := m.Mutable(f).List()
			for range c.IntN(4) {
				if f.Kind() == protoreflect.MessageKind {
					c.fill(list.AppendMutable().Message(), nested+1)
				} else {
					list.Append(c.value(f.Kind()))
				}
			}
		case f.Kind() == protoreflect.MessageKind:
			c.fill(m.Mutable(f).Message(), nested+1)
		default:
			m.Set(f, c.value(f.Kind()))
		}
	}
	if !c.one(3) {
		return
	}
	for range 1 + c.IntN(3) { // adds unknown fields
		n := protowire.Number(c.number())
		if fields.ByNumber(n) != nil {
			continue
		}
		unknown := m.GetUnknown()
		switch c.IntN(4) {
		case 0:
			unknown = protowire.AppendVarint(protowire.AppendTag(unknown, n, protowire.VarintType), c.Uint64()>>c.IntN(64))
		case 1:
			unknown = protowire.AppendFixed32(protowire.AppendTag(unknown, n, protowire.Fixed32Type), c.Uint32())
		case 2:
			unknown = protowire.AppendFixed64(protowire.AppendTag(unknown, n, protowire.Fixed64Type), c.Uint64())
		case 3:
			unknown = protowire.AppendString(protowire.AppendTag(unknown, n, protowire.BytesType), c.text())
		}
		m.SetUnknown(unknown)
	}
}

func (c chance) value(kind protoreflect.Kind) protoreflect.Value {
	switch kind {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(c.one(2))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(c.Int32() - 1<<30)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(c.Int64()>>c.IntN(63) - 100)
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(c.Uint32())
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(c.Uint64() >> c.IntN(64))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(c.Float32())
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(c.Float64())
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes([]byte(c.text()))
	}
	return protoreflect.ValueOfString(c.text())
}

// otherwise encodes the same message differently: with its fields in another order, and with
// overlong tags and lengths.
func (c chance) otherwise(b []byte, path kserve.Path) []byte {
	var fields [][]byte
	for rest := b; len(rest) > 0; {
		num, wire, head := protowire.ConsumeTag(rest)
		n := protowire.ConsumeFieldValue(number(rest))
		one := c.long(uint64(num)<<3|uint64(wire), 5)
		if wire != protowire.BytesType {
			one = append(one, rest[head:head+n]...)
		} else {
			value, _ := protowire.ConsumeBytes(rest[head:])
			if len(path) > 1 && uint32(num) == path[0] {
				value = c.otherwise(value, path[1:])
			}
			one = append(append(one, c.long(uint64(len(value)), 10)...), value...)
		}
		fields, rest = append(fields, one), rest[head+n:]
	}
	c.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	return bytes.Join(fields, nil)
}

// long encodes a varint, sometimes with more bytes than necessary; most is the maximum number of
// bytes.
func (c chance) long(n uint64, most int) []byte {
	b := protowire.AppendVarint(nil, n)
	if !c.one(4) {
		return b
	}
	for len(b) < most && !c.one(3) {
		b[len(b)-1] |= 0x80
		b = append(b, 0)
	}
	return b
}

// broken returns a message with a few wrong bytes.
func (c chance) broken(b []byte) []byte {
	b = bytes.Clone(b)
	for range 1 + c.IntN(3) {
		if len(b) == 0 {
			return []byte{byte(c.Uint32())}
		}
		i := c.IntN(len(b))
		j := i + c.IntN(min(len(b)-i, 40)+1)
		switch c.IntN(6) {
		case 0:
			b = b[:i]
		case 1:
			b[i] ^= 1 << c.IntN(8)
		case 2:
			b[i] = byte(c.Uint32())
		case 3: // repeats bytes of the message
			b = append(b[:j:j], b[i:]...)
		case 4:
			b = append(b[:i:i], b[j:]...)
		case 5:
			b = append(b[:i:i], append([]byte{byte(c.Uint32())}, b[i:]...)...)
		}
	}
	return b
}

// Extract and Inject agree with protobuf on random messages of random definitions that contain all,
// some or none of the path's fields, also with a few wrong bytes. A message in which the field or a
// container on its path occurs twice must be rejected.
func TestSplicesAreAsProtobufReadsThem(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(1, 1))}
	var d protoreflect.MessageDescriptor
	var path kserve.Path
	var here, missing, broken int
	for n := range *splices {
		if n%20 == 0 {
			d, path = c.definition(t)
		}
		m := dynamicpb.NewMessage(d)
		c.fill(m, 0)
		if c.one(2) {
			set(m, path, c.text())
		}
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if c.one(2) {
			b = c.otherwise(b, path)
		}
		id := c.text()
		if id == "" || c.one(20) {
			if id, _ = at(m, path); id == "" {
				id = "m"
			}
		}
		if got, found, err := kserve.Extract(b, path); err != nil {
			t.Fatalf("%q, %v: %v", b, path, err)
		} else if want, there := at(m, path); got != want || found != there {
			t.Fatalf("%q, %v: %q, %v, want %q, %v", b, path, got, found, want, there)
		} else if found {
			here++
		} else {
			missing++
		}
		if !agree(t, d, b, path, id) {
			t.Fatalf("%q, %v: rejected", b, path)
		}
		if agree(t, d, c.broken(b), path, id) {
			broken++
		}
		if twice := c.twice(b, path); twice != nil {
			if got, found, err := kserve.Extract(twice, path); err == nil {
				t.Fatalf("%q, %v: names two models and is read as %q, %v", twice, path, got, found)
			}
		}
	}
	t.Logf("%d with the field, %d without it, %d accepted with bytes wrong", here, missing, broken)
	if least := *splices / 20; here < least || missing < least || broken < least {
		t.Error("the test is too easy")
	}
}

// twice returns the message with a second copy of one field of the path, at the end of its
// container; nil if the message has no such field.
func (c chance) twice(b []byte, path kserve.Path) []byte {
	for rest := b; len(rest) > 0; {
		num, wire, head := protowire.ConsumeTag(rest)
		n := protowire.ConsumeFieldValue(number(rest))
		if uint32(num) == path[0] && wire == protowire.BytesType {
			before := b[: len(b)-len(rest) : len(b)-len(rest)]
			value, _ := protowire.ConsumeBytes(rest[head:])
			if len(path) > 1 && c.one(2) {
				if value = c.twice(value, path[1:]); value != nil {
					before = append(before, rest[:head]...)
					return append(protowire.AppendBytes(before, value), rest[head+n:]...)
				}
			}
			return protowire.AppendString(protowire.AppendTag(bytes.Clone(b), num, wire), "")
		}
		rest = rest[head+n:]
	}
	return nil
}

// FuzzSplice compares Extract and Inject with protobuf on arbitrary messages.
func FuzzSplice(f *testing.F) {
	c := chance{rand.New(rand.NewPCG(1, 2))}
	for range 20 {
		d, path := c.definition(f)
		m := dynamicpb.NewMessage(d)
		c.fill(m, 0)
		set(m, path, "model")
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		var numbers []byte
		for _, n := range path {
			numbers = protowire.AppendVarint(numbers, uint64(n))
		}
		f.Add(b, numbers, c.text())
	}
	f.Add([]byte(str(1, "a")+str(1, "b")), []byte{1}, "c")
	f.Add([]byte(str(1, str(1, "a"))+str(2, "b")), []byte{1, 1}, "c")
	f.Add([]byte("\x8a\x00\x81\x00a\x0b\x0c"), []byte{1}, "c")
	f.Fuzz(func(t *testing.T, b, numbers []byte, id string) {
		var path kserve.Path
		for len(numbers) > 0 {
			n, size := protowire.ConsumeVarint(numbers)
			if size < 0 || n != uint64(uint32(n)) {
				return
			}
			path, numbers = append(path, uint32(n)), numbers[size:]
		}
		if kserve.CheckPath(path) != nil {
			return
		}
		if id == "" || !utf8.ValidString(id) {
			if _, err := kserve.Inject(b, path, id); err == nil {
				t.Fatalf("%q is injected", id)
			}
			return
		}
		agree(t, bare(t, path), b, path, id)
	})
}
