package loader

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// fake is an engine with a fixed answer and a fixed list.
type fake struct {
	mu     sync.Mutex // guards the fields below
	status int
	body   string
	owner  string   // owner of the listed base model
	list   []string // listed adapters; nil: the engine has no list
	calls  []string // received calls, except questions whether it is stopping
	stops  bool
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case r.URL.Path == "/v1/models" && f.list != nil:
		fmt.Fprintf(w, `{"data":[{"id":"base","owned_by":%q,"parent":null}`, f.owner)
		for _, id := range f.list {
			fmt.Fprintf(w, `,{"id":%q,"parent":"base"}`, id)
		}
		fmt.Fprint(w, `]}`)
	case r.URL.Path == "/tokenize" && f.stops:
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprint(w,
			`{"error":{"message":"cannot schedule new futures after shutdown","type":"InternalServerError","param":null,"code":500}}`)
	case r.URL.Path == "/tokenize":
		fmt.Fprint(w, `{"count":0,"max_model_len":1024,"tokens":[],"token_strs":null}`)
	case r.Method == http.MethodPost:
		body, _ := io.ReadAll(r.Body)
		f.calls = append(f.calls, r.URL.Path+" "+string(body))
		if f.status/100 == 3 {
			w.Header().Set("Location", "/elsewhere")
		}
		w.WriteHeader(f.status)
		fmt.Fprint(w, f.body)
	default:
		http.NotFound(w, r)
	}
}

func openFor(t *testing.T, server *httptest.Server, e Endpoint, a engineclient.Access) *Loader {
	t.Helper()
	e.Address = cmp.Or(e.Address, server.Listener.Addr().String())
	l, err := Open(e, a, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// recorded returns a recorded answer of a real vLLM 0.32.0.
func recorded(t *testing.T, name string) (status int, body string) {
	t.Helper()
	text, err := os.ReadFile("../../../bench/testdata/vllm-0.32/lora.txt")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "### "+name+"\n")
	if !ok {
		t.Fatalf("nothing is recorded of %q", name)
	}
	rest, _, _ = strings.Cut(rest, "\n\n")
	lines := strings.Split(rest, "\n")
	if _, err := fmt.Sscanf(lines[1], "< %d", &status); err != nil {
		t.Fatal(err)
	}
	return status, lines[len(lines)-1]
}

// The driver understands the answers of a real vLLM, and keeps their messages.
func TestRealVLLMsAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		unload bool
		listed bool   // the model is listed after the call
		want   string // expected error; empty for none
	}{
		{"load a1", false, true, ""},
		{"load a1 twice", false, true, ""},
		{"bad path absolute", false, false, "refused: 404: Loading lora nope failed: No adapter found for /no/such/dir"},
		{
			"missing path", false, false,
			"refused: 400: 1 validation error:\n  {'type': 'missing', 'loc': 'body.lora_path', 'msg': 'Field required', 'input': '<dict of 1 items>'}",
		},
		{"name of the base model", false, false, "refused: 400: The lora adapter 'tiny' conflicts with a served base model."},
		{
			"rank above max-lora-rank", false, false,
			"refused: 500: Call to add_lora method failed: Worker failed with error 'LoRA rank 16 is greater than max_lora_rank 8.', please check the stack trace above for the root cause",
		},
		{"unload a3", true, false, ""},
		{"unload a3 again", true, false, ""},
		{"unload unknown", true, false, ""},
	} {
		f := &fake{list: []string{"other"}}
		f.status, f.body = recorded(t, c.name)
		if c.listed {
			f.list = append(f.list, "m")
		}
		server := httptest.NewServer(f)
		defer server.Close()
		l := openFor(t, server, Endpoint{Kind: engine.VLLM}, engineclient.Access{})
		var err error
		path, body := "/v1/load_lora_adapter", `{"lora_name":"m","lora_path":"/adapters/m"}`
		if c.unload {
			path, body = "/v1/unload_lora_adapter", `{"lora_name":"m"}`
			err = l.driver.Unload(t.Context(), "m")
		} else {
			_, err = l.driver.Load(t.Context(), Model{ID: "m", Source: "/adapters/m"})
		}
		if got := said(err, ""); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if want := []string{path + " " + body}; !slices.Equal(f.calls, want) {
			t.Errorf("%s: the engine was asked %q, want %q", c.name, f.calls, want)
		}
	}
}

