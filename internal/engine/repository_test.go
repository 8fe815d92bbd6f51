package engine_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/engine"
)

// Each response was recorded from MLServer 1.7.1 or Triton 2.51.0, except where noted.
func TestAnswersOfModelRepositories(t *testing.T) {
	const trace = "Traceback (most recent call last):\n  File \"errors.py\", line 165, in __call__\n    await self.app(scope, receive, _send)\nKeyError: 'm'\n"
	const polling = `{"error":"explicit model load / unload is not allowed if polling is enabled"}`
	for _, c := range []struct {
		name   string
		status int
		body   string
		load   engine.Told
		fault  engine.LoadFault
		unload engine.Told
	}{
		{"both, done", 200, ``, engine.Done, engine.UnknownFault, engine.Done},
		{"MLServer, no such model", 404, `{"error":"Model nope not found"}`, engine.Absent, engine.FilesMissing, engine.Absent},
		{"MLServer, no such path", 404, `{"detail":"Not Found"}`, engine.Closed, engine.UnknownFault, engine.Closed},
		{
			"MLServer, a corrupt file", 500, `{"error":"builtins.ValueError: invalid literal for int() with base 10: b'arbage'"}`,
			engine.Failed, engine.UnknownFault, engine.Unsure,
		},
		{
			"MLServer, a file that is missing", 422,
			`{"error":"mlserver.errors.InvalidModelURI: Invalid URI specified for model gone (/models/gone/model.joblib)"}`, engine.Failed,
			engine.FilesMissing, engine.Unsure,
		},
		{"MLServer, a second unload meanwhile", 500, trace, engine.Unsure, engine.UnknownFault, engine.Unsure},
		{"MLServer whose workers died", 500, `Internal Server Error`, engine.Unsure, engine.UnknownFault, engine.Unsure},
		{
			"Triton, no such model", 500, `{"error":"failed to load 'nope', failed to poll from model repository"}`, engine.Absent,
			engine.FilesMissing, engine.Unsure,
		},
		{"Triton, no such path", 404, `{"error":"Not Found"}`, engine.Closed, engine.UnknownFault, engine.Closed},
		{
			"Triton, a corrupt model", 400,
			`{"error":"load failed for model 'corrupt': version 1 is at UNAVAILABLE state: Internal: Exception: no weights\n\nAt:\n  /models/corrupt/1/model.py(6): initialize\n;\n"}`,
			engine.Failed,
			engine.UnknownFault,
			engine.Unsure,
		},
		{
			"Triton, a model that dies", 400,
			`{"error":"load failed for model 'crash': version 1 is at UNAVAILABLE state: Internal: Stub process 'crash_0_0' is not healthy.;\n"}`,
			engine.Failed,
			engine.UnknownFault,
			engine.Unsure,
		},
		{"Triton without explicit control", 503, polling, engine.Closed, engine.UnknownFault, engine.Closed},
		{"nobody's: a proxy", 502, `<html>bad gateway</html>`, engine.Unsure, engine.UnknownFault, engine.Unsure},
		{"nobody's: a proxy without an engine", 503, `no healthy upstream`, engine.Unsure, engine.UnknownFault, engine.Unsure},
		{"nobody's: a proxy that waits no longer", 504, `{"error":"timeout"}`, engine.Unsure, engine.UnknownFault, engine.Unsure},
		{
			"nobody's: 200 in words of a failure is done all the same", 200, `{"error":"Model nope not found"}`, engine.Done,
			engine.UnknownFault, engine.Done,
		},
		{
			"nobody's: the words of Triton with another status", 400,
			`{"error":"failed to load 'nope', failed to poll from model repository"}`, engine.Failed, engine.UnknownFault, engine.Unsure,
		},
	} {
		load, fault := engine.ReadLoadAnswer(c.status, []byte(c.body))
		unload := engine.ReadUnloadAnswer(c.status, []byte(c.body))
		if load != c.load || fault != c.fault || unload != c.unload {
			t.Errorf("%s: a load %d with fault %d, an unload %d; want %d, %d and %d", c.name, load, fault, unload, c.load, c.fault,
				c.unload)
		}
	}
}

