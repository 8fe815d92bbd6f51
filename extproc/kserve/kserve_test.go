package kserve_test

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/extproc/kserve"
)

// Headers are read as ModelMesh reads them. Contradictory, empty or invalid ids are rejected.
func TestHeadersNameAModel(t *testing.T) {
	bin := func(id string) string { return base64.StdEncoding.EncodeToString([]byte(id)) }
	for _, c := range []struct {
		what    string
		headers []string // alternating names and values
		ids     []string
		vmodel  bool
		fault   string
	}{
		{"none", nil, nil, false, ""},
		{"others", []string{"mm-balanced", "true", "content-type", "x"}, nil, false, ""},
		{"a model", []string{"mm-model-id", "a"}, []string{"a"}, false, ""},
		{"by the old name", []string{"tas-model-id", "a"}, []string{"a"}, false, ""},
		{"in bytes, padded", []string{"mm-model-id-bin", bin("é")}, []string{"é"}, false, ""},
		{"in bytes, not padded", []string{"mm-model-id-bin", strings.TrimRight(bin("abcd"), "=")}, []string{"abcd"}, false, ""},
		{"in both forms", []string{"mm-model-id", "a", "mm-model-id-bin", bin("a")}, []string{"a"}, false, ""},
		{
			"two in both forms",
			[]string{"mm-model-id-bin", bin("a") + "," + bin("b"), "mm-model-id", "a", "mm-model-id", "b"},
			[]string{"a", "b"},
			false, "",
		},
		{"another one in each form", []string{"mm-model-id", "a", "mm-model-id-bin", bin("b")}, []string{"a", "b"}, false, ""},
		{"two", []string{"mm-model-id", "a", "mm-model-id", "b"}, []string{"a", "b"}, false, ""},
		{"the same twice", []string{"mm-model-id", "a", "mm-model-id", "a"}, []string{"a", "a"}, false, ""},
		{
			"two in bytes, with commas",
			[]string{"mm-model-id-bin", bin("a") + ", " + bin("b"), "mm-model-id-bin", bin("c")},
			[]string{"a", "b", "c"},
			false, "",
		},
		{"a vmodel", []string{"mm-vmodel-id", "v"}, []string{"v"}, true, ""},
		{"a vmodel in bytes", []string{"mm-vmodel-id-bin", bin("v")}, []string{"v"}, true, ""},
		{"both", []string{"mm-vmodel-id", "v", "tas-model-id", "a"}, nil, false, "a model and a vmodel"},
		{"empty", []string{"mm-model-id", ""}, nil, false, "it is empty"},
		{"empty in bytes", []string{"mm-vmodel-id-bin", ""}, nil, false, "it is empty"},
		{"no base64", []string{"mm-model-id-bin", "%"}, nil, false, "mm-model-id-bin is not base64"},
		{"no UTF-8", []string{"mm-model-id-bin", bin("\xff")}, nil, false, "it is not valid UTF-8"},
		{"a path", []string{"mm-vmodel-id", "../a"}, nil, false, "it is a path"},
		{"too long", []string{"mm-model-id", strings.Repeat("a", 513)}, nil, false, "it is too long"},
		{"the second is at fault", []string{"mm-model-id", "a", "mm-model-id", ""}, nil, false, "it is empty"},
	} {
		var headers []kserve.Header
		for i := 0; i < len(c.headers); i += 2 {
			headers = append(headers, kserve.Header{Name: c.headers[i], Value: c.headers[i+1]})
		}
		got, err := kserve.Read(headers)
		var fault *kserve.Error
		switch {
		case c.fault != "":
			if !errors.As(err, &fault) || fault.Code != kserve.InvalidArgument || !strings.Contains(fault.Reason, c.fault) {
				t.Errorf("%s: %v, want INVALID_ARGUMENT %q", c.what, err, c.fault)
			}
		case err != nil || !slices.Equal(got.IDs, c.ids) || got.VModel != c.vmodel:
			t.Errorf("%s: %+v, %v; want %q, vmodel %v", c.what, got, err, c.ids, c.vmodel)
		}
	}
}

