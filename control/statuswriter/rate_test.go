package statuswriter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/control/statuswriter"
	"github.com/headgate/headgate/internal/objects"
)

// slow is an API server without objects. Each write to it calls patch.
type slow struct {
	client.Client
	patch func(ctx context.Context) error
	away  int   // number of lists that fail
	lacks bool  // whether it has no Headgate CRDs
	has   int64 // generation of its objects

	mu      sync.Mutex   // guards the fields below
	create  error        // result of creating objects
	update  func() error // called in each update of an LLMRoute; nil: it succeeds
	denied  string       // Go type that may not be read
	invalid string       // object, other than an LLMRoute, whose status is rejected
	gone    string       // name of an object that does not exist
	during  func()       // called during each update of an object's status
	calls   []string
	patched string                                   // body of the last patch
	release string                                   // annotation with the version of Gateway API
	class   gatewayv1.GatewayClass                   // GatewayClass as last written
	parents map[string][]gatewayv1.RouteParentStatus // parents in the status of each HTTPRoute, by name
}

func (s *slow) note(call string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
}

func (s *slow) noted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func (s *slow) Status() client.SubResourceWriter { return slowStatus{of: s} }

func (s *slow) List(_ context.Context, all client.ObjectList, _ ...client.ListOption) error {
	s.mu.Lock()
	denied := s.denied
	s.mu.Unlock()
	if denied != "" && strings.HasSuffix(fmt.Sprintf("%T", all), "."+denied) {
		return apierrors.NewForbidden(schema.GroupResource{}, "", nil)
	}
	if s.away--; s.away >= 0 {
		return errors.New("connection refused")
	}
	if s.lacks {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "models"}, "")
	}
	return nil
}

func (s *slow) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	if _, is := o.(*v1alpha1.LLMRoute); is {
		return nil
	}
	s.note("get " + key.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == key.Name {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	if crd, is := o.(*metav1.PartialObjectMetadata); is {
		if s.denied == "PartialObjectMetadata" {
			return apierrors.NewForbidden(schema.GroupResource{}, key.Name, nil)
		}
		crd.Annotations = map[string]string{"gateway.networking.k8s.io/bundle-version": s.release}
	}
	if route, is := o.(*gatewayv1.HTTPRoute); is {
		route.Status.Parents = slices.Clone(s.parents[key.Name])
	}
	return nil
}

func (s *slow) Create(context.Context, client.Object, ...client.CreateOption) error {
	s.note("create")
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.create
}

func (s *slow) Patch(_ context.Context, o client.Object, _ client.Patch, _ ...client.PatchOption) error {
	s.note("finalize " + o.GetName())
	return nil
}

func (s *slow) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	s.note("delete")
	return nil
}

// slowStatus writes the status of objects to a slow API server.
type slowStatus struct {
	client.SubResourceWriter
	of *slow
}

func (s slowStatus) Patch(ctx context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	s.of.note("patch")
	text, err := p.Data(o)
	if err != nil {
		return err
	}
	s.of.mu.Lock()
	s.of.patched = string(text)
	s.of.mu.Unlock()
	o.SetGeneration(s.of.has)
	return s.of.patch(ctx)
}

func (s slowStatus) Update(_ context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	route, is := o.(*v1alpha1.LLMRoute)
	if !is {
		s.of.note("update " + o.GetName())
		if s.of.during != nil {
			s.of.during()
		}
		s.of.mu.Lock()
		defer s.of.mu.Unlock()
		if class, is := o.(*gatewayv1.GatewayClass); is {
			s.of.class = *class
		}
		if route, is := o.(*gatewayv1.HTTPRoute); is && s.of.parents != nil {
			s.of.parents[o.GetName()] = route.Status.Parents
		}
		if s.of.invalid == o.GetName() {
			return apierrors.NewInvalid(schema.GroupKind{}, o.GetName(), nil)
		}
		return nil
	}
	s.of.note("update " + strings.Join(route.Status.Models, " "))
	s.of.mu.Lock()
	update := s.of.update
	s.of.mu.Unlock()
	if update != nil {
		return update()
	}
	return nil
}

