package loader

import (
	"bytes"
	"cmp"
	"context"
	"net/http"

	"github.com/headgate/headgate/internal/engine"
)

// empty is the body of calls without parameters. MLServer requires one.
var empty = []byte("{}")

// answerText is an engine's answer with its whole message.
type answerText struct {
	answer
	body []byte
	text string // the answer for messages, if it is not an answer of HTTP
}

func (a answerText) String() string { return cmp.Or(a.text, a.answer.String()) }

// httpRepository calls a V2 model repository over HTTP.
type httpRepository struct{ caller }

func (r *httpRepository) index(ctx context.Context) (answerText, error) {
	return r.call(ctx, http.MethodPost, engine.IndexPath)
}

func (r *httpRepository) live(ctx context.Context) (answerText, error) {
	return r.call(ctx, http.MethodGet, engine.LivePath)
}

func (r *httpRepository) about(ctx context.Context, c engine.RepositoryCall, id string) (answerText, error) {
	method := http.MethodPost
	if c == engine.ReadyCall {
		method = http.MethodGet
	}
	return r.call(ctx, method, c.Path(r.Kind, id))
}

// call sends a management request to the engine, and reads the answer.
func (r *httpRepository) call(ctx context.Context, method, path string) (answerText, error) {
	of := call{method: method, address: r.managedAt(), path: path, raw: r.Kind == engine.Triton}
	if method == http.MethodPost {
		of.body = empty
	}
	var text bytes.Buffer
	is, err := r.ask(ctx, of, &text)
	if err != nil {
		return answerText{}, err
	}
	return answerText{answer: answerTo(is, text.Bytes()[:min(text.Len(), maxAnswer)]), body: text.Bytes()}, nil
}
