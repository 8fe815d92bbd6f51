package stream

import (
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/internal/objects"
)

// answered is what is known of the engine's answer, where the data plane shows it.
type answered struct {
	answer   outcome.Answer
	finished bool
	// answeredAt is when it was whole.
	answeredAt time.Time
}

// responseHeaders reads the beginning of the answer, and changes nothing of it.
func (x *exchange) responseHeaders(h *extprocv3.HttpHeaders, now time.Time) responses {
	if x.inFlight != nil && !x.answer.Began() {
		x.readAnswer(h.GetHeaders())
		if x.hints.served != "" {
			x.server.Fleet.Moved(x.inFlight, x.hints.served)
		}
		if h.GetEndOfStream() {
			x.finish(now)
		}
	}
	if x.server.Conformance && x.hints.served != "" {
		return responses{answerHeadersOfAnswer(&extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
			SetHeaders: []*corev3.HeaderValueOption{header(wire.ServedHeader, x.hints.served)},
		}})}
	}
	return responses{goOnAnswer}
}

func (x *exchange) readAnswer(m *corev3.HeaderMap) {
	var status int
	var contentType, load, retryAfter string
	for _, h := range m.GetHeaders() {
		switch h.GetKey() {
		case ":status":
			status, _ = strconv.Atoi(value(h))
		case "content-type":
			contentType = value(h)
		case "endpoint-load-metrics":
			load = value(h)
		case "retry-after":
			retryAfter = value(h)
		}
	}
	x.answer.Headers(status, contentType, load, retryAfter)
}

// responseBody reads the next of the answer's body, and passes it on as it is.
func (x *exchange) responseBody(chunk []byte, end bool, now time.Time) responses {
	if x.answer.Began() && !x.finished {
		x.answer.Body(chunk, now)
		if end {
			x.finish(now)
		}
	}
	if x.shown == modeDuplex {
		return answerChunks(chunk, end)
	}
	return responses{goOnAnswerBody}
}

func (x *exchange) responseTrailers(now time.Time) responses {
	if x.answer.Began() {
		x.finish(now)
	}
	return responses{goOnAnswerTrailers}
}

// finish tells what became of the request, and counts it as gone.
func (x *exchange) finish(now time.Time) {
	if x.finished {
		return
	}
	x.finished = true
	x.inFlight.End()
	x.server.Fleet.Release(x.id)
	x.answeredAt = now
	x.observe(outcome.None, now.Sub(x.began))
}

// observe tells what became of the request, or as much of it as is shown. Where the access log tells, this would tell it
// twice. It says nothing of the decision's id, for the request may go on.
func (x *exchange) observe(f outcome.Failure, took time.Duration) {
	if x.front == Own {
		return
	}
	o := outcome.Outcome{
		Pool: x.target.Pool.String(), Model: x.model, Stream: x.stream,
		Endpoint: x.address, Failure: f, Attempts: 1, Duration: took, Began: x.began, Bytes: x.bytes, Expected: x.expected, Held: x.spent,
	}
	if x.target.Route != (objects.Name{}) {
		o.Route = x.target.Route.String()
	}
	if x.hints.served != "" {
		o.Endpoint = x.hints.served
	}
	if o.Endpoint == x.address {
		o.Adapter, o.Loading = x.adapter, x.loading
		if !x.answeredAt.IsZero() {
			o.Among, o.Answered = x.among, min(x.answeredAt.Sub(x.sentAt), x.answeredAt.Sub(x.begunAt))
		}
	}
	x.answer.Fill(&o, x.sentAt)
	x.server.Observe(o)
}

// end is the end of the stream, at a time. It may be called at any time and more than once.
func (x *exchange) end(now time.Time) {
	x.takeBack()
	_ = x.keep(0)
	if x.inFlight == nil || x.finished {
		return
	}
	x.finished = true
	if x.bound() {
		x.inFlight.End()
		x.server.Fleet.Release(x.id)
	}
	switch {
	case !x.answer.Began():
	case x.shown == modeNone:
		x.observe(outcome.None, 0) // the data plane shows no more than that it began
	default:
		x.observe(outcome.Cut, now.Sub(x.began))
	}
}