// logged contains the log. It may be read while a Writer logs.
type logged struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// paced runs a test script with a Writer on synctest's fake clock.
func paced(t *testing.T, patch func(ctx context.Context) error,
	script func(t *testing.T, s *slow, r *statuswriter.Writer, leads *atomic.Bool, logged func() string),
) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{patch: patch}
		var leads atomic.Bool
		leads.Store(true)
		var text logged
		r, err := statuswriter.Open(t.Context(), s, "", slog.New(slog.NewTextHandler(&text, nil)), leads.Load)
		if err != nil {
			t.Fatal(err)
		}
		script(t, s, r, &leads, text.String)
		_ = r.Close()
	})
}

func record(id, message string) store.Status {
	return store.Status{
		Pool: inPool, ID: id, Object: objects.Name{Namespace: "default", Name: id},
		Status: v1alpha1.ModelStatus{Message: message},
	}
}

var made = &v1alpha1.Model{
	ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
	Spec:       v1alpha1.ModelSpec{ID: "a", PoolRef: v1alpha1.PoolReference{Name: "p"}},
}

// A spec may change after the World from which a status was computed. The written status has the
// newer generation.
func TestStatusHasTheLatestGeneration(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
		s.has = 3
		st := record("a", "no room")
		st.Status.ObservedGeneration = 1
		r.PutStatuses([]store.Status{st})
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls := s.noted(); !slices.Equal(calls, []string{"patch", "patch"}) || !strings.Contains(s.patched, `"observedGeneration":3`) {
			t.Errorf("the calls are %v, and the last one writes %s", calls, s.patched)
		}
	})
}

// While it is unclear whether control leads, it does not write the records that must precede a call
// to an engine.
func TestPausedLeaderWritesNoCopy(t *testing.T) {
	paced(t, taken, func(t *testing.T, s *slow, r *statuswriter.Writer, leads *atomic.Bool, _ func() string) {
		r.PutStatuses([]store.Status{record("a", "no room")})
		time.Sleep(time.Minute)
		before := len(s.noted())
		leads.Store(false)
		err := r.PutCopy(store.Copy{Endpoint: "10.0.0.1:8033", Pool: inPool, ID: "a", State: "loading"}, true)
		if !errors.Is(err, store.ErrNotNow) {
			t.Errorf("the error is %v", err)
		}
		time.Sleep(time.Minute)
		if calls := s.noted(); len(calls) != before {
			t.Errorf("the calls are %v, of which %d were made while leading", calls, before)
		}
	})
}

func taken(context.Context) error { return nil }

// During an outage of the API server, control retries once per second and logs the error once.
func TestFailedWritesWait(t *testing.T) {
	paced(t, func(context.Context) error { return errors.New("connection refused") },
		func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, logged func() string) {
			r.PutStatuses([]store.Status{record("a", "no room")})
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n := len(s.noted()); n < 5 || n > 12 {
				t.Errorf("%d attempts in 10 s", n)
			}
			if n := strings.Count(logged(), `msg="cannot update the status of an object; retrying" object="Model default/a"`); n != 1 {
				t.Errorf("the failure is logged %d times: %s", n, logged())
			}
		})
}

// A new leader that must write the status of all models writes at most 10 statuses per second.
func TestStatusWritesAreRateLimited(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
			const models = 100
			for i := range models {
				r.PutStatuses([]store.Status{record(fmt.Sprint("m", i), "no room")})
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if n := len(s.noted()); n < 8 || n > 10 { // the first is written at once
				t.Errorf("%d writes in a second, want 10", n)
			}
			time.Sleep(11 * time.Second)
			synctest.Wait()
			if n := len(s.noted()); n != models {
				t.Errorf("%d writes in 12 s, want %d", n, models)
			}
		})
}

