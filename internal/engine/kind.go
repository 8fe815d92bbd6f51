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

// Repository says whether engines of a kind have a V2 model repository (KServe's model repository extension): a folder of models that
// they are told to load by their names and to unload. What they hold are whole models, and they tell neither their sizes nor how much has room.
func (k Kind) Repository() bool { return k == Triton || k == MLServer }

// ParseKind reads the name of a kind, and says whether it is one. The empty name is the unknown Kind.
func ParseKind(name string) (Kind, bool) {
	if _, known := dialectOf(Kind(name)); known || name == "" {
		return Kind(name), true
	}
	return "", false
}
