package placementclient

import (
	"context"
	"errors"

	"github.com/headgate/headgate/api/placement"
)

// maxQuerying is the maximum number of control's queries that are answered at the same time.
const maxQuerying = 4

var errQuerying = errors.New("this extproc answers other queries: ask again later")

// query answers control's queries in goroutines, which end with ctx at the latest. A query reads
// state that may be large, and must not delay placement.
func (t *connection) query(ctx context.Context, queries []*placement.Query) {
	for _, q := range queries {
		busy := t.querying >= maxQuerying
		t.querying++
		go func() {
			a := &placement.Answer{Query: q.GetNumber()}
			result, err := t.result(ctx, q, busy)
			if a.Result = result; err != nil {
				a.Error = err.Error()
			}
			select {
			case t.answers <- a:
			case <-ctx.Done():
			}
		}()
	}
}

func (t *connection) result(ctx context.Context, q *placement.Query, busy bool) ([]byte, error) {
	if busy {
		return nil, errQuerying
	}
	return t.Queries.Answer(ctx, q.GetKind(), q.GetBody())
}

// answer sends the answer to a query. The Report acknowledges nothing new, so that control does not
// take it for a report of requests in flight.
func (t *connection) answer(a *placement.Answer) error {
	return t.stream.Send(&placement.Report{
		Process: t.process, Applied: t.acknowledged, Question: t.question, Answers: []*placement.Answer{a},
	})
}
