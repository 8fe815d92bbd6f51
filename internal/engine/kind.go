package engine

// Kind is what program an engine is, by the name that the pods' label of this field uses. The zero Kind is unknown: the
// engine is told apart by what it serves.
type Kind string

// The kinds that are known. The first five are values of [KindLabel] as llm-d's router has them.
const (
	VLLM         Kind = "vllm"
	SGLang       Kind = "sglang"
	TRTLLM       Kind = "trtllm-serve"        // TensorRT-LLM's own server
	TritonTRTLLM Kind = "triton-tensorrt-llm" // Triton with the TensorRT-LLM backend
	Triton       Kind = "triton"              // with any other backend
	TGI          Kind = "tgi"                 // Text Generation Inference
	LlamaCpp     Kind = "llama.cpp"           // llama-server
	LMDeploy     Kind = "lmdeploy"
	NIM          Kind = "nim"          // NVIDIA NIM for LLMs: vLLM under names without its prefix
	MLServer     Kind = "mlserver"     // Seldon's server of models of many frameworks
	TorchServe   Kind = "torchserve"   // PyTorch's server of models
	TFServing    Kind = "tfserving"    // TensorFlow Serving
	ModelRuntime Kind = "modelruntime" // what serves ModelMesh's interface for runtimes, and any protocol for requests
)

// Labels of a pod that name its engine's kind.
const (
	KindLabel       = "llm-d.ai/engine-type"
	LegacyKindLabel = "inference.networking.k8s.io/engine-type"
)

// Kinds returns every kind, in the order in which engines are told apart.
func Kinds() []Kind {
	kinds := make([]Kind, len(dialects))
	for i := range dialects {
		kinds[i] = dialects[i].kind
	}
	return kinds
}

// Repository says whether engines of a kind hold whole models that they are told to load one by one from files they can read, and to unload. They tell
// neither the sizes of these nor how much has room.
func (k Kind) Repository() bool { return k.V2Repository() || k == TorchServe || k == TFServing }

// V2Repository says whether engines of a kind have a V2 model repository (KServe's model repository extension): a folder of models that they are told to
// load by their names.
func (k Kind) V2Repository() bool { return k == Triton || k == MLServer }

// Managed says whether engines of a kind are told what to load at an address of its own.
func (k Kind) Managed() bool { return k == ModelRuntime || k == TorchServe }

// Recalled says whether engines of a kind have to be told, with each change, all that they are to have, and list none of it: what one of them has is
// known by what was written down.
func (k Kind) Recalled() bool { return k == TFServing }

// ParseKind reads the name of a kind, and says whether it is one. The empty name is the unknown Kind.
func ParseKind(name string) (Kind, bool) {
	if _, known := dialectOf(Kind(name)); known || name == "" {
		return Kind(name), true
	}
	return "", false
}
