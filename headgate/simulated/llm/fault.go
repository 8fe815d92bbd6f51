package llm

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// FaultHeader is a request header with faults for that request, separated by commas. See ParseFault
// for their syntax.
const FaultHeader = "X-Sim-Fault"

// Fault is an injected fault. Create it with ParseFault.
type Fault struct {
	kind        faultKind
	latency     time.Duration
	number      int // the error status, or the number of tokens before a reset
	idle        time.Duration
	probability float64 // from 0 to 1
}

type faultKind uint8

const (
	faultLatency faultKind = iota + 1
	faultStatus
	faultReset
	faultResetAfter
	faultHang
	faultIdle
)

// ParseFault parses a fault:
//
//	latency=DURATION  delay the request
//	status=CODE       answer with this error status, 400 to 599
//	reset             reset the connection without an answer
//	reset-after=N     reset a stream after N tokens; other requests are unaffected
//	hang              never answer
//	idle=DURATION     reset the connection if it was idle for this time
//
// Each may end with @PROBABILITY, a number from 0 to 1; the default is 1.
func ParseFault(text string) (Fault, error) {
	what, chance, limited := strings.Cut(text, "@")
	f := Fault{probability: 1}
	if limited {
		p, err := strconv.ParseFloat(chance, 64)
		if err != nil || !(p >= 0 && p <= 1) {
			return Fault{}, fmt.Errorf("fault %q: %q is not a probability from 0 to 1", text, chance)
		}
		f.probability = p
	}
	name, value, hasValue := strings.Cut(what, "=")
	var err error
	switch name {
	case "latency":
		f.kind = faultLatency
		if f.latency, err = time.ParseDuration(value); err != nil || f.latency < 0 {
			return Fault{}, fmt.Errorf("fault %q: %q is not a duration such as 200ms", text, value)
		}
	case "status":
		f.kind = faultStatus
		if f.number, err = strconv.Atoi(value); err != nil || f.number < 400 || f.number > 599 {
			return Fault{}, fmt.Errorf("fault %q: %q is not a status from 400 to 599", text, value)
		}
	case "reset-after":
		f.kind = faultResetAfter
		if f.number, err = strconv.Atoi(value); err != nil || f.number < 0 {
			return Fault{}, fmt.Errorf("fault %q: %q is not a number of tokens", text, value)
		}
	case "idle":
		f.kind = faultIdle
		if f.idle, err = time.ParseDuration(value); err != nil || f.idle <= 0 {
			return Fault{}, fmt.Errorf("fault %q: %q is not a duration such as 200ms", text, value)
		}
	case "reset", "hang":
		f.kind = faultReset
		if name == "hang" {
			f.kind = faultHang
		}
		if hasValue {
			return Fault{}, fmt.Errorf("fault %q: %s has no value", text, name)
		}
	default:
		return Fault{}, fmt.Errorf("fault %q: there are latency=DURATION, status=CODE, reset, reset-after=N, hang and idle=DURATION", text)
	}
	return f, nil
}

// parseFaults parses several texts, each with one or more faults separated by commas.
func parseFaults(texts []string) (faults []Fault, err error) {
	for _, text := range texts {
		for part := range strings.SplitSeq(text, ",") {
			f, err := ParseFault(strings.TrimSpace(part))
			if err != nil {
				return nil, err
			}
			faults = append(faults, f)
		}
	}
	return faults, nil
}

// applyFaults draws at random which faults happen and applies those. It reports whether the request
// continues.
func (c *call) applyFaults(faults []Fault) bool {
	// net/http notices that a client disconnects only after the body is read.
	body, f := c.readAll()
	if f != nil {
		c.fail(f)
		return false
	}
	c.r.Body = io.NopCloser(bytes.NewReader(body))
	draws := rand.New(rand.NewPCG(c.s.config.Seed, c.number))
	for _, f := range faults {
		if draws.Float64() >= f.probability {
			continue
		}
		switch f.kind {
		case faultLatency:
			if !c.pause(f.latency) {
				return false
			}
		case faultStatus:
			injected := failure{f.number, "InjectedFault", fmt.Sprintf("fault injected: status=%d", f.number), ""}
			_ = c.json(f.number, injected.body())
			return false
		case faultReset:
			c.reset()
			return false
		case faultResetAfter:
			c.resetAfter = f.number
		case faultHang:
			c.pause(-1)
			return false
		case faultIdle:
			if idled(c.r.Context()) > f.idle {
				c.reset()
				return false
			}
		}
	}
	return true
}

// pause waits for a duration, or for ever if it is negative. It returns false if the client
// disconnects.
func (c *call) pause(d time.Duration) bool {
	var over <-chan time.Time
	if d >= 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-over:
		return true
	case <-c.r.Context().Done():
	case <-c.s.driver.cut:
	}
	c.abandon()
	return false
}

// idleKey is the context key of a *connection.
type idleKey struct{}

// connection is a server's connection, which may be idle.
type connection struct {
	since   atomic.Int64 // when it became idle, in Unix nanoseconds; 0 at first
	expired atomic.Int64 // since of the idle period whose time is over
	idle    atomic.Bool
	timer   *time.Timer // closes it
}

// closeIdle makes a server close connections that are idle for idleTimeout, and records their idle
// times, which idled returns.
//
// The server's own IdleTimeout would also close a connection with an unread request when the engine
// was stopped, or had no CPU time, for that long. vLLM's server then reads the request first.
func closeIdle(server *http.Server) {
	var connections sync.Map // from net.Conn to *connection
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		c := new(connection)
		c.timer = time.AfterFunc(time.Hour, func() {
			since := c.since.Load()
			if left := idleTimeout - time.Since(time.Unix(0, since)); left > 0 {
				c.timer.Reset(left) // it was in use in the meantime
			} else if c.expired.Swap(since) != since {
				c.timer.Reset(readTime)
			} else if c.idle.Load() {
				_ = conn.Close()
			}
		})
		c.timer.Stop()
		connections.Store(conn, c)
		return context.WithValue(ctx, idleKey{}, c)
	}
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		found, ok := connections.Load(conn)
		if !ok {
			return
		}
		c := found.(*connection)
		c.idle.Store(state == http.StateIdle)
		switch state {
		case http.StateIdle:
			c.since.Store(time.Now().UnixNano())
			c.timer.Reset(idleTimeout)
		case http.StateActive:
			c.timer.Stop()
		case http.StateHijacked, http.StateClosed:
			c.timer.Stop()
			connections.Delete(conn)
		case http.StateNew:
		}
	}
}

// readTime is the time in which a server reads a request that has arrived.
const readTime = 100 * time.Millisecond

// idled returns how long the connection of a request was idle before it; 0 for the first request.
func idled(ctx context.Context) time.Duration {
	c, _ := ctx.Value(idleKey{}).(*connection)
	if c == nil || c.since.Load() == 0 {
		return 0
	}
	return time.Since(time.Unix(0, c.since.Load()))
}

// reset resets the TCP connection, before the answer or in the middle of it.
func (c *call) reset() {
	conn, _, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		// An error does not matter, since the connection is closed next.
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
