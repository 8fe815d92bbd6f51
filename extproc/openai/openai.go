// Package openai turns a request of the OpenAI API, or of Anthropic's messages API, into what Headgate needs of it: the
// model, where its name stands in the body, and whether the answer will be a stream. It is pure, and it knows which
// requests may pass at all.
//
// The engine reads the same bytes with a parser of its own. Wherever two parsers could read two different models out of
// one body, the body is refused, for else a client could be let in for one model and be served by another.
package openai

import (
	"errors"
	"slices"
	"strings"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/internal/engine"
)

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
	// Health asks whether any request could be answered. It has no body.
	Health
	// Stored is about an answer that an engine keeps: to read it or what it was made from, to cancel it, or to delete it. Its
	// body, if any, does not matter.
	Stored
)

const (
	responsesPath = wire.ResponsesPath + "/"
	messagesPath  = "/v1/messages"
)

// inference is what the requests to each of [wire.InferencePaths] are.
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

// Find returns what a request asks for, and for [RetrieveModel] the model, still escaped as in the path, for [Stored]
// the id of the answer. Paths are taken literally: the engine gets the same bytes, so what is not on the list byte for
// byte is not on it.
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

// about finds what extproc answers itself.
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

// Served is what [Find] finds, for people: methods and paths, in order.
func Served() []string {
	var all []string
	for path := range inference {
		all = append(all, "POST "+path)
	}
	return append(slices.Sorted(slices.Values(all)), "GET "+wire.ModelsPath, "GET "+wire.HealthPath, "GET and DELETE "+responsesPath+"{id}")
}

// IsMessages says whether a path is of Anthropic's messages API, whose errors have another shape than OpenAI's.
func IsMessages(path string) bool {
	rest, ok := strings.CutPrefix(path, messagesPath)
	return ok && (rest == "" || rest[0] == '/' || rest[0] == '?')
}

// stored returns the id of the answer whose path has this end.
func stored(path, end string) (id string, ok bool) {
	id, ok = strings.CutPrefix(path, responsesPath)
	if ok {
		id, ok = strings.CutSuffix(id, end)
	}
	return id, ok && isID(id)
}

// isID says whether s may be the id of an answer.
func isID(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && c != '_' && c != '-' {
			return false
		}
	}
	return s != "" && len(s) <= maxID
}

const maxID = 256

// Continues says whether a request goes on from a stored response, which only the engine that made it has, if its body names one.
func (r Request) Continues(path string) bool {
	path, _, _ = strings.Cut(path, "?")
	return path == wire.ResponsesPath && isID(r.Previous)
}

// Request is what Headgate needs of a request's body.
type Request struct {
	// Model is the name that the client gave. It shares no memory with the body.
	Model string
	// Stream says that the client asked for server-sent events.
	Stream bool
	// Previous is the id of the answer that the request goes on from, empty if it begins anew.
	Previous string

	// body[start:end] is the value of the model: with its quotes in JSON, bare in a form.
	start, end int
	op         Operation
	// absent says that the body names no model. Before and after go around the value where it has no member for it.
	absent        bool
	before, after string
}

// Absent says whether the body that r was parsed from names no model.
func (r Request) Absent() bool { return r.absent }

// Error is a body that cannot be served, in words for the client. It quotes nothing of the body.
type Error struct {
	// Param is the part of the body that is at fault, empty if it is the whole.
	Param string
	// Reason is a sentence that says what is wrong.
	Reason string
	kind   error
}

func (e *Error) Error() string { return e.Reason }

// ErrName is what an [*Error] is whose fault is a name that no model can have.
var ErrName = errors.New("no model can have this name")

// ErrAbsent is what an [*Error] is whose fault is that the body names no model: it has none, an empty one, or null.
var ErrAbsent = errors.New("the body names no model")

// Is makes errors.Is work with ErrName and ErrAbsent.
func (e *Error) Is(target error) bool { return e.kind != nil && target == e.kind }

// CheckName returns an [*Error] for a name that an engine might take for a path, or that is no name at all.
func CheckName(name string) error { return noName(engine.CheckName(name)) }

// CheckText returns an [*Error] for what is no name at all. Whether a path may be one depends on what engines list, which
// no body tells: see [CheckName].
func CheckText(name string) error { return noName(engine.CheckText(name)) }

func noName(err error) error {
	if err != nil {
		return &Error{"model", "No model can have this name: " + err.Error() + ".", ErrName}
	}
	return nil
}

func fault(param, reason string) error { return &Error{Param: param, Reason: reason} }

func absent(reason string) error { return &Error{Param: "model", Reason: reason, kind: ErrAbsent} }

// Parse reads a body. Op is [JSON] or [Form]; contentType is the request's header, which a form needs for its boundary.
// Every error is an [*Error]. With one that is [ErrAbsent] the Request is good but for its model, which Rename writes.
func Parse(op Operation, contentType string, body []byte) (Request, error) {
	if op == Form {
		return parseForm(contentType, body, true)
	}
	return parseJSON(body)
}

// ParsePrefix is [Parse] where only the beginning of the body is there. What comes after it is not known: a second
// model may, which an engine would take for the first.
func ParsePrefix(op Operation, contentType string, prefix []byte) (Request, error) {
	if op == Form {
		return parseForm(contentType, prefix, false)
	}
	return parsePrefix(prefix)
}

var errNotInPrefix = fault("model", "The gateway sees only the beginning of the body, which does not name the model: write the model first.")

// Rename returns the body with another model, or with a model where it names none, and every other byte as it was. Body must be the one that r was parsed
// from; it is not changed.
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