// An id that was written as headers is read back unchanged, from each form that can express it.
func TestWrittenIDReadsAsItself(t *testing.T) {
	for id, forms := range map[string]int{"a": 2, "a b~": 2, "é": 1, "名": 1, "a\u007f": 1} {
		written := kserve.Written(id)
		if len(written) != forms {
			t.Errorf("%q is written as %q, want %d forms", id, written, forms)
		}
		for _, h := range written {
			if !kserve.IsHeader(h.Name) {
				t.Errorf("%s is not one of ModelMesh's headers", h.Name)
			}
		}
		if id == "a\u007f" {
			continue // such a name cannot be registered
		}
		if got, err := kserve.Read(written); err != nil || !slices.Equal(got.IDs, []string{id}) || got.VModel {
			t.Errorf("%q is read as %+v, %v", id, got, err)
		}
	}
}

func TestHeadersOfModelMesh(t *testing.T) {
	for _, name := range kserve.Headers {
		if !kserve.IsHeader(name) {
			t.Errorf("%s is one", name)
		}
	}
	for _, name := range []string{"", "mm-", "mm-model", "mm-model-id-", "x-mm-model-id", "tas-", "content-type"} {
		if kserve.IsHeader(name) {
			t.Errorf("%q is not a call", name)
		}
	}
}

func TestCalls(t *testing.T) {
	for contentType, want := range map[string]bool{
		"application/grpc": true, "application/grpc+proto": true, "application/grpc;charset=x": false,
		"application/grpc-web": false, "application/grpcx": false, "application/json": false, "": false,
	} {
		if got := kserve.IsCall(contentType); got != want {
			t.Errorf("%q: %v", contentType, got)
		}
	}
	for path, want := range map[string]string{
		"/a.S/M": "a.S/M", "/S/M": "S/M", "/inference.GRPCInferenceService/ModelInfer": "inference.GRPCInferenceService/ModelInfer",
		"": "", "/": "", "a.S/M": "", "/a.S": "", "/a.S/": "", "//M": "", "/a.S/M/": "", "/a.S/M/x": "", "/a.S/M?x": "", "/a%2eS/M": "",
		"/a S/M": "", "/a.S/M#x": "",
	} {
		if got, ok := kserve.MethodOf(path); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %v, want %q", path, got, ok, want)
		}
	}
}

// Through each of these methods a client could control an engine, which only control may do, or
// could learn what no client may know.
func TestMethodsThatNoCallReaches(t *testing.T) {
	for _, method := range []string{
		"mmesh.ModelRuntime/loadModel", "mmesh.ModelRuntime/unloadModel", "mmesh.ModelRuntime/predictModelSize",
		"mmesh.ModelRuntime/modelSize",
		"mmesh.ModelRuntime/runtimeStatus", "mmesh.ModelMesh/registerModel", "com.ibm.watson.tas.internal.proto.ModelServer/loadModel",
		"com.ibm.watson.tas.proto.TasRuntime/addModel",
		"grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
		"grpc.channelz.v1.Channelz/GetServers", "grpc.health.v1.Health/Check",
		"inference.GRPCInferenceService/RepositoryIndex", "inference.GRPCInferenceService/RepositoryModelLoad",
		"inference.GRPCInferenceService/RepositoryModelUnload",
		"inference.model_repository.ModelRepositoryService/RepositoryIndex",
		"inference.model_repository.ModelRepositoryService/RepositoryModelLoad",
		"inference.GRPCInferenceService/SystemSharedMemoryStatus", "inference.GRPCInferenceService/SystemSharedMemoryRegister",
		"inference.GRPCInferenceService/SystemSharedMemoryUnregister",
		"inference.GRPCInferenceService/CudaSharedMemoryStatus", "inference.GRPCInferenceService/CudaSharedMemoryRegister",
		"inference.GRPCInferenceService/CudaSharedMemoryUnregister",
		"inference.GRPCInferenceService/TpuSharedMemoryStatus", "inference.GRPCInferenceService/TpuSharedMemoryRegister",
		"inference.GRPCInferenceService/TpuSharedMemoryUnregister",
		"inference.GRPCInferenceService/TraceSetting", "inference.GRPCInferenceService/LogSettings",
		"inference.GRPCInferenceService/ModelStatistics", "inference.GRPCInferenceService/ModelConfig",
		"tensorflow.serving.ModelService/HandleReloadConfigRequest",
		"org.pytorch.serve.grpc.management.ManagementAPIsService/RegisterModel",
	} {
		if !kserve.Closed(method) {
			t.Errorf("%s is allowed", method)
		}
	}
	for _, method := range []string{
		"inference.GRPCInferenceService/ModelInfer", "inference.GRPCInferenceService/ModelStreamInfer",
		"inference.GRPCInferenceService/ModelMetadata",
		"tensorflow.serving.PredictionService/Predict", "org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions",
		"any.Service/Method",
	} {
		if kserve.Closed(method) {
			t.Errorf("%s is rejected", method)
		}
	}
}