// The driver also understands answers of older versions, of a proxy in between, and of an engine
// that refuses the token.
func TestAnswersInOtherForms(t *testing.T) {
	const vllm, sglang = engine.VLLM, engine.SGLang
	for _, c := range []struct {
		kind   engine.Kind
		status int
		body   string
		want   string // error of a load if the model is not listed, and of an unload if it is
	}{
		{
			vllm, 404, `{"detail":"Not Found"}`,
			"refused: 404: {\"detail\":\"Not Found\"}: it has no such path: start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True in its environment",
		},
		{
			sglang, 404, `{"detail":"Not Found"}`,
			"refused: 404: {\"detail\":\"Not Found\"}: it has no such path: start SGLang with --enable-lora",
		},
		{vllm, 400, `{"object":"error","message":"no","type":"BadRequestError","param":null,"code":400}`, "refused: 400: no"},
		{vllm, 401, `{"error":"Unauthorized"}`, "refused: 401: Unauthorized: " + engineclient.WantsToken},
		{vllm, 502, `<html>bad gateway</html>`, "unclear: 502: <html>bad gateway</html>"},
		{vllm, 500, `Internal Server Error`, "unclear: 500: Internal Server Error"},
		{vllm, 503, `{"error":{"message":"busy","type":"Service Unavailable","param":null,"code":503}}`, "refused: 503: busy"},
		{vllm, 307, ``, "refused: 307: a redirect, which is not followed"},
		{sglang, 400, `{"success":false,"error_message":"no such adapter","loaded_adapters":{}}`, "refused: 400: no such adapter"},
		{sglang, 200, `{"success":false,"error_message":"no memory"}`, "unclear: 200: no memory"},
	} {
		f := &fake{status: c.status, body: c.body, list: []string{"other"}}
		server := httptest.NewServer(f)
		defer server.Close()
		l := openFor(t, server, Endpoint{Kind: c.kind}, engineclient.Access{})
		if _, err := l.driver.Load(t.Context(), Model{ID: "m", Source: "s"}); said(err, "") != c.want {
			t.Errorf("%s, %d %s: a load: %q, want %q", c.kind, c.status, c.body, said(err, ""), c.want)
		}
		if err := l.driver.Unload(t.Context(), "other"); said(err, "") != c.want {
			t.Errorf("%s, %d %s: an unload: %q, want %q", c.kind, c.status, c.body, said(err, ""), c.want)
		}
		// The list decides, even after a 400: an unlisted model is unloaded, and a listed model is
		// loaded.
		if err := l.driver.Unload(t.Context(), "m"); err != nil {
			t.Errorf("%s, %d %s: an unload of what is not there: %v", c.kind, c.status, c.body, err)
		}
		if _, err := l.driver.Load(t.Context(), Model{ID: "other", Source: "s"}); (err == nil) != (c.status == http.StatusBadRequest) {
			t.Errorf("%s, %d %s: a load of what is there: %v", c.kind, c.status, c.body, err)
		}
	}
}

// An engine may change its list only after it has answered. So the driver polls the list until the
// list agrees with the answer, or time is up.
func TestListIsPolledUntilItAgrees(t *testing.T) {
	status, already := recorded(t, "load a1 twice")
	for _, c := range []struct {
		name   string
		unload bool
		status int
		body   string
		later  bool // the list agrees in the end
		want   string
	}{
		{"loaded", false, 200, "", true, ""},
		{"already loaded", false, status, already, true, ""},
		{"unloaded", true, 200, "", true, ""},
		{"never listed", false, 200, "fine", false, "unclear: the engine answered 200: fine, but its list "},
		{"never unlisted", true, 200, "fine", false, "unclear: the engine answered 200: fine, but its list "},
	} {
		with, without := []string{"m"}, []string{}
		f := &fake{status: c.status, body: c.body, list: without}
		if c.unload {
			f.list = with
		}
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" && asked.Add(1) == 3 && c.later {
				f.mu.Lock()
				f.list = with
				if c.unload {
					f.list = without
				}
				f.mu.Unlock()
			}
			f.ServeHTTP(w, r)
		}))
		defer server.Close()
		l := openFor(t, server, Endpoint{Kind: engine.VLLM}, engineclient.Access{})
		limit := testTimeout
		if !c.later {
			limit = 200 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		var err error
		if c.unload {
			err = l.driver.Unload(ctx, "m")
		} else {
			_, err = l.driver.Load(ctx, Model{ID: "m", Source: "s"})
		}
		if got := said(err, ""); !strings.HasPrefix(got, c.want) || c.later && (err != nil || asked.Load() != 3) {
			t.Errorf("%s: %q after %d lists, want %q", c.name, got, asked.Load(), c.want)
		}
	}
}

