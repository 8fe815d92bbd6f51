package scrape_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/pool"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/scrape"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/objects"
)

const interval = 200 * time.Millisecond

// world returns a World of one pool with one endpoint per address.
func world(addresses ...string) *objects.World {
	var s objects.Set
	for i, address := range addresses {
		at := netip.MustParseAddrPort(address)
		app := map[string]string{"app": fmt.Sprint("m", i)}
		p := pool.InferencePool{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("pool", i)}}
		p.Spec.Selector.MatchLabels = app
		p.Spec.TargetPorts = []pool.Port{{Number: int32(at.Port())}}
		s.Pools = append(s.Pools, p)
		s.Pods = append(s.Pods, objects.Pod{
			Name: objects.Name{Namespace: "ns", Name: fmt.Sprint("pod", i)}, IP: at.Addr(), Ready: true,
			Labels: app,
		})
	}
	return objects.Build(s)
}

// targets returns endpoints of an unknown kind.
func targets(addresses ...string) []scrape.Target {
	var all []scrape.Target
	for _, address := range addresses {
		all = append(all, scrape.Target{Address: address})
	}
	return all
}

// engines answers scrapes of all endpoints, without a network.
type engines struct {
	mu      sync.Mutex
	scrapes map[string][]time.Time // times of scrapes by address and path
	token   string                 // Authorization header of the last request
	answer  func(address, path string) (int, string, error)
}

func (e *engines) RoundTrip(r *http.Request) (*http.Response, error) {
	key := r.URL.Host + r.URL.Path
	e.mu.Lock()
	e.scrapes[key] = append(e.scrapes[key], time.Now())
	e.token = r.Header.Get("Authorization")
	answer := e.answer
	e.mu.Unlock()
	status, body, err := answer(r.URL.Host, r.URL.Path)
	if errors.Is(err, os.ErrDeadlineExceeded) { // the engine does not answer
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(body)), Request: r, Header: http.Header{}}, nil
}

func (e *engines) set(answer func(address, path string) (int, string, error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.answer = answer
}

func (e *engines) count(key string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.scrapes[key])
}

func (e *engines) lastToken() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.token
}

const models = `{"data":[{"id":"llama","parent":null},{"id":"sql","parent":"llama"}]}`

func healthy(_, path string) (int, string, error) {
	if path == "/v1/models" {
		return 200, models, nil
	}
	return 200, "vllm:num_requests_running 2\n", nil
}

func down(string, string) (int, string, error) {
	return 0, "", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
}

func silent(string, string) (int, string, error) { return 0, "", os.ErrDeadlineExceeded }

// run scrapes the addresses on synctest's fake clock. The scraper stops at the end of the test.
func run(t *testing.T, test func(f *fleet.Fleet, s *scrape.Scraper, e *engines), addresses ...string) {
	runAs(t, healthy, test, addresses...)
}

// runAs does the same as run, with a function that answers for the engines.
func runAs(
	t *testing.T, answer func(address, path string) (int, string, error),
	test func(f *fleet.Fleet, s *scrape.Scraper, e *engines), addresses ...string,
) {
	synctest.Test(t, func(t *testing.T) {
		f := fleet.New(fleet.Config{})
		f.SetWorld(world(addresses...))
		e := &engines{scrapes: map[string][]time.Time{}, answer: answer}
		s := scrape.New(scrape.Config{
			Fleet: f, Interval: interval, ModelsInterval: time.Second, Log: slog.New(slog.DiscardHandler), Transport: e,
		})
		ctx, cancel := context.WithCancel(t.Context())
		var beside sync.WaitGroup
		beside.Go(func() { _ = s.Run(ctx) })
		beside.Go(func() { _ = f.Run(ctx) })
		s.SetTargets(targets(addresses...))
		test(f, s, e)
		cancel()
		beside.Wait() // a scrape loop that still runs would deadlock the synctest bubble
	})
}

func state(f *fleet.Fleet, i int) pick.State {
	return f.View().Snapshot.Pools[fmt.Sprint("ns/pool", i)].Endpoints[0].State
}

// after waits for d on the fake clock, and then until all goroutines are idle.
func after(d time.Duration) {
	time.Sleep(d) // on synctest's fake clock
	synctest.Wait()
}

const one = "10.0.0.1:8000"

func TestLoadsEveryIntervalModelsSlower(t *testing.T) {
	run(t, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
		after(20 * time.Millisecond)
		p := f.View().Snapshot.Pools["ns/pool0"]
		if p.Endpoints[0].State != pick.Healthy || p.Endpoints[0].Pending() != 2 || len(p.Copies["sql"]) != 1 || len(p.Base) != 1 {
			t.Errorf("after the first scrape: %+v", p)
		}
		after(10*time.Second - 20*time.Millisecond)
		if n := e.count(one + "/metrics"); n < 50 || n > 52 {
			t.Errorf("%d scrapes of the load in 10 s, want 50", n)
		}
		if n := e.count(one + "/v1/models"); n < 9 || n > 11 {
			t.Errorf("%d scrapes of the models in 10 s, want 10", n)
		}
	}, one)
}

