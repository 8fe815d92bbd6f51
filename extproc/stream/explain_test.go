package stream_test

import (
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/stream"
	"github.com/headgate/headgate/internal/objects"
)

// body returns a chat request with a long prompt.
func body(model string) []byte {
	return fmt.Appendf(nil, `{"model":%q,"messages":[{"role":"user","content":%q}]}`, model, strings.Repeat("a long prompt. ", 400))
}

// excluded returns the candidates of an explanation, and why the other endpoints are none.
func excluded(r admin.ExplainResult) (candidates []string, others map[string]string) {
	others = make(map[string]string)
	for _, c := range r.Candidates {
		if c.Excluded == "" {
			candidates = append(candidates, c.Endpoint)
		} else {
			others[c.Endpoint] = c.Excluded
		}
	}
	return candidates, others
}

// A dry run has the decision and every endpoint of the pool. What it says is what then happens.
func TestExplainedDecisionIsTheNextOne(t *testing.T) {
	for _, rule := range []pick.Rule{pick.Proposal, pick.LeastRequest, pick.RoundRobin} {
		f := newFleet()
		f.Scrape("10.0.1.1:8001").Failed()
		s, _ := newServer(t, f, func(c *stream.Config) { c.Settings.EndpointsPerRequest, c.Settings.Policy.Rule = 3, rule })
		for range 5 {
			got, err := s.Explain(admin.ExplainQuery{Body: body("qwen")})
			if err != nil {
				t.Fatal(err)
			}
			candidates, others := excluded(got)
			if got.Pool != "ns/open" || got.Model != "qwen" || got.Policy != rule.String() || len(got.Picks) != 3 ||
				len(candidates)+len(others) != 6 || got.Waits != "" || got.Error != nil {
				t.Fatalf("%v: the explanation is %+v", rule, got)
			}
			x := s.ExchangeAt("", objects.Name{}, nil)
			decide(t, x, chat("then", "qwen")...)
			then := recorded(t, s, "then")[0]
			least := then.Picks[0].Requests // the endpoints with as few requests are equal, so that any of them may be first
			for i := range got.Picks {
				if rule == pick.RoundRobin && then.Picks[i].Endpoint != got.Picks[i].Endpoint ||
					rule != pick.RoundRobin && i == 0 && got.Picks[0].Requests != least {
					t.Errorf("%v: then it goes to %+v, explained was %+v", rule, then.Picks, got.Picks)
				}
			}
		}
	}
}

// What no endpoint can serve has a reason for each endpoint.
func TestExplanationsOfRequestsThatAreNotSent(t *testing.T) {
	f, _, s := queueingServer(t, time.Minute, 10)
	for name, c := range map[string]struct {
		query admin.ExplainQuery
		want  func(r admin.ExplainResult) bool
	}{
		"waits for its model": {admin.ExplainQuery{Body: body("missing")}, func(r admin.ExplainResult) bool {
			_, others := excluded(r)
			return strings.Contains(r.Waits, "control loads one") && r.Route == "ns/for-missing" && others[address] == "it does not list the model"
		}},
		"is unknown": {admin.ExplainQuery{Body: body("unheard-of")}, func(r admin.ExplainResult) bool {
			return r.Waits != "" || r.Error != nil && r.Error.Status == 404
		}},
		"has no JSON": {admin.ExplainQuery{Body: []byte("{")}, func(r admin.ExplainResult) bool { return r.Error != nil && r.Error.Status == 400 }},
		"has no path": {admin.ExplainQuery{Path: "/admin", Body: body("qwen")}, func(r admin.ExplainResult) bool {
			return r.Error != nil && r.Error.Code == "unknown_url"
		}},
		"is answered by extproc": {admin.ExplainQuery{Method: "GET", Path: "/v1/models"}, func(r admin.ExplainResult) bool { return r.Answer }},
		"is V2": {admin.ExplainQuery{Path: "/v2/models/llama/infer", Body: []byte(`{}`)}, func(r admin.ExplainResult) bool {
			return len(r.Picks) == 1 && r.Pool == "ns/base"
		}},
		"is a call": {admin.ExplainQuery{
			Path: "/inference.GRPCInferenceService/ModelInfer", Headers: [][2]string{{"Content-Type", "application/grpc"}},
			Body: []byte("\x00\x00\x00\x00\x0a\x0a\x05llama\x1a\x01x"),
		}, func(r admin.ExplainResult) bool { return len(r.Picks) == 1 && r.Model == "llama" }},
		"is at a listener that is unknown": {admin.ExplainQuery{Listener: "x", Body: body("qwen")}, func(r admin.ExplainResult) bool {
			return r.Error != nil && r.Error.Status == 503
		}},
		"has a pool": {admin.ExplainQuery{Pool: "ns/sticky", Body: body("sticky")}, func(r admin.ExplainResult) bool {
			return r.Pool == "ns/sticky" && len(r.Candidates) == 4
		}},
	} {
		got, err := s.Explain(c.query)
		if err != nil || !c.want(got) {
			t.Errorf("a request that %s: %+v %v", name, got, err)
		}
	}
	for _, q := range []admin.ExplainQuery{{Pool: "x"}, {Headers: [][2]string{{":path", "/"}}}} {
		if _, err := s.Explain(q); err == nil {
			t.Errorf("%+v is accepted", q)
		}
	}
	if n := inFlight(f); n != 0 {
		t.Errorf("%d requests are in flight", n)
	}
}

