package place_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/store"
)

// watch collects what KeepObserved reports.
type watch struct {
	mu   sync.Mutex // guards last
	last *conditions.Observed
}

func (w *world) watch(t *testing.T) *watch {
	t.Helper()
	seen := new(watch)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.KeepObserved(ctx, func(o conditions.Observed) {
			seen.mu.Lock()
			defer seen.mu.Unlock()
			seen.last = &o
		})
	}()
	t.Cleanup(func() { cancel(); <-done })
	return seen
}

// is reports whether the latest report meets a condition.
func (s *watch) is(holds func(conditions.Observed) bool) func() bool {
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.last != nil && holds(*s.last)
	}
}

// Of several extprocs, the one that reaches an endpoint counts. What an extproc reported counts no
// more soon after it has disconnected; then control's own scrapes do.
func TestReportsOfExtprocsCountWhileTheyAreConnected(t *testing.T) {
	w := newWorld(t)
	e := serveVLLM(t)
	w.set(list(e.address, ""))
	seen := w.watch(t)
	w.await("the scrape succeeds, and there is no extproc", seen.is(func(o conditions.Observed) bool {
		return o.Scrapes[e.address].State == conditions.Serving && len(o.Reports)+len(o.Extprocs) == 0
	}))
	out := map[string]conditions.Endpoint{e.address: {State: conditions.Out, Reason: "connection_refused"}}
	w.Observed("x", out, &conditions.Extproc{Process: "x", Standalone: true})
	w.Observed("y", map[string]conditions.Endpoint{e.address: {State: conditions.Serving}}, nil)
	w.await("one of two reaches it", seen.is(func(o conditions.Observed) bool {
		return o.Reports[e.address].State == conditions.Serving && len(o.Extprocs) == 2 && o.Extprocs[0].Standalone
	}))
	w.Observed("y", map[string]conditions.Endpoint{e.address: {}}, nil)
	w.await("the other knows nothing of it any more", seen.is(func(o conditions.Observed) bool {
		return o.Reports[e.address].Reason == "connection_refused"
	}))
	w.Unwanted("x")
	w.Unwanted("y")
	w.await("both have left", seen.is(func(o conditions.Observed) bool {
		return len(o.Reports)+len(o.Extprocs) == 0 && o.Scrapes[e.address].State == conditions.Serving
	}))
	w.set()
	w.await("the endpoint is gone", seen.is(func(o conditions.Observed) bool { return len(o.Scrapes) == 0 }))
}

// A model is not loadable while no endpoint of its pool answers.
func TestModelWithoutEndpointsIsNotReady(t *testing.T) {
	told := &recorder{}
	w, r := newRecordedWorld(t, told), serveRuntime(t, "", nil)
	w.watch(t)
	w.set(list(r.address, managed(r.management)), object("a", ", type: sim, source: 'sim:'"))
	const loadable = "True Loadable: control loads it when a request names it"
	w.await("it is loadable", func() bool { return told.ready("a") == loadable })
	w.Observed("x", map[string]conditions.Endpoint{r.address: {State: conditions.Out, Reason: "connection_refused"}}, nil)
	w.await("it is not", func() bool {
		return told.ready("a") == "False NoEndpoints: InferencePool p: 0 of 1 endpoint answers: "+r.address+": it refuses connections"
	})
	w.Observed("x", map[string]conditions.Endpoint{r.address: {State: conditions.Serving, Since: time.Now()}}, nil)
	w.await("it is again", func() bool { return told.ready("a") == loadable })
	w.Observed("x", map[string]conditions.Endpoint{r.address: {}}, nil)
	long := time.Now().Add(-time.Minute)
	w.Observed("y", map[string]conditions.Endpoint{r.address: {State: conditions.Suspect, Reason: "requests_fail", Since: long}}, nil)
	w.await("all requests fail", func() bool { return strings.HasPrefix(told.ready("a"), "False EndpointsFailing: ") })
	w.Observed("y", map[string]conditions.Endpoint{r.address: {State: conditions.Out, Reason: "connection_refused"}}, nil)
	w.await("then its engine ends", func() bool { return strings.HasPrefix(told.ready("a"), "False NoEndpoints: ") })
}

