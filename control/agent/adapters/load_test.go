package adapters

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/control/place/loader"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// control returns control's own client of an engine with an agent.
func (a *agent) control(at string) *loader.Loader {
	a.Helper()
	access := engineclient.Access{Tokens: engineclient.NewTokens(func() string { return "key of the engine" })}
	l, err := loader.Open(loader.Endpoint{Address: at, Kind: a.kind, Management: strings.TrimPrefix(a.url, "http://")}, access, nil)
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { _ = l.Close() })
	return l
}

// Each failure reaches control with the reason that it knows, and leaves no files.
func TestFailuresAsControlReadsThem(t *testing.T) {
	fetched := func(reason fetch.Reason, words string) func(*agent) {
		return func(a *agent) {
			a.disk.fetch = func(context.Context, string) error { return &fetch.Error{Reason: reason, Message: words} }
		}
	}
	for name, c := range map[string]struct {
		change    func(*agent)
		fault     engine.LoadFault
		transient bool
		words     string
	}{
		"not found":  {fetched(fetch.NotFound, "s3://b/x does not exist"), engine.FilesMissing, false, "s3://b/x does not exist"},
		"empty":      {fetched(fetch.Empty, "s3://b/x is empty"), engine.FilesMissing, false, "s3://b/x is empty"},
		"denied":     {fetched(fetch.Denied, "s3://b/x is already closed"), engine.UnknownFault, false, "s3://b/x is already closed"},
		"invalid":    {fetched(fetch.Invalid, "ftp://b/x has no scheme that is known"), engine.UnknownFault, false, "no scheme"},
		"wrong hash": {fetched(fetch.Corrupt, "s3://b/x has another digest"), engine.UnknownFault, false, "another digest"},
		"busy":       {fetched(fetch.Busy, "s3://b/x is busy"), engine.UnknownFault, true, "s3://b/x is busy"},
		"full":       {fetched(fetch.Full, "the disk is full"), engine.UnknownFault, true, "the disk is full"},
		"changed":    {fetched(fetch.Changed, "s3://b/x changes"), engine.UnknownFault, true, "s3://b/x changes"},
		"other": {func(a *agent) {
			a.disk.fetch = func(context.Context, string) error { return errors.New("something broke") }
		}, engine.UnknownFault, false, "something broke"},
		"no adapter": {
			func(a *agent) { a.disk.rank = 0 }, engine.FilesMissing, false,
			"there is no file adapter_config.json at the top of s3://b/x",
		},
		"rank": {func(a *agent) { a.disk.rank = 64 }, engine.RankTooLarge, false, "LoRA rank 64 is greater than max_lora_rank 16"},
		"unresolved": {func(a *agent) {
			a.config.Resolve = func(storage.Request) (storage.Source, bool, error) {
				return storage.Source{}, false, errors.New("no entry k")
			}
		}, engine.UnknownFault, false, "no entry k"},
		"a folder in a folder": {func(a *agent) {
			a.disk.rank = 0
			a.config.Resolve = func(r storage.Request) (storage.Source, bool, error) {
				if r.Key != `{"storage_key":"k"}` || r.ID != "x" {
					t.Errorf("it is resolved by %+v", r)
				}
				return resolve(r)
			}
		}, engine.FilesMissing, false, "No adapter found for 'x'"},
	} {
		for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang} {
			t.Run(name+" on "+string(kind), func(t *testing.T) {
				at, _ := simulate(t, kind, "127.0.0.1:0")
				a := start(t, kind, at, nil)
				c.change(a)
				_, err := a.control(at).Load(t.Context(), loader.Model{ID: "x", Source: "s3://b/x", Info: `{"storage_key":"k"}`}, patience)
				var failed *loader.Error
				if !errors.As(err, &failed) || failed.Outcome != loader.Refused || failed.Fault != c.fault ||
					failed.Transient != c.transient || !strings.Contains(failed.Message, c.words) {
					t.Errorf("%+v", err)
				}
				a.has()
			})
		}
	}
}