func worldWith(route string, models ...string) *objects.World {
	return &objects.World{Offer: objects.Offer{Routes: []*objects.Route{{
		Name: objects.Name{Namespace: "default", Name: route}, Kind: v1alpha1.LLMRouteKind, Models: models,
	}}}}
}

// The status of an LLMRoute is written before those of Models, since people wait for it.
func TestLLMRoutesAreWrittenFirst(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
			for i := range 1000 {
				r.PutStatuses([]store.Status{record(fmt.Sprint("m", i), "no room")})
			}
			time.Sleep(time.Second)
			synctest.Wait()
			before := len(s.noted())
			r.SetWorld(worldWith("r", "sql"))
			r.SetObserved(standalone)
			time.Sleep(300 * time.Millisecond)
			synctest.Wait()
			if calls := s.noted()[before:]; !slices.Contains(calls, "update sql") {
				t.Errorf("the calls in 300 ms are %v", calls)
			}
		})
}

// Checking statuses that are up to date does not delay writes.
func TestWrittenStatusesAreNotDueAgain(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
			w := new(objects.World)
			for i := range 9 {
				w.Routes = append(w.Routes, worldWith(fmt.Sprint("r", i), fmt.Sprint("m", i)).Routes...)
			}
			r.SetWorld(w)
			r.SetObserved(standalone)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			before := len(s.noted())
			r.SetWorld(w)
			r.SetObserved(standalone)
			r.PutStatuses([]store.Status{record("m", "no room")})
			time.Sleep(200 * time.Millisecond)
			synctest.Wait()
			if calls := s.noted()[before:]; !slices.Equal(calls, []string{"patch"}) {
				t.Errorf("the calls are %v, want a write of the Model at once", calls)
			}
		})
}

// If control may not write a kind, other kinds are still written, and that kind is retried every
// second.
func TestRejectedKindDoesNotDelayOthers(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, logged func() string) {
			var allows atomic.Bool
			s.update = func() error {
				if !allows.Load() {
					return apierrors.NewForbidden(schema.GroupResource{Resource: "llmroutes"}, "r", nil)
				}
				return nil
			}
			r.SetWorld(worldWith("r", "sql"))
			r.SetObserved(standalone)
			for i := range 100 {
				r.PutStatuses([]store.Status{record(fmt.Sprint("m", i), "no room")})
			}
			time.Sleep(15 * time.Second)
			synctest.Wait()
			count := func(call string) (n int) {
				for _, is := range s.noted() {
					if is == call {
						n++
					}
				}
				return n
			}
			if patches, updates := count("patch"), count("update sql"); patches != 100 || updates < 12 || updates > 18 {
				t.Errorf("in 15 s %d writes of Models and %d attempts for the LLMRoute, want 100 and 15", patches, updates)
			}
			if n := strings.Count(logged(), `msg="cannot update the status of an object; retrying" object="LLMRoute default/r"`); n != 1 {
				t.Errorf("the failure is logged %d times: %s", n, logged())
			}
			allows.Store(true)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			before := len(s.noted())
			time.Sleep(time.Minute)
			synctest.Wait()
			if calls := s.noted()[before:]; len(calls) > 0 || strings.Count(logged(), "can update the status of objects again") != 1 {
				t.Errorf("afterwards the calls are %v, and the log is %s", calls, logged())
			}
			allows.Store(false)
			r.SetWorld(worldWith("r", "code"))
			r.SetObserved(standalone)
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if n := strings.Count(logged(), `msg="cannot update the status of an object; retrying" object="LLMRoute default/r"`); n != 2 {
				t.Errorf("the second rejection is logged %d times: %s", n-1, logged())
			}
		})
}

