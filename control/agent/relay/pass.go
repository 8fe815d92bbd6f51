package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"time"
)

const (
	// defaultLastWords is how long a client may be silent after the engine has ended its side of
	// the connection. Then the connection is closed. Without the relay, the engine's kernel forgets
	// such a connection after a minute, too (tcp_fin_timeout).
	defaultLastWords = time.Minute
	// lastAnswer is how long an engine may still answer after its connection to the client broke in
	// the other direction: it may have answered before it has read the whole request.
	lastAnswer = time.Second
)

// duplex is a connection whose sides end separately: TCP, a Unix socket, or TLS.
type duplex interface {
	net.Conn
	CloseWrite() error
}

// pass relays one connection of a client, and returns when it has ended. If the engine refuses the
// connection, it resets that of the client.
func (r *Relay) pass(ctx context.Context, client duplex) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	engine, err := r.config.Engine.dial(ctx)
	if err != nil {
		reset(client)
		r.metrics.failed.Inc()
		if !isBusy(err) {
			signal(r.refused)
		}
		return
	}
	if r.config.TLS != nil {
		secure := tls.Server(client, r.config.TLS)
		if err := secure.HandshakeContext(ctx); err != nil {
			reset(client)
			_ = engine.Close()
			return
		}
		client = secure
	}
	cancel()
	r.join(client, engine)
}

// join copies bytes in both directions until both sides have ended. The end of one side is passed
// on as such; a reset ends both.
//
// Between plain connections the kernel moves the bytes (splice, on Linux), so that they are not
// copied into this process.
func (r *Relay) join(client, engine duplex) {
	sent := make(chan struct{}) // closed when the client has sent everything
	go func() {
		defer close(sent)
		if r.send(engine, client) != nil {
			_ = engine.SetReadDeadline(time.Now().Add(lastAnswer))
		}
		_ = engine.CloseWrite()
	}()
	_, err := copyBytes(client, engine)
	select {
	case <-sent:
	default:
		signal(r.suspect)
	}
	if err != nil {
		reset(client)
		reset(engine)
	} else {
		_ = client.CloseWrite()
		_ = client.SetReadDeadline(time.Now().Add(r.lastWords))
	}
	<-sent
	_ = client.Close()
	_ = engine.Close()
}

// send copies bytes until the client ends its side. If the client has a read deadline, it extends
// the deadline while bytes arrive.
func (r *Relay) send(engine io.Writer, client net.Conn) error {
	for {
		n, err := copyBytes(engine, client)
		if n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err := client.SetReadDeadline(time.Now().Add(r.lastWords)); err != nil {
			return err
		}
	}
}

// reset closes a connection. The peer of a TCP connection receives a reset instead of an end, so
// that it does not accept a truncated answer as complete.
func reset(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0)
	}
	_ = conn.Close()
}