// If a response suggests that an engine lacks a model, the engine's list is read at once, but at
// most every 20 ms.
func TestModelListIsReadAtOnceAfterAHint(t *testing.T) {
	run(t, func(f *fleet.Fleet, s *scrape.Scraper, e *engines) {
		after(1500 * time.Millisecond)
		before := e.count(one + "/v1/models")
		e.set(func(address, path string) (int, string, error) {
			if path == "/v1/models" {
				return 200, `{"data":[{"id":"llama","parent":null}]}`, nil
			}
			return healthy(address, path)
		})
		s.Due(one)
		after(30 * time.Millisecond)
		if n := e.count(one + "/v1/models"); n != before+1 {
			t.Errorf("%d scrapes of the models, want one more than %d", n, before)
		}
		if n := len(f.View().Snapshot.Pools["ns/pool0"].Copies["sql"]); n != 0 {
			t.Errorf("%d copies that the engine has lost", n)
		}
		before = e.count(one + "/v1/models")
		for range 1000 {
			s.Due(one)
			after(100 * time.Microsecond)
		}
		if n := e.count(one+"/v1/models") - before; n > 7 {
			t.Errorf("%d scrapes of the models in 100 ms", n)
		}
		s.Due("10.9.9.9:1") // this address is not a target
	}, one)
}

func TestScrapesAreSpreadOverTheInterval(t *testing.T) {
	var addresses []string
	for i := range 100 {
		addresses = append(addresses, fmt.Sprintf("10.0.1.%d:8000", i))
	}
	run(t, func(_ *fleet.Fleet, _ *scrape.Scraper, e *engines) {
		after(2 * time.Second)
		var tenths [10]int
		for _, address := range addresses {
			looks := e.scrapes[address+"/metrics"]
			phase := time.Duration(looks[2].UnixNano()) % interval
			if later := time.Duration(looks[7].UnixNano()) % interval; later != phase {
				t.Errorf("%s is scraped in the phases %v and %v", address, phase, later)
			}
			tenths[phase*10/interval]++
		}
		for i, n := range tenths {
			if n < 2 || n > 25 {
				t.Errorf("%d of 100 endpoints are scraped in tenth %d of the interval: %v", n, i, tenths)
			}
		}
	}, addresses...)
}

// If a connection is refused, reset or closed without an answer, no engine serves there, and the
// endpoint is out.
func TestClosedConnectionPutsTheEndpointOut(t *testing.T) {
	for _, err := range []error{syscall.ECONNREFUSED, syscall.ECONNRESET, io.EOF} {
		run(t, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
			after(interval)
			e.set(func(string, string) (int, string, error) { return 0, "", &net.OpError{Op: "read", Err: err} })
			after(interval + 10*time.Millisecond)
			if got := state(f, 0); got != pick.Out {
				t.Errorf("%v: the endpoint is %v", err, got)
			}
		}, one)
	}
}

func TestRefusedScrapePutsTheEndpointOut(t *testing.T) {
	run(t, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
		after(interval)
		e.set(down)
		after(interval + 10*time.Millisecond)
		if got := state(f, 0); got != pick.Out {
			t.Errorf("one interval after its end the endpoint is %v", got)
		}
		// The engine is back without its adapter: its models are read before the endpoint can get
		// requests.
		e.set(func(address, path string) (int, string, error) {
			if path == "/v1/models" {
				return 200, `{"data":[{"id":"llama","parent":null}]}`, nil
			}
			return healthy(address, path)
		})
		after(interval + 10*time.Millisecond)
		p := f.View().Snapshot.Pools["ns/pool0"]
		if p.Endpoints[0].State != pick.Healthy || len(p.Copies["sql"]) != 0 {
			t.Errorf("after it came back: %v, copies %v", p.Endpoints[0].State, p.Copies)
		}
	}, one)
}

func TestSilentEndpointBecomesStaleThenLost(t *testing.T) {
	run(t, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
		after(interval)
		e.set(silent)
		after(2500 * time.Millisecond)
		if got := state(f, 0); got != pick.Stale {
			t.Errorf("after 2.5 s of silence the endpoint is %v", got)
		}
		after(10 * time.Second)
		if got := state(f, 0); got != pick.Lost {
			t.Errorf("after 12.5 s of silence the endpoint is %v", got)
		}
		e.set(healthy)
		after(1500 * time.Millisecond)
		if got := state(f, 0); got != pick.Healthy {
			t.Errorf("after it answered again the endpoint is %v", got)
		}
	}, one)
}

