// Package openai parses what Headgate needs from a request of OpenAI's API or of Anthropic's
// messages API: the model, the place of its name in the body, and whether the response will be a
// stream. The package also decides which requests may pass. It is pure.
//
// The engine parses the same bytes with a parser of its own. If two parsers could read different
// models from one body, openai rejects the body. Otherwise a client could be admitted for one model
// and served by another.
package openai

import (
	"errors"
	"slices"
	"strings"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/engine"
)

// Operation is the kind of a request, by its method and path.
type Operation uint8

const (
	// None means that the request is no inference request; it may not pass.
	None Operation = iota
	// ListModels lists the models. The request has no body.
	ListModels
	// RetrieveModel describes one model. The request has no body.
	RetrieveModel
	// JSON is inference with a JSON object as body.
	JSON
	// Form is inference with a multipart form as body: an upload.
	Form
	// Health asks whether requests can be served. The request has no body.
	Health
	// Stored reads, cancels or deletes a stored response, or reads the input of the response. A
	// body is ignored.
	Stored
)

const (
	responsesPath = wire.ResponsesPath + "/"
	messagesPath  = "/v1/messages"
)

// inference maps [wire.InferencePaths] to operations.
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
	"/pooling":                  JSON,
	"/classify":                 JSON,
	"/tokenize":                 JSON,
	"/detokenize":               JSON,
	"/v1/audio/speech":          JSON,
	"/v1/audio/transcriptions":  Form,
	"/v1/audio/translations":    Form,
}

// OnlyTokenizes reports whether a request to this path counts or converts tokens, which uses the
// engine's frontend and no GPU time.
func OnlyTokenizes(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	switch path {
	case "/tokenize", "/detokenize", "/v1/messages/count_tokens":
		return true
	}
	return false
}

// Find returns the kind of a request. For [RetrieveModel] it also returns the model, escaped as in
// the path, and for [Stored] the id of the response. It compares paths literally, because the
// engine gets the same bytes.
func Find(method, path string) (op Operation, name string) {
	path, _, _ = strings.Cut(path, "?")
	switch method {
	case "POST":
		if id, ok := stored(path, "/cancel"); ok {
			return Stored, id
		}
		return inference[path], ""
	case "DELETE":
		if id, ok := stored(path, ""); ok {
			return Stored, id
		}
	case "GET":
		if id, ok := stored(path, ""); ok {
			return Stored, id
		}
		if id, ok := stored(path, "/input_items"); ok {
			return Stored, id
		}
		return about(path)
	case "HEAD":
		return about(path)
	}
	return None, ""
}

// about returns the kind of a request that extproc itself answers, and None for other requests.
func about(path string) (op Operation, name string) {
	switch path {
	case wire.ModelsPath:
		return ListModels, ""
	case wire.HealthPath:
		return Health, ""
	}
	if model, ok := strings.CutPrefix(path, wire.ModelsPath+"/"); ok && model != "" {
		return RetrieveModel, model
	}
	return None, ""
}

// Served returns the sorted methods and paths that [Find] accepts, for messages to users.
func Served() []string {
	var all []string
	for path := range inference {
		all = append(all, "POST "+path)
	}
	return append(slices.Sorted(slices.Values(all)), "GET "+wire.ModelsPath, "GET "+wire.HealthPath, "GET and DELETE "+responsesPath+"{id}")
}

// IsMessages reports whether a path belongs to Anthropic's messages API, whose errors have another
// format than OpenAI's.
func IsMessages(path string) bool {
	rest, ok := strings.CutPrefix(path, messagesPath)
	return ok && (rest == "" || rest[0] == '/' || rest[0] == '?')
}

// stored returns the id of the response in a path that ends with end.
func stored(path, end string) (id string, ok bool) {
	id, ok = strings.CutPrefix(path, responsesPath)
	if ok {
		id, ok = strings.CutSuffix(id, end)
	}
	return id, ok && isID(id)
}

// isID reports whether s may be the id of a response.
func isID(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '_' && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= maxID
}

