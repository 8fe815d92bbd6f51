// Package decisions records the last decisions about requests and their outcomes, for users who ask
// why a request went where it did. It records no prompt.
package decisions

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/extproc/decisions/ring"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
)

const (
	// maxRecords is the maximum number of decisions. A decision usually takes 300 to 400 bytes.
	maxRecords = 10_000
	maxBytes   = 6 << 20
	// maxFound is the maximum number of decisions in the answer to a query.
	maxFound = 100
)

// Log records decisions. It is safe for concurrent use. Make one with [New].
type Log struct {
	process string // random: ids of decisions differ between processes

	mu   sync.Mutex // guards ring
	ring *ring.Ring
}

// New returns an empty Log.
func New() *Log {
	return &Log{process: strconv.FormatUint(rand.Uint64(), 36) + "-", ring: ring.New(maxRecords, maxBytes)}
}

// Add records an encoded decision about the request with this id, and returns its number. It makes
// a copy of the text.
func (l *Log) Add(request, decision []byte) (number uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ring.Add(request, decision)
}

// ID returns the id of a decision, which is unique among all processes.
func (l *Log) ID(number uint64) string { return l.process + strconv.FormatUint(number, 36) }

// Number returns the number of a decision by its id; 0 if it is a decision of another process.
func (l *Log) Number(id string) uint64 {
	text, ok := strings.CutPrefix(id, l.process)
	if !ok {
		return 0
	}
	number, err := strconv.ParseUint(text, 36, 64)
	if err != nil {
		return 0
	}
	return number
}

// Observe records the outcome of a request that an access log reported with the id of its decision.
func (l *Log) Observe(o *outcome.Outcome) {
	if number := l.Number(o.ID); number != 0 {
		is := ring.OutcomeOf(o)
		l.End(number, &is)
	}
}

// End records the outcome of a request by the number of its decision.
func (l *Log) End(number uint64, o *ring.Outcome) {
	var room [512]byte
	text := o.Append(room[:0])
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ring.SetOutcome(number, text)
}

// Query answers a query of kind [admin.Decisions].
func (l *Log) Query(_ context.Context, body []byte) (any, error) {
	var q admin.DecisionsQuery
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, fmt.Errorf("the query cannot be read: %w", err)
	}
	return l.find(q.ID), nil
}

// find returns the decisions about the requests with an id.
func (l *Log) find(id string) admin.DecisionsResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	result := admin.DecisionsResult{Decisions: []admin.Decision{}}
	result.Kept, _ = l.ring.Records()
	l.ring.Find(id, func(decision, text []byte) bool {
		d := read(decision, text)
		if d.Request != id {
			return true
		}
		if len(result.Decisions) == maxFound {
			result.More = true
			return false
		}
		result.Decisions = append(result.Decisions, d)
		return true
	})
	return result
}

// waits are what requests waited for.
var waits = map[ring.Wait]string{
	ring.WaitForModel:    "no endpoint had a copy of the model that could serve it, or earlier requests waited for the same model",
	ring.WaitAtLimit:     "every copy of the model was at its concurrency limit",
	ring.WaitToAsk:       "control was asked whether the model had just been added",
	ring.WaitForEndpoint: "no endpoint of the pool could get requests",
	ring.WaitForRoom:     "no engine could start the request at once",
	ring.WaitForTurn:     "other requests of the pool went first",
}

// read decodes a record.
func read(decision, text []byte) admin.Decision {
	d, picks, others := ring.ReadDecision(decision)
	is := admin.Decision{
		Time: d.At, Request: string(d.ID), Again: d.Again, Waited: d.Waited.Seconds(), WaitFor: waits[d.Why],
		Reason: d.Why.Reason(), Band: d.Band,
		Plan: PlanOf(&d, picks),
	}
	if len(others) > 0 {
		second := CandidateOf(&others[0])
		is.RunnerUp = &second
	}
	switch {
	case text != nil:
		is.Outcome = outcomeOf(ring.ReadOutcome(text))
	case d.Code != "":
		o := outcome.Outcome{Status: d.Status, ByExtproc: true}
		is.Outcome = &admin.Outcome{Status: d.Status, Failed: string(o.Party()), Error: is.Error}
	}
	return is
}

// PlanOf describes a decision with these picks.
func PlanOf(d *ring.Decision, picks []ring.Candidate) admin.Plan {
	p := admin.Plan{
		Route: d.Route, Pool: d.Pool, Model: d.Asked, VModel: d.VModel, Target: d.Model, PromptTokens: d.Prompt, OutputTokens: d.Output,
		Relay: d.Relay, Fallback: d.Fallback,
	}
	if d.Pool != "" {
		p.Policy = d.Policy.String()
	}
	switch {
	case d.Tokenless && (d.Policy == pick.Latency || d.Policy == pick.Proposal):
		p.Instead = "requests without known tokens go to the endpoint with the least work"
	case d.Unpredicted:
		p.Instead = "proposal decides until there are enough measurements for latency"
	}
	if d.Code != "" {
		p.Error = &admin.Error{Status: d.Status, Code: d.Code, Message: d.Message}
	}
	for i := range picks {
		p.Picks = append(p.Picks, CandidateOf(&picks[i]))
	}
	return p
}

// CandidateOf describes a candidate.
func CandidateOf(c *ring.Candidate) admin.Candidate {
	is := admin.Candidate{Endpoint: c.Endpoint, State: c.State.String(), Reason: c.Reason, Requests: c.Requests}
	if c.ForAdapter >= 0 {
		is.AdapterRequests, is.Adapters = &c.ForAdapter, &c.Adapters
	}
	if e := &c.Estimate; *e != (pick.Estimate{}) {
		seconds := rounded(e.FirstToken())
		is.Seconds = &seconds
		is.Terms = &admin.Terms{
			FrontendOverhead: rounded(e.FrontendOverhead), Queue: rounded(e.Queue), Room: rounded(e.Room), Load: rounded(e.Load),
			Prefill: rounded(e.Prefill), Delay: rounded(e.Delay), Step: rounded(e.Step), Longer: rounded(e.Longer),
			Own: rounded(e.Own), Others: rounded(e.Others), Adapter: e.Adapter.String(),
		}
	}
	return is
}

// rounded rounds to millionths.
func rounded(f float64) float64 { return math.Round(f*1e6) / 1e6 }

func outcomeOf(o ring.Outcome) *admin.Outcome {
	is := &admin.Outcome{
		Status: o.Status, Call: o.Call.String(), Failed: string(o.Party), Why: string(o.Failure), Endpoint: o.Endpoint,
		Attempts: o.Attempts, FirstByte: o.FirstBody.Seconds(), Duration: o.Duration.Seconds(), PromptTokens: o.Prompt,
		CompletionTokens: o.Completion,
	}
	if o.ErrorType != "" || o.ErrorCode != "" {
		is.Why = strings.TrimSpace(strings.Join([]string{is.Why, o.ErrorType, o.ErrorCode}, " "))
	}
	if o.Code != "" {
		is.Error = &admin.Error{Status: o.Status, Code: o.Code, Message: o.Message}
	}
	for _, list := range []struct {
		endpoints []string
		did       string
	}{
		{o.Unreached, "accepted no connection"},
		{o.Elsewhere, "asked for the request to be sent elsewhere"},
		{o.Missing, "does not have the model"},
	} {
		for _, endpoint := range list.endpoints {
			is.Tried = append(is.Tried, admin.Tried{Endpoint: endpoint, Did: list.did})
		}
	}
	return is
}
