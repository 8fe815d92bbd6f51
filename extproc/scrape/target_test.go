package scrape_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/scrape"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
)

// plain returns a World with the pool for a list of addresses. Every DNS name in it resolves to
// 127.0.0.1.
func plain(addresses ...string) *objects.World {
	set := objects.Endpoints(addresses)
	set.Hosts = make(map[string][]netip.Addr)
	for _, name := range set.Names() {
		set.Hosts[name] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	}
	return objects.Build(set)
}

// scraping runs a Scraper on real servers, and observes the end of each scrape.
type scraping struct {
	*testing.T
	fleet   *fleet.Fleet
	scrapes chan error
}

func scrapeFor(t *testing.T, c scrape.Config, w *objects.World, targets []scrape.Target) *scraping {
	s := &scraping{T: t, fleet: fleet.New(fleet.Config{}), scrapes: make(chan error, 1)}
	s.fleet.SetWorld(w)
	ctx, cancel := context.WithCancel(t.Context())
	c.Fleet, c.Interval, c.ModelsInterval, c.Log = s.fleet, 10*time.Millisecond, 20*time.Millisecond, slog.New(slog.DiscardHandler)
	c.Scraped = func(err error) {
		select {
		case s.scrapes <- err:
		case <-ctx.Done():
		}
	}
	scraper := scrape.New(c)
	scraper.SetTargets(targets)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = scraper.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s
}

// until blocks until, after a scrape, a condition is met: holds returns true.
func (s *scraping) until(what string, holds func(status endpointstate.Status, err error) bool) {
	s.Helper()
	limit := time.After(10 * time.Second)
	for {
		select {
		case err := <-s.scrapes:
			if holds(fleet.Read(s.fleet, func(state *endpointstate.State) []endpointstate.Status {
				return state.Endpoints(s.fleet.Now())
			})[0], err) {
				return
			}
			if err != nil {
				what = strings.SplitN(what, ": at last", 2)[0] + ": at last " + err.Error()
			}
		case <-limit:
			s.Fatalf("never %s; the endpoint is %+v", what,
				fleet.Read(s.fleet, func(state *endpointstate.State) []endpointstate.Status { return state.Endpoints(s.fleet.Now()) })[0])
		}
	}
}

// Each kind of engine is scraped at its own metrics page, whether or not its kind is configured.
// Its endpoint serves requests whatever the metrics contain.
func TestScrapeEveryKindOfEngine(t *testing.T) {
	const list = `{"object":"list","data":[{"id":"llama"}]}`
	for _, c := range []struct {
		kind    engine.Kind
		path    string // path of the metrics
		page    string // name of a file in the testdata of package engine
		list    string // list of models; empty: the engine has no list
		running engine.Value
		waiting engine.Value
	}{
		{engine.VLLM, "/metrics", "vllm-0.32-loaded.txt", list, engine.Known(8), engine.Known(10)},
		{engine.SGLang, "/metrics", "sglang-documented.txt", list, engine.Known(7), engine.Known(3)},
		{engine.TRTLLM, "/prometheus/metrics", "trtllm-serve-documented.txt", list, engine.Known(6), engine.Known(2)},
		// Triton's OpenAI frontend
		{engine.TritonTRTLLM, "/metrics", "triton-tensorrt-llm-documented.txt", "", engine.Known(4), engine.Known(3)},
		{engine.Triton, "/metrics", "triton-2.51.txt", "", engine.Value{}, engine.Known(3)},
		{engine.TGI, "/metrics", "tgi-documented.txt", list, engine.Known(5), engine.Known(3)},
		{engine.LlamaCpp, "/metrics", "llama.cpp-documented.txt", list, engine.Known(4), engine.Known(46)},
		{engine.LMDeploy, "/metrics", "lmdeploy-documented.txt", list, engine.Known(24), engine.Known(5)},
		{engine.NIM, "/v1/metrics", "nim-documented.txt", list, engine.Known(3), engine.Known(1)},
		{"xllm", "/metrics", "", list, engine.Value{}, engine.Value{}}, // an unknown kind of engine
	} {
		page := []byte("xllm:running 3\n")
		if c.page != "" {
			var err error
			if page, err = os.ReadFile("../../internal/engine/testdata/" + c.page); err != nil {
				t.Fatal(err)
			}
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Path == c.path:
				_, _ = w.Write(page)
			case r.URL.Path == "/metrics" && c.kind == engine.TRTLLM:
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, "[\n{\"gpuMemUsage\": 1}]\n")
			case r.URL.Path == "/v1/models" && c.list != "":
				_, _ = io.WriteString(w, c.list)
			default:
				http.NotFound(w, r)
			}
		}))
		defer server.Close()
		address := server.Listener.Addr().String()
		for _, named := range []engine.Kind{c.kind, ""} {
			t.Run(string(c.kind)+" named "+string(named), func(t *testing.T) {
				s := scrapeFor(t, scrape.Config{}, plain(address), []scrape.Target{{Address: address, Kind: named}})
				s.until("read", func(e endpointstate.Status, err error) bool {
					if err != nil {
						t.Errorf("a scrape fails: %v", err)
					}
					return e.State == pick.Healthy && e.Load.Running == c.running && e.Load.Waiting == c.waiting
				})
			})
		}
	}
}

