package kserve

import (
	"net/url"
	"strings"
)

// Operation is the kind of a V2 REST request.
type Operation uint8

const (
	// None means that the request is no V2 request, or that it may not pass.
	None Operation = iota
	// Server asks for server metadata, Live and Ready for the server's state. These requests have
	// no body, and extproc answers them.
	Server
	Live
	Ready
	// ModelReady asks whether requests for a model would be served. The request has no body.
	ModelReady
	// ModelMetadata asks for a model's inputs and outputs, which only an engine knows. The request
	// has no body.
	ModelMetadata
	// Infer is inference. Generate is text generation in a format of its own. InferStream is either
	// of the two, with a stream of events as response.
	Infer
	Generate
	InferStream
)

// modelsPath is the beginning of each path that names a model.
const modelsPath = "/v2/models/"

// ofServer maps the GET paths that name no model to operations.
var ofServer = map[string]Operation{"/v2": Server, "/v2/": Server, "/v2/health/live": Live, "/v2/health/ready": Ready}

// endings are the parts of V2's paths after a model and its version (KServe's Open Inference
// Protocol). /generate and /generate_stream are of Triton's generate extension; /infer_stream is
// MLServer's.
var endings = map[string]map[string]Operation{
	"GET":  {"": ModelMetadata, "/ready": ModelReady},
	"POST": {"/infer": Infer, "/infer_stream": InferStream, "/generate": Generate, "/generate_stream": InferStream},
}

// REST is a V2 REST request.
type REST struct {
	Op Operation
	// Model is the model in the path; empty if the path has none.
	Model string
	// Version is the model's version in the path; empty if the path has none.
	Version string

	path       string // the path as the client sent it
	start, end int    // path[start:end] is the escaped name of the model
}

// Find returns the kind of a request; it is [None] unless the request is a V2 request that may
// pass. Find compares the part after the model literally, as the engine does, and unescapes the
// model's name once.
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

// isVersion reports whether s is a valid version, which cannot change where the path leads.
func isVersion(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return strings.Trim(s, ".") != ""
}

// cutBefore splits s before the first c, so that rest begins with c.
func cutBefore(s string, c byte) (before, rest string) {
	if i := strings.IndexByte(s, c); i >= 0 {
		return s[:i], s[i:]
	}
	return s, ""
}

// BeforeModel returns the path up to the model's name.
func (r REST) BeforeModel() string { return r.path[:r.start] }

// FromModel returns the rest of the path, beginning with the model's name.
func (r REST) FromModel() string { return r.path[r.start:] }

// Rename returns the path with another model; every other byte is unchanged.
func (r REST) Rename(model string) string {
	return r.path[:r.start] + url.PathEscape(model) + r.path[r.end:]
}

// Served returns the methods and paths that [Find] accepts, for messages to users.
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
// OpenAI's. Cohere's rerank API, /v2/rerank, does not belong to it.
func IsREST(path string) bool {
	bare, _, _ := strings.Cut(path, "?")
	return (bare == "/v2" || strings.HasPrefix(bare, "/v2/")) && bare != "/v2/rerank"
}
