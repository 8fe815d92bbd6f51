package files_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
)

// gate makes the requests of a source wait until it is opened, and reports the first one.
type gate struct {
	reached, open chan struct{}
	once          sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) body(ctx context.Context, _ fetch.Object, _ int64, b io.ReadCloser) (io.ReadCloser, error) {
	g.once.Do(func() { close(g.reached) })
	select {
	case <-g.open:
		return b, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func TestFetchOnceForAll(t *testing.T) {
	m, g := newMemory(), newGate()
	s := open(t, t.TempDir(), m, nil)
	content := map[string][]byte{"a": noise(1, 5000), "b": noise(2, 10)}
	m.put("s3://b/x", &source{content: content, body: g.body})
	first, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := s.Fetch(first, "first", of("s3://b/x"))
		gone <- err
	}()
	<-g.reached
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { wantTree(t, get(t, s, fmt.Sprint("m", i), "s3://b/x").Path, text(content)) })
	}
	// The first caller goes; the download goes on for the others.
	waitUntil(t, func() bool { return files.Waiters(s) == 21 })
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the first caller got %v", err)
	}
	close(g.open)
	all.Wait()
	if m.asked != 5010 || m.lists != 1 {
		t.Errorf("%d bytes and %d listings were asked for", m.asked, m.lists)
	}
	wantEmpty(t, s, m)
}

// waitUntil waits until a condition holds that another goroutine makes true.
func waitUntil(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the condition does not become true")
		}
	}
}

// A download that nobody waits for stops. A caller that comes then starts another, after the first.
func TestFetchAbandoned(t *testing.T) {
	m, g := newMemory(), newGate()
	s := open(t, t.TempDir(), m, nil)
	content := map[string][]byte{"a": noise(1, 5000)}
	m.put("s3://b/x", &source{content: content, body: g.body})
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() {
		_, err := s.Fetch(ctx, "m", of("s3://b/x"))
		gone <- err
	}()
	<-g.reached
	cancel()
	if err := <-gone; err == nil {
		t.Error("an abandoned fetch succeeds")
	}
	if s.Wait(); !s.Empty() {
		t.Error("the download goes on, or left something")
	}
	close(g.open)
	wantTree(t, get(t, s, "m", "s3://b/x").Path, text(content))
	wantEmpty(t, s, m)
}

// Parts are fetched side by side, but not more than the limit.
func TestFetchConcurrency(t *testing.T) {
	m := newMemory()
	s := open(t, t.TempDir(), m, func(c *files.Config) { c.Concurrency = 3 })
	var running atomic.Int32
	full := make(chan struct{})
	m.put("s3://b/x", &source{
		content: map[string][]byte{"a": noise(1, 9000)},
		body: func(_ context.Context, _ fetch.Object, _ int64, b io.ReadCloser) (io.ReadCloser, error) {
			if running.Add(1) == 3 {
				close(full)
			}
			<-full
			return b, nil
		},
	})
	get(t, s, "m", "s3://b/x")
	if m.most != 3 {
		t.Errorf("%d requests ran at once", m.most)
	}
	wantEmpty(t, s, m)
}

func TestFetchWithoutRanges(t *testing.T) {
	m := newMemory()
	s := open(t, t.TempDir(), m, nil)
	content := map[string][]byte{"a": noise(1, 9000), "b": noise(2, 900)}
	cuts := 2
	m.put("http://h/x", &source{
		content: content, noRange: true,
		body: func(_ context.Context, o fetch.Object, _ int64, b io.ReadCloser) (io.ReadCloser, error) {
			if o.Name == "a" && cuts > 0 {
				cuts--
				return &cut{b, 8000}, nil
			}
			return b, nil
		},
	})
	wantTree(t, get(t, s, "m", "http://h/x").Path, text(content))
	if m.asked > 3*9000+2*900 {
		t.Errorf("%d bytes were asked for", m.asked)
	}
	wantEmpty(t, s, m)
}

