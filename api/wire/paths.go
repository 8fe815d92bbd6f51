package wire

// InferencePaths are the paths of requests that may reach an engine, all of them by POST.
// Everything else an engine serves is left out on purpose: its adapter and admin paths, and what
// names no model. The paths are those of vLLM 0.32.0, which leaves the ones outside /v1 and /v2
// open without its API key: extproc picks for them by their model, as for the others.
var InferencePaths = []string{
	"/v1/chat/completions",
	"/v1/completions",
	"/v1/embeddings",
	"/v1/responses",
	"/v1/messages",
	"/v1/messages/count_tokens",
	"/v1/rerank",
	"/v2/rerank",
	"/rerank",
	"/v1/score",
	"/score",
	"/pooling",
	"/classify",
	"/tokenize",
	"/detokenize",
	"/v1/audio/speech",
	"/v1/audio/transcriptions",
	"/v1/audio/translations",
}

// V2ModelsPath and the following paths are those of KServe's V2 REST protocol: the prefix of all
// paths that name a model, and the paths that extproc answers itself.
const V2ModelsPath = "/v2/models"

// CallsPaths are the paths below which gRPC calls are that LLMRoutes take: KServe's V2, and gRPC's
// health, which extproc answers.
var CallsPaths = []string{"/inference.GRPCInferenceService", "/grpc.health.v1.Health"}

// V2Paths are what extproc answers about itself.
var V2Paths = []string{"/v2", "/v2/health/live", "/v2/health/ready"}

// Paths that extproc answers itself, or by the id of an answer that an engine keeps.
const (
	ModelsPath    = "/v1/models"    // the list, and below it each model
	ResponsesPath = "/v1/responses" // below it the answers that engines keep
	HealthPath    = "/health"
)
