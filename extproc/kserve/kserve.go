package kserve

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/engine"
)

// Headers that name a model (ModelMesh's GrpcSupport).
const (
	ModelHeader       = "mm-model-id"
	ModelHeaderBin    = "mm-model-id-bin"
	VModelHeader      = "mm-vmodel-id"
	VModelHeaderBin   = "mm-vmodel-id-bin"
	LegacyModelHeader = "tas-model-id"
	BalancedHeader    = "mm-balanced"
	RequiredHeader    = "mm-required"
)

// Headers are ModelMesh's headers. extproc does not forward the values that a client sends.
var Headers = []string{ModelHeader, ModelHeaderBin, VModelHeader, VModelHeaderBin, LegacyModelHeader, BalancedHeader, RequiredHeader}

// IsHeader reports whether a header, in lower case, is one of [Headers].
func IsHeader(name string) bool {
	return (strings.HasPrefix(name, "mm-") || strings.HasPrefix(name, "tas-")) && slices.Contains(Headers, name)
}

// Header is one header of a request.
type Header struct{ Name, Value string }

// Named contains the models that the headers of a call name: several IDs, in order, if the call is
// for several models.
type Named struct {
	IDs    []string
	VModel bool // whether the IDs are names of VModels
}

// Read returns the models that headers name; there may be none. Every error is an [*Error].
func Read(headers []Header) (Named, error) {
	models, err := ids(headers, ModelHeader, LegacyModelHeader, ModelHeaderBin)
	if err != nil {
		return Named{}, err
	}
	vmodels, err := ids(headers, VModelHeader, VModelHeader, VModelHeaderBin)
	switch {
	case err != nil:
		return Named{}, err
	case len(models) > 0 && len(vmodels) > 0:
		return Named{}, fault(InvalidArgument, "The call names a model and a vmodel: send only one of mm-model-id and mm-vmodel-id.")
	case len(vmodels) > 0:
		return Named{vmodels, true}, nil
	}
	return Named{models, false}, nil
}

// ids returns the ids in headers. An id that is sent in both forms, plain and binary, is returned
// once.
func ids(headers []Header, name, legacy, binary string) ([]string, error) {
	var plain, decoded []string
	for _, h := range headers {
		switch h.Name {
		case name, legacy:
			plain = append(plain, h.Value)
		case binary:
			for part := range strings.SplitSeq(h.Value, ",") { // several values may be joined by commas: gRPC over HTTP2, custom metadata
				id, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(part), "="))
				if err != nil {
					return nil, fault(InvalidArgument, "The header "+binary+" is not base64.")
				}
				decoded = append(decoded, string(id))
			}
		}
	}
	if !slices.Equal(plain, decoded) {
		plain = append(plain, decoded...)
	}
	for _, id := range plain {
		if err := CheckID(id); err != nil {
			return nil, err
		}
	}
	return plain, nil
}

// WantsAll reports whether the headers of a call for several models require each to exist.
// Otherwise unknown models are skipped.
func WantsAll(headers []Header) bool { return slices.Contains(headers, Header{RequiredHeader, "all"}) }

// CheckID returns an [*Error] if no model can have the id.
func CheckID(id string) error {
	if err := engine.CheckName(id); err != nil {
		return fault(InvalidArgument, "No model can have this id: "+err.Error()+".")
	}
	return nil
}

// Written returns the headers that give the engine the id of the model: in both forms, or only in
// the binary form if a plain header cannot contain the id.
func Written(id string) []Header {
	all := []Header{{ModelHeaderBin, base64.RawStdEncoding.EncodeToString([]byte(id))}}
	for i := range len(id) {
		if id[i] < ' ' || id[i] > '~' {
			return all
		}
	}
	return append(all, Header{ModelHeader, id})
}

// IsCall reports whether a content type is that of a gRPC call. The result must agree with Envoy's
// routes: a request that only Headgate treats as a call would reach an engine unchecked.
func IsCall(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+')
}

// MethodOf returns the method in a call's path, as "package.Service/Method"; false if there is
// none.
func MethodOf(path string) (method string, ok bool) {
	method, ok = strings.CutPrefix(path, "/")
	service, name, cut := strings.Cut(method, "/")
	return method, ok && cut && service != "" && name != "" && !strings.ContainsAny(method, "%?# ") && !strings.Contains(name, "/")
}

