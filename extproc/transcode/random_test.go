package transcode_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/transcode"
)

var requests = flag.Int("requests", 6_000, "compare this many random requests, and as many answers, with the oracle")

var datatypes = []string{
	"BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "BF16",
	"BYTES",
}

// chance generates random test data.
type chance struct{ *rand.Rand }

func (c chance) one(in int) bool { return c.IntN(in) == 0 }

func pick[T any](c chance, of ...T) T { return of[c.IntN(len(of))] }

// space returns white space that JSON allows.
func (c chance) space() string {
	if c.one(8) {
		return pick(c, " ", "\n", "\t", "\r", "  ")
	}
	return ""
}

func (c chance) text() string {
	var s strings.Builder
	for range pick(c, 0, 1, 3, 20) {
		s.WriteRune(pick(c, 'a', 'b', '/', '"', '\\', '\n', '\t', '\r', '\b', '\f', '\x01', '\x1f', '<', 'ö', '字', '😀', '\u2028', '\ufffd',
			'\x7f'))
	}
	return s.String()
}

// quoted returns s as a JSON string, with or without escapes.
func (c chance) quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	if !c.one(4) {
		return string(b)
	}
	var all strings.Builder
	for _, r := range s {
		if r > 0xffff {
			fmt.Fprintf(&all, `\u%04x\u%04X`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		} else {
			fmt.Fprintf(&all, `\u%04x`, r)
		}
	}
	return `"` + all.String() + `"`
}

// element returns a tensor element as JSON. Sometimes the element is invalid for its datatype.
func (c chance) element(datatype string) string {
	if c.one(400) {
		return pick(c, "null", "1e", "01", "-", "NaN", `"x"`, "{}", "1.5", "true", "-1", "1e400", "300", "70000", "5000000000",
			"18446744073709551616", "65520", "3.4e38", "3.5e38", "-0", "1.0", "")
	}
	bits := 8 * sizes[datatype]
	switch {
	case datatype == "BOOL":
		return pick(c, "true", "false")
	case datatype == "BYTES":
		return c.quoted(c.text())
	case strings.HasPrefix(datatype, "UINT"):
		return strconv.FormatUint(pick(c, c.Uint64()>>(64-bits), c.Uint64()>>(64-bits)>>c.IntN(bits), 0, math.MaxUint64>>(64-bits)), 10)
	case strings.HasPrefix(datatype, "INT"):
		most := int64(math.MaxInt64) >> (64 - bits)
		return strconv.FormatInt(pick(c, int64(c.Uint64())>>(64-bits), int64(c.Uint64())>>(64-bits)>>c.IntN(bits), 0, most, -most-1), 10)
	}
	scale := map[string]int{"FP16": 15, "FP32": 125, "FP64": 1020, "BF16": 125}[datatype]
	f := math.Ldexp(c.NormFloat64(), c.IntN(2*scale+40)-scale-30)
	if c.one(4) { // a value between two 16-bit floats
		f = math.Ldexp(float64(c.IntN(1<<13)), c.IntN(40)-26)
	}
	return strconv.FormatFloat(f, pick(c, byte('g'), 'e', 'f', 'E'), pick(c, -1, -1, 5), 64)
}

func (c chance) object(members ...string) string {
	c.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
	return c.space() + "{" + strings.Join(members, c.space()+","+c.space()) + c.space() + "}"
}

func (c chance) member(key, value string) string {
	return c.quoted(key) + c.space() + ":" + c.space() + value + c.space()
}

func (c chance) parameters(members ...string) string {
	for range c.IntN(4) {
		value := pick(c, "true", "false", "null", "0", "-7", "1.5", "1e3", "9223372036854775807", "9223372036854775808",
			"18446744073709551615", "-0", "2e-400", c.quoted(c.text()))
		if c.one(100) {
			value = pick(c, "18446744073709551616", "{}", "[1]", "1e999", "tru")
		}
		members = append(members, c.member(pick(c, "content_type", "binary_data", "binary_data_size", "a", "b", "priority",
			c.text()), value))
	}
	return c.object(members...)
}

// nested returns the elements as nested arrays of this shape, or as a flat array.
func (c chance) nested(shape []int, elements []string) string {
	if len(shape) < 2 || c.one(3) {
		return "[" + strings.Join(elements, c.space()+","+c.space()) + "]"
	}
	parts := make([]string, shape[0])
	for i := range parts {
		n := len(elements) / shape[0]
		parts[i] = c.nested(shape[1:], elements[i*n:(i+1)*n])
	}
	return "[" + strings.Join(parts, ",") + "]" + c.space()
}

