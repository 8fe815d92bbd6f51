package explain_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/headgate/explain"
	"github.com/headgate/headgate/internal/query"
	"github.com/headgate/headgate/test/golden"
)

// first and second are candidates of policy latency.
var (
	soon, late = .12, .35
	first      = admin.Candidate{
		Endpoint: "10.0.0.7:8000", State: "healthy", Reason: "least predicted cost", Seconds: &soon, Requests: 3, AdapterRequests: new(int64(1)),
		Adapters: new(int64(2)),
		Terms:    &admin.Terms{FrontendOverhead: .01, Queue: .02, Load: .04, Prefill: .05, Own: .06, Others: .011, Adapter: "host"},
	}
	second = admin.Candidate{Endpoint: "10.0.0.8:8000", State: "suspect", Reason: "least predicted cost", Seconds: &late, Requests: 1}
	shut   = admin.Candidate{
		Endpoint: "10.0.0.6:8000", State: "healthy", Reason: "least predicted cost", Seconds: &late, Requests: 8,
		NoRoom: "its batch has 8 of at most 8 requests",
	}
)

// answers are what a control with three extprocs answers.
func answers(_ context.Context, kind string, body []byte) (admin.Answers, error) {
	var result any
	switch kind {
	case admin.Decisions:
		var q admin.DecisionsQuery
		if err := json.Unmarshal(body, &q); err != nil || q.ID != "a b" {
			result = admin.DecisionsResult{Kept: 7}
			break
		}
		at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.Local)
		failed := &admin.Error{Status: 503, Code: "no_endpoint", Message: "No server is reachable."}
		result = admin.DecisionsResult{Kept: 7, More: true, Decisions: []admin.Decision{
			{
				Time: at, Request: q.ID, Waited: 2.5, WaitFor: "no endpoint had a copy", Again: true, Band: 100,
				Plan: admin.Plan{
					Route: "default/a01", Pool: "default/llama", Model: "sql", VModel: "sql", Target: "sql-v2", Policy: "latency",
					PromptTokens: 100, OutputTokens: 50, Picks: []admin.Candidate{first, second},
				},
				Outcome: &admin.Outcome{
					Status: 200, Endpoint: "10.0.0.8:8000", Attempts: 2, FirstByte: .4, Duration: 12.34, PromptTokens: 90, CompletionTokens: 40,
					Tried: []admin.Tried{{Endpoint: "10.0.0.7:8000", Did: "accepted no connection"}},
				},
			},
			{
				Time: at, Request: q.ID, Plan: admin.Plan{Model: "x", Error: failed},
				Outcome: &admin.Outcome{Status: 503, Failed: "gateway", Error: failed},
			},
			{
				Time: at, Request: q.ID, Plan: admin.Plan{
					Pool: "default/llama", Model: "base", Target: "base", Policy: "latency", Fallback: "llama", Instead: "proposal decides",
					Picks:    []admin.Candidate{second},
					RunnerUp: &first,
				},
				Outcome: &admin.Outcome{Status: 502, Failed: "engine", Why: "reset", Endpoint: "10.0.0.8:8000", Attempts: 1},
			},
			{Time: at, Request: q.ID, Plan: admin.Plan{Pool: "default/llama", Model: "base", Policy: "proposal", Picks: []admin.Candidate{second}}},
		}}
	case admin.Explain:
		var q admin.ExplainQuery
		if err := json.Unmarshal(body, &q); err != nil {
			return admin.Answers{}, err
		}
		r := admin.ExplainResult{
			Plan: admin.Plan{Pool: "default/llama", Model: string(q.Body), Policy: "latency", Picks: []admin.Candidate{first}},
			Candidates: []admin.Candidate{first, second, shut, {
				Endpoint: "10.0.0.9:8000", State: "out", Excluded: "it has not answered a scrape yet",
			}},
		}
		switch q.Path {
		case "/waits":
			r.Picks, r.Waits = nil, "control loads one"
		case "/room":
			r.Picks, r.Waits = nil, "no engine could start the request at once"
			shut := shut
			shut.Excluded, shut.Reason, shut.Seconds = shut.NoRoom, "", nil
			r.Candidates = []admin.Candidate{shut}
		case "/refused":
			r = admin.ExplainResult{Plan: admin.Plan{Model: "x", Error: &admin.Error{Status: 404, Code: "model_not_found", Message: "None."}}}
		case "/answered":
			r = admin.ExplainResult{Answer: true}
		case "/relayed":
			r.Picks, r.Relay, r.Candidates = nil, true, nil
		}
		result = r
	}
	text, err := json.Marshal(result)
	return admin.Answers{Extprocs: []admin.Answer{
		{Extproc: "envoy-1/7", Version: "v0.1.0", Result: text},
		{Extproc: "envoy-2/7", Error: "this version of extproc cannot answer \"" + kind + "\": upgrade it"},
	}}, err
}

