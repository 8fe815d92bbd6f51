package stream

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/extproc/decisions"
	"github.com/headgate/headgate/extproc/decisions/ring"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/kserve"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/processing"
	"github.com/headgate/headgate/internal/objects"
)

// This file explains how a request would be decided. Another Server decides the request by the same
// code. It has the same fleet and queue, which it only reads, and counters of its own. Its
// exchanges stop where a request would be counted as in flight, or would begin to wait.

// memory is what the fleet remembers of earlier requests.
type memory interface {
	Maker(answer string) (fleet.Maker, bool)
	Nowhere(answer string) bool
	RequestStats(k objects.ModelKey) *endpointstate.RequestStats
	ServiceTime(k objects.ModelKey) int64
	Cached(r *pick.Request, blocks []uint64, dst []int32) []int32
}

// explainer explains decisions, one at a time.
type explainer struct {
	mu     sync.Mutex
	server *Server // made for the first explanation
}

// explanation is what is known about the decision of a request that is only explained.
type explanation struct {
	plan       admin.Plan
	candidates []admin.Candidate
	refused    *apiError // nil unless the request is rejected
	decided    bool
}

// considered keeps the endpoints that the policy considered for a request, in its order, and then
// those that it did not, with the reason. The request's pool may be missing.
func (e *explanation) considered(asked string, p pick.Policy, s *pick.Snapshot, r pick.Request, ranked []pick.Decision) {
	e.plan.Model, e.candidates = asked, nil
	pool := s.Pools[r.Pool]
	if pool == nil {
		return
	}
	is := make(map[string]bool, len(ranked))
	for i := range ranked {
		c := ring.CandidateOf(&ranked[i])
		candidate := decisions.CandidateOf(&c)
		at := slices.IndexFunc(pool.Endpoints, func(e *pick.Endpoint) bool { return e.Address == c.Endpoint })
		candidate.NoRoom = pick.Obstacle(p, s, r, at)
		e.candidates = append(e.candidates, candidate)
		is[c.Endpoint] = true
	}
	for i, at := range pool.Endpoints {
		if is[at.Address] {
			continue
		}
		e.candidates = append(e.candidates, excludedAt(p, s, r, i))
	}
}

// excludedAt describes an endpoint that the policy did not consider. The endpoint is given by its
// index.
func excludedAt(p pick.Policy, s *pick.Snapshot, r pick.Request, index int) admin.Candidate {
	pool := s.Pools[r.Pool]
	e := pool.Endpoints[index]
	c := admin.Candidate{
		Endpoint: e.Address, State: e.State.String(), Requests: e.Pending(), NoRoom: pick.Obstacle(p, s, r, index),
	}
	otherwise := "another endpoint in a better state will have room soon"
	if r.Near != "" {
		otherwise = "another endpoint stores the state that the request refers to"
	}
	c.Excluded = cmp.Or(pool.Excluded(index, r), c.NoRoom, otherwise)
	return c
}

// explain keeps the decision about a request that has picks.
func (d *dispatcher) explain(asked string, now time.Time) {
	is := d.about(asked, now)
	is.Relay = d.needsRelay()
	picks := make([]ring.Candidate, len(d.picks))
	for i := range d.picks {
		picks[i] = ring.CandidateOf(&d.picks[i])
	}
	d.explanation.plan, d.explanation.decided = decisions.PlanOf(&is, picks), true
}

// Query answers a query of kind [admin.Explain].
func (s *Server) Query(_ context.Context, body []byte) (any, error) {
	var q admin.ExplainQuery
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("the query cannot be read: %w", err)
	}
	return s.Explain(q)
}

// Explain returns how a request would be decided now. It counts and learns nothing, and asks for no
// load.
func (s *Server) Explain(q admin.ExplainQuery) (result admin.ExplainResult, err error) {
	e := &s.explain
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.server == nil {
		c := s.Config
		c.Meter, c.Decisions, c.Observe = metrics.New(c.Fleet), nil, nil
		// Ties are broken at random, but no suspect endpoint is tried again because of that.
		c.Random = func() uint64 { return rand.Uint64() | 1<<32 }
		e.server = New(c)
		e.server.memory, e.server.explains, e.server.predicts = c.Fleet.Peek(), true, s.predicts
	}
	e.server.turn.Store(s.turn.Load())
	of := scope{server: e.server, front: Own, listener: q.Listener, called: func() (string, int32) { return "", 0 }, back: s.Relay}
	if q.Pool != "" {
		name, ok := objects.ParseName(q.Pool)
		if !ok {
			return result, fmt.Errorf("the pool %q is not NAMESPACE/NAME", q.Pool)
		}
		of.pool = name
	}
	x := e.server.newExchange(of)
	x.dispatcher.explanation = new(explanation)
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("extproc cannot explain this request: %v", fault)
		}
		x.dispatcher.waits = nil
		x.end(time.Now())
	}()
	if err := x.dryRun(q); err != nil {
		return result, err
	}
	return x.explained(), nil
}

