package command

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/internal/engineclient"
)

// testTimeout is longer than anything that a test waits for.
const testTimeout = 30 * time.Second

var agentLine = flag.String("agent", "", "for a test that starts itself: be an agent with these flags")

// TestAgentProcess is not a test: it runs an agent in a process of its own, for tests that kill it.
func TestAgentProcess(t *testing.T) {
	if *agentLine == "" {
		t.Skip("another test starts it")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := Run(ctx, strings.Fields(*agentLine), noEnvironment, os.Stdout, os.Stderr); err != nil {
		t.Fatal(err)
	}
}

// agentProcess is an agent in a process of its own.
type agentProcess struct {
	line    string
	process *exec.Cmd
	log     *bytes.Buffer
}

func (a *agentProcess) start(t *testing.T) {
	t.Helper()
	a.process = exec.Command(os.Args[0], "-test.run=^TestAgentProcess$", "-agent="+a.line)
	a.log = new(bytes.Buffer)
	a.process.Stdout, a.process.Stderr = a.log, a.log
	if err := a.process.Start(); err != nil {
		t.Fatal(err)
	}
}

func newAgent(t *testing.T, line string) *agentProcess {
	t.Helper()
	a := &agentProcess{line: line}
	a.start(t)
	t.Cleanup(func() {
		a.kill()
		if t.Failed() {
			t.Logf("the log of the last agent:\n%s", a.log)
		}
	})
	return a
}

// kill ends the agent at once, and returns when it has ended.
func (a *agentProcess) kill() {
	_ = a.process.Process.Kill()
	_ = a.process.Wait()
}

// freeAddress returns a port of this machine that is free.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// step is a point at which a test stops what runs.
type step struct {
	reached chan struct{} // gets one entry for each arrival
	mu      sync.Mutex
	hold    chan struct{} // nil: nobody waits
}

func newStep() *step { return &step{reached: make(chan struct{}, 10)} }

// stop makes the next arrivals wait until the function that it returns is called.
func (s *step) stop() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hold := make(chan struct{})
	s.hold = hold
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hold = nil
		close(hold)
	})
}

func (s *step) pass(ctx context.Context) error {
	s.mu.Lock()
	hold := s.hold
	s.mu.Unlock()
	if hold == nil {
		return nil
	}
	s.reached <- struct{}{}
	select {
	case <-hold:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// content is a model of two files in a store.
var content = map[string]string{"/models/m/one.bin": strings.Repeat("1", 300_000), "/models/m/two.bin": strings.Repeat("2", 100_000)}

// store is a web server with models of one file each.
type store struct {
	*httptest.Server
	half *step // after half of a file was sent
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{half: newStep()}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, known := content[r.URL.Path]
		if !known {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("ETag", `"v1"`)
		if r.Method == http.MethodGet && r.Header.Get("Range") == "" {
			w.Header().Set("Content-Length", strconv.Itoa(len(text)))
			_, _ = w.Write([]byte(text[:len(text)/2]))
			_ = http.NewResponseController(w).Flush()
			if s.half.pass(r.Context()) == nil {
				_, _ = w.Write([]byte(text[len(text)/2:]))
			}
			return
		}
		if r.Method == http.MethodGet && s.half.pass(r.Context()) != nil {
			return
		}
		http.ServeContent(w, r, "", time.Unix(1, 0), strings.NewReader(text))
	}))
	t.Cleanup(s.Close)
	return s
}

// customRuntime is a runtime at a Unix socket that reads the files of models, and that a test stops
// during loads and unloads.
type customRuntime struct {
	mmesh.UnimplementedModelRuntimeServer
	t            *testing.T
	address      string
	load, unload *step
	stopServer   func()

	mu     sync.Mutex
	models map[string]bool
	purges int
}

func newRuntime(t *testing.T) *customRuntime {
	t.Helper()
	r := &customRuntime{t: t, address: filepath.Join(t.TempDir(), "rt.sock"), load: newStep(), unload: newStep()}
	r.start()
	t.Cleanup(func() { r.stopServer() })
	return r
}

