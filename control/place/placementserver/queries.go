package placementserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/internal/query"
)

const (
	// queryTimeout is how long an extproc may take to answer a query.
	queryTimeout = 5 * time.Second
	// maxQueries is the maximum number of queries that an extproc has not answered yet.
	maxQueries = 16
)

// queries are the queries to one extproc that it has not answered yet. Server.mu guards them.
type queries struct {
	program *placement.Program // the extproc; nil if it is too old to describe itself
	last    uint64             // number of the last query
	unsent  []*placement.Query
	open    map[uint64]chan<- *placement.Answer // capacity 1; closed without an answer when the stream ends
}

// Ask sends a query to all connected extprocs, and returns their answers, sorted by name. It waits
// until all have answered, at most a few seconds.
func (s *Server) Ask(ctx context.Context, kind string, body []byte) admin.Answers {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	s.mu.Lock()
	peers := make([]*peer, 0, len(s.peers))
	for p := range s.peers {
		peers = append(peers, p)
	}
	s.mu.Unlock()
	answers := admin.Answers{Extprocs: make([]admin.Answer, len(peers))}
	var all sync.WaitGroup
	for i, p := range peers {
		all.Go(func() {
			to := &answers.Extprocs[i]
			to.Extproc, to.Version = p.describe()
			result, err := s.ask(ctx, p, kind, body)
			if to.Result = result; err != nil {
				to.Error = err.Error()
			}
		})
	}
	all.Wait()
	slices.SortFunc(answers.Extprocs, func(a, b admin.Answer) int { return cmp.Compare(a.Extproc, b.Extproc) })
	return answers
}

// describe returns the name and the version of an extproc.
func (p *peer) describe() (name, version string) {
	return cmp.Or(p.queries.program.GetName(), p.process), p.queries.program.GetVersion()
}

// Errors of queries.
var (
	errGone   = errors.New("the extproc has disconnected from control")
	errSilent = errors.New("the extproc has not answered within " + queryTimeout.String())
	errMany   = errors.New("the extproc has not answered earlier queries: ask again later")
)

// ask sends a query to an extproc, and returns its answer.
func (s *Server) ask(ctx context.Context, p *peer, kind string, body []byte) (json.RawMessage, error) {
	q := &p.queries
	if !slices.Contains(q.program.GetQueries(), kind) {
		return nil, query.Unknown(kind)
	}
	answer := make(chan *placement.Answer, 1)
	s.mu.Lock()
	if !s.peers[p] || len(q.open) == maxQueries {
		gone := !s.peers[p]
		s.mu.Unlock()
		if gone {
			return nil, errGone
		}
		return nil, errMany
	}
	q.last++
	number := q.last
	q.unsent, q.open[number] = append(q.unsent, &placement.Query{Number: number, Kind: kind, Body: body}), answer
	s.mu.Unlock()
	p.wake()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(q.open, number)
		q.unsent = slices.DeleteFunc(q.unsent, func(u *placement.Query) bool { return u.GetNumber() == number })
	}()
	select {
	case a, ok := <-answer:
		switch {
		case !ok:
			return nil, errGone
		case a.GetError() != "":
			return nil, errors.New(a.GetError())
		case !json.Valid(a.GetResult()):
			return nil, errors.New("the extproc's answer is no JSON")
		}
		return a.GetResult(), nil
	case <-ctx.Done():
		return nil, errSilent
	}
}

// take removes and returns the next query to send, as a list. One Update has one query, because
// queries may be large.
func (q *queries) take() (next []*placement.Query) {
	if len(q.unsent) > 0 {
		next, q.unsent = q.unsent[:1:1], q.unsent[1:]
	}
	return next
}

// answered passes answers on. It ignores answers that arrive too late.
func (q *queries) answered(answers []*placement.Answer) {
	for _, a := range answers {
		if to := q.open[a.GetQuery()]; to != nil {
			to <- a // the only one: the entry is deleted
			delete(q.open, a.GetQuery())
		}
	}
}

// end ends all queries without an answer.
func (q *queries) end() {
	for _, to := range q.open {
		close(to)
	}
	q.open, q.unsent = nil, nil
}
