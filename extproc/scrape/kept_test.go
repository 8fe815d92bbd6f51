package scrape_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/scrape"
	"github.com/headgate/headgate/internal/engineclient"
)

// pages answers as an engine with a model and seven running requests.
func pages(conn net.Conn, path string) bool {
	text := seven
	if path == "/v1/models" {
		text = models
	}
	_, err := io.WriteString(conn, whole(text))
	return err == nil
}

// A connection is kept although the deadline of the last scrape has passed, as it has when scrapes
// are rare.
func TestConnectionsOutliveTheirDeadlines(t *testing.T) {
	e := script(t, pages)
	var mu sync.Mutex
	var dialed []net.Conn
	access := engineclient.Access{Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		mu.Lock()
		defer mu.Unlock()
		dialed = append(dialed, conn)
		return conn, err
	}}
	const scrapes = 4
	scraped := make(chan error, 100)
	f := fleet.New(fleet.Config{})
	f.SetWorld(plain(e.address))
	s := scrape.New(scrape.Config{
		Fleet: f, Interval: interval, ModelsInterval: time.Second, Access: access, Log: slog.New(slog.DiscardHandler),
		Scraped: func(err error) { // runs between two scrapes
			mu.Lock()
			for _, conn := range dialed {
				_ = conn.SetDeadline(time.Unix(1, 0))
			}
			mu.Unlock()
			scraped <- err
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Run(ctx)
	}()
	s.SetTargets(targets(e.address))
	for range scrapes {
		if err := <-scraped; err != nil {
			t.Error(err)
		}
	}
	cancel()
	<-done
	if n := e.connections(); n != 1 {
		t.Errorf("%d connections are opened for %d scrapes, want 1", n, scrapes)
	}
}

// A new token is sent with the next scrape, although requests are made once.
func TestRequestsHaveTheCurrentToken(t *testing.T) {
	e := script(t, pages)
	var token atomic.Value
	token.Store("old")
	access := engineclient.Access{Tokens: engineclient.NewTokens(func() string { return token.Load().(string) })}
	with := func(token string) func(endpointstate.Status, error) bool {
		return func(endpointstate.Status, error) bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return len(e.requests) > 0 && strings.Contains(e.requests[len(e.requests)-1], "\r\nAuthorization: Bearer "+token+"\r\n")
		}
	}
	s := scrapeFor(t, scrape.Config{Access: access}, plain(e.address), targets(e.address))
	s.until("the token is sent", with("old"))
	token.Store("new")
	s.until("the new token is sent", with("new"))
}
