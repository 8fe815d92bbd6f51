package stream

import (
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// dropFor is how long extproc discards a body before it replies with an error.
const dropFor = time.Second

// late is the reply to a request whose body is discarded first.
type late struct {
	reply *extprocv3.ProcessingResponse
	timer *time.Timer // sends reply; nil if no body is dropped
}

// failLate replies with an error once the body has arrived, or after a second. Envoy closes the
// connection after its answer. Clients that send the whole body before they read, such as Python's
// http.client, would otherwise see a reset.
func (x *exchange) failLate(err error) responses {
	out := x.fail(err, "")
	if x.scope.front != Own || x.scope.mode != modeNone {
		return out
	}
	x.phase, x.scope.mode = dropping, modeDuplex
	x.late = late{reply: out[0], timer: time.AfterFunc(dropFor, func() { x.out.end(out[0]) })}
	return responses{askForMessages}
}

// failNow sends the reply of failLate, unless it was sent.
func (x *exchange) failNow() {
	x.phase = replied
	x.out.end(x.late.reply)
	x.stopLate()
}

// stopLate cancels the delayed reply.
func (x *exchange) stopLate() {
	if x.late.timer != nil {
		x.late.timer.Stop()
		x.out.end(nil)
	}
}
