package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/headgate/simulated/runtime"
)

// ghost is an engine that can close its port and keep its requests, as vLLM does at SIGTERM and
// draining servers do. The request header x-do selects the response: "tick" sends events until the
// ghost finishes, "silent" sends one event, and any other value sends nothing.
type ghost struct {
	model  string
	door   net.Listener
	finish chan struct{}
	server http.Server
}

func startGhost(t testing.TB, address, model string) *ghost {
	t.Helper()
	g := &ghost{model: model, finish: make(chan struct{})}
	var err error
	if g.door, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", address); err != nil {
		t.Fatal(err)
	}
	g.server.Handler = g
	g.server.Protocols = new(http.Protocols)
	g.server.Protocols.SetHTTP1(true)
	g.server.Protocols.SetUnencryptedHTTP2(true)
	var serving sync.WaitGroup
	serving.Go(func() { _ = g.server.Serve(g.door) })
	t.Cleanup(func() {
		_ = g.server.Close()
		serving.Wait()
	})
	return g
}

func (g *ghost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		if r.URL.Path != "/v1/models" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"object":"list","data":[{"id":"base","object":"model"},{"id":%q,"object":"model","parent":"base"}]}`,
			g.model)
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	does := r.Header.Get("X-Do")
	event := func() {
		_, _ = io.WriteString(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
	}
	if does != "" {
		w.Header().Set("Content-Type", "text/event-stream")
		event()
	}
	if does == "tick" {
		ticks := time.NewTicker(50 * time.Millisecond)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				event()
				continue
			case <-g.finish:
				_, _ = io.WriteString(w, "data: [DONE]\n\n")
			case <-r.Context().Done():
			}
			return
		}
	}
	<-r.Context().Done()
}

// startGhosts starts one ghost for each model, at consecutive addresses, and a stack. The stack's
// Envoy logs each request in flight every 0.3 s.
func startGhosts(t *testing.T, models ...string) (*stack, map[string]*ghost) {
	t.Helper()
	all := make(map[string]*ghost)
	s := start(t, func(c *rig.Config) {
		net := strings.TrimSuffix(c.Listen, "1:8080")
		for i, model := range models {
			all[model] = startGhost(t, fmt.Sprintf("%s%d:8000", net, 11+i), model)
		}
		for file, text := range map[string]string{"engines": ghostly(net, len(models)), "routes": routes(models...)} {
			if err := os.WriteFile(c.Objects+"/"+file+".yaml", []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		c.EnvoyChanges = append(c.EnvoyChanges, replaceEverywhere("access_log_flush_interval", "10s", "0.3s"))
	})
	return s, all
}

// ghostly returns the YAML of the objects for the first n ghosts.
func ghostly(net string, n int) string {
	pool, _, _ := strings.Cut(engines(net, 0), "---")
	var addresses []string
	for i := range n {
		addresses = append(addresses, fmt.Sprintf("'%s%d:8000'", net, 11+i))
	}
	return fmt.Sprintf("%s---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: ghosts, labels: {app: llama}}\nspec: {addresses: [%s], engine: vllm, ports: {grpc: 8000}}\n", pool,
		strings.Join(addresses, ", "))
}

func askGhost(model, does string) request {
	return request{body: `{"model":"` + model + `","prompt":"x","stream":true}`, header: map[string]string{"X-Do": does}}
}

// An endpoint that is removed from the objects before its engine stops is no longer scraped. Its
// silent requests still end when the engine refuses connections, and requests that the engine
// serves continue.
func TestRequestsOnARemovedEngineAreEnded(t *testing.T) {
	runs(t)
	s, ghosts := startGhosts(t, "stays", "left")
	left := ghosts["left"]
	open := func(model, does string) *http.Response {
		t.Helper()
		response, err := s.open(t.Context(), askGhost(model, does))
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %v, %v", model, does, response, err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response
	}
	served, silent := open("left", "tick"), open("left", "silent")
	s.write("engines.yaml", ghostly(strings.TrimSuffix(s.Listen, "1:8080"), 1))
	s.await("the endpoint has left", func() bool { return s.sum(s.Metrics, "headgate_endpoint_state", "endpoint", s.endpoint(2)) == 0 })
	ended := make(chan error, 1)
	go func() {
		_, err := io.ReadAll(silent.Body)
		ended <- err
	}()
	records := func() int { return int(s.envoyGauge("access_logs.grpc_access_log.logs_written")) }
	before := records()
	s.await("each is recorded four times while the port is open", func() bool { return records() >= before+8 })
	select {
	case err := <-ended:
		t.Fatalf("the silent stream of an engine that takes connections ends: %v", err)
	default:
	}
	if err := left.door.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the silent stream ends with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the silent stream does not end")
	}
	close(left.finish)
	if body, err := io.ReadAll(served.Body); err != nil || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Errorf("the stream that is served: %v", err)
	}
}

// Silent requests on an engine that has closed its port end within two log records. Requests that
// the engine still serves continue, as do silent requests on an engine whose port is open.
func TestRequestsOnADeadEngineAreEnded(t *testing.T) {
	runs(t)
	s, ghosts := startGhosts(t, "gone", "living")
	gone, living := ghosts["gone"], ghosts["living"]
	ask := askGhost
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	ended := make(chan string, 100)
	conn := s.conn()
	await := 0
	run := func(what string, good func() string) {
		await++
		go func() {
			if fault := good(); fault != "" {
				ended <- what + ": " + fault
				return
			}
			ended <- ""
		}()
	}
	for range 5 {
		run("a silent stream", func() string {
			a, err := s.ask(ctx, ask("gone", "silent"))
			if !errors.Is(err, io.ErrUnexpectedEOF) || a.status != 200 || a.body != "data: {}\n\n" {
				return fmt.Sprintf("%d %q, %v", a.status, a.body, err)
			}
			return ""
		})
		run("a request without an answer", func() string {
			a, err := s.ask(ctx, ask("gone", ""))
			if err != nil || a.status != 503 || a.header.Get("Retry-After") != "1" || !strings.Contains(a.body, `"code":"engine_gone"`) {
				return fmt.Sprintf("%d %q, %v, %v", a.status, a.body, a.header, err)
			}
			return ""
		})
		run("a stream over HTTP/2", func() string {
			two := &http.Transport{Protocols: new(http.Protocols)}
			two.Protocols.SetUnencryptedHTTP2(true)
			defer two.CloseIdleConnections()
			q, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/v1/completions", strings.NewReader(ask("gone", "").body))
			if err != nil {
				return err.Error()
			}
			q.Header.Set("X-Do", "silent")
			response, err := two.RoundTrip(q)
			if err != nil {
				return err.Error()
			}
			defer response.Body.Close()
			if _, err := io.Copy(io.Discard, response.Body); !errors.As(err, new(http2.StreamError)) {
				return fmt.Sprint(err)
			}
			return ""
		})
		run("a call", func() string {
			err := conn.Invoke(metadata.AppendToOutgoingContext(ctx, "mm-model-id", "gone"), "/some.Service/Method",
				new(wrapperspb.BytesValue), new(wrapperspb.BytesValue))
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "stopped before it answered") {
				return fmt.Sprint(err)
			}
			return ""
		})
		run("a request of V2", func() string {
			a, err := s.ask(ctx, request{path: "/v2/models/gone/infer", body: `{"inputs":[]}`})
			if err != nil || a.status != 503 || !strings.HasPrefix(a.body, `{"error":"`) {
				return fmt.Sprintf("%d %q, %v", a.status, a.body, err)
			}
			return ""
		})
	}
	open := func(model, does string) *http.Response {
		t.Helper()
		response, err := s.open(ctx, ask(model, does))
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatalf("%s %s: %v, %v", model, does, response, err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		return response
	}
	served, silent := open("gone", "tick"), open("living", "silent")
	s.await("all are in flight", func() bool {
		select {
		case fault := <-ended:
			t.Fatalf("a request ended too early: %s", fault)
		default:
		}
		return s.inFlight() == float64(await+2)
	})
	records := func() int { return int(s.envoyGauge("access_logs.grpc_access_log.logs_written")) }
	before := records()
	if err := gone.door.Close(); err != nil {
		t.Fatal(err)
	}
	gone.server.SetKeepAlivesEnabled(false) // closes idle connections
	for range await {
		select {
		case fault := <-ended:
			if fault != "" {
				t.Error(fault)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("a request does not end")
		}
	}
	// Envoy records each request once per interval, and once more when it ends. extproc ends a
	// request after two records in a row. Two more may precede them: one while the port closes, and
	// one before extproc detects that.
	intervals := float64(records()-before-await) / float64(await+2)
	t.Logf("%d requests were ended within %.1f records of each", await, intervals)
	if intervals < 1.5 || intervals > 12 { // intervals of 0.3 s; on a busy machine a scrape may take several
		t.Errorf("each was recorded %.1f times, want 2 to 4, and at most 12", intervals)
	}
	s.await("each is a failure of its endpoint", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_failures_total", "endpoint", s.endpoint(1), "kind", "engine_gone") == float64(await)
	})
	s.await("two are in flight", func() bool { return s.inFlight() == 2 })
	close(gone.finish)
	if body, err := io.ReadAll(served.Body); err != nil || !strings.HasSuffix(string(body), "data: [DONE]\n\n") {
		t.Errorf("the stream that is served: %v", err)
	}
	if line, err := bufio.NewReader(silent.Body).ReadString('\n'); err != nil || line != "data: {}\n" {
		t.Errorf("the silent stream of the engine that is there begins with %q, %v", line, err)
	}
	s.await("one is in flight", func() bool { return s.inFlight() == 1 })
	leave()
	s.await("none is in flight", func() bool { return s.inFlight() == 0 })
	close(living.finish)
}

