package election_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/headgate/headgate/control/election"
)

// Times of the Lease, as in the tested package.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// lease simulates a Lease. Controls without connection cannot reach it. It rejects writes that are
// not based on its latest version.
type lease struct {
	mu      sync.Mutex // guards the fields below
	record  *resourcelock.LeaderElectionRecord
	version int
	cut     map[string]bool
	silent  bool // calls without connection block instead of failing
}

// holder is the [resourcelock.Interface] of one control.
type holder struct {
	*lease
	name string
	seen int // version that this control last read or wrote
	// slow delays the notification that this control has lost the Lease.
	slow time.Duration
}

var resource = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (h *holder) reach(ctx context.Context) error {
	h.mu.Lock()
	silent := h.silent && h.cut[h.name]
	h.mu.Unlock()
	if silent { // as if a packet was lost: wait until the call's timeout
		<-ctx.Done()
		return ctx.Err()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.cut[h.name] {
		return errors.New("connection refused")
	}
	return nil
}

func (h *holder) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	if err := h.reach(ctx); err != nil {
		return nil, nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.record == nil {
		return nil, nil, apierrors.NewNotFound(resource, "control")
	}
	h.seen = h.version
	record := *h.record
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (h *holder) put(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if err := h.reach(ctx); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen != h.version {
		return apierrors.NewConflict(resource, "control", errors.New("somebody has written it since"))
	}
	h.version++
	h.record, h.seen = &r, h.version
	return nil
}

func (h *holder) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return h.put(ctx, r)
}

func (h *holder) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return h.put(ctx, r)
}
func (h *holder) Identity() string { return h.name }
func (h *holder) Describe() string { return "control" }

func (h *holder) RecordEvent(event string) {
	if event == "stopped leading" {
		time.Sleep(h.slow)
	}
}

func (l *lease) cutOff(names ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = make(map[string]bool)
	for _, name := range names {
		l.cut[name] = true
	}
}

// terms contains the terms of several controls, in a synctest bubble.
type terms struct {
	t *testing.T
	*lease
	log     *slog.Logger // log of controls started from now on
	mu      sync.Mutex   // guards the fields below
	begun   map[string]int
	leading []string          // terms that are not paused; for example a1, the first term of control a
	on      map[string]string // current term of each control, paused or not
	ends    map[string]context.CancelFunc
	done    map[string]chan error
	ending  time.Duration // how long a term takes to end
}

func newTerms(t *testing.T) *terms {
	return &terms{
		t: t, lease: &lease{}, log: slog.New(slog.DiscardHandler), begun: make(map[string]int), on: make(map[string]string),
		ends: make(map[string]context.CancelFunc), done: make(map[string]chan error), ending: time.Second,
	}
}

func (s *terms) set(name string, leads bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leading = slices.DeleteFunc(s.leading, func(n string) bool { return n == name })
	if leads {
		s.leading = append(s.leading, name)
	}
	if len(s.leading) > 1 {
		s.t.Errorf("%v lead at once", s.leading)
	}
}

func (s *terms) start(name string) {
	ctx, cancel := context.WithCancel(s.t.Context())
	s.ends[name], s.done[name] = cancel, make(chan error, 1)
	e := election.Election{Lock: &holder{lease: s.lease, name: name}, Log: s.log}
	go func() {
		s.done[name] <- e.Run(ctx, func(ctx context.Context, pauses <-chan bool) error {
			s.mu.Lock()
			s.begun[name]++
			term := fmt.Sprintf("%s%d", name, s.begun[name])
			s.on[name] = term
			s.mu.Unlock()
			s.set(term, true)
			defer func() {
				s.set(term, false)
				s.mu.Lock()
				delete(s.on, name)
				s.mu.Unlock()
			}()
			for {
				select {
				case paused := <-pauses:
					s.set(term, !paused)
				case <-ctx.Done():
					s.mu.Lock()
					ending := s.ending
					s.mu.Unlock()
					time.Sleep(ending) // as if the term ended its streams
					return nil
				}
			}
		})
	}()
}

func (s *terms) stop(name string) {
	s.ends[name]()
	if err := <-s.done[name]; err != nil {
		s.t.Error(err)
	}
}

// after waits, and checks two things: only the term named leads is not paused, and the terms named
// in on are running.
func (s *terms) after(d time.Duration, leads string, on ...string) {
	s.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	var terms []string
	for _, term := range s.on {
		terms = append(terms, term)
	}
	slices.Sort(terms)
	var leading string
	if len(s.leading) > 0 {
		leading = s.leading[0]
	}
	if leading != leads || !slices.Equal(terms, on) {
		s.t.Errorf("after %v: %q leads, %v go on; want %q and %v", d, leading, terms, leads, on)
	}
}

