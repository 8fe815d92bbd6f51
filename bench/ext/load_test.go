package ext

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/pace"
)

// Bodies are JSON of exactly the size, name the models in turn, and repeat prompts only if they
// should.
func TestPrompts(t *testing.T) {
	type body struct {
		Model    string
		Messages []struct{ Role, Content string }
	}
	seen := make(map[string]bool) // first words of new prompts, of both runs
	for run := range 2 {
		for _, c := range []struct{ models, distinct, size, different int }{
			{1, 0, 90, 20}, {3, 0, 1000, 20}, {1, 5, 1000, 5}, {2, 1, 200_000, 1},
		} {
			p, err := newPrompts("m", c.models, c.distinct, c.size, rand.New(rand.NewPCG(uint64(run), uint64(c.size))))
			if err != nil {
				t.Fatal(err)
			}
			contents := make(map[string]bool)
			for i := range uint64(20) {
				b := p.body(i)
				var is body
				if err := json.Unmarshal(b, &is); err != nil || len(b) != c.size || is.Model != p.name(i) || len(is.Messages) != 1 {
					t.Fatalf("%+v: %d bytes, %+v, %v", c, len(b), is, err)
				}
				content := is.Messages[0].Content
				contents[content] = true
				if first, _, _ := strings.Cut(content, " "); c.distinct == 0 {
					if seen[first] {
						t.Errorf("%+v: the prompt %s is not new", c, first)
					}
					seen[first] = true
				}
			}
			if len(contents) != c.different {
				t.Errorf("%+v: %d different prompts", c, len(contents))
			}
		}
	}
	p, err := newPrompts("m", 20, 0, 200, rand.New(rand.NewPCG(1, 2)))
	if err != nil || p.name(0) != "m-0" || p.name(39) != "m-19" {
		t.Errorf("models are %s and %s, %v", p.name(0), p.name(39), err)
	}
	if _, err := newPrompts("m", 20, 0, 10, rand.New(rand.NewPCG(1, 2))); err == nil {
		t.Error("a body without room for its model is accepted")
	}
}

// At a fixed rate, requests behind a slow one count the time that they waited for it.
func TestLatencyCountsFromWhenARequestWasDue(t *testing.T) {
	slow := true
	all, _, err := send(t.Context(), pace.Load{Rate: 1000, Requests: 20}, 1, func(context.Context) (answer, time.Time, error) {
		if slow {
			<-time.After(50 * time.Millisecond)
			slow = false
		}
		return answer{to: "x"}, time.Now(), nil
	})
	if err != nil || len(all.took) != 20 || all.took[0] < 30*time.Millisecond { // the last one was due after 19 ms, and began after 50 ms
		t.Errorf("%d requests, the lowest latency is %v, %v", len(all.took), pace.Quantile(all.took, 0), err)
	}
}

// A closed loop sends exactly as many requests as it should, and at most so many at a time. Answers
// are counted by what they are.
func TestClosedLoop(t *testing.T) {
	var open, most, n atomic.Int64
	fault := errors.New("fault")
	all, took, err := send(t.Context(), pace.Load{Requests: 1000}, 5, func(context.Context) (answer, time.Time, error) {
		now := open.Add(1)
		for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
		}
		defer open.Add(-1)
		switch n.Add(1) % 10 {
		case 0:
			return answer{}, time.Now(), fault
		case 1:
			return answer{status: 429}, time.Now(), nil
		case 2:
			return answer{}, time.Now(), nil
		}
		return answer{to: "x"}, time.Now(), nil
	})
	if err != nil || n.Load() != 1000 || most.Load() > 5 {
		t.Errorf("%d requests, %d at a time, %v", n.Load(), most.Load(), err)
	}
	if len(all.took) != 800 || all.unnamed != 100 || all.failed != 100 || !errors.Is(all.failure, fault) || all.answered() != 900 ||
		!reflect.DeepEqual(all.rejected, map[int]int{429: 100}) {
		t.Errorf("%d may pass, %d without a destination, %v rejected, %d failed: %v", len(all.took), all.unnamed, all.rejected, all.failed,
			all.failure)
	}
	var r Result
	if r.set(all, took, 9*time.Millisecond); r.Requests != 900 || r.passed() != 800 || r.CPU != 10 || r.err() == nil {
		t.Errorf("%+v, %v", r, r.err())
	}
}

// When its context ends, a load ends, and the requests that were cut short do not count as failed.
func TestLoadEndsWithItsContext(t *testing.T) {
	for name, l := range map[string]pace.Load{"closed": {}, "rate": {Rate: 1000}} {
		ctx, stop := context.WithCancel(t.Context())
		all, _, err := send(ctx, l, 3, func(ctx context.Context) (answer, time.Time, error) {
			stop()
			<-ctx.Done()
			return answer{}, time.Now(), ctx.Err()
		})
		if err != nil || all.failed > 0 || all.answered() > 0 {
			t.Errorf("%s: %+v, %v", name, all, err)
		}
	}
}

func TestResult(t *testing.T) {
	r := Result{
		Mode: buffered, Body: 1000, Concurrency: 16, Requests: 100, Seconds: 2, PerSecond: 50, P50: 10, P99: 20, Max: 30,
		CPU: 5, Cores: 0.25, Unnamed: 3, Rejected: map[int]int{503: 2, 429: 5},
	}
	var out bytes.Buffer
	r.print(&out)
	const want = `load      buffered, 1000 bytes, 16 at a time
requests  100 in 2.0 s: 50.0/s
latency   p50 10 µs, p99 20 µs, highest 30 µs
CPU       5.0 µs per request, 0.250 cores
answers   90 with a destination, 3 without
rejected  5 with status 429, 2 with status 503
`
	if out.String() != want {
		t.Errorf("it prints\n%s\nwant\n%s", out.String(), want)
	}
	for _, c := range []struct {
		r    Result
		want string
	}{
		{r, ""},
		{Result{Requests: 5, Failed: 1, Failure: "x"}, "1 of 6 requests failed, one of them: x"},
		{Result{}, "no request was sent"},
		{Result{Requests: 2, Rejected: map[int]int{404: 2}}, "rejected every request: 2 with status 404"},
	} {
		if err := c.r.err(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.r, err, c.want)
		}
	}
}
