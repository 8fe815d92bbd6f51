// Package prestop answers preStop hooks. It is for pods that have the annotation v1alpha1.PreStop,
// which makes their models migrate. The hook calls /prestop/NAMESPACE/POD. Control answers when the
// pod's models have copies elsewhere, as far as possible, and every extproc has stopped sending
// requests to the pod. Then Kubernetes stops the container.
//
// Calls change nothing: pods migrate because the API server marks them as deleted. So everybody may
// call, repeatedly.
package prestop

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/internal/display"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/internal/objects"
)

const (
	// maxWaiting is the maximum number of waiting hooks: more than a drained node has.
	maxWaiting = 256
	// pollInterval is how often a waiting hook checks the pod.
	pollInterval = 200 * time.Millisecond
	// lag is how long control may take to see that a pod is being deleted: kubelet may call the
	// hook before that.
	lag = 3 * time.Second
	// defaultTimeout is how long a follower waits for the leader's answer. Then the caller must
	// retry, since another control may lead by now.
	defaultTimeout = 10 * time.Second
	// forwarded is a header of calls that a control forwards to the leader. Such a call is not
	// forwarded again.
	forwarded = "Headgate-Forwarded"
)

// Placer reports the progress of pods that migrate; [place.Placer] is one.
type Placer interface {
	Migration(pod objects.Name) place.Migration
}

// Server answers hooks. Make one with [New].
type Server struct {
	// Leader returns the address of the leader. It is nil if this is the only control. Set it
	// before Serve.
	Leader func(ctx context.Context) (netip.Addr, error)

	log     *slog.Logger
	port    uint16 // port of every control
	client  *http.Client
	timeout time.Duration
	waiting chan struct{} // one entry per waiting hook

	mu     sync.Mutex // guards placer
	placer Placer     // nil if another control leads
}

// New returns a Server of a control that does not lead yet.
func New(log *slog.Logger) *Server {
	return &Server{
		log: log, client: &http.Client{Transport: &http.Transport{}}, timeout: defaultTimeout, waiting: make(chan struct{}, maxWaiting),
	}
}

// Lead answers hooks with the state of a Placer until end is called. Callers that still wait then
// get the answer to retry.
func (s *Server) Lead(p Placer) (end func()) {
	s.set(p)
	return func() { s.set(nil) }
}

func (s *Server) set(p Placer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.placer = p
}

func (s *Server) current() Placer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.placer
}

// Serve serves on HOST:PORT until ctx ends. Then it interrupts waiting calls. With an empty address
// it does nothing. All controls must use the same port.
func (s *Server) Serve(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	l, err := listen.On("prestop-address", address)
	if err != nil {
		return err
	}
	at, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		_ = l.Close()
		return fmt.Errorf("--prestop-address %s: want HOST:PORT, which pods can reach", address)
	}
	s.port = at.AddrPort().Port()
	s.log.Info("serving preStop hooks", "address", l.Addr().String())
	return listen.HTTP(ctx, l, s)
}

// answer is the answer to a hook.
type answer struct {
	code    int
	message string
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	pod, ok := objects.ParseName(strings.TrimPrefix(r.URL.Path, "/prestop/"))
	var is answer
	switch {
	case !ok || !strings.HasPrefix(r.URL.Path, "/prestop/"):
		is = answer{http.StatusNotFound, "ask for /prestop/NAMESPACE/POD"}
	case r.Method != http.MethodGet && r.Method != http.MethodPost:
		is = answer{http.StatusMethodNotAllowed, "use GET or POST"}
	default:
		select {
		case s.waiting <- struct{}{}:
			defer func() { <-s.waiting }()
			is = s.wait(r, pod)
		default:
			is = answer{http.StatusServiceUnavailable, "too many hooks wait here: ask again"}
		}
	}
	if is.code == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(is.code)
	_, _ = io.WriteString(w, strings.TrimRight(is.message, "\n")+"\n") // the client may have disconnected
}

// wait waits until a pod is ready to end.
func (s *Server) wait(r *http.Request, pod objects.Name) answer {
	ctx := r.Context()
	placer := s.current()
	switch {
	case placer == nil && r.Header.Get(forwarded) != "":
		return answer{http.StatusServiceUnavailable, "this control is not the leader, or has not read its objects yet: ask again"}
	case placer == nil:
		return s.forward(r)
	}
	asked := time.Now()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if s.current() != placer {
			return answer{http.StatusServiceUnavailable, "this control leads no more: ask again"}
		}
		is := placer.Migration(pod)
		if a := judge(pod, is, time.Now()); a.code == http.StatusOK || a.code != 0 && time.Since(asked) >= lag {
			return a
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return answer{http.StatusServiceUnavailable, "the hook has left"}
		}
	}
}

// judge returns the answer to a hook at a time, according to the pod's state. The zero answer means
// that the hook must wait.
func judge(pod objects.Name, is place.Migration, now time.Time) answer {
	words := strings.Join(is.Words, "\n")
	switch {
	case !is.Selected:
		return answer{
			http.StatusNotFound,
			fmt.Sprintf("no InferencePool selects a pod %s with an address, so there are no models to move: check the pod's name and labels", pod),
		}
	case !is.Terminating:
		return answer{
			http.StatusConflict,
			fmt.Sprintf("the pod %s is not being deleted, so there is nothing to wait for: a restarted container needs no hook", pod),
		}
	case !is.Migrates:
		return answer{
			http.StatusConflict,
			fmt.Sprintf("the pod %s has no annotation %s: %s, so that it was left at once: annotate the pod template, or take the hook out",
				pod, v1alpha1.PreStop, v1alpha1.PreStopMigrate),
		}
	case is.Over():
		return answer{http.StatusOK, words}
	case !now.Before(is.Until):
		if len(is.Behind) > 0 {
			words += fmt.Sprintf("\nout of time: %s %s not confirmed that no more requests go there", display.Count(len(is.Behind), "extproc"),
				display.Choose(len(is.Behind), "has", "have"))
		} else {
			words += "\nno more time: this control does not know that it leads, and moves nothing"
		}
		return answer{http.StatusOK, words}
	}
	return answer{}
}

// forward sends a call to the leader, and returns its answer.
func (s *Server) forward(r *http.Request) answer {
	none := func(err error) answer {
		return answer{
			http.StatusServiceUnavailable,
			fmt.Sprintf("this control is not the leader, and cannot ask the leader: %v; ask again", err),
		}
	}
	if s.Leader == nil {
		return none(errors.New("it has not read its objects yet, and there is no other control"))
	}
	leader, err := s.Leader(r.Context())
	if err != nil {
		return none(err)
	}
	ctx, stop := context.WithTimeout(r.Context(), s.timeout)
	defer stop()
	url := "http://" + netip.AddrPortFrom(leader, s.port).String() + r.URL.EscapedPath()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return none(err)
	}
	ask.Header.Set(forwarded, "true")
	response, err := s.client.Do(ask)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return answer{http.StatusServiceUnavailable, "the control that leads, at " + leader.String() +
			", says that it is not over: ask again"}
	case err != nil:
		return none(errors.Unwrap(err))
	}
	defer func() { _ = response.Body.Close() }()
	words, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return none(err)
	}
	return answer{response.StatusCode, string(words)}
}
