package ext

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	extprocfilterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"

	"github.com/headgate/headgate/bench/pace"
	extproccodec "github.com/headgate/headgate/extproc/codec"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/metrics"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

// modes are the values of --mode.
var modes = []mode{buffered, duplex, headers}

// clientOf returns a client of a server, whose requests ask for a model.
func clientOf(t *testing.T, server *grpc.Server, m mode, model string, size int) *client {
	t.Helper()
	texts, err := newPrompts(model, 1, 0, size, rand.New(rand.NewPCG(1, 2)))
	if err != nil {
		t.Fatal(err)
	}
	return &client{prompts: texts, mode: m, timeout: 10 * time.Second, conns: []grpc.ClientConnInterface{dial(t, server)}}
}

// In each mode every request gets a destination from a no-op, also if its body has several chunks.
func TestClientIsServedByNoops(t *testing.T) {
	for _, kind := range kinds {
		for _, m := range modes {
			for _, size := range []int{1000, 300_000} {
				t.Run(fmt.Sprint(kind, "/", m, "/", size), func(t *testing.T) {
					server, err := noop(kind, endpoints)
					if err != nil {
						t.Fatal(err)
					}
					c := clientOf(t, server, m, "m", size)
					named := make(map[string]int)
					for range 4 {
						a, at, err := c.ask(t.Context())
						if err != nil || a.status != 0 || at.IsZero() {
							t.Fatalf("%+v at %v, %v", a, at, err)
						}
						named[a.to]++
					}
					if named[endpoints[0]] != 2 || named[endpoints[1]] != 2 {
						t.Errorf("destinations: %v", named)
					}
				})
			}
		}
	}
}

// extproc's own server gives each request a destination, rejects a request for an unknown model,
// and counts no request as in flight when the client's streams have ended.
func TestClientIsServedByExtproc(t *testing.T) {
	const address = "10.0.0.1:8000"
	for _, m := range modes {
		t.Run(string(m), func(t *testing.T) {
			f := fleet.New(fleet.Config{})
			w := objects.Build(objects.Endpoints([]string{address}))
			f.SetWorld(w)
			f.Scrape(address).Succeeded(engine.Load{})
			f.SetModels(address, engine.Models{Base: []string{"llama"}})
			f.SetWorld(w) // publishes a view with these models
			front := stream.Own
			if m != buffered {
				front = stream.Gateway // sends bodies in this form
			}
			made := func() *grpc.Server {
				server := grpc.NewServer(grpc.MaxRecvMsgSize(stream.MaxMessage), grpc.ForceServerCodecV2(extproccodec.New()))
				extprocv3.RegisterExternalProcessorServer(server, stream.New(stream.Config{
					Fleet: f, Meter: metrics.New(f), Log: slog.New(slog.DiscardHandler), Default: objects.EndpointsPool,
				}).For(front))
				return server
			}
			c := clientOf(t, made(), m, "llama", 100_000)
			all, _, err := send(t.Context(), pace.Load{Requests: 40}, 4, c.ask)
			if err != nil || len(all.took) != 40 || all.unnamed > 0 || all.failed > 0 {
				t.Errorf("%d of 40 requests may pass, %d without a destination, %d failed, %d rejected: %v",
					len(all.took), all.unnamed, all.failed, len(all.rejected), all.failure)
			}
			if a, _, err := c.ask(t.Context()); err != nil || a.to != address {
				t.Errorf("the destination is %+v, %v", a, err)
			}
			a, _, err := clientOf(t, made(), m, "unknown", 1000).ask(t.Context())
			if err != nil || a.status != 404 || a.to != "" {
				t.Errorf("a request for an unknown model: %+v, %v", a, err)
			}
			for _, e := range fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) }) {
				if e.InFlight != 0 {
					t.Errorf("%d requests are in flight at the end", e.InFlight)
				}
			}
		})
	}
}

// scripted is a picker that sends these replies at once. Then it reads nothing more.
type scripted struct {
	extprocv3.UnimplementedExternalProcessorServer
	replies []*extprocv3.ProcessingResponse
	stays   bool // it leaves the end of the stream to the client
}