// Plain Triton has its metrics at another port, which does not show whether the serving port works.
// So each scrape also checks the serving port.
func TestSeparateMetricsPort(t *testing.T) {
	const own, metrics = "10.0.0.1:8000", "10.0.0.1:8002"
	synctest.Test(t, func(t *testing.T) {
		f := fleet.New(fleet.Config{})
		f.SetWorld(plain(own))
		triton := func(host, path string) (int, string, error) {
			if host == metrics && path == "/metrics" {
				return 200, "nv_inference_pending_request_count{model=\"a\"} 2\nnv_inference_pending_request_count{model=\"b\"} 3\n", nil
			}
			return 404, `{"error":"Not Found"}`, nil
		}
		e := &engines{scrapes: make(map[string][]time.Time), answer: triton}
		s := scrape.New(scrape.Config{
			Fleet: f, Interval: interval, ModelsInterval: time.Second, Log: slog.New(slog.DiscardHandler),
			Transport: e,
		})
		ctx, cancel := context.WithCancel(t.Context())
		var beside sync.WaitGroup
		beside.Go(func() { _ = s.Run(ctx) })
		beside.Go(func() { _ = f.Run(ctx) })
		s.SetTargets([]scrape.Target{{Address: own, Kind: engine.Triton}})
		is := func(when string, state pick.State, waiting engine.Value) {
			t.Helper()
			if got := fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status {
				return s.Endpoints(f.Now())
			})[0]; got.State != state || got.Load.Waiting != waiting {
				t.Errorf("%s: %+v", when, got)
			}
		}
		after(2 * interval)
		is("after two scrapes", pick.Healthy, engine.Known(5))

		// Only the metrics port is gone: the endpoint still serves, with unknown load.
		e.set(func(host, path string) (int, string, error) {
			if host == metrics {
				return down(host, path)
			}
			return triton(host, path)
		})
		after(3 * interval)
		is("without its metrics port", pick.Healthy, engine.Value{})
		e.set(triton)
		after(3 * interval)
		is("with it again", pick.Healthy, engine.Known(5))

		// The serving port is gone. The working metrics port does not conceal that, not even for
		// one scrape.
		e.set(func(host, path string) (int, string, error) {
			if host == own {
				return down(host, path)
			}
			return triton(host, path)
		})
		for range 10 {
			after(interval)
			is("without its own port", pick.Out, engine.Known(5))
		}
		if n := e.count(metrics + "/v1/models"); n != 0 {
			t.Errorf("the models are read %d times at the metrics port", n)
		}
		cancel()
		beside.Wait()
	})
}

