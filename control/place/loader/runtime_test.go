package loader

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/simulated/runtime"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// testTimeout is longer than anything that a test waits for.
const testTimeout = 30 * time.Second

var serveAt = flag.String("serve-runtime", "", "for a test that starts itself: be a model runtime at this socket")

// TestRuntimeProcess is not a test: it runs a model runtime in a process of its own, for tests
// that kill it.
func TestRuntimeProcess(t *testing.T) {
	if *serveAt == "" {
		t.Skip("another test starts it")
	}
	if err := runtime.Command(t.Context(), []string{"--port", "0", "--management", "unix:" + *serveAt}, os.Stdout); err != nil {
		t.Fatal(err)
	}
}

// serveRuntime serves a simulated runtime until the test ends, and returns it with its address.
func serveRuntime(t *testing.T, network, address string) (*runtime.Runtime, string) {
	t.Helper()
	var config net.ListenConfig
	listen := func(network, address string) net.Listener {
		l, err := config.Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	r := runtime.New(runtime.Config{Capacity: 1 << 30, DefaultSize: 50 << 20, LoadingThreads: 6, LoadTimeout: time.Minute})
	management, data := listen(network, address), listen("tcp", "127.0.0.1:0")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- runtime.Serve(ctx, r, data, management) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if network == "unix" {
		return r, "unix:" + address
	}
	return r, management.Addr().String()
}

func openRuntimeFor(t *testing.T, management, incarnation string) *Loader {
	t.Helper()
	l, err := Open(Endpoint{Address: "127.0.0.1:1", Management: management, Incarnation: incarnation}, engineclient.Access{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// look scrapes the runtime, with testTimeout.
func look(t *testing.T, l *Loader, r Record) (ScrapeResult, Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	seen, err := l.Scrape(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return seen, Record{Known: true, Incarnation: seen.Incarnation, Limits: seen.Limits}
}

// One Loader replaces another, over a Unix socket and over TCP. The new one trusts the record
// within one incarnation, and also if incarnations cannot be distinguished.
func TestRuntimeIsMadeReadyOncePerIncarnation(t *testing.T) {
	for _, c := range []struct {
		network, address string
		told             bool // the incarnation is known
	}{
		{"unix", filepath.Join(t.TempDir(), "runtime.sock"), true},
		{"tcp", "127.0.0.1:0", false},
	} {
		t.Run(c.network, func(t *testing.T) {
			served, management := serveRuntime(t, c.network, c.address)
			l := openRuntimeFor(t, management, "")
			if _, err := l.Load(t.Context(), Model{ID: "x"}, testTimeout); faultOf(err) == nil || faultOf(err).Outcome != Unreached {
				t.Errorf("a load before the first look: %v", err)
			}
			seen, record := look(t, l, Record{})
			want := Limits{
				Bytes: 1 << 30, DefaultBytes: 50 << 20, Loads: 6, LoadTimeout: time.Minute,
				Methods: "inference.GRPCInferenceService/ModelInfer 1\ninference.GRPCInferenceService/ModelMetadata 1\ninference.GRPCInferenceService/ModelStreamInfer 1\nsimulated.Echo/Run",
			}
			if !seen.Purged || !seen.Takes || seen.Lists || seen.Limits != want || (seen.Incarnation != "") != c.told {
				t.Errorf("the first look sees %+v", seen)
			}
			if c.told && !regexp.MustCompile(fmt.Sprintf(`^pid %d started \d+$`, os.Getpid())).MatchString(seen.Incarnation) {
				t.Errorf("its process is %q", seen.Incarnation)
			}
			loaded, err := l.Load(t.Context(), Model{ID: "x", Source: "sim:?size=20"}, testTimeout)
			if err != nil || loaded.Bytes != 20 {
				t.Errorf("a load: %+v, %v", loaded, err)
			}
			for range 2 {
				if seen, _ := look(t, l, record); seen.Purged || seen.Limits != want {
					t.Errorf("a look after the first sees %+v", seen)
				}
				l = openRuntimeFor(t, management, "")
			}
			if seen, _ := look(t, l, record); seen.Purged || !served.Loaded("x") || served.Purges() != 1 {
				t.Errorf("a look with a record sees %+v, after %d purges", seen, served.Purges())
			}
			if err := l.Unload(t.Context(), "x"); err != nil || served.Used() != 0 {
				t.Errorf("an unload: %v", err)
			}
		})
	}
}

// A container id identifies an incarnation.
func TestContainerIdentifiesAnIncarnation(t *testing.T) {
	served, management := serveRuntime(t, "tcp", "127.0.0.1:0")
	_, record := look(t, openRuntimeFor(t, management, "containerd://1"), Record{})
	if seen, _ := look(t, openRuntimeFor(t, management, "containerd://1"), record); seen.Purged {
		t.Errorf("the same container: %+v", seen)
	}
	if seen, _ := look(t, openRuntimeFor(t, management, "containerd://2"), record); !seen.Purged || seen.Incarnation != "containerd://2" ||
		served.Purges() != 2 {
		t.Errorf("another container: %+v after %d purges", seen, served.Purges())
	}
}

// A runtime that is killed and restarted at the same socket is another process.
func TestProcessIdentifiesAnIncarnation(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "runtime.sock")
	l := openRuntimeFor(t, "unix:"+socket, "")
	var record Record
	for life := range 2 {
		process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRuntimeProcess$", "-serve-runtime="+socket)
		out, err := process.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 100)); err != nil { // the process prints its address
			t.Fatal(err)
		}
		before := record.Incarnation
		var seen ScrapeResult
		if seen, record = look(t, l, record); !seen.Purged || seen.Incarnation == before {
			t.Errorf("life %d: %+v after %q", life, seen, before)
		}
		if _, err := l.Load(t.Context(), Model{ID: "x", Source: "sim:"}, testTimeout); err != nil {
			t.Errorf("life %d: %v", life, err)
		}
		if err := process.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = process.Wait()
		if _, err := l.Load(t.Context(), Model{ID: "y", Source: "sim:"}, testTimeout); faultOf(err) == nil ||
			faultOf(err).Outcome != Unreached {
			t.Errorf("life %d: a load when it is dead: %v", life, err)
		}
	}
}

func TestModelRuntimeNeedsAnAddress(t *testing.T) {
	if _, err := Open(Endpoint{Address: "127.0.0.1:1", Kind: engine.ModelRuntime}, engineclient.Access{}, nil); err == nil ||
		!strings.Contains(err.Error(), "spec.management") {
		t.Errorf("%v", err)
	}
}

// counting is a runtime that counts predictions, each of which is slow.
type counting struct {
	*runtime.Runtime
	pause       time.Duration
	predictions atomic.Int64
}

func (c *counting) PredictModelSize(ctx context.Context, q *mmesh.PredictModelSizeRequest) (*mmesh.PredictModelSizeResponse, error) {
	c.predictions.Add(1)
	select {
	case <-time.After(c.pause):
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return c.Runtime.PredictModelSize(ctx, q)
}

func TestSlowPredictionsAreDropped(t *testing.T) {
	for _, c := range []struct {
		name         string
		unpredicting bool
		pause        time.Duration
		want         int64
		failure      string
		calls        int64 // number of calls for two predictions
	}{
		{"quick", false, 100 * time.Millisecond, 40, "", 2},
		{"slow", false, time.Minute, 0, "unclear: predictModelSize: no answer in time", 2},
		{"unimplemented", true, 0, 0, "", 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &site{}
			listener := s.listen()
			served := &counting{pause: c.pause, Runtime: runtime.New(runtime.Config{
				Capacity: 100, DefaultSize: 10, LoadingThreads: 1, Unpredicting: c.unpredicting,
			})}
			server := grpc.NewServer()
			mmesh.RegisterModelRuntimeServer(server, served)
			go func() { _ = server.Serve(listener) }()
			l, err := Open(Endpoint{Management: "192.0.2.1:8085"}, engineclient.Access{Dial: s.dial}, nil)
			if err != nil {
				t.Fatal(err)
			}
			look(t, l, Record{})
			for range 2 {
				start := time.Now()
				size, err := l.Predict(t.Context(), Model{ID: "x", Source: "sim:?size=50&predict=40"})
				if took := time.Since(start); size != c.want || said(err, "") != c.failure || took > predictTimeout {
					t.Errorf("%s: %d, %q after %v", c.name, size, said(err, ""), took)
				}
			}
			if got := served.predictions.Load(); got != c.calls {
				t.Errorf("%s: it was asked %d times, want %d", c.name, got, c.calls)
			}
			if size, err := l.Size(t.Context(), "x"); size != 10 || err != nil {
				t.Errorf("%s: the size of what it does not know: %d, %v", c.name, size, err)
			}
			_ = l.Close()
			served.Close()
			server.Stop()
		})
	}
}

// tokenEcho is a model runtime that repeats the token of each call in its message.
type tokenEcho struct {
	mmesh.UnimplementedModelRuntimeServer
	last atomic.Value
}

func (g *tokenEcho) RuntimeStatus(ctx context.Context, _ *mmesh.RuntimeStatusRequest) (*mmesh.RuntimeStatusResponse, error) {
	all, _ := metadata.FromIncomingContext(ctx)
	shown := strings.Join(all.Get("authorization"), ",")
	g.last.Store(shown)
	return nil, status.Error(codes.Unauthenticated, "nobody knows "+strings.TrimPrefix(shown, "Bearer "))
}

// A runtime is called with its endpoint's token and no other. The token is removed from the
// runtime's messages.
func TestEachRuntimeGetsItsOwnToken(t *testing.T) {
	g, server := new(tokenEcho), grpc.NewServer()
	mmesh.RegisterModelRuntimeServer(server, g)
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	tokens := engineclient.NewTokens(func() string { return "flag" })
	if _, err := tokens.Set("a/s/token", []byte("secret")); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{"": "Bearer flag", "a/s/token": "Bearer secret", "b/s/token": ""} {
		l, err := Open(Endpoint{Address: "127.0.0.1:1", Management: l.Addr().String(), Token: ref},
			engineclient.Access{Tokens: tokens}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		_, err = l.Scrape(ctx, Record{})
		cancel()
		_ = l.Close()
		if got := g.last.Load(); got != want {
			t.Errorf("with the reference %q a call carries %q, want %q", ref, got, want)
		}
		if err == nil || strings.Contains(err.Error(), "flag") || strings.Contains(err.Error(), "secret") ||
			!strings.Contains(err.Error(), "Unauthenticated: nobody knows") {
			t.Errorf("with the reference %q: %v", ref, err)
		}
	}
}

// When a runtime without a known incarnation ends, the next dial is refused at once. The restarted
// runtime is then made ready before it gets any load.
func TestRuntimeIsMadeReadyAfterARefusedDial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{}
		begin := func() (*runtime.Runtime, func()) {
			served, server, listener := runtime.New(runtime.Config{Capacity: 100, DefaultSize: 10, LoadingThreads: 1}), grpc.NewServer(),
				s.listen()
			mmesh.RegisterModelRuntimeServer(server, served)
			go func() { _ = server.Serve(listener) }()
			return served, func() { s.close(); server.Stop(); synctest.Wait() }
		}
		_, end := begin()
		l, err := Open(Endpoint{Management: "192.0.2.1:8085"}, engineclient.Access{Dial: s.dial}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, record := look(t, l, Record{})
		x := Model{ID: "x", Source: "sim:?size=20"}
		for _, scraped := range []bool{false, true} { // whether a scrape runs while no process listens
			end()
			if scraped {
				if _, err := l.Scrape(t.Context(), record); err == nil {
					t.Error("a scrape succeeds where nobody is")
				}
			}
			var served *runtime.Runtime
			served, end = begin()
			if _, err := l.Load(t.Context(), x, testTimeout); err == nil || served.Used() != 0 {
				t.Errorf("it loads before it said that it is ready: %v", err)
			}
			var seen ScrapeResult
			if seen, record = look(t, l, record); seen.Doubtful || !seen.Purged || served.Purges() != 1 {
				t.Errorf("the first scrape after a restart finds %+v, and purged it %d times", seen, served.Purges())
			}
			if seen, record = look(t, l, record); seen.Purged || served.Purges() != 1 {
				t.Errorf("the second scrape finds %+v, and purged it %d times", seen, served.Purges())
			}
			if _, err := l.Load(t.Context(), x, testTimeout); err != nil || served.Used() != 20 {
				t.Errorf("it does not load once it is ready: %v", err)
			}
		}
		end()
	})
}

// A connection may break although the runtime still runs. Its models are still used, with Doubtful
// set, until one is found missing.
func TestRuntimeIsDoubtfulAfterABrokenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{}
		served, server := runtime.New(runtime.Config{Capacity: 100, DefaultSize: 10, LoadingThreads: 1}), grpc.NewServer()
		mmesh.RegisterModelRuntimeServer(server, served)
		listener := s.listen()
		go func() { _ = server.Serve(listener) }()
		defer func() { s.close(); server.Stop(); synctest.Wait() }()
		l, err := Open(Endpoint{Management: "192.0.2.1:8085"}, engineclient.Access{Dial: s.dial}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		seen, record := look(t, l, Record{})
		for range 2 {
			time.Sleep(time.Hour) // no call is made meanwhile
			if seen, record = look(t, l, record); seen.Doubtful {
				t.Error("it is doubtful for no reason")
			}
		}
		s.cut()
		synctest.Wait()
		for range 2 {
			if seen, record = look(t, l, record); !seen.Doubtful || seen.Purged || served.Purges() != 1 {
				t.Errorf("with a new connection it is seen as %+v", seen)
			}
			if _, err := l.Load(t.Context(), Model{ID: "x", Source: "sim:?size=20"}, testTimeout); err != nil {
				t.Errorf("a load where there is doubt: %v", err)
			}
		}
		record.Restarted = true
		if seen, record = look(t, l, record); seen.Doubtful || !seen.Purged || served.Purges() != 2 || served.Used() != 0 {
			t.Errorf("made ready anew it is seen as %+v", seen)
		}
	})
}
