package prestop

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/internal/objects"
)

var pod = objects.Name{Namespace: "llm", Name: "qwen-0"}

// placer is a Placer with the state of one pod.
type placer struct {
	mu sync.Mutex // guards is
	is place.Migration
}

func (p *placer) Migration(of objects.Name) place.Migration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if of != pod {
		return place.Migration{}
	}
	return p.is
}

func (p *placer) set(change func(*place.Migration)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.is)
}

func migrating() *placer {
	return &placer{is: place.Migration{
		Selected: true, Terminating: true, Migrates: true, Until: time.Now().Add(time.Minute),
		Words: []string{"e1: 2 models moved"},
	}}
}

// call calls the server as a hook does, and returns the answer and its duration.
func call(s *Server, method, path string, ctx context.Context) (code int, words string, took time.Duration) {
	began := time.Now()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, path, nil))
	return w.Code, strings.TrimSpace(w.Body.String()), time.Since(began)
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// A hook is answered when all models are moved and every extproc has confirmed that, or after the
// hook's timeout.
func TestHookWaitsUntilModelsAreMovedAndConfirmed(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(p *placer)
		after   time.Duration
		words   string
	}{
		"all is known": {func(p *placer) {
			time.Sleep(10 * time.Second)
			p.set(func(is *place.Migration) { is.Done, is.Behind = true, []string{"x"} })
			time.Sleep(time.Second)
			p.set(func(is *place.Migration) { is.Behind = nil })
		}, 11 * time.Second, "e1: 2 models moved"},
		"two extprocs do not confirm": {func(p *placer) {
			p.set(func(is *place.Migration) { is.Done, is.Behind = true, []string{"x", "y"} })
		}, time.Minute, "2 extprocs have not confirmed"},
		"control is paused": {func(*placer) {}, time.Minute, "does not know that it leads"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := New(quiet()), migrating()
				defer s.Lead(p)()
				go c.happens(p)
				code, words, took := call(s, http.MethodPost, "/prestop/llm/qwen-0", t.Context())
				if code != http.StatusOK || !strings.Contains(words, c.words) || took < c.after || took > c.after+2*pollInterval {
					t.Errorf("after %v it is %d: %s", took, code, words)
				}
				if code, _, took := call(s, http.MethodGet, "/prestop/llm/qwen-0", t.Context()); name != "control is paused" &&
					(code != http.StatusOK || took > 0) {
					t.Errorf("asked again it is %d after %v", code, took)
				}
			})
		})
	}
}

// If there is nothing to wait for, the answer gives the reason. It is sent at once, or only after
// lag if control may not have received the objects yet.
func TestAnswersToHooks(t *testing.T) {
	for name, c := range map[string]struct {
		path    string
		change  func(*place.Migration)
		code    int
		words   string
		atLeast time.Duration
	}{
		"no name":         {"/prestop/qwen-0", nil, http.StatusNotFound, "/prestop/NAMESPACE/POD", 0},
		"too much of one": {"/prestop/a/b/c", nil, http.StatusNotFound, "/prestop/NAMESPACE/POD", 0},
		"another path":    {"/metrics", nil, http.StatusNotFound, "/prestop/NAMESPACE/POD", 0},
		"not known":       {"/prestop/llm/other", nil, http.StatusNotFound, "no InferencePool selects a pod llm/other", lag},
		"stays": {
			"/prestop/llm/qwen-0", func(is *place.Migration) { is.Terminating, is.Migrates = false, false },
			http.StatusConflict, "is not being deleted", lag,
		},
		"has no hook": {
			"/prestop/llm/qwen-0", func(is *place.Migration) { is.Migrates = false }, http.StatusConflict,
			"no annotation inference.x-k8s.io/prestop", lag,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := New(quiet()), migrating()
				defer s.Lead(p)()
				if c.change != nil {
					p.set(c.change)
				}
				if code, words, took := call(s, http.MethodGet, c.path, t.Context()); code != c.code || !strings.Contains(words, c.words) ||
					took < c.atLeast || took > c.atLeast+pollInterval {
					t.Errorf("after %v it is %d: %s", took, code, words)
				}
			})
		})
	}
}

// A hook may be called shortly before control sees that the pod is being deleted.
func TestHookBeforeItsObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := New(quiet()), migrating()
		defer s.Lead(p)()
		p.set(func(is *place.Migration) {
			is.Selected, is.Terminating, is.Migrates, is.Done = false, false, false, true
		})
		time.AfterFunc(time.Second, func() {
			p.set(func(is *place.Migration) { is.Selected, is.Terminating, is.Migrates = true, true, true })
		})
		if code, words, took := call(s, http.MethodGet, "/prestop/llm/qwen-0", t.Context()); code != http.StatusOK || took < time.Second ||
			took > 2*time.Second {
			t.Errorf("after %v it is %d: %s", took, code, words)
		}
	})
}

