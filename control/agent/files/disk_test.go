package files_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
)

// clock is a Now of a Config that is later at each call.
func clock() func() time.Time {
	var mu sync.Mutex
	now := time.Unix(1_000_000, 0)
	return func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(time.Second)
		return now
	}
}

func TestLimit(t *testing.T) {
	m, dir := newMemory(), t.TempDir()
	limited := func(c *files.Config) { c.Limit, c.Now = 10_000, clock() }
	s := open(t, dir, m, limited)
	for i := range 5 {
		m.put(fmt.Sprint("s3://b/", i), &source{content: map[string][]byte{"a": noise(uint64(i), 3000)}})
	}
	m.put("s3://b/large", &source{content: map[string][]byte{"a": noise(9, 8000)}})
	visit := func(i int) {
		t.Helper()
		get(t, s, fmt.Sprint("m", i), fmt.Sprint("s3://b/", i))
		if err := s.Release(fmt.Sprint("m", i)); err != nil {
			t.Fatal(err)
		}
	}
	wantAsked := func(want int64) {
		t.Helper()
		if m.asked != want {
			t.Fatalf("%d bytes were asked for, want %d", m.asked, want)
		}
	}
	visit(0)
	visit(1)
	visit(2)
	visit(0)
	wantAsked(9000)
	visit(3) // evicts 1
	visit(0)
	visit(2)
	wantAsked(12_000)
	visit(1) // evicts 3
	wantAsked(15_000)

	// The next process evicts in the same order.
	s.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, m, limited)
	visit(4) // evicts 0
	visit(2)
	visit(1)
	wantAsked(18_002) // a byte of each, because the credentials are new to this process

	// What models use stays. A model that cannot fit evicts nothing.
	get(t, s, "m1", "s3://b/1")
	_, err := s.Fetch(t.Context(), "large", of("s3://b/large"))
	wantReason(t, err, fetch.Full)
	visit(2)
	visit(4)
	wantAsked(18_002)
	if err := s.Release("m1"); err != nil {
		t.Fatal(err)
	}
	get(t, s, "large", "s3://b/large") // evicts all
	wantAsked(26_002)
	if s.Used() != 8000 {
		t.Errorf("%d bytes count", s.Used())
	}
	wantEmpty(t, s, m)
}

// Downloads at the same time do not get more room together than there is.
func TestLimitOfParallelDownloads(t *testing.T) {
	m := newMemory()
	s := open(t, t.TempDir(), m, func(c *files.Config) { c.Limit = 10_000 })
	g := newGate()
	for i := range 5 {
		m.put(fmt.Sprint("s3://b/", i), &source{content: map[string][]byte{"a": noise(uint64(i), 4000)}, body: g.body})
	}
	errs := make(chan error)
	for i := range 5 {
		go func() {
			_, err := s.Fetch(t.Context(), fmt.Sprint("m", i), of(fmt.Sprint("s3://b/", i)))
			errs <- err
		}()
	}
	for range 3 {
		wantReason(t, <-errs, fetch.Full)
	}
	close(g.open)
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	wantEmpty(t, s, m)
}

