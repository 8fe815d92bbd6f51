package transcode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/tidwall/gjson"
	"google.golang.org/protobuf/encoding/protowire"
)

// The elements of a tensor have three forms: JSON values, raw bytes, and typed values, which are
// fields of InferTensorContents. Raw elements are little endian. A raw element of type BYTES begins
// with its length, in four bytes. Every conversion goes through the raw form.

// kind is what the elements of a datatype are.
type kind uint8

const (
	boolean kind = iota
	unsigned
	signed
	float
	text
)

// datatype is a datatype of V2.
type datatype struct {
	name string
	kind kind
	size int // bytes of a raw element; for text the bytes of its length only
	// mantissa is the number of stored mantissa bits of a float.
	mantissa int
	// field is the number of the InferTensorContents field that contains the elements. It is 0 if
	// the elements are always raw.
	field protowire.Number
}

// Numbers of InferTensorContents fields.
const (
	boolField protowire.Number = iota + 1
	intField
	int64Field
	uintField
	uint64Field
	fp32Field
	fp64Field
	bytesField
)

// datatypes maps names to V2's datatypes.
var datatypes = map[string]*datatype{
	"BOOL":   {name: "BOOL", kind: boolean, size: 1, field: boolField},
	"UINT8":  {name: "UINT8", kind: unsigned, size: 1, field: uintField},
	"UINT16": {name: "UINT16", kind: unsigned, size: 2, field: uintField},
	"UINT32": {name: "UINT32", kind: unsigned, size: 4, field: uintField},
	"UINT64": {name: "UINT64", kind: unsigned, size: 8, field: uint64Field},
	"INT8":   {name: "INT8", kind: signed, size: 1, field: intField},
	"INT16":  {name: "INT16", kind: signed, size: 2, field: intField},
	"INT32":  {name: "INT32", kind: signed, size: 4, field: intField},
	"INT64":  {name: "INT64", kind: signed, size: 8, field: int64Field},
	"FP16":   {name: "FP16", kind: float, size: 2, mantissa: 10},
	"FP32":   {name: "FP32", kind: float, size: 4, mantissa: 23, field: fp32Field},
	"FP64":   {name: "FP64", kind: float, size: 8, mantissa: 52, field: fp64Field},
	"BF16":   {name: "BF16", kind: float, size: 2, mantissa: 7},
	"BYTES":  {name: "BYTES", kind: text, size: lengthSize, field: bytesField},
}

// allDatatypes is the list of names for error messages.
const allDatatypes = "BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BF16 or BYTES"

// lengthSize is the size of the length at the beginning of a raw element of type BYTES.
const lengthSize = 4

// elements returns the number of elements of a shape. It returns false if the product of all
// dimensions except 0 does not fit in 63 bits, because engines may multiply the dimensions in any
// order.
func elements(shape []int64) (n int64, ok bool) {
	n = 1
	empty := false
	for _, d := range shape {
		switch {
		case d < 0, d > 0 && n > math.MaxInt64/d:
			return 0, false
		case d == 0:
			empty = true
		default:
			n *= d
		}
	}
	if empty {
		n = 0
	}
	return n, true
}

// read parses a JSON value and appends it to raw. The error is the second part of a sentence whose
// first part is the element.
func (d *datatype) read(s *scanner, raw []byte) ([]byte, error) {
	switch d.kind {
	case boolean:
		switch {
		case s.word("true"):
			return append(raw, 1), nil
		case s.word("false"):
			return append(raw, 0), nil
		}
		return nil, errors.New("is neither true nor false")
	case text:
		if s.peek() != '"' {
			return nil, errors.New("is not a string, as BYTES are in JSON")
		}
		at := len(raw)
		raw, err := s.appendText(append(raw, 0, 0, 0, 0))
		if err != nil {
			return nil, fmt.Errorf("cannot be read: %w", err)
		}
		binary.LittleEndian.PutUint32(raw[at:], uint32(len(raw)-at-lengthSize))
		return raw, nil
	case float:
		token, err := s.number()
		if err != nil {
			return nil, errors.New("is not a number (JSON has no NaN and no infinity: send the tensor in binary)")
		}
		return d.appendFloat(raw, token)
	}
	token, err := s.number()
	if err != nil {
		return nil, errors.New("is not a whole number")
	}
	return d.appendWhole(raw, token)
}

// appendWhole appends an integer. Like Triton it rejects 1.0, so that a client that sends floats by
// mistake gets an error.
func (d *datatype) appendWhole(raw, token []byte) ([]byte, error) {
	var n uint64
	var err error
	if d.kind == signed {
		var i int64
		i, err = strconv.ParseInt(string(token), 10, 8*d.size)
		n = uint64(i)
	} else if string(token) != "-0" {
		n, err = strconv.ParseUint(string(token), 10, 8*d.size)
	}
	switch {
	case errors.Is(err, strconv.ErrRange), err != nil && d.kind == unsigned && isWhole(token):
		return nil, fmt.Errorf("is out of the range of %s", d.name)
	case err != nil:
		return nil, errors.New("is not a whole number: send it without a point and an exponent")
	}
	return d.appendBits(raw, n), nil
}

