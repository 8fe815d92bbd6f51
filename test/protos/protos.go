// Package protos validates Envoy's messages in tests.
package protos

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
)

// Validate applies protoc-gen-validate's rules to a message and to the messages in its Any fields.
// It returns the number of messages in Any fields.
func Validate(m protoreflect.Message) (anys int, err error) {
	if v, ok := m.Interface().(interface{ ValidateAll() error }); ok {
		if err := v.ValidateAll(); err != nil {
			return 0, err
		}
	}
	if held, ok := m.Interface().(*anypb.Any); ok {
		inner, err := held.UnmarshalNew()
		if err != nil {
			return 0, err
		}
		n, err := Validate(inner.ProtoReflect())
		return n + 1, err
	}
	total := 0
	visit := func(v protoreflect.Value) bool {
		var n int
		n, err = Validate(v.Message())
		total += n
		return err == nil
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		switch {
		case field.IsMap() && field.MapValue().Message() != nil:
			value.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { return visit(v) })
		case field.IsList() && field.Message() != nil:
			for i := 0; i < value.List().Len() && err == nil; i++ {
				visit(value.List().Get(i))
			}
		case field.FullName() == turnsOn && value.Message().Interface().(*anypb.Any).GetTypeUrl() == "":
		case field.Message() != nil && !field.IsMap() && !field.IsList():
			visit(value)
		}
		return err == nil
	})
	return total, err
}

// turnsOn is a field whose Any may be empty: then it enables a filter for a route without settings.
const turnsOn = "envoy.config.route.v3.FilterConfig.config"