func (r *customRuntime) start() {
	l, err := (&net.ListenConfig{}).Listen(r.t.Context(), "unix", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.models = make(map[string]bool)
	r.mu.Unlock()
	server := grpc.NewServer()
	mmesh.RegisterModelRuntimeServer(server, r)
	go func() { _ = server.Serve(l) }()
	r.stopServer = server.Stop
}

func (r *customRuntime) RuntimeStatus(context.Context, *mmesh.RuntimeStatusRequest) (*mmesh.RuntimeStatusResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.models)
	r.purges++
	return &mmesh.RuntimeStatusResponse{
		Status: mmesh.RuntimeStatusResponse_READY, CapacityInBytes: 1 << 30, MaxLoadingConcurrency: 4,
	}, nil
}

func (r *customRuntime) LoadModel(ctx context.Context, q *mmesh.LoadModelRequest) (*mmesh.LoadModelResponse, error) {
	text, err := os.ReadFile(q.GetModelPath())
	want := content["/models/m/"+filepath.Base(q.GetModelPath())]
	if err != nil || string(text) != want {
		r.t.Errorf("a load of %s, with %d of %d bytes: %v", q.GetModelPath(), len(text), len(want), err)
	}
	if err := r.load.pass(ctx); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.models[q.GetModelId()] = true
	return &mmesh.LoadModelResponse{SizeInBytes: uint64(len(text))}, nil
}

func (r *customRuntime) UnloadModel(ctx context.Context, q *mmesh.UnloadModelRequest) (*mmesh.UnloadModelResponse, error) {
	if err := r.unload.pass(ctx); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.models[q.GetModelId()] {
		return nil, status.Error(codes.NotFound, "no such model")
	}
	delete(r.models, q.GetModelId())
	return &mmesh.UnloadModelResponse{}, nil
}

func (r *customRuntime) has() (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.models {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// control is what control does with the agent. It can end and start again with its record.
type control struct {
	*testing.T
	address string
	loader  *loader.Loader
	record  loader.Record
}

func newControl(t *testing.T, address string) *control {
	c := &control{T: t, address: address}
	c.start()
	t.Cleanup(func() { _ = c.loader.Close() })
	return c
}

func (c *control) start() {
	c.Helper()
	var err error
	c.loader, err = loader.Open(loader.Endpoint{Address: "127.0.0.1:1", Management: c.address, Incarnation: "containers"},
		engineclient.Access{}, nil)
	if err != nil {
		c.Fatal(err)
	}
}

// look scrapes until the engine answers, and returns whether its models are gone.
func (c *control) look() (purged bool) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), testTimeout)
	defer cancel()
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		seen, err := c.loader.Scrape(ctx, c.record)
		switch {
		case ctx.Err() != nil:
			c.Fatalf("a scrape: %v", err)
		case err != nil:
			continue
		}
		c.record = loader.Record{Known: true, Incarnation: seen.Incarnation, Limits: seen.Limits}
		return seen.Purged
	}
}

// folders returns the folders of models: every other name begins with an underscore.
func folders(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if !strings.HasPrefix(e.Name(), "_") {
			names = append(names, e.Name())
		}
	}
	return names
}

// The agent, the engine, control, or agent and engine are killed at each step of a load and of an
// unload. No half file reaches the engine, control counts no model that is not there, and nothing
// is left after the last unload.
func TestKilledAtEachStep(t *testing.T) {
	for _, at := range []string{"fetch", "load", "loaded", "unload"} {
		for _, who := range []string{"agent", "engine", "control", "agent and engine"} {
			t.Run(at+"/"+who, func(t *testing.T) {
				t.Parallel()
				killAt(t, at, who)
			})
		}
	}
}

