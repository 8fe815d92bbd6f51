// Package pipenet is an in-memory network for the servers and clients of one test. It uses no
// sockets, so that a test can run in a synctest bubble.
package pipenet

import (
	"context"
	"net"
	"sync"
)

// Listener accepts the connections that its Dial opens, for any address. Create one with [Listen].
// It is safe for concurrent use.
type Listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Listen returns a Listener. A test in a synctest bubble calls it inside the bubble.
func Listen() *Listener { return &Listener{conns: make(chan net.Conn), closed: make(chan struct{})} }

// Dial connects to the listener. It waits for Accept, and fails when the listener is closed
// (net.ErrClosed) or the context ends.
func (l *Listener) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept returns the next connection, or net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and Dial.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns an address that is reserved for documentation (RFC 5737).
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8000} }
