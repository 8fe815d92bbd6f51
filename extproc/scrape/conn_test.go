package scrape_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/scrape"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// scripted is an engine that answers requests for pages with bytes that a test determines.
type scripted struct {
	address string
	all     sync.WaitGroup

	mu       sync.Mutex
	requests []string // all requests, byte for byte
	opened   int      // number of connections
	open     int      // number of connections that the scraper has not closed
	closed   *sync.Cond
}

// script starts an engine. Reply answers a request for a path; if it returns false, the engine
// closes the connection.
func script(t *testing.T, reply func(c net.Conn, path string) bool) *scripted {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{address: l.Addr().String()}
	s.closed = sync.NewCond(&s.mu)
	t.Cleanup(func() {
		_ = l.Close()
		s.all.Wait()
	})
	s.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.all.Go(func() { s.serve(c, reply) })
		}
	})
	return s
}

func (s *scripted) serve(c net.Conn, reply func(c net.Conn, path string) bool) {
	count := func(opened, open int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.opened, s.open = s.opened+opened, s.open+open
		s.closed.Broadcast()
	}
	count(1, 1)
	defer count(0, -1)
	defer c.Close()
	r := bufio.NewReader(c)
	for {
		var text strings.Builder
		for !strings.HasSuffix(text.String(), "\r\n\r\n") {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			text.WriteString(line)
		}
		s.mu.Lock()
		s.requests = append(s.requests, text.String())
		s.mu.Unlock()
		if !reply(c, strings.Fields(text.String())[1]) {
			return
		}
	}
}

// connections returns how many connections were opened.
func (s *scripted) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened
}

// seven is a page with seven running requests.
const seven = "vllm:num_requests_running 7\nvllm:num_requests_waiting 0\n"

