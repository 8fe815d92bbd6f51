package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/headgate/simulated/runtime"
)

// calls returns a V2 gRPC client of the gateway.
func (s *stack) calls() inference.GRPCInferenceServiceClient {
	s.t.Helper()
	return inference.NewGRPCInferenceServiceClient(s.conn())
}

// conn returns a gRPC connection to the gateway, for any service.
func (s *stack) conn() *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+s.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// tensor returns a V2 request to a model, with one tensor of the given values.
func tensor(model string, values ...float32) *inference.ModelInferRequest {
	return &inference.ModelInferRequest{
		ModelName: model, Id: "one",
		Inputs: []*inference.ModelInferRequest_InferInputTensor{{
			Name: "x", Datatype: "FP32", Shape: []int64{int64(len(values))}, Contents: &inference.InferTensorContents{Fp32Contents: values},
		}},
	}
}

// answers returns what is wrong with a model's response to a request with these values, empty if
// nothing is.
func answers(a *inference.ModelInferResponse, err error, model string, values ...float32) string {
	if err != nil {
		return err.Error()
	}
	if a.GetModelName() != model || len(a.GetOutputs()) != 1 ||
		fmt.Sprint(a.GetOutputs()[0].GetContents().GetFp32Contents()) != fmt.Sprint(values) {
		return fmt.Sprintf("the answer is %v, want %v of %s", a, values, model)
	}
	return ""
}

// A call for a model that is not loaded is answered when the model has been loaded, whether the
// call's message, a header or the path names the model. VModels resolve to their models.
func TestModelsAreInferredByV2(t *testing.T) { onBothPlanes(t, modelsAreInferredByV2, raced) }

