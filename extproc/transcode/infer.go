package transcode

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/headgate/headgate/extproc/kserve"
)

// Parameters that exist in REST but not in gRPC.
const (
	binaryDataSize   = "binary_data_size"   // input's parameter: size of its elements at the end of the body
	binaryData       = "binary_data"        // output's parameter: whether the client wants it in binary
	binaryDataOutput = "binary_data_output" // request's parameter: the default of binary_data
)

// input is one tensor of a request.
type input struct {
	name       string
	datatype   *datatype
	shape      []int64
	parameters []byte // encoded as field 4 of InferInputTensor
	binary     bool   // its elements are in inference.tail
	size       int64  // size of its elements in inference.tail
	raw        []byte
}

// inference is a REST request that is being parsed.
type inference struct {
	json       scanner
	tail       []byte // binary elements of inputs that have not been parsed yet
	id         string
	parameters []byte // encoded as field 4 of ModelInferRequest
	inputs     []input
	outputs    []byte // encoded as field 6 of ModelInferRequest
	binary     inBinary
}

// readInfer converts a REST request to a ModelInferRequest.
func readInfer(r kserve.REST, headerLength string, body []byte) ([]byte, inBinary, error) {
	json := body
	if headerLength != "" {
		n, err := strconv.ParseUint(headerLength, 10, 31)
		if err != nil || n == 0 || n > uint64(len(body)) {
			return nil, inBinary{}, fault("The header %s must state how many of the %d bytes of the body are JSON.", HeaderLength, len(body))
		}
		json = body[:n]
	}
	if !utf8.Valid(json) {
		return nil, inBinary{},
			fault("The request is not UTF-8, as JSON must be: send text as UTF-8, and other bytes as a tensor in binary, with the header %s.",
				HeaderLength)
	}
	x := inference{json: scanner{b: json}, tail: body[len(json):], binary: inBinary{output: make(map[string]bool)}}
	if err := x.read(); err != nil {
		if said, ok := errors.AsType[*kserve.Error](err); ok {
			return nil, inBinary{}, said
		}
		return nil, inBinary{}, fault("The request is not a valid V2 request: %v.", err)
	}
	return x.message(r), x.binary, nil
}

// fault returns an error about the request whose text is a whole sentence.
func fault(format string, args ...any) *kserve.Error {
	return &kserve.Error{Code: kserve.InvalidArgument, Reason: fmt.Sprintf(format, args...)}
}

func (x *inference) read() error {
	s := &x.json
	given := false
	err := s.members(func(key string) (err error) {
		switch key {
		case "id":
			if s.word("null") { // MLServer's clients write null for missing values
				return nil
			}
			x.id, err = s.text()
		case "parameters":
			x.parameters, err = s.parameters(4, "", func(name string) (bool, error) {
				if name != binaryDataOutput {
					return false, nil
				}
				yes, err := s.yes(name)
				x.binary.all = yes
				return true, err
			})
		case "inputs":
			given = true
			err = s.elements(x.readInput)
		case "outputs":
			if s.word("null") {
				return nil
			}
			err = s.elements(x.readOutput)
		default:
			err = s.skip()
		}
		return in(short(key), err)
	})
	if err == nil {
		err = s.end()
	}
	switch {
	case err != nil:
		return err
	case !given:
		return fault("The request has no inputs: send a list of tensors.")
	case len(x.tail) > 0:
		return fault("The body ends with %d bytes that no input has: the %s of all inputs together is what follows the JSON.", len(x.tail),
			binaryDataSize)
	}
	return nil
}

// in prefixes an error with the place of the fault, unless the text of the error is a whole
// sentence.
func in(where string, err error) error {
	if _, said := errors.AsType[*kserve.Error](err); err == nil || said || where == "" {
		return err
	}
	return fmt.Errorf("%s: %w", where, err)
}

// yes parses the value of a boolean parameter.
func (s *scanner) yes(name string) (bool, error) {
	yes := s.word("true")
	if !yes && !s.word("false") {
		return false, fault("The parameter %s must be true or false.", name)
	}
	return yes, nil
}

// readInput parses one tensor. If the elements come before the datatype, it parses them at the end.
func (x *inference) readInput() error {
	s := &x.json
	var t input
	var datatype string
	shaped, given := false, false
	later := -1 // index in the JSON of elements that come before the datatype
	err := s.members(func(key string) (err error) {
		switch key {
		case "name":
			t.name, err = s.text()
		case "datatype":
			datatype, err = s.text()
			t.datatype = datatypes[datatype]
		case "shape":
			t.shape, err = s.shape()
			shaped = true
		case "parameters":
			t.parameters, err = s.parameters(4, quote(t.name), func(name string) (bool, error) {
				if name != binaryDataSize {
					return false, nil
				}
				size, err := s.whole()
				t.binary, t.size = true, size
				return true, err
			})
		case "data":
			if given = true; t.datatype == nil {
				later = s.i
				return s.skip()
			}
			err = s.readData(&t)
		default:
			err = s.skip()
		}
		return in(short(key), err)
	})
	who := x.who(t.name)
	switch {
	case err != nil:
		return in(who, err)
	case t.name == "":
		return fault("The %s has no name.", who)
	case datatype == "":
		return fault("The %s has no datatype: it is one of %s.", who, allDatatypes)
	case t.datatype == nil:
		return fault("The %s has an unknown datatype, %s: it is one of %s.", who, quote(datatype), allDatatypes)
	case !shaped:
		return fault("The %s has no shape: it is a list of whole numbers.", who)
	case given == t.binary:
		return fault("The %s must have either data, or %s among its parameters and its elements behind the JSON.", who, binaryDataSize)
	case later >= 0:
		from := *s
		from.i = later
		if err := from.readData(&t); err != nil {
			return in(who, in("data", err))
		}
	}
	if err := x.cut(&t, who); err != nil {
		return err
	}
	x.inputs = append(x.inputs, t)
	return nil
}