func isWhole(token []byte) bool {
	for _, c := range token {
		if c != '-' && c-'0' > 9 {
			return false
		}
	}
	return true
}

// appendFloat appends the float that is nearest to the token. (Triton rounds twice, to FP64 and
// then to FP32, which may give a neighboring float.)
func (d *datatype) appendFloat(raw, token []byte) ([]byte, error) {
	precision := 64
	if d.size == 4 {
		precision = 32
	}
	f, err := strconv.ParseFloat(string(token), precision)
	var bits uint64
	ok := err == nil
	switch d.size {
	case 8:
		bits = math.Float64bits(f)
	case 4:
		bits = uint64(math.Float32bits(float32(f)))
	default:
		if ok {
			bits, ok = narrow(f, d.mantissa)
		}
	}
	if !ok {
		return nil, fmt.Errorf("is out of the range of %s", d.name)
	}
	return d.appendBits(raw, bits), nil
}

func (d *datatype) appendBits(raw []byte, bits uint64) []byte {
	switch d.size {
	case 1:
		return append(raw, byte(bits))
	case 2:
		return binary.LittleEndian.AppendUint16(raw, uint16(bits))
	case 4:
		return binary.LittleEndian.AppendUint32(raw, uint32(bits))
	}
	return binary.LittleEndian.AppendUint64(raw, bits)
}

// bits returns the bits of the first raw element. For a signed datatype they are sign-extended to
// 64 bits.
func (d *datatype) bits(raw []byte) uint64 {
	var n uint64
	switch d.size {
	case 1:
		n = uint64(raw[0])
	case 2:
		n = uint64(binary.LittleEndian.Uint16(raw))
	case 4:
		n = uint64(binary.LittleEndian.Uint32(raw))
	default:
		n = binary.LittleEndian.Uint64(raw)
	}
	if d.kind == signed {
		unused := 64 - 8*d.size
		return uint64(int64(n<<unused) >> unused)
	}
	return n
}

// narrow converts f, which must be finite, to a 16-bit float whose mantissa has this many bits. It
// rounds to the nearest float, and ties to even (IEEE 754, 4.3.1). It returns false if f is too
// large.
func narrow(f float64, mantissa int) (bits uint64, ok bool) {
	sign := math.Float64bits(f) >> 63 << 15
	if f == 0 {
		return sign, true
	}
	bias := 1<<(14-mantissa) - 1
	_, exponent := math.Frexp(f)
	exponent = max(exponent-1, 1-bias) // subnormals have the exponent of the smallest normal numbers
	n := math.RoundToEven(math.Ldexp(math.Abs(f), mantissa-exponent))
	bits = uint64(exponent+bias-1)<<mantissa + uint64(n) // n includes the implicit bit, which adds one to the exponent
	return sign | bits, bits < infinity(mantissa)
}

// infinity returns the bits of positive infinity as a 16-bit float.
func infinity(mantissa int) uint64 { return 1<<15 - 1<<mantissa }

// widen converts a 16-bit float whose mantissa has this many bits.
func widen(bits uint64, mantissa int) float64 {
	bias := 1<<(14-mantissa) - 1
	exponent := int(bits >> mantissa & (1<<(15-mantissa) - 1))
	n := float64(bits & (1<<mantissa - 1))
	var f float64
	switch {
	case bits&0x7fff == infinity(mantissa):
		f = math.Inf(1)
	case bits&0x7fff > infinity(mantissa):
		f = math.NaN()
	case exponent == 0:
		f = math.Ldexp(n, 1-bias-mantissa)
	default:
		f = math.Ldexp(n+float64(uint64(1)<<mantissa), exponent-bias-mantissa)
	}
	if bits>>15 == 1 {
		f = math.Copysign(f, -1)
	}
	return f
}

// check reports whether raw consists of exactly n elements.
func (d *datatype) check(raw []byte, n int64) bool {
	if d.kind != text {
		return int64(len(raw))%int64(d.size) == 0 && int64(len(raw))/int64(d.size) == n
	}
	for ; len(raw) > 0; n-- {
		var ok bool
		if _, raw, ok = cutText(raw); !ok {
			return false
		}
	}
	return n == 0
}

// cutText splits raw BYTES into the first element and the rest. It returns false if the first
// element is incomplete.
func cutText(raw []byte) (element, rest []byte, ok bool) {
	if len(raw) < lengthSize {
		return nil, nil, false
	}
	size := uint64(binary.LittleEndian.Uint32(raw))
	if raw = raw[lengthSize:]; uint64(len(raw)) < size {
		return nil, nil, false
	}
	return raw[:size], raw[size:], true
}