func modelsAreInferredByV2(t *testing.T) {
	s := start(t, runtimes(t, 2, map[string]string{
		"one": "sim:?load=100ms", "two": "sim:?load=100ms", "three": "sim:",
		"unloaded": "sim:?load=1h", "broken": "sim:?fail=INTERNAL:disk%20broken",
	}), func(c *rig.Config) { c.EngineFlags = nil })
	s.write("vmodels.yaml",
		"apiVersion: inference.x-k8s.io/v1alpha1\nkind: VModel\nmetadata: {name: latest}\nspec: {poolRef: {name: pool}, target: two}\n")
	s.await("latest is known", func() bool {
		return s.must(request{method: "GET", path: "/v2/models/latest/ready"}).status == http.StatusOK
	})
	calls := s.calls()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	infer := func(named string, headers ...string) (*inference.ModelInferResponse, error) {
		return calls.ModelInfer(metadata.AppendToOutgoingContext(ctx, headers...), tensor(named, 1, 2))
	}
	for _, c := range []struct {
		what, message string
		headers       []string
		model         string
	}{
		{"its message names it", "one", nil, "one"},
		{"a header names it", "", []string{"mm-model-id", "three"}, "three"},
		{"a header names it in bytes", "", []string{"mm-model-id-bin", "three"}, "three"},
		{"by an old name", "", []string{"tas-model-id", "three"}, "three"},
		{"the message counts before the header", "one", []string{"mm-model-id", "three"}, "one"},
		{"a VModel in the message", "latest", nil, "two"},
		{"a VModel in a header", "", []string{"mm-vmodel-id", "latest", "mm-balanced", "true"}, "two"},
	} {
		a, err := infer(c.message, c.headers...)
		if fault := answers(a, err, c.model, 1, 2); fault != "" {
			t.Errorf("%s: %s", c.what, fault)
		}
	}
	for _, c := range []struct {
		what, message string
		headers       []string
		code          codes.Code
		words         string
	}{
		{"no model", "", nil, codes.InvalidArgument, "must include mm-model-id header"},
		{"an unknown model", "nobody", nil, codes.NotFound, "model not found"},
		{"a VModel in the header of models", "", []string{"mm-model-id", "latest"}, codes.NotFound, "model not found"},
		{"a model in the header of VModels", "", []string{"mm-vmodel-id", "one"}, codes.NotFound, "vmodel not found"},
		{
			"a model and a VModel", "",
			[]string{"mm-vmodel-id", "latest", "mm-model-id", "one"},
			codes.InvalidArgument,
			"send only one of mm-model-id and mm-vmodel-id",
		},
		{
			"two models, all of which there are to be", "",
			[]string{"mm-model-id", "one", "mm-model-id", "nobody", "mm-required", "all"},
			codes.NotFound, "model not found",
		},
		{
			"two models that there are not", "",
			[]string{"mm-model-id", "nobody", "mm-model-id", "noone"},
			codes.NotFound,
			"none of the requested models were found",
		},
		{
			"two models of which one cannot be loaded", "",
			[]string{"mm-model-id", "one", "mm-model-id", "broken"},
			codes.Internal,
			"could not be loaded",
		},
		{"a name that is a path", "../one", nil, codes.InvalidArgument, "No model can have this id"},
		{"a load that fails", "broken", nil, codes.Internal, "could not be loaded"},
	} {
		_, err := infer(c.message, c.headers...)
		if is := status.Convert(err); is.Code() != c.code || !strings.Contains(is.Message(), c.words) ||
			strings.Contains(is.Message(), "disk") {
			t.Errorf("%s: %v, want %v: %s", c.what, err, c.code, c.words)
		}
	}
	for _, c := range []struct {
		what    string
		headers []string
		models  []string
	}{
		{"two", []string{"mm-model-id", "two", "mm-model-id", "one"}, []string{"two", "one"}},
		{
			"six, in bytes, one of them a second time",
			[]string{
				"mm-model-id-bin", "one", "mm-model-id-bin", "two", "mm-model-id-bin", "three", "mm-model-id-bin", "two",
				"mm-model-id-bin", "one", "mm-model-id-bin", "one",
			},
			[]string{"one", "two", "three", "two", "one", "one"},
		},
		{"two, one of which there is not", []string{"mm-model-id", "two", "mm-model-id", "nobody"}, []string{"two"}},
		{
			"two, a VModel among them",
			[]string{"mm-vmodel-id", "latest", "mm-vmodel-id", "latest", "mm-required", "all"},
			[]string{"two", "two"},
		},
	} {
		a, err := infer("", c.headers...)
		last := c.models[len(c.models)-1]
		if err != nil || len(a.GetOutputs()) != len(c.models) || a.GetModelName() != last { // the models run one after the other
			t.Errorf("%s: %v, %v", c.what, a, err)
		}
	}
	if a, err := calls.ModelMetadata(ctx, &inference.ModelMetadataRequest{Name: "latest"}); err != nil || a.GetName() != "two" {
		t.Errorf("metadata: %v, %v", a, err)
	}

	if a, err := calls.ServerLive(ctx, new(inference.ServerLiveRequest)); err != nil || !a.GetLive() {
		t.Errorf("live: %v, %v", a, err)
	}
	if a, err := calls.ServerReady(ctx, new(inference.ServerReadyRequest)); err != nil || !a.GetReady() {
		t.Errorf("ready: %v, %v", a, err)
	}
	if a, err := calls.ServerMetadata(ctx, new(inference.ServerMetadataRequest)); err != nil || a.GetName() != "headgate" ||
		a.GetVersion() == "" {
		t.Errorf("the server: %v, %v", a, err)
	}
	for model, want := range map[string]bool{"one": true, "latest": true, "unloaded": true, "broken": false, "nobody": false} {
		if a, err := calls.ModelReady(ctx, &inference.ModelReadyRequest{Name: model}); err != nil || a.GetReady() != want {
			t.Errorf("%s is ready: %v, %v; want %v", model, a, err, want)
		}
	}
	conn := s.conn()
	if a, err := healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{Service: "any"}); err != nil ||
		a.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", a, err)
	}
	// If the messages of a method name no model, headers route the call and extproc does not read
	// its messages. A Gateway's LLMRoutes route only V2 methods.
	if !s.gateway {
		echo, mine := new(wrapperspb.BytesValue), metadata.AppendToOutgoingContext(ctx, "mm-vmodel-id", "latest")
		if err := conn.Invoke(mine, "/"+runtime.EchoMethod, wrapperspb.Bytes([]byte("as it is")), echo); err != nil ||
			string(echo.GetValue()) != "as it is" {
			t.Errorf("of another service: %q, %v", echo.GetValue(), err)
		}
		if err := conn.Invoke(ctx, "/"+runtime.EchoMethod, wrapperspb.Bytes(nil), echo); status.Code(err) != codes.InvalidArgument {
			t.Errorf("without a model: %v", err)
		}
	}

	body := encoded(t, "gzip", `{"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}`)
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{body, 200, `{"model_name":"one","model_version":"1","outputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.0]}]}`},
		{body[:len(body)/2], 400, `{"error":"The body ends before its content encoding (gzip) does."}`},
	} {
		a := s.must(request{path: "/v2/models/one/infer", body: c.body, header: map[string]string{"Content-Encoding": "gzip"}})
		if a.status != c.status || !strings.Contains(a.body, c.want) {
			t.Errorf("in gzip: %d %s, want %d %s", a.status, a.body, c.status, c.want)
		}
	}

	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{
			"POST", "/v2/models/one/infer", `{"id":"7","inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]}`, 200,
			`{"model_name":"one","model_version":"1","id":"7","outputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1.0]}]}`,
		},
		{"POST", "/v2/models/latest/infer", `{"inputs":[]}`, 200, `"model_name":"two"`},
		{"POST", "/v2/models/one/infer", `{"inputs":[{"name":"x","datatype":"FP32","shape":[2],"data":[1]}]}`, 400, `{"error":`},
		{"POST", "/v2/models/one/generate", `{}`, 501, `{"error":"The server of this model serves gRPC`},
		{"GET", "/v2/models/latest", "", 200, `"name":"two"`},
		{"GET", "/v2/models/one/ready", "", 200, `{"name":"one","ready":true}`},
		{"GET", "/v2/health/live", "", 200, `{"live":true}`},
		{"GET", "/v2/health/ready", "", 200, `{"ready":true}`},
		{"GET", "/v2", "", 200, `"name":"headgate"`},
		{"POST", "/v2/models/nobody/infer", `{"inputs":[]}`, 404, `{"error":"The model 'nobody' does not exist`},
		{"GET", "/v2/models/nobody/ready", "", 404, `{"error":`},
		{"POST", "/v2/models/..%2Fone/infer", `{"inputs":[]}`, 400, `{"error":"No model can have this id: it is a path."}`},
		{"POST", "/v2/repository/index", `{}`, 404, `{"error":`},
	} {
		a := s.must(request{method: c.method, path: c.path, body: c.body})
		if a.status != c.status || !strings.Contains(a.body, c.want) {
			t.Errorf("%s %s: %d %s, want %d %s", c.method, c.path, a.status, a.body, c.status, c.want)
		}
	}
}