// who returns the words by which errors refer to an input.
func (x *inference) who(name string) string {
	if name != "" {
		return "input " + quote(name)
	}
	return fmt.Sprintf("input %d", len(x.inputs)+1)
}

// cut moves the elements of a binary input from the tail to the input. For every input it checks
// that the elements match the shape.
func (x *inference) cut(t *input, who string) error {
	n, ok := elements(t.shape)
	if !ok {
		return fault("The shape of %s is none: its dimensions are not negative, and their product fits in 63 bits.", who)
	}
	if t.binary {
		if t.size > int64(len(x.tail)) {
			return fault("The %s has %d bytes in binary, and %d follow the JSON (the header %s says where it ends).", who, t.size,
				len(x.tail), HeaderLength)
		}
		t.raw, x.tail = x.tail[:t.size], x.tail[t.size:]
	}
	switch {
	case t.datatype.check(t.raw, n):
		return nil
	case t.binary && t.datatype.kind == text:
		return fault("The %d bytes of %s are not the %d elements that its shape says: before each stands its length, in four bytes, the lowest first.",
			t.size, who, n)
	case t.binary:
		return fault("The %s has %d bytes, and its shape says %d elements of %d.", who, t.size, n, t.datatype.size)
	}
	return fault("The %s has %d elements, and its shape says %d.", who, t.datatype.count(t.raw), n)
}

// count returns the number of elements in raw, which must not end within an element.
func (d *datatype) count(raw []byte) (n int) {
	if d.kind != text {
		return len(raw) / d.size
	}
	for ; len(raw) > 0; n++ {
		_, raw, _ = cutText(raw)
	}
	return n
}

// readData parses the elements of a tensor.
func (s *scanner) readData(t *input) error {
	// If the shape is known, allocate memory for it. An element needs at least one byte and a
	// comma, so a shape with more elements than the body can have is ignored.
	if n, ok := elements(t.shape); ok && n <= int64(len(s.b)-s.i)/2+1 {
		t.raw = make([]byte, 0, n*int64(t.datatype.size))
	}
	n := 0
	return s.flat(func() error {
		raw, err := t.datatype.read(s, t.raw)
		if err != nil {
			return fmt.Errorf("element %d %w", n, err)
		}
		t.raw = raw
		n++
		return nil
	})
}

func (s *scanner) shape() (shape []int64, err error) {
	err = s.elements(func() error {
		d, err := s.whole()
		shape = append(shape, d)
		return err
	})
	return shape, err
}

// whole parses a non-negative integer.
func (s *scanner) whole() (int64, error) {
	token, err := s.number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(token), 10, 63)
	if err != nil {
		return 0, fmt.Errorf("at byte %d stands no whole number from 0 to %d", s.i-len(token), int64(math.MaxInt64))
	}
	return int64(n), nil
}

// readOutput parses what the client requests for one output.
func (x *inference) readOutput() error {
	s := &x.json
	var name string
	var parameters []byte
	var said, wanted bool
	err := s.members(func(key string) (err error) {
		switch key {
		case "name":
			name, err = s.text()
		case "parameters":
			parameters, err = s.parameters(2, quote(name), func(name string) (bool, error) {
				if name != binaryData {
					return false, nil
				}
				yes, err := s.yes(name)
				said, wanted = true, yes
				return true, err
			})
		default:
			err = s.skip()
		}
		return in(short(key), err)
	})
	switch {
	case err != nil:
		return in(quote(name), err)
	case name == "":
		return fault("A requested output has no name.")
	case said:
		x.binary.output[name] = wanted
	}
	x.outputs = protowire.AppendTag(x.outputs, 6, protowire.BytesType)
	x.outputs = protowire.AppendBytes(x.outputs, append(kserve.AppendText(nil, 1, name), parameters...))
	return nil
}