// closed are services and single methods of engines that no call may reach. They load, unload and
// list models, share memory, configure tracing and logging, or describe the engine. extproc answers
// health checks itself.
var closed = map[string]string{
	"mmesh.ModelRuntime": "loads and unloads models",
	"mmesh.ModelMesh":    "is control's",
	"com.ibm.watson.tas.internal.proto.ModelServer":           "loads and unloads models",
	"com.ibm.watson.tas.proto.TasRuntime":                     "is control's",
	"grpc.reflection.v1.ServerReflection":                     "tells of the engine",
	"grpc.reflection.v1alpha.ServerReflection":                "tells of the engine",
	"grpc.channelz.v1.Channelz":                               "tells of the engine's connections",
	"grpc.health.v1.Health":                                   "is answered by extproc",
	"inference.model_repository.ModelRepositoryService":       "loads, unloads and lists models (MLServer)",
	"tensorflow.serving.ModelService":                         "reloads and lists models (TensorFlow Serving)",
	"org.pytorch.serve.grpc.management.ManagementAPIsService": "loads and unloads models (TorchServe)",

	// One message names several models.
	"tensorflow.serving.PredictionService/MultiInference": "is for several models",

	V2 + "/RepositoryIndex":              "lists models",
	V2 + "/RepositoryModelLoad":          "loads models",
	V2 + "/RepositoryModelUnload":        "unloads models",
	V2 + "/SystemSharedMemoryStatus":     "tells of memory",
	V2 + "/SystemSharedMemoryRegister":   "gives memory to read and write",
	V2 + "/SystemSharedMemoryUnregister": "takes memory",
	V2 + "/CudaSharedMemoryStatus":       "tells of memory",
	V2 + "/CudaSharedMemoryRegister":     "gives memory to read and write",
	V2 + "/CudaSharedMemoryUnregister":   "takes memory",
	V2 + "/TpuSharedMemoryStatus":        "tells of memory",
	V2 + "/TpuSharedMemoryRegister":      "gives memory to read and write",
	V2 + "/TpuSharedMemoryUnregister":    "takes memory",
	V2 + "/TraceSetting":                 "traces",
	V2 + "/LogSettings":                  "changes the log",
	V2 + "/ModelStatistics":              "tells the load",
	V2 + "/ModelConfig":                  "tells the configuration",
}

// V2 is KServe's inference service.
const V2 = "inference.GRPCInferenceService"

// Manages reports whether a method belongs to ModelMesh's API, which control serves.
func Manages(method string) bool { return strings.HasPrefix(method, "mmesh.ModelMesh/") }

// Closed reports whether no call may reach a method.
func Closed(method string) bool {
	service, _, _ := strings.Cut(method, "/")
	return closed[service] != "" || closed[method] != ""
}

// Rule states where the messages of a method name the model.
type Rule struct {
	// Path leads to the id of the model; nil means that the headers name the model.
	Path Path
	// VModel means that the id may be that of a VModel, which takes precedence over a model.
	VModel bool
}

// defaults are the rules for methods that are not configured (modelmesh-serving's
// dataplane_api_config).
var defaults = map[string]Rule{
	V2 + "/ModelInfer":                             {Path{1}, true},
	V2 + "/ModelMetadata":                          {Path{1}, true},
	V2 + "/ModelStreamInfer":                       {Path{1}, true},
	V2 + "/ModelReady":                             {Path{1}, true},
	"tensorflow.serving.PredictionService/Predict": {Path{1, 1}, true},
	// These messages name a model in the same field as those of Predict and Predictions.
	"tensorflow.serving.PredictionService/Classify":                           {Path{1, 1}, true},
	"tensorflow.serving.PredictionService/Regress":                            {Path{1, 1}, true},
	"tensorflow.serving.PredictionService/GetModelMetadata":                   {Path{1, 1}, true},
	"tensorflow.serving.SessionService/SessionRun":                            {Path{1, 1}, true},
	"org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions":       {Path{1}, true},
	"org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions": {Path{1}, true},
}

// RuleOf returns the rule of a method without configuration.
func RuleOf(method string) Rule { return defaults[method] }

// asking are methods that ask about a model without running an inference.
var asking = map[string]bool{
	V2 + "/ModelMetadata": true, V2 + "/ModelReady": true,
	"tensorflow.serving.PredictionService/GetModelMetadata": true,
}

// Runs reports whether calls of a method run an inference. Unknown methods do.
func Runs(method string) bool { return !asking[method] }

// InV2 returns where V2 engines expect the id of the model in the messages of a method; nil if
// these messages contain no id.
func InV2(method string) Path {
	if strings.HasPrefix(method, V2+"/") {
		return defaults[method].Path
	}
	return nil
}
