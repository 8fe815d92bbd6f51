package probe

import (
	"context"
	"math/rand/v2"
	"net/http"

	"github.com/headgate/headgate/control/profile/survey"
)

// Batch sends requests with several items and measures their latency. It is not safe for concurrent
// use.
type Batch struct {
	Server *Server
	API    survey.API
	Model  string
	Path   string
	// Body is a request with one item. It is nil for embeddings: their texts are random.
	Body   []byte
	Random *rand.Rand

	size  int
	ready []byte // request body for the current batch size
}

// Measure sends one request for the point and returns its latency as a row.
func (b *Batch) Measure(ctx context.Context, at survey.Point) (survey.Row, error) {
	body := b.ready
	switch {
	case b.Body == nil:
		body = survey.EmbeddingsBody(b.Random, b.Model, at.Batch)
	case b.size != at.Batch:
		var err error
		if body, err = survey.Repeat(b.API, b.Body, at.Batch); err != nil {
			return survey.Row{}, err
		}
		b.size, b.ready = at.Batch, body
	}
	_, took, err := b.Server.ask(ctx, http.MethodPost, b.Path, body)
	return survey.Row{Point: at, Seconds: took.Seconds()}, err
}
