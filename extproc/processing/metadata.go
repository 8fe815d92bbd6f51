package processing

import (
	"unicode/utf8"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/codec"
)

// Metadata are the values of a metadata_context that extproc uses. A value is known if the message
// has its key. A known value of another type is empty, or false.
type Metadata struct {
	Model    Text  // [wire.RequestModel]
	Served   Text  // [wire.ServedKey]
	Answered Flag  // [wire.UsageAnswered]
	Subset   Texts // [wire.SubsetKey]
}

// Text is a string that may be unknown.
type Text struct {
	Known bool
	Text  string
}

// Flag is a bool that may be unknown.
type Flag struct{ Known, Set bool }

// Texts is a list of strings that may be unknown.
type Texts struct {
	Known bool
	Texts []string
}

// field reads a field of a Metadata. An entry of filter_metadata replaces an earlier one of the
// same namespace.
func (m *Metadata) field(t codec.Tag, _ uint64, entry []byte) bool {
	if t != 1<<3|codec.Length {
		return true
	}
	namespace, ok := keyOf(entry)
	if !ok {
		return false
	}
	use := func([]byte, *value) {}
	switch string(namespace) {
	case wire.RequestNamespace:
		m.Model, use = Text{}, func(key []byte, v *value) {
			if string(key) == wire.RequestModel {
				m.Model = Text{true, v.string()}
			}
		}
	case wire.SubsetNamespace:
		m.Subset, use = Texts{}, func(key []byte, v *value) {
			if string(key) == wire.SubsetKey {
				m.Subset = Texts{true, v.strings()}
			}
		}
	case wire.DestinationNamespace:
		m.Served, use = Text{}, func(key []byte, v *value) {
			if string(key) == wire.ServedKey {
				m.Served = Text{true, v.string()}
			}
		}
	case wire.UsageNamespace:
		m.Answered, use = Flag{}, func(key []byte, v *value) {
			if string(key) == wire.UsageAnswered {
				m.Answered = Flag{true, v.kind == boolValue && v.flag}
			}
		}
	}
	return codec.Fields(entry, func(t codec.Tag, _ uint64, members []byte) bool {
		return t != 2<<3|codec.Length || codec.Fields(members, func(t codec.Tag, _ uint64, member []byte) bool {
			if t != 1<<3|codec.Length {
				return true
			}
			key, ok := keyOf(member)
			if !ok {
				return false
			}
			var v value
			ok = codec.Fields(member, func(t codec.Tag, _ uint64, data []byte) bool {
				return t != 2<<3|codec.Length || codec.Fields(data, v.field)
			})
			use(key, &v)
			return ok
		})
	})
}

// keyOf reads the key of an entry of a map from strings.
func keyOf(entry []byte) (key []byte, ok bool) {
	ok = codec.Fields(entry, func(t codec.Tag, _ uint64, data []byte) bool {
		if t != 1<<3|codec.Length {
			return true
		}
		key = data
		return utf8.Valid(data)
	})
	return key, ok
}

// The fields of a google.protobuf.Value.
const (
	nullValue   = 1<<3 | codec.Varint
	numberValue = 2<<3 | codec.Fixed64
	stringValue = 3<<3 | codec.Length
	boolValue   = 4<<3 | codec.Varint
	structValue = 5<<3 | codec.Length
	listValue   = 6<<3 | codec.Length
)

// value is a google.protobuf.Value. Numbers, structs, and lists in lists are not kept.
type value struct {
	kind codec.Tag // the field that is set; 0 if none is
	text []byte
	flag bool
	list []value
}

// field reads a field of the value. The last field counts, but two lists are merged.
func (v *value) field(t codec.Tag, bits uint64, data []byte) bool {
	switch t {
	case nullValue, numberValue, structValue:
		*v = value{kind: t}
	case stringValue:
		*v = value{kind: t, text: data}
		return utf8.Valid(data)
	case boolValue:
		*v = value{kind: t, flag: bits != 0}
	case listValue:
		if v.kind != listValue {
			*v = value{kind: t}
		}
		return codec.Fields(data, v.item)
	}
	return true
}

// item reads a field of a google.protobuf.ListValue.
func (v *value) item(t codec.Tag, _ uint64, data []byte) bool {
	if t != 1<<3|codec.Length {
		return true
	}
	var item value
	ok := codec.Fields(data, func(t codec.Tag, bits uint64, data []byte) bool {
		if t == listValue {
			item = value{kind: t}
			return true
		}
		return item.field(t, bits, data)
	})
	v.list = append(v.list, item)
	return ok
}

// string returns a string value; empty if it has another type.
func (v *value) string() string { return string(v.text) }

// strings returns a string or a list of strings; nil if the value has another type. Values of other
// types in a list are empty strings.
func (v *value) strings() (all []string) {
	switch v.kind {
	case stringValue:
		return []string{string(v.text)}
	case listValue:
		for i := range v.list {
			all = append(all, v.list[i].string())
		}
	}
	return all
}