func killAt(t *testing.T, at, who string) {
	store, engine, dir, address := newStore(t), newRuntime(t), t.TempDir(), freeAddress(t)
	agent := newAgent(t, "--kind modelruntime --engine unix:"+engine.address+" --management "+address+" --models-dir "+dir)
	c := newControl(t, address)
	if !c.look() || engine.purges != 1 {
		t.Fatalf("the first look: %d purges", engine.purges)
	}
	model := func(file string) loader.Model {
		return loader.Model{ID: "m-" + file, Source: store.URL + "/models/m/" + file}
	}
	first, second := model("one.bin"), model("two.bin")
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	load := func(m loader.Model) error { _, err := c.loader.Load(t.Context(), m, testTimeout); return err }
	must("a load of another model", load(second))

	steps := map[string]*step{"fetch": store.half, "load": engine.load, "unload": engine.unload}
	release := func() {}
	done := make(chan error, 1)
	switch at {
	case "loaded", "unload":
		must("the load", load(first))
	}
	if s := steps[at]; s != nil {
		release = s.stop()
		go func() {
			if at == "unload" {
				done <- c.loader.Unload(t.Context(), first.ID)
			} else {
				done <- load(first)
			}
		}()
		select {
		case <-s.reached:
		case <-time.After(testTimeout):
			t.Fatal("the step is not reached")
		}
	} else {
		done <- nil
	}
	if strings.Contains(who, "agent") {
		agent.kill()
	}
	if strings.Contains(who, "engine") {
		engine.stopServer()
	}
	if who == "control" {
		_ = c.loader.Close()
		t.Log("the load was interrupted, or had succeeded:", <-done)
		c.start()
	}
	release()
	if strings.Contains(who, "engine") {
		engine.start()
	}
	if strings.Contains(who, "agent") {
		agent.start(t)
	}
	if purged, want := c.look(), strings.Contains(who, "engine"); purged != want {
		t.Errorf("the look after it: purged %t, want %t", purged, want)
	}
	if who != "control" {
		t.Log("the load may have failed; control then unloads what may be left:", <-done)
	}
	if strings.Contains(who, "engine") {
		if got := engine.has(); len(got) > 0 {
			t.Errorf("the new engine has %q", got)
		}
	} else if got := engine.has(); !slices.Contains(got, second.ID) {
		t.Errorf("the engine has %q, and lacks a model that nobody unloaded", got)
	}
	must("an unload of what may be left", c.loader.Unload(t.Context(), first.ID))
	must("a load after it", load(first))
	must("a load of the other model after it", load(second))
	if got := engine.has(); !slices.Equal(got, []string{first.ID, second.ID}) {
		t.Errorf("the engine has %q", got)
	}
	for _, m := range []loader.Model{first, second} {
		must("the last unload", c.loader.Unload(t.Context(), m.ID))
	}
	if got := append(engine.has(), folders(t, dir)...); len(got) > 0 {
		t.Errorf("models or folders %q are left", got)
	}
}

// After SIGTERM the agent is not ready, and relays and serves management until the last connection
// has ended.
func TestTermination(t *testing.T) {
	engine := newRuntime(t)
	data, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer data.Close()
	go func() {
		for {
			conn, err := data.Accept()
			if err != nil {
				return
			}
			go func() { // an echo
				defer conn.Close()
				buffer := make([]byte, 100)
				for {
					n, err := conn.Read(buffer)
					if _, failed := conn.Write(buffer[:n]); err != nil || failed != nil {
						return
					}
				}
			}()
		}
	}()
	management, relayed, health := freeAddress(t), freeAddress(t), freeAddress(t)
	agent := newAgent(t, fmt.Sprintf("--kind modelruntime --engine unix:%s --engine-data %s --management %s --data %s "+
		"--health-address %s --models-dir %s", engine.address, data.Addr(), management, relayed, health, t.TempDir()))
	c := newControl(t, management)
	c.look()
	until(t, "the agent is ready", func() bool { return ready(health) == http.StatusOK })
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", relayed)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	echo := func() {
		t.Helper()
		answer := make([]byte, 5)
		_, err := conn.Write([]byte("hello"))
		if _, failed := conn.Read(answer); err != nil || failed != nil || string(answer) != "hello" {
			t.Errorf("%q, %v, %v", answer, err, failed)
		}
	}
	echo()
	if err := agent.process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	until(t, "the agent is not ready", func() bool { return ready(health) == http.StatusServiceUnavailable })
	echo()
	if c.look() {
		t.Error("the engine is purged")
	}
	_ = conn.Close()
	if err := agent.process.Wait(); err != nil {
		t.Errorf("%v\n%s", err, agent.log)
	}
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	end := time.Now().Add(testTimeout)
	for tick := time.NewTicker(10 * time.Millisecond); !holds(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func ready(address string) int {
	answer, err := http.Get("http://" + address + "/ready")
	if err != nil {
		return 0
	}
	_ = answer.Body.Close()
	return answer.StatusCode
}
