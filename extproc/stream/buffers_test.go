package stream_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/extproc/stream"
)

// overwritten are buffers that are overwritten when they are returned. A request that still uses
// one would get wrong bytes.
var overwritten = &codec.Buffers{Returned: func(b []byte) {
	for i := range b {
		b[i] = 0xa5
	}
}}

// bodyOf returns the body of a request for an adapter, and what the engine must get. It has at
// least so many bytes, which differ from those of other numbers.
func bodyOf(number, size int) (body, renamed string) {
	word := fmt.Sprintf("%05d ", number)
	text := `","prompt":"` + strings.Repeat(word, size/len(word)) + `"}`
	return `{"model":"text-to-sql` + text, `{"model":"sql-v2` + text
}

// bodyForwarded receives the answers to a request until one forwards its body or the last chunk of
// it, and returns the body.
func bodyForwarded(t *testing.T, s extprocv3.ExternalProcessor_ProcessClient) string {
	t.Helper()
	var body strings.Builder
	for {
		m, err := s.Recv()
		if err != nil {
			t.Error(err)
			return ""
		}
		if m.GetImmediateResponse() != nil {
			t.Errorf("it is rejected: %v", m)
			return ""
		}
		mutation := m.GetRequestBody().GetResponse().GetBodyMutation()
		chunk := mutation.GetStreamedResponse()
		body.Write(mutation.GetBody())
		body.Write(chunk.GetBody())
		if chunk.GetEndOfStream() || len(mutation.GetBody()) > 0 {
			return body.String()
		}
	}
}

// Requests of many sizes at the same time get their own bytes, whether their bodies arrive whole or
// in chunks, while all buffers are used again.
func TestNoRequestSeesAnothersBytes(t *testing.T) {
	client := dial(t, newFleet(), stream.Own)
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := range 12 {
				number := worker*100 + i
				body, want := bodyOf(number, 100<<(i%12))
				lines := []string{"headers :method=POST :path=/v1/completions", "body " + body}
				if number%2 > 0 {
					half := len(body) / 2
					lines = []string{lines[0] + " mode=FULL_DUPLEX_STREAMED", "chunk " + body[:half], "body " + body[half:]}
				}
				ctx, end := context.WithCancel(t.Context())
				s, err := client.Process(ctx)
				if err != nil {
					t.Error(err)
				}
				for _, line := range lines {
					if err := s.Send(message(t, line)); err != nil {
						t.Error(err)
					}
				}
				if got := bodyForwarded(t, s); got != want {
					t.Errorf("request %d with %d bytes gets %d other ones", number, len(want), len(got))
				}
				end()
			}
		})
	}
	all.Wait()
}

// The body of a request that waits is its own when the request continues, although other requests
// came meanwhile.
func TestWaitingRequestsKeepTheirBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, held, client := window(t, 1, nil)
		ask := func(number int) (s extprocv3.ExternalProcessor_ProcessClient, want string, end context.CancelFunc) {
			ctx, end := context.WithCancel(t.Context())
			s, err := client.Process(ctx)
			if err != nil {
				t.Fatal(err)
			}
			body, want := bodyOf(number, 40_000)
			for _, line := range []string{"headers :method=POST :path=/v1/completions", "body " + body} {
				if err := s.Send(message(t, line)); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Wait()
			return s, want, end
		}
		first, want, end := ask(0)
		if got := bodyForwarded(t, first); got != want {
			t.Errorf("the first request gets %d bytes, not its own", len(got))
		}
		const waiting = 5
		var ends [waiting]context.CancelFunc
		var streams [waiting]extprocv3.ExternalProcessor_ProcessClient
		var wants [waiting]string
		for i := range waiting {
			streams[i], wants[i], ends[i] = ask(1 + i)
			awaitQueued(t, held, int64(1+i))
		}
		for i := range waiting {
			end()
			if got := bodyForwarded(t, streams[i]); got != wants[i] {
				t.Errorf("the waiting request %d gets %d bytes, not its own", i, len(got))
			}
			end = ends[i]
		}
		end()
		synctest.Wait()
	})
}
