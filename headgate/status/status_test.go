package status_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/headgate/status"
	"github.com/headgate/headgate/test/golden"
)

// The input of a block is FILE and a command line. Control answers with testdata/FILE.json, its
// extprocs with FILE.endpoints.json, and the conditions of objects are in FILE.conditions.json. A
// missing file is missing in the answer, too. The output is what the command prints, with a dot for
// each empty line, or its error.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			words := strings.Fields(input)
			s := httptest.NewServer(answers(t, words[0]))
			defer s.Close()
			out := run(t, append(words[2:], "--control-url", s.URL, "--extproc-url", "")...)
			return strings.ReplaceAll(strings.ReplaceAll(out, "\n\n", "\n.\n"), s.URL, "URL")
		}
	})
}

// answers is a control that answers with the content of files.
func answers(t *testing.T, file string) http.Handler {
	t.Helper()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page, err := os.ReadFile("testdata/" + file + map[string]string{
			"/placement": "", "/endpoints": ".endpoints", "/conditions": ".conditions",
		}[r.URL.Path] + ".json")
		if err != nil {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(page)
	})
}

// run runs a command line, and returns its output or its error.
func run(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := status.Command(t.Context(), args, &out); err != nil {
		return out.String() + "error: " + err.Error() + "\n"
	}
	return out.String()
}

// Whoever does not answer, the error is one line that says what to do.
func TestServersThatDoNotAnswer(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	is := func(code int, words string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(words))
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	closed := httptest.NewServer(nil)
	closed.Close()
	for url, want := range map[string]string{
		closed.URL: "no process listens at " + closed.URL,
		s.URL:      s.URL + " has no /endpoints: it is an older version, which must be upgraded, or another program",
		is(http.StatusServiceUnavailable,
			"the leader is in the pod c-1: ask that one\n"): ": the leader is in the pod c-1: ask that one",
		is(http.StatusForbidden,
			"control serves /endpoints on loopback alone\n"): " answers 403: control serves /endpoints on loopback alone",
		is(http.StatusOK, "<html>"): " is another version of Headgate, or another program",
		"127.0.0.1:9091":            `--control-url "127.0.0.1:9091": want http://HOST:PORT`,
		"ftp://x":                   `want http://HOST:PORT`,
	} {
		got := run(t, "--control-url", url, "--extproc-url", "")
		if !strings.HasPrefix(got, "error: ") || !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
			t.Errorf("%s: %s", url, got)
		}
	}
	if got := run(t, "-o", "xml"); got != "error: -o \"xml\": want table or json; see headgate status --help\n" {
		t.Error(got)
	}
	var help bytes.Buffer
	if err := status.Command(t.Context(), []string{"--help"}, &help); !errors.Is(err, pflag.ErrHelp) ||
		!strings.Contains(help.String(), "Examples:") || !strings.Contains(help.String(), "--pool") {
		t.Errorf("--help: %v\n%s", err, help.String())
	}
}

// In a large fleet, endpoints that are not ready are printed first. Of the endpoints that do not
// fit, only the number is printed.
func TestLargeFleetIsReadable(t *testing.T) {
	const endpoints, models = 1000, 20000
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	v := decide.View{At: at, Pools: []decide.PoolView{{Name: "default/p", Free: 0.5}}}
	for i := range endpoints {
		e := decide.EndpointView{
			Address: fmt.Sprintf("10.0.%d.%d:8000", i/250, i%250), Pools: []string{"default/p"}, State: decide.Ready,
			Slots: 40,
		}
		if i == 999 {
			e.State = decide.Down
		}
		for j := range models / endpoints {
			e.Copies = append(e.Copies, decide.CopyView{
				Pool: "default/p", ID: fmt.Sprintf("m%05d", i*models/endpoints+j),
				State: decide.Loaded,
				Since: at,
			})
		}
		e.Models = len(e.Copies)
		v.Endpoints = append(v.Endpoints, e)
	}
	for i := range models {
		v.Models = append(v.Models, decide.ModelView{Pool: "default/p", ID: fmt.Sprintf("m%05d", i), Known: true, Least: 2})
		v.VModels = append(v.VModels, decide.VModelView{
			Pool: "default/p", ID: fmt.Sprintf("v%05d", i),
			Reason:  v1alpha1.ReasonTransitioning,
			Message: "requests go elsewhere",
		})
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }))
	defer s.Close()
	began := time.Now()
	text := run(t, "--control-url", s.URL, "--extproc-url", "")
	t.Logf("%v, %d bytes", time.Since(began), len(text))
	lines := strings.Split(text, "\n")
	if n := len(lines); n > 280 || !strings.HasPrefix(lines[4], "10.0.3.249:8000") {
		t.Errorf("%d lines:\n%s", n, text[:min(len(text), 3000)])
	}
	for _, want := range []string{
		"default/p  999 of 1000      20000 of 20000  20000          50 %  all          0\n", "and 950 more endpoints; --all shows them\n",
		"and 19950 more models; --all shows them\n", "and 19950 more VModels; --all shows them\n", "m00003, ", ", and 8 more\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q", want)
		}
	}
	if all := run(t, "--control-url", s.URL, "--extproc-url", "", "--all"); strings.Contains(all, " more") ||
		strings.Count(all, "\n") < endpoints+2*models {
		t.Errorf("--all prints %d lines", strings.Count(all, "\n"))
	}
}
