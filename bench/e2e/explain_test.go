package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/headgate/explain"
)

// explained runs headgate explain, and returns what it prints.
func (s *stack) explained(args ...string) (string, error) {
	s.t.Helper()
	var out strings.Builder
	err := explain.Command(s.t.Context(), args, &out)
	return out.String(), err
}

// decisions asks for the decisions about a request, and waits until the last one has an outcome.
func (s *stack) decisions(id string, at ...string) (all []admin.Decision) {
	s.t.Helper()
	var last string
	defer func() {
		if all == nil || all[0].Outcome == nil {
			s.t.Logf("the last answer was %s", last)
		}
	}()
	s.await("the outcome of "+id+" is recorded", func() bool {
		text, err := s.explained(append(at, "-o", "json", id)...)
		last = fmt.Sprint(text, err)
		var answers admin.Answers
		var r admin.DecisionsResult
		if err != nil || json.Unmarshal([]byte(text), &answers) != nil || len(answers.Extprocs) != 1 ||
			json.Unmarshal(answers.Extprocs[0].Result, &r) != nil {
			return false
		}
		all = r.Decisions
		return len(all) > 0 && all[0].Outcome != nil
	})
	return all
}

// A request is explained by its id, through control and by extproc alone: one that waited for a
// load, one that failed over, and one that was rejected. A dry run loads nothing.
func TestExplain(t *testing.T) {
	runs(t)
	s := start(t, placed(t, 2, numbered(3)...), pods(t, 2), extprocFlags( // no scrape finds out that an engine is gone
		"--scrape-interval", "1m", "--models-scrape-interval", "1m", "--stale-after", "2m"))
	control := []string{"--control-url", "http://" + s.ControlMetrics, "--extproc-url="}
	extproc := []string{"--control-url=", "--extproc-url", "http://" + s.Metrics}
	named := func(id string, r request) request {
		r.header = map[string]string{"X-Request-Id": id}
		return r
	}

	file := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(file, []byte(completion("b00", 1, false).body), 0o600); err != nil {
		t.Fatal(err)
	}
	dry, err := s.explained(append(control, "--request", file, "--path", "/v1/completions")...)
	if err != nil || !strings.Contains(dry, "control loads one") || strings.Count(dry, "no: it does not list the model") != 2 {
		t.Errorf("before the load a dry run prints %s (%v)", dry, err)
	}
	if n := count(s.events(), "load"); n != 0 {
		t.Errorf("the dry run made %d loads", n)
	}

	if a := s.must(named("waited", completion("b00", 3, true))); a.status != http.StatusOK {
		t.Fatalf("the request gets %d: %s", a.status, a.body)
	}
	for _, at := range [][]string{control, extproc} {
		d := s.decisions("waited", at...)
		if len(d) != 1 || d[0].Waited <= 0 || !strings.Contains(d[0].WaitFor, "no endpoint had a copy") || d[0].Model != "b00" ||
			d[0].Outcome.Status != http.StatusOK || d[0].Outcome.Failed != "" || d[0].Outcome.FirstByte <= 0 {
			t.Errorf("the request that waited: %+v, outcome %+v", d, d[0].Outcome)
		}
	}
	text, err := s.explained(append(extproc, "waited")...)
	if err != nil || !strings.Contains(text, "Waited") || !strings.Contains(text, "status 200") {
		t.Errorf("it is explained by %s (%v)", text, err)
	}
	t.Log(text)
	dry, err = s.explained(append(extproc, "--request", file, "--path", "/v1/completions")...)
	if err != nil || !strings.Contains(dry, "Picks") || strings.Count(dry, "no: it has no copy of the model") != 1 {
		t.Errorf("after the load a dry run prints %s (%v)", dry, err)
	}
	t.Log(dry)

	s.must(named("rejected", completion("unheard-of", 1, false)))
	if d := s.decisions("rejected", control...); d[0].Error == nil || d[0].Error.Code != "model_not_found" || d[0].Outcome.Failed != "client" {
		t.Errorf("the rejected request: %+v", d)
	}

	s.Engines[s.Simulated()[0]].Kill()
	for n := 0; ; n++ {
		id := fmt.Sprint("over-", n)
		if a := s.must(named(id, completion(baseRoute, 1, false))); a.status != http.StatusOK {
			t.Fatalf("%s gets %d: %s", id, a.status, a.body)
		}
		d := s.decisions(id, extproc...)
		if o := d[0].Outcome; o.Attempts == 2 {
			if len(o.Tried) != 1 || o.Tried[0].Endpoint != s.Simulated()[0] || o.Endpoint != s.Simulated()[1] || len(d[0].Picks) != 2 ||
				d[0].Picks[0].Endpoint != s.Simulated()[0] {
				t.Errorf("the request that failed over: %+v, outcome %+v", d, o)
			}
			text, err = s.explained(append(control, id)...)
			if err != nil || !strings.Contains(text, "accepted no connection") {
				t.Errorf("it is explained by %s (%v)", text, err)
			}
			t.Log(text)
			break
		}
		if n == 40 {
			t.Fatal("no request failed over")
		}
	}
	s.await("the access log explains it", func() bool { // Envoy writes its log now and then
		text, err := s.explained("--log", s.Envoy.Log, "waited")
		return err == nil && strings.Contains(text, "Waited")
	})
	if _, err := s.explained(append(control, "unknown")...); err == nil || !strings.Contains(err.Error(), "has no decision for request") {
		t.Errorf("an unknown request: %v", err)
	}
}