func TestFetchUnsized(t *testing.T) {
	m := newMemory()
	s := open(t, t.TempDir(), m, func(c *files.Config) { c.Limit = 20_000 })
	content := map[string][]byte{"a": noise(1, 9000), "b": {}}
	m.put("http://h/x", &source{content: content, unsized: true})
	wantTree(t, get(t, s, "m", "http://h/x").Path, text(content))
	m.put("http://h/y", &source{content: map[string][]byte{"a": noise(2, 12_000)}, unsized: true})
	_, err := s.Fetch(t.Context(), "n", of("http://h/y"))
	wantReason(t, err, fetch.Full)
	wantEmpty(t, s, m)
}

// A connection that breaks is continued where it broke.
func TestFetchResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		s := open(t, t.TempDir(), m, func(c *files.Config) { c.PartSize = 1 << 20 })
		content := map[string][]byte{"a": noise(1, 5<<20)}
		cuts := 0
		var mu sync.Mutex
		m.put("s3://b/x", &source{
			content: content,
			body: func(_ context.Context, _ fetch.Object, _ int64, b io.ReadCloser) (io.ReadCloser, error) {
				mu.Lock()
				defer mu.Unlock()
				if cuts++; cuts <= 12 {
					return &cut{b, 300 << 10}, nil
				}
				return b, nil
			},
		})
		wantTree(t, get(t, s, "m", "s3://b/x").Path, text(content))
		if m.opens < 13 {
			t.Errorf("only %d requests", m.opens)
		}
		// Each request asked for the rest of its part: what was cut off was asked for twice.
		if most := int64(5<<20 + 12*(1<<20)); m.asked > most {
			t.Errorf("%d bytes were asked for, want at most %d", m.asked, most)
		}
		wantEmpty(t, s, m)
	})
}

// The next call continues a download whose time was over, and so does the next process.
func TestFetchContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, dir := newMemory(), t.TempDir()
		s := open(t, dir, m, func(c *files.Config) { c.PartSize = 1 << 20 })
		content := map[string][]byte{"a": noise(1, 4<<20), "b": noise(2, 100)}
		src := m.put("s3://b/x", &source{content: content, digests: true})
		src.body = func(_ context.Context, _ fetch.Object, offset int64, b io.ReadCloser) (io.ReadCloser, error) {
			if offset >= 2<<20 {
				return nil, &fetch.Error{Reason: fetch.Busy, Message: "s3://b/x: slow down"}
			}
			return b, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := s.Fetch(ctx, "m", of("s3://b/x"))
		wantReason(t, err, fetch.Busy)
		s.Wait()
		if used := s.Used(); used != 2<<20+100 {
			t.Errorf("%d bytes count", used)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir, m, func(c *files.Config) { c.PartSize = 1 << 20 })
		if used := s.Used(); used != 2<<20+100 {
			t.Errorf("%d bytes count in the next process", used)
		}
		m.asked, src.body = 0, nil
		wantTree(t, get(t, s, "m", "s3://b/x").Path, text(content))
		if m.asked != 2<<20 {
			t.Errorf("%d bytes were asked for", m.asked)
		}
		wantEmpty(t, s, m)
	})
}

// If the source has changed since a download was interrupted, the next one removes it.
func TestFetchContinuesNotAnotherVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		s := open(t, t.TempDir(), m, nil)
		m.put("s3://b/x", &source{
			content: map[string][]byte{"a": noise(1, 4000)},
			body: func(_ context.Context, _ fetch.Object, offset int64, b io.ReadCloser) (io.ReadCloser, error) {
				if offset > 0 {
					return nil, &fetch.Error{Reason: fetch.Busy, Message: "s3://b/x: slow down"}
				}
				return b, nil
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := s.Fetch(ctx, "m", of("s3://b/x"))
		wantReason(t, err, fetch.Busy)
		s.Wait()
		content := map[string][]byte{"a": noise(2, 4000)}
		m.put("s3://b/x", &source{content: content})
		wantTree(t, get(t, s, "m", "s3://b/x").Path, text(content))
		if s.Wait(); s.Used() != 4000 {
			t.Errorf("%d bytes count", s.Used())
		}
		wantEmpty(t, s, m)
	})
}

func TestFetchTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		s := open(t, t.TempDir(), m, nil)
		content := map[string][]byte{"a": noise(1, 100)}
		lists, bodies := 0, 0
		m.put("s3://b/x", &source{
			content: content,
			list: func(context.Context) error {
				if lists++; lists <= 3 {
					return &fetch.Error{Reason: fetch.Busy, Message: "s3://b/x: 503", RetryAfter: 30}
				}
				return nil
			},
			body: func(_ context.Context, _ fetch.Object, _ int64, b io.ReadCloser) (io.ReadCloser, error) {
				if bodies++; bodies <= 8 {
					return nil, &fetch.Error{Reason: fetch.Busy, Message: "s3://b/x: 429"}
				}
				return b, nil
			},
		})
		began := time.Now()
		wantTree(t, get(t, s, "m", "s3://b/x").Path, text(content))
		// Eight pauses: half to all of 0.25, 0.5, 1, 2, 4, 8, 10 and 10 seconds.
		if took := time.Since(began); took < 90*time.Second+17*time.Second || took > 90*time.Second+36*time.Second {
			t.Errorf("it took %v", took)
		}
		wantEmpty(t, s, m)
	})
}

// A server that is busy until the time is over fails the load with its own sentence. A caller that
// has more time still gets the files.
func TestFetchBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		s := open(t, t.TempDir(), m, nil)
		began := time.Now()
		m.put("s3://b/x", &source{content: map[string][]byte{"a": {1}}, list: func(context.Context) error {
			if time.Since(began) < 20*time.Minute {
				return &fetch.Error{Reason: fetch.Busy, Message: "s3://b/x: the server is busy (503)"}
			}
			return nil
		}})
		patient := make(chan error)
		go func() {
			_, err := s.Fetch(t.Context(), "patient", of("s3://b/x"))
			patient <- err
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		_, err := s.Fetch(ctx, "hasty", of("s3://b/x"))
		wantReason(t, err, fetch.Busy)
		if !strings.Contains(err.Error(), "503") {
			t.Errorf("the error is %q", err)
		}
		if err := <-patient; err != nil {
			t.Error(err)
		}
		wantEmpty(t, s, m)
	})
}

// A server that sends nothing for a minute is asked again.
func TestFetchStalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		s := open(t, t.TempDir(), m, nil)
		content := map[string][]byte{"a": noise(1, 900)}
		stall := true
		m.put("s3://b/x", &source{
			content: content,
			body: func(ctx context.Context, _ fetch.Object, _ int64, b io.ReadCloser) (io.ReadCloser, error) {
				if stall {
					stall = false
					return &stalling{&cut{b, 100}, ctx}, nil
				}
				return b, nil
			},
		})
		began := time.Now()
		wantTree(t, get(t, s, "m", "s3://b/x").Path, text(content))
		if took := time.Since(began); took < time.Minute || took > 62*time.Second {
			t.Errorf("it took %v", took)
		}
		if m.asked != 900+800 {
			t.Errorf("%d bytes were asked for", m.asked)
		}
		wantEmpty(t, s, m)
	})
}

// stalling is a body that waits at its end until its context ends.
type stalling struct {
	*cut
	ctx context.Context
}

func (s *stalling) Read(p []byte) (int, error) {
	n, err := s.cut.Read(p)
	if err != nil {
		<-s.ctx.Done()
		return 0, s.ctx.Err()
	}
	return n, nil
}