// A new control does not report that no extproc is connected while extprocs may still reconnect.
func TestFirstReportWaitsForAnExtproc(t *testing.T) {
	for after, want := range map[time.Duration]time.Duration{ // when an extproc connects, and when the first report comes
		0: 3 * time.Second, 10500 * time.Millisecond: 11 * time.Second, time.Hour: 30 * time.Second,
	} {
		observing(t, func(t *testing.T, p *place.Placer, reports <-chan conditions.Observed) {
			began := time.Now()
			time.AfterFunc(after, func() { p.Observed("x", nil, &conditions.Extproc{Process: "x"}) })
			o := <-reports
			got := time.Since(began)
			if got != want {
				t.Errorf("with an extproc after %v the first report comes after %v, want %v", after, got, want)
			}
			if connected := got > after; connected != (len(o.Extprocs) > 0) {
				t.Errorf("after %v it reports %d extprocs", got, len(o.Extprocs))
			}
		})
	}
}

// observing calls f in a bubble with a Placer without endpoints, and with the reports of
// KeepObserved.
func observing(t *testing.T, f func(t *testing.T, p *place.Placer, reports <-chan conditions.Observed)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		file, err := store.Open(path, log)
		if err != nil {
			t.Fatal(err)
		}
		p, err := place.New(place.Config{Memory: file, Log: log, Publisher: &board{}, Meter: noMeter{}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		reports, done := make(chan conditions.Observed, 1), make(chan struct{})
		go func() {
			defer close(done)
			p.KeepObserved(ctx, func(o conditions.Observed) { reports <- o })
		}()
		f(t, p, reports)
		cancel()
		<-done
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	})
}

// An endpoint at which all requests fail for 15 s is failing. It is failing until it has served for
// 15 s. A request that fails in between changes nothing.
func TestEndpointsThatOnlyFailAreFailing(t *testing.T) {
	observing(t, func(t *testing.T, p *place.Placer, reports <-chan conditions.Observed) {
		const address = "10.0.0.1:8000"
		report := func(s conditions.State, reason string) {
			p.Observed("x", map[string]conditions.Endpoint{address: {State: s, Since: time.Now(), Reason: reason}}, nil)
		}
		expect := func(what string, after time.Duration, want conditions.State) {
			t.Helper()
			began := time.Now()
			o := <-reports
			if got := o.Reports[address].State; got != want || time.Since(began) != after {
				t.Fatalf("%s: it is %s after %v, want %s after %v", what, got, time.Since(began), want, after)
			}
		}
		report(conditions.Suspect, "queue_full")
		expect("the queue is full", 3*time.Second, conditions.Suspect)
		time.Sleep(59500 * time.Millisecond) // of the bubble's clock
		report(conditions.Suspect, "requests_fail")
		expect("a request failed", 500*time.Millisecond, conditions.Suspect)
		expect("all fail", 15*time.Second, conditions.Failing)
		report(conditions.Serving, "")
		expect("one succeeds", time.Second, conditions.Failing)
		report(conditions.Suspect, "requests_fail")
		expect("then they fail again", time.Second, conditions.Failing)
		report(conditions.Serving, "")
		expect("then they succeed", time.Second, conditions.Failing)
		expect("all succeed", 14*time.Second, conditions.Serving)
		report(conditions.Suspect, "requests_fail")
		expect("one fails", time.Second, conditions.Suspect)
		report(conditions.Serving, "")
		expect("that was one", time.Second, conditions.Serving)
		report(conditions.Suspect, "requests_fail")
		expect("they fail again", time.Second, conditions.Suspect)
		expect("all fail again", 14*time.Second, conditions.Failing)
		report(conditions.Out, "connection_refused")
		expect("the engine ends", time.Second, conditions.Out)
		report(conditions.Serving, "")
		expect("a new one starts", time.Second, conditions.Serving)
	})
}
