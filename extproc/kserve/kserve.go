package kserve

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/engine"
)

// The headers that name a model (ModelMesh's GrpcSupport), and what of them engines get.
const (
	ModelHeader       = "mm-model-id"
	ModelHeaderBin    = "mm-model-id-bin"
	VModelHeader      = "mm-vmodel-id"
	VModelHeaderBin   = "mm-vmodel-id-bin"
	LegacyModelHeader = "tas-model-id"
	BalancedHeader    = "mm-balanced"
	RequiredHeader    = "mm-required"
)

// Headers are all headers that are ModelMesh's: what a client sent of them goes no further.
var Headers = []string{ModelHeader, ModelHeaderBin, VModelHeader, VModelHeaderBin, LegacyModelHeader, BalancedHeader, RequiredHeader}

// IsHeader says whether a header, in lower case, is one of [Headers].
func IsHeader(name string) bool {
	return (strings.HasPrefix(name, "mm-") || strings.HasPrefix(name, "tas-")) && slices.Contains(Headers, name)
}

// Header is one header of a request.
type Header struct{ Name, Value string }

// Named is what headers say of the model. Of a call for several models IDs are all of them, in order.
type Named struct {
	IDs    []string
	VModel bool // they are those of VModels
}

// Read returns what headers say of the model: no IDs if nothing. Every error is an [*Error].
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
		return Named{}, fault(InvalidArgument, "The call names a model and a vmodel: send one of mm-model-id and mm-vmodel-id.")
	case len(vmodels) > 0:
		return Named{vmodels, true}, nil
	}
	return Named{models, false}, nil
}

// ids are those that headers of these names give. What is given in both forms, as an engine gets it, is one.
func ids(headers []Header, name, legacy, binary string) ([]string, error) {
	var plain, decoded []string
	for _, h := range headers {
		switch h.Name {
		case name, legacy:
			plain = append(plain, h.Value)
		case binary:
			for part := range strings.SplitSeq(h.Value, ",") { // several values may come as one: gRPC over HTTP2, custom metadata
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

// WantsAll says whether headers want every model of a call for several to be there: else one that there is not is left out.
func WantsAll(headers []Header) bool { return slices.Contains(headers, Header{RequiredHeader, "all"}) }

// CheckID returns an [*Error] for what is nobody's id.
func CheckID(id string) error {
	if err := engine.CheckName(id); err != nil {
		return fault(InvalidArgument, "No model can have this id: "+err.Error()+".")
	}
	return nil
}

// Written are the headers by which an engine gets the id of the model: in both forms, but for one that no header can hold as it is.
func Written(id string) []Header {
	all := []Header{{ModelHeaderBin, base64.RawStdEncoding.EncodeToString([]byte(id))}}
	for i := range len(id) {
		if id[i] < ' ' || id[i] > '~' {
			return all
		}
	}
	return append(all, Header{ModelHeader, id})
}

// IsCall says whether a request's content type is that of a gRPC call, by what Envoy's routes take for one: a request that is one to us and none
// to them would reach an engine where nobody has looked at it.
func IsCall(contentType string) bool {
	rest, ok := strings.CutPrefix(contentType, "application/grpc")
	return ok && (rest == "" || rest[0] == '+')
}

// MethodOf returns the method that a call's path names, "package.Service/Method"; false if it names none.
func MethodOf(path string) (method string, ok bool) {
	method, ok = strings.CutPrefix(path, "/")
	service, name, cut := strings.Cut(method, "/")
	return method, ok && cut && service != "" && name != "" && !strings.ContainsAny(method, "%?# ") && !strings.Contains(name, "/")
}

// closed are the services, and single methods, of engines that no call may reach, with what they do: what loads, unloads and lists models,
// shares memory, traces, logs, or tells of an engine. Engines' health is extproc's to tell.
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

	// Its message names several models.
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

// Manages says whether a method is of ModelMesh's API, which is control's.
func Manages(method string) bool { return strings.HasPrefix(method, "mmesh.ModelMesh/") }

// Closed says whether a method is one that no call may reach.
func Closed(method string) bool {
	service, _, _ := strings.Cut(method, "/")
	return closed[service] != "" || closed[method] != ""
}

// Rule is where the model stands in the messages of a method.
type Rule struct {
	// Path is where its id is; nil if it is in the headers.
	Path Path
	// VModel says that the id is that of a VModel if there is one of it, else of a model.
	VModel bool
}

// defaults are the rules where nobody wrote any (modelmesh-serving's dataplane_api_config).
var defaults = map[string]Rule{
	V2 + "/ModelInfer":                             {Path{1}, true},
	V2 + "/ModelMetadata":                          {Path{1}, true},
	V2 + "/ModelStreamInfer":                       {Path{1}, true},
	V2 + "/ModelReady":                             {Path{1}, true},
	"tensorflow.serving.PredictionService/Predict": {Path{1, 1}, true},
	// These name a model as Predict and Predictions do.
	"tensorflow.serving.PredictionService/Classify":                           {Path{1, 1}, true},
	"tensorflow.serving.PredictionService/Regress":                            {Path{1, 1}, true},
	"tensorflow.serving.PredictionService/GetModelMetadata":                   {Path{1, 1}, true},
	"tensorflow.serving.SessionService/SessionRun":                            {Path{1, 1}, true},
	"org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions":       {Path{1}, true},
	"org.pytorch.serve.grpc.inference.InferenceAPIsService/StreamPredictions": {Path{1}, true},
}

// RuleOf returns the rule of a method where nobody wrote any.
func RuleOf(method string) Rule { return defaults[method] }

// asking are the methods that ask about a model, whose answer takes no run of it.
var asking = map[string]bool{V2 + "/ModelMetadata": true, V2 + "/ModelReady": true, "tensorflow.serving.PredictionService/GetModelMetadata": true}

// Runs says whether calls of a method run their model, as far as is known of it.
func Runs(method string) bool { return !asking[method] }

// InV2 is where V2's own engines take the id of the model in the messages of a method; nil where they take it in none.
func InV2(method string) Path {
	if strings.HasPrefix(method, V2+"/") {
		return defaults[method].Path
	}
	return nil
}
