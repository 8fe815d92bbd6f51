package drain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/api/admin"
)

// control answers each query with the next result; the last one is repeated.
type control struct {
	mu      sync.Mutex // guards the fields below
	results []admin.DrainResult
	queries []admin.DrainQuery
	asked   chan struct{} // receives a value for each query; nil: nobody waits
	fails   int           // number of the next queries that fail, after the first one
}

func (c *control) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q admin.DrainQuery
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.URL.Path != "/drain" {
		http.NotFound(w, r)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queries = append(c.queries, q)
	if q.Endpoint == "unknown:1" {
		http.Error(w, "there is no endpoint unknown:1; there is e:1", http.StatusNotFound)
		return
	}
	if c.fails > 0 && len(c.queries) > 1 {
		c.fails--
		http.Error(w, "no leader", http.StatusServiceUnavailable)
		return
	}
	_ = json.NewEncoder(w).Encode(c.results[0])
	if len(c.results) > 1 {
		c.results = c.results[1:]
	}
	if c.asked != nil {
		c.asked <- struct{}{}
	}
}

// verbs returns the queries as words.
func (c *control) verbs() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for _, q := range c.queries {
		switch {
		case q.Undo:
			all = append(all, "undo")
		case q.Progress:
			all = append(all, "progress")
		default:
			all = append(all, fmt.Sprintf("drain within %.0f s", q.Seconds))
		}
	}
	return strings.Join(all, ", ")
}

func quickly(t *testing.T) {
	t.Helper()
	was := pollInterval
	pollInterval = time.Millisecond
	t.Cleanup(func() { pollInterval = was })
}

// run runs the command against a control, and returns what it printed and its error.
func run(t *testing.T, ctx context.Context, c *control, args ...string) (string, error) {
	t.Helper()
	s := httptest.NewServer(c)
	defer s.Close()
	var out bytes.Buffer
	err := Command(ctx, append(args, "--control-url", s.URL), &out)
	return out.String(), err
}

func TestReturnsWhenModelsAndRequestsAreGone(t *testing.T) {
	quickly(t)
	c := &control{results: []admin.DrainResult{
		{Drained: true, Moving: 2},
		{Drained: true, Moved: 1, Moving: 1},
		{Drained: true, Done: true, Moved: 2, Idle: 1, Behind: 1},
		{Drained: true, Done: true, Moved: 2, Idle: 1, InFlight: 3},
		{Drained: true, Done: true, Moved: 2, Idle: 1, Silent: []string{"a"}},
		{Drained: true, Done: true, Moved: 2, Idle: 1},
	}}
	out, err := run(t, t.Context(), c, "e:1", "--timeout", "1m")
	want := `0 models moved, 2 being loaded elsewhere
1 model moved, 1 being loaded elsewhere
2 models moved, 1 extproc has not confirmed yet
2 models moved, 3 requests in flight
2 models moved, 0 requests in flight, not known from extproc a (an older version, or too busy to answer)
2 models moved, 0 requests in flight
1 model not used for an hour: control loads it when a request names it
e:1 is drained: stop its engine, or put it back with headgate drain --undo e:1
`
	if err != nil || out != want {
		t.Errorf("%v\n%s", err, out)
	}
	if got := c.verbs(); got != "drain within 60 s, progress, progress, progress, progress, progress" {
		t.Errorf("it asked: %s", got)
	}
}

// Models that have a copy elsewhere are fine, even if there were more. A model without one is not.
func TestModelsWithoutACopyElsewhereAreAnError(t *testing.T) {
	quickly(t)
	done := admin.DrainResult{Drained: true, Done: true, Unmoved: []string{"a has 1 of 2 copies elsewhere, for no room"}}
	if out, err := run(t, t.Context(), &control{results: []admin.DrainResult{done}}, "e:1"); err != nil ||
		!strings.Contains(out, "not moved: a has 1 of 2") {
		t.Errorf("%v\n%s", err, out)
	}
	done.Lost = 1
	if _, err := run(t, t.Context(), &control{results: []admin.DrainResult{done}}, "e:1"); err == nil ||
		!strings.Contains(err.Error(), "1 model has no copy elsewhere") {
		t.Errorf("%v", err)
	}
}