const maxID = 256

// Continues reports whether a request on a path continues a stored response, which only the engine
// that created it has.
func (r Request) Continues(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	return path == wire.ResponsesPath && isID(r.Previous)
}

// Request contains what Headgate needs from a request's body.
type Request struct {
	// Model is the client's name of the model. It shares no memory with the body.
	Model string
	// Stream means that the client asked for server-sent events.
	Stream bool
	// Previous is the id of the response that the request continues; empty if there is none.
	Previous string

	// body[start:end] is the model's name: with its quotes in JSON, without quotes in a form.
	start, end int
	op         Operation
	// noOptions means that the body is complete and has no stream_options.
	noOptions bool
	// absent means that the body names no model. If the body has no member for the model, before
	// and after are the text to insert around the name.
	absent        bool
	before, after string
	// parts are the members of a JSON object that make up the prompt.
	parts parts
	// truncated means that only the beginning of the body is known, so that parts is not set.
	truncated bool
}

// Absent reports whether the parsed body names no model.
func (r Request) Absent() bool { return r.absent }

// Error means that a body cannot be served. Its text is for the client, and quotes nothing of the
// body.
type Error struct {
	// Param is the name of the faulty part of the body; empty means the whole body.
	Param string
	// Reason is a sentence that explains the error.
	Reason string
	kind   error
}

func (e *Error) Error() string { return e.Reason }

// ErrName matches an [*Error] for a name that no model can have.
var ErrName = errors.New("no model can have this name")

// ErrAbsent matches an [*Error] for a body whose model is missing, empty or null.
var ErrAbsent = errors.New("the body names no model")

// Is makes errors.Is work with ErrName and ErrAbsent.
func (e *Error) Is(target error) bool { return e.kind != nil && target == e.kind }

// CheckName returns an [*Error] for an invalid name, and for a name that an engine might treat as a
// path.
func CheckName(name string) error { return noName(engine.CheckName(name)) }

// CheckText returns an [*Error] for an invalid name. It accepts a name that is a path, because only
// the lists of engines show whether that is valid: see [CheckName].
func CheckText(name string) error { return noName(engine.CheckText(name)) }

func noName(err error) error {
	if err != nil {
		return &Error{"model", "No model can have this name: " + err.Error() + ".", ErrName}
	}
	return nil
}

func fault(param, reason string) error { return &Error{Param: param, Reason: reason} }

func absent(reason string) error { return &Error{Param: "model", Reason: reason, kind: ErrAbsent} }

// Parse parses a body. Op is [JSON] or [Form]; contentType is the request's header, which contains
// the boundary of a form. Every error is an [*Error]. With [ErrAbsent] the Request is valid except
// for its model, which Rename can insert.
func Parse(op Operation, contentType string, body []byte) (Request, error) {
	if op == Form {
		return parseForm(contentType, body, true)
	}
	return parseJSON(body)
}

// ParsePrefix does the same as [Parse] for the beginning of a body. The unknown rest of the body
// may contain a second model, which an engine would prefer.
func ParsePrefix(op Operation, contentType string, prefix []byte) (Request, error) {
	if op == Form {
		return parseForm(contentType, prefix, false)
	}
	return parsePrefix(prefix)
}

var errNotInPrefix = fault("model",
	"The gateway sees only the beginning of the body, which does not name the model: put the model first.")

// Rename returns the body with another model; every other byte is unchanged. Body must be the body
// from which r was parsed; Rename does not modify it.
func (r Request) Rename(body []byte, model string) []byte {
	value := []byte(model)
	if r.op == JSON {
		value = appendQuoted(nil, model)
	}
	renamed := make([]byte, 0, len(body)-(r.end-r.start)+len(value)+len(r.before)+len(r.after))
	renamed = append(renamed, body[:r.start]...)
	renamed = append(renamed, r.before...)
	renamed = append(renamed, value...)
	renamed = append(renamed, r.after...)
	return append(renamed, body[r.end:]...)
}
