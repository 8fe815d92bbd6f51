package wire

// InferencePaths are the paths of requests that may reach an engine, all with POST. Other paths of
// engines are left out on purpose: adapter and admin paths, and those that name no model. The paths
// are those of vLLM 0.32.0. vLLM's API key protects only paths below /v1 and /v2, but extproc
// treats all paths alike.
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

// V2ModelsPath is the prefix of all paths of KServe's V2 REST protocol that name a model.
const V2ModelsPath = "/v2/models"

// CallsPaths are the prefixes of the gRPC calls that LLMRoutes accept: KServe's V2, and gRPC's
// health service, which extproc answers itself.
var CallsPaths = []string{"/inference.GRPCInferenceService", "/grpc.health.v1.Health"}

// V2Paths are the paths of V2 about the server, which extproc answers itself.
var V2Paths = []string{"/v2", "/v2/health/live", "/v2/health/ready"}

// Paths that extproc answers itself, or routes by the id of a stored response.
const (
	ModelsPath    = "/v1/models"    // the list, and below it each model
	ResponsesPath = "/v1/responses" // stored responses are below it
	HealthPath    = "/health"
)
