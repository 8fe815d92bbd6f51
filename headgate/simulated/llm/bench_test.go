package llm

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/profile"
)

// BenchmarkRequests measures the overhead of the server with whole requests over TCP. Engine steps
// take no time. Clients and engine share the CPU cores.
//
//	go test ./headgate/simulated/llm -run xxx -bench Requests -benchtime 3s
func BenchmarkRequests(b *testing.B) {
	for _, c := range []struct {
		name, body string
		clients    int
	}{
		{"plain/clients=64", `"max_tokens":16`, 64},
		{"plain/clients=256", `"max_tokens":16`, 256},
		{"stream/clients=64", `"max_tokens":16,"stream":true`, 64},
	} {
		b.Run(c.name, func(b *testing.B) {
			body := `{"model":"base","messages":[{"role":"user","content":"` + strings.Repeat("some words of a prompt ", 40) + `%d"}],` +
				c.body + `}`
			run(b, c.clients, func(client *http.Client, url string, i int) error {
				resp, err := client.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(fmt.Sprintf(body, i)))
				if err != nil {
					return err
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil {
					return err
				}
				return resp.Body.Close()
			})
		})
	}
}

// run starts an engine and lets clients send it a total of b.N requests with ask.
func run(b *testing.B, clients int, ask func(client *http.Client, url string, i int) error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	limits := slow().Limits
	limits.MaxSequences = 256
	s, err := New(Config{Profile: profile.Profile{Name: "instant", Limits: limits}, Listener: listener})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- s.Run(ctx) }()
	transport := &http.Transport{MaxIdleConnsPerHost: clients}
	client := &http.Client{Transport: transport}

	b.ReportAllocs()
	b.ResetTimer()
	errs := make(chan error, clients)
	for n := range clients {
		go func() {
			var err error
			for i := n; i < b.N && err == nil; i += clients {
				err = ask(client, "http://"+listener.Addr().String(), i)
			}
			errs <- err
		}()
	}
	for range clients {
		if err := <-errs; err != nil {
			b.Error(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
	stop()
	transport.CloseIdleConnections()
	if err := <-over; err != nil {
		b.Error(err)
	}
}