// dryRun gives the exchange the messages of a request.
func (x *exchange) dryRun(q admin.ExplainQuery) error {
	var headers []processing.Header
	add := func(key, value string) { headers = append(headers, header(key, value)) }
	add(":method", cmp.Or(q.Method, "POST"))
	add(":path", cmp.Or(q.Path, "/v1/chat/completions"))
	contentType := ""
	for _, h := range q.Headers {
		key := strings.ToLower(h[0])
		if strings.HasPrefix(key, ":") || key == "content-length" {
			return fmt.Errorf("the header %s cannot be set", h[0])
		}
		if add(key, h[1]); key == "content-type" {
			contentType = h[1]
		}
	}
	if contentType == "" && len(q.Body) > 0 {
		add("content-type", "application/json")
	}
	modes := processing.Config{Announced: true, RequestBodyMode: int32(modeBuffered)}
	if kserve.IsCall(contentType) {
		modes.RequestBodyMode = int32(modeNone)
	} else if len(q.Body) > 0 {
		add("content-length", strconv.Itoa(len(q.Body)))
	}
	now := time.Now()
	_, err := x.receive(&processing.Request{
		Part: processing.RequestHeaders, Headers: headers, End: len(q.Body) == 0, Config: modes,
	}, now)
	if err != nil || len(q.Body) == 0 || x.phase != reading || x.dispatcher.waits != nil {
		return err
	}
	_, err = x.receive(&processing.Request{Part: processing.RequestBody, Body: q.Body, End: true}, now)
	return err
}

// explained returns the explanation of an exchange after its dry run.
func (x *exchange) explained() admin.ExplainResult {
	d, e := &x.dispatcher, x.dispatcher.explanation
	result := admin.ExplainResult{Plan: e.plan, Candidates: e.candidates}
	if !e.decided {
		is := d.about(e.plan.Model, time.Now())
		result.Plan = decisions.PlanOf(&is, nil)
	}
	if w := d.waits; w != nil {
		result.Model = cmp.Or(result.Model, w.model)
		if w.asks {
			result.Waits = "extproc asks control whether the model has just been added; if not, the answer is 404 model_not_found"
		} else if err := x.server.failure(&w.of); err != nil {
			refused := describe(err, result.Model)
			e.refused = &refused
		} else {
			result.Waits = x.waitsFor(w)
		}
	}
	switch {
	case e.refused != nil:
		result.Error = &admin.Error{Status: e.refused.status, Code: e.refused.Code, Message: e.refused.Message}
	case x.phase == replied:
		result.Answer = true
	case d.waits == nil && !e.decided:
		result.Relay = true // the relay is its only destination
	}
	return result
}

// waitsFor returns why a request waits.
func (x *exchange) waitsFor(w *waiting) string {
	switch w.miss.reason() {
	case flow.Turn:
		return "other requests of the pool wait, and some of them go first"
	case flow.Room:
		if w.miss.others {
			return "the endpoints with room belong to other extprocs now, which have requests waiting"
		}
		return "no engine could start the request at once"
	case flow.Endpoint:
		return "no endpoint of the pool may get requests"
	}
	switch {
	case x.server.Flow.Busy(&w.of):
		return "requests that came earlier wait for the same model, and go first"
	case x.dispatcher.full():
		return "every copy of the model is at its concurrency limit"
	}
	return "no endpoint has a copy of the model that can serve it: control loads one"
}

// peekGate sets what the gate depends on beside the request, like a request would find it that is
// called now. It changes nothing.
func peekGate(d *dispatcher, g *pick.Gate, s *pick.Snapshot) {
	f := d.server.Flow
	g.Closed = f.Turns.Peek(d.target.Pool, s.Pools[d.target.Pool.String()])
	g.Reserved = f.Reserved(d.target.Pool)
}

// leavesRoom reports whether an endpoint has room that belongs to another process.
func leavesRoom(d *dispatcher, s *pick.Snapshot, r *pick.Request) (leaves bool) {
	pick.Rooms(d.settings.Policy, s, *r, func(_ *pick.Endpoint, room bool, _ int64) { leaves = leaves || room })
	return leaves
}
