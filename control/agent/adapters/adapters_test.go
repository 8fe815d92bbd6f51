package adapters

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/control/agent/relay"
	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/leak"
)

// patience is how long a test waits for something that must happen.
const patience = 20 * time.Second

// disk is Files in a temporary folder, without storage.
type disk struct {
	dir   string
	rank  int                                         // of all adapters; 0 means that there is no adapter_config.json
	fetch func(ctx context.Context, uri string) error // called by Fetch; nil for nothing

	mu      sync.Mutex
	names   map[string]string // URI by adapter
	fetched int
}

func (d *disk) Fetch(ctx context.Context, name string, source storage.Source) (string, error) {
	if d.fetch != nil {
		if err := d.fetch(ctx, source.URI); err != nil {
			return "", err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	path := filepath.Join(d.dir, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return "", err
	}
	if d.rank > 0 {
		if err := os.WriteFile(filepath.Join(path, configFile), fmt.Appendf(nil, `{"r":%d}`, d.rank), 0o644); err != nil { //nolint:gosec // no secret
			return "", err
		}
	}
	d.names[name] = source.URI
	d.fetched++
	return path + "/", nil
}

func (d *disk) Release(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.names, name)
	return os.RemoveAll(filepath.Join(d.dir, name))
}

func (d *disk) Names() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Sorted(maps.Keys(d.names))
}

// agent is a Server with its disk, in front of an engine.
type agent struct {
	*testing.T
	*Server
	disk *disk
	url  string
	kind engine.Kind
}

// resolve takes every path with a scheme for remote.
func resolve(r storage.Request) (storage.Source, bool, error) {
	return storage.Source{URI: r.Path, Scheme: storage.S3}, strings.Contains(r.Path, "://"), nil
}

// start starts an agent for an engine at an address, with changes of its configuration.
func start(t *testing.T, kind engine.Kind, address string, change func(*Config)) *agent {
	t.Helper()
	at, err := relay.ParseEndpoint(address)
	if err != nil {
		t.Fatal(err)
	}
	d := &disk{dir: t.TempDir(), rank: 8, names: make(map[string]string)}
	c := Config{Kind: kind, Engine: at, Files: d, Resolve: resolve, Log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&c)
	}
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		server.Close()
		for path, n := range leak.Maps(&s.locks) {
			if n != 0 {
				t.Errorf("%s has %d elements at the end", path, n)
			}
		}
	})
	return &agent{t, s, d, server.URL, kind}
}

