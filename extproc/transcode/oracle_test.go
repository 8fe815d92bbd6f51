package transcode_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/extproc/kserve"
)

// The oracle parses a request with encoding/json into a tree, and builds a message of generated
// types from the tree. For answers it does the reverse. It is slow, and uses no code of package
// transcode.

// object is a JSON object that may contain the same key twice.
type object []member

type member struct {
	key   string
	value any
}

func (o object) get(key string) (any, bool) {
	for _, m := range o {
		if m.key == key {
			return m.value, true
		}
	}
	return nil, false
}

func (o object) twice() bool {
	seen := make(map[string]bool)
	for _, m := range o {
		if seen[m.key] {
			return true
		}
		seen[m.key] = true
	}
	return false
}

var (
	errOracle  = errors.New("refused")
	backslash  = regexp.MustCompile(`\\\\`)
	pair       = regexp.MustCompile(`\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}`)
	surrogate  = regexp.MustCompile(`\\u[dD][89a-fA-F]`)
	wholeToken = regexp.MustCompile(`^-?[0-9]+$`)
)

// tree parses JSON text.
func tree(text []byte) (any, error) {
	if !utf8.Valid(text) || !json.Valid(text) || surrogate.Match(pair.ReplaceAll(backslash.ReplaceAll(text, []byte("  ")), nil)) {
		return nil, errOracle
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return branch(d, 0)
}

func branch(d *json.Decoder, depth int) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, is := token.(json.Delim)
	if !is {
		return token, nil
	}
	if depth++; depth > 128 {
		return nil, errOracle
	}
	var list []any
	var o object
	for d.More() {
		var m member
		if delim == '{' {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			m.key = key.(string)
		}
		if m.value, err = branch(d, depth); err != nil {
			return nil, err
		}
		o, list = append(o, m), append(list, m.value)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if delim == '{' {
		return o, nil
	}
	if list == nil {
		list = []any{}
	}
	return list, nil
}

// oracle converts a request to the message that transcode must produce. It also returns a function
// that reports whether the client wants an output in binary.
func oracle(r kserve.REST, headerLength string, body []byte) (*inference.ModelInferRequest, func(output string) bool, error) {
	text, tail := body, []byte(nil)
	if headerLength != "" {
		n, err := strconv.Atoi(headerLength)
		if err != nil || n <= 0 || n > len(body) || !wholeToken.MatchString(headerLength) {
			return nil, nil, errOracle
		}
		text, tail = body[:n], body[n:]
	}
	value, err := tree(text)
	top, is := value.(object)
	if err != nil || !is || top.twice() {
		return nil, nil, errOracle
	}
	m := &inference.ModelInferRequest{ModelName: r.Model, ModelVersion: r.Version}
	if id, _ := top.get("id"); id != nil {
		if m.Id, is = id.(string); !is {
			return nil, nil, errOracle
		}
	}
	parameters, ours, err := parametersOf(top, "binary_data_output")
	if err != nil {
		return nil, nil, err
	}
	all, is := ours.(bool)
	if ours != none && !is {
		return nil, nil, errOracle
	}
	m.Parameters = parameters
	inputs, is := top.list("inputs")
	if !is {
		return nil, nil, errOracle
	}
	raw := false
	var raws [][]byte
	for _, value := range inputs {
		t, bytes, inBinary, err := inputOf(value, &tail)
		if err != nil {
			return nil, nil, err
		}
		raw = raw || inBinary || len(bytes) == 0 || t.Datatype == "FP16" || t.Datatype == "BF16"
		m.Inputs, raws = append(m.Inputs, t), append(raws, bytes)
	}
	if len(tail) > 0 {
		return nil, nil, errOracle
	}
	if raw {
		m.RawInputContents = raws
		for _, t := range m.Inputs {
			t.Contents = nil
		}
	}
	outputs, is := top.list("outputs")
	if value, there := top.get("outputs"); there && value != nil && !is {
		return nil, nil, errOracle
	}
	said := make(map[string]bool)
	for _, value := range outputs {
		o, is := value.(object)
		if !is || o.twice() {
			return nil, nil, errOracle
		}
		name, _ := o.get("name")
		parameters, ours, err := parametersOf(o, "binary_data")
		text, is := name.(string)
		if err != nil || !is || text == "" {
			return nil, nil, errOracle
		}
		if ours != none {
			if said[text], is = ours.(bool); !is {
				return nil, nil, errOracle
			}
		}
		m.Outputs = append(m.Outputs, &inference.ModelInferRequest_InferRequestedOutputTensor{Name: text, Parameters: parameters})
	}
	return m, func(output string) bool {
		if wanted, is := said[output]; is {
			return wanted
		}
		return all
	}, nil
}

func (o object) list(key string) ([]any, bool) {
	value, _ := o.get(key)
	list, is := value.([]any)
	return list, is
}

// none is the value of a missing parameter.
var none = any(struct{}{})

// parametersOf returns the parameters of an object. It returns the value of the parameter named
// ours separately.
func parametersOf(o object, ours string) (map[string]*inference.InferParameter, any, error) {
	value, _ := o.get("parameters")
	if value == nil {
		return nil, none, nil
	}
	given, is := value.(object)
	if !is || given.twice() {
		return nil, nil, errOracle
	}
	all, extension := make(map[string]*inference.InferParameter), none
	for _, m := range given {
		if m.key == ours {
			extension = m.value
			continue
		}
		p := new(inference.InferParameter)
		switch v := m.value.(type) {
		case nil:
			continue
		case bool:
			p.ParameterChoice = &inference.InferParameter_BoolParam{BoolParam: v}
		case string:
			p.ParameterChoice = &inference.InferParameter_StringParam{StringParam: v}
		case json.Number:
			n, _ := new(big.Int).SetString(v.String(), 10)
			f, err := v.Float64()
			switch {
			case n != nil && n.IsInt64():
				p.ParameterChoice = &inference.InferParameter_Int64Param{Int64Param: n.Int64()}
			case n != nil && n.IsUint64():
				p.ParameterChoice = &inference.InferParameter_Uint64Param{Uint64Param: n.Uint64()}
			case n != nil || err != nil:
				return nil, nil, errOracle
			default:
				p.ParameterChoice = &inference.InferParameter_DoubleParam{DoubleParam: f}
			}
		default:
			return nil, nil, errOracle
		}
		all[m.key] = p
	}
	return all, extension, nil
}

// inputOf returns a tensor and its elements in raw form, and whether the request has these in
// binary. It removes binary elements from the tail.
func inputOf(value any, tail *[]byte) (t *inference.ModelInferRequest_InferInputTensor, raw []byte, inBinary bool, err error) {
	o, is := value.(object)
	if !is || o.twice() {
		return nil, nil, false, errOracle
	}
	name, _ := o.get("name")
	datatype, _ := o.get("datatype")
	shape, shaped := o.list("shape")
	t = new(inference.ModelInferRequest_InferInputTensor)
	t.Name, _ = name.(string)
	t.Datatype, _ = datatype.(string)
	if _, known := sizes[t.Datatype]; t.Name == "" || !known || !shaped {
		return nil, nil, false, errOracle
	}
	count, product := big.NewInt(1), big.NewInt(1)
	for _, value := range shape {
		number, is := value.(json.Number)
		n, err := strconv.ParseUint(number.String(), 10, 63)
		if !is || err != nil {
			return nil, nil, false, errOracle
		}
		t.Shape = append(t.Shape, int64(n))
		count.Mul(count, big.NewInt(int64(n)))
		product.Mul(product, big.NewInt(max(int64(n), 1)))
	}
	if !product.IsInt64() {
		return nil, nil, false, errOracle
	}
	var ours any
	if t.Parameters, ours, err = parametersOf(o, "binary_data_size"); err != nil {
		return nil, nil, false, err
	}
	inBinary = ours != none
	data, given := o.get("data")
	if given == inBinary {
		return nil, nil, false, errOracle
	}
	if inBinary {
		number, is := ours.(json.Number)
		size, err := strconv.ParseUint(number.String(), 10, 63)
		if !is || err != nil || size > uint64(len(*tail)) {
			return nil, nil, false, errOracle
		}
		raw, *tail = (*tail)[:size], (*tail)[size:]
		if n, ok := countRaw(t.Datatype, raw); !ok || int64(n) != count.Int64() {
			return nil, nil, false, errOracle
		}
		return t, raw, true, nil
	}
	list, is := data.([]any)
	if !is {
		return nil, nil, false, errOracle
	}
	t.Contents = new(inference.InferTensorContents)
	flat := flatten(list)
	if int64(len(flat)) != count.Int64() {
		return nil, nil, false, errOracle
	}
	for _, element := range flat {
		if raw, err = put(t.Datatype, t.Contents, raw, element); err != nil {
			return nil, nil, false, err
		}
	}
	if len(flat) == 0 {
		t.Contents = nil
	}
	return t, raw, false, nil
}

// sizes maps datatypes to the number of bytes of a raw element.
var sizes = map[string]int{
	"BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8, "FP16": 2, "FP32": 4,
	"FP64": 8, "BF16": 2, "BYTES": 0,
}

// split splits raw into its elements.
func split(datatype string, raw []byte) (all [][]byte, ok bool) {
	for len(raw) > 0 {
		size := sizes[datatype]
		if datatype == "BYTES" {
			if len(raw) < 4 {
				return nil, false
			}
			size = int(binary.LittleEndian.Uint32(raw))
			raw = raw[4:]
		}
		if len(raw) < size {
			return nil, false
		}
		all, raw = append(all, raw[:size]), raw[size:]
	}
	return all, true
}

func countRaw(datatype string, raw []byte) (int, bool) {
	all, ok := split(datatype, raw)
	return len(all), ok
}

func flatten(list []any) (all []any) {
	for _, value := range list {
		if inner, is := value.([]any); is {
			all = append(all, flatten(inner)...)
		} else {
			all = append(all, value)
		}
	}
	return all
}

// put adds an element to contents, which is the typed form, and to raw.
func put(datatype string, c *inference.InferTensorContents, raw []byte, element any) ([]byte, error) {
	size := sizes[datatype]
	number, isNumber := element.(json.Number)
	n, whole := new(big.Int).SetString(number.String(), 10)
	f, err := number.Float64()
	switch {
	case datatype == "BOOL":
		b, is := element.(bool)
		if !is {
			return nil, errOracle
		}
		c.BoolContents = append(c.BoolContents, b)
		return append(raw, map[bool]byte{true: 1}[b]), nil
	case datatype == "BYTES":
		s, is := element.(string)
		if !is {
			return nil, errOracle
		}
		c.BytesContents = append(c.BytesContents, []byte(s))
		return append(binary.LittleEndian.AppendUint32(raw, uint32(len(s))), s...), nil
	case !isNumber:
		return nil, errOracle
	case strings.HasPrefix(datatype, "UINT"):
		if !whole || n.Sign() < 0 || n.BitLen() > 8*size {
			return nil, errOracle
		}
		if size == 8 {
			c.Uint64Contents = append(c.Uint64Contents, n.Uint64())
		} else {
			c.UintContents = append(c.UintContents, uint32(n.Uint64()))
		}
		return append(raw, binary.LittleEndian.AppendUint64(nil, n.Uint64())[:size]...), nil
	case strings.HasPrefix(datatype, "INT"):
		most := new(big.Int).Lsh(big.NewInt(1), uint(8*size-1))
		if !whole || n.Cmp(most) >= 0 || n.Cmp(most.Neg(most)) < 0 {
			return nil, errOracle
		}
		if size == 8 {
			c.Int64Contents = append(c.Int64Contents, n.Int64())
		} else {
			c.IntContents = append(c.IntContents, int32(n.Int64()))
		}
		return append(raw, binary.LittleEndian.AppendUint64(nil, uint64(n.Int64()))[:size]...), nil
	case err != nil:
		return nil, errOracle
	case datatype == "FP64":
		c.Fp64Contents = append(c.Fp64Contents, f)
		return binary.LittleEndian.AppendUint64(raw, math.Float64bits(f)), nil
	case datatype == "FP32":
		single, err := strconv.ParseFloat(number.String(), 32)
		if err != nil {
			return nil, errOracle
		}
		c.Fp32Contents = append(c.Fp32Contents, float32(single))
		return binary.LittleEndian.AppendUint32(raw, math.Float32bits(float32(single))), nil
	}
	bits, ok := nearest(datatype, f)
	if !ok {
		return nil, errOracle
	}
	return binary.LittleEndian.AppendUint16(raw, bits), nil
}

// half decodes an FP16 by the formula of IEEE 754. It decodes a BF16 as the upper half of an FP32.
func half(datatype string, bits uint16) float64 {
	if datatype == "BF16" {
		return float64(math.Float32frombits(uint32(bits) << 16))
	}
	sign, exponent, mantissa := math.Pow(-1, float64(bits>>15)), float64(bits>>10&31), float64(bits&1023)
	switch {
	case exponent == 31 && mantissa > 0:
		return math.NaN()
	case exponent == 31:
		return sign * math.Inf(1)
	case exponent == 0:
		return math.Copysign(mantissa/1024*math.Pow(2, -14), sign)
	}
	return sign * (1 + mantissa/1024) * math.Pow(2, exponent-15)
}

// nearest searches for the 16-bit float nearest to f. Ties go to even bits. F is too large if it is
// nearer to the next power of two after the largest float than to the largest float.
func nearest(datatype string, f float64) (bits uint16, ok bool) {
	largest := map[string]uint16{"FP16": 0x7bff, "BF16": 0x7f7f}[datatype]
	next := map[string]int{"FP16": 16, "BF16": 128}[datatype] // exponent of the next power of two after the largest float
	exact := func(bits uint16) *big.Float {
		if bits > largest {
			return new(big.Float).SetMantExp(big.NewFloat(1), next)
		}
		return new(big.Float).SetPrec(2000).SetFloat64(half(datatype, bits))
	}
	want := new(big.Float).SetPrec(2000).SetFloat64(math.Abs(f))
	low := uint16(0) // bits of the largest float that is not greater than f
	for step := uint16(1) << 14; step > 0; step /= 2 {
		if low+step <= largest && exact(low+step).Cmp(want) <= 0 {
			low += step
		}
	}
	below := new(big.Float).SetPrec(2000).Sub(want, exact(low))
	above := new(big.Float).SetPrec(2000).Sub(exact(low+1), want)
	if c := below.Cmp(above); c > 0 || c == 0 && low%2 == 1 {
		low++
	}
	if math.Signbit(f) {
		return low | 1<<15, low <= largest
	}
	return low, low <= largest
}

// answer converts a ModelInferResponse to the JSON tree and the binary tail that transcode must
// produce. In the tree, a float is a float64, or nil if JSON cannot express it.
func answer(message []byte, wanted func(output string) bool) (object, []byte, error) {
	m := new(inference.ModelInferResponse)
	if err := proto.Unmarshal(message, m); err != nil {
		return nil, nil, err
	}
	o := object{{"model_name", m.GetModelName()}}
	if m.GetModelVersion() != "" {
		o = append(o, member{"model_version", m.GetModelVersion()})
	}
	if m.GetId() != "" {
		o = append(o, member{"id", m.GetId()})
	}
	if p := written(m.GetParameters()); len(p) > 0 {
		o = append(o, member{"parameters", p})
	}
	raws := m.GetRawOutputContents()
	if len(raws) > 0 && len(raws) != len(m.GetOutputs()) {
		return nil, nil, errOracle
	}
	var tail []byte
	outputs := []any{}
	for i, out := range m.GetOutputs() {
		if _, known := sizes[out.GetDatatype()]; !known {
			return nil, nil, errOracle
		}
		var raw []byte
		var err error
		if len(raws) > 0 {
			raw = raws[i]
		} else if raw, err = rawOf(out); err != nil {
			return nil, nil, err
		}
		elements, ok := split(out.GetDatatype(), raw)
		count, product := big.NewInt(1), big.NewInt(1)
		shape := []any{}
		for _, n := range out.GetShape() {
			ok = ok && n >= 0
			count.Mul(count, big.NewInt(n))
			product.Mul(product, big.NewInt(max(n, 1)))
			shape = append(shape, json.Number(strconv.FormatInt(n, 10)))
		}
		if !ok || !product.IsInt64() || count.Int64() != int64(len(elements)) {
			return nil, nil, errOracle
		}
		t := object{{"name", out.GetName()}, {"datatype", out.GetDatatype()}, {"shape", shape}}
		p := written(out.GetParameters())
		if wanted(out.GetName()) {
			tail = append(tail, raw...)
			p = slices.DeleteFunc(p, func(m member) bool { return m.key == "binary_data_size" })
			p = append(p, member{"binary_data_size", json.Number(strconv.Itoa(len(raw)))})
			slices.SortFunc(p, func(a, b member) int { return strings.Compare(a.key, b.key) })
		}
		if len(p) > 0 {
			t = append(t, member{"parameters", p})
		}
		if !wanted(out.GetName()) {
			data := []any{}
			for _, element := range elements {
				value, ok := valueOf(out.GetDatatype(), element)
				if !ok {
					return nil, nil, errOracle
				}
				data = append(data, value)
			}
			t = append(t, member{"data", data})
		}
		outputs = append(outputs, t)
	}
	return append(o, member{"outputs", outputs}), tail, nil
}

func valueOf(datatype string, element []byte) (any, bool) {
	switch {
	case datatype == "BYTES":
		return string(element), utf8.Valid(element)
	case datatype == "BOOL":
		return element[0] != 0, true
	case strings.HasPrefix(datatype, "UINT"):
		return json.Number(strconv.FormatUint(binary.LittleEndian.Uint64(append(bytes.Clone(element), make([]byte, 8)...)), 10)), true
	case strings.HasPrefix(datatype, "INT"):
		n := new(big.Int).SetUint64(binary.LittleEndian.Uint64(append(bytes.Clone(element), make([]byte, 8)...)))
		if most := new(big.Int).Lsh(big.NewInt(1), uint(8*len(element)-1)); n.Cmp(most) >= 0 {
			n.Sub(n, most.Lsh(most, 1))
		}
		return json.Number(n.String()), true
	case datatype == "FP64":
		return floating(math.Float64frombits(binary.LittleEndian.Uint64(element))), true
	case datatype == "FP32":
		return floating(float64(math.Float32frombits(binary.LittleEndian.Uint32(element)))), true
	}
	return floating(half(datatype, binary.LittleEndian.Uint16(element))), true
}

func floating(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	return f
}

// rawOf converts the typed elements of an output to raw form.
func rawOf(o *inference.ModelInferResponse_InferOutputTensor) (raw []byte, err error) {
	c := o.GetContents()
	others := len(c.GetBoolContents()) + len(c.GetIntContents()) + len(c.GetInt64Contents()) + len(c.GetUintContents()) +
		len(c.GetUint64Contents()) +
		len(c.GetFp32Contents()) + len(c.GetFp64Contents()) + len(c.GetBytesContents())
	size := sizes[o.GetDatatype()]
	add := func(n uint64) {
		raw = append(raw, binary.LittleEndian.AppendUint64(nil, n)[:size]...)
		others--
	}
	switch datatype := o.GetDatatype(); datatype {
	case "BOOL":
		for _, b := range c.GetBoolContents() {
			add(map[bool]uint64{true: 1}[b])
		}
	case "UINT8", "UINT16", "UINT32":
		for _, n := range c.GetUintContents() {
			if uint64(n)>>(8*size) != 0 {
				return nil, errOracle
			}
			add(uint64(n))
		}
	case "UINT64":
		for _, n := range c.GetUint64Contents() {
			add(n)
		}
	case "INT8", "INT16", "INT32":
		for _, n := range c.GetIntContents() {
			if most := int64(1) << (8*size - 1); int64(n) >= most || int64(n) < -most {
				return nil, errOracle
			}
			add(uint64(int64(n)))
		}
	case "INT64":
		for _, n := range c.GetInt64Contents() {
			add(uint64(n))
		}
	case "FP32":
		for _, f := range c.GetFp32Contents() {
			add(uint64(math.Float32bits(f)))
		}
	case "FP64":
		for _, f := range c.GetFp64Contents() {
			add(math.Float64bits(f))
		}
	case "BYTES":
		for _, b := range c.GetBytesContents() {
			raw = append(binary.LittleEndian.AppendUint32(raw, uint32(len(b))), b...)
			others--
		}
	}
	if others != 0 {
		return nil, errOracle
	}
	return raw, nil
}

func written(all map[string]*inference.InferParameter) (o object) {
	for name, p := range all {
		var value any
		switch v := p.GetParameterChoice().(type) {
		case *inference.InferParameter_BoolParam:
			value = v.BoolParam
		case *inference.InferParameter_Int64Param:
			value = json.Number(strconv.FormatInt(v.Int64Param, 10))
		case *inference.InferParameter_Uint64Param:
			value = json.Number(strconv.FormatUint(v.Uint64Param, 10))
		case *inference.InferParameter_StringParam:
			value = v.StringParam
		case *inference.InferParameter_DoubleParam:
			value = floating(v.DoubleParam)
		default:
			continue
		}
		o = append(o, member{name, value})
	}
	slices.SortFunc(o, func(a, b member) int { return strings.Compare(a.key, b.key) })
	return o
}

// same reports whether a JSON tree equals the oracle's tree. The JSON text of a float must have a
// point or an exponent.
func same(got, want any) bool {
	switch want := want.(type) {
	case object:
		g, is := got.(object)
		if !is || len(g) != len(want) {
			return false
		}
		for i, m := range want {
			if g[i].key != m.key || !same(g[i].value, m.value) {
				return false
			}
		}
		return true
	case []any:
		g, is := got.([]any)
		return is && slices.EqualFunc(g, want, same)
	case float64:
		n, is := got.(json.Number)
		f, err := n.Float64()
		return is && err == nil && math.Float64bits(f) == math.Float64bits(want) && strings.ContainsAny(n.String(), ".e")
	}
	return got == want
}
