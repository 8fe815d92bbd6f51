package stream

import (
	"net/http"
	"strconv"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/limits/bucket"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/openai"
	"github.com/headgate/headgate/extproc/processing"
)

// This file counts requests against the limits of their routes. A request is counted once, when it
// is admitted, before it may wait. Its ticket ends with the request's count as in flight, or in
// [limited.refused] if there is none. The outcome settles the tokens.

// limited is the state of a request whose route has limits.
type limited struct {
	checked bool
	ticket  *limits.Ticket  // nil if the route has no limits
	rates   []limits.Header // x-ratelimit headers of the response
	size    size            // zero if the route limits no tokens
}

// check counts an admitted request against the limits of its route, unless it runs no inference.
// The error is the reply to a request that a limit stops. Only the first call counts. The relay's
// second attempt was counted before.
func (l *limited) check(d *dispatcher, a *ask, body []byte, view *endpointstate.View) error {
	s, is := d.server, d.target.Sharing
	if l.checked || s.explains || !limits.Limited(is) || d.scope.relayed != nil && d.scope.relayed.Last || !infers(d) {
		return nil
	}
	l.checked = true
	var tokens int64
	if limits.CountsTokens(is) && !d.traits.tokenless {
		tokens = estimateTokens(d, a, body, view)
	}
	ticket, answer := s.Limits.Admit(d.target.Route, is, d.in.hashOf(is.TenantHeader), tokens)
	l.ticket, l.rates = ticket, limits.Headers(answer)
	if answer.Refused != bucket.Nothing {
		s.Meter.TurnedAway(d.pool, d.target.Priority, metrics.RefusedLimit)
		return limitError(answer)
	}
	return nil
}

// infers reports whether the request may run an inference. Requests about a model, its readiness or
// a stored response run none. A request that counts tokens uses the engine, so it counts as one.
func infers(d *dispatcher) bool {
	if d.traits.tokenless {
		return d.traits.runs
	}
	switch op, _ := openai.Find(d.in.method, d.in.path); op {
	case openai.JSON, openai.Form:
		return true
	case openai.None: // another gateway lets the path through
		return d.in.method == http.MethodPost
	case openai.ListModels, openai.RetrieveModel, openai.Health, openai.Stored:
	}
	return false
}

// estimateTokens returns the expected number of tokens of prompt and answer.
func estimateTokens(d *dispatcher, a *ask, body []byte, view *endpointstate.View) int64 {
	if openai.OnlyTokenizes(d.in.path) {
		return 0
	}
	d.limited.size.elsewhere = a.previous != "" || d.scope.mode == modePartial
	request, learned := learnedOf(d, a.model, view)
	output := learned.Output()
	if body == nil {
		return int64(output)
	}
	p := d.readPrompt(&a.text, body, &request)
	d.limited.size.body, d.limited.size.prompt = len(body), p
	if p.MaxTokens > 0 {
		output = min(output, float64(p.MaxTokens))
	}
	return int64(float64(p.Bytes)/learned.BytesPerToken() + output)
}

// limitError returns the reply to a request that a limit stops.
func limitError(a bucket.Answer) *apiError {
	e := &apiError{
		status: http.StatusTooManyRequests, Type: "requests", Code: "rate_limit_exceeded", retryAfter: limits.RetryAfter(a),
		Message: "Too many requests are in progress. Try again later.", limited: true,
	}
	switch {
	case a.Never:
		e.Type, e.final = "tokens", true
		e.Message = "The request is too large: it has more tokens than the limit of a minute."
	case a.Refused == bucket.Requests:
		e.Message = "The limit of requests per minute is reached. Try again in " + wait(e.retryAfter) + "."
	case a.Refused == bucket.Tokens:
		e.Type, e.Message = "tokens", "The limit of tokens per minute is reached. Try again in "+wait(e.retryAfter)+"."
	}
	return e
}

func wait(seconds int) string { return strconv.Itoa(seconds) + " s" }

// sent connects the ticket of a request with its count as in flight, which has begun, and with its
// outcome.
func (l *limited) sent(d *dispatcher) {
	t := l.ticket
	if t == nil {
		return
	}
	if limits.CountsTokens(d.target.Sharing) {
		t.Bound(l.size.bound(d))
	}
	if d.scope.front == Own {
		t.Sent(d.id)
	}
	d.inFlight.OnEnd(func(int64) { t.End() })
}

// refused ends the ticket of a request that has no count as in flight. If the data plane has not
// received a decision, announced is false. No engine has then got the request, so its tokens are
// given back.
func (l *limited) refused(announced bool) {
	if announced {
		l.ticket.End()
		return
	}
	l.ticket.Cancel()
}

// headers returns the x-ratelimit headers of the response; nil if the route has no such limits.
func (l *limited) headers() []processing.Header {
	var all []processing.Header
	for _, h := range l.rates {
		all = append(all, header(h.Name, h.Value))
	}
	return all
}

// addTo adds the x-ratelimit headers to a reply of extproc. Replies to gRPC calls have none.
func (l *limited) addTo(m *message) {
	if i := m.Immediate; i != nil && !i.Call {
		i.Set = append(i.Set, l.headers()...)
	}
}

// addMetadata adds the x-ratelimit headers to the metadata of a decision.
func (l *limited) addMetadata(to *processing.Struct) {
	if len(l.rates) == 0 {
		return
	}
	rates := to.Begin(wire.RateLimitNamespace)
	for _, h := range l.rates {
		to.Text(h.Name, h.Value)
	}
	to.End(rates)
}
