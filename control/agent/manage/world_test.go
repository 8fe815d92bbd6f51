package manage

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/headgate/simulated/runtime"
	"github.com/headgate/headgate/internal/engineclient"
)

// testTimeout is longer than anything that a test waits for.
const testTimeout = 30 * time.Second

// fakeStorage is a [Storage]. A path "fetch:WHAT" is fetched; other paths pass.
type fakeStorage struct {
	mu      sync.Mutex
	files   map[string]bool
	fetches int
	fail    error         // the error of fetches
	hold    chan struct{} // nil, or fetches wait until it is closed
	begun   chan string   // gets the id of each fetch that waits
}

func newStorage() *fakeStorage {
	return &fakeStorage{files: make(map[string]bool), begun: make(chan string, 10)}
}

func (s *fakeStorage) Fetch(ctx context.Context, r Request) (Local, error) {
	what, fetched := strings.CutPrefix(r.Path, "fetch:")
	if !fetched {
		return Local{Path: r.Path, Key: r.Key}, nil
	}
	s.mu.Lock()
	s.files[r.ID] = true
	s.fetches++
	hold, fail := s.hold, s.fail
	s.mu.Unlock()
	if hold != nil {
		s.begun <- r.ID
		select {
		case <-hold:
		case <-ctx.Done():
			return Local{}, &FetchError{Message: "interrupted: " + ctx.Err().Error(), Transient: true}
		}
	}
	if fail != nil {
		return Local{}, fail
	}
	return Local{Path: "sim:?" + what, Key: "local " + r.Key, Bytes: 1000}, nil
}

func (s *fakeStorage) Release(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, id)
	return nil
}

func (s *fakeStorage) Models() (ids []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.files {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// runtimeProcess is a simulated runtime at an address, which can end and start again.
type runtimeProcess struct {
	*runtime.Runtime
	address string // unix:PATH or HOST:PORT
	config  runtime.Config
	stop    func()
}

// newRuntime starts a runtime at a Unix socket, or at a port.
func newRuntime(t *testing.T, network string, c runtime.Config) *runtimeProcess {
	t.Helper()
	c.Capacity, c.DefaultSize, c.LoadingThreads, c.LoadTimeout = 1<<30, 50<<20, 6, time.Minute
	p := &runtimeProcess{address: "127.0.0.1:0", config: c}
	if network == "unix" {
		p.address = unixScheme + filepath.Join(t.TempDir(), "rt.sock")
	}
	p.start(t)
	t.Cleanup(func() { p.stop() })
	return p
}

func (p *runtimeProcess) start(t *testing.T) {
	t.Helper()
	listen := func(network, address string) net.Listener {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	network, address := place(p.address).network()
	management, data := listen(network, address), listen("tcp", "127.0.0.1:0")
	if network == "tcp" {
		p.address = management.Addr().String()
	}
	p.Runtime = runtime.New(p.config)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- runtime.Serve(ctx, p.Runtime, data, management) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// agentProcess is an agent, which can end and start again at its address.
type agentProcess struct {
	*Server
	address string
	config  Config
	open    func() Engine
	stop    func()
}

// newAgent starts an agent. open opens its engine, anew at each start.
func newAgent(t *testing.T, c Config, open func() Engine) *agentProcess {
	t.Helper()
	c.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	if c.Storage == nil {
		c.Storage = newStorage()
	}
	p := &agentProcess{address: "127.0.0.1:0", config: c, open: open}
	p.start(t)
	t.Cleanup(func() { p.stop() })
	return p
}

func (p *agentProcess) start(t *testing.T) {
	t.Helper()
	p.config.Engine = p.open()
	s, err := New(p.config)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", p.address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(s.Options(), grpc.WaitForHandlers(true))...)
	s.Register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	p.Server, p.address = s, l.Addr().String()
	p.stop = sync.OnceFunc(func() {
		server.Stop()
		if err := errors.Join(<-done, s.Close()); err != nil {
			t.Error(err)
		}
	})
}

// calls returns a client of an address.
func calls(t *testing.T, address string) mmesh.ModelRuntimeClient {
	t.Helper()
	return mmesh.NewModelRuntimeClient(dial(t, address))
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func runtimeAt(t *testing.T, address string) Engine {
	t.Helper()
	r, err := OpenRuntime(address)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// control is what control does with the agent.
type control struct {
	*testing.T
	loader *loader.Loader
	record loader.Record
}

func newControl(t *testing.T, address string) *control {
	t.Helper()
	l, err := loader.Open(loader.Endpoint{Address: "127.0.0.1:1", Management: address, Incarnation: "containers"}, engineclient.Access{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &control{T: t, loader: l}
}

// look scrapes the agent, and checks whether its models are gone. It scrapes until the engine
// answers.
func (c *control) look(what string, purged bool) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), testTimeout)
	defer cancel()
	for {
		seen, err := c.loader.Scrape(ctx, c.record)
		if ctx.Err() != nil {
			c.Fatalf("%s: a scrape: %v", what, err)
		}
		if err != nil {
			continue // each scrape waits for a connection
		}
		if seen.Purged != purged || !strings.HasPrefix(seen.Incarnation, loader.LifePrefix) || !seen.Takes || seen.Limits.Bytes == 0 {
			c.Fatalf("%s: a scrape sees %+v, want purged %t", what, seen, purged)
		}
		c.record = loader.Record{Known: true, Incarnation: seen.Incarnation, Limits: seen.Limits}
		return
	}
}

func (c *control) load(id, source string) error {
	_, err := c.loader.Load(c.Context(), loader.Model{ID: id, Source: source, Info: "key"}, testTimeout)
	return err
}

func (c *control) mustLoad(id, source string) {
	c.Helper()
	if err := c.load(id, source); err != nil {
		c.Fatalf("a load of %s: %v", id, err)
	}
}