// serve returns the flags for a control that answers.
func serve(t *testing.T, ask query.Ask) []string {
	t.Helper()
	mux := http.NewServeMux()
	query.Mount(mux, "control", ask)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return []string{"--control-url", server.URL, "--extproc-url="}
}

// prints returns what the command prints.
func prints(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := explain.Command(t.Context(), args, &out)
	return out.String(), err
}

func TestOutput(t *testing.T) {
	at := serve(t, answers)
	request := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(request, []byte(`llama`), 0o600); err != nil {
		t.Fatal(err)
	}
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			args := append([]string{}, at...)
			for word := range strings.FieldsSeq(input) {
				args = append(args, strings.NewReplacer("REQUEST", request, "_", " ").Replace(word))
			}
			got, err := prints(t, args...)
			if err != nil {
				t.Error(err)
			}
			text, err := prints(t, append(args, "-o", "json")...)
			if err != nil || !json.Valid([]byte(text)) {
				t.Errorf("%s: %s is no JSON (%v)", input, text, err)
			}
			return strings.ReplaceAll(strings.TrimRight(got, "\n"), "\n\n", "\n.\n") + "\n"
		}
	})
}

// What a client wrote cannot control the terminal.
func TestOutputHasNoControlCharacters(t *testing.T) {
	const evil = "a\x1b]0;x\a\nb\x9b2J\u202ec"
	bad := &admin.Error{Status: 404, Code: evil, Message: evil}
	at := serve(t, func(_ context.Context, kind string, _ []byte) (admin.Answers, error) {
		c := admin.Candidate{Endpoint: evil, State: evil, Reason: evil, Excluded: evil}
		p := admin.Plan{Model: evil, Target: evil + "!", Route: evil, Pool: evil, Policy: evil, Picks: []admin.Candidate{c}}
		var result any = admin.ExplainResult{Plan: p, Waits: evil, Candidates: []admin.Candidate{c}}
		if kind == admin.Decisions {
			result = admin.DecisionsResult{Decisions: []admin.Decision{{
				Request: evil, Plan: p, Waited: 1, WaitFor: evil, Reason: evil,
				Outcome: &admin.Outcome{Error: bad, Endpoint: evil, Failed: evil, Why: evil, Call: evil},
			}, {Request: evil, Plan: admin.Plan{Model: evil, VModel: evil, Target: evil, Error: bad}}}}
		}
		text, err := json.Marshal(result)
		return admin.Answers{Extprocs: []admin.Answer{{Extproc: "x/1", Result: text}, {Extproc: "x/2", Error: evil}}}, err
	})
	for _, args := range [][]string{{"x"}, {"--request", "testdata/access.log"}} {
		got, err := prints(t, append(args, at...)...)
		if err != nil || len(got) < 200 {
			t.Errorf("%v: %q", err, got)
		}
		if i := strings.IndexFunc(got, func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) }); i >= 0 {
			t.Errorf("%q prints %q", args, got[max(i-20, 0):min(i+20, len(got))])
		}
		if strings.Contains(got, "\nb") {
			t.Errorf("%q: a text continues on another line:\n%s", args, got)
		}
	}
}