// Known, missing and unknown states, models listed twice, and invalid lists.
func TestIndex(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       []engine.StoredModel // nil: not an index
	}{
		{
			"MLServer's",
			`[{"name":"slow","state":"UNKNOWN","reason":""},{"name":"m2","state":"UNAVAILABLE","reason":""},{"name":"m1","state":"READY","reason":""}]`,
			[]engine.StoredModel{{Name: "slow", Stage: engine.Coming}, {Name: "m2"}, {Name: "m1", Stage: engine.Serving}},
		},
		{
			"Triton's", `[{"name":"corrupt","version":"1","state":"UNAVAILABLE","reason":"Internal: Exception: no weights\n"},{"name":"gone","version":"1","state":"UNAVAILABLE","reason":"unloaded"},
			{"name":"m1","version":"1","state":"UNLOADING"},{"name":"m2"},{"name":"slow","version":"1","state":"LOADING"},{"name":"up","version":"1","state":"READY"}]`,
			[]engine.StoredModel{
				{Name: "corrupt", Reason: "Internal: Exception: no weights"},
				{Name: "gone", Reason: "unloaded"},
				{Name: "m1", Stage: engine.Leaving},
				{Name: "m2"},
				{Name: "slow", Stage: engine.Coming},
				{Name: "up", Stage: engine.Serving},
			},
		},
		{
			"several versions",
			`[{"name":"a","version":"1","state":"READY"},{"name":"a","version":"2","state":"UNAVAILABLE","reason":"broken"},{"name":"b","version":"1","state":"UNLOADING"},{"name":"b","version":"2"}]`,
			[]engine.StoredModel{{Name: "a", Stage: engine.Serving, Reason: "broken"}, {Name: "b", Stage: engine.Leaving}},
		},
		{"as MLServer says it in gRPC", `[{"name":"a","state":"State.READY"}]`, []engine.StoredModel{{Name: "a", Stage: engine.Serving}}},
		{"a state of a version to come", `[{"name":"a","state":"WARMING"}]`, []engine.StoredModel{{Name: "a", Stage: engine.Coming}}},
		{"no name", `[{"state":"READY"},{"name":"a\nb","state":"READY"}]`, []engine.StoredModel{}},
		{"empty", `[]`, []engine.StoredModel{}},
		{"null", `null`, nil},
		{"an error", `{"error":"no"}`, nil},
		{"no JSON", `<html>`, nil},
	} {
		got, err := engine.ReadIndex([]byte(c.body))
		if (err == nil) != (c.want != nil) {
			t.Errorf("%s: %v", c.name, err)
		}
		if diff := cmp.Diff(c.want, got); err == nil && diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// The same status means different things at the two engines.
func TestWhetherAModelIsReady(t *testing.T) {
	for _, c := range []struct {
		kind   engine.Kind
		status int
		stage  engine.Stage
		sure   bool
	}{
		{engine.MLServer, 200, engine.Serving, true},
		{engine.MLServer, 404, engine.Stored, true},
		{engine.MLServer, 400, engine.Coming, true},
		{engine.MLServer, 502, engine.Stored, false},
		{engine.Triton, 200, engine.Serving, true},
		{engine.Triton, 400, engine.Stored, false},
		{engine.Triton, 404, engine.Stored, false},
	} {
		if stage, sure := engine.ReadReady(c.kind, c.status); stage != c.stage || sure != c.sure {
			t.Errorf("%s answers %d: %d, sure %v", c.kind, c.status, stage, sure)
		}
	}
}

// A name that leads out of a repository, or that an engine would read as another name, is refused.
func TestNamesInARepository(t *testing.T) {
	for _, c := range []struct {
		name             string
		mlserver, triton string // path of the load call, empty if the name is refused
	}{
		{"m1", "/v2/repository/models/m1/load", "/v2/repository/models/m1/load"},
		{"a.b-c_d", "/v2/repository/models/a.b-c_d/load", "/v2/repository/models/a.b-c_d/load"},
		{"模型", "/v2/repository/models/%E6%A8%A1%E5%9E%8B/load", "/v2/repository/models/模型/load"},
		{"a%2Fb", "/v2/repository/models/a%252Fb/load", "/v2/repository/models/a%2Fb/load"},
		{"a b", "/v2/repository/models/a%20b/load", ""},
		{"a?b", "/v2/repository/models/a%3Fb/load", ""},
		{"a#b", "/v2/repository/models/a%23b/load", ""},
		{"org/m1", "", ""},
		{"..", "", ""},
		{".", "", ""},
		{"", "", ""},
		{"/m1", "", ""},
		{"a\\b", "", ""},
		{"a\nb", "", ""},
		{"~", "", ""},
		{strings.Repeat("a", 255), "/v2/repository/models/" + strings.Repeat("a", 255) + "/load", "/v2/repository/models/" +
			strings.Repeat("a", 255) + "/load"},
		{strings.Repeat("a", 256), "", ""},
	} {
		for kind, want := range map[engine.Kind]string{engine.MLServer: c.mlserver, engine.Triton: c.triton} {
			err := engine.CheckStored(kind, c.name)
			if (err == nil) != (want != "") {
				t.Errorf("%s and %q: %v", kind, c.name, err)
			}
			if got := engine.LoadCall.Path(kind, c.name); err == nil && got != want {
				t.Errorf("%s loads %q by %s, want %s", kind, c.name, got, want)
			}
		}
	}
	if got := engine.ReadyCall.Path(engine.MLServer, "m") +
		engine.UnloadCall.Path(engine.Triton, "m"); got != "/v2/models/m/ready/v2/repository/models/m/unload" {
		t.Errorf("the other calls are %s", got)
	}
}

// Each kind of engine gets the calls of its own repository API.
func TestKindsWithARepository(t *testing.T) {
	of := func(kind engine.Kind) [5]bool {
		return [5]bool{kind.Repository(), kind.V2Repository(), kind.Managed(), kind.Recalled(), kind.Adapters()}
	}
	want := map[engine.Kind][5]bool{
		engine.Triton: {true, true}, engine.MLServer: {true, true}, engine.TorchServe: {true, false, true},
		engine.TFServing:    {true, false, false, true},
		engine.ModelRuntime: {false, false, true},
		engine.VLLM:         {false, false, true, false, true}, engine.SGLang: {false, false, true, false, true},
	}
	for _, kind := range append(engine.Kinds(), "") {
		if of(kind) != want[kind] {
			t.Errorf("%q: whether it has a repository, one of V2, may be managed elsewhere, is recalled and loads adapters: %v", kind, of(kind))
		}
	}
}