// A client's hundred metadata entries reach the engine, even through the relay. A client that sends
// more gets an error.
func TestCallsWithAHundredMetadataEntries(t *testing.T) {
	runs(t)
	for name, front := range map[string]setting{"standalone": standalone, "gateway": throughGateway} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, runtimes(t, 1, map[string]string{"one": "sim:"}), front, func(c *rig.Config) { c.EngineFlags = nil })
			to := s.calls()
			for _, n := range []int{0, 85, 100, 101, 150, 500} {
				ctx := t.Context()
				header := make(map[string]string)
				for i := range n {
					key := fmt.Sprintf("x-own-%d", i)
					ctx = metadata.AppendToOutgoingContext(ctx, key, "v")
					header[key] = "v"
				}
				_, err := to.ModelInfer(ctx, tensor("one", 1))
				a := s.must(request{path: "/v2/models/one/infer", body: `{"inputs":[]}`, header: header})
				switch {
				case n <= 100 && (err != nil || a.status != http.StatusOK):
					t.Errorf("%d entries: %v; by REST %d %s", n, err, a.status, a.body)
				case n >= 150 && (status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "at most 100 entries") ||
					a.status != http.StatusRequestHeaderFieldsTooLarge):
					t.Errorf("%d entries: %v; by REST %d %s", n, err, a.status, a.body)
				case err != nil && status.Code(err) != codes.ResourceExhausted:
					t.Errorf("%d entries: %v", n, err)
				}
				// Any client may send the relay's header. The header does not bypass the limit.
				if header[wire.RelayTokenHeader] = "made up"; n >= 150 {
					if a := s.must(request{
						path: "/v2/models/one/infer", body: `{"inputs":[]}`,
						header: header,
					}); a.status != http.StatusRequestHeaderFieldsTooLarge {
						t.Errorf("%d entries and one of the inner server: %d %s", n, a.status, a.body)
					}
				}
			}
		})
	}
}