func twoControls(t *testing.T, script func(s *terms)) {
	synctest.Test(t, func(t *testing.T) {
		s := newTerms(t)
		s.start("a")
		s.after(time.Second, "a1", "a1")
		s.start("b")
		s.after(time.Minute, "a1", "a1")
		script(s)
		s.cutOff()
		s.stop("a")
		s.stop("b")
	})
}

// An outage does not end a term. The old leader resumes, even if other controls reconnect first. If
// the old leader has ended meanwhile, another control leads.
func TestOutageOfTheAPIServerPausesTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTerms(t)
		s.start("a")
		s.after(time.Minute, "a1", "a1")
		s.cutOff("a")
		s.after(retryPeriod+renewDeadline+time.Second, "", "a1")
		s.after(2*time.Minute, "", "a1")
		s.cutOff()
		s.after(20*time.Second, "a1", "a1")
		s.stop("a")
	})
	twoControls(t, func(s *terms) { // calls block, as when a machine dies
		s.silent = true
		s.cutOff("a", "b")
		s.after(2*time.Minute, "", "a1")
		s.cutOff()
		s.after(10*time.Second, "a1", "a1")
	})
	twoControls(t, func(s *terms) {
		s.cutOff("a", "b")
		s.after(2*time.Minute, "", "a1")
		s.cutOff()
		s.after(10*time.Second, "a1", "a1")
		s.after(time.Minute, "a1", "a1")
	})
	twoControls(t, func(s *terms) {
		s.cutOff("a", "b")
		s.after(time.Minute, "", "a1")
		s.cutOff("a")
		// b sees a's last renewal at its next retry, waits until the Lease expires, and takes the
		// Lease at a later retry. Retries are up to 2.2 periods apart.
		s.after(leaseDuration+5*retryPeriod, "b1", "a1", "b1")
	})
}

// A control without connection pauses before another control may start. It ends its term when it
// sees that another control leads.
func TestDisconnectedLeaderIsReplaced(t *testing.T) {
	twoControls(t, func(s *terms) {
		s.cutOff("a")
		s.after(retryPeriod+renewDeadline+time.Second, "", "a1")
		s.after(leaseDuration, "b1", "a1", "b1")
		s.cutOff()
		s.after(10*time.Second, "b1", "b1")
	})
}

