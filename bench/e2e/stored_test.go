package e2e

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/headgate/headgate/headgate/rig"
)

// storing makes each engine store its own responses.
var storing = engineFlags("--store-responses")

// atRandom makes extproc pick engines at random. It then finds a response only if it remembers the
// engine or asks all engines.
var atRandom = extprocFlags("--policy", "random")

// respond creates a response, which may continue a previous one, and returns its id.
func (s *stack) respond(stream bool, previous string) (id string, a answer) {
	s.t.Helper()
	return s.respondOf("llama", stream, previous)
}

func (s *stack) respondOf(model string, stream bool, previous string) (id string, a answer) {
	s.t.Helper()
	body := fmt.Sprintf(`{"model":%q,"input":"x","max_output_tokens":2,"stream":%t`, model, stream)
	if previous != "" {
		body += `,"previous_response_id":"` + previous + `"`
	}
	a = s.must(request{path: "/v1/responses", body: body + "}"})
	_, rest, _ := strings.Cut(a.body, `"id":"resp_`)
	id, _, _ = strings.Cut(rest, `"`)
	return "resp_" + id, a
}

// continued continues conversations and fetches earlier responses. It returns the number of 404s.
func (s *stack) continued(ids []string) (lost int) {
	s.t.Helper()
	is := func(what string, a answer) {
		switch {
		case a.status == http.StatusNotFound:
			lost++
			s.t.Logf("%s: %d %s", what, a.status, a.body)
		case a.status != http.StatusOK:
			s.t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}
	for n, id := range ids {
		if n%2 == 0 {
			is("the response", s.must(request{method: http.MethodGet, path: "/v1/responses/" + id}))
		}
		next, a := s.respond(n%3 == 0, id)
		is("a turn", a)
		is("what went in", s.must(request{method: http.MethodGet, path: "/v1/responses/" + id + "/input_items"}))
		is("a cancel", s.must(request{path: "/v1/responses/" + id + "/cancel", body: "{}"}))
		ids[n] = next
	}
	return lost
}

// Conversations continue at the engine where they began, with and without control, even if extproc
// is killed between their turns. Only the first request for each response is sent to more than one
// engine, and only if neither extproc nor control knows which engine has the response.
func TestStoredResponsesOutliveExtproc(t *testing.T) {
	runs(t)
	for name, settings := range map[string][]setting{
		"alone":        {storing, atRandom},
		"with control": {storing, atRandom, placed(t, 4, adapters...)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, settings...)
			var ids []string
			for n := range 12 {
				id, a := s.respond(n%2 == 0, "")
				if a.status != http.StatusOK {
					t.Fatalf("%d %s", a.status, a.body)
				}
				ids = append(ids, id)
			}
			for turn := range 3 {
				s.Extproc.Kill()
				if err := s.StartExtproc(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.await("the next extproc serves", func() bool {
					return s.must(completion(baseRoute, 1, false)).status == http.StatusOK
				})
				if lost := s.continued(ids); lost > 0 {
					t.Errorf("turn %d: %d times 404", turn, lost)
				}
			}
			// Each of two extprocs finds responses that were created through the other one.
			other := s.beside(t)
			other.await("the other extproc serves", func() bool {
				return other.must(completion(baseRoute, 1, false)).status == http.StatusOK
			})
			for turn, to := range []*stack{other, s, other} {
				if lost := to.continued(ids); lost > 0 {
					t.Errorf("turn %d of two extprocs: %d times 404", turn, lost)
				}
			}
			for _, id := range ids {
				if a := s.must(request{method: http.MethodDelete, path: "/v1/responses/" + id}); a.status != http.StatusOK {
					t.Errorf("a deletion: %d %s", a.status, a.body)
				}
			}
			s.inventedResponses()
		})
	}
}