// By default the id of the model is where modelmesh-serving expects it, and it may be a VModel's.
func TestDefaultRules(t *testing.T) {
	for method, want := range map[string]kserve.Path{
		"inference.GRPCInferenceService/ModelInfer": {1}, "inference.GRPCInferenceService/ModelMetadata": {1},
		"inference.GRPCInferenceService/ModelStreamInfer": {1},
		"inference.GRPCInferenceService/ModelReady":       {1}, "tensorflow.serving.PredictionService/Predict": {1, 1},
		"org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions": {1}, "any.Service/Method": nil,
	} {
		r := kserve.RuleOf(method)
		if !slices.Equal(r.Path, want) || r.VModel != (want != nil) {
			t.Errorf("%s: %+v, want %v", method, r, want)
		}
		if want != nil {
			if err := kserve.CheckPath(r.Path); err != nil {
				t.Errorf("%s: %v", method, err)
			}
		}
		inV2 := want
		if !strings.HasPrefix(method, "inference.GRPCInferenceService/") {
			inV2 = nil
		}
		if got := kserve.InV2(method); !slices.Equal(got, inV2) {
			t.Errorf("V2 engines expect it at %v of %s, want %v", got, method, inV2)
		}
	}
}

// Each gRPC code maps to the HTTP status that google/rpc/code.proto states.
func TestCodesAreStatuses(t *testing.T) {
	want := []int{200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401, 500, 500}
	for code, want := range want {
		if got := kserve.Code(code).HTTP(); got != want { //nolint:gosec // it is small
			t.Errorf("%d is %d, want %d", code, got, want)
		}
	}
}