// A page that had a load is read again, even while the engine is too busy to answer. If the page is
// gone, the search starts again.
func TestWorkingPageIsKept(t *testing.T) {
	trtllm := func(status, elsewhere int) func(string, string) (int, string, error) {
		return func(_, path string) (int, string, error) {
			switch path {
			case "/v1/models":
				return 200, models, nil
			case "/prometheus/metrics":
				return status, "trtllm_num_requests_running 3\n", nil
			case "/metrics":
				return elsewhere, "[]", nil
			}
			return 404, "", nil
		}
	}
	runAs(t, trtllm(200, 500), func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) { // a page without a load may return an error
		running := func(when string, want engine.Value) {
			t.Helper()
			if got := fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status {
				return s.Endpoints(f.Now())
			})[0].Load.Running; got != want {
				t.Errorf("%s: running is %v, want %v", when, got, want)
			}
		}
		after(4 * interval)
		running("after four scrapes", engine.Known(3))
		e.set(trtllm(200, 200))
		before := e.count(one + "/metrics")
		after(10 * interval)
		e.set(trtllm(500, 200))
		after(2 * interval)
		running("while it fails", engine.Known(3))
		if n := e.count(one + "/metrics"); n != before {
			t.Errorf("%d scrapes of a page without a load", n-before)
		}
		e.set(func(address, path string) (int, string, error) { // another engine at the same address
			if path == "/prometheus/metrics" {
				return 404, "", nil
			}
			return healthy(address, path)
		})
		after(3 * interval)
		running("as another engine", engine.Known(2))
		e.set(down)
		after(2 * interval)
		e.set(trtllm(200, 500)) // a third engine, which returns an error for the second engine's page
		after(4 * interval)
		running("as a third engine", engine.Known(3))
	}, one)
}

// unknownEngine returns the answers of an engine that lists models and has a load at one page; it
// has no load if page is empty.
func unknownEngine(list, page string) func(string, string) (int, string, error) {
	return func(_, path string) (int, string, error) {
		switch path {
		case "/v1/models":
			return 200, list, nil
		case page:
			return 200, "trtllm_num_requests_running 3\n", nil
		}
		return 404, "", nil
	}
}

// Of an unknown engine without a load, each scrape reads the first page, and few scrapes read other
// pages. When another engine may run there, all pages are read at once.
func TestUnknownEngineIsScrapedRarely(t *testing.T) {
	const page = "/prometheus/metrics"
	for name, becomes := range map[string]func(s *scrape.Scraper, e *engines){
		"it was away": func(_ *scrape.Scraper, e *engines) {
			e.set(down)
			after(2 * interval)
			e.set(unknownEngine(models, page))
		},
		"its pod has another incarnation": func(s *scrape.Scraper, e *engines) {
			e.set(unknownEngine(models, page))
			s.SetTargets([]scrape.Target{{Address: one, Incarnation: "containerd://2"}})
		},
		"it lists other models": func(_ *scrape.Scraper, e *engines) {
			e.set(unknownEngine(`{"data":[{"id":"other"}]}`, page))
			after(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(f *fleet.Fleet, s *scrape.Scraper, e *engines) {
				after(interval) // at this time the engine is of a known kind
				e.set(unknownEngine(models, ""))
				after(10 * time.Minute)
				first, other := e.count(one+"/metrics"), e.count(one+page)
				if first < 2900 || other < 10 || other > 20 ||
					fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status {
						return s.Endpoints(f.Now())
					})[0].State != pick.Healthy {
					t.Errorf("in ten minutes %d scrapes of the first page and %d of another, %v", first, other,
						fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status { return s.Endpoints(f.Now()) })[0].State)
				}
				becomes(s, e)
				after(4 * interval)
				if got := fleet.Read(f, func(s *endpointstate.State) []endpointstate.Status {
					return s.Endpoints(f.Now())
				})[0].Load.Running; got != engine.Known(3) {
					t.Errorf("its load is %v", got)
				}
			}, one)
		})
	}
}

