package stream_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/flow"
	"github.com/headgate/headgate/extproc/processing"
	"github.com/headgate/headgate/extproc/stream"
)

// script is a data plane that sends messages. It keeps no reference to the bodies that it sends or
// receives.
type script struct {
	grpc.ServerStream
	t      *testing.T
	ctx    context.Context
	lines  []string
	bodies []weak.Pointer[byte]
	told   string        // kind of the last message that the data plane received
	idle   chan struct{} // closed when all sent messages have been handled
}

func (s *script) Context() context.Context { return s.ctx }

func (s *script) RecvMsg(to any) error {
	if len(s.lines) == 0 {
		close(s.idle)
		<-s.ctx.Done()
		return io.EOF
	}
	encoded, err := proto.Marshal(message(s.t, strings.ReplaceAll(s.lines[0], "BIG", strings.Repeat("p", 1<<20))))
	if err != nil {
		return err
	}
	s.lines = s.lines[1:]
	m := to.(*processing.Request)
	err = m.Decode(encoded)
	s.note(m.Body)
	return err
}

func (s *script) SendMsg(is any) error {
	m := is.(*processing.Response)
	if m.Changes != nil {
		s.note(m.Changes.Body)
	}
	encoded, err := m.Append(nil)
	if err != nil {
		return err
	}
	var generated extprocv3.ProcessingResponse
	if err := proto.Unmarshal(encoded, &generated); err != nil {
		return err
	}
	s.told = strings.TrimPrefix(fmt.Sprintf("%T", generated.GetResponse()), "*ext_procv3.ProcessingResponse_")
	return nil
}

func (s *script) note(body []byte) {
	if len(body) > 0 {
		s.bodies = append(s.bodies, weak.Make(&body[0]))
	}
}

// kept returns how many bodies are still in memory.
func (s *script) kept() (n int) {
	for range 3 {
		runtime.GC()
	}
	for _, b := range s.bodies {
		if b.Value() != nil {
			n++
		}
	}
	return n
}

// After a request was forwarded or answered, nothing refers to its body any more: a response may
// take minutes, and a body may have 32 MiB.
func TestOpenStreamKeepsNoBodyAlive(t *testing.T) {
	const duplex = "headers :method=POST :path=/v1/completions mode=FULL_DUPLEX_STREAMED shown=FULL_DUPLEX_STREAMED"
	for name, c := range map[string]struct {
		lines  []string
		bodies int
		told   string
	}{
		"buffered": {[]string{"headers :method=POST :path=/v1/completions", `body {"model":"llama","prompt":"BIG"}`}, 1, "RequestBody"},
		"buffered and renamed": {
			[]string{"headers :method=POST :path=/v1/completions", `body {"model":"text-to-sql","prompt":"BIG"}`}, 2, "RequestBody",
		},
		"buffered and answered here": {
			[]string{"headers :method=POST :path=/v1/completions", `body {"model":"no","prompt":"BIG"}`},
			1,
			"ImmediateResponse",
		},
		"its beginning": {
			[]string{"headers :method=POST :path=/v1/completions mode=BUFFERED_PARTIAL", `chunk {"model":"llama","prompt":"BIG`},
			1,
			"RequestBody",
		},
		"in chunks": {
			[]string{duplex, `chunk {"model":"llama",`, `body "prompt":"BIG"}`, "response :status=200"},
			2 + 17,
			"ResponseHeaders",
		},
		"in chunks and renamed": {[]string{duplex, `chunk {"model":"text-to-sql",`, `body "prompt":"BIG"}`, "response :status=200"}, 2 +
			17, "ResponseHeaders"},
		"in chunks and trailers": {
			[]string{duplex, `chunk {"model":"llama",`, `chunk "prompt":"BIG"}`, "trailers"},
			2 + 17,
			"RequestTrailers",
		},
		"in chunks and answered here": {
			[]string{duplex, `chunk {"model":"no",`, `body "prompt":"BIG"}`}, 2, "ImmediateResponse",
		},
		"in chunks that go through": {
			[]string{"headers :method=POST :path=/v1/files content-type=text/plain mode=FULL_DUPLEX_STREAMED", "chunk BIG", "body BIG"}, 2 +
				34, "RequestBody",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet()
			server, _ := newServer(t, f, nil)
			s := play(t, server, "base-picker:9002", c.lines)
			<-s.idle
			if s.told != c.told || len(s.bodies) != c.bodies {
				t.Fatalf("its last message was %s, and there were %d bodies", s.told, len(s.bodies))
			}
			if n := s.kept(); n != 0 {
				t.Errorf("%d of %d bodies are still in memory", n, len(s.bodies))
			}
		})
	}
}

// While a request waits, its body stays in memory. After the wait nothing refers to the body any
// more, however the wait ended.
func TestNothingKeepsABodyAfterItsWait(t *testing.T) {
	for name, c := range map[string]struct{ headers, news, told string }{
		"buffered": {"headers :method=POST :path=/v1/completions", "loaded=nobody@" + address, "RequestBody"},
		"in chunks": {
			"headers :method=POST :path=/v1/completions mode=FULL_DUPLEX_STREAMED", "loaded=nobody@" + address,
			"RequestBody",
		},
		"buffered and failed": {"headers :method=POST :path=/v1/completions", "failed=nobody", "ImmediateResponse"},
		"in chunks and failed": {
			"headers :method=POST :path=/v1/completions mode=FULL_DUPLEX_STREAMED", "failed=nobody",
			"ImmediateResponse",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var held *flow.Flow
			f := newFleetWith(fleet.Config{Published: func(v *endpointstate.View) {
				if held != nil {
					held.Published(v)
				}
			}})
			held = flow.New(flow.Config{View: f.View, MaxQueued: 10, MaxBytes: 8 << 20})
			f.ApplyPlacement(news(t, f, nil))
			server, _ := newServer(t, f, func(c *stream.Config) { c.Flow, c.Settings.QueueTimeout = held, time.Minute })
			s := play(t, server, "base-picker:9002", []string{c.headers, `body {"model":"missing","prompt":"BIG"}`})
			awaitQueued(t, held, 1)
			f.ApplyPlacement(news(t, f, []string{c.news}))
			f.SetWorld(f.View().World) // publishes a new view
			<-s.idle
			if s.told != c.told {
				t.Fatalf("its last message was %s", s.told)
			}
			if n := s.kept(); n != 0 {
				t.Errorf("%d of %d bodies are still in memory", n, len(s.bodies))
			}
		})
	}
}

// play returns a data plane that called authority and sends these messages to a server.
func play(t *testing.T, server *stream.Server, authority string, lines []string) *script {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &script{
		t: t, ctx: metadata.NewIncomingContext(ctx, metadata.Pairs(":authority", authority)), lines: lines,
		idle: make(chan struct{}),
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		messages := &grpc.GenericServerStream[extprocv3.ProcessingRequest, extprocv3.ProcessingResponse]{ServerStream: s}
		if err := server.For(stream.Gateway).Process(messages); err != nil {
			t.Errorf("the stream ends: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}
