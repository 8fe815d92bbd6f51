//go:build real

package transcode_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/transcode"
	"github.com/headgate/headgate/internal/process"
)

var (
	mlserver = flag.String("mlserver", "../../.cache/mlserver", "where bench/real/mlserver installed")
	triton   = flag.String("triton", "../../.cache/triton", "where bench/real/triton installed")
)

// realEngine is a real engine that serves the model echo, which returns its inputs.
type realEngine struct {
	name      string
	host      string
	port      int // HTTP port; the gRPC port is the next one
	installed string
	datatypes []string
	binary    bool // the engine supports the binary tensor data extension
	conn      *grpc.ClientConn
}

func realEngines() []*realEngine {
	return []*realEngine{
		{
			name: "mlserver", host: "127.93.1.1", port: 8080, installed: *mlserver,
			datatypes: slices.DeleteFunc(slices.Clone(datatypes), func(d string) bool { return d == "BF16" }),
		},
		{name: "triton", host: "127.93.1.2", port: 8000, installed: *triton, datatypes: datatypes, binary: true},
	}
}

const mlserverEcho = `
import numpy as np
from mlserver import MLModel
from mlserver.codecs.numpy import to_dtype
from mlserver.types import InferenceResponse, ResponseOutput


class Echo(MLModel):
    async def load(self):
        return True

    async def predict(self, request):
        outputs = []
        for i in request.inputs:
            if i.name == "fail":
                raise ValueError("it was told to fail")
            if i.name == "half":
                i.datatype = "FP16"
            data = getattr(i.data, "root", i.data)
            if str(getattr(i.datatype, "value", i.datatype)) != "BYTES":
                data = np.array(data, to_dtype(i)).flatten().tolist()
            outputs.append(ResponseOutput(name=i.name, datatype=i.datatype, shape=i.shape, parameters=i.parameters, data=data))
        return InferenceResponse(model_name=self.name, model_version=self.version, outputs=outputs)
`

const tritonEcho = `
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        return [pb.InferenceResponse(r.inputs()) for r in requests]
`

func write(t *testing.T, text string, path ...string) {
	t.Helper()
	at := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil { //nolint:gosec // the engine reads it
		t.Fatal(err)
	}
}

// start starts the engine and loads the model.
func (e *realEngine) start(t *testing.T) {
	t.Helper()
	folder := t.TempDir()
	if e.name == "mlserver" {
		write(t, mlserverEcho, folder, "echo.py")
		write(t, `{"name": "echo", "implementation": "echo.Echo", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3], "parameters": {"content_type": "np"}}], "platform": "p"}`,
			folder, "echo",
			"model-settings.json")
	} else {
		var config strings.Builder
		config.WriteString("name: \"echo\"\nbackend: \"python\"\nmax_batch_size: 0\ninstance_group [ { kind: KIND_CPU } ]\n")
		for _, datatype := range datatypes {
			of := map[bool]string{true: "STRING", false: datatype}[datatype == "BYTES"]
			fmt.Fprintf(&config, "input [ { name: %q, data_type: TYPE_%s, dims: [ -1, -1 ], optional: true } ]\n", datatype, of)
			fmt.Fprintf(&config, "output [ { name: %q, data_type: TYPE_%s, dims: [ -1, -1 ] } ]\n", datatype, of)
		}
		write(t, config.String(), folder, "echo", "config.pbtxt")
		write(t, tritonEcho, folder, "echo", "1", "model.py")
	}
	command := exec.Command("../../bench/real/"+e.name, "serve", e.installed, folder, e.host,
		strconv.Itoa(e.port)) //nolint:gosec // of this file
	command.Env = append(os.Environ(), "PYTHONPATH="+folder)
	p, err := process.NewStarter().Start(e.name, t.TempDir(), command)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.KillGroup)
	for end := time.Now().Add(30 * time.Second); ; {
		if status, _, _ := e.native(t, "POST", "/v2/repository/models/echo/load", "", nil); status == http.StatusOK {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not serve: %s", e.name, p.LastWords())
		}
		time.Sleep(50 * time.Millisecond)
	}
	if e.conn, err = grpc.NewClient(fmt.Sprintf("%s:%d", e.host, e.port+1),
		grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.conn.Close() })
}