// An engine without a list serves requests, but its models are unknown until it has a list again.
func TestEngineWithoutAList(t *testing.T) {
	run(t, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
		after(interval)
		for _, status := range []int{404, 405, 501} {
			e.set(func(address, path string) (int, string, error) {
				if path == "/v1/models" {
					return status, "", nil
				}
				return healthy(address, path)
			})
			after(2 * time.Second)
			if p := f.View().Snapshot.Pools["ns/pool0"]; p.Endpoints[0].State != pick.Healthy || len(p.Base)+len(p.Copies) != 0 {
				t.Errorf("with %d for the list: %+v", status, p)
			}
		}
		e.set(healthy)
		after(2 * time.Second)
		if p := f.View().Snapshot.Pools["ns/pool0"]; len(p.Copies["sql"]) != 1 {
			t.Errorf("with a list again: %+v", p)
		}
	}, one)
}

// A scrape sends the token that the file contains when the scrape begins. If the file is missing or
// empty, the previous token is used.
func TestNewTokenIsUsedAtOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("  first\n")
	synctest.Test(t, func(t *testing.T) {
		var log lockedLog
		token, err := engineclient.OpenToken(file, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		f := fleet.New(fleet.Config{})
		f.SetWorld(plain(one))
		e := &engines{scrapes: make(map[string][]time.Time), answer: healthy}
		s := scrape.New(scrape.Config{
			Fleet: f, Interval: interval, ModelsInterval: time.Second, Log: slog.New(slog.NewTextHandler(&log, nil)),
			Transport: e, Access: engineclient.Access{Tokens: engineclient.NewTokens(token.Token)},
		})
		ctx, cancel := context.WithCancel(t.Context())
		var beside sync.WaitGroup
		beside.Go(func() { _ = s.Run(ctx) })
		s.SetTargets(targets(one))
		for _, step := range []struct{ file, want string }{
			{"", "Bearer first"},
			{"second", "Bearer second"},
			{" \n", "Bearer second"},
			{"two words", "Bearer second"},
			{"third", "Bearer third"},
		} {
			if step.file != "" {
				write(step.file)
			}
			after(interval)
			if got := e.lastToken(); got != step.want {
				t.Errorf("with %q in the file a scrape sends %q, want %q", step.file, got, step.want)
			}
		}
		cancel()
		beside.Wait()
		for _, secret := range []string{"first", "second", "third", "words"} {
			if strings.Contains(log.String(), secret) {
				t.Errorf("the log contains a token:\n%s", log.String())
			}
		}
		if n := strings.Count(log.String(), "cannot read the engines' token"); n != 1 {
			t.Errorf("a file without a token is logged %d times:\n%s", n, log.String())
		}
	})
	for text, want := range map[string]string{"": "is empty", "two words": "more than one word", "a\x00": "more than one word"} {
		write(text)
		if _, err := engineclient.OpenToken(file, nil); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), file) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A scrape sends the current token to which its target refers, and no other token.