// A waiting caller gets an answer when another control becomes the leader, and may cancel. If too
// many callers wait, the next one is rejected.
func TestHookDoesNotWaitNeedlessly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(quiet())
		if code, words, _ := call(s, http.MethodGet, "/prestop/llm/qwen-0", t.Context()); code != http.StatusServiceUnavailable ||
			!strings.Contains(words, "ask again") {
			t.Errorf("before anybody leads it is %d: %s", code, words)
		}
		end := s.Lead(migrating())
		var all sync.WaitGroup
		for range maxWaiting {
			all.Go(func() {
				if code, words, took := call(s, http.MethodGet, "/prestop/llm/qwen-0",
					t.Context()); code != http.StatusServiceUnavailable || !strings.Contains(words, "leads no more") || took < time.Second {
					t.Errorf("after %v it is %d: %s", took, code, words)
				}
			})
		}
		synctest.Wait()
		if code, words, _ := call(s, http.MethodGet, "/prestop/llm/qwen-0", t.Context()); code != http.StatusServiceUnavailable ||
			!strings.Contains(words, "too many") {
			t.Errorf("where many wait it is %d: %s", code, words)
		}
		time.Sleep(time.Second)
		end()
		all.Wait()
		defer s.Lead(migrating())()
		ctx, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		if _, _, took := call(s, http.MethodGet, "/prestop/llm/qwen-0", ctx); took > 2*time.Second {
			t.Errorf("who left is waited with for %v", took)
		}
	})
}

// A follower forwards a call to the leader, which does not forward it again.
func TestFollowerAsksTheLeader(t *testing.T) {
	leader, follower := New(quiet()), New(quiet())
	served := httptest.NewServer(leader)
	defer served.Close()
	at, err := url.Parse(served.URL)
	if err != nil {
		t.Fatal(err)
	}
	address, err := netip.ParseAddrPort(at.Host)
	if err != nil {
		t.Fatal(err)
	}
	follower.port, leader.port = address.Port(), address.Port()
	toLeader := func(context.Context) (netip.Addr, error) { return address.Addr(), nil }
	follower.Leader, leader.Leader = toLeader, toLeader
	if code, words, _ := call(follower, http.MethodGet, "/prestop/llm/qwen-0", t.Context()); code != http.StatusServiceUnavailable ||
		!strings.Contains(words, "is not the leader") {
		t.Errorf("where none leads it is %d: %s", code, words)
	}
	p := migrating()
	p.set(func(is *place.Migration) { is.Done = true })
	defer leader.Lead(p)()
	if code, words, _ := call(follower, http.MethodGet, "/prestop/llm/qwen-0", t.Context()); code != http.StatusOK ||
		words != "e1: 2 models moved" {
		t.Errorf("it is %d: %s", code, words)
	}
	p.set(func(is *place.Migration) { is.Done = false })
	follower.timeout = 50 * time.Millisecond
	if code, words, _ := call(follower, http.MethodGet, "/prestop/llm/qwen-0", t.Context()); code != http.StatusServiceUnavailable ||
		!strings.Contains(words, "says that it is not over: ask again") {
		t.Errorf("while the leader waits it is %d: %s", code, words)
	}
	if code, _, _ := call(follower, http.MethodGet, "/prestop/llm/..%2fx", t.Context()); code != http.StatusNotFound {
		t.Errorf("a name with a slash is %d", code)
	}
	follower.Leader = func(context.Context) (netip.Addr, error) { return netip.Addr{}, errors.New("nobody knows") }
	if code, words, _ := call(follower, http.MethodGet, "/prestop/llm/qwen-0", t.Context()); code != http.StatusServiceUnavailable ||
		!strings.Contains(words, "nobody knows") {
		t.Errorf("where nobody knows the leader it is %d: %s", code, words)
	}
}

// Serve answers hooks on its port until the process ends.
func TestItServesHooksOnAPort(t *testing.T) {
	s, p := New(quiet()), migrating()
	defer s.Lead(p)()
	if err := s.Serve(t.Context(), ""); err != nil {
		t.Error(err)
	}
	if err := s.Serve(t.Context(), "unix:"+t.TempDir()+"/s"); err == nil || !strings.Contains(err.Error(), "HOST:PORT") {
		t.Error(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended, lines := make(chan error, 1), make(chan string, 1)
	s.log = slog.New(slog.NewTextHandler(writer(lines), &slog.HandlerOptions{}))
	go func() { ended <- s.Serve(ctx, "127.0.0.1:0") }()
	_, address, _ := strings.Cut(<-lines, "address=")
	p.set(func(is *place.Migration) { is.Done = true })
	response, err := http.Get("http://" + strings.TrimSpace(address) + "/prestop/llm/qwen-0") //nolint:noctx // a test
	if err != nil {
		t.Fatal(err)
	}
	words, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK || string(words) != "e1: 2 models moved\n" {
		t.Errorf("%d %q", response.StatusCode, words)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

type writer chan string

func (w writer) Write(b []byte) (int, error) { w <- string(b); return len(b), nil }
