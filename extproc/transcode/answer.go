package transcode

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/extproc/kserve"
)

// errMessage means that a response is not a valid message of the V2 protocol.
var errMessage = errors.New("its answer is not a V2 message")

// broken returns the error that the client gets for a response that cannot be read.
func broken(err error) *kserve.Error {
	return &kserve.Error{Code: kserve.Internal, Reason: fmt.Sprintf("The model's server sent an invalid answer: %v.", err)}
}

// field is one field of a protobuf message.
type field struct {
	number protowire.Number
	wire   protowire.Type
	n      uint64 // value of a numeric field of any type
	bytes  []byte // value of a string, bytes or message field, in the memory of the whole message
}

// text returns the value of a string field.
func (f field) text() (string, error) {
	if f.wire != protowire.BytesType || !utf8.Valid(f.bytes) {
		return "", errMessage
	}
	return string(f.bytes), nil
}

// fields calls read for each field of a message.
func fields(message []byte, read func(field) error) error {
	for len(message) > 0 {
		number, wire, n := protowire.ConsumeTag(message)
		if n < 0 || !number.IsValid() {
			return errMessage
		}
		message = message[n:]
		f := field{number: number, wire: wire}
		switch wire {
		case protowire.VarintType:
			f.n, n = protowire.ConsumeVarint(message)
		case protowire.Fixed32Type:
			var bits uint32
			bits, n = protowire.ConsumeFixed32(message)
			f.n = uint64(bits)
		case protowire.Fixed64Type:
			f.n, n = protowire.ConsumeFixed64(message)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(message)
		default:
			n = protowire.ConsumeFieldValue(number, wire, message)
		}
		if n < 0 {
			return errMessage
		}
		if err := read(f); err != nil {
			return err
		}
		message = message[n:]
	}
	return nil
}

// output is one tensor of a response.
type output struct {
	name, datatype string
	shape          []int64
	parameters     parameters
	contents       []field // fields of the output's InferTensorContents
	raw            []byte
}

// answered is a parsed ModelInferResponse.
type answered struct {
	model, version, id string
	parameters         parameters
	outputs            []output
	raw                [][]byte
}

// answerInfer converts the response to an inference. The body is JSON, followed by the outputs that
// the client wants in binary.
func answerInfer(message []byte, wanted inBinary) (Response, *kserve.Error) {
	a := answered{parameters: make(parameters)}
	if err := fields(message, a.read); err != nil {
		return Response{}, broken(err)
	}
	if len(a.raw) > 0 && len(a.raw) != len(a.outputs) {
		return Response{}, broken(errors.New("only some of its outputs are raw"))
	}
	body := make([]byte, 0, 2*len(message))
	body = appendQuoted(append(body, `{"model_name":`...), a.model)
	body = appendMember(body, "model_version", a.version)
	body = appendMember(body, "id", a.id)
	body = append(a.parameters.append(body), `,"outputs":[`...)
	var tail [][]byte
	for i := range a.outputs {
		if i > 0 {
			body = append(body, ',')
		}
		o := &a.outputs[i]
		d, err := o.elements(a.raw, i)
		if err != nil {
			return Response{}, broken(err)
		}
		binary := wanted.wants(o.name)
		if binary {
			o.parameters[binaryDataSize] = strconv.AppendInt(nil, int64(len(o.raw)), 10)
			tail = append(tail, o.raw)
		}
		body = appendQuoted(append(body, `{"name":`...), o.name)
		body = appendQuoted(append(body, `,"datatype":`...), o.datatype)
		body = appendShape(append(body, `,"shape":`...), o.shape)
		body = o.parameters.append(body)
		if !binary {
			if body, err = d.appendJSON(append(body, `,"data":`...), o.raw); err != nil {
				return Response{}, &kserve.Error{
					Code: kserve.FailedPrecondition,
					Reason: fmt.Sprintf("The output %s has bytes that are not UTF-8, which JSON cannot represent: request it in binary, with the parameter %s.",
						quote(o.name),
						binaryData),
				}
			}
		}
		body = append(body, '}')
	}
	body = append(body, "]}"...)
	r := Response{Status: kserve.OK.HTTP()}
	if len(tail) > 0 {
		r.HeaderLength = len(body)
	}
	for _, raw := range tail {
		body = append(body, raw...)
	}
	r.Body = body
	return r, nil
}

func (a *answered) read(f field) (err error) {
	switch f.number {
	case 1:
		a.model, err = f.text()
	case 2:
		a.version, err = f.text()
	case 3:
		a.id, err = f.text()
	case 4:
		err = a.parameters.read(f)
	case 5:
		o := output{parameters: make(parameters)}
		if err = fields(f.bytes, o.read); f.wire != protowire.BytesType {
			err = errMessage
		}
		a.outputs = append(a.outputs, o)
	case 6:
		if f.wire != protowire.BytesType {
			return errMessage
		}
		a.raw = append(a.raw, f.bytes)
	}
	return err
}