func TestScrapeSendsItsTargetsToken(t *testing.T) {
	tokens := engineclient.NewTokens(func() string { return "flag" })
	set := func(ref, token string) {
		t.Helper()
		if _, err := tokens.Set(ref, []byte(token)); err != nil {
			t.Fatal(err)
		}
	}
	set("a/s/token", "of-a")
	set("b/s/token", "of-b")
	synctest.Test(t, func(t *testing.T) {
		f := fleet.New(fleet.Config{})
		f.SetWorld(plain(one))
		e := &engines{scrapes: make(map[string][]time.Time), answer: healthy}
		s := scrape.New(scrape.Config{
			Fleet: f, Interval: interval, ModelsInterval: time.Second, Log: slog.New(slog.DiscardHandler),
			Transport: e, Access: engineclient.Access{Tokens: tokens},
		})
		ctx, cancel := context.WithCancel(t.Context())
		var beside sync.WaitGroup
		beside.Go(func() { _ = s.Run(ctx) })
		for _, c := range []struct{ ref, want string }{
			{"", "Bearer flag"},
			{"a/s/token", "Bearer of-a"},
			{"b/s/token", "Bearer of-b"},
			{"b/s/other", ""},
			{"a/s/token", "Bearer of-a"},
		} {
			s.SetTargets([]scrape.Target{{Address: one, Token: c.ref}})
			after(interval)
			if got := e.lastToken(); got != c.want {
				t.Errorf("with the reference %q a scrape sends %q, want %q", c.ref, got, c.want)
			}
		}
		set("a/s/token", "of-a-anew")
		after(interval)
		if got := e.lastToken(); got != "Bearer of-a-anew" {
			t.Errorf("a scrape sends %q after the token was replaced", got)
		}
		cancel()
		beside.Wait()
	})
}

// lockedLog is a log that can be read while another goroutine writes it.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// selfMade returns a self-signed server certificate for these names and addresses.
func selfMade(t *testing.T, names []string, ips ...net.IP) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, DNSNames: names, IPAddresses: ips,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// A certificate must be valid for the configured name, or for the IP address if an address is
// configured. Redirects to the name are followed at the address, with the token.
func TestScrapesOverTLS(t *testing.T) {
	certificate := selfMade(t, []string{"engines.test"})
	var host atomic.Value // Host header of the requests
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer secret":
			http.Error(w, "", http.StatusUnauthorized)
		case r.URL.Path == "/v1/models":
			_, _ = io.WriteString(w, models)
		case r.URL.Path == "/metrics":
			http.Redirect(w, r, "https://"+r.Host+"/metrics/", http.StatusTemporaryRedirect)
		case r.URL.Path == "/metrics/" && r.Host == host.Load():
			_, _ = io.WriteString(w, "vllm:num_requests_running 7\n")
		default:
			http.NotFound(w, r)
		}
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())

	trusted := x509.NewCertPool()
	trusted.AddCert(certificate.Leaf)
	secret := engineclient.NewTokens(func() string { return "secret" })
	for _, c := range []struct {
		name, host string
		config     scrape.Config
		fault      string
	}{
		{"by name", "engines.test", scrape.Config{Access: engineclient.Access{TLS: &tls.Config{RootCAs: trusted}, Tokens: secret}}, ""},
		{
			"by another name", "other.test",
			scrape.Config{Access: engineclient.Access{TLS: &tls.Config{RootCAs: trusted}, Tokens: secret}},
			"certificate is valid for engines.test, not other.test",
		},
		{
			"by address", "127.0.0.1",
			scrape.Config{Access: engineclient.Access{TLS: &tls.Config{RootCAs: trusted}, Tokens: secret}},
			"cannot validate certificate for 127.0.0.1",
		},
		{
			"of an unknown authority", "engines.test",
			scrape.Config{Access: engineclient.Access{TLS: &tls.Config{}, Tokens: secret}},
			"unknown authority",
		},
		{"unchecked", "127.0.0.1", scrape.Config{Access: engineclient.Access{
			TLS:    &tls.Config{InsecureSkipVerify: true},
			Tokens: secret,
		}}, ""},
		{
			"without a token", "engines.test",
			scrape.Config{Access: engineclient.Access{TLS: &tls.Config{RootCAs: trusted}}},
			"it requires a token: set --engine-token-file",
		},
		{"without TLS", "engines.test", scrape.Config{Access: engineclient.Access{Tokens: secret}}, "the engine answers 400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			address := c.host + ":" + port
			host.Store(address)
			w := plain(address)
			s := scrapeFor(t, c.config, w, scrape.Targets(w))
			s.until("as wanted", func(e endpointstate.Status, err error) bool {
				if c.fault != "" {
					return err != nil && strings.Contains(err.Error(), c.fault) && e.State == pick.Out
				}
				return err == nil && e.State == pick.Healthy && e.Load.Running == engine.Known(7)
			})
		})
	}
}

