package transcode_test

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/transcode"
)

// one returns a request with a single tensor, named x.
func one(datatype, shape, data string) string {
	return `{"inputs":[{"name":"x","datatype":"` + datatype + `","shape":` + shape + `,"data":` + data + `}]}`
}

// Each error states which tensor is wrong, and how to correct it.
func TestRequestsThatAreRefused(t *testing.T) {
	read := "The request is not a valid V2 request: "
	x := read + "inputs: input 'x': data: element "
	for _, c := range []struct{ name, header, body, want string }{
		{"no body", "", "", read + "it ends too early."},
		{"no object", "", "[]", read + "at byte 0 an object is missing."},
		{"cut", "", `{"inputs":[{"name":"x"`, read + "inputs: input 'x': it ends too early."},
		{"trailing garbage", "", `{"inputs":[]} x`, read + "unexpected data after its end, at byte 14."},
		{"two values", "", `{"inputs":[]}{}`, read + "unexpected data after its end, at byte 13."},
		{"no inputs", "", `{}`, "The request has no inputs: send a list of tensors."},
		{"inputs that are null", "", `{"inputs":null}`, read + "inputs: at byte 10 an array is missing."},
		{
			"no UTF-8", "", "{\"id\":\"\xff\",\"inputs\":[]}",
			"The request is not UTF-8, as JSON must be: send text as UTF-8, and other bytes as a tensor in binary, with the header Inference-Header-Content-Length.",
		},
		{"a key twice", "", `{"id":"a","inputs":[],"id":"b"}`, read + "the key 'id' comes twice."},
		{"an unknown key twice", "", `{"more":1,"inputs":[],"more":2}`, read + "the key 'more' comes twice."},
		{"a tensor's key twice", "", `{"inputs":[{"name":"x","data":[1],"data":[2]}]}`, read +
			"inputs: input 'x': the key 'data' comes twice."},
		{"a parameter twice", "", `{"inputs":[],"parameters":{"a":1,"a":2}}`, read + "parameters: the key 'a' comes twice."},
		{"an id that is a number", "", `{"inputs":[],"id":5}`, read + "id: at byte 18 a string is missing."},
		{"half of a surrogate pair", "", `{"inputs":[],"id":"\ud800"}`, read + "id: at byte 25 a string has an escape that is not a character."},
		{"half of a surrogate pair and a character", "", `{"inputs":[],"id":"\ud83d\u0041"}`, read +
			"id: at byte 31 a string has an escape that is not a character."},
		{"a surrogate pair in the wrong order", "", `{"inputs":[],"id":"\ude00\ud83d"}`, read +
			"id: at byte 31 a string has an escape that is not a character."},
		{"an unknown escape", "", `{"inputs":[],"id":"\x"}`, read + "id: at byte 19 a string has an unknown escape."},
		{"a control character", "", "{\"inputs\":[],\"id\":\"\n\"}", read +
			"id: at byte 19 a string has a control character that is not escaped."},
		{"the last control character", "", "{\"inputs\":[],\"id\":\"\x1f\"}", read +
			"id: at byte 19 a string has a control character that is not escaped."},
		{"no name", "", `{"inputs":[{"datatype":"FP32","shape":[1],"data":[1]}]}`, "The input 1 has no name."},
		{
			"no datatype", "", `{"inputs":[{"name":"x","shape":[1],"data":[1]}]}`,
			"The input 'x' has no datatype: it is one of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BF16 or BYTES.",
		},
		{
			"an unknown datatype", "", one("STRING", "[1]", `["a"]`),
			"The input 'x' has an unknown datatype, 'STRING': it is one of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BF16 or BYTES.",
		},
		{
			"no shape", "", `{"inputs":[{"name":"x","datatype":"FP32","data":[1]}]}`,
			"The input 'x' has no shape: it is a list of whole numbers.",
		},
		{
			"no data", "", `{"inputs":[{"name":"x","datatype":"FP32","shape":[1]}]}`,
			"The input 'x' must have either data, or binary_data_size among its parameters and its elements behind the JSON.",
		},
		{"data that is not a list", "", one("FP32", "[1]", "1"), read + "inputs: input 'x': data: at byte 60 an array is missing."},
		{"a dimension that is negative", "", one("FP32", "[-1]", "[1]"), read +
			"inputs: input 'x': shape: at byte 50 stands no whole number from 0 to 9223372036854775807."},
		{"a dimension that is a fraction", "", one("FP32", "[1.0]", "[1]"), read +
			"inputs: input 'x': shape: at byte 50 stands no whole number from 0 to 9223372036854775807."},
		{
			"a shape too large", "", one("FP32", "[4294967296,4294967296]", "[1]"),
			"The shape of input 'x' is none: its dimensions are not negative, and their product fits in 63 bits.",
		},
		{
			"a shape too large and empty", "", one("FP32", "[0,4294967296,4294967296]", "[]"),
			"The shape of input 'x' is none: its dimensions are not negative, and their product fits in 63 bits.",
		},
		{
			"a shape with more elements than fit", "", one("FP64", "[9223372036854775807]", "[1]"),
			"The input 'x' has 1 elements, and its shape says 9223372036854775807.",
		},
		{"too few elements", "", one("FP32", "[2,2]", "[[1,2],[3]]"), "The input 'x' has 3 elements, and its shape says 4."},
		{"too many elements", "", one("BYTES", "[1]", `["a","b"]`), "The input 'x' has 2 elements, and its shape says 1."},
		{"too few elements of the second", "", one("FP32", "[]", "[1]")[:len(one("FP32", "[]", "[1]"))-2] +
			`,{"name":"y","datatype":"INT8","shape":[1],"data":[]}]}`, "The input 'y' has 0 elements, and its shape says 1."},
		{"a fraction", "", one("INT32", "[2]", "[1,2.5]"), x + "1 is not a whole number: send it without a point and an exponent."},
		{"a float that is whole", "", one("UINT8", "[1]", "[1.0]"), x +
			"0 is not a whole number: send it without a point and an exponent."},
		{"an exponent", "", one("INT64", "[1]", "[1e3]"), x + "0 is not a whole number: send it without a point and an exponent."},
		{"a string for a number", "", one("INT64", "[1]", `["1"]`), x + "0 is not a whole number."},
		{"INT8 above", "", one("INT8", "[1]", "[128]"), x + "0 is out of the range of INT8."},
		{"INT8 below", "", one("INT8", "[1]", "[-129]"), x + "0 is out of the range of INT8."},
		{"INT64 above", "", one("INT64", "[1]", "[9223372036854775808]"), x + "0 is out of the range of INT64."},
		{"UINT16 above", "", one("UINT16", "[1]", "[65536]"), x + "0 is out of the range of UINT16."},
		{"UINT32 below", "", one("UINT32", "[1]", "[-1]"), x + "0 is out of the range of UINT32."},
		{"UINT64 above", "", one("UINT64", "[1]", "[18446744073709551616]"), x + "0 is out of the range of UINT64."},
		{"FP16 above", "", one("FP16", "[1]", "[65520]"), x + "0 is out of the range of FP16."},
		{"BF16 above", "", one("BF16", "[1]", "[3.4e38]"), x + "0 is out of the range of BF16."},
		{"FP32 above", "", one("FP32", "[1]", "[-1e39]"), x + "0 is out of the range of FP32."},
		{"FP64 above", "", one("FP64", "[1]", "[1e309]"), x + "0 is out of the range of FP64."},
		{"NaN", "", one("FP32", "[1]", "[NaN]"), x + "0 is not a number (JSON has no NaN and no infinity: send the tensor in binary)."},
		{"null", "", one("FP64", "[1]", "[null]"), x +
			"0 is not a number (JSON has no NaN and no infinity: send the tensor in binary)."},
		{"a number for BOOL", "", one("BOOL", "[1]", "[1]"), x + "0 is neither true nor false."},
		{"a number for BYTES", "", one("BYTES", "[1]", "[1]"), x + "0 is not a string, as BYTES are in JSON."},
		{"elements before they are known", "", `{"inputs":[{"data":[1,300],"name":"x","datatype":"UINT8","shape":[2]}]}`, x +
			"1 is out of the range of UINT8."},
		{"a comma too much", "", one("FP32", "[1]", "[1,]"), x +
			"1 is not a number (JSON has no NaN and no infinity: send the tensor in binary)."},
		{"a comma too few", "", one("FP32", "[2]", "[1 2]"), read +
			"inputs: input 'x': data: at byte 63 a comma or the end of an array is missing."},
		{
			"a parameter that is an object", "", `{"inputs":[],"parameters":{"a":{}}}`,
			"The parameter 'a' is an object, a list, or a number that no datatype holds: a parameter is a string, a number, true or false.",
		},
		{
			"a parameter of a tensor that is a list", "", `{"inputs":[{"name":"x","parameters":{"a":[]}}]}`,
			"The parameter 'a' of 'x' is an object, a list, or a number that no datatype holds: a parameter is a string, a number, true or false.",
		},
		{
			"a parameter that is too large", "", `{"inputs":[],"parameters":{"a":18446744073709551616}}`,
			"The parameter 'a' is an object, a list, or a number that no datatype holds: a parameter is a string, a number, true or false.",
		},
		{
			"binary_data that is a number", "", `{"inputs":[],"outputs":[{"name":"y","parameters":{"binary_data":1}}]}`,
			"The parameter binary_data must be true or false.",
		},
		{
			"binary_data_output that is null", "", `{"inputs":[],"parameters":{"binary_data_output":null}}`,
			"The parameter binary_data_output must be true or false.",
		},
		{"an output without a name", "", `{"inputs":[],"outputs":[{}]}`, "A requested output has no name."},
		{"outputs that are not a list", "", `{"inputs":[],"outputs":{}}`, read + "outputs: at byte 23 an array is missing."},
		{
			"a header that is not a number", "x", `{"inputs":[]}`,
			"The header Inference-Header-Content-Length must state how many of the 13 bytes of the body are JSON.",
		},
		{
			"a header of 0", "0", `{"inputs":[]}`,
			"The header Inference-Header-Content-Length must state how many of the 13 bytes of the body are JSON.",
		},
		{
			"a header too large", "14", `{"inputs":[]}`,
			"The header Inference-Header-Content-Length must state how many of the 13 bytes of the body are JSON.",
		},
		{"a header too small", "12", `{"inputs":[]}`, read + "it ends too early."},
		{
			"a tail without an input", "13", `{"inputs":[]}ab`,
			"The body ends with 2 bytes that no input has: the binary_data_size of all inputs together is what follows the JSON.",
		},
		{
			"a tail too short", "", `{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"parameters":{"binary_data_size":4}}]}`,
			"The input 'x' has 4 bytes in binary, and 0 follow the JSON (the header Inference-Header-Content-Length says where it ends).",
		},
		{
			"a tail that does not match the shape", "91",
			`{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"parameters":{"binary_data_size":4}}]}abcd`,
			"The input 'x' has 4 bytes, and its shape says 2 elements of 4.",
		},
		{
			"BYTES without lengths", "92", `{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":4}}]}abcd`,
			"The 4 bytes of input 'x' are not the 1 elements that its shape says: before each stands its length, in four bytes, the lowest first.",
		},
		{
			"both data and a tail", "",
			`{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1],"parameters":{"binary_data_size":0}}]}`,
			"The input 'x' must have either data, or binary_data_size among its parameters and its elements behind the JSON.",
		},
		{"data that nests too deep", "", one("FP32", "[1]", strings.Repeat("[", 126)+"1"+strings.Repeat("]", 126)), read +
			"inputs: input 'x': data: it is nested deeper than 128 levels."},
		{"an ignored value that nests too deep", "", `{"inputs":[],"more":` + strings.Repeat(`[`, 1<<20), read +
			"more: it is nested deeper than 128 levels."},
		{"objects that nest too deep", "", `{"inputs":[],"more":` + strings.Repeat(`{"a":`, 1<<20), read +
			"more: it is nested deeper than 128 levels."},
		{"a key that is long", "", `{"inputs":[],"` + strings.Repeat("k", 1000) + `":x}`, read + strings.Repeat("k", 128) +
			"…: at byte 1016 a number is missing."},
		{"a name that is long", "", `{"inputs":[{"name":"` + strings.Repeat("ö", 100) + `"}]}`, "The input '" + strings.Repeat("ö", 64) +
			"…' has no datatype: it is one of BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP16, FP32, FP64, BF16 or BYTES."},
	} {
		_, err := transcode.Read(infer, c.header, []byte(c.body))
		fault, ok := errors.AsType[*kserve.Error](err)
		if !ok || fault.Code != kserve.InvalidArgument || fault.Reason != c.want {
			t.Errorf("%s: %v\nwant %s", c.name, err, c.want)
		}
	}
}

