// Package openai turns a request of the OpenAI API, or of Anthropic's messages API, into what Headgate needs of it: the
// model, where its name stands in the body, and whether the answer will be a stream. It is pure, and it knows which
// requests may pass at all.
//
// The engine reads the same bytes with a parser of its own. Wherever two parsers could read two different models out of
// one body, the body is refused, for else a client could be let in for one model and be served by another.
package openai

import "strings"

// Operation is what a method and path ask for.
type Operation uint8

const (
	// None may not pass: it is no inference request.
	None Operation = iota
	// ListModels asks which models there are. It has no body.
	ListModels
	// RetrieveModel asks for one model. It has no body.
	RetrieveModel
	// JSON is inference on a JSON object.
	JSON
	// Form is inference on a multipart form: an upload.
	Form
)

const modelsPath = "/v1/models"

// inference is every path that may reach an engine, all of them by POST. Everything else an engine serves is left out
// on purpose: its adapter and admin paths, and the paths that it leaves open without its API key (vLLM 0.32.0:
// /invocations, /adapters, /tokenize, /metrics).
var inference = map[string]Operation{
	"/v1/chat/completions":      JSON,
	"/v1/completions":           JSON,
	"/v1/embeddings":            JSON,
	"/v1/responses":             JSON,
	"/v1/messages":              JSON,
	"/v1/messages/count_tokens": JSON,
	"/v1/rerank":                JSON,
	"/v2/rerank":                JSON,
	"/rerank":                   JSON,
	"/v1/score":                 JSON,
	"/score":                    JSON,
	"/v1/audio/speech":          JSON,
	"/v1/audio/transcriptions":  Form,
	"/v1/audio/translations":    Form,
}

// Find returns what a request asks for, and for [RetrieveModel] the model, still escaped as in the path. Paths are taken
// literally: the engine gets the same bytes, so what is not on the list byte for byte is not on it.
func Find(method, path string) (op Operation, model string) {
	path, _, _ = strings.Cut(path, "?")
	switch method {
	case "POST":
		return inference[path], ""
	case "GET":
		if path == modelsPath {
			return ListModels, ""
		}
		if model, ok := strings.CutPrefix(path, modelsPath+"/"); ok && model != "" {
			return RetrieveModel, model
		}
	}
	return None, ""
}

// Request is what Headgate needs of a request's body.
type Request struct {
	// Model is the name that the client gave. It shares no memory with the body.
	Model string
	// Stream says that the client asked for server-sent events.
	Stream bool

	// body[start:end] is the value of the model: with its quotes in JSON, bare in a form.
	start, end int
	op         Operation
}

// Error is a body that cannot be served, in words for the client. It quotes nothing of the body.
type Error struct {
	// Param is the part of the body that is at fault, empty if it is the whole.
	Param string
	// Reason is a sentence that says what is wrong.
	Reason string
}

func (e *Error) Error() string { return e.Reason }

func fault(param, reason string) error { return &Error{param, reason} }

// Parse reads a body. Op is [JSON] or [Form]; contentType is the request's header, which a form needs for its boundary.
// Every error is an [*Error].
func Parse(op Operation, contentType string, body []byte) (Request, error) {
	if op == Form {
		return parseForm(contentType, body)
	}
	return parseJSON(body)
}

// Rename returns the body with another model, and every other byte as it was. Body must be the one that r was parsed
// from; it is not changed.
func (r Request) Rename(body []byte, model string) []byte {
	value := []byte(model)
	if r.op == JSON {
		value = appendQuoted(nil, model)
	}
	renamed := make([]byte, 0, len(body)-(r.end-r.start)+len(value))
	renamed = append(renamed, body[:r.start]...)
	renamed = append(renamed, value...)
	return append(renamed, body[r.end:]...)
}