// While the engine is away, nothing is fetched, and control may retry.
func TestEngineThatIsAway(t *testing.T) {
	at, end := simulate(t, engine.VLLM, "127.0.0.1:0")
	a := start(t, engine.VLLM, at, nil)
	end()
	is := a.load("x", "s3://b/x")
	if is.status != http.StatusServiceUnavailable || !strings.Contains(is.body, "the engine accepts no connections: ") ||
		is.header.Get("Retry-After") == "" || a.disk.fetched != 0 {
		t.Errorf("%+v after %d fetches", is, a.disk.fetched)
	}
	for method, path := range map[string]string{"GET": "/v1/models", "POST": a.path("unload")} {
		if is := a.do(method, path, `{"lora_name":"x"}`); is.status != http.StatusServiceUnavailable {
			t.Errorf("%s: %+v", path, is)
		}
	}
}

// control loads and unloads through the agent, with the real store of files.
func TestControlWithTheStoreOfFiles(t *testing.T) {
	at, _ := simulate(t, engine.VLLM, "127.0.0.1:0")
	store, err := files.Open(files.Config{
		Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Open: func(_ context.Context, source storage.Source) (fetch.Remote, error) {
			if source.URI != "s3://bucket/sql" {
				return nil, &fetch.Error{Reason: fetch.NotFound, Message: source.URI + " does not exist"}
			}
			return twoFiles{}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	a := start(t, engine.VLLM, at, func(c *Config) { c.Files = stored{store} })
	l := a.control(at)
	if _, err := l.Load(t.Context(), loader.Model{ID: "org/sql", Source: "s3://bucket/sql"}, patience); err != nil {
		t.Error(err)
	}
	if names := a.config.Files.Names(); len(names) != 1 || names[0] != "org/sql" {
		t.Errorf("there are files of %q", names)
	}
	if _, err := l.Load(t.Context(), loader.Model{ID: "org/none", Source: "s3://bucket/none"}, patience); err == nil ||
		!strings.Contains(err.Error(), "No adapter found for 'org/none': s3://bucket/none does not exist") {
		t.Error(err)
	}
	if err := l.Unload(t.Context(), "org/sql"); err != nil {
		t.Error(err)
	}
	if names := a.config.Files.Names(); len(names) != 0 {
		t.Errorf("there are files of %q", names)
	}
}

// stored is the Files of a real store.
type stored struct{ *files.Store }

// Fetch fetches the files of an adapter, and returns the path of its folder.
func (s stored) Fetch(ctx context.Context, name string, source storage.Source) (string, error) {
	local, err := s.Store.Fetch(ctx, name, source)
	return local.Path, err
}

// Names returns the adapters that have files.
func (s stored) Names() []string {
	models := s.Models()
	names := make([]string, len(models))
	for i, m := range models {
		names[i] = m.ID
	}
	return names
}

// twoFiles is a source with the files of an adapter.
type twoFiles struct{}

var adapterFiles = map[string]string{configFile: `{"r":8}`, "adapter_model.safetensors": "weights"}

func (twoFiles) List(context.Context) (fetch.Listing, error) {
	var l fetch.Listing
	for name, text := range adapterFiles {
		l.Objects = append(l.Objects, fetch.Object{Name: name, Size: int64(len(text)), Version: "1"})
	}
	return l, nil
}

func (twoFiles) Open(_ context.Context, o fetch.Object, offset, length int64) (io.ReadCloser, error) {
	text := adapterFiles[o.Name][offset:]
	if length >= 0 {
		text = text[:length]
	}
	return io.NopCloser(strings.NewReader(text)), nil
}

func (twoFiles) Close() error { return nil }

// Calls for one adapter run one after another, those for different adapters at once.
func TestCallsForOneAdapterAreOrdered(t *testing.T) {
	at, _ := simulate(t, engine.VLLM, "127.0.0.1:0")
	a := start(t, engine.VLLM, at, nil)
	var mu sync.Mutex
	running, most := map[string]int{}, 0
	go1, both := make(chan struct{}), make(chan struct{})
	a.disk.fetch = func(_ context.Context, uri string) error {
		mu.Lock()
		running[uri]++
		most = max(most, running[uri])
		n := len(running)
		mu.Unlock()
		if n == 2 {
			select {
			case <-both:
			default:
				close(both)
			}
		}
		<-go1
		mu.Lock()
		running[uri]--
		mu.Unlock()
		return nil
	}
	var all sync.WaitGroup
	for _, name := range []string{"x", "x", "y", "x", "y"} {
		all.Go(func() { a.load(name, "s3://b/"+name) })
	}
	select {
	case <-both:
	case <-time.After(patience):
		t.Error("different adapters are not fetched at once")
	}
	close(go1)
	all.Wait()
	if most != 1 || a.disk.fetched != 2 {
		t.Errorf("%d fetches of one adapter at once, %d in all", most, a.disk.fetched)
	}
	a.has("x", "y")
}

// A caller that leaves ends the fetch, or its wait for the adapter's turn.
func TestCallerThatLeavesDuringAFetch(t *testing.T) {
	at, _ := simulate(t, engine.VLLM, "127.0.0.1:0")
	a := start(t, engine.VLLM, at, nil)
	const calls = 3
	fetching, ended := make(chan struct{}, calls), make(chan struct{}, calls)
	a.disk.fetch = func(ctx context.Context, _ string) error {
		fetching <- struct{}{}
		<-ctx.Done()
		ended <- struct{}{}
		return ctx.Err()
	}
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			_, err := send(t, ctx, http.MethodPost, a.url+a.path("load"), `{"lora_name":"x","lora_path":"s3://b/x"}`,
				"Authorization", "Bearer key of the engine")
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	<-fetching
	leave()
	all.Wait()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the fetch goes on")
	}
	await(t, "no call is left", func() bool { return a.locks.Idle("x") })
	if got := a.listed(); len(got) != 0 {
		t.Errorf("the engine lists %q", got)
	}
}

// A load that has reached the engine goes on after its caller has left, and the files stay.
func TestCallerThatLeavesDuringALoad(t *testing.T) {
	loading, finish := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	list := `{"data":[]}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/v1/models" {
			_, _ = io.WriteString(w, list)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice a caller that leaves
		close(loading)
		select {
		case <-r.Context().Done():
			return
		case <-finish:
		}
		list = `{"data":[{"id":"x","parent":"base"}]}`
	}))
	defer server.Close()
	a := start(t, engine.VLLM, server.Listener.Addr().String(), nil)
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		_, _ = send(t, ctx, http.MethodPost, a.url+a.path("load"), `{"lora_name":"x","lora_path":"s3://b/x"}`)
	})
	<-loading
	leave()
	all.Wait()
	if a.locks.Idle("x") {
		t.Error("the load does not go on")
	}
	time.Sleep(20 * time.Millisecond) // in which a load that does not go on would end
	close(finish)
	await(t, "the load ends", func() bool { return a.locks.Idle("x") })
	if got := a.listed(); len(got) != 1 {
		t.Errorf("the engine lists %q", got)
	}
	a.has("x")
}

// Files stay while the engine lists their adapter, and while it is away. After a restart of the
// engine they are released.
func TestFilesOfAdaptersThatAreGone(t *testing.T) {
	at, end := simulate(t, engine.VLLM, "127.0.0.1:0")
	a := start(t, engine.VLLM, at, func(c *Config) { c.Key = func() string { return "key of the engine" } })
	for _, name := range []string{"x", "y"} {
		if is := a.load(name, "s3://b/"+name); is.status != http.StatusOK {
			t.Fatalf("%+v", is)
		}
	}
	absent := make(map[string]int)
	reconcile := func() {
		for range absences + 1 {
			a.reconcile(t.Context(), absent)
		}
	}
	reconcile()
	a.has("x", "y")
	end()
	reconcile()
	a.has("x", "y")
	simulate(t, engine.VLLM, at)
	if is := a.load("y", "s3://b/y"); is.status != http.StatusOK {
		t.Fatalf("%+v", is)
	}
	turn, err := a.locks.Lock(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	reconcile()
	a.has("x", "y") // a call for x runs
	turn()
	a.reconcile(t.Context(), absent)
	a.has("x", "y") // one list may be too early
	reconcile()
	a.has("y")
	if is := a.unload("y"); is.status != http.StatusOK {
		t.Errorf("%+v", is)
	}
	a.reconcile(t.Context(), absent)
	if len(absent) != 0 {
		t.Errorf("it still counts lists: %v", absent)
	}
}

// Run compares files and list by itself, and ends with its context.
func TestRunEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a := start(t, engine.VLLM, l.Addr().String(), nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.Server.Run(ctx)
	}()
	stop()
	<-done
}
