package layout

import (
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// Adapter is how ModelMesh manages engines of one kind by default: the defaults of its built-in
// adapter, with what its built-in runtimes set (kserve/modelmesh-serving, config/runtimes). Each
// field names the adapter's environment variable. ModelMesh has no adapter for TensorFlow Serving;
// its values are like those of OpenVINO Model Server.
type Adapter struct {
	// Folder is the folder of the engine's models below that of all models (ROOT_MODEL_DIR).
	Folder string
	// Management is the usual address at which the engine is managed (RUNTIME_PORT).
	Management string
	// GRPC reports whether the management API there is gRPC; otherwise it is HTTP.
	GRPC bool
	// Methods are the methods that the engine serves, and for each the field numbers that lead to
	// the model's name in a request (methodInfos).
	Methods map[string][]uint32
	// Loads is the number of concurrent loads (LOADING_CONCURRENCY).
	Loads int
	// LoadTimeout limits one load, with the transfer of its files (LOADTIME_TIMEOUT, in ms).
	LoadTimeout time.Duration
	// Buffer is the part of the container's memory that models cannot use, in bytes
	// (MEM_BUFFER_BYTES). The rest of its memory request (CONTAINER_MEM_REQ_BYTES) is the capacity.
	Buffer int64
	// SizeFactor is a model's size in memory in relation to that on disk (MODELSIZE_MULTIPLIER).
	SizeFactor float64
	// DefaultBytes is the size of a model that is not known yet (DEFAULT_MODELSIZE).
	DefaultBytes int64
}

// AdapterOf returns the Adapter for an engine kind, and reports whether there is one. The caller
// must not change its Methods.
func AdapterOf(kind engine.Kind) (Adapter, bool) {
	a, is := adapters[kind]
	if !is {
		return Adapter{}, false
	}
	a.LoadTimeout, a.Buffer, a.DefaultBytes = 90*time.Second, 128<<20, 1_000_000
	return a, true
}

// name1 and name11 lead to the model's name: field 1 of a request, or field 1 of a model_spec that
// is field 1 of a request.
var name1, name11 = []uint32{1}, []uint32{1, 1}

const (
	v2Infer    = "inference.GRPCInferenceService/ModelInfer"
	v2Metadata = "inference.GRPCInferenceService/ModelMetadata"
	tfPredict  = "tensorflow.serving.PredictionService/"
)

var adapters = map[engine.Kind]Adapter{
	engine.Triton: {
		Folder: "_triton_models", Management: "127.0.0.1:8001", GRPC: true, Loads: 2, SizeFactor: 1.25,
		Methods: map[string][]uint32{v2Infer: name1, v2Metadata: name1},
	},
	engine.MLServer: {
		Folder: "_mlserver_models", Management: "127.0.0.1:8001", GRPC: true, Loads: 1, SizeFactor: 1.25,
		Methods: map[string][]uint32{v2Infer: name1, v2Metadata: name1},
	},
	engine.OVMS: {
		Folder: "_ovms_models", Management: "127.0.0.1:8888", Loads: 1, SizeFactor: 1.25,
		Methods: map[string][]uint32{tfPredict + "Predict": name11, v2Infer: name1, v2Metadata: name1},
	},
	engine.TFServing: {
		Folder: "_tfserving_models", Management: "127.0.0.1:8500", GRPC: true, Loads: 1, SizeFactor: 1.25,
		Methods: map[string][]uint32{
			tfPredict + "Predict": name11, tfPredict + "Classify": name11, tfPredict + "Regress": name11,
			tfPredict + "GetModelMetadata": name11,
		},
	},
	engine.TorchServe: {
		Folder: "_torchserve_models", Management: "127.0.0.1:8081", Loads: 1, SizeFactor: 2.75,
		Methods: map[string][]uint32{
			"org.pytorch.serve.grpc.inference.InferenceAPIsService/Predictions": name1, v2Infer: name1, v2Metadata: name1,
		},
	},
}