func (s *scripted) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	for _, m := range s.replies {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	if s.stays {
		<-stream.Context().Done()
	}
	return nil
}

// immediate returns a picker's own reply to the client.
func immediate(status int) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{Status: &typev3.HttpStatus{Code: typev3.StatusCode(status)}},
	}}
}

// A picker that rejects a request, or ends its stream early, blocks the client in no mode, although
// the picker does not read the body.
func TestClientSurvivesEarlyReplies(t *testing.T) {
	for _, m := range modes {
		for _, c := range []struct {
			name   string
			picker scripted
			status int
			err    error
		}{
			{"rejects", scripted{replies: []*extprocv3.ProcessingResponse{immediate(429)}}, 429, nil},
			{"rejects and stays", scripted{replies: []*extprocv3.ProcessingResponse{immediate(429)}, stays: true}, 429, nil},
			{"ends", scripted{}, 0, errProtocol},
		} {
			t.Run(string(m)+"/"+c.name, func(t *testing.T) {
				server := grpc.NewServer()
				extprocv3.RegisterExternalProcessorServer(server, &c.picker)
				a, _, err := clientOf(t, server, m, "m", 2_000_000).ask(t.Context())
				if a.status != c.status || !errors.Is(err, c.err) {
					t.Errorf("%+v, %v", a, err)
				}
			})
		}
	}
}

// streamed returns the reply that passes on a chunk.
func streamed(end bool) *extprocv3.ProcessingResponse {
	return echo(requestBody, &extprocv3.HttpBody{Body: []byte("x"), EndOfStream: end})
}

func TestReplies(t *testing.T) {
	to := replyTo("10.0.0.1:8000")
	body := reply(requestBody)
	asks := reply(requestHeaders)
	asks.ModeOverride = &extprocfilterv3.ProcessingMode{RequestBodyMode: extprocfilterv3.ProcessingMode_BUFFERED}
	late := reply(requestBody)
	late.GetRequestBody().Response = to.GetRequestHeaders().GetResponse() // only a header
	for _, c := range []struct {
		name    string
		mode    mode
		replies []*extprocv3.ProcessingResponse
		done    bool
		answer  answer
		wrong   string
	}{
		{"headers", headers, []*extprocv3.ProcessingResponse{to}, true, answer{to: "10.0.0.1:8000"}, ""},
		{"no destination", headers, []*extprocv3.ProcessingResponse{reply(requestHeaders)}, true, answer{}, ""},
		{"the body is not sent yet", buffered, []*extprocv3.ProcessingResponse{to}, false, answer{to: "10.0.0.1:8000"}, ""},
		{"body", buffered, []*extprocv3.ProcessingResponse{reply(requestHeaders), late}, true, answer{to: "10.0.0.1:8000"}, ""},
		{"a longer timeout", buffered, []*extprocv3.ProcessingResponse{new(extprocv3.ProcessingResponse), to, body}, true, answer{to: "10.0.0.1:8000"}, ""},
		{"chunks", duplex, []*extprocv3.ProcessingResponse{to, streamed(false), streamed(false)}, false, answer{to: "10.0.0.1:8000"}, ""},
		{"last chunk", duplex, []*extprocv3.ProcessingResponse{to, streamed(false), streamed(true)}, true, answer{to: "10.0.0.1:8000"}, ""},
		{"rejected", duplex, []*extprocv3.ProcessingResponse{immediate(503)}, true, answer{status: 503}, ""},
		{"twice", buffered, []*extprocv3.ProcessingResponse{to, to}, false, answer{}, "a second reply to the headers"},
		{"body first", duplex, []*extprocv3.ProcessingResponse{streamed(true)}, false, answer{}, "before that to the headers"},
		{"whole body for chunks", duplex, []*extprocv3.ProcessingResponse{to, body}, false, answer{}, "the form of another mode"},
		{"chunks for a body", buffered, []*extprocv3.ProcessingResponse{to, streamed(true)}, false, answer{}, "the form of another mode"},
		{"asks for the body", headers, []*extprocv3.ProcessingResponse{asks}, false, answer{}, "asks for the body"},
		{"trailers", buffered, []*extprocv3.ProcessingResponse{reply(requestTrailers)}, false, answer{}, "a part that was not sent"},
	} {
		r := replies{mode: c.mode}
		var done bool
		var err error
		for _, m := range c.replies {
			if done, err = r.take(m); err != nil {
				break
			}
		}
		if c.wrong != "" {
			if !errors.Is(err, errProtocol) || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s: %v, want %q", c.name, err, c.wrong)
			}
			continue
		}
		if err != nil || done != c.done || r.answer != c.answer {
			t.Errorf("%s: done %v, %+v, %v", c.name, done, r.answer, err)
		}
	}
}

