package stream

import (
	"cmp"
	"time"

	"github.com/headgate/headgate/extproc/decisions/ring"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/pick"
)

// This file records what was decided about a request, so that users can ask for it by the request's
// id. The log of decisions has the request's outcome, too: the access log reports it, or the
// dispatcher if the data plane shows it the response.

// recordBytes is the size of the memory in which a decision is encoded. Few decisions need more.
const recordBytes = 640

// about returns what a record says about the request, whether it was decided or not.
func (d *dispatcher) about(asked string, now time.Time) ring.Decision {
	is := ring.Decision{
		ID: d.in.id, At: now, Route: d.route, Pool: d.pool, Asked: asked, Model: d.model, Waited: d.spent, Why: d.why,
		Band: d.target.Priority, Fallback: d.fallback.name,
		Policy:      d.settings.Policy.Rule,
		Unpredicted: d.unpredicted, Tokenless: d.traits.tokenless, Prompt: d.demanded.Prompt, Output: d.demanded.Output,
		Again: d.scope.relayed != nil && d.scope.relayed.Last,
	}
	if d.found.Adapter != d.target.Adapter {
		is.VModel = d.found.Adapter
	}
	return is
}

// record encodes the decision about a request that has picks.
func (d *dispatcher) record(b []byte, asked string, now time.Time) []byte {
	is := d.about(asked, now)
	is.Relay = d.needsRelay()
	second := d.runnerUp()
	others := 0
	if second != nil {
		others = 1
	}
	b = is.Append(b, len(d.picks), others)
	for i := range d.picks {
		c := ring.CandidateOf(&d.picks[i])
		b = c.Append(b)
	}
	if second != nil {
		c := ring.CandidateOf(second)
		b = c.Append(b)
	}
	return b
}

// runnerUp returns the policy's second choice if it is not among the picks; nil if it is, or if it
// is unknown.
func (d *dispatcher) runnerUp() *pick.Decision {
	if len(d.ranked) < 2 || len(d.picks) > 1 && d.picks[1].Endpoint == d.ranked[1].Endpoint {
		return nil
	}
	return &d.ranked[1]
}

// recordRefusal records that extproc replies to the request with an error.
func (d *dispatcher) recordRefusal(asked string, e *apiError) {
	if d.server.explains {
		d.explanation.refused = e
		return
	}
	if d.number != 0 { // the decision is recorded already
		o := outcome.Outcome{Status: e.status, ByExtproc: true}
		is := ring.OutcomeOf(&o)
		is.Code, is.Message = e.Code, e.Message
		d.server.Decisions.End(d.number, &is)
		return
	}
	now := time.Now()
	is := d.about(asked, now)
	if is.Waited == 0 && !d.since.IsZero() {
		is.Waited = now.Sub(d.since)
	}
	is.Code, is.Status, is.Message = e.Code, e.status, e.Message
	var room [recordBytes]byte
	d.number = d.server.Decisions.Add(d.in.id, is.Append(room[:0], 0, 0))
}

// recordLeft records that the client left while the request waited.
func (d *dispatcher) recordLeft(now time.Time) {
	is := d.about(cmp.Or(d.waits.model, d.waits.of.Key.ID), now)
	is.Waited = now.Sub(d.since)
	var room [recordBytes]byte
	d.number = d.server.Decisions.Add(d.in.id, is.Append(room[:0], 0, 0))
	d.server.Decisions.End(d.number, &ring.Outcome{Failure: outcome.ClientGone, Party: outcome.Client, Duration: now.Sub(d.began)})
}

// recordOutcome records an outcome that the dispatcher knows from the response.
func (d *dispatcher) recordOutcome(o *outcome.Outcome) {
	is := ring.OutcomeOf(o)
	d.server.Decisions.End(d.number, &is)
}
