package kube_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// wire carries connections to an address, until it is cut.
type wire struct {
	listener net.Listener
	to       string

	mu    sync.Mutex // guards what follows
	alive map[net.Conn]bool
	dead  bool
}

func newWire(t *testing.T, to string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: l, to: to, alive: make(map[net.Conn]bool)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { w.carry(from) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		w.cut()
		running.Wait()
	})
	return w
}

func (w *wire) address() string { return w.listener.Addr().String() }

// cut ends all connections, and those that come.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = true
	for c := range w.alive {
		_ = c.Close()
	}
}

// mend restores the connection for everything that is sent from now on.
func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dead = false
}

// keep reports whether the wire is connected. It registers these connections, to be cut later with
// all others.
func (w *wire) keep(ends ...net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range ends {
		w.alive[c] = true
	}
	return !w.dead
}

func (w *wire) carry(from net.Conn) {
	defer from.Close()
	to, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer to.Close()
	if !w.keep(from, to) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(from, to)
		_ = from.Close()
	})
	_, _ = io.Copy(to, from)
	_ = to.Close()
	back.Wait()
}