func TestStoppingEngineGetsNoLoad(t *testing.T) {
	f := &fake{list: []string{}, stops: true, status: http.StatusOK}
	server := httptest.NewServer(f)
	defer server.Close()
	l := openFor(t, server, Endpoint{Kind: engine.VLLM}, engineclient.Access{})
	if seen, err := l.Scrape(t.Context(), Record{}); err != nil || !seen.Stopping {
		t.Errorf("a look says %+v, %v", seen, err)
	}
	load := func() *Error {
		_, err := l.Load(t.Context(), Model{ID: "m", Source: "/adapters/m"}, time.Second)
		return faultOf(err)
	}
	if err := load(); err == nil || err.Outcome != Refused || !err.Stopping || len(f.calls) > 0 {
		t.Errorf("a load: %+v, and the engine was told %q", err, f.calls)
	}
	// The engine begins to stop between the question and the load, while it still has requests
	// (vLLM 0.32.0).
	f.stops, f.status = false, http.StatusInternalServerError
	f.body = `{"error":{"message":"Server shutting down","type":"InternalServerError","param":null,"code":500}}`
	if err := load(); err == nil || err.Outcome != Refused || !err.Stopping || len(f.calls) != 1 {
		t.Errorf("a load a moment before: %+v, and the engine was told %q", err, f.calls)
	}
	f.body = `{"error":{"message":"CUDA out of memory","type":"InternalServerError","param":null,"code":500}}`
	if err := load(); err == nil || err.Stopping {
		t.Errorf("another error: %+v", err)
	}
	if seen, err := l.Scrape(t.Context(), Record{}); err != nil || seen.Stopping {
		t.Errorf("a look at one that is not stopping says %+v, %v", seen, err)
	}
}

func TestMessagesAreBounded(t *testing.T) {
	for _, text := range []string{strings.Repeat("a", 5000), strings.Repeat("ä", 5000), "a" + strings.Repeat("ä", 5000), "\xff" +
		strings.Repeat("x", 2000)} {
		got := fault(Refused, text).Message
		if len(got) > maxMessage || len(got) < maxMessage-2 || !strings.HasSuffix(got, "…") || strings.ToValidUTF8(got, "") != got {
			t.Errorf("%d bytes of %.10q are kept as %d", len(text), text, len(got))
		}
	}
}

// If no kind is configured, the driver detects it from the engine's pages. If the engine cannot
// load models, its scrape reports that.
func TestKindOfAnEngine(t *testing.T) {
	for _, c := range []struct {
		kind engine.Kind
		page string // file in the testdata of package engine
		path string // path of the page; without a page, the owner in the list of models
		seen ScrapeResult
		load string // expected error of a load
	}{
		{"", "vllm-0.32-idle.txt", "/metrics", ScrapeResult{
			Kind: engine.VLLM, Takes: true,
			Limits: Limits{Loads: 1, Overlap: 4, FirstTimeout: adapterTimeout},
		}, ""},
		{"", "vllm-0.32-loaded.txt", "/metrics", ScrapeResult{
			Kind: engine.VLLM, Takes: true,
			Limits: Limits{Loads: 1, Overlap: 4, FirstTimeout: adapterTimeout, Adapters: 2},
		}, ""},
		{engine.VLLM, "", "", ScrapeResult{
			Kind: engine.VLLM, Takes: true,
			Limits: Limits{Loads: 1, Overlap: 4, FirstTimeout: adapterTimeout},
		}, ""},
		{"", "sglang-documented.txt", "/metrics", ScrapeResult{
			Kind: engine.SGLang, Takes: true,
			Limits: Limits{Loads: 1, FirstTimeout: adapterTimeout, Adapters: 8},
		}, ""},
		{
			"", "trtllm-serve-documented.txt", "/prometheus/metrics",
			ScrapeResult{Kind: engine.TRTLLM},
			"refused: engines of the kind trtllm-serve cannot load models while they run",
		},
		{engine.TGI, "", "", ScrapeResult{Kind: engine.TGI}, "refused: engines of the kind tgi cannot load models while they run"},
		{"", "", "vllm", ScrapeResult{ // without metrics (--disable-log-stats)
			Kind: engine.VLLM, Takes: true,
			Limits: Limits{Loads: 1, Overlap: 4, FirstTimeout: adapterTimeout},
		}, ""},
		{
			"", "", "",
			ScrapeResult{},
			"refused: cannot tell what kind of engine this is: label its pods llm-d.ai/engine-type, or set spec.engine of its EndpointList",
		},
	} {
		f := &fake{status: http.StatusOK, list: []string{"m"}}
		if c.page == "" {
			f.owner = c.path
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.page != "" && r.URL.Path == c.path {
				http.ServeFile(w, r, "../../../internal/engine/testdata/"+c.page)
				return
			}
			f.ServeHTTP(w, r)
		}))
		defer server.Close()
		l := openFor(t, server, Endpoint{Kind: c.kind, Incarnation: "c1"}, engineclient.Access{})
		_, err := l.Load(t.Context(), Model{ID: "m", Source: "s"}, testTimeout)
		if got := said(err, ""); got != c.load {
			t.Errorf("%s with %s: a load: %q, want %q", c.kind, c.page, got, c.load)
		}
		c.seen.Lists, c.seen.Incarnation = true, "c1"
		c.seen.Models = []Listed{{ID: "base", Base: true}, {ID: "m"}}
		seen, err := l.Scrape(t.Context(), Record{})
		if err != nil || fmt.Sprint(seen) != fmt.Sprint(c.seen) {
			t.Errorf("%s with %s: a look: %+v, %v, want %+v", c.kind, c.page, seen, err, c.seen)
		}
	}
}

