package scrape

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// The memory for unused buffers is bounded, whatever pages were read.
func TestUnusedBuffersAreBounded(t *testing.T) {
	b := newBuffers()
	var used [][]byte
	for range 100 {
		used = append(used, append(b.get(), make([]byte, 80<<10)...))
	}
	b.put(nil)
	b.put(make([]byte, 16<<20)) // a page of this size is rare
	for _, buffer := range used {
		b.put(buffer)
	}
	total := 0
	for len(b.free) > 0 {
		buffer := <-b.free
		if len(buffer) != 0 {
			t.Errorf("an unused buffer has %d bytes", len(buffer))
		}
		total += cap(buffer)
	}
	if total == 0 || total > maxKept*100<<10 {
		t.Errorf("unused buffers have %d bytes", total)
	}
}

// A kept connection is not used again after the engine has closed it or has sent unexpected bytes.
func TestKeptConnectionIsReady(t *testing.T) {
	for name, act := range map[string]func(engine net.Conn) error{
		"bytes": func(engine net.Conn) error {
			_, err := engine.Write([]byte("HTTP/1.1 200 OK\r\n"))
			return err
		},
		"the end": net.Conn.Close,
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		s := &loop{Scraper: New(Config{Fleet: fleet.New(fleet.Config{})}), Target: Target{Address: l.Addr().String()}}
		connect := func() *conn {
			c, err := s.connection(t.Context(), s.Address, time.Now().Add(time.Minute))
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		first := connect()
		engine, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		if connect() != first {
			t.Errorf("%s: an unused connection is not kept", name)
		}
		if err := act(engine); err != nil {
			t.Fatal(err)
		}
		if connect() == first {
			t.Errorf("%s: the connection is used again", name)
		}
		s.disconnect()
	}
}

// Endpoints that are scraped at the same time use the same buffers, and each gets its own load and
// its own models. Pages differ in length and content, and come in parts.
func TestPagesOfManyEndpoints(t *testing.T) {
	const engines, rounds = 24, 30
	var addresses []string
	for i := range engines {
		page := fmt.Sprintf("vllm:num_requests_running %d\nvllm:num_requests_waiting %d\n", i, 2*i) + strings.Repeat("# filler\n", 500*i)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				fmt.Fprintf(w, `{"data":[{"id":"base-%d"}]}`, i)
				return
			}
			half := len(page) / 2
			_, _ = io.WriteString(w, page[:half])
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, page[half:])
		}))
		defer server.Close()
		addresses = append(addresses, server.Listener.Addr().String())
	}
	w := objects.Build(objects.Endpoints(addresses))
	f := fleet.New(fleet.Config{})
	f.SetWorld(w)
	ended := make(chan struct{}, engines)
	ctx, cancel := context.WithCancel(t.Context())
	s := New(Config{
		Fleet: f, Interval: time.Millisecond, ModelsInterval: time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Scraped: func(err error) {
			if err != nil {
				t.Error(err)
			}
			select {
			case ended <- struct{}{}:
			case <-ctx.Done():
			}
		},
	})
	var beside sync.WaitGroup
	beside.Go(func() { _ = s.Run(ctx) })
	s.SetTargets(Targets(w))
	for i := range engines * rounds {
		<-ended
		if i < 4*engines || i%engines > 0 { // each engine has answered
			continue
		}
		for _, is := range fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) }) {
			n := -1
			for i, address := range addresses {
				if is.Address == address {
					n = i
				}
			}
			if _, known := is.Load.Running.Get(); !known {
				continue // not scraped yet
			}
			if is.Load.Running != engine.Known(float64(n)) || is.Load.Waiting != engine.Known(float64(2*n)) ||
				fmt.Sprint(is.Base) != fmt.Sprintf("[base-%d]", n) {
				t.Fatalf("engine %d has the load %v, %v and the models %v", n, is.Load.Running, is.Load.Waiting, is.Base)
			}
		}
	}
	cancel()
	beside.Wait()
}
