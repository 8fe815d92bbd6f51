package kserve

import (
	"net/url"
	"strings"
)

// Operation is what a V2 REST request asks for.
type Operation uint8

const (
	// None means that it is not a V2 request, or that it may not pass.
	None Operation = iota
	// Server asks for server metadata, Live and Ready for the server's state. extproc answers them.
	// They have no body.
	Server
	Live
	Ready
	// ModelReady asks whether requests for a model would be served. It has no body.
	ModelReady
	// ModelMetadata asks for a model's inputs and outputs, which only an engine knows. It has no
	// body.
	ModelMetadata
	// Infer is inference, Generate is text generation in a format of its own, and InferStream is
	// either of them with a stream of events as response.
	Infer
	Generate
	InferStream
)

// modelsPath begins the paths that name a model.
const modelsPath = "/v2/models/"

// ofServer are the GET paths that name no model.
var ofServer = map[string]Operation{"/v2": Server, "/v2/": Server, "/v2/health/live": Live, "/v2/health/ready": Ready}

// endings follow a model and its version in V2's paths (KServe's Open Inference Protocol; the last
// two are of Triton's generate extension, infer_stream is MLServer's).
var endings = map[string]map[string]Operation{
	"GET":  {"": ModelMetadata, "/ready": ModelReady},
	"POST": {"/infer": Infer, "/infer_stream": InferStream, "/generate": Generate, "/generate_stream": InferStream},
}

// REST is a V2 REST request.
type REST struct {
	Op Operation
	// Model is the model in the path; may be empty.
	Model string
	// Version is the model's version in the path; may be empty.
	Version string

	path       string // the client's path
	start, end int    // path[start:end] is the escaped model
}

// Find returns what a request asks for: [None] if it is no V2 request that may pass. It compares
// what follows the model literally, as the engine does, and unescapes the model's name once.
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

// isVersion reports whether a version is valid: it must not lead to another path.
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

// BeforeModel returns the path up to the model's name.
func (r REST) BeforeModel() string { return r.path[:r.start] }

// FromModel returns the path from the model's name on.
func (r REST) FromModel() string { return r.path[r.start:] }

// Rename returns the path with another model; every other byte stays.
func (r REST) Rename(model string) string {
	return r.path[:r.start] + url.PathEscape(model) + r.path[r.end:]
}

// Served returns the methods and paths that [Find] accepts, for people.
func Served() []string {
	return []string{
		"GET /v2", "GET /v2/health/live", "GET /v2/health/ready", "GET /v2/models/{model}", "GET /v2/models/{model}/ready",
		"POST /v2/models/{model}/infer", "POST /v2/models/{model}/infer_stream",
		"POST /v2/models/{model}/generate", "POST /v2/models/{model}/generate_stream",
		"the same with /versions/{version} after the model",
	}
}

// Names reports whether requests of an operation name a model.
func (o Operation) Names() bool { return o >= ModelReady }

// Runs reports whether requests of an operation run an inference.
func (o Operation) Runs() bool { return o >= Infer }

// IsREST reports whether a path belongs to V2's REST API, whose errors have another format than
// OpenAI's. Cohere's rerank, /v2/rerank, does not.
func IsREST(path string) bool {
	bare, _, _ := strings.Cut(path, "?")
	return (bare == "/v2" || strings.HasPrefix(bare, "/v2/")) && bare != "/v2/rerank"
}