// request returns a request. Its body may end with binary elements.
func (c chance) request() (headerLength string, body []byte) {
	var tail []byte
	inputs := make([]string, c.IntN(4))
	for i := range inputs {
		datatype := pick(c, datatypes...)
		shape := make([]int, c.IntN(4))
		n := 1
		dimensions := make([]string, len(shape))
		for j := range shape {
			shape[j] = pick(c, 0, 1, 2, 2, 3, 5)
			n *= shape[j]
			dimensions[j] = strconv.Itoa(shape[j])
		}
		if c.one(40) {
			dimensions = append(dimensions, pick(c, "2", "-1", "1.0", "9223372036854775807", "4294967296", "1"))
		}
		members := []string{
			c.member("name", c.quoted(pick(c, "x", "y", "z", c.text()))), c.member("datatype", c.quoted(datatype)),
			c.member("shape", "["+strings.Join(dimensions, ",")+"]"),
		}
		if c.one(3) {
			var raw []byte
			for range n {
				if datatype == "BYTES" {
					s := pick(c, c.text(), "\xff\x00")
					raw = append(binary.LittleEndian.AppendUint32(raw, uint32(len(s))), s...)
					continue
				}
				raw = append(raw, binary.LittleEndian.AppendUint64(nil, c.Uint64())[:sizes[datatype]]...)
			}
			if c.one(30) {
				raw = append(raw, 0)
			}
			tail = append(tail, raw...)
			members = append(members, c.member("parameters", c.object(c.member("binary_data_size", strconv.Itoa(len(raw))))))
		} else {
			elements := make([]string, n)
			for j := range elements {
				elements[j] = c.element(datatype)
			}
			members = append(members, c.member("data", c.nested(shape, elements)))
			if c.one(3) {
				members = append(members, c.member("parameters", pick(c, c.parameters(), "null")))
			}
		}
		if c.one(20) {
			members = append(members, c.member(pick(c, "name", "other", "data"), pick(c, "1", `"x"`, `{"a":[1,{"b":null}]}`, "[[],[1,2]]")))
		}
		if c.one(60) {
			members = members[1:]
		}
		inputs[i] = c.object(members...)
	}
	members := []string{c.member("inputs", "["+strings.Join(inputs, ",")+c.space()+"]")}
	if c.one(2) {
		members = append(members, c.member("id", pick(c, c.quoted(c.text()), "null")))
	}
	if c.one(3) {
		members = append(members, c.member("parameters", c.parameters(c.member("binary_data_output", pick(c, "true", "false")))))
	}
	if c.one(3) {
		outputs := make([]string, c.IntN(3))
		for i := range outputs {
			outputs[i] = c.object(c.member("name", c.quoted(pick(c, "x", "y", "z", c.text()))), c.member("parameters", c.parameters()))
		}
		members = append(members, c.member("outputs", pick(c, "["+strings.Join(outputs, ",")+"]", "null")))
	}
	if c.one(10) {
		members = append(members, c.member(pick(c, "id", "other", "more"), pick(c, "1", `"x"`, `{"a":[1,{"b":null}],"a":2}`)))
	}
	text := c.object(members...) + c.space()
	if len(tail) > 0 || c.one(10) {
		headerLength = strconv.Itoa(len(text))
	}
	return headerLength, append([]byte(text), tail...)
}

// broken returns a copy of b with a few wrong bytes.
func (c chance) broken(b []byte) []byte {
	b = bytes.Clone(b)
	for range 1 + c.IntN(2) {
		i := c.IntN(len(b) + 1)
		j := i + c.IntN(min(len(b)-i, 20)+1)
		switch c.IntN(4) {
		case 0:
			b = append(b[:i:i], b[j:]...)
		case 1:
			b = append(b[:j:j], b[i:]...)
		case 2:
			b = slices.Insert(b, i, pick(c, []byte(`{}[]",:\0123456789eE.-+tfnu `)...))
		case 3:
			if i < len(b) {
				b[i] = byte(c.Uint32())
			}
		}
	}
	return b
}

var infer = kserve.Find("POST", "/v2/models/m/versions/1/infer")

