package stream

import (
	"strconv"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/limits"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/processing"
)

// answered is the part of the engine's response that the data plane sends to extproc.
type answered struct {
	answer   outcome.Answer
	finished bool
	// answeredAt is when the response was complete.
	answeredAt time.Time
}

// responseHeaders reads the headers of the response. It adds the state of the route's limits and
// the name of a fallback, which Headgate's own Envoys add themselves, and in conformance tests the
// endpoint.
func (x *exchange) responseHeaders(headers []processing.Header, end bool, now time.Time) responses {
	if x.dispatcher.inFlight != nil && !x.dispatcher.answer.Began() {
		x.dispatcher.readAnswer(headers)
		if x.scope.hints.served != "" {
			x.server.Fleet.Moved(x.dispatcher.inFlight, x.scope.hints.served)
		}
		if end {
			x.dispatcher.finish(now)
		}
	}
	var added []processing.Header
	if x.server.Conformance && x.scope.hints.served != "" {
		added = append(added, header(wire.ServedHeader, x.scope.hints.served))
	}
	if x.scope.front != Own {
		added = append(added, x.dispatcher.limited.headers()...)
	}
	if name := x.dispatcher.fallback.name; name != "" && x.scope.front != Own {
		added = append(added, header(wire.FallbackHeader, name))
	}
	if added == nil {
		return responses{goOnAnswer}
	}
	return responses{{Part: processing.ResponseHeaders, Changes: &processing.Changes{Set: added}}}
}

func (d *dispatcher) readAnswer(headers []processing.Header) {
	var status int
	var contentType, load, retryAfter string
	for i := range headers {
		switch h := &headers[i]; h.Name {
		case ":status":
			status, _ = strconv.Atoi(h.Value)
		case "content-type":
			contentType = h.Value
		case "endpoint-load-metrics":
			load = h.Value
		case "retry-after":
			retryAfter = h.Value
		}
	}
	d.answer.Headers(status, contentType, load, retryAfter)
}

// responseBody reads the next part of the response's body, and forwards it unchanged.
func (x *exchange) responseBody(chunk []byte, end bool, now time.Time) responses {
	if x.dispatcher.answer.Began() && !x.dispatcher.finished {
		x.dispatcher.answer.Body(chunk, now)
		if end {
			x.dispatcher.finish(now)
		}
	}
	if x.scope.shown == modeDuplex {
		return answerChunks(chunk, end)
	}
	return responses{goOnAnswerBody}
}

func (x *exchange) responseTrailers(now time.Time) responses {
	if x.dispatcher.answer.Began() {
		x.dispatcher.finish(now)
	}
	return responses{goOnAnswerTrailers}
}

// finish reports the outcome of the request, and ends its count as in flight.
func (d *dispatcher) finish(now time.Time) {
	if d.finished {
		return
	}
	d.finished = true
	d.inFlight.End()
	d.server.Fleet.Release(d.id)
	d.answeredAt = now
	d.observe(outcome.None, now.Sub(d.began))
}

// observe reports the outcome of a request, as far as the response is known. It ignores requests
// from Headgate's own Envoys, whose access log reports them. The outcome has no decision ID,
// because the request may continue.
func (d *dispatcher) observe(f outcome.Failure, took time.Duration) {
	if d.scope.front == Own {
		return
	}
	o := outcome.Outcome{
		Pool: d.pool, Route: d.route, Model: d.model, Stream: d.stream,
		Endpoint: d.address, Failure: f, Attempts: 1, Duration: took, Began: d.began, Bytes: d.bytes, Expected: d.expected,
		QueueTime: d.spent,
	}
	if d.scope.hints.served != "" {
		o.Endpoint = d.scope.hints.served
	}
	if o.Endpoint == d.address {
		o.Adapter, o.Loading = d.adapter, d.loading
		if !d.answeredAt.IsZero() {
			o.Among, o.Answered = d.among, min(d.answeredAt.Sub(d.sentAt), d.answeredAt.Sub(d.begunAt))
		}
	}
	d.answer.Fill(&o, d.sentAt)
	if tokens, known := limits.TokensOf(o); known {
		d.limited.ticket.Settle(tokens)
	}
	if d.answers != 0 {
		d.server.Flow.Answered(d.number, LengthOf(&o))
	}
	d.recordOutcome(&o)
	d.server.Observe(o)
}

// end handles the end of the ext_proc stream. It may be called in any phase and more than once.
func (d *dispatcher) end(now time.Time) {
	d.takeBack()
	if d.waits != nil {
		d.recordLeft(now)
		d.waits = nil
	}
	if d.inFlight == nil {
		d.limited.refused(d.announced)
	}
	if d.inFlight == nil || d.finished {
		return
	}
	d.finished = true
	if d.scope.bound(d.answer.Began()) {
		d.inFlight.End()
		d.server.Fleet.Release(d.id)
	}
	switch {
	case !d.answer.Began():
	case d.scope.shown == modeNone:
		d.observe(outcome.None, 0) // the data plane sends only the headers to extproc
	default:
		d.observe(outcome.Cut, now.Sub(d.began))
	}
}