// If a new World arrives during a write, the new status is written afterwards.
func TestWorldDuringAWriteIsReported(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
			r.SetWorld(worldWith("r", "sql"))
			r.SetObserved(standalone)
			time.Sleep(time.Second)
			synctest.Wait()
			back := sync.OnceFunc(func() { r.SetWorld(worldWith("r", "sql")) }) // restores the earlier status
			s.mu.Lock()
			s.update = func() error { back(); return nil }
			s.mu.Unlock()
			r.SetWorld(worldWith("r", "chat"))
			r.SetObserved(standalone)
			time.Sleep(time.Second)
			synctest.Wait()
			if want := []string{"update sql", "update chat", "update sql"}; !slices.Equal(s.noted(), want) {
				t.Errorf("the calls are %v, want %v", s.noted(), want)
			}
		})
}

// Open succeeds without CRDs, since they may be installed after control starts.
func TestAPIServerWithoutCRDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		r, err := statuswriter.Open(t.Context(), &slow{lacks: true}, "", slog.New(slog.DiscardHandler), always)
		if err != nil || time.Since(begun) > 0 {
			t.Fatalf("%v after %v", err, time.Since(begun))
		}
		_ = r.Close()
	})
}

// Changes that arrive while it is unclear whether control leads are written when it leads again.
func TestDelayedChangesAreWritten(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, s *slow, r *statuswriter.Writer, leads *atomic.Bool, _ func() string) {
			leads.Store(false)
			r.PutStatuses([]store.Status{record("a", "no room")})
			time.Sleep(time.Minute)
			synctest.Wait()
			if calls := s.noted(); len(calls) > 0 {
				t.Errorf("while another control may lead, the calls are %v", calls)
			}
			leads.Store(true)
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if calls := s.noted(); len(calls) != 1 {
				t.Errorf("then: %v", calls)
			}
		})
}

// Close takes at most 6 s during an outage, since a pod has 30 s to end.
func TestWriterClosesDuringAnOutage(t *testing.T) {
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	paced(t, hangs, func(t *testing.T, _ *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
		r.PutStatuses([]store.Status{record("a", "no room"), record("b", "no room"), record("c", "no room")})
		time.Sleep(time.Second)
		begun := time.Now()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("closing took %v", took)
		}
	})
}

// If control no longer leads when a slow write ends, the load is not allowed.
func TestLoadRecordedTooLateDoesNotBegin(t *testing.T) {
	late := func(context.Context) error { time.Sleep(5 * time.Second); return nil }
	paced(t, late, func(t *testing.T, _ *slow, r *statuswriter.Writer, leads *atomic.Bool, _ func() string) {
		if err := r.PutModel(made)(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { leads.Store(false) })
		asked := store.Copy{Endpoint: "10.0.0.1:8033", Pool: inPool, ID: "a", State: "loading"}
		if err := r.PutCopy(asked, true); err == nil {
			t.Error("the late load was allowed")
		}
	})
}

// Calls that create and delete a Model run in order. So if a client registers a model again, its
// earlier call to delete it does not run later.
func TestModelsAreCreatedAndDeletedInOrder(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
			var waits []func() error
			for range 3 {
				waits = append(waits, r.PutModel(made), r.DeleteModel(made))
			}
			var done sync.WaitGroup
			for _, wait := range slices.Backward(waits) {
				done.Go(func() { _ = wait() })
				synctest.Wait()
			}
			done.Wait()
			if want := []string{"create", "delete", "create", "delete", "create", "delete"}; !slices.Equal(s.noted(), want) {
				t.Errorf("the calls are %v", s.noted())
			}
		})
}

// A deleted model is dropped from memory, since clients may register and unregister models all the
// time.
func TestDeletedModelIsForgotten(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, _ *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
			gone := record("b", "")
			gone.Gone = true
			r.PutStatuses([]store.Status{record("a", "no room"), record("b", "no room")})
			r.PutStatuses([]store.Status{gone})
			if all, _ := r.Statuses(); len(all) != 1 || all[0].ID != "a" {
				t.Errorf("the statuses are %+v", all)
			}
		})
}