func TestAnswersOfAnEngine(t *testing.T) {
	page := func(status int, metrics, list string) func(string, string) (int, string, error) {
		return func(_, path string) (int, string, error) {
			if path == "/v1/models" {
				return 200, list, nil
			}
			return status, metrics, nil
		}
	}
	for _, c := range []struct {
		name   string
		answer func(string, string) (int, string, error)
		want   pick.State
	}{
		{"no metrics page", page(404, `{"detail":"Not Found"}`, models), pick.Healthy},
		{"asleep", page(200, "vllm:engine_sleep_state{sleep_state=\"awake\"} 0\n", models), pick.Out},
		{"an error", page(500, "", models), pick.Out},
		{"another format", page(200, "vllm:num_requests_running{\n", models), pick.Out},
		{"no list", page(200, "", `{"detail":"Unauthorized"}`), pick.Out},
		{"endless", page(200, strings.Repeat("x 1\n", 5<<20), models), pick.Out},
	} {
		t.Run(c.name, func(t *testing.T) {
			runAs(t, c.answer, func(f *fleet.Fleet, _ *scrape.Scraper, _ *engines) {
				after(3 * time.Second)
				if got := state(f, 0); got != c.want {
					t.Errorf("the endpoint is %v, want %v", got, c.want)
				}
			}, one)
		})
	}
}

// Whatever the reason of failed scrapes, after two seconds the endpoint gets no requests while
// another endpoint is healthy.
func TestEndpointWithFailedScrapesIsNotPicked(t *testing.T) {
	two := "10.0.0.2:8000"
	for name, fails := range map[string]func(string, string) (int, string, error){
		"silence":        silent,
		"an error":       func(string, string) (int, string, error) { return 500, "boom", nil },
		"another format": func(string, string) (int, string, error) { return 200, "{", nil },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(f *fleet.Fleet, _ *scrape.Scraper, e *engines) {
				after(interval)
				e.set(func(host, path string) (int, string, error) {
					if host == one {
						return fails(host, path)
					}
					return healthy(host, path)
				})
				after(2 * time.Second)
				if failing, well := state(f, 0), state(f, 1); failing < pick.Stale || well != pick.Healthy { // pick prefers b
					t.Errorf("the endpoint is %v, the other %v", failing, well)
				}
			}, one, two)
		})
	}
}

func TestTargetsChange(t *testing.T) {
	two := "10.0.0.2:8000"
	run(t, func(_ *fleet.Fleet, s *scrape.Scraper, e *engines) {
		after(time.Second)
		s.SetTargets(targets(two))
		after(time.Second)
		stopped := e.count(one + "/metrics")
		after(time.Second)
		if n := e.count(one + "/metrics"); n != stopped {
			t.Errorf("%d scrapes of a removed endpoint", n-stopped)
		}
		if n := e.count(two + "/metrics"); n < 14 {
			t.Errorf("%d scrapes in 3 s of the one that stays", n)
		}
	}, one, two)
}

// An engine may answer /metrics with a redirect to /metrics/ (older vLLM), but not to another host.
func TestRedirectsStayAtTheEndpoint(t *testing.T) {
	engine := func(location string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/v1/models":
				_, _ = io.WriteString(w, models)
			case "/metrics":
				http.Redirect(w, r, location, http.StatusTemporaryRedirect)
			default:
				_, _ = io.WriteString(w, "vllm:num_requests_running 7\n")
			}
		}))
	}
	elsewhere := engine("")
	defer elsewhere.Close()
	for location, want := range map[string]bool{"/metrics/": true, elsewhere.URL + "/x": false} {
		server := engine(location)
		address := server.Listener.Addr().String()
		f := fleet.New(fleet.Config{})
		f.SetWorld(world(address))
		looks := make(chan error, 1000)
		s := scrape.New(scrape.Config{
			Fleet: f, Interval: interval, ModelsInterval: time.Second, Log: slog.New(slog.DiscardHandler),
			Scraped: func(err error) { looks <- err },
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			_ = s.Run(ctx)
			close(done)
		}()
		s.SetTargets(targets(address))
		if err := <-looks; (err == nil) != want {
			t.Errorf("redirected to %s: %v", location, err)
		}
		cancel()
		<-done
		server.Close()
	}
}

// A model runtime has no metrics, and its port may use any protocol. So a scrape can only check
// that the port accepts connections.
func TestModelRuntimeIsCheckedByConnecting(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	s := scrapeFor(t, scrape.Config{}, plain(address), []scrape.Target{{Address: address, Kind: engine.ModelRuntime}})
	s.until("healthy", func(status endpointstate.Status, err error) bool { return err == nil && status.State == pick.Healthy })
	if _, known := s.fleet.View().Snapshot.Pools["default/endpoints"].Names(); known {
		t.Error("it has a list")
	}
	_ = l.Close()
	s.until("out", func(status endpointstate.Status, err error) bool { return err != nil && status.State == pick.Out })
}