// agree reports whether a request is accepted. The test fails if the oracle disagrees.
func agree(t testing.TB, headerLength string, body []byte) (transcode.Request, func(string) bool, bool) {
	t.Helper()
	before := bytes.Clone(body)
	r, err := transcode.Read(infer, headerLength, body)
	if !bytes.Equal(before, body) {
		t.Fatalf("%q was changed to %q", before, body)
	}
	want, wanted, refused := oracle(infer, headerLength, body)
	if (err == nil) != (refused == nil) {
		t.Fatalf("%s %q: %v, but the oracle returns %v", headerLength, body, err, refused)
	}
	if err != nil {
		if fault, ok := errors.AsType[*kserve.Error](err); !ok || fault.Code != kserve.InvalidArgument || fault.Reason == "" ||
			!strings.HasSuffix(fault.Reason, ".") {
			t.Fatalf("%s %q: %v", headerLength, body, err)
		}
		return r, nil, false
	}
	got := new(inference.ModelInferRequest)
	if err := proto.Unmarshal(r.Message, got); err != nil || len(got.ProtoReflect().GetUnknown()) > 0 {
		t.Fatalf("%s %q: %v", headerLength, body, err)
	}
	if !proto.Equal(got, want) {
		t.Fatalf("%s %q:\n%v\nwant\n%v", headerLength, body, got, want)
	}
	return r, wanted, true
}

// Package transcode and the oracle agree on random requests, both valid ones and ones with a few
// wrong bytes.
func TestRequestsAreAsTheOracleReadsThem(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(1, 1))}
	var taken, refused, broken int
	for range *requests {
		headerLength, body := c.request()
		if _, _, ok := agree(t, headerLength, body); ok {
			taken++
		} else {
			refused++
		}
		if _, _, ok := agree(t, headerLength, c.broken(body)); ok {
			broken++
		}
	}
	t.Logf("%d accepted, %d rejected, %d accepted with wrong bytes", taken, refused, broken)
	if taken < *requests/3 || refused < *requests/20 || broken < *requests/100 {
		t.Error("the test is too easy")
	}
}

func (c chance) answeredParameters() map[string]*inference.InferParameter {
	all := make(map[string]*inference.InferParameter)
	for range c.IntN(4) {
		all[c.text()] = pick(c,
			&inference.InferParameter{ParameterChoice: &inference.InferParameter_BoolParam{BoolParam: c.one(2)}},
			&inference.InferParameter{ParameterChoice: &inference.InferParameter_Int64Param{Int64Param: int64(c.Uint64())}},
			&inference.InferParameter{ParameterChoice: &inference.InferParameter_Uint64Param{Uint64Param: c.Uint64()}},
			&inference.InferParameter{ParameterChoice: &inference.InferParameter_StringParam{StringParam: c.text()}},
			&inference.InferParameter{ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: pick(c, c.NormFloat64(), 2,
				math.Inf(1))}},
			&inference.InferParameter{},
		)
	}
	return all
}

// answeredElement adds an element to contents and to raw, the two forms of an answer. The element
// is a value that a request may also have, random bits of a float, or bytes that are not UTF-8.
func (c chance) answeredElement(datatype string, contents *inference.InferTensorContents, raw []byte) []byte {
	size := sizes[datatype]
	var value any
	switch isFloat := datatype[0] == 'F' || datatype == "BF16"; {
	case c.one(200) && datatype == "BYTES":
		value = "\xff"
	case datatype == "BYTES":
		value = c.text()
	case datatype == "BOOL":
		value = c.one(2)
	case isFloat && c.one(3):
		bits := binary.LittleEndian.AppendUint64(nil, c.Uint64())
		switch datatype {
		case "FP32":
			contents.Fp32Contents = append(contents.Fp32Contents, math.Float32frombits(binary.LittleEndian.Uint32(bits)))
		case "FP64":
			contents.Fp64Contents = append(contents.Fp64Contents, math.Float64frombits(binary.LittleEndian.Uint64(bits)))
		}
		return append(raw, bits[:size]...)
	case isFloat && c.one(2):
		value = json.Number(pick(c, "0.1", "-0", "1e-7", "1e20", "12345", "1e21", "1e22", "0.000001", "3.1415927"))
	default:
		value = json.Number(c.element(datatype))
	}
	longer, err := put(datatype, contents, raw, value)
	if err != nil {
		return raw // the answer then has one element less than its shape says
	}
	return longer
}

