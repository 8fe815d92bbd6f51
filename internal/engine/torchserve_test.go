package engine_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/engine"
)

// Responses of TorchServe 0.12.0, recorded except where noted, and its request for a token.
func TestAnswersOfTorchServe(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   engine.Told
		token  bool
	}{
		{"registered", 202, `{"status":"Processing worker updates..."}`, engine.Done, false},
		{
			"registered, with a process that serves", 200, `{"status":"Model \"m1\" Version: 1.0 registered with 1 initial workers"}`,
			engine.Done, false,
		},
		{
			"registered before", 409,
			`{"code":409,"type":"ConflictStatusException","message":"Model version 1.0 is already registered for model m1"}`,
			engine.Done, false,
		},
		{"no archive", 404, `{"code":404,"type":"ModelNotFoundException","message":"Model not found at: nope.mar"}`, engine.Absent, false},
		{
			"an archive elsewhere", 404,
			`{"code":404,"type":"ModelNotFoundException","message":"Relative path is not allowed in url: ../m1.mar"}`,
			engine.Absent, false,
		},
		{
			"a process that does not start", 500,
			`{"code":500,"type":"InternalServerException","message":"Failed to start workers for model bad version: 1.0"}`,
			engine.Failed, false,
		},
		{
			"no name of an archive", 400, `{"code":400,"type":"BadRequestException","message":"Parameter url is required."}`,
			engine.Failed, false,
		},
		{
			"without --enable-model-api", 405,
			`{"code":405,"type":"MethodNotAllowedException","message":"Requested method is not allowed, please refer to API document."}`,
			engine.Closed, false,
		},
		{
			"another port", 404,
			`{"code":404,"type":"ResourceNotFoundException","message":"Requested resource is not found, please refer to API document."}`,
			engine.Closed, false,
		},
		{
			"another token", 400,
			`{"code":400,"type":"InvalidKeyException","message":"Token Authorization failed. Token either incorrect, expired, or not provided correctly"}`,
			engine.Failed, true,
		},
		{"nobody's: a proxy", 502, `<html>bad gateway</html>`, engine.Unsure, false},
		{"nobody's: a proxy that speaks JSON", 503, `{"error":"no healthy upstream"}`, engine.Unsure, false},
		{"nobody's: another 404", 404, `{"detail":"Not Found"}`, engine.Unsure, false},
	} {
		said, _ := engine.ReadTorchError([]byte(c.body))
		if got := engine.ReadTorchAnswer(c.status, []byte(c.body)); got != c.want || said.WantsToken() != c.token {
			t.Errorf("%s: %d, wants a token %v; want %d", c.name, got, said.WantsToken(), c.want)
		}
	}
}

// A model is serving exactly when one of its workers is ready.
func TestHowFarAModelIsAtTorchServe(t *testing.T) {
	worker := func(status, pid string) string { return `{"id":"9000","status":"` + status + `","pid":` + pid + `}` }
	model := func(workers ...string) string {
		return `[{"modelName":"m","minWorkers":1,"workers":[` + strings.Join(workers, ",") + `]}]`
	}
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   *engine.TorchState // nil: invalid response
	}{
		{"not registered", 404, `{"code":404,"type":"ModelNotFoundException","message":"Model not found: m"}`, &engine.TorchState{}},
		{"registered, and nothing more", 200, model(), &engine.TorchState{Registered: true}},
		{"about to start", 200, model(worker("UNLOADING", "-1")), &engine.TorchState{Registered: true, Stage: engine.Coming}},
		{
			"starting", 200, model(worker("UNLOADING", "2657")),
			&engine.TorchState{Registered: true, Stage: engine.Coming, Processes: []int{2657}},
		},
		{"serving", 200, model(worker("READY", "2657")), &engine.TorchState{Registered: true, Stage: engine.Serving}},
		{
			"serving, and more to come", 200, model(worker("READY", "1"), worker("UNLOADING", "2")),
			&engine.TorchState{Registered: true, Stage: engine.Serving, Processes: []int{2}},
		},
		{
			"more to come, and serving", 200, model(worker("UNLOADING", "2"), worker("READY", "1")),
			&engine.TorchState{Registered: true, Stage: engine.Serving, Processes: []int{2}},
		},
		{"another token", 400, `{"code":400,"type":"InvalidKeyException","message":"no"}`, nil},
		{"another port", 404, `{"code":404,"type":"ResourceNotFoundException","message":"no"}`, nil},
		{"a proxy", 502, `<html>`, nil},
		{"no JSON", 200, `<html>`, nil},
	} {
		got, err := engine.ReadTorchModel(c.status, []byte(c.body))
		if (err == nil) != (c.want != nil) {
			t.Errorf("%s: %v", c.name, err)
		} else if c.want != nil && !cmp.Equal(got, *c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, *c.want)
		}
	}
}

// The only sign of a failed load is a worker that ended before it served. A worker that becomes
// ready is no failure.
func TestWorkerThatEndedBeforeItServed(t *testing.T) {
	at := func(stage engine.Stage, processes ...int) engine.TorchState {
		return engine.TorchState{Registered: true, Stage: stage, Processes: processes}
	}
	for _, c := range []struct {
		name        string
		before, now engine.TorchState
		want        bool
	}{
		{"it starts", at(engine.Coming), at(engine.Coming, 5), false},
		{"it goes on", at(engine.Coming, 5), at(engine.Coming, 5), false},
		{"it serves", at(engine.Coming, 5), at(engine.Serving), false},
		{"another one in its place", at(engine.Coming, 5), at(engine.Coming, 7), true},
		{"none in its place yet", at(engine.Coming, 5), at(engine.Coming), true},
		{"one of two", at(engine.Coming, 5, 6), at(engine.Coming, 5, 7), true},
		{"the model is gone", at(engine.Coming, 5), engine.TorchState{}, true},
		{"one of two serves", at(engine.Coming, 5, 6), at(engine.Serving, 6), false},
	} {
		if got := c.now.Died(c.before); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// Escaped names, several pages, and invalid lists.
func TestTorchServeList(t *testing.T) {
	names, next, err := engine.ReadTorchModels([]byte(`{"nextPageToken":"2","models":[{"modelName":"b","modelUrl":"b.mar"},{"modelName":"a","modelUrl":"x"}]}`))
	if err != nil || next != "2" || !cmp.Equal(names, []string{"b", "a"}) {
		t.Errorf("%v, %q, %v", names, next, err)
	}
	if names, next, err := engine.ReadTorchModels([]byte(`{"models":[]}`)); err != nil || len(names) > 0 || next != "" {
		t.Errorf("an empty list: %v, %q, %v", names, next, err)
	}
	for _, body := range []string{`{"error":"no"}`, `<html>`, `[]`} {
		if _, _, err := engine.ReadTorchModels([]byte(body)); err == nil {
			t.Errorf("%s is taken for a list", body)
		}
	}
	for got, want := range map[string]string{
		engine.TorchModels(""):                    "/models?limit=1000",
		engine.TorchModels("2"):                   "/models?limit=1000&next_page_token=2",
		engine.TorchModel("a%2F b"):               "/models/a%252F%20b",
		engine.TorchRegister("m+1", "http://s/a"): "/models?initial_workers=1&model_name=m%2B1&synchronous=false&url=http%3A%2F%2Fs%2Fa",
		engine.TorchScale("m?"):                   "/models/m%3F?min_worker=1&synchronous=false",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
