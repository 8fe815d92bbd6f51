package stream_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/outcome"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// recorded returns the decisions about the requests with an id.
func recorded(t *testing.T, s *stream.Server, id string) []admin.Decision {
	t.Helper()
	body, err := json.Marshal(admin.DecisionsQuery{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	result, err := s.Decisions.Query(t.Context(), body)
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := json.Marshal(result); strings.Contains(string(text), "SECRET") {
		t.Errorf("the record has a prompt: %s", text)
	}
	return result.(admin.DecisionsResult).Decisions
}

// decide sends a request through an exchange, and returns the last answer.
func decide(t *testing.T, x stream.Exchange, lines ...string) (last *extprocv3.ProcessingResponse) {
	t.Helper()
	for _, line := range lines {
		out, err := x.Receive(message(t, line), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if len(out) > 0 {
			last = out[len(out)-1]
		}
	}
	return last
}

// chat returns the messages of a request for a model.
func chat(id, model string) []string {
	return []string{
		"headers :method=POST :path=/v1/chat/completions content-type=application/json x-request-id=" + id,
		fmt.Sprintf(`body {"model":%q,"messages":[{"role":"user","content":"SECRET"}]}`, model),
	}
}

// idOf returns the id of the decision in an answer.
func idOf(m *extprocv3.ProcessingResponse) string {
	return m.GetDynamicMetadata().GetFields()[wire.PickNamespace].GetStructValue().GetFields()[wire.PickID].GetStringValue()
}

// A decision is recorded with the endpoints in their order and what the policy saw. The access log
// adds the outcome.
func TestDecisionsAreRecorded(t *testing.T) {
	f := newFleet()
	s, _ := newServer(t, f, func(c *stream.Config) { c.Settings.EndpointsPerRequest = 3 })
	x := s.ExchangeAt("", objects.Name{}, nil)
	id := idOf(decide(t, x, chat("r-1", "qwen")...))
	got := recorded(t, s, "r-1")
	if len(got) != 1 {
		t.Fatalf("there are %d decisions", len(got))
	}
	d := got[0]
	if d.Pool != "ns/open" || d.Model != "qwen" || d.Target != "qwen" || d.Policy != "proposal" || d.Outcome != nil || len(d.Picks) != 3 ||
		time.Since(d.Time) > time.Minute {
		t.Errorf("the decision is %+v", d)
	}
	for _, p := range d.Picks {
		if p.State != "healthy" || p.Reason != "least pending" || p.Requests != 0 {
			t.Errorf("a pick is %+v", p)
		}
	}
	// The second request sees the first one.
	y := s.ExchangeAt("", objects.Name{}, nil)
	decide(t, y, chat("r-2", "qwen")...)
	if second := recorded(t, s, "r-2")[0]; second.Picks[0].Endpoint == d.Picks[0].Endpoint {
		t.Errorf("both go to %s", d.Picks[0].Endpoint)
	}
	o := outcome.Outcome{
		ID: id, Status: 200, Endpoint: d.Picks[1].Endpoint, Unreached: []string{d.Picks[0].Endpoint}, Attempts: 2,
		Duration: 2 * time.Second, FirstBody: time.Second,
	}
	s.Decisions.Observe(&o)
	for _, other := range []string{"", "x-1", "other-" + id, strings.ToUpper(id) + "!"} { // of another process, or of none
		s.Decisions.Observe(&outcome.Outcome{ID: other, Status: 500})
	}
	is := recorded(t, s, "r-1")[0].Outcome
	want := admin.Outcome{
		Status: 200, Endpoint: d.Picks[1].Endpoint, Attempts: 2, Duration: 2, FirstByte: 1,
		Tried: []admin.Tried{{Endpoint: d.Picks[0].Endpoint, Did: "accepted no connection"}},
	}
	if fmt.Sprintf("%+v", *is) != fmt.Sprintf("%+v", want) {
		t.Errorf("the outcome is %+v, want %+v", *is, want)
	}
	for _, e := range []stream.Exchange{x, y} {
		e.End(time.Now())
	}
}

// All requests with the same id are found, the latest first. A refused request has its error.
func TestRefusedRequestsAreRecorded(t *testing.T) {
	s, _ := newServer(t, newFleet(), nil)
	for range 3 {
		decide(t, s.ExchangeAt("", objects.Name{}, nil), chat("same", "unknown")...)
	}
	decide(t, s.ExchangeAt("", objects.Name{}, nil), chat("same", "missing")...)
	got := recorded(t, s, "same")
	if len(got) != 4 {
		t.Fatalf("there are %d decisions", len(got))
	}
	for i, want := range []struct {
		model, code, failed, route string
		status                     int
	}{
		{"missing", "no_endpoint", "gateway", "ns/for-missing", 503},
		{"unknown", "model_not_found", "client", "", 404},
	} {
		d := got[i]
		if d.Error == nil || d.Error.Code != want.code || d.Error.Status != want.status || d.Model != want.model || d.Route != want.route ||
			d.Outcome == nil || d.Outcome.Failed != want.failed || d.Outcome.Error == nil || len(d.Picks) != 0 {
			t.Errorf("the decision is %+v, its outcome %+v", d, d.Outcome)
		}
	}
	decide(t, s.ExchangeAt("", objects.Name{}, nil), "headers :method=GET :path=/v1/models x-request-id=list end")
	if got := recorded(t, s, "list"); len(got) != 0 {
		t.Errorf("a request that needs no decision is recorded: %+v", got)
	}
}

// A data plane that shows extproc the response reports the outcome there.
func TestOutcomesFromResponsesAreRecorded(t *testing.T) {
	s, _ := newServer(t, newFleet(), nil)
	x := s.Exchange(stream.Gateway, "open-picker:9002", 9002)
	lines := chat("g", "qwen")
	lines[0] += " mode=FULL_DUPLEX_STREAMED shown=FULL_DUPLEX_STREAMED"
	lines[1] = "body" + strings.TrimPrefix(lines[1], "body")
	decide(t, x, append(lines, "response :status=500 content-type=application/json", "answer {}")...)
	d := recorded(t, s, "g")
	if len(d) != 1 || d[0].Outcome == nil || d[0].Outcome.Status != 500 || d[0].Outcome.Failed != "engine" {
		t.Errorf("the record is %+v", d)
	}
	x.End(time.Now())
}

// A request that waited has the reason and the time, also if its client left before it was decided.
func TestWaitsAreRecorded(t *testing.T) {
	f, _, s := queueingServer(t, time.Minute, 10)
	left := s.ExchangeAt("", objects.Name{}, nil)
	decide(t, left, chat("left", "missing")...)
	left.End(time.Now().Add(3 * time.Second))
	d := recorded(t, s, "left")
	if len(d) != 1 || d[0].Outcome == nil || d[0].Outcome.Failed != "client" || d[0].Outcome.Why != "client_gone" || d[0].Waited < 2.9 ||
		!strings.Contains(d[0].WaitFor, "no endpoint had a copy") || d[0].Model != "missing" {
		t.Errorf("the record is %+v", d)
	}
	answers(f)
	asked := s.ExchangeAt("", objects.Name{}, nil)
	decide(t, asked, chat("asked", "new")...)
	asked.End(time.Now())
	d = recorded(t, s, "asked")
	if len(d) != 1 || !strings.Contains(d[0].WaitFor, "control") || d[0].Model != "new" {
		t.Errorf("the record is %+v", d)
	}
	late := s.ExchangeAt("", objects.Name{}, nil)
	decide(t, late, chat("late", "missing")...)
	if got := recorded(t, s, "late"); len(got) != 0 {
		t.Errorf("a waiting request is recorded: %+v", got)
	}
	late.Expire()
	late.End(time.Now())
	d = recorded(t, s, "late")
	if len(d) != 1 || d[0].Error == nil || d[0].Error.Code != "load_timeout" || d[0].Outcome.Failed != "gateway" || d[0].Waited <= 0 {
		t.Errorf("the record is %+v", d)
	}
}

// If the data plane may try one endpoint only, the record has the policy's second choice, too.
func TestRunnerUpIsRecorded(t *testing.T) {
	s, _ := newServer(t, newFleet(), nil)
	decide(t, s.ExchangeAt("", objects.Name{}, nil), chat("one", "qwen")...)
	d := recorded(t, s, "one")[0]
	if len(d.Picks) != 1 || d.RunnerUp == nil || d.RunnerUp.Endpoint == d.Picks[0].Endpoint || d.RunnerUp.State != "healthy" {
		t.Errorf("the record is %+v", d)
	}
	decide(t, s.ExchangeAt("", objects.Name{}, nil), chat("alone", "gpt-4")...) // the pool has one endpoint
	if d := recorded(t, s, "alone")[0]; len(d.Picks) != 1 || d.RunnerUp != nil || d.Target != "llama" || d.Route != "ns/for-gpt-4" {
		t.Errorf("the record is %+v", d)
	}
}