// answered returns a random answer whose elements are all typed or all raw.
func (c chance) answered() *inference.ModelInferResponse {
	m := &inference.ModelInferResponse{ModelName: c.text(), ModelVersion: c.text(), Id: c.text(), Parameters: c.answeredParameters()}
	raw := c.one(2)
	for range c.IntN(4) {
		datatype := pick(c, datatypes...)
		o := &inference.ModelInferResponse_InferOutputTensor{
			Name: pick(c, "x", "y", "z", c.text()), Datatype: datatype, Parameters: c.answeredParameters(),
			Contents: new(inference.InferTensorContents),
		}
		n := 1
		for range c.IntN(3) {
			d := c.IntN(5)
			o.Shape = append(o.Shape, int64(d))
			n *= d
		}
		if c.one(50) {
			n++
		}
		if c.one(100) {
			o.Datatype = pick(c, "INT8", "FP32", "", "X")
		}
		var bytes []byte
		for range n {
			bytes = c.answeredElement(datatype, o.Contents, bytes)
		}
		if raw {
			o.Contents = nil
			m.RawOutputContents = append(m.RawOutputContents, bytes)
		}
		m.Outputs = append(m.Outputs, o)
	}
	if c.one(50) && len(m.RawOutputContents) > 0 {
		m.RawOutputContents = m.RawOutputContents[1:]
	}
	return m
}

// answers converts an answer, and fails the test if the oracle disagrees. It reports whether the
// conversion succeeded.
func answers(t testing.TB, r transcode.Request, message []byte, wanted func(string) bool) bool {
	t.Helper()
	got := r.Answer(message)
	want, tail, err := answer(message, wanted)
	text, rest := got.Body, []byte(nil)
	if got.HeaderLength > 0 {
		text, rest = got.Body[:got.HeaderLength], got.Body[got.HeaderLength:]
	}
	value, bad := tree(text)
	if bad != nil {
		t.Fatalf("%q: %q is not JSON", message, text)
	}
	if got.Status != 200 {
		o, _ := value.(object)
		if said, is := o.get("error"); len(o) != 1 || !is || said == "" || got.HeaderLength != 0 ||
			(got.Status != 500 && got.Status != 400) {
			t.Fatalf("%q: %d %q", message, got.Status, got.Body)
		}
		if err != nil {
			return false
		}
		// If transcode rejects an answer that protobuf can parse, the answer has unknown fields or
		// fields of other types. Transcode must accept the answer without these fields.
		m := new(inference.ModelInferResponse)
		if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(message, m); err != nil {
			t.Fatal(err)
		}
		again, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil || bytes.Equal(again, message) {
			t.Fatalf("%q: %d %q, although the oracle accepts it", message, got.Status, got.Body)
		}
		return answers(t, r, again, wanted)
	}
	if err != nil || !same(value, want) || !bytes.Equal(rest, tail) {
		t.Fatalf("%x:\n%q %q\nwant\n%v %q, %v", message, text, rest, want, tail, err)
	}
	return true
}

// Package transcode and the oracle agree on random answers to random requests. The answers are
// typed or raw, and some have a few wrong bytes.
func TestAnswersAreAsTheOracleWritesThem(t *testing.T) {
	c := chance{rand.New(rand.NewPCG(2, 1))}
	var taken, refused, broken int
	for range *requests {
		headerLength, body := c.request()
		r, wanted, ok := agree(t, headerLength, body)
		if !ok {
			continue
		}
		message, err := proto.Marshal(c.answered())
		if err != nil {
			t.Fatal(err)
		}
		if answers(t, r, message, wanted) {
			taken++
		} else {
			refused++
		}
		if answers(t, r, c.broken(message), wanted) {
			broken++
		}
	}
	t.Logf("%d accepted, %d rejected, %d accepted with wrong bytes", taken, refused, broken)
	if taken < *requests/3 || refused < *requests/100 || broken < *requests/100 {
		t.Error("the test is too easy")
	}
}

// FuzzRequest checks that transcode and the oracle agree on arbitrary requests.
func FuzzRequest(f *testing.F) {
	c := chance{rand.New(rand.NewPCG(1, 2))}
	for range 40 {
		headerLength, body := c.request()
		f.Add(headerLength, body)
	}
	f.Fuzz(func(t *testing.T, headerLength string, body []byte) { agree(t, headerLength, body) })
}

// FuzzResponse checks that transcode and the oracle agree on arbitrary answers.
func FuzzResponse(f *testing.F) {
	c := chance{rand.New(rand.NewPCG(1, 3))}
	for range 40 {
		message, err := proto.Marshal(c.answered())
		if err != nil {
			f.Fatal(err)
		}
		f.Add(message, c.one(2))
	}
	f.Fuzz(func(t *testing.T, message []byte, inBinary bool) {
		body := fmt.Sprintf(`{"inputs":[],"parameters":{"binary_data_output":%v}}`, inBinary)
		r, wanted, _ := agree(t, "", []byte(body))
		answers(t, r, message, wanted)
	})
}