// If the next control knows nothing of the drain, it begins again. If the same control no longer
// drains, an --undo elsewhere has put the endpoint back.
func TestDrainGoesOnWithTheNextControl(t *testing.T) {
	quickly(t)
	c := &control{results: []admin.DrainResult{
		{Drained: true, Moving: 1, Control: "1"},
		{Control: "2"},
		{Drained: true, Moving: 1, Control: "2"},
		{Drained: true, Done: true, Moved: 1, Control: "2"},
	}}
	if out, err := run(t, t.Context(), c, "e:1"); err != nil || c.verbs() != "drain within 300 s, progress, drain within 300 s, progress" {
		t.Errorf("%v, %s\n%s", err, c.verbs(), out)
	}
	c = &control{results: []admin.DrainResult{{Drained: true, Moving: 1, Control: "1"}, {Control: "1"}}}
	if _, err := run(t, t.Context(), c, "e:1"); err == nil || !strings.Contains(err.Error(), "another headgate drain --undo has put e:1 back") {
		t.Errorf("%v", err)
	}
}

// Control may be unreachable for a limited time. Each answer starts that time anew.
func TestAbsenceIsSinceTheLastAnswer(t *testing.T) {
	quickly(t)
	was := absence
	absence = 500 * time.Millisecond
	t.Cleanup(func() { absence = was })
	c := &control{results: []admin.DrainResult{{Drained: true, Moving: 1}}, asked: make(chan struct{}, 10000)}
	go func() {
		for end := time.Now().Add(3 * absence / 2); time.Now().Before(end); {
			<-c.asked
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.fails, c.results = 3, []admin.DrainResult{{Drained: true, Done: true, Moved: 1}}
	}()
	if out, err := run(t, t.Context(), c, "e:1"); err != nil || !strings.Contains(out, "control does not answer") {
		t.Errorf("%v\n%s", err, out)
	}
}

// If control does not answer for a while, drain prints one line about it.
func TestAbsenceOfControlIsOneLine(t *testing.T) {
	quickly(t)
	c := &control{fails: 5, results: []admin.DrainResult{{Drained: true, Moving: 1}, {Drained: true, Done: true, Moved: 1}}}
	out, err := run(t, t.Context(), c, "e:1")
	if err != nil || strings.Count(out, "being loaded elsewhere") != 1 || strings.Count(out, "control does not answer") != 1 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestInterruptPutsTheEndpointBack(t *testing.T) {
	quickly(t)
	ctx, cancel := context.WithCancel(t.Context())
	c := &control{results: []admin.DrainResult{{Drained: true, Moving: 1}}, asked: make(chan struct{}, 1000)}
	go func() {
		<-c.asked
		cancel()
	}()
	out, err := run(t, ctx, c, "e:1")
	if err == nil || err.Error() != "interrupted" || !strings.HasSuffix(out, "e:1 is back in use\n") || !strings.HasSuffix(c.verbs(), "undo") {
		t.Errorf("%v, %s\n%s", err, c.verbs(), out)
	}
}

// Each error is one line that says what to do.
func TestErrors(t *testing.T) {
	closed := httptest.NewServer(nil)
	closed.Close()
	older := httptest.NewServer(http.NotFoundHandler())
	defer older.Close()
	known := httptest.NewServer(&control{results: []admin.DrainResult{{}}})
	defer known.Close()
	for _, c := range []struct{ args, want string }{
		{"--control-url " + closed.URL + " e:1", "no process listens at " + closed.URL},
		{"--control-url " + older.URL + " e:1", "has no /drain: it is an older version, which must be upgraded, or another program"},
		{"--control-url " + known.URL + " unknown:1", "there is no endpoint unknown:1; there is e:1"},
		{"--control-url " + known.URL + " --undo unknown:1", "there is no endpoint unknown:1; there is e:1"},
		{"", "want one ENDPOINT"},
		{"a:1 b:1", `unexpected argument "b:1"`},
		{"--timeout 0s a:1", "--timeout 0s: want a positive duration"},
		{"--control-url a:1 a:1", "want http://HOST:PORT"},
	} {
		var out bytes.Buffer
		if err := Command(t.Context(), strings.Fields(c.args), &out); err == nil || !strings.Contains(err.Error(), c.want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", c.args, err)
		}
	}
}
