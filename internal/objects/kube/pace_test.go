package kube_test

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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
)

// slow is an API server without objects whose writes do what patch says.
type slow struct {
	client.Client
	patch func(ctx context.Context) error
	away  int // how often it does not list

	mu      sync.Mutex // guards the following
	calls   []string
	patched string // the last patch
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

func (s *slow) Status() client.SubResourceWriter { return status{of: s} }

func (s *slow) List(context.Context, client.ObjectList, ...client.ListOption) error {
	if s.away--; s.away >= 0 {
		return errors.New("connection refused")
	}
	return nil
}

func (s *slow) Create(context.Context, client.Object, ...client.CreateOption) error {
	s.note("create")
	return nil
}

func (s *slow) Delete(context.Context, client.Object, ...client.DeleteOption) error {
	s.note("delete")
	return nil
}

// status is the part of it that writes status.
type status struct {
	client.SubResourceWriter
	of *slow
}

func (s status) Patch(ctx context.Context, o client.Object, p client.Patch, _ ...client.SubResourcePatchOption) error {
	s.of.note("patch")
	text, err := p.Data(o)
	if err != nil {
		return err
	}
	s.of.mu.Lock()
	s.of.patched = string(text)
	s.of.mu.Unlock()
	return s.of.patch(ctx)
}

// paced runs a script with a memory in a bubble of synctest.
func paced(t *testing.T, patch func(ctx context.Context) error, script func(t *testing.T, s *slow, m *kube.Memory, decides *atomic.Bool, logged func() string)) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{patch: patch}
		var decides atomic.Bool
		decides.Store(true)
		var text strings.Builder
		m, err := kube.OpenMemory(t.Context(), s, "", slog.New(slog.NewTextHandler(&text, nil)), decides.Load)
		if err != nil {
			t.Fatal(err)
		}
		script(t, s, m, &decides, text.String)
		_ = m.Close()
	})
}

func record(id, message string) objects.ModelRecord {
	return objects.ModelRecord{Pool: inPool, ID: id, Object: objects.Name{Namespace: "default", Name: id}, Status: v1alpha1.ModelStatus{Message: message}}
}

var made = &v1alpha1.Model{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}, Spec: v1alpha1.ModelSpec{ID: "a", PoolRef: v1alpha1.PoolReference{Name: "p"}}}

// An API server that is away is not asked the more for it, and the log is not filled.
func TestWhatCannotBeWrittenWaits(t *testing.T) {
	paced(t, func(context.Context) error { return errors.New("connection refused") },
		func(t *testing.T, s *slow, m *kube.Memory, _ *atomic.Bool, logged func() string) {
			m.PutStatuses([]objects.ModelRecord{record("a", "no room")})
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if n := len(s.noted()); n < 5 || n > 12 {
				t.Errorf("in 10 s it was tried %d times", n)
			}
			if n := strings.Count(logged(), "cannot be written"); n != 1 {
				t.Errorf("it was told %d times: %s", n, logged())
			}
		})
}

