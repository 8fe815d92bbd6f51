package query_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/internal/query"
)

// serve serves queries with ask at a URL.
func serve(t *testing.T, ask query.Ask) string {
	t.Helper()
	mux := http.NewServeMux()
	query.Mount(mux, "extproc", ask)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// echo answers with the kind and the body.
func echo(_ context.Context, kind string, body []byte) (admin.Answers, error) {
	result, err := json.Marshal(kind + " " + string(body))
	return admin.Answers{Extprocs: []admin.Answer{{Extproc: "x", Result: result}}}, err
}

// Queries reach the one that answers them as they were asked, and its answer comes back.
func TestQueriesPassThroughHTTP(t *testing.T) {
	a := query.Addresses{Extproc: serve(t, echo) + "/"}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ kind, body, want string }{
		{admin.Endpoints, "", `endpoints `},
		{admin.Decisions, `{"id":"a b&c"}`, `decisions {"id":"a b&c"}`},
		{admin.Explain, `{"path":"/v1"}`, `explain {"path":"/v1"}`},
	} {
		reply, err := a.Ask(t.Context(), c.kind, []byte(c.body))
		if err != nil || reply.By != a.Extproc || reply.Note() != "" {
			t.Errorf("%s: %v from %+v", c.kind, err, reply)
			continue
		}
		var got string
		if err := json.Unmarshal(reply.Extprocs[0].Result, &got); err != nil || strings.ReplaceAll(got, `\u0026`, "&") != c.want {
			t.Errorf("%s: %q, want %q", c.kind, got, c.want)
		}
	}
}

// Each failure is one line that says what to do.
func TestFailuresOfQueriesAreUnderstandable(t *testing.T) {
	nobody := "http://127.0.0.1:1" // no process listens at this port
	older := httptest.NewServer(http.NewServeMux())
	t.Cleanup(older.Close)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
	t.Cleanup(other.Close)
	follower := serve(t, func(context.Context, string, []byte) (admin.Answers, error) {
		return admin.Answers{}, errors.New("the leader is in the pod c-1: ask that one")
	})
	alone := serve(t, func(context.Context, string, []byte) (admin.Answers, error) { return admin.Answers{}, nil })
	for _, c := range []struct {
		control, extproc, want string
	}{
		{nobody, nobody, "neither control nor extproc listens"},
		{older.URL, "", "has no /endpoints: it is an older version, which must be upgraded"},
		{follower, "", "the leader is in the pod c-1: ask that one"},
		{other.URL, "", "is another version of Headgate, or another program"},
		{alone, "", "no extproc is connected to the control at"},
		{alone, nobody, ", and none listens at http://127.0.0.1:1: start"},
		{follower, nobody, "no process listens at http://127.0.0.1:1: start"},
	} {
		_, err := (&query.Addresses{Control: c.control, Extproc: c.extproc}).Ask(t.Context(), admin.Endpoints, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("control %q, extproc %q: %v, want %q", c.control, c.extproc, err, c.want)
		}
	}
	// If control has no answer, extproc is asked, and a note says why.
	here := serve(t, echo)
	for control, want := range map[string]string{
		nobody: "", "": "", older.URL: "must be upgraded", follower: "the leader is in the pod c-1",
		alone: "no extproc is connected to the control at " + alone,
	} {
		a := query.Addresses{Control: control, Extproc: here}
		r, err := a.Ask(t.Context(), admin.Endpoints, nil)
		if err != nil || r.By != here || !strings.Contains(r.Note(), want) || (want == "") != (r.Note() == "") ||
			strings.Contains(r.Note(), "\n") {
			t.Errorf("extproc beside control %q: %v, %+v", control, err, r)
		}
	}
	for _, a := range []query.Addresses{{}, {Control: "127.0.0.1:9091"}, {Extproc: "ftp://x"}} {
		if err := a.Check(); err == nil {
			t.Errorf("%+v is accepted", a)
		}
	}
}

// A process that hangs in the middle of its answer is not taken for another version.
func TestHangInAnAnswerIsNotAnotherVersion(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(`{"extprocs": [`))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := query.From(ctx, s.URL, admin.Endpoints, nil); !errors.As(err, new(query.Silent)) {
		t.Errorf("%v", err)
	}
}

// Only callers that reached a loopback address are served, and bad queries are refused.
func TestQueriesAreServedOnLoopbackOnly(t *testing.T) {
	mux := http.NewServeMux()
	query.Mount(mux, "extproc", echo)
	for _, c := range []struct {
		at           net.Addr
		method, path string
		body         string
		code         int
		want         string
	}{
		{&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, http.MethodGet, "/endpoints", "", 200, "extprocs"},
		{&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 9090}, http.MethodGet, "/endpoints", "", 403, "run `kubectl port-forward POD 9090`"},
		{&net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 9090}, http.MethodPost, "/explain", "{}", 403, "extproc serves /explain only on loopback"},
		{&net.TCPAddr{IP: net.IPv6loopback}, http.MethodGet, "/decisions", "", 400, "no id"},
		{&net.TCPAddr{IP: net.IPv6loopback}, http.MethodGet, "/explain", "", 405, ""},
		{&net.TCPAddr{IP: net.IPv6loopback}, http.MethodPost, "/explain", strings.Repeat("x", admin.MaxBody+1), 400, "too large"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		r.Host = "localhost:9090"
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, c.at)))
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %s at %v: %d %s", c.method, c.path, c.at, w.Code, w.Body)
		}
	}
	// A page of evil.test whose name has been pointed to 127.0.0.1 is refused.
	for host, want := range map[string]int{
		"localhost": 200, "127.0.0.1:9090": 200, "[::1]:9090": 200, "evil.test:9090": 403, "10.0.0.1:9090": 403, "": 403,
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/endpoints", nil)
		r.Host = host
		mux.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv6loopback})))
		if w.Code != want {
			t.Errorf("at the host %q: %d %s, want %d", host, w.Code, w.Body, want)
		}
	}
}