// Streams pass in both directions, if all their messages are for the model that the first message
// names. A message for another model ends the call and never reaches the engine.
func TestStreamsOfV2(t *testing.T) { onBothPlanes(t, streamsOfV2) }

func streamsOfV2(t *testing.T) {
	s := start(t, runtimes(t, 1, map[string]string{"one": "sim:?load=50ms", "two": "sim:"}), func(c *rig.Config) { c.EngineFlags = nil })
	s.write("vmodels.yaml",
		"apiVersion: inference.x-k8s.io/v1alpha1\nkind: VModel\nmetadata: {name: latest}\nspec: {poolRef: {name: pool}, target: one}\n")
	s.await("latest is known", func() bool {
		return s.must(request{method: "GET", path: "/v2/models/latest/ready"}).status == http.StatusOK
	})
	calls := s.calls()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	stream, err := calls.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 { // each response is read before the next request is sent
		if err := stream.Send(tensor("latest", float32(i))); err != nil {
			t.Fatal(err)
		}
		a, err := stream.Recv()
		if fault := answers(a.GetInferResponse(), err, "one", float32(i)); fault != "" {
			t.Fatalf("message %d: %s", i, fault)
		}
	}
	if n := s.inFlight(); n != 1 {
		t.Errorf("%v calls are in flight, want 1", n)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
	stream, err = calls.ModelStreamInfer(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(tensor("one", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	for range 200 { // all messages after the one for another model are dropped
		if err := stream.Send(tensor("two", 2)); err != nil {
			break
		}
	}
	if _, err := stream.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a message for another model is answered with %v", err)
	}
	s.await("no call is in flight", func() bool { return s.inFlight() == 0 })

	// A request and a response of 16 MiB each pass.
	large := tensor("latest")
	large.RawInputContents = [][]byte{make([]byte, 16<<20-1000)}
	for i := range large.RawInputContents[0] {
		large.RawInputContents[0][i] = byte(i * i >> 3)
	}
	a, err := calls.ModelInfer(ctx, large)
	if err != nil {
		t.Fatal(err)
	}
	if string(a.GetRawOutputContents()[0]) != string(large.GetRawInputContents()[0]) {
		t.Error("16 MiB come back as others")
	}
}

// The grpcurl calls of docs/modelmesh.md work: with the model in a header, with the model in the
// message, and for a readiness check.
func TestGrpcurlIsAnswered(t *testing.T) {
	runs(t)
	const id = "模型/v1"
	s := start(t, runtimes(t, 1, nil), standalone, func(c *rig.Config) { c.EngineFlags = nil })
	ask := &mmesh.RegisterModelRequest{ModelId: id, ModelInfo: &mmesh.ModelInfo{Type: "sim", Path: "sim:"}, LoadNow: true, Sync: true}
	if is, err := s.mesh().RegisterModel(t.Context(), ask); err != nil || is.GetStatus() != mmesh.ModelStatusInfo_LOADED {
		t.Fatalf("%v, %v", is, err)
	}
	for _, c := range []struct{ header, method, message, answer string }{
		{
			"mm-model-id-bin: " + base64.StdEncoding.EncodeToString([]byte(id)), "ModelInfer", `{"inputs": [{"name": "x"}]}`,
			`"modelName": "` + id + `"`,
		},
		{"x-mine: 1", "ModelInfer", `{"model_name": "` + id + `", "inputs": [{"name": "x"}]}`, `"modelName": "` + id + `"`},
		{"x-mine: 1", "ModelReady", `{"name": "` + id + `"}`, `"ready": true`},
		{"x-mine: 1", "ModelInfer", `{"model_name": "unknown"}`, "Code: NotFound"},
	} {
		out, err := exec.CommandContext(t.Context(), "go", "tool", "-modfile="+root+"/tools/go.mod", "grpcurl", "-plaintext",
			"-import-path", root+"/api/inference", "-proto", "inference.proto", //nolint:gosec // of this test
			"-H", c.header, "-d", c.message, s.Listen, "inference.GRPCInferenceService/"+c.method).CombinedOutput()
		if failed := strings.HasPrefix(c.answer, "Code"); !strings.Contains(string(out), c.answer) || (err != nil) != failed {
			t.Errorf("%s %s is answered %s, %v", c.method, c.message, out, err)
		}
	}
}
