package loader

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
)

// site is an address in memory at which engines start and end.
type site struct {
	mu    sync.Mutex // guards the fields below
	door  *door      // nil: connections are refused
	conns []net.Conn
}

// door is a listener at a site.
type door struct {
	came   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (s *site) listen() net.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.door = &door{came: make(chan net.Conn), closed: make(chan struct{})}
	return s.door
}

func (s *site) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	s.mu.Lock()
	d := s.door
	s.mu.Unlock()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	if d == nil {
		return nil, refused
	}
	ours, theirs := net.Pipe()
	select {
	case d.came <- theirs:
		s.mu.Lock()
		defer s.mu.Unlock()
		s.conns = append(s.conns, theirs)
		return ours, nil
	case <-d.closed:
		return nil, refused
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// close closes the listener of the site and every connection.
func (s *site) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.door != nil {
		_ = s.door.Close()
	}
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	s.door, s.conns = nil, nil
}

// cut breaks the connections, but keeps the listener.
func (s *site) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close()
	}
	s.conns = nil
}

func (d *door) Accept() (net.Conn, error) {
	select {
	case conn := <-d.came:
		return conn, nil
	case <-d.closed:
		return nil, net.ErrClosed
	}
}

func (d *door) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

func (d *door) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 8000} }
