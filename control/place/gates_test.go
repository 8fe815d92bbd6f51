package place_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// withPod sets a World built from the objects in all, in which the endpoints at these addresses
// belong to one pod in the state is.
func (w *world) withPod(addresses []string, is objects.Endpoint, all ...string) {
	w.Helper()
	w.world = w.build(all...)
	for i := range w.world.Engines {
		if e := &w.world.Engines[i]; slices.Contains(addresses, e.Address) {
			e.Listed, e.Pod, e.UID = false, objects.Name{Namespace: "default", Name: "new"}, is.UID
			e.Ready, e.OnTrial, e.Version = is.Ready, is.OnTrial, is.Version
		}
	}
	w.SetWorld(w.world)
}

// For a pod on trial, control publishes whether models that are loaded elsewhere load there, too.
// It publishes success once models have loaded at all engines of the pod. No other model is loaded
// there before.
func TestTrialOfAPod(t *testing.T) {
	told := new(recorder)
	w := newRecordedWorld(t, told)
	old, one, other := serveVLLM(t), serveVLLM(t), serveVLLMOfRank(t, 8)
	all := []string{settings("maxAdapters: 4"), list(old.address, "")}
	for _, id := range []string{"a", "b", "c"} {
		all = append(all, object(id, ", source: 'sim:rank=16', copies: {min: 1}"))
	}
	w.set(all...)
	for _, id := range []string{"a", "b", "c"} {
		w.awaitCopies(id, old.address+" loaded")
		w.Used(map[decide.Key]decide.Use{key(id): {Last: time.Now()}})
	}
	trial := objects.Endpoint{UID: "u1", OnTrial: true}
	w.withPod([]string{one.address}, trial, append(all, list(one.address, ""))...)
	gate := "default/new u1 "
	w.await("it has passed", func() bool {
		return slices.Equal(told.publishedGates(), []string{
			gate + "false Trying: models that are loaded elsewhere are being loaded here, too", gate +
				"true Loaded: 3 models that are loaded elsewhere were loaded here, too",
		})
	})
	if v := endpointOf(w.View(), one.address); v.State != decide.OnTrial || len(v.Copies) != 3 {
		t.Errorf("it is %+v", v)
	}
	// The second engine refuses adapters of that rank, as a different version may.
	trial.UID = "u2"
	w.withPod([]string{one.address, other.address}, trial, append(all, list(one.address, ""), list(other.address, ""))...)
	gate = "default/new u2 "
	w.await("it has failed", func() bool {
		said := told.publishedGates()[2:]
		return len(said) == 2 && strings.HasPrefix(said[0], gate+"false Trying") &&
			strings.HasPrefix(said[1], gate+"false "+v1alpha1.LoadsFail+": models that are loaded elsewhere cannot be loaded here: ") &&
			strings.Count(said[1], "LoRA rank 16") == 3
	})
	// A requested model is not loaded at the pod whose trial failed.
	w.Wanted("x", key("d"), decide.Want{Requests: 1, Since: time.Now()})
	w.withPod([]string{one.address, other.address}, trial,
		append(all, list(one.address, ""), list(other.address, ""), object("d", ", source: 'sim:'"))...)
	w.awaitCopies("d", old.address+" loaded")
	// After the pod has become ready, nothing more is published about it.
	before := len(told.publishedGates())
	w.withPod([]string{one.address, other.address}, objects.Endpoint{UID: "u2", Ready: true},
		append(all, list(one.address, ""), list(other.address, ""))...)
	if v := endpointOf(w.View(), one.address); v.State != decide.Ready || len(told.publishedGates()) != before {
		t.Errorf("it is %s, and %d more is said of it", v.State, len(told.publishedGates())-before)
	}
}

// When a pod becomes ready after scrapes of its engine failed, control scrapes the engine at once.
// Requests that arrive before this scrape ends wait. They do not fail because of earlier scrapes.
func TestPodThatBecomesReadyIsScraped(t *testing.T) {
	w := &world{T: t, file: filepath.Join(t.TempDir(), "control.db"), scrape: time.Hour}
	w.start()
	t.Cleanup(func() { w.stop() })
	closed := listen(t, "tcp", "127.0.0.1:0")
	address := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	all := []string{settings("maxAdapters: 4, source: 'sim:'"), list(address, ""), object("a", ""), object("b", "")}
	w.withPod([]string{address}, objects.Endpoint{}, all...)
	w.await("the engine is down", func() bool { return endpointOf(w.View(), address).State == decide.Down })
	wanted := func(id string, reason decide.Reason) {
		t.Helper()
		w.Wanted("x", key(id), decide.Want{Requests: 1, Since: time.Now()})
		if st, _ := w.Status(key(id)); st.Failed != reason {
			t.Errorf("requests for %s get %q, want %q", id, st.Failed, reason)
		}
	}
	wanted("a", decide.NoEndpoint)
	w.Wanted("x", key("a"), decide.Want{})

	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: serveVLLM(t).address})
	// The scrape before the pod becomes ready ends after that, and fails.
	begun, failed := make(chan struct{}, 100), make(chan struct{})
	next, scraped := make(chan struct{}, 100), make(chan struct{}) // scraped is closed when the next one may be answered
	s := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-failed:
			next <- struct{}{}
			<-scraped
			to.ServeHTTP(w, r)
		default:
			begun <- struct{}{}
			<-failed
			w.WriteHeader(http.StatusInternalServerError)
		}
	})}
	l := listen(t, "tcp", address)
	serve(t, func(ctx context.Context) error {
		context.AfterFunc(ctx, func() { _ = s.Close() })
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	all[0] = settings("maxAdapters: 5, source: 'sim:'") // a change that needs a scrape
	w.withPod([]string{address}, objects.Endpoint{}, all...)
	<-begun
	w.withPod([]string{address}, objects.Endpoint{Ready: true}, all...)
	if st, _ := w.Status(key("a")); st.Failed != "" {
		t.Errorf("new requests for a would get %s", st.Failed)
	}
	close(failed)
	<-next
	wanted("b", "")
	close(scraped)
	w.awaitCopies("b", address+" loaded")
}

// Nothing is loaded at a pod that is not ready. If there is another pod, nothing is loaded at a pod
// that will be replaced soon.
func TestPodStateLimitsLoads(t *testing.T) {
	w := newWorld(t)
	one, other := serveVLLM(t), serveVLLM(t)
	both := []string{settings("maxAdapters: 8, source: 'sim:'"), list(one.address, ""), list(other.address, "")}
	min := func(id string) string { return object(id, ", copies: {min: 1}") }
	w.withPod([]string{one.address}, objects.Endpoint{}, append(both, min("a"))...)
	w.awaitCopies("a", other.address+" loaded")
	w.withPod([]string{other.address}, objects.Endpoint{}, append(both, min("a"))...)
	w.await("it is loaded where it is of use", func() bool { return strings.Contains(w.copies("a"), one.address+" loaded") })

	rolled := func(made time.Duration, all ...string) {
		t.Helper()
		w.world = w.build(append(both, all...)...)
		for i := range w.world.Engines {
			e := &w.world.Engines[i]
			e.Listed, e.Version = false, objects.Version{Workload: "w", Template: "new", Made: time.Now().Add(-made)}
			if e.Address == one.address {
				e.Template, e.Made = "old", time.Now().Add(-time.Hour)
			}
		}
		w.SetWorld(w.world)
	}
	for _, id := range []string{"b", "c", "d", "e", "f", "g"} {
		rolled(time.Minute, min("a"), min(id))
		w.awaitCopies(id, other.address+" loaded")
	}
}