// A control that begins has the status of all models to write, and the API server has others to answer: it gets 20 a second.
func TestManyStatusesAreWrittenOneAfterTheOther(t *testing.T) {
	paced(t, func(context.Context) error { return nil }, func(t *testing.T, s *slow, m *kube.Memory, _ *atomic.Bool, _ func() string) {
		const models = 100
		for i := range models {
			m.PutStatuses([]objects.ModelRecord{record(fmt.Sprint("m", i), "no room")})
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(s.noted()); n < 15 || n > 21 { // the first at once
			t.Errorf("in a second it wrote %d times, want 20", n)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := len(s.noted()); n != models {
			t.Errorf("in 6 s it wrote %d times, want %d", n, models)
		}
	})
}

// What became known while nobody could tell who decides is written when that is known again.
func TestWhatWaitedForADecisionIsWritten(t *testing.T) {
	paced(t, func(context.Context) error { return nil }, func(t *testing.T, s *slow, m *kube.Memory, decides *atomic.Bool, _ func() string) {
		decides.Store(false)
		m.PutStatuses([]objects.ModelRecord{record("a", "no room")})
		time.Sleep(time.Minute)
		synctest.Wait()
		if calls := s.noted(); len(calls) > 0 {
			t.Errorf("while another may decide: %v", calls)
		}
		decides.Store(true)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if calls := s.noted(); len(calls) != 1 {
			t.Errorf("then: %v", calls)
		}
	})
}

// A pod that ends has 30 s for everything.
func TestAMemoryClosesThoughNobodyAnswers(t *testing.T) {
	hangs := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	paced(t, hangs, func(t *testing.T, _ *slow, m *kube.Memory, _ *atomic.Bool, _ func() string) {
		m.PutStatuses([]objects.ModelRecord{record("a", "no room"), record("b", "no room"), record("c", "no room")})
		time.Sleep(time.Second)
		begun := time.Now()
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A write that took long may end when another decides.
func TestALoadThatIsWrittenDownTooLateDoesNotBegin(t *testing.T) {
	late := func(context.Context) error { time.Sleep(5 * time.Second); return nil }
	paced(t, late, func(t *testing.T, _ *slow, m *kube.Memory, decides *atomic.Bool, _ func() string) {
		if err := m.PutModel(made)(); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, func() { decides.Store(false) })
		asked := objects.CopyRecord{Endpoint: "10.0.0.1:8033", Pool: inPool, ID: "a", State: "loading"}
		if err := m.PutCopy(asked, true); err == nil {
			t.Error("it may begin")
		}
	})
}

// A client that registers a model anew does not find it deleted by a call that it made before.
func TestModelsAreMadeAndDeletedInOrder(t *testing.T) {
	paced(t, func(context.Context) error { return nil }, func(t *testing.T, s *slow, m *kube.Memory, _ *atomic.Bool, _ func() string) {
		var waits []func() error
		for range 3 {
			waits = append(waits, m.PutModel(made), m.DeleteModel(made))
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

// Clients of ModelMesh may register and take away models for as long as a control lives.
func TestAModelThatIsGoneIsForgotten(t *testing.T) {
	paced(t, func(context.Context) error { return nil }, func(t *testing.T, _ *slow, m *kube.Memory, _ *atomic.Bool, _ func() string) {
		gone := record("b", "")
		gone.Gone = true
		m.PutStatuses([]objects.ModelRecord{record("a", "no room"), record("b", "no room")})
		m.PutStatuses([]objects.ModelRecord{gone})
		if all, _ := m.Statuses(); len(all) != 1 || all[0].ID != "a" {
			t.Errorf("it knows %+v", all)
		}
	})
}

// What a runtime had in an earlier life is not in its next one. Who decides next would take it for that life's, and the runtime
// for one that has restarted since.
func TestWhatARuntimeHadInAnEarlierLifeIsForgotten(t *testing.T) {
	paced(t, func(context.Context) error { return nil }, func(t *testing.T, s *slow, m *kube.Memory, _ *atomic.Bool, _ func() string) {
		if err := m.PutModel(made)(); err != nil {
			t.Fatal(err)
		}
		const at = "10.0.0.1:8033"
		_ = m.PutRuntime(objects.RuntimeRecord{Endpoint: at, Incarnation: "one"})
		_ = m.PutCopy(objects.CopyRecord{Endpoint: at, Pool: inPool, ID: "a", State: "loaded", Incarnation: "one"}, false)
		time.Sleep(time.Second)
		synctest.Wait()
		if !strings.Contains(s.patched, at) {
			t.Errorf("it is not written where it is: %s", s.patched)
		}
		_ = m.PutRuntime(objects.RuntimeRecord{Endpoint: at, Incarnation: "two"})
		time.Sleep(time.Second)
		synctest.Wait()
		if strings.Contains(s.patched, at) {
			t.Errorf("in its next life it has: %s", s.patched)
		}
	})
}

// An outage is nothing that a load has failed by; that there is no place to write it down is.
func TestWhatMayBeRememberedLaterIsToldApart(t *testing.T) {
	paced(t, func(context.Context) error { return errors.New("connection refused") },
		func(t *testing.T, _ *slow, m *kube.Memory, decides *atomic.Bool, _ func() string) {
			asked := objects.CopyRecord{Endpoint: "10.0.0.1:8033", Pool: inPool, ID: "a", State: "loading"}
			if err := m.PutCopy(asked, true); err == nil || errors.Is(err, objects.ErrNotNow) {
				t.Errorf("without a Model: %v", err)
			}
			if err := m.PutModel(made)(); err != nil {
				t.Fatal(err)
			}
			if err := m.PutCopy(asked, true); !errors.Is(err, objects.ErrNotNow) {
				t.Errorf("in an outage: %v", err)
			}
			decides.Store(false)
			if err := m.PutCopy(asked, true); !errors.Is(err, objects.ErrNotNow) {
				t.Errorf("where another may decide: %v", err)
			}
		})
}

// Who is to decide may be so while the API server is away again.
func TestAMemoryIsOpenedWhenTheAPIServerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		begun := time.Now()
		m, err := kube.OpenMemory(t.Context(), &slow{away: 60}, "", slog.New(slog.NewTextHandler(&logged, nil)), always)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 70*time.Second || strings.Count(logged.String(), "\n") != 1 {
			t.Errorf("it took %v, and logged %s", took, logged.String())
		}
		_ = m.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := kube.OpenMemory(ctx, &slow{away: 1e9}, "", slog.New(slog.DiscardHandler), always); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("it never answers: %v", err)
		}
	})
}
