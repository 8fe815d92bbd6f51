package engine

// Kind is the engine program, by its name in pod labels. The zero Kind is unknown: the engine is
// detected by what it serves.
type Kind string

// The known kinds. The first five are the values of [KindLabel] in llm-d's router.
const (
	VLLM         Kind = "vllm"
	SGLang       Kind = "sglang"
	TRTLLM       Kind = "trtllm-serve"        // TensorRT-LLM's own server
	TritonTRTLLM Kind = "triton-tensorrt-llm" // Triton with the TensorRT-LLM backend
	Triton       Kind = "triton"              // Triton with any backend but TensorRT-LLM
	TGI          Kind = "tgi"                 // Text Generation Inference
	LlamaCpp     Kind = "llama.cpp"           // llama-server
	LMDeploy     Kind = "lmdeploy"
	NIM          Kind = "nim"          // NVIDIA NIM for LLMs: vLLM with metric names without its prefix
	MLServer     Kind = "mlserver"     // Seldon's server for models of many frameworks
	TorchServe   Kind = "torchserve"   // PyTorch's model server
	TFServing    Kind = "tfserving"    // TensorFlow Serving
	ModelRuntime Kind = "modelruntime" // any server with ModelMesh's runtime interface, with any request protocol
)

// OVMS is OpenVINO Model Server. It is no kind of an endpoint: the program agent manages it, and
// presents it to control as a [ModelRuntime].
const OVMS Kind = "ovms"

// Pod labels with the engine's kind.
const (
	KindLabel       = "llm-d.ai/engine-type"
	LegacyKindLabel = "inference.networking.k8s.io/engine-type"
)

// Kinds returns every kind, in the order of detection.
func Kinds() []Kind {
	kinds := make([]Kind, len(dialects))
	for i := range dialects {
		kinds[i] = dialects[i].kind
	}
	return kinds
}

// Repository reports whether engines of a kind load and unload whole models one by one from files
// that they can read. They report neither model sizes nor their capacity.
func (k Kind) Repository() bool { return k.V2Repository() || k == TorchServe || k == TFServing }

// V2Repository reports whether engines of a kind have KServe's V2 model repository: a folder of
// models that are loaded by name.
func (k Kind) V2Repository() bool { return k == Triton || k == MLServer }

// Managed reports whether engines of a kind may have a separate management address.
func (k Kind) Managed() bool { return k == ModelRuntime || k == TorchServe || k.Adapters() }

// Adapters reports whether engines of a kind load LoRA adapters by an HTTP API. Their management
// address, if any, is that of an agent, which fetches adapters and passes the engine's own calls.
func (k Kind) Adapters() bool { return k == VLLM || k == SGLang }

// Recalled reports whether each change to an engine of a kind must state its complete set of
// models, while the engine lists none of them. What it has is known only from control's records.
func (k Kind) Recalled() bool { return k == TFServing }

// ParseKind parses a kind's name and reports whether it is known. The empty name is the unknown
// Kind.
func ParseKind(name string) (Kind, bool) {
	if _, known := dialectOf(Kind(name)); known || name == "" {
		return Kind(name), true
	}
	return "", false
}