// An engine is called with its endpoint's token and no other. The token is removed from the
// engine's messages.
func TestEachEngineGetsItsOwnToken(t *testing.T) {
	var last string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		last = r.Header.Get("Authorization")
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": "nobody knows " + strings.TrimPrefix(last, "Bearer ")})
	}))
	defer server.Close()
	tokens := engineclient.NewTokens(func() string { return "flag" })
	if _, err := tokens.Set("a/s/token", []byte(`se"cr<et`)); err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{"": "Bearer flag", "a/s/token": `Bearer se"cr<et`, "b/s/token": ""} {
		l := openFor(t, server, Endpoint{Kind: engine.VLLM, Token: ref}, engineclient.Access{Tokens: tokens})
		for what, try := range map[string]func() error{
			"a look": func() error { _, err := l.Scrape(t.Context(), Record{}); return err },
			"a load": func() error { _, err := l.Load(t.Context(), Model{ID: "m", Source: "s"}, testTimeout); return err },
		} {
			last = "nobody asked"
			err := try()
			if last != want {
				t.Errorf("with the reference %q %s carries %q, want %q", ref, what, last, want)
			}
			if err == nil || strings.Contains(err.Error(), "flag") || strings.Contains(err.Error(), "cr<et") ||
				!strings.Contains(err.Error(), "nobody knows") {
				t.Errorf("with the reference %q %s: %v", ref, what, err)
			}
		}
	}
}

// Loads go over TLS, verified by the configured host name, with the token.
func TestLoadsGoOverTLSWithTheToken(t *testing.T) {
	f := &fake{status: http.StatusOK, list: []string{"m"}}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || !strings.HasPrefix(r.Host, "example.com:") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		f.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	trusted := x509.NewCertPool()
	trusted.AddCert(server.Certificate()) // the certificate is for example.com
	a := engineclient.Access{
		TLS:    &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12},
		Tokens: engineclient.NewTokens(func() string { return "secret" }),
	}
	l := openFor(t, server, Endpoint{Kind: engine.VLLM, Host: "example.com"}, a)
	if _, err := l.Load(t.Context(), Model{ID: "m", Source: "s"}, testTimeout); err != nil {
		t.Error(err)
	}
	l = openFor(t, server, Endpoint{Kind: engine.VLLM, Host: "other.test"}, a)
	if _, err := l.Load(t.Context(), Model{ID: "m", Source: "s"}, testTimeout); faultOf(err) == nil || faultOf(err).Outcome != Unreached ||
		strings.Contains(err.Error(), "secret") {
		t.Errorf("under another name: %v", said(err, "loaded"))
	}
	l = openFor(t, server, Endpoint{Kind: engine.VLLM, Host: "example.com"}, engineclient.Access{TLS: a.TLS})
	if _, err := l.Load(t.Context(), Model{ID: "m", Source: "s"}, testTimeout); faultOf(err) == nil || faultOf(err).Outcome != Refused {
		t.Errorf("without the token: %v", said(err, "loaded"))
	}
}