// firstLine is an output that reports its first write.
type firstLine struct {
	bytes.Buffer
	written chan struct{}
}

func (f *firstLine) Write(b []byte) (int, error) {
	if f.Len() == 0 {
		defer close(f.written)
	}
	return f.Buffer.Write(b)
}

// The two commands work together: the client prints figures of the no-op, as text and as JSON.
func TestCommands(t *testing.T) {
	address := "unix:" + filepath.Join(t.TempDir(), "x.sock")
	ctx, stop := context.WithCancel(t.Context())
	out, done := &firstLine{written: make(chan struct{})}, make(chan error, 1)
	go func() {
		done <- Command(ctx, []string{"--noop", "raw", "--listen", address, "--endpoint", endpoints[0]}, out)
	}()
	select {
	case <-out.written:
	case err := <-done:
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		var out bytes.Buffer
		err := Command(t.Context(), append([]string{"--target", address, "--warmup", "0s"}, args...), &out)
		return out.String(), err
	}
	args := []string{"--requests", "30", "--json", "--records"}
	if runtime.GOOS == "linux" {
		args = append(args, "--pid", strconv.Itoa(os.Getpid()))
	}
	text, err := run(args...)
	var r Result
	if err != nil || json.Unmarshal([]byte(text), &r) != nil || r.Requests != 30 || !r.Records || r.Unnamed != 0 ||
		r.P50 <= 0 || r.P50 > r.P99 || r.P99 > r.Max {
		t.Errorf("%v, %s", err, text)
	}
	if runtime.GOOS == "linux" && (r.CPU <= 0 || r.Cores <= 0) {
		t.Errorf("no CPU time: %s", text)
	}
	if text, err = run("--rate", "200", "--duration", "100ms"); err != nil || !strings.Contains(text, "20 in 0.1 s") ||
		!strings.Contains(text, "20 with a destination, 0 without") {
		t.Errorf("%v, %s", err, text)
	}
	if text, err = run("--shape", "llm-d", "--requests", "3"); err != nil || !strings.Contains(text, "buffered, 400000 bytes, 98.7 requests a second") ||
		!strings.Contains(text, "35 to 46 cores") {
		t.Errorf("%v, %s", err, text)
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("the no-op ends with %v", err)
	}
	if _, err := run("--requests", "1"); err == nil || !strings.Contains(err.Error(), "--target unix:") {
		t.Errorf("without a picker: %v", err)
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	for args, want := range map[string]string{
		"":                                            "use either --target or --noop",
		"--target x:1 --noop raw":                     "use either --target or --noop",
		"--noop raw":                                  "--noop needs --listen",
		"--noop fast --listen x:1":                    `--noop "fast"`,
		"--noop raw --listen x:1 --endpoint a:1":      `--endpoint "a:1"`,
		"--target x:1 --mode streamed":                `--mode "streamed"`,
		"--target x:1 --shape x":                      `--shape "x"`,
		"--target x:1 --body 10":                      "--body 10",
		"--target x:1 --models 0":                     "--models",
		"--target x:1 --rate -1":                      "must not be negative",
		"--target x:1 --duration 0":                   "must limit the run",
		"--target x:1 --requests 3 --concurrency -1":  "at least 1",
		"--target x:1 --requests 3 --unknown":         "unknown flag",
		"--target x:1 --requests 3 --connections 0 z": `unexpected argument "z"`,
	} {
		if err := Command(t.Context(), strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
