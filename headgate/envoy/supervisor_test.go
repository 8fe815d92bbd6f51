package envoy

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/headgate/envoy/supervise"
)

// fakeAdmin is the admin interface of an Envoy, which records requests.
type fakeAdmin struct {
	mu    sync.Mutex
	fails int // number of requests that fail at first
	got   []string
}

func (f *fakeAdmin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fails > 0 {
		f.fails--
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	if r.URL.Path == "/stats" {
		fmt.Fprint(w, "http.ingress.downstream_rq_active: 1\nhttp.ingress.downstream_cx_active: 2\n")
	}
	f.got = append(f.got, r.Method+" "+r.URL.RequestURI())
}

// process returns an Envoy with this admin interface.
func (f *fakeAdmin) process(t *testing.T, l supervise.Launch) *process {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: f, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	p := &process{Launch: l, socket: socket, admin: newAdmin(socket), done: make(chan struct{})}
	t.Cleanup(p.admin.close)
	return p
}

func newSupervisor(t *testing.T) *supervisor {
	t.Helper()
	return &supervisor{
		dir: t.TempDir(), log: slog.New(slog.DiscardHandler), stdout: io.Discard, stderr: io.Discard,
		events: make(chan func() supervise.Event), over: make(chan struct{}), envoys: make(map[int]*process),
	}
}

// A drain does not block the supervisor. It closes the listeners for clients, and no other one, and
// is tried again until it succeeds. Only then does the supervisor ask for the load, since an Envoy
// without requests is ended.
func TestDrainComesBeforeLoad(t *testing.T) {
	s, admin := newSupervisor(t), &fakeAdmin{fails: 2}
	p := admin.process(t, supervise.Launch{ID: 1, Generation: 1})
	s.envoys[1] = p
	s.do(supervise.Drain{ID: 1})
	event := (<-s.events)()
	if diff := cmp.Diff(supervise.Event(supervise.Load{ID: 1, Requests: 1, Connections: 2}), event); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	close(p.done)
	admin.mu.Lock()
	defer admin.mu.Unlock()
	if diff := cmp.Diff([]string{
		"POST /drain_listeners?inboundonly&graceful&skip_exit",
		"POST /drain_listeners?inboundonly",
	}, admin.got[:2]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, request := range admin.got[2:] {
		if !strings.HasPrefix(request, "GET /stats") {
			t.Errorf("then %s", request)
		}
	}
}

// Both Envoys of a generation exit at once. The machine acts on the second one before it learns
// of its exit.
func TestActionsForAnEnvoyThatIsGone(t *testing.T) {
	s := newSupervisor(t)
	for id := range 2 {
		p := new(fakeAdmin).process(t, supervise.Launch{ID: id + 1, Generation: 1, Epoch: id})
		close(p.done)
		s.envoys[p.ID] = p
	}
	s.bury(s.envoys[1])
	for _, a := range []supervise.Action{
		supervise.Drain{ID: 2}, supervise.Watch{ID: 2}, supervise.Adopt{ID: 2}, supervise.Terminate{ID: 2}, supervise.Kill{ID: 2},
	} {
		s.do(a)
	}
	if s.current.Load() != nil {
		t.Error("an Envoy that is gone is the current one")
	}
	if left, err := os.ReadDir(s.dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v are left", left, err)
	}
}

// Each Envoy has sockets of its own, whatever characters the paths have.
func TestSocketsOfAnEnvoy(t *testing.T) {
	for _, name := range []string{"plain", "a&b <c> d", `quote"`, "ü"} {
		dir := "/run/" + name
		o := options{listen: []string{"127.0.0.1:1"}, extproc: "unix:" + dir + "/extproc.sock", dir: dir + "/envoy"}
		config, err := o.bootstrap()
		if err != nil {
			t.Fatal(err)
		}
		s := newSupervisor(t)
		s.dir, s.relay, s.checked.config = o.dir, dir, config
		text, err := s.addressed(&process{Launch: supervise.Launch{ID: 3, Generation: 2}, socket: s.adminSocket(3)})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, c := range []struct {
			path []any
			want string
		}{
			{[]any{"admin", "address", "pipe", "path"}, dir + "/envoy/admin-3.sock"},
			{[]any{"static_resources", "listeners", 1, "address", "pipe", "path"}, dir + "/back-2.sock"},
		} {
			if got := at(t, text, c.path...); got != c.want {
				t.Errorf("%s: %v is %v, want %s", name, c.path, got, c.want)
			}
		}
		if !strings.Contains(string(text), `{"key":"x-gateway-back","value":"back-2.sock"}`) {
			t.Errorf("%s: extproc does not learn of the relay's socket", name)
		}
		s.dir = "/elsewhere"
		if _, err := s.addressed(&process{}); err == nil {
			t.Errorf("%s: a configuration with other sockets is accepted", name)
		}
	}
}