// Requests that just do not exceed a limit are accepted.
func TestRequestsAtTheLimits(t *testing.T) {
	for name, body := range map[string]string{
		"no input":                   `{"inputs":[]}`,
		"nulls for missing values":   `{"id":null,"parameters":null,"outputs":null,"inputs":[{"name":"x","parameters":null,"datatype":"FP32","shape":[],"data":[1]}]}`,
		"the largest":                one("UINT64", "[1]", "[18446744073709551615]"),
		"the least":                  one("INT64", "[1]", "[-9223372036854775808]"),
		"the largest FP16":           one("FP16", "[1]", "[65519.99]"),
		"a negative 0":               one("UINT8", "[1]", "[-0]"),
		"a number too small":         one("FP32", "[1]", "[1e-400]"),
		"the maximum depth":          one("FP32", "[1]", strings.Repeat("[", 125)+"1"+strings.Repeat("]", 125)),
		"a shape of another nesting": one("FP32", "[2,2]", "[1,[2,[3]],[],4]"),
		"an ignored value":           `{"inputs":[],"more":{"a":1,"a":[true,false,null,"\u00e9",-1.5e+3,{}]}}`,
	} {
		if _, _, ok := agree(t, "", []byte(body)); !ok {
			t.Errorf("%s is rejected: %s", name, body)
		}
	}
}