// A redirect may change neither the host nor the scheme.
func TestRedirectKeepsTheHost(t *testing.T) {
	var stolen sync.Map
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		stolen.Store(r.Header.Get("Authorization"), true)
	}))
	defer elsewhere.Close()
	certificate := selfMade(t, nil, net.IPv4(127, 0, 0, 1))
	for _, host := range []string{elsewhere.Listener.Addr().String(), ""} { // another host; the same host without TLS
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+cmp.Or(host, r.Host)+"/", http.StatusTemporaryRedirect)
		}))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
		server.StartTLS()
		defer server.Close()
		address := server.Listener.Addr().String()
		s := scrapeFor(t, scrape.Config{Access: engineclient.Access{
			TLS:    &tls.Config{InsecureSkipVerify: true},
			Tokens: engineclient.NewTokens(func() string { return "secret" }),
		}}, plain(address), targets(address))
		s.until("refused", func(_ endpointstate.Status, err error) bool {
			return err != nil && strings.Contains(err.Error(), "redirected away from the endpoint")
		})
	}
	stolen.Range(func(token, _ any) bool {
		t.Errorf("another server got %q", token)
		return true
	})
}

// An address in two pools is one target, with all that either pool configures for its engine.
func TestTargetsAreEachAddressOnce(t *testing.T) {
	set := objects.Endpoints([]string{"10.0.0.1:8000", "named.test:8000"})
	set.Hosts = map[string][]netip.Addr{"named.test": {netip.MustParseAddr("10.0.0.2")}}
	second := objects.Endpoints([]string{"10.0.0.2:8000", "10.0.0.1:8000"})
	second.Pools[0].Name, second.Lists[0].Name = "second", "second"
	second.Pools[0].Spec.Selector.MatchLabels = map[string]string{"app": "second"}
	second.Lists[0].Labels, second.Lists[0].Spec.Engine = map[string]string{"app": "second"}, "sglang"
	joined := set.Join(second)
	joined.Hosts = set.Hosts
	joined.Pods = []objects.Pod{{
		Name: objects.Name{Namespace: "default", Name: "pod"}, IP: netip.MustParseAddr("10.0.0.3"),
		Labels: map[string]string{"app": "second"}, Containers: []objects.Container{{ID: "c1"}},
	}}
	joined.Pools[1].Spec.TargetPorts = []pool.Port{{Number: 8000}}
	got := scrape.Targets(objects.Build(joined))
	want := []scrape.Target{
		{Address: "10.0.0.1:8000", Kind: engine.SGLang},
		{Address: "10.0.0.2:8000", Host: "named.test", Kind: engine.SGLang},
		{Address: "10.0.0.3:8000", Incarnation: "c1"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("targets are %+v, want %+v", got, want)
	}

	// A pool cannot make extproc scrape an address of another namespace with a different token.
	own := v1alpha1.PoolSettings{ObjectMeta: second.Pools[0].ObjectMeta}
	own.Spec.PoolRef.Name = "second"
	own.Spec.EngineToken = &v1alpha1.EngineToken{SecretRef: v1alpha1.SecretKeyReference{Name: "s"}}
	joined.Settings = []v1alpha1.PoolSettings{own}
	if got := scrape.Targets(objects.Build(joined)); got[0].Token != "default/s/token" || got[1].Token != "default/s/token" {
		t.Errorf("targets are %+v", got)
	}
	joined.Pools[1].Namespace, joined.Lists[1].Namespace, joined.Settings[0].Namespace = "other", "other", "other"
	want = []scrape.Target{{Address: "10.0.0.1:8000"}, {Address: "10.0.0.2:8000", Host: "named.test"}}
	if got := scrape.Targets(objects.Build(joined)); !slices.Equal(got, want) {
		t.Errorf("with another namespace's list targets are %+v, want %+v", got, want)
	}
}
