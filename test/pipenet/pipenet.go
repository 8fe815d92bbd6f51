// Package pipenet is a network of pipes in memory, for servers and clients of one test: nothing leaves the process, and nothing waits for a clock but theirs,
// so that a test may run in a synctest bubble.
package pipenet

import (
	"context"
	"net"
	"sync"
)

// Listener accepts the connections that its Dial makes, whatever address they are for. Make one with [Listen]. It is safe for concurrent use.
type Listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Listen returns a Listener. In a synctest bubble it is made there.
func Listen() *Listener { return &Listener{conns: make(chan net.Conn), closed: make(chan struct{})} }

// Dial connects to the listener. It waits until that accepts, is closed (net.ErrClosed), or the context has ended (its error).
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

// Addr is an address of those reserved for documents (RFC 5737).
func (l *Listener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8000} }
