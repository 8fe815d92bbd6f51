package store_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/store"
)

func open(t *testing.T, path string) *store.File {
	t.Helper()
	s, err := store.Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func model(name string) *v1alpha1.Model {
	return &v1alpha1.Model{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       v1alpha1.ModelSpec{ID: name, PoolRef: v1alpha1.PoolReference{Name: "p"}},
	}
}

// What concurrent writes stored is still there after the file is reopened, and deleted entries are
// not.
func TestWritesAreDurable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	s := open(t, path)
	var writers sync.WaitGroup
	for w := range 16 {
		writers.Go(func() {
			for i := range 20 {
				if err := s.PutModel(model(fmt.Sprintf("m%d-%d", w, i)))(); err != nil {
					t.Error(err)
				}
			}
			if err := s.DeleteModel(model(fmt.Sprintf("m%d-0", w)))(); err != nil {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	_ = s.PutCopy(store.Copy{Endpoint: "e1", Pool: "default/p", ID: "a", State: "loading"}, false)
	_ = s.PutCopy(store.Copy{Endpoint: "e1", Pool: "default/p", ID: "a", State: "loaded"}, false)
	_ = s.PutCopy(store.Copy{Endpoint: "e1", Pool: "default/p", ID: "b", State: "loading"}, true)
	s.DeleteCopy("e1", "default/p", "b")
	for _, e := range []string{"e1", "e2"} {
		if err := s.PutRuntime(store.Runtime{Endpoint: e}); err != nil {
			t.Error(err)
		}
	}
	s.DeleteRuntime("e1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = open(t, path)
	defer s.Close()
	models, err := s.Models()
	if err != nil || len(models) != 16*19 {
		t.Errorf("%d models, %v; want %d", len(models), err, 16*19)
	}
	copies, err := s.Copies()
	if err != nil || len(copies) != 1 || copies[0].State != "loaded" {
		t.Errorf("copies %+v, %v; want a, loaded", copies, err)
	}
	runtimes, err := s.Runtimes()
	if err != nil || len(runtimes) != 1 || runtimes[0].Endpoint != "e2" {
		t.Errorf("runtimes %+v, %v; want e2", runtimes, err)
	}
}

func TestSecondProcessGetsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	s := open(t, path)
	defer s.Close()
	if _, err := store.Open(path, slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "another process has it open") {
		t.Errorf("a second opening: %v", err)
	}
}

func BenchmarkPutCopyAndWait(b *testing.B) {
	s, err := store.Open(filepath.Join(b.TempDir(), "control.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		_ = s.PutCopy(store.Copy{Endpoint: "e1", Pool: "default/p", ID: "a", State: "loading"}, true)
	}
}