// native sends a REST request directly to the engine. A status of 0 means that the engine did not
// answer.
func (e *realEngine) native(t *testing.T, method, path, headerLength string, body []byte) (status, header int, answer []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("http://%s:%d%s", e.host, e.port, path), bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if headerLength != "" {
		r.Header.Set(transcode.HeaderLength, headerLength)
	}
	resp, err := (&http.Client{Timeout: 20 * time.Second}).Do(r)
	if err != nil {
		return 0, 0, nil
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	header, _ = strconv.Atoi(resp.Header.Get(transcode.HeaderLength))
	return resp.StatusCode, header, answer
}

// bare is a gRPC codec that sends and receives encoded messages as they are.
type bare struct{}

func (bare) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bare) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (bare) Name() string { return "proto" }

// through converts a REST request to gRPC, calls the engine, and converts the answer.
func (e *realEngine) through(t *testing.T, method, path, headerLength string, body []byte) transcode.Response {
	t.Helper()
	r, err := transcode.Read(kserve.Find(method, path), headerLength, body)
	if fault, ok := err.(*kserve.Error); ok { //nolint:errorlint // Read returns it as it is
		return transcode.Failed(fault.Code, fault.Reason)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var answer []byte
	if err := e.conn.Invoke(ctx, "/"+r.Method, &r.Message, &answer, grpc.ForceCodecV2(bare{})); err != nil {
		return transcode.Failed(kserve.Code(status.Code(err)), status.Convert(err).Message())
	}
	return r.Answer(answer)
}

// tokens matches the text that Triton writes for floats that JSON cannot express.
var tokens = regexp.MustCompile(`([\[,])-?(NaN|Infinity)`)

// seen returns the values in an answer by name. Members of the JSON object are under their keys. An
// output's value has one element per line, and is the same for JSON and binary elements.
func seen(t *testing.T, header int, answer []byte) map[string]string {
	t.Helper()
	text, tail := answer, []byte(nil)
	if header > 0 {
		text, tail = answer[:header], answer[header:]
	}
	d := json.NewDecoder(bytes.NewReader(tokens.ReplaceAll(text, []byte("${1}null"))))
	d.UseNumber()
	var o map[string]any
	if err := d.Decode(&o); err != nil {
		t.Fatalf("%q: %v", answer, err)
	}
	all := make(map[string]string)
	outputs, _ := o["outputs"].([]any)
	for key, value := range o {
		if p, is := value.(map[string]any); is && len(p) == 0 || key == "outputs" {
			continue
		}
		all[key] = fmt.Sprint(value)
	}
	for i, value := range outputs {
		out := value.(map[string]any)
		datatype := fmt.Sprint(out["datatype"])
		p, _ := out["parameters"].(map[string]any)
		var values []string
		if size, is := p["binary_data_size"].(json.Number); is {
			n, _ := size.Int64()
			elements, ok := split(datatype, tail[:n])
			if !ok {
				t.Fatalf("%q", answer)
			}
			tail = tail[n:]
			for _, element := range elements {
				value, _ := valueOf(datatype, element)
				values = append(values, shown(value))
			}
			delete(p, "binary_data_size")
		} else {
			data, _ := out["data"].([]any) // outputs in model metadata have no data
			for _, value := range data {
				if n, is := value.(json.Number); is && (strings.HasPrefix(datatype, "FP") || datatype == "BF16") {
					f, err := n.Float64()
					if err != nil || !strings.ContainsAny(n.String(), ".e") {
						t.Fatalf("%s is a float: %v", n, err)
					}
					value = f
				}
				values = append(values, shown(value))
			}
		}
		at := fmt.Sprintf("output %d ", i)
		all[at+"name"], all[at+"datatype"], all[at+"shape"] = fmt.Sprint(out["name"]), datatype, fmt.Sprint(out["shape"])
		if len(p) > 0 {
			all[at+"parameters"] = fmt.Sprint(p)
		}
		all[at+"data"] = strings.Join(values, "\n")
	}
	if len(tail) > 0 {
		t.Fatalf("%q has %d bytes more", answer, len(tail))
	}
	return all
}

func shown(value any) string {
	if f, is := value.(float64); is {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return fmt.Sprint(value)
}

// differs returns the names of values that differ between two answers.
func differs(a, b map[string]string) (all []string) {
	for key := range a {
		if a[key] != b[key] {
			all = append(all, key)
		}
	}
	for key := range b {
		if _, is := a[key]; !is {
			all = append(all, key)
		}
	}
	slices.Sort(all)
	return all
}

// form is the encoding of a request's elements, and the encoding that the request wants for the
// answer.
type form struct {
	in, out string // in is "flat", "nested" or "binary". out is "JSON", "binary" (one output) or "all" (all outputs in binary).
}

// tensor returns a request with one tensor, encoded in this form.
func tensor(f form, datatype string, shape []int, elements []string, raw []byte) (headerLength string, body []byte) {
	dimensions := strings.ReplaceAll(fmt.Sprint(shape), " ", ",")
	input := fmt.Sprintf(`{"name":%q,"datatype":%[1]q,"shape":%s`, datatype, dimensions)
	switch f.in {
	case "flat":
		input += `,"data":[` + strings.Join(elements, ",") + `]}`
	case "nested":
		n := shape[1]
		var rows []string
		for i := range shape[0] {
			rows = append(rows, "["+strings.Join(elements[i*n:(i+1)*n], ",")+"]")
		}
		input += `,"data":[` + strings.Join(rows, ",") + `]}`
	default:
		input += fmt.Sprintf(`,"parameters":{"binary_data_size":%d}}`, len(raw))
	}
	text := `{"id":"i","inputs":[` + input + `]`
	switch f.out {
	case "binary":
		text += fmt.Sprintf(`,"outputs":[{"name":%q,"parameters":{"binary_data":true}}]`, datatype)
	case "all":
		text += `,"parameters":{"binary_data_output":true}`
	}
	text += "}"
	if f.in == "binary" {
		return strconv.Itoa(len(text)), append([]byte(text), raw...)
	}
	return "", []byte(text)
}

// An engine's answer through gRPC has the same values as its answer by REST, in every form of
// request and for every datatype that the engine supports.
func TestRealEnginesAnswerAsByREST(t *testing.T) {
	const path = "/v2/models/echo/infer"
	for _, e := range realEngines() {
		t.Run(e.name, func(t *testing.T) {
			e.start(t)
			c := chance{rand.New(rand.NewPCG(3, 1))}
			for _, datatype := range e.datatypes {
				compared := 0
				for i := range 12 {
					shape := []int{1 + c.IntN(3), 1 + c.IntN(40)}
					if i == 0 {
						shape = []int{0, 2}
					}
					elements, raw := c.valid(t, datatype, shape[0]*shape[1])
					// The reference is the engine's own REST answer, in a form that the engine
					// supports. Triton accepts and returns FP16 and BF16 only in binary. It parses
					// JSON floats to a near value, not to the nearest value.
					reference := form{"flat", "JSON"}
					switch {
					case e.binary && (datatype == "FP16" || datatype == "BF16"):
						reference = form{"binary", "binary"}
					case e.binary && strings.HasPrefix(datatype, "FP"):
						reference = form{"binary", "JSON"}
					}
					header, body := tensor(reference, datatype, shape, elements, raw)
					status, header1, answer := e.native(t, "POST", path, header, body)
					if status != http.StatusOK {
						t.Fatalf("%s: %d %s", body, status, answer)
					}
					want := seen(t, header1, answer)
					for _, in := range []string{"flat", "nested", "binary"} {
						for _, out := range []string{"JSON", "binary", "all"} {
							header, body := tensor(form{in, out}, datatype, shape, elements, raw)
							got := e.through(t, "POST", path, header, body)
							if got.Status != http.StatusOK {
								t.Errorf("%s, %s in, %s out: %d %s", datatype, in, out, got.Status, got.Body)
								continue
							}
							if (got.HeaderLength > 0) != (out != "JSON") {
								t.Errorf("%s, %s in, %s out: the header is %d", datatype, in, out, got.HeaderLength)
							}
							if bad := differs(seen(t, got.HeaderLength, got.Body), want); len(bad) > 0 {
								t.Errorf("%s, %s in, %s out: %v of\n%s\nby REST\n%s", datatype, in, out, bad, got.Body, answer)
							}
							compared++
						}
					}
				}
				t.Logf("%s: %d answers", datatype, compared)
			}
		})
	}
}

// valid returns n elements that are valid for a datatype, in JSON form and in raw form.
func (c chance) valid(t *testing.T, datatype string, n int) (elements []string, raw []byte) {
	t.Helper()
	for len(elements) < n {
		element := c.element(datatype)
		var value any
		d := json.NewDecoder(strings.NewReader(element))
		d.UseNumber()
		if d.Decode(&value) != nil {
			continue
		}
		if datatype == "FP32" { // Triton rounds twice and may return a neighboring float
			if number, is := value.(json.Number); is {
				f, _ := number.Float64()
				bits := binary.LittleEndian.AppendUint32(nil, 0)
				if one, err := put("FP32", new(inference.InferTensorContents), nil,
					json.Number(strconv.FormatFloat(float64(float32(f)), 'g', -1, 64))); err == nil {
					bits = one
				}
				if once, err := put("FP32", new(inference.InferTensorContents), nil, value); err != nil || !bytes.Equal(once, bits) {
					continue
				}
			}
		}
		longer, err := put(datatype, new(inference.InferTensorContents), raw, value)
		if err != nil {
			continue
		}
		elements, raw = append(elements, element), longer
	}
	return elements, raw
}

// Some requests have different answers by REST and by gRPC, or might have. This test states what
// each engine answers, and fails if a newer engine answers differently.
func TestDifferencesOfRealEngines(t *testing.T) {
	const infer, ready, metadata = "POST /v2/models/echo/infer", "GET /v2/models/echo/ready", "GET /v2/models/echo"
	fp32 := func(rest string) string {
		return `{"id":"i","inputs":[{"name":"FP32","datatype":"FP32","shape":[1,2],"data":[1,2]` + rest
	}
	inBinary := func(datatype, raw string, shape string) string {
		return fmt.Sprintf(`{"id":"i","inputs":[{"name":%q,"datatype":%[1]q,"shape":%s,"parameters":{"binary_data_size":%d}}]}`, datatype,
			shape, len(raw)) + "|" + raw
	}
	type want struct {
		native, ours int
		differ       string // names of the values that differ, if both statuses are 200
	}
	same := want{200, 200, ""}
	for _, e := range realEngines() {
		t.Run(e.name, func(t *testing.T) {
			e.start(t)
			for _, c := range []struct {
				name, request, body string
				mlserver, triton    want
			}{
				{"an id", infer, fp32(`}]}`), same, same},
				{"no id", infer, strings.Replace(fp32(`}]}`), `"id":"i",`, "", 1), want{200, 200, "id"}, same},
				{"a version", "POST /v2/models/echo/versions/1/infer", fp32(`}]}`), want{404, 404, ""}, same},
				{"an unknown version", "POST /v2/models/echo/versions/9/infer", fp32(`}]}`), want{404, 404, ""}, want{404, 404, ""}},
				{"an unknown model", "POST /v2/models/nobody/infer", fp32(`}]}`), want{404, 404, ""}, want{404, 404, ""}},
				{
					"a model that fails", infer, strings.Replace(fp32(`}]}`), `"name":"FP32"`, `"name":"fail"`, 1),
					want{500, 500, ""},
					want{400, 400, ""},
				},
				// MLServer answers typed requests with typed answers, which have no field for FP16.
				{
					"an output of FP16", infer, strings.Replace(fp32(`}]}`), `"name":"FP32"`, `"name":"half"`, 1),
					want{200, 500, ""},
					want{400, 400, ""},
				},
				{
					"an output of FP16, asked in binary", infer,
					strings.Replace(inBinary("FP32", "\x00\x00\x80\x3f", "[1,1]"), `"name":"FP32"`, `"name":"half"`, 1),
					want{422, 200, ""},
					want{400, 400, ""},
				},
				{"an output", infer, fp32(`}],"outputs":[{"name":"FP32"}]}`), same, same},
				{"an unknown output", infer, fp32(`}],"outputs":[{"name":"y"}]}`), same, want{400, 400, ""}},
				{"an output twice", infer, fp32(`}],"outputs":[{"name":"FP32"},{"name":"FP32"}]}`), same, same},
				{"classes", infer, fp32(`}],"outputs":[{"name":"FP32","parameters":{"classification":2}}]}`), same, same},
				{
					"parameters", infer,
					fp32(`,"parameters":{"content_type":"np","a":true,"b":false,"c":-5,"d":"ö"}}],"parameters":{"a":true,"b":7,"c":"x"}}`),
					same, same,
				},
				{"a parameter that is a float", infer, fp32(`,"parameters":{"a":1.5}}]}`), want{200, 200, "output 0 parameters"}, same},
				{
					"a parameter of 64 bits", infer, fp32(`,"parameters":{"a":18446744073709551615}}]}`),
					want{200, 200, "output 0 parameters"},
					same,
				},
				{"a parameter that is null", infer, fp32(`,"parameters":{"a":null}}]}`), same, same},
				{"a parameter that is an object", infer, fp32(`,"parameters":{"a":{}}}]}`), want{200, 400, ""}, want{200, 400, ""}},
				{"nulls", infer, fp32(`,"parameters":null}],"parameters":null,"outputs":null}`), same, want{500, 200, ""}},
				{"an id that is null", infer, strings.Replace(fp32(`}]}`), `"i"`, "null", 1), want{200, 200, "id"}, want{500, 200, ""}},
				{"no tensor", infer, `{"id":"i","inputs":[]}`, same, same},
				{
					"two tensors", infer,
					fp32(`},{"name":"FP64","datatype":"FP64","shape":[1,1],"data":[3]},{"name":"BYTES","datatype":"BYTES","shape":[1,2],"data":["a",""]}]}`),
					same, same,
				},
				{"a tensor twice", infer, fp32(`},{"name":"FP32","datatype":"FP32","shape":[1,1],"data":[3]}]}`), same, want{400, 400, ""}},
				{
					"base64", infer,
					`{"id":"i","inputs":[{"name":"BYTES","datatype":"BYTES","shape":[1,1],"data":["/+8="],"parameters":{"content_type":"base64"}}]}`,
					same, same,
				},
				{"an ignored value", infer, fp32(`}],"more":[{}]}`), same, same},
				{"data of another nesting", infer, strings.Replace(fp32(`}]}`), "[1,2]}", "[[[1],[2]]]}", 1), same, same},
				{"ragged data", infer, strings.Replace(fp32(`}]}`), "[1,2]}", "[1,[2]]}", 1), want{500, 200, ""}, same},
				{
					"too few elements", infer, strings.Replace(fp32(`}]}`), `"data":[1,2]`, `"data":[1]`, 1),
					want{200, 400, ""},
					want{500, 400, ""},
				},
				{
					"a negative dimension", infer, strings.Replace(fp32(`}]}`), `"shape":[1,2]`, `"shape":[-1,-2]`, 1),
					want{200, 400, ""},
					want{500, 400, ""},
				},
				{
					"data that is not a list", infer, `{"id":"i","inputs":[{"name":"FP32","datatype":"FP32","shape":[1,1],"data":1}]}`,
					want{200, 400, ""},
					want{500, 400, ""},
				},
				{"data twice", infer, fp32(`,"data":[3,4]}]}`), want{200, 400, ""}, want{200, 400, ""}},
				{"no data", infer, `{"inputs":[{"name":"FP32","datatype":"FP32","shape":[1,1]}]}`, want{422, 400, ""}, want{400, 400, ""}},
				{"no inputs", infer, `{}`, want{422, 400, ""}, want{500, 400, ""}},
				{"garbage behind it", infer, fp32(`}]}x`), want{422, 400, ""}, want{500, 400, ""}},
				{
					"half of a surrogate pair", infer, `{"inputs":[{"name":"BYTES","datatype":"BYTES","shape":[1,1],"data":["\ud800"]}]}`,
					want{422, 400, ""},
					want{500, 400, ""},
				},
				{
					"no UTF-8", infer, "{\"inputs\":[{\"name\":\"BYTES\",\"datatype\":\"BYTES\",\"shape\":[1,1],\"data\":[\"\xff\"]}]}",
					want{422, 400, ""},
					want{200, 400, ""},
				},
				{
					"a float for INT32", infer, `{"inputs":[{"name":"INT32","datatype":"INT32","shape":[1,1],"data":[1.0]}]}`,
					want{200, 400, ""},
					want{500, 400, ""},
				},
				{
					"INT8 out of range", infer, `{"inputs":[{"name":"INT8","datatype":"INT8","shape":[1,1],"data":[128]}]}`,
					want{500, 400, ""},
					want{200, 400, ""},
				},
				{
					"FP32 out of range", infer, `{"inputs":[{"name":"FP32","datatype":"FP32","shape":[1,1],"data":[1e39]}]}`,
					want{200, 400, ""},
					want{200, 400, ""},
				},
				{
					"null for a float", infer, `{"inputs":[{"name":"FP32","datatype":"FP32","shape":[1,1],"data":[null]}]}`,
					want{200, 400, ""},
					want{500, 400, ""},
				},
				{
					"NaN", infer, `{"inputs":[{"name":"FP32","datatype":"FP32","shape":[1,1],"data":[NaN]}]}`,
					want{422, 400, ""},
					want{200, 400, ""},
				},
				{
					"a string for a number", infer, `{"inputs":[{"name":"FP32","datatype":"FP32","shape":[1,1],"data":["1"]}]}`,
					want{200, 400, ""},
					want{500, 400, ""},
				},
				{
					"numbers for BOOL", infer, `{"inputs":[{"name":"BOOL","datatype":"BOOL","shape":[1,1],"data":[1]}]}`,
					want{200, 400, ""},
					want{500, 400, ""},
				},
				{
					"numbers for BYTES", infer, `{"inputs":[{"name":"BYTES","datatype":"BYTES","shape":[1,1],"data":[1]}]}`,
					want{200, 400, ""},
					want{500, 400, ""},
				},
				{
					"NaN and infinities in binary", infer, inBinary("FP32", "\x00\x00\xc0\x7f\x00\x00\x80\xff", "[1,2]"),
					want{422, 200, ""},
					same,
				},
				{
					"bytes that are not UTF-8", infer, inBinary("BYTES", "\x02\x00\x00\x00\xff\x00", "[1,1]"),
					want{422, 400, ""},
					want{200, 400, ""},
				},
				{
					"one in binary", infer,
					fp32(`},{"name":"BYTES","datatype":"BYTES","shape":[1,1],"parameters":{"binary_data_size":5}}],"outputs":[{"name":"BYTES"},{"name":"FP32","parameters":{"binary_data":true}}]}|`) +
						"\x01\x00\x00\x00a",
					want{422, 200, ""},
					same,
				},
				{
					"FP16 as JSON", infer, `{"inputs":[{"name":"FP16","datatype":"FP16","shape":[1,1],"data":[1]}]}`,
					want{200, 200, "id"},
					want{400, 200, ""},
				},
				{
					"BF16 as JSON", infer, `{"inputs":[{"name":"BF16","datatype":"BF16","shape":[1,1],"data":[1]}]}`,
					want{422, 500, ""},
					want{400, 200, ""},
				},
				{"ready", ready, "", want{200, 200, "name ready"}, want{200, 200, "name ready"}},
				{"ready, unknown", "GET /v2/models/nobody/ready", "", want{404, 500, ""}, want{400, 400, ""}},
				{"ready, unknown version", "GET /v2/models/echo/versions/9/ready", "", want{404, 500, ""}, want{400, 400, ""}},
				{"metadata", metadata, "", same, same},
				{"metadata, unknown", "GET /v2/models/nobody", "", want{404, 404, ""}, want{404, 404, ""}},
			} {
				want := map[string]want{"mlserver": c.mlserver, "triton": c.triton}[e.name]
				method, path, _ := strings.Cut(c.request, " ")
				text, tail, is := strings.Cut(c.body, "|")
				header := ""
				if is {
					header = strconv.Itoa(len(text))
				}
				status, headerLength, answer := e.native(t, method, path, header, []byte(text+tail))
				got := e.through(t, method, path, header, []byte(text+tail))
				if status != want.native || got.Status != want.ours {
					t.Errorf("%s: %d %s\nby REST %d %s\nwant %d and %d", c.name, got.Status, got.Body, status, answer, want.ours,
						want.native)
					continue
				}
				if got.Status != http.StatusOK {
					t.Logf("%s: %s\n\tby REST %d %.300s", c.name, got.Body, status, answer)
				}
				if status != http.StatusOK || got.Status != http.StatusOK {
					continue
				}
				if len(answer) == 0 { // both engines answer a readiness request without a body
					answer = []byte("{}")
				}
				if bad := strings.Join(differs(seen(t, got.HeaderLength, got.Body), seen(t, headerLength, answer)),
					" "); bad != want.differ {
					t.Errorf("%s: %q differ, want %q:\n%s\nby REST\n%s", c.name, bad, want.differ, got.Body, answer)
				}
			}
		})
	}
}

// The protobuf definitions of engines and clients equal Headgate's definitions, field by field. The
// test lists the known differences.
func TestRealMessagesAreOurs(t *testing.T) {
	for _, c := range []struct {
		name, installed, module string
		more, less, other       string // fields only in their messages, only in ours, and in both but different
	}{
		{"tritonclient", *triton, "tritonclient.grpc.service_pb2", "", "", ""},
		{
			"MLServer", *mlserver, "mlserver.grpc.dataplane_pb2",
			"inference.ModelMetadataResponse.ParametersEntry inference.ModelMetadataResponse.TensorMetadata.ParametersEntry " +
				"inference.ModelMetadataResponse.TensorMetadata.parameters inference.ModelMetadataResponse.parameters",
			"inference.InferParameter.double_param inference.InferParameter.uint64_param inference.ModelStreamInferResponse " +
				"inference.ModelStreamInferResponse.error_message inference.ModelStreamInferResponse.infer_response",
			"inference.GRPCInferenceService.ModelStreamInfer",
		},
	} {
		script := "import sys, " + c.module + " as m; sys.stdout.buffer.write(m.DESCRIPTOR.serialized_pb)"
		var words bytes.Buffer
		command := exec.CommandContext(t.Context(), filepath.Join(c.installed, "venv/bin/python"), "-c",
			script) //nolint:gosec // of this file
		command.Stderr = &words
		encoded, err := command.Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", c.name, err, &words)
		}
		theirs := new(descriptorpb.FileDescriptorProto)
		if err := proto.Unmarshal(encoded, theirs); err != nil {
			t.Fatal(err)
		}
		theirFields, ourFields := make(map[string]string), make(map[string]string)
		messages(protodesc.ToFileDescriptorProto(inference.File_inference_inference_proto), ourFields)
		messages(theirs, theirFields)
		var more, less, other []string
		both := 0
		for at, is := range ourFields {
			switch their, there := theirFields[at]; {
			case !there:
				less = append(less, at)
			case their != is:
				t.Logf("%s: %s is %s, and ours %s", c.name, at, their, is)
				other = append(other, at)
			default:
				both++
			}
		}
		for at := range theirFields {
			within := at[:strings.LastIndexByte(at, '.')]
			_, ours := ourFields[at]
			closed := kserve.Closed(strings.Replace(at, kserve.V2+".", kserve.V2+"/", 1))
			if !ours && ourFields[within] != "" && !closed {
				more = append(more, at)
			}
		}
		slices.Sort(more)
		slices.Sort(less)
		slices.Sort(other)
		t.Logf("%s: %d messages and fields are the same", c.name, both)
		if m, l, o := strings.Join(more, " "), strings.Join(less, " "), strings.Join(other, " "); m != c.more || l != c.less ||
			o != c.other {
			t.Errorf("%s: only theirs have %q, only ours %q, and %q differ", c.name, m, l, o)
		}
	}
}

// messages adds the messages, fields and methods of a file to all. The value of each describes the
// properties that must be equal.
func messages(file *descriptorpb.FileDescriptorProto, all map[string]string) {
	var add func(within string, m *descriptorpb.DescriptorProto)
	add = func(within string, m *descriptorpb.DescriptorProto) {
		at := within + "." + m.GetName()
		all[at] = "a message"
		for _, f := range m.GetField() {
			all[at+"."+f.GetName()] = fmt.Sprint(f.GetNumber(), f.GetType(), f.GetLabel(), f.GetTypeName(), f.OneofIndex != nil)
		}
		for _, inner := range m.GetNestedType() {
			add(at, inner)
		}
	}
	for _, m := range file.GetMessageType() {
		add(file.GetPackage(), m)
	}
	for _, s := range file.GetService() {
		at := file.GetPackage() + "." + s.GetName()
		all[at] = "a service"
		for _, m := range s.GetMethod() {
			all[at+"."+m.GetName()] = fmt.Sprint(m.GetInputType(), m.GetOutputType(), m.GetClientStreaming(), m.GetServerStreaming())
		}
	}
}
