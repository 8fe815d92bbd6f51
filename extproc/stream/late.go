package stream

import (
	"time"
)

// dropFor is how long extproc discards a body before it replies with an error.
const dropFor = time.Second

// late is an error reply that is sent after the body has been discarded.
type late struct {
	reply *message
	timer *time.Timer // sends reply after dropFor; nil if there is no late reply
}

// failLate replies with an error when the body has arrived, at the latest after dropFor. Envoy
// closes the connection after the reply. Clients that send the whole body before they read, such as
// Python's http.client, would get a connection reset if the reply came earlier.
func (x *exchange) failLate(err error) responses {
	out := x.fail(err, "")
	if x.scope.front != Own || x.scope.mode != modeNone {
		return out
	}
	x.phase, x.scope.mode = dropping, modeDuplex
	x.late = late{reply: out[0], timer: time.AfterFunc(dropFor, func() { x.out.end(out[0]) })}
	return responses{askForMessages}
}

// failNow sends the reply of failLate, unless it has been sent.
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