// When a runtime restarts, its earlier copies are dropped. Otherwise the next leader would assign
// them to the current incarnation.
func TestCopiesOfAnEarlierIncarnationAreDropped(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
			if err := r.PutModel(made)(); err != nil {
				t.Fatal(err)
			}
			const at = "10.0.0.1:8033"
			_ = r.PutRuntime(store.Runtime{Endpoint: at, Incarnation: "one"})
			_ = r.PutCopy(store.Copy{Endpoint: at, Pool: inPool, ID: "a", State: "loaded", Incarnation: "one"}, false)
			time.Sleep(time.Second)
			synctest.Wait()
			if !strings.Contains(s.patched, at) {
				t.Errorf("the write lacks the runtime's endpoint: %s", s.patched)
			}
			_ = r.PutRuntime(store.Runtime{Endpoint: at, Incarnation: "two"})
			time.Sleep(time.Second)
			synctest.Wait()
			if strings.Contains(s.patched, at) {
				t.Errorf("after a restart of the runtime the write has its earlier copy: %s", s.patched)
			}
		})
}

// A deleted runtime loses its state and its copies. Other runtimes keep theirs.
func TestRemovedRuntimeIsForgotten(t *testing.T) {
	paced(t, func(context.Context) error { return nil },
		func(t *testing.T, s *slow, r *statuswriter.Writer, _ *atomic.Bool, _ func() string) {
			if err := r.PutModel(made)(); err != nil {
				t.Fatal(err)
			}
			const gone, stays = "10.0.0.1:8033", "10.0.0.2:8033"
			for _, at := range []string{gone, stays} {
				_ = r.PutRuntime(store.Runtime{Endpoint: at})
				_ = r.PutCopy(store.Copy{Endpoint: at, Pool: inPool, ID: "a", State: "loaded"}, false)
			}
			r.DeleteRuntime(gone)
			r.DeleteRuntime("10.0.0.3:8033") // an unknown endpoint
			time.Sleep(time.Second)
			synctest.Wait()
			if strings.Contains(s.patched, gone) || !strings.Contains(s.patched, stays) {
				t.Errorf("the status is %s", s.patched)
			}
			if all, _ := r.Runtimes(); len(all) != 1 || all[0].Endpoint != stays {
				t.Errorf("the runtimes are %+v", all)
			}
		})
}

// A copy that cannot be stored during an outage is retried. A copy without a Model is an error.
func TestRetryableErrorsAreDistinguished(t *testing.T) {
	paced(t, func(context.Context) error { return errors.New("connection refused") },
		func(t *testing.T, _ *slow, r *statuswriter.Writer, leads *atomic.Bool, _ func() string) {
			asked := store.Copy{Endpoint: "10.0.0.1:8033", Pool: inPool, ID: "a", State: "loading"}
			if err := r.PutCopy(asked, true); err == nil || errors.Is(err, store.ErrNotNow) {
				t.Errorf("without a Model: %v", err)
			}
			if err := r.PutModel(made)(); err != nil {
				t.Fatal(err)
			}
			if err := r.PutCopy(asked, true); !errors.Is(err, store.ErrNotNow) {
				t.Errorf("during an outage: %v", err)
			}
			leads.Store(false)
			if err := r.PutCopy(asked, true); !errors.Is(err, store.ErrNotNow) {
				t.Errorf("while another control may lead: %v", err)
			}
		})
}

// Open waits for the API server, which may be unreachable when control becomes the leader.
func TestMemoryIsOpenedWhenTheAPIServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		begun := time.Now()
		r, err := statuswriter.Open(t.Context(), &slow{away: 60}, "", slog.New(slog.NewTextHandler(&logged, nil)), always)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 70*time.Second || strings.Count(logged.String(), "\n") != 1 {
			t.Errorf("opening took %v, and the log is %s", took, logged.String())
		}
		_ = r.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := statuswriter.Open(ctx, &slow{away: 1e9}, "", slog.New(slog.DiscardHandler), always); !errors.Is(err,
			context.DeadlineExceeded) {
			t.Errorf("with a server that never answers: %v", err)
		}
	})
}
