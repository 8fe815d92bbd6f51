package relay

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
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/pipenet"
)

// hook is a test of the preStop hook in a bubble, where the clock advances by itself.
type hook struct {
	*testing.T
	config HealthConfig
	mu     sync.Mutex // guards the fields below while control may be called
	calls  int
	paths  []string
}

// call calls the hook beside a control that answers each call with the next of the answers; the
// last one repeats. A status of 0 breaks the connection, and -1 never answers.
func (h *hook) call(ctx context.Context, answers ...int) (status int, words string, took time.Duration) {
	h.Helper()
	l := pipenet.Listen()
	control := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		status := answers[min(h.calls, len(answers)-1)]
		h.calls++
		h.paths = append(h.paths, r.URL.Path)
		h.mu.Unlock()
		switch status {
		case 0:
			panic(http.ErrAbortHandler)
		case -1:
			<-r.Context().Done()
		default:
			if status == http.StatusServiceUnavailable {
				w.Header().Set("Retry-After", "2")
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "words of control")
		}
	})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = control.Serve(l)
	}()
	handler := newHealth(h.config, l.Dial)
	began := time.Now()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/prestop", nil))
	took = time.Since(began)
	_ = control.Close()
	<-done
	synctest.Wait() // for handlers that Close does not wait for
	return w.Code, strings.TrimSpace(w.Body.String()), took
}

// The hook passes on control's answer, and asks again while control is away, is not the leader, or
// still waits.
func TestHookWaitsForControl(t *testing.T) {
	pod := objects.Name{Namespace: "llm", Name: "qwen-0"}
	for name, c := range map[string]struct {
		answers []int
		change  func(*HealthConfig)
		status  int
		words   string
		calls   int
		took    time.Duration
	}{
		"moved":              {[]int{200}, nil, 200, "words of control", 1, 0},
		"not deleted":        {[]int{409}, nil, 409, "words of control", 1, 0},
		"no such pod":        {[]int{404}, nil, 404, "words of control", 1, 0},
		"control away":       {[]int{0, 0, 0, 200}, nil, 200, "words of control", 4, 3 * hookRetry},
		"another leads":      {[]int{503, 503, 200}, nil, 200, "words of control", 3, 4 * time.Second},
		"a broken control":   {[]int{500, 200}, nil, 200, "words of control", 2, hookRetry},
		"control waits long": {[]int{-1, -1, 200}, nil, 200, "words of control", 3, 2 * hookTimeout},
		"control stays away": {
			[]int{0},
			func(c *HealthConfig) { c.Grace = 10500 * time.Millisecond },
			503, "no answer of control in time", 11, 10500 * time.Millisecond,
		},
		"no control":  {[]int{200}, func(c *HealthConfig) { c.Control = "" }, 404, "without the address of control", 0, 0},
		"no pod name": {[]int{200}, func(c *HealthConfig) { c.Pod = objects.Name{} }, 404, "without the name", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := &hook{T: t, config: HealthConfig{
					Control: "control:8036", Pod: pod, Log: slog.New(slog.DiscardHandler), Gatherer: prometheus.NewRegistry(),
				}}
				if c.change != nil {
					c.change(&h.config)
				}
				status, words, took := h.call(t.Context(), c.answers...)
				if status != c.status || !strings.Contains(words, c.words) || h.calls != c.calls || took != c.took {
					t.Errorf("%d %q after %v and %d calls", status, words, took, h.calls)
				}
				for _, path := range h.paths {
					if path != "/prestop/llm/qwen-0" {
						t.Errorf("control is asked for %s", path)
					}
				}
			})
		})
	}
}

// A caller that leaves ends the calls to control.
func TestHookEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithTimeout(t.Context(), 5*time.Second)
		defer leave()
		h := &hook{T: t, config: HealthConfig{
			Control: "control:8036", Pod: objects.Name{Namespace: "a", Name: "b"}, Log: slog.New(slog.DiscardHandler),
			Gatherer: prometheus.NewRegistry(),
		}}
		if _, _, took := h.call(ctx, -1); took != 5*time.Second || h.calls != 1 {
			t.Errorf("it ends after %v and %d calls", took, h.calls)
		}
	})
}

// The readiness probe fails with the reason while the engine is not ready; the others succeed.
func TestProbes(t *testing.T) {
	var broken error
	registry := prometheus.NewRegistry()
	if _, err := newMetrics(registry); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(Health(HealthConfig{
		Ready: func(context.Context) error { return broken }, Gatherer: registry, Log: slog.New(slog.DiscardHandler),
	}))
	defer server.Close()
	get := func(path string) (int, string) {
		answer, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text)
	}
	for range 2 {
		status, words := get("/ready")
		if want := "the engine is not ready: connection refused"; broken != nil && (status != 503 || !strings.Contains(words, want)) ||
			broken == nil && status != 200 {
			t.Errorf("/ready: %d %s", status, words)
		}
		if status, _ := get("/live"); status != 200 {
			t.Errorf("/live: %d", status)
		}
		broken = errors.New("connection refused")
	}
	if status, page := get("/metrics"); status != 200 || !strings.Contains(page, "headgate_agent_accepting 0") {
		t.Errorf("/metrics: %d %s", status, page)
	}
	if status, _ := get("/other"); status != 404 {
		t.Errorf("/other: %d", status)
	}
}

// An engine with a health path is ready if it answers 200 there.
func TestHealthPathOfAnEngine(t *testing.T) {
	status := http.StatusServiceUnavailable
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v2/health/ready" {
			t.Errorf("it is asked for %s", r.URL)
		}
		w.WriteHeader(status)
	}))
	defer server.Close()
	ready := Endpoint{"tcp", server.Listener.Addr().(*net.TCPAddr).String()}.Healthy("/v2/health/ready") //nolint:forcetypeassert // a test
	if err := ready(t.Context()); err == nil || !strings.Contains(err.Error(), "503") {
		t.Error(err)
	}
	status = http.StatusOK
	if err := ready(t.Context()); err != nil {
		t.Error(err)
	}
	server.Close()
	if err := ready(t.Context()); err == nil {
		t.Error("an engine that is gone is ready")
	}
}
