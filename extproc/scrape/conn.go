package scrape

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/headgate/headgate/internal/engine"
)

// Steps by which buffers grow while a page is read.
const (
	// minRoom is the least room for a read.
	minRoom = 4 << 10
	// maxRoom limits the memory for a page whose length an engine announces and does not send.
	maxRoom = 256 << 10
)

// conn is a kept connection to an endpoint, for plain HTTP/1.1. Only one goroutine uses it.
type conn struct {
	net.Conn
	address string
	raw     syscall.RawConn // access to the socket; nil if the connection is none
	kept    bool            // whether a response was read from it
	release func() bool     // ends the effect of the context on the connection
	first   [512]byte       // beginning of a response, so that waiting for one takes no shared buffer
}

// close closes the connection. A nil conn is allowed.
func (c *conn) close() {
	if c != nil {
		c.release()
		_ = c.Close()
	}
}

// ready reports whether a request can be sent: the engine has neither closed the connection nor
// sent anything since the last response. Such bytes would be taken for the next response.
func (c *conn) ready() bool {
	if c.raw == nil {
		return true
	}
	var failed error
	err := c.raw.Read(func(fd uintptr) bool {
		_, _, failed = syscall.Recvfrom(int(fd), c.first[:1], syscall.MSG_PEEK|syscall.MSG_DONTWAIT) //nolint:gosec // a descriptor
		return true
	})
	return err == nil && errors.Is(failed, syscall.EAGAIN)
}

// plainly reports whether a target is scraped over plain HTTP/1.1 without net/http, unless net/http
// must read its responses.
func (s *Scraper) plainly(t Target) bool {
	const zone = "%" // net/http leaves the zone of an IPv6 address out of the header Host
	return s.direct && !t.H2C && !s.Access.Over(t.TLS, t.H2C).Secure() && !strings.Contains(t.Address, zone) &&
		!strings.ContainsFunc(t.Host, func(r rune) bool { return r <= ' ' || r > '~' })
}

// request returns the bytes of a request for a page. They are made once, unless the token changes.
func (l *loop) request(page engine.Page) []byte {
	if token := l.Access.With(l.Token).Bearer(); l.requests == nil || token != l.sent {
		l.requests, l.sent = make(map[engine.Page][]byte), token
	}
	made := l.requests[page]
	if made == nil {
		host := l.where(page)
		if _, port, err := net.SplitHostPort(host); err == nil && l.Host != "" {
			host = net.JoinHostPort(l.Host, port)
		}
		made = fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: Go-http-client/1.1\r\nAccept: %s\r\n", page.Path, host, accept)
		if l.sent != "" {
			made = fmt.Appendf(made, "Authorization: Bearer %s\r\n", l.sent)
		}
		made = append(made, "\r\n"...)
		l.requests[page] = made
	}
	return made
}

// slot returns where the connection for an address is kept: one to the endpoint itself, and one to
// another port for its metrics.
func (l *loop) slot(address string) **conn {
	if address == l.where(modelsPage) {
		return &l.conns[0]
	}
	return &l.conns[1]
}

// disconnect closes the connections of the endpoint.
func (l *loop) disconnect() {
	for i := range l.conns {
		l.conns[i].close()
		l.conns[i] = nil
	}
}

// connection returns the kept connection to an address, or a new one. The deadline applies to all
// that follows on it. It is set before ready, which cannot read after the deadline of the last
// scrape.
func (l *loop) connection(ctx context.Context, address string, deadline time.Time) (*conn, error) {
	kept := l.slot(address)
	if c := *kept; c != nil && c.address == address && c.SetDeadline(deadline) == nil && c.ready() {
		return c, nil
	}
	(*kept).close()
	*kept = nil
	dialing, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	fresh, err := l.Access.DialContext(dialing, "tcp", address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: fresh, address: address, release: context.AfterFunc(ctx, func() { _ = fresh.Close() })}
	if socket, ok := fresh.(syscall.Conn); ok {
		c.raw, _ = socket.SyscallConn()
	}
	*kept = c
	return c, c.SetDeadline(deadline)
}

// getPlainly reads a page over the kept connection. The error errRefused means that net/http must
// read it. If the engine has closed the connection since the last scrape, getPlainly opens another.
func (l *loop) getPlainly(ctx context.Context, of engine.Page) (status int, is page, err error) {
	request, address, deadline := l.request(of), l.where(of), time.Now().Add(timeout)
	for {
		c, err := l.connection(ctx, address, deadline)
		if err != nil {
			return 0, page{}, err
		}
		r, buffer, err := c.get(request, l.buffers)
		again := c.kept && buffer == nil && !errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil
		if c.kept = err == nil && !r.last && r.excess(buffer) == 0; !c.kept {
			*l.slot(address) = nil
			c.close()
		}
		switch {
		case err == nil:
			return r.status, page{buffer[r.body : r.body+r.have], r.media, buffer}, nil
		case !again:
			l.buffers.put(buffer)
			return 0, page{}, err
		}
	}
}

// get sends a request and reads the response. If it returns no buffer, nothing was received.
func (c *conn) get(request []byte, shared *buffers) (r response, buffer []byte, err error) {
	r.limit = maxPage
	if _, err := c.Write(request); err != nil {
		return r, nil, err
	}
	n, failed := c.Read(c.first[:])
	if n == 0 {
		return r, nil, cmp.Or(failed, io.ErrNoProgress)
	}
	buffer = append(shared.get(), c.first[:n]...)
	for {
		var done bool
		switch buffer, done, err = r.advance(buffer); {
		case done || err != nil:
			return r, buffer, err
		case errors.Is(failed, io.EOF):
			return r, buffer, io.ErrUnexpectedEOF
		case failed != nil:
			return r, buffer, failed
		}
		if room := cap(buffer) - len(buffer); room < minRoom || room < r.missing() {
			buffer = slices.Grow(buffer, min(max(r.missing(), len(buffer), minRoom), maxRoom))
		}
		n, failed = c.Read(buffer[len(buffer):cap(buffer)])
		buffer = buffer[:len(buffer)+n]
	}
}
