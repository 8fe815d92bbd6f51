package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/headgate/headgate/internal/objects"
)

const (
	// readyTimeout limits the check of the engine for a readiness probe.
	readyTimeout = 5 * time.Second
	// hookRetry is the pause between two calls to control, unless control asks for another one.
	hookRetry = time.Second
	// hookTimeout limits one call to control. Control may be gone without a trace; then another
	// control answers the next call. Calls change nothing.
	hookTimeout = 15 * time.Second
	// hookConnect limits a connection attempt to control.
	hookConnect = 3 * time.Second
	// maxHookAnswer is the maximum size of control's answer in bytes.
	maxHookAnswer = 1 << 20
)

// HealthConfig configures the health port.
type HealthConfig struct {
	// Ready reports whether the engine accepts requests.
	Ready func(context.Context) error
	// Gatherer has the metrics.
	Gatherer prometheus.Gatherer
	// Control is HOST:PORT of the --prestop-address of control; empty if no control is called.
	Control string
	// Pod is the pod of the agent.
	Pod objects.Name
	// Grace is how long a preStop hook waits at most; 0 means until its caller ends the call.
	Grace time.Duration
	// Log must not be nil.
	Log *slog.Logger
}

// Health returns the handler of the health port:
//
//	/ready     200 if the engine accepts requests, otherwise 503 with the reason
//	/live      200
//	/metrics   the agent's metrics
//	/prestop   answers when control reports that the pod's models have copies elsewhere
//
// Any container of the pod may have a preStop hook of the type httpGet to /prestop. Serve the port
// until the process ends: kubelet sends SIGTERM to containers without a hook while the hooks of
// others still wait.
func Health(c HealthConfig) http.Handler {
	return newHealth(c, (&net.Dialer{Timeout: hookConnect}).DialContext)
}

// newHealth is Health with a function that connects to control.
func newHealth(c HealthConfig, dial func(ctx context.Context, network, address string) (net.Conn, error)) http.Handler {
	h := healthHandler{c, &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: dial},
		CheckRedirect: Stay,
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", h.ready)
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, "live") })
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.Gatherer, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /prestop", h.prestop)
	mux.HandleFunc("POST /prestop", h.prestop)
	return mux
}

type healthHandler struct {
	HealthConfig
	client *http.Client
}

func (h healthHandler) ready(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if err := h.Ready(ctx); err != nil {
		reply(w, http.StatusServiceUnavailable, "the engine is not ready: "+err.Error())
		return
	}
	reply(w, http.StatusOK, "ready")
}

// prestop calls control until it has answered, the caller disconnects, or Grace is over. Only an
// answer of control ends the hook early: while control does not answer, models may still have to be
// moved.
func (h healthHandler) prestop(w http.ResponseWriter, r *http.Request) {
	switch {
	case h.Control == "":
		reply(w, http.StatusNotFound, "the agent was started without the address of control, so it cannot ask whether models have moved")
		return
	case h.Pod.Namespace == "" || h.Pod.Name == "":
		reply(w, http.StatusNotFound, "the agent was started without the name and the namespace of its pod")
		return
	}
	ctx := r.Context()
	if h.Grace > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, h.Grace)
		defer cancel()
	}
	at := url.URL{Scheme: "http", Host: h.Control, Path: "/prestop/" + h.Pod.Namespace + "/" + h.Pod.Name}
	for logged := false; ; logged = true {
		status, words, pause, err := h.ask(ctx, at.String())
		switch {
		case err == nil:
			h.Log.Info("preStop hook answered", "status", status, "answer", words)
			reply(w, status, words)
			return
		case ctx.Err() == nil && !logged && pause > 0:
			h.Log.Warn("control does not answer a preStop hook; retrying", "err", err)
		}
		if wait(ctx, pause); ctx.Err() != nil {
			reply(w, http.StatusServiceUnavailable, "no answer of control in time: "+err.Error())
			return
		}
	}
}

// ask calls control once. An error means that the hook must call again after the pause.
func (h healthHandler) ask(ctx context.Context, at string) (status int, words string, pause time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, hookTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return 0, "", hookRetry, err
	}
	answer, err := h.client.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return 0, "", 0, errors.New("control still waits for copies elsewhere")
		}
		return 0, "", hookRetry, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxHookAnswer))
	if err != nil {
		return 0, "", hookRetry, err
	}
	if answer.StatusCode >= http.StatusInternalServerError {
		pause = hookRetry
		if seconds, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil && seconds >= 0 {
			pause = time.Duration(max(seconds, 1)) * time.Second
		}
		return 0, "", pause, fmt.Errorf("control answers %s: %s", answer.Status, text)
	}
	return answer.StatusCode, string(text), 0, nil
}

func reply(w http.ResponseWriter, status int, words string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, words+"\n") // the client may have disconnected
}
