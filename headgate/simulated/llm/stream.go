package llm

import (
	"net/http"
	"time"
)

// dialect writes the stream events of one API. Each method appends events to b: open those before
// the first token, begin those with the first token, and end those after the last token.
type dialect interface {
	open(b []byte) []byte
	begin(b []byte) []byte
	token(b []byte, i int) []byte
	end(b []byte) []byte
}

// stream sends an event stream. It sends status, headers and opening events immediately, and other
// events with their tokens. It returns nil, or abandoned if the stream was cut off.
func (g *generation) stream(d dialect) *failure {
	c, driver := g.c, g.c.s.driver
	c.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	c.begin(http.StatusOK)
	if !c.send(d.open(nil)) {
		driver.cancel(g.ticket)
		return nil
	}
	quiet := newSilence(c.s.config.KeepAlive)
	defer quiet.stop()
	var b []byte
	for sent, total := 0, len(g.ticket.request.Output); sent < total; {
		produced, why := driver.wait(c.r.Context(), g.ticket, sent, quiet.over)
		switch {
		case why == gone:
			driver.cancel(g.ticket)
			return abandoned
		case why == silent:
			b = append(b[:0], ": keep-alive\n\n"...)
			produced = sent
		case sent == 0:
			b = d.begin(b[:0])
		default:
			b = b[:0]
		}
		for ; sent < produced && sent != c.resetAfter; sent++ {
			b = d.token(b, sent)
		}
		if sent == total {
			b = d.end(b)
		}
		if !c.send(b) {
			driver.cancel(g.ticket)
			return nil
		}
		if sent == c.resetAfter && sent < total {
			driver.cancel(g.ticket)
			c.reset()
			return nil
		}
		quiet.restart()
	}
	return nil
}

// send writes and flushes a part of a stream. It returns false if the client has disconnected.
func (c *call) send(b []byte) bool {
	if _, err := c.w.Write(b); err != nil {
		return false
	}
	return http.NewResponseController(c.w).Flush() == nil
}

// silence is a timer that fires when nothing was sent for the keep-alive interval.
type silence struct {
	over  <-chan time.Time // nil if there are no keep-alives; then it never fires
	after time.Duration
	timer *time.Timer
}

func newSilence(after time.Duration) *silence {
	if after == 0 {
		return &silence{}
	}
	timer := time.NewTimer(after)
	return &silence{over: timer.C, after: after, timer: timer}
}

func (s *silence) restart() {
	if s.timer != nil {
		s.timer.Reset(s.after)
	}
}

func (s *silence) stop() {
	if s.timer != nil {
		s.timer.Stop()
	}
}