// A control that sees another leader stops leading at once, not only when its term has ended.
// Events arrive in any order: here the control sees the new leader before the loss of its Lease.
func TestTermPausesWhenAnotherLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lease{}
		e := election.Election{Lock: &holder{lease: l, name: "a", slow: time.Second}, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		var heard []bool
		hears, ended, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		go func() {
			done <- e.Run(ctx, func(ctx context.Context, pauses <-chan bool) error {
				defer close(ended)
				for {
					select {
					case paused := <-pauses:
						heard = append(heard, paused)
						<-hears
					case <-ctx.Done():
						return nil
					}
				}
			})
		}()
		time.Sleep(time.Second)
		l.cutOff("a")
		time.Sleep(retryPeriod + renewDeadline + 2*time.Second) // the term is paused, and does not receive from pauses
		l.cutOff()
		time.Sleep(5 * retryPeriod) // control a has the Lease again
		l.mu.Lock()
		b := *l.record
		b.HolderIdentity, b.LeaderTransitions = "b", b.LeaderTransitions+1
		l.record, l.version = &b, l.version+1
		l.mu.Unlock()
		time.Sleep(renewDeadline + retryPeriod + 2*time.Second) // the blocked term keeps Run from reading the change of the leader
		close(hears)
		<-ended
		if want := []bool{true, false, true}; !slices.Equal(heard, want) {
			t.Errorf("the term was told whether it is paused: %v, want %v", heard, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A control notices that another control has led meanwhile, even if that one no longer leads.
func TestTermDoesNotResumeAfterAnothers(t *testing.T) {
	twoControls(t, func(s *terms) {
		s.cutOff("a")
		s.after(time.Minute, "b1", "a1", "b1")
		s.stop("b")
		s.cutOff()
		s.after(20*time.Second, "a2", "a2")
		s.start("b")
	})
}

// While one term ends, the Lease for the next term may be lost again.
func TestTermDoesNotBeginWithALostLease(t *testing.T) {
	twoControls(t, func(s *terms) {
		s.cutOff("a")
		s.after(time.Minute, "b1", "a1", "b1")
		s.stop("b")
		s.mu.Lock()
		s.ending = 40 * time.Second
		s.mu.Unlock()
		s.cutOff()
		s.after(20*time.Second, "", "a1") // control a has the Lease, and ends its earlier term
		s.cutOff("a")
		s.after(30*time.Second, "")
		s.cutOff()
		s.after(20*time.Second, "a2", "a2")
		s.start("b")
	})
}

// At its end, a control releases the Lease after its term.
func TestStoppingControlReleasesTheLease(t *testing.T) {
	twoControls(t, func(s *terms) {
		s.stop("a")
		s.after(5*time.Second, "b1", "b1")
		s.start("a")
		s.after(time.Minute, "b1", "b1")
	})
}

// A control that does not lead has no Lease to release.
func TestFollowerDoesNotReleaseTheLease(t *testing.T) {
	twoControls(t, func(s *terms) {
		s.stop("b")
		s.lease.mu.Lock()
		if s.record.HolderIdentity != "a" {
			t.Errorf("the Lease is held by %q when b has stopped", s.record.HolderIdentity)
		}
		s.lease.mu.Unlock()
		s.after(time.Minute, "a1", "a1")
		s.start("b")
	})
}

// If the Lease is won and lost while the term does not receive from pauses, the term is not
// resumed.
func TestTermDoesNotResumeWithALostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lease{}
		e := election.Election{Lock: &holder{lease: l, name: "a"}, Log: slog.New(slog.DiscardHandler)}
		ctx, cancel := context.WithCancel(t.Context())
		var heard []bool
		hears, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- e.Run(ctx, func(ctx context.Context, pauses <-chan bool) error {
				<-hears
				for {
					select {
					case paused := <-pauses:
						heard = append(heard, paused)
					case <-ctx.Done():
						return nil
					}
				}
			})
		}()
		time.Sleep(time.Second)
		for range 2 {
			l.cutOff("a")
			time.Sleep(retryPeriod + renewDeadline + 2*time.Second)
			l.cutOff()
			time.Sleep(5 * retryPeriod)
		}
		l.cutOff("a")
		close(hears)
		time.Sleep(time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if slices.Contains(heard, false) {
			t.Errorf("the term was told whether it is paused: %v", heard)
		}
	})
}

// A control that does not lead sees the leader, and its successor.
func TestFollowersSeeTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lease{record: &resourcelock.LeaderElectionRecord{HolderIdentity: "b", LeaseDurationSeconds: 15}}
		var mu sync.Mutex // guards heard
		var heard []string
		e := election.Election{Lock: &holder{lease: l, name: "a"}, Log: slog.New(slog.DiscardHandler)}
		e.LeaderChanged = func(pod string) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, pod)
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		if err := e.Run(ctx, func(ctx context.Context, _ <-chan bool) error { <-ctx.Done(); return nil }); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"b", "a"}; !slices.Equal(heard, want) {
			t.Errorf("heard of are %q, want %q", heard, want)
		}
	})
}

func TestTermThatFailsEndsTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("no such port")
		e := election.Election{Lock: &holder{lease: &lease{}, name: "a"}, Log: slog.New(slog.DiscardHandler)}
		err := e.Run(t.Context(), func(context.Context, <-chan bool) error { return broken })
		if !errors.Is(err, broken) {
			t.Errorf("%v, want %v", err, broken)
		}
		if r, _, err := e.Lock.Get(t.Context()); err != nil || r.HolderIdentity != "" {
			t.Errorf("the Lease is held by %q, %v", r.HolderIdentity, err)
		}
	})
}

// The beginning and the end of an outage are logged once each. Competition for the Lease is not
// logged.
func TestOutageDoesNotFillTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTerms(t)
		var text strings.Builder
		s.log = slog.New(slog.NewTextHandler(&text, nil))
		s.start("a")
		s.after(time.Second, "a1", "a1")
		s.log = slog.New(slog.DiscardHandler)
		s.start("b")
		s.after(time.Minute, "a1", "a1")
		s.cutOff("a", "b")
		s.after(10*time.Minute, "", "a1")
		s.cutOff()
		s.after(20*time.Second, "a1", "a1")
		s.stop("a")
		s.stop("b")
		if n := strings.Count(text.String(), "\n"); n > 8 || strings.Count(text.String(), "connection refused") != 1 {
			t.Errorf("%d lines:\n%s", n, text.String())
		}
	})
}