// gRPC calls outlive an extproc that is killed or stops. Tested are calls whose messages extproc
// has read, calls that keep their ext_proc stream open, and calls with a short deadline, which do
// not keep it open.
func TestCallsOutliveTheirExtproc(t *testing.T) {
	runs(t)
	s := start(t, runtimes(t, 1, map[string]string{"one": "sim:?infer=1s"}), standalone, func(c *rig.Config) { c.EngineFlags = nil })
	conn := s.conn()
	named := metadata.AppendToOutgoingContext(t.Context(), "mm-model-id", "one")
	soon, cancel := context.WithTimeout(named, 19*time.Second)
	defer cancel()
	for what, end := range map[string]func() error{
		"killed": func() error {
			s.Extproc.Kill()
			return s.StartExtproc(t.Context())
		},
		"replaced": func() error { return s.ReplaceExtproc(t.Context()) },
	} {
		var open []grpc.ClientStream
		for _, ctx := range []context.Context{named, soon} {
			echo, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/"+runtime.EchoMethod)
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, echo)
		}
		echoes := func() error {
			for _, echo := range open {
				if err := echo.SendMsg(wrapperspb.Bytes([]byte("x"))); err != nil {
					return err
				}
				if err := echo.RecvMsg(new(wrapperspb.BytesValue)); err != nil {
					return err
				}
			}
			return nil
		}
		if err := echoes(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			_, err := s.calls().ModelInfer(t.Context(), tensor("one", 1))
			ended <- err
		}()
		s.await("the calls are in flight", func() bool { return s.inFlight() == 3 })
		if err := end(); err != nil {
			t.Fatal(err)
		}
		if err := echoes(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for _, echo := range open {
			if err := echo.CloseSend(); err != nil {
				t.Error(err)
			}
			if err := echo.RecvMsg(new(wrapperspb.BytesValue)); !errors.Is(err, io.EOF) {
				t.Errorf("%s: the stream ends with %v", what, err)
			}
		}
		s.await("none is in flight", func() bool { return s.inFlight() == 0 })
	}
}