// simulate starts a simulated engine on a port, and returns its address and a function that ends
// it.
func simulate(t *testing.T, kind engine.Kind, address string) (at string, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	p := llm.DefaultProfile()
	p.AdapterLoad = profile.Spread{Mean: 0.01}
	s, err := llm.New(llm.Config{Kind: kind, Listener: l, Profile: p, ServedNames: []string{"base"}, APIKey: "key of the engine"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	end = sync.OnceFunc(func() {
		stop()
		s.Kill()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return l.Addr().String(), end
}

// reply is a response.
type reply struct {
	status int
	body   string
	header http.Header
}

// send sends a request with headers, pairs of name and value.
func send(t *testing.T, ctx context.Context, method, url, body string, headers ...string) (reply, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	is, err := client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer is.Body.Close()
	text, err := io.ReadAll(is.Body)
	return reply{is.StatusCode, string(text), is.Header}, err
}

func (a *agent) do(method, path, body string, headers ...string) reply {
	a.Helper()
	is, err := send(a.T, a.Context(), method, a.url+path, body, append(headers, "Authorization", "Bearer key of the engine")...)
	if err != nil {
		a.Fatal(err)
	}
	return is
}

// path returns the path of a load or an unload.
func (a *agent) path(call string) string {
	if a.kind == engine.SGLang {
		return "/" + call + "_lora_adapter"
	}
	return "/v1/" + call + "_lora_adapter"
}

func (a *agent) load(name, path string) reply {
	a.Helper()
	return a.do(http.MethodPost, a.path("load"), fmt.Sprintf(`{"lora_name":%q,"lora_path":%q,"storage":"{}"}`, name, path))
}

func (a *agent) unload(name string) reply {
	a.Helper()
	return a.do(http.MethodPost, a.path("unload"), fmt.Sprintf(`{"lora_name":%q}`, name))
}

// listed returns the adapters that the engine lists.
func (a *agent) listed() []string {
	a.Helper()
	models, err := engine.ReadModels([]byte(a.do(http.MethodGet, "/v1/models", "").body))
	if err != nil {
		a.Error(err)
	}
	return models.Adapters
}

// has checks which adapters have files.
func (a *agent) has(want ...string) {
	a.Helper()
	if got := a.disk.Names(); !slices.Equal(got, want) {
		a.Errorf("there are files of %q, want %q", got, want)
	}
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// An adapter at a URI is fetched and loaded from its files. After the unload its files are
// released. An adapter at a path is left to the engine.
func TestLoadAndUnload(t *testing.T) {
	for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang} {
		t.Run(string(kind), func(t *testing.T) {
			at, _ := simulate(t, kind, "127.0.0.1:0")
			a := start(t, kind, at, nil)
			if is := a.load("org/sql", "s3://bucket/sql"); is.status != http.StatusOK {
				t.Errorf("a load: %+v", is)
			}
			if is := a.load("local", "sim:"); is.status != http.StatusOK {
				t.Errorf("a load from a path: %+v", is)
			}
			if got := a.listed(); !slices.Equal(got, []string{"org/sql", "local"}) {
				t.Errorf("the engine lists %q", got)
			}
			if models := a.do(http.MethodGet, "/v1/models", "").body; kind == engine.VLLM &&
				!strings.Contains(models, fmt.Sprintf("%q", filepath.Join(a.disk.dir, "org/sql"))) {
				t.Errorf("the engine has not got the path: %s", models)
			}
			a.has("org/sql")
			if is := a.load("org/sql", "s3://bucket/other"); is.status != http.StatusBadRequest || !strings.Contains(is.body, "already") {
				t.Errorf("a second load: %+v", is)
			}
			if a.disk.fetched != 1 {
				t.Errorf("%d fetches", a.disk.fetched)
			}
			if is := a.unload("org/sql"); is.status != http.StatusOK {
				t.Errorf("an unload: %+v", is)
			}
			a.has()
			if is := a.unload("org/sql"); is.status/100 != 4 {
				t.Errorf("a second unload: %+v", is)
			}
		})
	}
}

// The engine's answers pass unchanged, also those to bodies that no engine takes.
func TestAnswersPassUnchanged(t *testing.T) {
	for _, kind := range []engine.Kind{engine.VLLM, engine.SGLang} {
		at, _ := simulate(t, kind, "127.0.0.1:0")
		a := start(t, kind, at, nil)
		for _, body := range []string{
			"", "no JSON", "[]", "{}", `{"lora_name":"x"}`, `{"lora_name":7}`, `{"lora_path":"sim:"}`, `{"lora_name":"base","lora_path":"sim:"}`,
			`{"lora_name":"x","lora_path":"sim:rank=99"}`, `{"lora_name":"x","lora_path":"/no/such/dir"}`,
		} {
			direct, err := send(t, t.Context(), http.MethodPost, "http://"+at+a.path("load"), body, "Authorization", "Bearer key of the engine")
			if err != nil {
				t.Fatal(err)
			}
			through := a.do(http.MethodPost, a.path("load"), body)
			for _, is := range []reply{direct, through} {
				is.header.Del("Date")
			}
			if through.status != direct.status || through.body != direct.body ||
				through.header.Get("Content-Type") != direct.header.Get("Content-Type") {
				t.Errorf("%s, %s:\n%+v\nwithout the agent %+v", kind, body, through, direct)
			}
		}
	}
}

// Fields that the agent does not know pass; storage does not.
func TestFieldsOfABody(t *testing.T) {
	for body, want := range map[string]string{
		`{"lora_name":"x","lora_path":"/p","more":[1,2]}`:           `{"lora_name":"x","lora_path":"/p","more":[1,2]}`,
		`{"lora_name":"x","lora_path":"/p","storage":"{}"}`:         `{"lora_name":"x","lora_path":"/p"}`,
		`{"lora_name":"x","lora_path":"s3://b/p","pinned":true}`:    `{"lora_name":"x","lora_path":"/local","pinned":true}`,
		`{"storage":7,"lora_name":"x","lora_path":"s3://b/p"}`:      `{"lora_name":"x","lora_path":"/local"}`,
		`{"lora_name":"x","lora_path":"s3://b/p","lora_path":"/p"}`: `{"lora_name":"x","lora_path":"s3://b/p","lora_path":"/p"}`,
	} {
		r, local := readRequest([]byte(body)), ""
		if strings.Contains(r.path, "://") {
			local = "/local"
		}
		if got := string(r.body(local)); got != want {
			t.Errorf("%s: %s", body, got)
		}
	}
}

// Only the paths for management pass, with their methods.
func TestPaths(t *testing.T) {
	at, _ := simulate(t, engine.VLLM, "127.0.0.1:0")
	a := start(t, engine.VLLM, at, nil)
	for call, want := range map[string]int{
		"GET /v1/models": 200, "GET /metrics": 200, "GET /metrics/": 404, "POST /tokenize": 200,
		"POST /v1/models": 405, "GET /tokenize": 405, "GET /v1/load_lora_adapter": 405, "DELETE /metrics": 405,
		"POST /v1/completions": 404, "POST /v1/chat/completions": 404, "POST /invocations": 404, "POST /adapters": 404,
		"GET /": 404, "GET /health": 404, "GET /v1/models/": 404, "GET //v1/models": 404, "GET /v1%2fmodels": 404, "GET /x/../v1/models": 404,
		"POST /load_lora_adapter": 404, "POST /sleep": 404,
	} {
		method, path, _ := strings.Cut(call, " ")
		is := a.do(method, path, `{"prompt":"some words"}`)
		if is.status != want {
			t.Errorf("%s: %d %s", call, is.status, is.body)
		}
		if want == 404 && path != "/metrics/" && !strings.Contains(is.body, `{"error":{"message":"the agent serves no such path`) {
			t.Errorf("%s: %s", call, is.body)
		}
	}
	if _, err := New(Config{Kind: engine.Triton}); err == nil {
		t.Error("there is an agent for Triton")
	}
}

// A token is asked for. The engine gets its own key, or else the caller's token.
func TestToken(t *testing.T) {
	got := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Authorization") }))
	defer server.Close()
	token, key := "", ""
	a := start(t, engine.VLLM, server.Listener.Addr().String(), func(c *Config) {
		c.Token, c.Key = func() string { return token }, func() string { return key }
	})
	for _, c := range []struct {
		token, key, sent string
		want             string // empty: the call is refused
	}{
		{"", "", "Bearer x", "Bearer x"},
		{"x", "", "Bearer x", "Bearer x"},
		{"x", "y", "Bearer x", "Bearer y"},
		{"x", "", "Bearer y", ""},
		{"x", "y", "Bearer ", ""},
		{"x", "", "", ""},
		{"", "y", "", "Bearer y"},
	} {
		token, key = c.token, c.key
		for method, path := range map[string]string{"GET": "/v1/models", "POST": "/v1/unload_lora_adapter"} {
			is, err := send(t, t.Context(), method, a.url+path, "{}", "Authorization", c.sent)
			if err != nil {
				t.Fatal(err)
			}
			if c.want == "" {
				if is.status != http.StatusUnauthorized {
					t.Errorf("%+v: %s is answered with %d", c, path, is.status)
				}
			} else if sent := <-got; sent != c.want {
				t.Errorf("%+v: %s reaches the engine with %q", c, path, sent)
			}
		}
	}
}

// A body of any size is not read.
func TestLargeBody(t *testing.T) {
	a := start(t, engine.VLLM, "127.0.0.1:1", nil)
	if is := a.do(http.MethodPost, a.path("load"), string(bytes.Repeat([]byte(" "), maxBody+1))); is.status != http.StatusRequestEntityTooLarge {
		t.Errorf("%+v", is)
	}
}