// inventedResponses requests responses that do not exist, and checks that each engine is asked once
// for each id.
func (s *stack) inventedResponses() {
	s.t.Helper()
	for n := range len(s.Engines) {
		s.awaitHealthy(n + 1)
	}
	asked := func() int { return int(s.engineSum("sim:requests_total", "path", "/v1/responses/{id}")) }
	recorded := func() float64 { return s.sum(s.Metrics, "headgate_requests_total", "code", "404") }
	for _, id := range []string{"one", "two", "three"} {
		none := request{method: http.MethodGet, path: "/v1/responses/resp_" + id}
		before, records := asked(), recorded()
		if a := s.must(none); a.status != http.StatusNotFound || strings.Contains(a.body, "response_not_found") {
			s.t.Errorf("what nobody has: %d %s", a.status, a.body)
		}
		s.await("extproc has the record", func() bool { return recorded() == records+1 })
		for range 20 {
			if a := s.must(none); a.status != http.StatusNotFound || !strings.Contains(a.body, "response_not_found") {
				s.t.Errorf("what extproc knows that nobody has: %d %s", a.status, a.body)
			}
		}
		s.await("the engines have counted", func() bool { return asked() >= before+len(s.Engines) })
		if n := asked() - before; n != len(s.Engines) {
			s.t.Errorf("the engines were asked %d times for an invented response, want %d", n, len(s.Engines))
		}
	}
}

// A Gateway listener serves several pools. After control and extproc have lost a response's
// endpoint, the response is still found in the pool that created it.
func TestStoredResponsesOfSeveralPoolsSurviveARestart(t *testing.T) {
	runs(t)
	s := start(t, storing, atRandom, throughGateway, func(c *rig.Config) {
		text := engines(strings.TrimSuffix(c.Listen, "1:8080"), 4)
		for _, pod := range []string{"engine-13", "engine-14"} {
			text = strings.Replace(text, pod+", labels: {app: llama", pod+", labels: {app: second", 1)
		}
		text += "---\napiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: second}\nspec: {selector: {matchLabels: {app: second}}, targetPorts: [{number: 8000}]}\n"
		more := strings.Replace(routes(baseRoute), "{name: pool}", "{name: second}", 1)
		more = routes(baseRoute) + strings.Replace(more, "name: "+baseRoute, "name: second", 1)
		for file, text := range map[string]string{"engines": text, "routes": more} {
			if err := os.WriteFile(c.Objects+"/"+file+".yaml", []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	})
	var ids []string
	for n := range 8 {
		id, a := s.respondOf([]string{baseRoute, "second"}[n%2], false, "")
		if a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		ids = append(ids, id)
	}
	s.Control.Kill()
	s.Extproc.Kill()
	if err := s.StartControl(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.StartExtproc(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.await("the next extproc serves", func() bool {
		_, first := s.respondOf(baseRoute, false, "")
		_, second := s.respondOf("second", false, "")
		return first.status == http.StatusOK && second.status == http.StatusOK
	})
	for n, id := range ids {
		for _, r := range []request{
			{path: "/v1/responses/" + id + "/cancel", body: "{}"},
			{method: http.MethodGet, path: "/v1/responses/" + id},
			{method: http.MethodDelete, path: "/v1/responses/" + id},
		} {
			if a := s.must(r); a.status != http.StatusOK || !strings.Contains(a.body, id) {
				t.Errorf("response %d: %s %s: %d %s", n, r.method, r.path, a.status, a.body)
			}
		}
	}
	for n := range len(s.Engines) {
		s.awaitHealthy(n + 1)
	}
	asked := func() int { return int(s.engineSum("sim:requests_total", "path", "/v1/responses/{id}")) }
	before := asked()
	if a := s.must(request{method: http.MethodGet, path: "/v1/responses/resp_none"}); a.status != http.StatusNotFound ||
		!strings.Contains(a.body, "not found") {
		t.Errorf("what nobody has: %d %s", a.status, a.body)
	}
	s.await("the engines have counted", func() bool { return asked() >= before+len(s.Engines) })
	if n := asked() - before; n != len(s.Engines) {
		t.Errorf("the engines were asked %d times for an invented response, want %d", n, len(s.Engines))
	}
}