// An interrupted download gives its room to another one, before complete sources do.
func TestLimitEvictsInterrupted(t *testing.T) {
	m := newMemory()
	s := open(t, t.TempDir(), m, func(c *files.Config) { c.Limit, c.Now = 10_000, clock() })
	m.put("s3://b/old", &source{content: map[string][]byte{"a": noise(1, 3000)}})
	get(t, s, "m", "s3://b/old")
	if err := s.Release("m"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	m.put("s3://b/cut", &source{
		content: map[string][]byte{"a": noise(2, 4000)},
		body: func(_ context.Context, _ fetch.Object, offset int64, b io.ReadCloser) (io.ReadCloser, error) {
			if offset == 3000 {
				cancel()
				return nil, &fetch.Error{Reason: fetch.Busy, Message: "s3://b/cut: 503"}
			}
			return b, nil
		},
	})
	_, err := s.Fetch(ctx, "m", of("s3://b/cut"))
	if err == nil {
		t.Fatal("it did not fail")
	}
	s.Wait()
	m.put("s3://b/new", &source{content: map[string][]byte{"a": noise(3, 7000)}})
	get(t, s, "new", "s3://b/new")
	asked := m.asked
	if get(t, s, "m", "s3://b/old"); m.asked != asked {
		t.Error("the complete source was evicted")
	}
	wantEmpty(t, s, m)
}

// The next process has the models that the last one made, and their sources. It removes what the
// last one was making, but nothing that is not the agent's.
func TestRecovery(t *testing.T) {
	m, dir := newMemory(), t.TempDir()
	s := open(t, dir, m, nil)
	content := map[string][]byte{"a": noise(1, 3000)}
	m.put("s3://b/x", &source{content: content, schema: []byte("{}")})
	m.put("s3://b/y", &source{content: content})
	first := get(t, s, "m/1", "s3://b/x")
	get(t, s, "other", "s3://b/y")
	if err := s.Release("other"); err != nil {
		t.Fatal(err)
	}
	if _, err := files.Open(files.Config{Dir: dir}); err == nil {
		t.Fatal("two processes use one folder")
	}
	s.Wait()
	models := s.Models()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"_links/1/a", "_trash/2/b", "_sources/3/a", "_partial/4/a", "foreign/a", "_models/bad.json", "stale/a",
	} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("half"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "_models/stale.json"), []byte(`{"id":"stale","entry":"gone","path":"stale"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, m, nil)
	if got := s.Models(); len(got) != 1 || got[0] != models[0] || got[0].Local != first {
		t.Errorf("models are %v, want %v", got, models)
	}
	got := tree(t, dir)
	for name := range got {
		if got[name] == "half" && name != "foreign/a" {
			t.Errorf("%s is still there", name)
		}
	}
	if got["foreign/a"] == "" {
		t.Error("a foreign file is gone")
	}
	asked := m.asked
	if local := get(t, s, "m/1", "s3://b/x"); local != first {
		t.Errorf("it is at %v, want %v", local, first)
	}
	get(t, s, "other", "s3://b/y")
	if more := m.asked - asked; more > 2 { // one byte of each, because the credentials are new to this process
		t.Errorf("%d bytes were asked for", more)
	}
	wantEmpty(t, s, m)
}

// Files are synced a while after they were fetched, but not after their eviction.
func TestSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		s := open(t, t.TempDir(), m, nil)
		for _, uri := range []string{"s3://b/x", "s3://b/y"} {
			m.put(uri, &source{content: map[string][]byte{"a": noise(1, 3000)}})
			get(t, s, uri, uri)
		}
		if err := s.Release("s3://b/y"); err != nil {
			t.Fatal(err)
		}
		s.EvictAll()
		if n := s.Synced(); n != 0 {
			t.Errorf("%d sources are synced at once", n)
		}
		time.Sleep(31 * time.Second)
		s.Wait()
		if n := s.Synced(); n != 1 {
			t.Errorf("%d sources are synced", n)
		}
		wantEmpty(t, s, m)
	})
}

// Files that were not synced before the machine started again may be damaged, and are removed.
func TestRecoveryAfterBoot(t *testing.T) {
	m, dir := newMemory(), t.TempDir()
	s := open(t, dir, m, nil)
	m.put("s3://b/x", &source{content: map[string][]byte{"a": noise(1, 3000)}})
	m.put("s3://b/y", &source{content: map[string][]byte{"a": noise(1, 3000)}})
	get(t, s, "m", "s3://b/x")
	s.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, m, nil)
	if len(s.Models()) != 1 {
		t.Fatal("the model is gone")
	}
	if err := s.Unsync(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, m, nil)
	if len(s.Models()) != 0 || s.Used() != 0 {
		t.Error("the files are still there")
	}
	if _, err := os.Stat(filepath.Join(dir, "m")); err == nil {
		t.Error("the folder of the model is still there")
	}
	wantEmpty(t, s, m)
}