// Find returns the operation and the unescaped model of a path. Rename changes only the model in
// it.
func TestPathsOfV2(t *testing.T) {
	for _, c := range []struct {
		method, path string
		op           kserve.Operation
		model        string
		renamed      string // the path with the model "b/ü"
	}{
		{"POST", "/v2/models/a/infer", kserve.Infer, "a", "/v2/models/b%2F%C3%BC/infer"},
		{"POST", "/v2/models/a/versions/1/infer?x=/infer", kserve.Infer, "a", "/v2/models/b%2F%C3%BC/versions/1/infer?x=/infer"},
		{"POST", "/v2/models/a%2fb/infer", kserve.Infer, "a/b", "/v2/models/b%2F%C3%BC/infer"},
		{"POST", "/v2/models/a%252fb/infer", kserve.Infer, "a%2fb", "/v2/models/b%2F%C3%BC/infer"},
		{"POST", "/v2/models/a+b/infer", kserve.Infer, "a+b", "/v2/models/b%2F%C3%BC/infer"},
		{"POST", "/v2/models/a/infer_stream", kserve.InferStream, "a", "/v2/models/b%2F%C3%BC/infer_stream"},
		{"POST", "/v2/models/a/generate", kserve.Generate, "a", "/v2/models/b%2F%C3%BC/generate"},
		{"POST", "/v2/models/a/generate_stream", kserve.InferStream, "a", "/v2/models/b%2F%C3%BC/generate_stream"},
		{"GET", "/v2/models/a", kserve.ModelMetadata, "a", "/v2/models/b%2F%C3%BC"},
		{"HEAD", "/v2/models/a/versions/7", kserve.ModelMetadata, "a", "/v2/models/b%2F%C3%BC/versions/7"},
		{"GET", "/v2/models/a/ready", kserve.ModelReady, "a", "/v2/models/b%2F%C3%BC/ready"},
		{"GET", "/v2/models/ready", kserve.ModelMetadata, "ready", "/v2/models/b%2F%C3%BC"},
		{"GET", "/v2", kserve.Server, "", ""},
		{"GET", "/v2/", kserve.Server, "", ""},
		{"GET", "/v2/health/live?x", kserve.Live, "", ""},
		{"GET", "/v2/health/ready", kserve.Ready, "", ""},
		{"POST", "/v2/health/ready", kserve.None, "", ""},
		{"POST", "/v2/models/a", kserve.None, "", ""},
		{"GET", "/v2/models/a/infer", kserve.None, "", ""},
		{"POST", "/v2/models/a/load", kserve.None, "", ""},
		{"POST", "/v2/models/a/infer/", kserve.None, "", ""},
		{"POST", "/v2/models/a//infer", kserve.None, "", ""},
		{"POST", "/v2/models/a/versions//infer", kserve.None, "", ""},
		{"POST", "/v2/models/a/versions/..%2f..%2fb/infer", kserve.None, "", ""},
		{"POST", "/v2/models/a/versions/../infer", kserve.None, "", ""},
		{"POST", "/v2/models/a/versions/v1.2_3-x/infer", kserve.Infer, "a", "/v2/models/b%2F%C3%BC/versions/v1.2_3-x/infer"},
		{"POST", "/v2/models/a/versions/1/versions/2/infer", kserve.None, "", ""},
		{"POST", "/v2/models/a%2/infer", kserve.None, "", ""},
		{"POST", "/V2/models/a/infer", kserve.None, "", ""},
		{"GET", "/v2/models", kserve.None, "", ""},
		{"GET", "/v2/repository/index", kserve.None, "", ""},
		{"PUT", "/v2/models/a/infer", kserve.None, "", ""},
	} {
		r := kserve.Find(c.method, c.path)
		if r.Op != c.op || r.Model != c.model {
			t.Errorf("%s %s: %v of %q, want %v of %q", c.method, c.path, r.Op, r.Model, c.op, c.model)
			continue
		}
		if c.renamed == "" {
			continue
		}
		if got := r.Rename("b/ü"); got != c.renamed {
			t.Errorf("%s renamed is %s, want %s", c.path, got, c.renamed)
		}
		if again := kserve.Find(c.method, r.Rename("b/ü")); again.Op != c.op || again.Model != "b/ü" {
			t.Errorf("%s renamed: %v of %q", c.path, again.Op, again.Model)
		}
		if r.BeforeModel()+r.FromModel() != c.path {
			t.Errorf("%s is %q and %q", c.path, r.BeforeModel(), r.FromModel())
		}
	}
	for path, want := range map[string]string{
		"/v2/models/a/infer": "", "/v2/models/a/versions/1/infer?x=/versions/2": "1", "/v2/models/a/versions/v1.2_3-x/infer": "v1.2_3-x",
		"/v2/models/versions/infer": "",
	} {
		if got := kserve.Find("POST", path).Version; got != want {
			t.Errorf("%s has the version %q, want %q", path, got, want)
		}
	}
	for path, want := range map[string]bool{
		"/v2": true, "/v2/x": true, "/v2?x": true, "/v2/rerank": false, "/v2/rerank?x": false,
		"/v2x": false, "/v1/models": false,
	} {
		if got := kserve.IsREST(path); got != want {
			t.Errorf("%s: %v", path, got)
		}
	}
}