// appendTyped appends raw elements as fields of InferTensorContents.
func (d *datatype) appendTyped(dst, raw []byte) []byte {
	switch {
	case len(raw) == 0:
		return dst
	case d.kind == text:
		for len(raw) > 0 {
			var element []byte
			element, raw, _ = cutText(raw)
			dst = protowire.AppendBytes(protowire.AppendTag(dst, d.field, protowire.BytesType), element)
		}
		return dst
	}
	packed := raw // booleans and floats have the same bytes in raw and packed form
	if d.kind == unsigned || d.kind == signed {
		packed = make([]byte, 0, len(raw))
		for ; len(raw) > 0; raw = raw[d.size:] {
			packed = protowire.AppendVarint(packed, d.bits(raw))
		}
	}
	return protowire.AppendBytes(protowire.AppendTag(dst, d.field, protowire.BytesType), packed)
}

// errTyped means that InferTensorContents does not match the datatype.
var errTyped = errors.New("not what the datatype says")

// appendRaw converts the elements in a field of InferTensorContents, and appends them to raw. The
// field has one element, or several packed elements.
func (d *datatype) appendRaw(raw []byte, f field) ([]byte, error) {
	switch {
	case f.number != d.field:
		return nil, errTyped
	case d.kind == text && f.wire == protowire.BytesType:
		return append(binary.LittleEndian.AppendUint32(raw, uint32(len(f.bytes))), f.bytes...), nil
	case d.kind == text:
		return nil, errTyped
	case d.kind == float && f.wire == protowire.BytesType:
		if len(f.bytes)%d.size != 0 {
			return nil, errTyped
		}
		return append(raw, f.bytes...), nil
	case d.kind == float && (f.wire == protowire.Fixed32Type && d.size == 4 || f.wire == protowire.Fixed64Type && d.size == 8):
		return d.appendBits(raw, f.n), nil
	case d.kind == float:
		return nil, errTyped
	case f.wire == protowire.VarintType:
		return d.appendVarint(raw, f.n)
	case f.wire != protowire.BytesType:
		return nil, errTyped
	}
	for packed := f.bytes; len(packed) > 0; {
		n, size := protowire.ConsumeVarint(packed)
		if size < 0 {
			return nil, errTyped
		}
		var err error
		if raw, err = d.appendVarint(raw, n); err != nil {
			return nil, err
		}
		packed = packed[size:]
	}
	return raw, nil
}

// appendVarint appends an element that was a varint. Like protobuf's parsers it truncates the
// element to the size of the field.
func (d *datatype) appendVarint(raw []byte, n uint64) ([]byte, error) {
	switch d.field {
	case boolField:
		n = min(n, 1)
	case intField:
		n = uint64(int32(n))
	case uintField:
		n = uint64(uint32(n))
	}
	raw = d.appendBits(raw, n)
	if d.bits(raw[len(raw)-d.size:]) != n {
		return nil, errTyped
	}
	return raw, nil
}

// errUTF8 means that an element is not UTF-8, so that JSON cannot contain it. (MLServer answers
// 500. Triton sends the bytes unchanged, which no client can parse.)
var errUTF8 = errors.New("not UTF-8")

// appendJSON appends raw elements as a flat JSON array. Engines send flat arrays too.
func (d *datatype) appendJSON(dst, raw []byte) ([]byte, error) {
	dst = append(dst, '[')
	for first := true; len(raw) > 0; first = false {
		if !first {
			dst = append(dst, ',')
		}
		if d.kind == text {
			var element []byte
			if element, raw, _ = cutText(raw); !utf8.Valid(element) {
				return nil, errUTF8
			}
			dst = appendQuoted(dst, string(element))
			continue
		}
		switch bits := d.bits(raw); d.kind {
		case boolean:
			dst = strconv.AppendBool(dst, bits != 0)
		case unsigned:
			dst = strconv.AppendUint(dst, bits, 10)
		case signed:
			dst = strconv.AppendInt(dst, int64(bits), 10)
		default:
			dst = appendNumber(dst, d.value(bits))
		}
		raw = raw[d.size:]
	}
	return append(dst, ']'), nil
}

// value returns the float with these bits.
func (d *datatype) value(bits uint64) float64 {
	switch d.size {
	case 8:
		return math.Float64frombits(bits)
	case 4:
		return float64(math.Float32frombits(uint32(bits)))
	}
	return widen(bits, d.mantissa)
}

// appendNumber appends a float as JSON. Like MLServer and Triton it writes the exact value as FP64,
// whatever the datatype: 0.1 as FP32 is 0.10000000149011612. The text has a point or an exponent,
// so that Python clients parse it as a float. NaN and infinities become null, as in MLServer.
// Triton writes NaN and Infinity, which are not valid JSON.
func appendNumber(dst []byte, f float64) []byte {
	abs := math.Abs(f)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return append(dst, "null"...)
	}
	if abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		return strconv.AppendFloat(dst, f, 'e', -1, 64)
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
	if bytes.IndexByte(dst[start:], '.') < 0 {
		dst = append(dst, ".0"...)
	}
	return dst
}

// appendQuoted appends a JSON string.
func appendQuoted(dst []byte, s string) []byte { return gjson.AppendJSONString(dst, s) }