// Tensors are sent in typed form if possible. If one tensor must be raw, all tensors are raw.
func TestTensorsGoTypedOrAllRaw(t *testing.T) {
	const (
		x = `{"name":"x","datatype":"INT32","shape":[1],"data":[-2]}`
		h = `{"name":"h","datatype":"FP16","shape":[1],"data":[1]}`
		e = `{"name":"e","datatype":"INT64","shape":[1,0],"data":[[]]}`
		b = `{"name":"b","datatype":"BYTES","shape":[1],"parameters":{"content_type":"base64","binary_data_size":5}}`
	)
	for _, c := range []struct {
		inputs, tail string
		raw          []string
	}{
		{x, "", nil},
		{x + "," + e, "", []string{"\xfe\xff\xff\xff", ""}},
		{x + "," + h, "", []string{"\xfe\xff\xff\xff", "\x00\x3c"}},
		{b + "," + x, "\x01\x00\x00\x00\xff", []string{"\x01\x00\x00\x00\xff", "\xfe\xff\xff\xff"}},
	} {
		body := `{"inputs":[` + c.inputs + `]}`
		r, err := transcode.Read(infer, map[bool]string{true: strconv.Itoa(len(body))}[c.tail != ""], []byte(body+c.tail))
		if err != nil {
			t.Fatal(err)
		}
		m := new(inference.ModelInferRequest)
		if err := proto.Unmarshal(r.Message, m); err != nil {
			t.Fatal(err)
		}
		if len(m.GetRawInputContents()) != len(c.raw) {
			t.Fatalf("%s: %v", body, m)
		}
		for i, raw := range c.raw {
			if string(m.GetRawInputContents()[i]) != raw || m.GetInputs()[i].GetContents() != nil {
				t.Errorf("%s: %v", body, m)
			}
		}
		if c.tail != "" && len(m.GetInputs()[0].GetParameters()) != 1 {
			t.Errorf("%s: %v", body, m)
		}
	}
}

