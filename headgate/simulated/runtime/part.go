package runtime

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// part splits the connections of a listener into those with HTTP/1 (requests) and those with gRPC
// (calls). As in real engines, gRPC has its own server, because a call through an HTTP server
// cannot end with only a status. Closing either listener closes both.
func part(l net.Listener) (requests, calls net.Listener) {
	p := &parting{Listener: l, done: make(chan struct{})}
	a, b := &parted{p, make(chan net.Conn)}, &parted{p, make(chan net.Conn)}
	go p.run(a.conns, b.conns)
	return a, b
}

type parting struct {
	net.Listener
	once sync.Once
	done chan struct{} // closed when the listener is closed
}

func (p *parting) close() (err error) {
	p.once.Do(func() {
		close(p.done)
		err = p.Close()
	})
	return err
}

func (p *parting) run(requests, calls chan net.Conn) {
	for {
		conn, err := p.Accept()
		if err != nil {
			_ = p.close()
			return
		}
		go func() {
			c := &begun{Conn: conn, reader: bufio.NewReader(conn)}
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			first, err := c.reader.Peek(3)
			_ = conn.SetReadDeadline(time.Time{})
			to := requests
			if string(first) == "PRI" { // start of the preface of HTTP/2 (RFC 9113, 3.4)
				to = calls
			}
			if err == nil {
				select {
				case to <- c:
					return
				case <-p.done:
				}
			}
			_ = conn.Close()
		}()
	}
}

// parted is one of the two listeners that part returns.
type parted struct {
	*parting
	conns chan net.Conn
}

func (l *parted) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *parted) Close() error { return l.close() }

// begun is a connection whose first bytes were already read.
type begun struct {
	net.Conn
	reader *bufio.Reader
}

func (c *begun) Read(p []byte) (int, error) { return c.reader.Read(p) }