// whole returns an answer with its length.
func whole(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

// padded returns the page with seven requests and comments, of this length.
func padded(n int) string { return seven + "#" + strings.Repeat("x", n-len(seven)-2) + "\n" }

// Engines that answer slowly, in chunks, with a redirect or in an old version of HTTP, with long
// pages, with two pages in one packet, or that close connections, are scraped without any failure.
func TestAnswersInEveryForm(t *testing.T) {
	var late atomic.Bool // whether a page that nobody asked for may have arrived after the next request
	send := func(c net.Conn, parts ...string) bool {
		for _, part := range parts {
			if _, err := io.WriteString(c, part); err != nil {
				return false
			}
		}
		return true
	}
	chunked := func(body string, size int) (parts []string) {
		parts = append(parts, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for len(body) > 0 {
			n := min(size, len(body))
			parts = append(parts, fmt.Sprintf("%x\r\n%s\r\n", n, body[:n]))
			body = body[n:]
		}
		return append(parts, "0\r\n\r\n")
	}
	for name, c := range map[string]struct {
		metrics func(c net.Conn) bool
		keeps   bool // whether the connection is used for all scrapes
	}{
		"a length":              {func(c net.Conn) bool { return send(c, whole(seven)) }, true},
		"byte by byte":          {func(c net.Conn) bool { return send(c, strings.Split(whole(seven), "")...) }, true},
		"chunks":                {func(c net.Conn) bool { return send(c, chunked(seven, 10)...) }, true},
		"chunks in one packet":  {func(c net.Conn) bool { return send(c, strings.Join(chunked(seven, 10), "")) }, true},
		"many chunks":           {func(c net.Conn) bool { return send(c, strings.Join(chunked(padded(300<<10), 4000), "")) }, true},
		"a long page":           {func(c net.Conn) bool { return send(c, whole(padded(1<<20))) }, true},
		"the end is the length": {func(c net.Conn) bool { return send(c, "HTTP/1.1 200 OK\r\n\r\n", seven) && false }, false},
		"it says it closes": {func(c net.Conn) bool {
			return send(c, strings.Replace(whole(seven), "\r\n", "\r\nConnection: close\r\n", 1)) && false
		}, false},
		"it closes": {func(c net.Conn) bool { return send(c, whole(seven)) && false }, false},
		"two pages in one packet": {func(c net.Conn) bool {
			return send(c, whole(seven)+whole("vllm:num_requests_running 8\n"))
		}, false},
		"a page that nobody asked for": {func(c net.Conn) bool {
			sent, began := send(c, whole(padded(100<<10))), time.Now()
			sent = sent && send(c, whole("vllm:num_requests_running 8\n"))
			late.Store(late.Load() || time.Since(began) > time.Millisecond)
			return sent
		}, false},
		"HTTP/1.0": {func(c net.Conn) bool {
			return send(c, strings.Replace(whole(seven), "HTTP/1.1", "HTTP/1.0", 1)) && false
		}, false},
		"a hint before the answer": {func(c net.Conn) bool {
			return send(c, "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", whole(seven))
		}, false},
		"a trailer": {func(c net.Conn) bool {
			return send(c, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\nX: 1\r\n\r\n",
				len(seven), seven))
		}, false},
		"a redirect": {func(c net.Conn) bool {
			return send(c, "HTTP/1.1 307 Temporary Redirect\r\nLocation: /metrics/\r\nContent-Length: 0\r\n\r\n")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := script(t, func(conn net.Conn, path string) bool {
				switch path {
				case "/v1/models":
					return send(conn, whole(models))
				case "/metrics/":
					return send(conn, whole(seven))
				}
				return c.metrics(conn)
			})
			scrapes := 0
			s := scrapeFor(t, scrape.Config{}, plain(e.address), targets(e.address))
			s.until("scraped often", func(is endpointstate.Status, err error) bool {
				scrapes++
				if is.Load.Running == engine.Known(8) && late.Load() {
					t.Skip("the engine sent the page after the next request")
				}
				if err != nil || is.State != pick.Healthy || is.Load.Running != engine.Known(7) || len(is.Base) != 1 {
					t.Fatalf("scrape %d: %v, %+v", scrapes, err, is)
				}
				return scrapes == 20
			})
			if n := e.connections(); (n == 1) != c.keeps {
				t.Errorf("%d connections; one is used for all scrapes: want %t", n, c.keeps)
			}
		})
	}
}

// Answers that are no page fail as they do with net/http.
func TestBrokenAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		metrics string
		fault   string // error; empty for none
		is      error  // error that the fault wraps
		state   pick.State
	}{
		"a page of the maximum size": {whole(padded(16 << 20)), "", nil, pick.Healthy},
		"a longer page":              {whole(padded(16<<20 + 1)), "more than 16777216 bytes", nil, pick.Out},
		"a page cut in the middle":   {whole(padded(1 << 20))[:1<<19], "GET /metrics: unexpected EOF", io.ErrUnexpectedEOF, pick.Out},
		"a head cut in the middle":   {whole(seven)[:20], "GET /metrics: unexpected EOF", io.ErrUnexpectedEOF, pick.Out},
		"no answer":                  {"", "GET /metrics: EOF", io.EOF, pick.Out},
		"an error":                   {"HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\nno", "GET /metrics: the engine answers 500", nil, pick.Out},
		"no access":                  {"HTTP/1.1 401 Oops\r\nContent-Length: 2\r\n\r\nno", "requires a token", nil, pick.Out},
		"no HTTP":                    {"SSH-2.0-OpenSSH\r\n", "malformed HTTP", nil, pick.Out},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := script(t, func(conn net.Conn, path string) bool {
				text := c.metrics
				if path == "/v1/models" {
					text = whole(models)
				}
				_, err := io.WriteString(conn, text)
				return err == nil && path == "/v1/models"
			})
			s := scrapeFor(t, scrape.Config{}, plain(e.address), targets(e.address))
			s.until("scraped", func(is endpointstate.Status, err error) bool {
				if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) ||
					c.is != nil && !errors.Is(err, c.is) {
					t.Fatalf("the error is %v, want %q", err, c.fault)
				}
				return is.State == c.state
			})
		})
	}
}

