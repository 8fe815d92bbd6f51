package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/query"
)

// Serve serves [Meter.Handler] until ctx ends. An empty host means all addresses, and port 0 a free
// port, which is logged. If the address excludes loopback, it also serves at 127.0.0.1, because
// /models and /placement are for loopback only.
func (m *Meter) Serve(ctx context.Context, host string, port int, loaded <-chan struct{}, log *slog.Logger) error {
	return serve(ctx, net.JoinHostPort(host, strconv.Itoa(port)), loopbackBeside, m.Handler(loaded), log)
}

// serve serves at an address. If besides returns another address, it serves there too.
func serve(ctx context.Context, address string, besides func(net.Addr) string, handler http.Handler, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	for address != "" {
		l, err := listen.On("metrics-port", address)
		if err != nil {
			group.Go(func() error { return err }) // stops the other server
			break
		}
		log.Info("serving metrics", "address", l.Addr().String())
		group.Go(func() error { return listen.HTTP(ctx, l, handler) })
		address = besides(l.Addr())
	}
	return group.Wait()
}

// loopbackBeside returns the loopback address at which to serve in addition to a; empty if a
// includes loopback.
func loopbackBeside(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() || tcp.IP.IsUnspecified() {
		return ""
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(tcp.Port))
}

// Handler serves /metrics, /healthz (the process runs) and /readyz (loaded is closed, since control
// has read its objects). On loopback it also serves /models, /placement, /conditions and /drain,
// and the queries of package api/admin.
func (m *Meter) Handler(loaded <-chan struct{}) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-loaded:
			_, _ = w.Write([]byte("ok\n"))
		default:
			http.Error(w, "control has not read its objects yet", http.StatusServiceUnavailable)
		}
	})
	mux.Handle("GET /models", query.OnLoopback("control", m.models))
	mux.Handle("GET /placement", query.OnLoopback("control", m.placement))
	mux.Handle("GET /conditions", query.OnLoopback("control", m.conditions))
	mux.Handle("POST /drain", query.OnLoopback("control", m.drain))
	query.Mount(mux, "control", m.ask)
	return mux
}

// ask asks all extprocs, which are connected to the leader.
func (m *Meter) ask(ctx context.Context, kind string, body []byte) (admin.Answers, error) {
	t := m.term.Load()
	if t == nil {
		return admin.Answers{}, m.elsewhere()
	}
	return t.board.Ask(ctx, kind, body), nil
}

// models serves the state of all models, or of those with one id.
func (m *Meter) models(w http.ResponseWriter, r *http.Request) {
	t := m.deciding(w)
	if t == nil {
		return
	}
	all := t.placer.Statuses()
	if id := r.URL.Query().Get("id"); id != "" {
		some := all[:0]
		for _, st := range all {
			if st.ID == id {
				some = append(some, st)
			}
		}
		all = some
	}
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(all) // the client may have disconnected
}

// placement serves a [decide.View]. Its size grows with models and copies.
func (m *Meter) placement(w http.ResponseWriter, _ *http.Request) {
	if t := m.deciding(w); t != nil {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(t.placer.View()) // the client may have disconnected
	}
}

// conditions serves the conditions of objects that are False.
func (m *Meter) conditions(w http.ResponseWriter, _ *http.Request) {
	if t := m.deciding(w); t != nil {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(t.conditions()) // the client may have disconnected
	}
}

// deciding returns the term. If this control does not lead, it answers with the leader's name, if
// known, and returns nil.
func (m *Meter) deciding(w http.ResponseWriter) *term {
	t := m.term.Load()
	if t == nil {
		http.Error(w, m.elsewhere().Error(), http.StatusServiceUnavailable)
	}
	return t
}

// elsewhere returns the error of a control that does not lead, with the leader's name, if known.
func (m *Meter) elsewhere() error {
	if leader, _ := m.leader.Load().(string); leader != "" {
		return fmt.Errorf("the leader is in the pod %s: ask that one", leader)
	}
	return errors.New("another control leads: ask that one")
}