// A source that changes while it is fetched is fetched anew, without bytes of the old version.
func TestFetchChanges(t *testing.T) {
	m := newMemory()
	s := open(t, t.TempDir(), m, func(c *files.Config) { c.Concurrency = 1 })
	content := map[string][]byte{"a": noise(2, 5000)}
	old := m.put("s3://b/x", &source{content: map[string][]byte{"a": noise(1, 5000)}})
	old.body = func(_ context.Context, _ fetch.Object, offset int64, b io.ReadCloser) (io.ReadCloser, error) {
		if offset == 2000 {
			m.put("s3://b/x", &source{content: content})
		}
		return b, nil
	}
	wantTree(t, get(t, s, "m", "s3://b/x").Path, text(content))
	wantEmpty(t, s, m)

	// One that changes all the time fails.
	always := &source{content: content}
	always.body = func(context.Context, fetch.Object, int64, io.ReadCloser) (io.ReadCloser, error) {
		return nil, &fetch.Error{Reason: fetch.Changed, Message: "s3://b/y changed"}
	}
	m.put("s3://b/y", always)
	lists := m.lists
	_, err := s.Fetch(t.Context(), "m", of("s3://b/y"))
	wantReason(t, err, fetch.Changed)
	if m.lists-lists != 4 {
		t.Errorf("%d listings", m.lists-lists)
	}
	m.running = 0
	wantEmpty(t, s, m)
}

func TestFetchWrongDigest(t *testing.T) {
	m := newMemory()
	s := open(t, t.TempDir(), m, nil)
	m.put("s3://b/x", &source{
		content: map[string][]byte{"a": noise(1, 3000)}, digests: true,
		body: func(_ context.Context, _ fetch.Object, offset int64, b io.ReadCloser) (io.ReadCloser, error) {
			if offset == 2000 {
				return struct {
					io.Reader
					io.Closer
				}{bytes.NewReader(noise(9, 1000)), b}, nil
			}
			return b, nil
		},
	})
	_, err := s.Fetch(t.Context(), "m", of("s3://b/x"))
	wantReason(t, err, fetch.Corrupt)
	if s.Wait(); !s.Empty() {
		t.Error("something is left")
	}
}

// The log has a line every ten seconds, and metrics count by scheme.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := newMemory()
		s := open(t, t.TempDir(), m, func(c *files.Config) {
			c.Log, c.Concurrency = slog.New(slog.NewTextHandler(&log, nil)), 1
		})
		m.put("s3://b/x", &source{
			content: map[string][]byte{"a": noise(1, 4000)},
			body: func(_ context.Context, _ fetch.Object, _ int64, b io.ReadCloser) (io.ReadCloser, error) {
				time.Sleep(8 * time.Second)
				return b, nil
			},
		})
		get(t, s, "m", "s3://b/x")
		get(t, s, "n", "s3://b/x")
		s.Wait()
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 3 {
			t.Fatalf("the log is %q", lines)
		}
		for i, want := range []string{
			"uri=s3://b/x bytes=1000 total=4000 bytesPerSecond=100 remaining=30s", "bytes=2000", "bytes=3000",
		} {
			if !strings.Contains(lines[i], want) {
				t.Errorf("line %d is %q, want %q", i, lines[i], want)
			}
		}
		_, err := s.Fetch(t.Context(), "m", of("s3://b/missing"))
		wantReason(t, err, fetch.NotFound)
		want := map[string]float64{
			`headgate_agent_fetched_bytes_total{s3}`: 4000, `headgate_agent_fetch_seconds_total{s3}`: 32,
			`headgate_agent_fetch_failures_total{NotFound,s3}`: 1, `headgate_agent_cache_hits_total{s3}`: 1,
			`headgate_agent_disk_bytes{s3}`: 4000, `headgate_agent_disk_bytes{partial}`: 0,
			`headgate_agent_disk_limit_bytes{}`: 0, `headgate_agent_evictions_total{}`: 0,
		}
		got := measured(t, s)
		for name, value := range want {
			if v, ok := got[name]; !ok || v != value {
				t.Errorf("%s is %v, want %v", name, v, value)
			}
		}
		if len(got) != len(want) {
			t.Errorf("metrics are %v", got)
		}
		wantEmpty(t, s, m)
	})
}

// measured returns the metrics of a Store.
func measured(t *testing.T, s *files.Store) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(s)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]float64)
	for _, f := range families {
		for _, metric := range f.GetMetric() {
			all[f.GetName()+"{"+labels(metric)+"}"] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return all
}

// labels returns the values of the labels of a metric.
func labels(m *dto.Metric) string {
	var values []string
	for _, l := range m.GetLabel() {
		values = append(values, l.GetValue())
	}
	return strings.Join(values, ",")
}