func TestMethods(t *testing.T) {
	for path, want := range map[string]string{
		"POST /v2/models/m/infer":           "inference.GRPCInferenceService/ModelInfer",
		"GET /v2/models/m":                  "inference.GRPCInferenceService/ModelMetadata",
		"GET /v2/models/m/versions/1/ready": "inference.GRPCInferenceService/ModelReady",
		"POST /v2/models/m/generate":        "", "POST /v2/models/m/infer_stream": "", "POST /v2/models/m/generate_stream": "",
		"GET /v2": "", "GET /nowhere": "",
	} {
		method, at, _ := strings.Cut(path, " ")
		r, err := transcode.Read(kserve.Find(method, at), "", []byte(`{"inputs":[]}`))
		if fault, ok := errors.AsType[*kserve.Error](err); r.Method != want || ok != (want == "") || ok &&
			fault.Code != kserve.Unimplemented {
			t.Errorf("%s: %q, %v", path, r.Method, err)
		}
	}
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Requests about a model's readiness or metadata contain the model's name and version. The answer
// becomes V2's JSON.
func TestModelQueries(t *testing.T) {
	ready := kserve.Find("GET", "/v2/models/a%2Fb/versions/7/ready")
	metadata := kserve.Find("GET", "/v2/models/a%2Fb")
	for _, c := range []struct {
		name   string
		of     kserve.REST
		asked  proto.Message
		answer []byte
		status int
		body   string
	}{
		{
			"ready", ready, &inference.ModelReadyRequest{Name: "a/b", Version: "7"}, encoded(t, &inference.ModelReadyResponse{Ready: true}),
			200, `{"name":"a/b","ready":true}`,
		},
		{
			"not ready", ready, &inference.ModelReadyRequest{Name: "a/b", Version: "7"}, nil, 400,
			`{"error":"The model 'a/b' is not ready."}`,
		},
		{
			"ready, broken", ready, &inference.ModelReadyRequest{Name: "a/b", Version: "7"},
			[]byte{8},
			500,
			`{"error":"The model's server sent an invalid answer: its answer is not a V2 message."}`,
		},
		{
			"ready, of another type", ready, &inference.ModelReadyRequest{Name: "a/b", Version: "7"}, []byte("\x0a\x01x"), 500,
			`{"error":"The model's server sent an invalid answer: its answer is not a V2 message."}`,
		},
		{"metadata", metadata, &inference.ModelMetadataRequest{Name: "a/b"}, encoded(t, &inference.ModelMetadataResponse{
			Name: "m", Platform: "p", Versions: []string{"1", "2"},
			Inputs: []*inference.ModelMetadataResponse_TensorMetadata{
				{Name: "x", Datatype: "FP32", Shape: []int64{-1, 3}},
				{Name: "y", Datatype: "BYTES"},
			},
			Outputs: []*inference.ModelMetadataResponse_TensorMetadata{
				{Name: "z\"", Datatype: "INT8", Shape: []int64{1}},
			},
		}), 200, `{"name":"m","versions":["1","2"],"platform":"p","inputs":[{"name":"x","datatype":"FP32","shape":[-1,3]},{"name":"y","datatype":"BYTES","shape":[]}],"outputs":[{"name":"z\"","datatype":"INT8","shape":[1]}]}`},
		{
			"metadata with parameters", metadata, &inference.ModelMetadataRequest{Name: "a/b"},
			[]byte("\x0a\x01m\x22\x10\x0a\x01x\x22\x0b\x0a\x01a\x12\x06\x1a\x04text\x32\x07\x0a\x01b\x12\x02\x10\x05"), 200,
			`{"name":"m","versions":[],"platform":"","inputs":[{"name":"x","datatype":"","shape":[],"parameters":{"a":"text"}}],"outputs":[],"parameters":{"b":5}}`,
		},
		{
			"no metadata", metadata, &inference.ModelMetadataRequest{Name: "a/b"}, nil, 200,
			`{"name":"","versions":[],"platform":"","inputs":[],"outputs":[]}`,
		},
		{
			"metadata, broken", metadata, &inference.ModelMetadataRequest{Name: "a/b"}, []byte("\x22\x02\x0a\x05"), 500,
			`{"error":"The model's server sent an invalid answer: its answer is not a V2 message."}`,
		},
	} {
		r, err := transcode.Read(c.of, "", nil)
		if err != nil || string(r.Message) != string(encoded(t, c.asked)) {
			t.Errorf("%s: %q, %v", c.name, r.Message, err)
		}
		if got := r.Answer(c.answer); got.Status != c.status || string(got.Body) != c.body || got.HeaderLength != 0 ||
			got.ContentType() != "application/json" {
			t.Errorf("%s: %d %s\nwant %d %s", c.name, got.Status, got.Body, c.status, c.body)
		}
	}
}

// The converted answers have exactly the expected bytes.
func TestAnswersToInference(t *testing.T) {
	answer := &inference.ModelInferResponse{
		ModelName: "m", ModelVersion: "1", Id: "i",
		Parameters: map[string]*inference.InferParameter{"p": {ParameterChoice: &inference.InferParameter_DoubleParam{DoubleParam: 2}}},
		Outputs: []*inference.ModelInferResponse_InferOutputTensor{
			{
				Name: "f", Datatype: "FP32", Shape: []int64{2, 3},
				Contents: &inference.InferTensorContents{Fp32Contents: []float32{
					0.1, 1, float32(math.Inf(-1)), 1e21, 1e-7,
					float32(math.NaN()),
				}},
			},
			{
				Name: "d", Datatype: "FP64", Shape: []int64{1, 2},
				Contents: &inference.InferTensorContents{Fp64Contents: []float64{1e21, 1e-6}},
			},
			{
				Name: "b", Datatype: "BYTES", Shape: []int64{2},
				Contents: &inference.InferTensorContents{BytesContents: [][]byte{[]byte("ö\""), {}}},
			},
		},
	}
	const (
		head  = `{"model_name":"m","model_version":"1","id":"i","parameters":{"p":2.0},"outputs":[`
		asked = `{"inputs":[],"parameters":{"binary_data_output":true},"outputs":[{"name":"f","parameters":{"binary_data":false}},{"name":"d","parameters":{"binary_data":false}},{"name":"b"}]}`
		f     = `{"name":"f","datatype":"FP32","shape":[2,3],"data":[0.10000000149011612,1.0,null,1.0000000200408773e+21,1.0000000116860974e-07,null]},{"name":"d","datatype":"FP64","shape":[1,2],"data":[1e+21,0.000001]}`
	)
	for _, c := range []struct {
		name, request, want string
		length              int
	}{
		{"JSON", `{"inputs":[]}`, head + f + `,{"name":"b","datatype":"BYTES","shape":[2],"data":["ö\"",""]}]}`, 0},
		{"one in binary", asked, head + f + `,{"name":"b","datatype":"BYTES","shape":[2],"parameters":{"binary_data_size":11}}]}` +
			"\x03\x00\x00\x00ö\"\x00\x00\x00\x00", 366},
	} {
		r, err := transcode.Read(infer, "", []byte(c.request))
		if err != nil {
			t.Fatal(err)
		}
		got := r.Answer(encoded(t, answer))
		if got.Status != 200 || string(got.Body) != c.want || got.HeaderLength != c.length {
			t.Errorf("%s: %d, %d, %s\nwant %d, %s", c.name, got.Status, got.HeaderLength, got.Body, c.length, c.want)
		}
		if got.ContentType() != map[bool]string{false: "application/json", true: "application/octet-stream"}[c.length > 0] {
			t.Errorf("%s: %s", c.name, got.ContentType())
		}
	}
}

// An answer becomes an error if JSON cannot express it, or if it is not a valid message.
func TestInexpressibleAnswers(t *testing.T) {
	r, err := transcode.Read(infer, "", []byte(`{"inputs":[]}`))
	if err != nil {
		t.Fatal(err)
	}
	tensor := func(datatype string, c *inference.InferTensorContents, shape ...int64) *inference.ModelInferResponse_InferOutputTensor {
		return &inference.ModelInferResponse_InferOutputTensor{Name: "y", Datatype: datatype, Shape: shape, Contents: c}
	}
	of := func(o *inference.ModelInferResponse_InferOutputTensor, raw ...[]byte) *inference.ModelInferResponse {
		return &inference.ModelInferResponse{Outputs: []*inference.ModelInferResponse_InferOutputTensor{o}, RawOutputContents: raw}
	}
	broken := "The model's server sent an invalid answer: "
	for _, c := range []struct {
		name   string
		answer *inference.ModelInferResponse
		status int
		want   string
	}{
		{
			"not UTF-8", of(tensor("BYTES", nil, 1), []byte("\x01\x00\x00\x00\xff")), 400,
			"The output 'y' has bytes that are not UTF-8, which JSON cannot represent: request it in binary, with the parameter binary_data.",
		},
		{"an unknown datatype", of(tensor("FP8", nil, 0)), 500, broken + "the output 'y' has an unknown datatype."},
		{"too few bytes", of(tensor("FP32", nil, 1), []byte("abc")), 500, broken +
			"the elements of the output 'y' do not match its shape."},
		{"a shape too large", of(tensor("FP32", nil, 1<<62, 1<<62), nil), 500, broken +
			"the elements of the output 'y' do not match its shape."},
		{"a shape of any size", of(tensor("FP32", nil, -1), nil), 500, broken + "the elements of the output 'y' do not match its shape."},
		{"two raw of one", of(tensor("FP32", nil, 0), nil, nil), 500, broken + "only some of its outputs are raw."},
		{"elements of another datatype", of(tensor("FP32", &inference.InferTensorContents{Fp64Contents: []float64{1}}, 1)), 500, broken +
			"the elements of the output 'y' are not FP32."},
		{"elements out of range", of(tensor("INT8", &inference.InferTensorContents{IntContents: []int32{128}}, 1)), 500, broken +
			"the elements of the output 'y' are not INT8."},
		{"typed FP16", of(tensor("FP16", &inference.InferTensorContents{BytesContents: [][]byte{{0, 0}}}, 1)), 500, broken +
			"the elements of the output 'y' are not FP16."},
	} {
		got := r.Answer(encoded(t, c.answer))
		if want := `{"error":"` + c.want + `"}`; got.Status != c.status || string(got.Body) != want {
			t.Errorf("%s: %d %s\nwant %d %s", c.name, got.Status, got.Body, c.status, want)
		}
	}
}

// Some valid encodings are never written by protobuf's own libraries: unpacked elements, truncated
// negative numbers, repeated fields. Transcode reads them as the oracle does, with outputs in JSON
// and in binary. An empty want means that the message is invalid.
func TestUnusualEncodings(t *testing.T) {
	tensor := func(datatype, contents string) string {
		return "\x2a" + string(rune(len(datatype)+len(contents)+7)) + "\x12" + string(rune(len(datatype))) + datatype + "\x1a\x01\x02" +
			"\x2a" + string(rune(len(contents))) + contents
	}
	for _, c := range []struct{ name, message, want string }{
		{"floats one by one", tensor("FP32", "\x35\x00\x00\x80\x3f\x35\x00\x00\x00\x40"), "[1.0,2.0]"},
		{
			"floats one by one and packed", tensor("FP64", "\x39\x00\x00\x00\x00\x00\x00\xf0\x3f\x3a\x08\x00\x00\x00\x00\x00\x00\x00\x00"),
			"[1.0,0.0]",
		},
		{"a negative one in few bytes", tensor("INT8", "\x10\x05\x10\xff\xff\xff\xff\x0f"), "[5,-1]"},
		{"true as 2", tensor("BOOL", "\x08\x02\x0a\x01\x00"), "[true,false]"},
		{"numbers packed and one by one", tensor("UINT16", "\x22\x01\x07\x20\x08"), "[7,8]"},
		{"more bits than the field has", tensor("UINT16", "\x22\x01\x07\x20\x81\x80\x80\x80\x10"), "[7,1]"},
		{"a float in two parts", tensor("FP32", "\x32\x02\x00\x00\x32\x06\x80\x3f\x00\x00\x80\x3f"), ""},
		{"a number that is cut", tensor("UINT16", "\x22\x02\x07\x80"), ""},
		{"a parameter twice", "\x22\x07\x0a\x01b\x12\x02\x10\x05\x22\x07\x0a\x01b\x12\x02\x10\x06", `{"b":6}`},
		{"a parameter that is removed again", "\x22\x07\x0a\x01b\x12\x02\x10\x05\x22\x05\x0a\x01b\x12\x00", `{"model_name":"","outputs":[]}`},
		{"two values of a parameter", "\x22\x09\x0a\x01b\x12\x04\x10\x05\x08\x01", `{"b":true}`},
		{"a model twice", "\x0a\x01m\x0a\x01n", `{"model_name":"n","outputs":[]}`},
		{"an unknown field", "\x0a\x01m\x98\x06\x01", `{"model_name":"m","outputs":[]}`},
		{"an unknown group", "\x0a\x01m\x9b\x06\x08\x01\x9c\x06", `{"model_name":"m","outputs":[]}`},
		{"a field's number too large", "\xf0\x9f\x98\x80\x3c\x00", ""},
		{"a name that is not UTF-8", "\x0a\x01\xff", ""},
		{"a cut name", "\x0a\x02m", ""},
		{"a name that is a number", "\x08\x01", ""},
	} {
		for _, all := range []string{"false", "true"} {
			r, wanted, ok := agree(t, "", []byte(`{"inputs":[],"parameters":{"binary_data_output":`+all+`}}`))
			if !ok {
				t.Fatal("rejected")
			}
			if c.name != "a name that is a number" { // protobuf treats this name as an unknown field
				answers(t, r, []byte(c.message), wanted)
			}
			got := r.Answer([]byte(c.message))
			if (got.Status == 200) != (c.want != "") || all == "false" && !strings.Contains(string(got.Body), c.want) {
				t.Errorf("%s: %d %s, want %s", c.name, got.Status, got.Body, c.want)
			}
		}
	}
}

func TestCallsThatFail(t *testing.T) {
	for code, want := range map[kserve.Code]int{
		kserve.NotFound: 404, kserve.InvalidArgument: 400, kserve.Unavailable: 503,
		kserve.Unimplemented: 501, 99: 500,
	} {
		if got := transcode.Failed(code, "a \"word\"\xff"); got.Status != want || string(got.Body) != `{"error":"a \"word\"`+"\ufffd"+`"}` {
			t.Errorf("%d: %d %s", code, got.Status, got.Body)
		}
	}
}

// Every FP16 and BF16 survives the conversion. A value between two such floats becomes the nearer
// one.
func TestEveryFloatOf16Bits(t *testing.T) {
	for _, datatype := range []string{"FP16", "BF16"} {
		for bits := 0; bits < 1<<16; bits += 7 {
			f := half(datatype, uint16(bits))
			if math.IsNaN(f) || math.IsInf(f, 0) {
				continue
			}
			if got, ok := nearest(datatype, f); !ok || int(got) != bits {
				t.Fatalf("the oracle has %x for %x of %s", got, bits, datatype)
			}
		}
		message := encoded(t, &inference.ModelInferResponse{
			Outputs:           []*inference.ModelInferResponse_InferOutputTensor{{Name: "y", Datatype: datatype, Shape: []int64{1 << 16}}},
			RawOutputContents: [][]byte{all16()},
		})
		r, wanted, ok := agree(t, "", []byte(`{"inputs":[]}`))
		if !ok || !answers(t, r, message, wanted) {
			t.Fatal("rejected")
		}
		body := string(r.Answer(message).Body)
		data := strings.TrimSuffix(body[strings.Index(body, `"data":`)+len(`"data":`):], "}]}")
		if _, _, ok := agree(t, "", []byte(one(datatype, "[65536]", strings.ReplaceAll(data, "null", "0")))); !ok {
			t.Fatal("rejected")
		}
	}
}

func all16() (all []byte) {
	for bits := range 1 << 16 {
		all = append(all, byte(bits), byte(bits>>8))
	}
	return all
}