// A log may have lines of other programs, which may be long.
func TestOtherLinesOfALog(t *testing.T) {
	log, err := os.ReadFile("testdata/access.log")
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", 1<<20)
	lines := strings.Split(string(log), "\n")
	// The end of a long line is no record, although it looks like one.
	end := lines[slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, `"a b"`) })]
	if err := os.WriteFile(name, []byte(long+"\n"+long+long[:8192]+end+"\n"+string(log)+"\n{"+long+long+"}\nx"), 0o600); err != nil {
		t.Fatal(err)
	}
	want, err := prints(t, "--log", "testdata/access.log", "a b")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := prints(t, "--log", name, "a b"); err != nil || got != want {
		t.Errorf("%v: %s, want %s", err, got, want)
	}
}

// If extproc answers although control runs, the output says so.
func TestExtprocApartFromControl(t *testing.T) {
	alone := serve(t, func(context.Context, string, []byte) (admin.Answers, error) { return admin.Answers{}, nil })
	at := []string{alone[0], alone[1], "--extproc-url", serve(t, answers)[1]}
	want := "no extproc is connected to the control at " + alone[1] + ": the log of extproc names the error; check its flags " +
		"--control, --control-token-file and --control-ca-file. The extproc at " + at[3] + " answered instead"
	if got, err := prints(t, append(at, "a b")...); err != nil || !strings.HasSuffix(got, "\n"+want+".\n") {
		t.Errorf("%v: %s, want %s", err, got, want)
	}
	var is struct{ Note string }
	got, err := prints(t, append(at, "-o", "json", "a b")...)
	if err != nil || json.Unmarshal([]byte(got), &is) != nil || is.Note != want {
		t.Errorf("%v: %s", err, got)
	}
}

// Each failure is one line that says what to do.
func TestFailures(t *testing.T) {
	at := serve(t, answers)
	follower := serve(t, func(context.Context, string, []byte) (admin.Answers, error) {
		return admin.Answers{}, errors.New("another control leads: ask that one")
	})
	alone := serve(t, func(context.Context, string, []byte) (admin.Answers, error) { return admin.Answers{}, nil })
	silent := serve(t, func(context.Context, string, []byte) (admin.Answers, error) {
		return admin.Answers{Extprocs: []admin.Answer{{Extproc: "a/1", Error: "it has not answered within 5s"}}}, nil
	})
	beside := []string{alone[0], alone[1], "--extproc-url", at[1], "unknown"}
	for want, args := range map[string][]string{
		"no extproc answered (a/1: it has not answered within 5s)":     append(silent, "x"),
		"answered instead. It has no decision for request \"unknown\"": beside,
		"headgate explain --log FILE ID":                               append(at, "unknown"),
		"the 7 decisions in memory are of other requests":              append(at, "other"),
		"It may still wait, or be older":                               append(at, "waiting"),
		"another control leads: ask that one":                          append(follower, "x"),
		"no extproc is connected to the control":                       append(alone, "x"),
		"neither control nor extproc listens":                          {"--control-url", "http://127.0.0.1:1", "--extproc-url", "http://127.0.0.1:2", "x"},
		"name a request: its id":                                       {},
		"neither an id nor --log":                                      {"--request", "x", "y"},
		"want NAME: VALUE":                                             {"--request", "x", "-H", "y"},
		"want text or json":                                            {"-o", "xml", "x"},
		"no such file":                                                 append(at, "--request", "testdata/none"),
		"testdata/access.log has 6 requests, and none":                 {"--log", "testdata/access.log", "x"},
		"want Envoy's access log":                                      {"--log", "testdata/output.txt", "x"},
		"--log: open testdata/none: no such file":                      {"--log", "testdata/none", "x"},
		"want http://HOST:PORT":                                        {"--control-url", "localhost:9091", "x"},
		"unexpected argument \"y\"":                                    {"x", "y"},
	} {
		got, err := prints(t, args...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || got != "" {
			t.Errorf("%q: %v, want %q; printed %s", args, err, want, got)
		}
	}
}