// An engine that does not answer fails after a second, and its scrape ends at once when the scraper
// stops.
func TestSilentEngine(t *testing.T) {
	asked := make(chan struct{}, 100)
	e := script(t, func(conn net.Conn, _ string) bool {
		asked <- struct{}{}
		_, _ = io.Copy(io.Discard, conn) // until the scraper closes it
		return false
	})
	f := fleet.New(fleet.Config{})
	w := plain(e.address)
	f.SetWorld(w)
	ended := make(chan error, 100)
	s := scrape.New(scrape.Config{
		Fleet: f, Interval: interval, ModelsInterval: time.Second, Log: slog.New(slog.DiscardHandler),
		Scraped: func(err error) { ended <- err },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	began := time.Now()
	s.SetTargets(targets(e.address))
	<-asked
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) < time.Second {
		t.Errorf("after %v the error is %v", time.Since(began), err)
	}
	<-asked
	began = time.Now()
	cancel()
	<-done
	if took := time.Since(began); took > 800*time.Millisecond {
		t.Errorf("the scraper stops after %v", took)
	}
}

// The connections of endpoints that leave are closed, and nothing is left of them.
func TestNothingIsLeftOfEndpoints(t *testing.T) {
	reply := func(conn net.Conn, path string) bool {
		text := seven
		if path == "/v1/models" {
			text = models
		}
		_, err := io.WriteString(conn, whole(text))
		return err == nil
	}
	engines, addresses := []*scripted{}, []string{}
	for range 10 {
		e := script(t, reply)
		engines, addresses = append(engines, e), append(addresses, e.address)
	}
	scraped := make(chan struct{}, 1000)
	f := fleet.New(fleet.Config{})
	f.SetWorld(plain(addresses...))
	s := scrape.New(scrape.Config{
		Fleet: f, Interval: interval, ModelsInterval: time.Second, Log: slog.New(slog.DiscardHandler),
		Scraped: func(error) { scraped <- struct{}{} },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	gone := func(engines []*scripted) {
		for _, e := range engines {
			e.mu.Lock()
			for e.open > 0 { // the test times out if the scraper keeps it
				e.closed.Wait()
			}
			e.mu.Unlock()
		}
	}
	s.SetTargets(targets(addresses...))
	for range 2 * len(addresses) {
		<-scraped
	}
	s.SetTargets(targets(addresses[:3]...))
	gone(engines[3:])
	if n := s.Loops(); n != 3 {
		t.Errorf("%d endpoints are left, want 3", n)
	}
	s.SetTargets(nil)
	gone(engines)
	if n := s.Loops(); n != 0 {
		t.Errorf("%d endpoints are left", n)
	}
	s.SetTargets(targets(addresses...))
	for range addresses {
		<-scraped
	}
	cancel()
	<-done // all goroutines have ended
	gone(engines)
}

// Requests are those that net/http sends, byte for byte, with the current token.
func TestRequestsAreThoseOfNetHTTP(t *testing.T) {
	reply := func(conn net.Conn, path string) bool {
		text := seven
		if path == "/v1/models" {
			text = models
		}
		_, err := io.WriteString(conn, whole(text))
		return err == nil
	}
	for _, host := range []string{"", "engine.test"} {
		var token string
		var mu sync.Mutex
		tokens := engineclient.NewTokens(func() string {
			mu.Lock()
			defer mu.Unlock()
			return token
		})
		e := script(t, reply)
		access := engineclient.Access{Tokens: tokens}
		sent := func(transport http.RoundTripper, with string) string {
			mu.Lock()
			token = with
			mu.Unlock()
			e.mu.Lock()
			e.requests = nil
			e.mu.Unlock()
			t.Run("", func(t *testing.T) {
				s := scrapeFor(t, scrape.Config{Access: access, Transport: transport}, plain(e.address),
					[]scrape.Target{{Address: e.address, Host: host, Kind: engine.VLLM}})
				s.until("scraped", func(is endpointstate.Status, _ error) bool { return is.Load.Running == engine.Known(7) })
			})
			e.mu.Lock()
			defer e.mu.Unlock()
			return strings.Join(e.requests[:2], "")
		}
		for _, token := range []string{"", "secret"} {
			if got, want := sent(nil, token), sent(access.Transport(time.Second), token); got != want {
				t.Errorf("sent\n%s\nwant\n%s", got, want)
			}
		}
	}
}