func (o *output) read(f field) (err error) {
	switch f.number {
	case 1:
		o.name, err = f.text()
	case 2:
		o.datatype, err = f.text()
	case 3:
		o.shape, err = appendDimensions(o.shape, f)
	case 4:
		err = o.parameters.read(f)
	case 5:
		if f.wire != protowire.BytesType {
			return errMessage
		}
		return fields(f.bytes, func(f field) error {
			o.contents = append(o.contents, f)
			if !packs(f) {
				return errMessage
			}
			return nil
		})
	}
	return err
}

// packs reports whether a packed field of InferTensorContents is well formed. If it is not, the
// whole message is invalid, even if the elements are also present in raw form.
func packs(f field) bool {
	switch {
	case f.wire != protowire.BytesType:
		return true
	case f.number == fp32Field:
		return len(f.bytes)%4 == 0
	case f.number == fp64Field:
		return len(f.bytes)%8 == 0
	case f.number < boolField || f.number > uint64Field:
		return true
	}
	return varints(f.bytes, func(uint64) error { return nil }) == nil
}

// varints calls read for each varint in a packed field.
func varints(packed []byte, read func(uint64) error) error {
	for len(packed) > 0 {
		v, n := protowire.ConsumeVarint(packed)
		if n < 0 {
			return errMessage
		}
		if err := read(v); err != nil {
			return err
		}
		packed = packed[n:]
	}
	return nil
}

// elements converts the elements of an output to raw form, and checks that they match its shape.
func (o *output) elements(raw [][]byte, i int) (*datatype, error) {
	d := datatypes[o.datatype]
	if d == nil {
		return nil, fmt.Errorf("the output %s has an unknown datatype", quote(o.name))
	}
	if len(raw) > 0 {
		o.raw = raw[i]
	} else {
		for _, f := range o.contents {
			var err error
			if o.raw, err = d.appendRaw(o.raw, f); err != nil {
				return nil, fmt.Errorf("the elements of the output %s are not %s", quote(o.name), d.name)
			}
		}
	}
	if n, ok := elements(o.shape); !ok || !d.check(o.raw, n) {
		return nil, fmt.Errorf("the elements of the output %s do not match its shape", quote(o.name))
	}
	return d, nil
}

// appendDimensions appends the dimensions in a field of a shape. The field has one dimension, or
// several packed dimensions.
func appendDimensions(shape []int64, f field) ([]int64, error) {
	switch f.wire {
	case protowire.VarintType:
		return append(shape, int64(f.n)), nil
	case protowire.BytesType:
		err := varints(f.bytes, func(d uint64) error {
			shape = append(shape, int64(d))
			return nil
		})
		return shape, err
	}
	return nil, errMessage
}

// parameters maps the names of a response's parameters to JSON values.
type parameters map[string][]byte

// read parses an entry of a map<string, InferParameter>. It ignores an entry without a value.
func (p parameters) read(f field) error {
	if f.wire != protowire.BytesType {
		return errMessage
	}
	var name string
	var value []byte
	err := fields(f.bytes, func(f field) (err error) {
		switch f.number {
		case 1:
			name, err = f.text()
		case 2:
			if f.wire != protowire.BytesType {
				return errMessage
			}
			err = fields(f.bytes, func(f field) error {
				said, err := f.parameter()
				if said != nil {
					value = said
				}
				return err
			})
		}
		return err
	})
	if delete(p, name); value != nil { // of several entries with the same name, the last one is used
		p[name] = value
	}
	return err
}

// parameter returns the value in a field of an InferParameter, as JSON. It returns nil if the field
// contains no value.
func (f field) parameter() ([]byte, error) {
	want := protowire.VarintType
	switch f.number {
	case stringParam:
		want = protowire.BytesType
	case doubleParam:
		want = protowire.Fixed64Type
	case boolParam, int64Param, uint64Param:
	default:
		return nil, nil
	}
	if f.wire != want {
		return nil, errMessage
	}
	switch f.number {
	case boolParam:
		return strconv.AppendBool(nil, f.n != 0), nil
	case int64Param:
		return strconv.AppendInt(nil, int64(f.n), 10), nil
	case uint64Param:
		return strconv.AppendUint(nil, f.n, 10), nil
	case doubleParam:
		return appendNumber(nil, math.Float64frombits(f.n)), nil
	}
	text, err := f.text()
	return appendQuoted(nil, text), err
}

// append appends the parameters as a member of a JSON object, sorted by name. It appends nothing if
// there are no parameters.
func (p parameters) append(dst []byte) []byte {
	if len(p) == 0 {
		return dst
	}
	dst = append(dst, `,"parameters":`...)
	for i, name := range slices.Sorted(maps.Keys(p)) {
		dst = append(dst, "{,"[min(i, 1)])
		dst = append(append(appendQuoted(dst, name), ':'), p[name]...)
	}
	return append(dst, '}')
}

// appendMember appends a string member of a JSON object, unless the value is empty.
func appendMember(dst []byte, key, value string) []byte {
	if value == "" {
		return dst
	}
	return appendQuoted(append(appendQuoted(append(dst, ','), key), ':'), value)
}

func appendShape(dst []byte, shape []int64) []byte {
	dst = append(dst, '[')
	for i, d := range shape {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendInt(dst, d, 10)
	}
	return append(dst, ']')
}