// parameters parses an object of parameters. It returns them as entries of a map<string,
// InferParameter>, each encoded as a field with this number. It omits parameters that are null, and
// parameters that ours handles.
func (s *scanner) parameters(number protowire.Number, of string, ours func(name string) (bool, error)) (all []byte, err error) {
	if s.word("null") {
		return nil, nil
	}
	err = s.members(func(name string) error {
		if is, err := ours(name); is || err != nil {
			return in(short(name), err)
		}
		value, err := s.parameter()
		switch {
		case errors.Is(err, errParameter):
			if of != "" {
				of = " of " + of
			}
			return fault("The parameter %s%s %v: a parameter is a string, a number, true or false.", quote(name), of, err)
		case err != nil || value == nil:
			return in(short(name), err)
		}
		entry := protowire.AppendBytes(protowire.AppendTag(kserve.AppendText(nil, 1, name), 2, protowire.BytesType), value)
		all = protowire.AppendBytes(protowire.AppendTag(all, number, protowire.BytesType), entry)
		return nil
	})
	return all, err
}

// errParameter means that InferParameter has no type for a value.
var errParameter = errors.New("is an object, a list, or a number that no datatype holds")

// Numbers of InferParameter fields.
const (
	boolParam protowire.Number = iota + 1
	int64Param
	stringParam
	doubleParam
	uint64Param
)

// parameter parses a value, and returns it as an InferParameter; nil for null. Integers become
// int64 if they fit, otherwise uint64. Other numbers become double.
func (s *scanner) parameter() ([]byte, error) {
	switch s.peek() {
	case '{', '[':
		return nil, errParameter
	case '"':
		text, err := s.text()
		return protowire.AppendString(protowire.AppendTag(nil, stringParam, protowire.BytesType), text), err
	}
	switch {
	case s.word("null"):
		return nil, nil
	case s.word("true"):
		return protowire.AppendVarint(protowire.AppendTag(nil, boolParam, protowire.VarintType), 1), nil
	case s.word("false"):
		return protowire.AppendVarint(protowire.AppendTag(nil, boolParam, protowire.VarintType), 0), nil
	}
	token, err := s.number()
	if err != nil {
		return nil, err
	}
	if n, err := strconv.ParseInt(string(token), 10, 64); err == nil {
		return protowire.AppendVarint(protowire.AppendTag(nil, int64Param, protowire.VarintType), uint64(n)), nil
	}
	if n, err := strconv.ParseUint(string(token), 10, 64); err == nil {
		return protowire.AppendVarint(protowire.AppendTag(nil, uint64Param, protowire.VarintType), n), nil
	}
	f, err := strconv.ParseFloat(string(token), 64)
	if err != nil || isWhole(token) {
		return nil, errParameter
	}
	return protowire.AppendFixed64(protowire.AppendTag(nil, doubleParam, protowire.Fixed64Type), math.Float64bits(f)), nil
}

// typed reports whether the message contains all inputs in typed form. Otherwise it contains all
// inputs in raw form, because Triton rejects a mix. The typed form is preferred: ModelMesh's REST
// proxy and clients without a library use it, and some runtimes read only this form (TorchServe's
// OpenInferenceProtocolImpl). The raw form is needed for FP16, BF16 and binary inputs, and for a
// tensor without elements, since Triton otherwise reports missing data. (MLServer answers in the
// form of the request, and has no typed form of FP16.)
func (x *inference) typed() bool {
	for _, t := range x.inputs {
		if t.binary || t.datatype.field == 0 || len(t.raw) == 0 {
			return false
		}
	}
	return true
}

// message returns the encoded ModelInferRequest.
func (x *inference) message(r kserve.REST) []byte {
	typed := x.typed()
	size := len(x.json.b) + len(x.parameters) + len(x.outputs)
	for _, t := range x.inputs {
		size += len(t.raw)
	}
	m := make([]byte, 0, size)
	m = kserve.AppendText(kserve.AppendText(kserve.AppendText(m, 1, r.Model), 2, r.Version), 3, x.id)
	m = append(m, x.parameters...)
	for _, t := range x.inputs {
		var contents []byte
		if typed {
			contents = t.datatype.appendTyped(nil, t.raw)
		}
		m = t.append(m, contents)
	}
	m = append(m, x.outputs...)
	if !typed {
		for _, t := range x.inputs {
			m = protowire.AppendBytes(protowire.AppendTag(m, 7, protowire.BytesType), t.raw)
		}
	}
	return m
}

// append appends the tensor as field 5 of a ModelInferRequest.
func (t *input) append(m, contents []byte) []byte {
	head := kserve.AppendText(kserve.AppendText(nil, 1, t.name), 2, t.datatype.name)
	if len(t.shape) > 0 {
		var dimensions []byte
		for _, d := range t.shape {
			dimensions = protowire.AppendVarint(dimensions, uint64(d))
		}
		head = protowire.AppendBytes(protowire.AppendTag(head, 3, protowire.BytesType), dimensions)
	}
	head = append(head, t.parameters...)
	size := len(head)
	if len(contents) > 0 {
		size += protowire.SizeTag(5) + protowire.SizeBytes(len(contents))
	}
	m = protowire.AppendVarint(protowire.AppendTag(m, 5, protowire.BytesType), uint64(size))
	m = append(m, head...)
	if len(contents) > 0 {
		m = protowire.AppendBytes(protowire.AppendTag(m, 5, protowire.BytesType), contents)
	}
	return m
}
