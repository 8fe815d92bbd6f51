package kserve

import (
	"net/url"
	"strings"
)

// Operation is what a request of V2 by REST asks for.
type Operation uint8

const (
	// None is no request of V2, or one that may not pass.
	None Operation = iota
	// Server asks what the server is, Live and Ready whether it is: extproc answers. They have no body.
	Server
	Live
	Ready
	// ModelReady asks whether requests for a model would be answered. It has no body.
	ModelReady
	// ModelMetadata asks what a model takes and gives. It has no body, and only an engine knows.
	ModelMetadata
	// Infer is inference, Generate the same of texts in a form of its own, and InferStream either with a stream of events as its answer.
	Infer
	Generate
	InferStream
)

// modelsPath begins the paths of V2 that name a model.
const modelsPath = "/v2/models/"

// ofServer are the paths of V2 that name no model. They are asked for by GET.
var ofServer = map[string]Operation{"/v2": Server, "/v2/": Server, "/v2/health/live": Live, "/v2/health/ready": Ready}

// endings are what follows a model, and a version of it, in V2's paths (KServe's Open Inference Protocol; the last two are Triton's
// generate extension, infer_stream MLServer's).
var endings = map[string]map[string]Operation{
	"GET":  {"": ModelMetadata, "/ready": ModelReady},
	"POST": {"/infer": Infer, "/infer_stream": InferStream, "/generate": Generate, "/generate_stream": InferStream},
}

// REST is a request of V2 by REST.
type REST struct {
	Op Operation
	// Model is the model that the path names, empty if it names none.
	Model string
	// Version is the version of it that the path names, empty if it names none.
	Version string

	path       string // as the client wrote it
	start, end int    // path[start:end] is the model, escaped
}

// Find returns what a request asks for: [None] if it is no request of V2 that may pass. What follows the model in its path is taken literally,
// as the engine takes it, and the model's name is unescaped once.
func Find(method, path string) (r REST) {
	r.path = path
	bare, _, _ := strings.Cut(path, "?")
	if method == "HEAD" {
		method = "GET"
	}
	if op, is := ofServer[bare]; is {
		if method == "GET" {
			r.Op = op
		}
		return r
	}
	rest, is := strings.CutPrefix(bare, modelsPath)
	if !is {
		return r
	}
	model, rest := cutBefore(rest, '/')
	var version string
	if versioned, is := strings.CutPrefix(rest, "/versions/"); is {
		if version, rest = cutBefore(versioned, '/'); !isVersion(version) {
			return r
		}
	}
	op := endings[method][rest]
	name, err := url.PathUnescape(model)
	if op == None || err != nil {
		return r
	}
	r.Op, r.Model, r.Version = op, name, version
	r.start, r.end = len(modelsPath), len(modelsPath)+len(model)
	return r
}

// isVersion says whether a version is one: what could be a way to another path is none.
func isVersion(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return strings.Trim(s, ".") != ""
}

// cutBefore cuts s before the first c.
func cutBefore(s string, c byte) (before, rest string) {
	if i := strings.IndexByte(s, c); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

// BeforeModel is the path up to the model's name.
func (r REST) BeforeModel() string { return r.path[:r.start] }

// FromModel is the path from the model's name on.
func (r REST) FromModel() string { return r.path[r.start:] }

// Rename returns the path of the request with another model, and every other byte as it was.
func (r REST) Rename(model string) string {
	return r.path[:r.start] + url.PathEscape(model) + r.path[r.end:]
}

// Served is what [Find] finds, for people: methods and paths.
func Served() []string {
	return []string{
		"GET /v2", "GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models/{model}", "GET /v2/models/{model}/ready",
		"POST /v2/models/{model}/infer", "POST /v2/models/{model}/infer_stream", "POST /v2/models/{model}/generate", "POST /v2/models/{model}/generate_stream",
		"the same with /versions/{version} after the model",
	}
}

// Names says whether requests of an operation name a model.
func (o Operation) Names() bool { return o >= ModelReady }

// Runs says whether requests of an operation run their model.
func (o Operation) Runs() bool { return o >= Infer }

// IsREST says whether a path is of V2 by REST, whose errors have another shape than OpenAI's. Cohere's rerank is not of it.
func IsREST(path string) bool {
	bare, _, _ := strings.Cut(path, "?")
	return (bare == "/v2" || strings.HasPrefix(bare, "/v2/")) && bare != "/v2/rerank"
}
