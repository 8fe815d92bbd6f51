// Package pipenet is an in-memory network for the servers and clients of one test. It uses no
// sockets, so that a test can run in a synctest bubble.
package pipenet

import (
	"context"
	"net"
	"sync"
)

// Listener is a net.Listener for connections from its own Dial, whatever address is dialled. Create
// one with [Listen]. It is safe for concurrent use.
type Listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Listen returns a new Listener. A test in a synctest bubble must call it inside the bubble.
func Listen() *Listener { return &Listener{conns: make(chan net.Conn), closed: make(chan struct{})} }

// Dial connects to the listener. It waits until the connection is accepted. It fails if the context
// ends or the listener is closed (net.ErrClosed).
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

// Accept waits for the next connection and returns it. It returns net.ErrClosed if the listener is
// closed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close makes all calls of Accept and Dial fail.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr returns a fixed address that is reserved for documentation (RFC 5737).
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8000} }