// A dry run changes nothing: no count, no map, no cache, no statistics, no queue, and no random
// state. It asks control for nothing.
func TestExplanationsLeaveNoTrace(t *testing.T) {
	f, held, s := queueingServer(t, time.Minute, 10)
	draws := 0
	random := s.Random
	s.Random = func() uint64 { draws++; return random() }
	s.ReadPrompts()
	s.Settings.Policy.Rule = pick.Latency
	// Requests before: prompts in caches, statistics in two LRU caches, stored responses.
	for i, model := range []string{"qwen", "llama", "sticky", "text-to-sql"} {
		x := s.ExchangeAt("", objects.Name{}, nil)
		decide(t, x, "headers :method=POST :path=/v1/chat/completions content-type=application/json",
			"body "+string(body(model)))
		x.End(time.Now())
		v2 := s.ExchangeAt("", objects.Name{}, nil)
		decide(t, v2, "headers :method=POST :path=/v2/models/"+model+"/infer end")
		v2.End(time.Now())
		f.Made(fmt.Sprint("resp_", i), fleet.Maker{Pool: objects.Name{Namespace: "ns", Name: "open"}, Address: "10.0.1.2:8001"})
	}
	queries := []admin.ExplainQuery{
		{Body: body("qwen")},
		{Body: body("llama")},
		{Body: body("missing")},
		{Body: body("unheard-of")},
		{Body: body("analyst")},
		{Body: body("tried")},
		{Body: []byte("{")},
		{Path: "/v1/responses", Body: []byte(`{"model":"qwen","input":"x","previous_response_id":"resp_known"}`)},
		{Method: "GET", Path: "/v1/responses/resp_0"},
		{Method: "GET", Path: "/v1/responses/resp_unknown"},
		{Method: "GET", Path: "/v1/models"},
		{Path: "/v2/models/llama/infer", Body: []byte(`{}`)},
		{Path: "/v2/models/runtime/ready", Method: "GET"},
		{
			Path: "/inference.GRPCInferenceService/ModelInfer", Headers: [][2]string{{"content-type", "application/grpc"}},
			Body: []byte("\x00\x00\x00\x00\x0a\x0a\x05llama\x1a\x01x"),
		},
	}
	explainAll := func() {
		for _, q := range queries {
			if _, err := s.Explain(q); err != nil {
				t.Errorf("%+v: %v", q, err)
			}
		}
	}
	explainAll() // makes what all explanations share
	before, drawn := stateOf(s, f, held), draws
	explainAll()
	after := stateOf(s, f, held)
	if len(before) < 1000 {
		t.Fatalf("the state has only %d values", len(before))
	}
	for i := range max(len(before), len(after)) {
		if i >= len(before) || i >= len(after) || before[i] != after[i] {
			t.Fatalf("the state has changed:\n%s\n%s", before[min(i, len(before)-1)], after[min(i, len(after)-1)])
		}
	}
	if draws != drawn {
		t.Errorf("%d random numbers were drawn", draws-drawn)
	}
	if waiting := held.WaitingModels(); len(waiting) != 0 {
		t.Errorf("control is asked for %v", waiting)
	}
}

// stateOf returns every number, text and pointer that can be reached from values, one a line, also
// in fields that are not exported. It leaves out locks, functions, and what explanations own.
func stateOf(values ...any) (lines []string) {
	seen := make(map[uintptr]bool)
	var walk func(path string, v reflect.Value)
	walk = func(path string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if v.IsNil() || seen[v.Pointer()] {
				lines = append(lines, fmt.Sprint(path, " ", v.IsNil()))
				return
			}
			seen[v.Pointer()] = true
			walk(path, v.Elem())
		case reflect.Interface:
			if !v.IsNil() {
				walk(path, v.Elem())
			}
		case reflect.Struct:
			kind := v.Type().String()
			if strings.HasPrefix(kind, "sync.") || strings.HasPrefix(kind, "prometheus.") || kind == "stream.explainer" || kind == "time.Location" {
				return
			}
			for i := range v.NumField() {
				walk(path+"."+v.Type().Field(i).Name, v.Field(i))
			}
		case reflect.Slice, reflect.Array:
			lines = append(lines, fmt.Sprint(path, " has ", v.Len()))
			for i := range min(v.Len(), 5000) {
				walk(fmt.Sprint(path, "[", i, "]"), v.Index(i))
			}
		case reflect.Map:
			lines = append(lines, fmt.Sprint(path, " has ", v.Len()))
			keys := v.MapKeys()
			sort.Slice(keys, func(i, j int) bool { return fmt.Sprint(keys[i]) < fmt.Sprint(keys[j]) })
			for _, k := range keys {
				walk(fmt.Sprint(path, "[", k, "]"), v.MapIndex(k))
			}
		case reflect.Func:
		case reflect.Chan:
			lines = append(lines, fmt.Sprint(path, " has ", v.Len()))
		default:
			lines = append(lines, fmt.Sprint(path, " = ", v))
		}
	}
	for _, v := range values {
		walk(reflect.TypeOf(v).String(), reflect.ValueOf(v))
	}
	return slices.Clip(lines)
}
