package repository

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/engine"
)

// The answers equal those of real servers, except for details that depend on the model.
func TestAnswersMatchRecordings(t *testing.T) {
	models := map[string]Model{"m1": {}, "bad": {Fail: "no weights"}, "gone": {Fileless: true}}
	for kind, calls := range map[engine.Kind][]struct {
		call, body string
		status     int
		want       string
	}{
		engine.MLServer: {
			{"GET /v2/health/live", "", 200, ""},
			{"POST /v2/repository/index", "", 422, `{"detail":[{"loc":["body"],"msg":"Field required","type":"missing"}]}`},
			{
				"POST /v2/repository/index", "{}", 200,
				`[{"name":"bad","state":"UNAVAILABLE","reason":""},{"name":"gone","state":"UNAVAILABLE","reason":""},{"name":"m1","state":"UNAVAILABLE","reason":""}]`,
			},
			{"GET /v2/models/m1/ready", "", 404, `{"error":"Model m1 not found"}`},
			{"POST /v2/repository/models/m1/load", "{}", 200, ""},
			{"GET /v2/models/m1/ready", "", 200, ""},
			{"POST /v2/models/m1/infer", "{}", 200, `{"model_name":"m1","model_version":"1","outputs":[]}`},
			{"POST /v2/repository/models/nope/load", "{}", 404, `{"error":"Model nope not found"}`},
			{"POST /v2/repository/models/a%2Fb/load", "{}", 404, `{"detail":"Not Found"}`},
			{"POST /v2/repository/models/bad/load", "{}", 500, `{"error":"builtins.ValueError: no weights"}`},
			{
				"POST /v2/repository/models/gone/load", "{}", 422,
				`{"error":"mlserver.errors.InvalidModelURI: Invalid URI specified for model gone (/models/gone/model.joblib)"}`,
			},
			{"GET /v2/models/bad/ready", "", 404, `{"error":"Model bad not found"}`},
			{
				"POST /v2/repository/index", "{}", 200,
				`[{"name":"bad","state":"UNAVAILABLE","reason":""},{"name":"gone","state":"UNAVAILABLE","reason":""},{"name":"m1","state":"READY","reason":""}]`,
			},
			{"POST /v2/repository/models/bad/unload", "{}", 200, ""},
			{"POST /v2/repository/models/m1/unload", "{}", 200, ""},
			{"POST /v2/repository/models/m1/unload", "{}", 404, `{"error":"Model m1 not found"}`},
			{"POST /v2/models/m1/infer", "{}", 404, `{"error":"Model m1 not found"}`},
			{"POST /v2/models/m1/versions/9/infer", "{}", 404, `{"error":"Model m1 with version 9 not found"}`},
			{"GET /metrics", "", 404, `{"detail":"Not Found"}`},
		},
		engine.Triton: {
			{"GET /v2/health/live", "", 200, ""},
			{"POST /v2/repository/index", "", 200, `[{"name":"bad"},{"name":"gone"},{"name":"m1"}]`},
			{"GET /v2/models/m1/ready", "", 400, `{"error":"Model version not ready"}`},
			{"POST /v2/repository/models/m1/load", "{}", 200, ""},
			{"POST /v2/models/m1/infer", "{}", 200, `{"model_name":"m1","model_version":"1","outputs":[]}`},
			{"POST /v2/repository/models/nope/load", "{}", 500, `{"error":"failed to load 'nope', failed to poll from model repository"}`},
			{"POST /v2/repository/models/%6d1/load", "{}", 500, `{"error":"failed to load '%6d1', failed to poll from model repository"}`},
			{
				"POST /v2/repository/models/bad/load", "{}", 400,
				`{"error":"load failed for model 'bad': version 1 is at UNAVAILABLE state: Internal: no weights;\n"}`,
			},
			{"POST /v2/models/m1/versions/1/infer", "{}", 200, `{"model_name":"m1","model_version":"1","outputs":[]}`},
			{"POST /v2/models/m1/versions/9/infer", "{}", 404, `{"error":"Request for unknown model: 'm1' version 9 is not found"}`},
			{"POST /v2/models/bad/infer", "{}", 404, `{"error":"Request for unknown model: 'bad' has no available versions"}`},
			{"POST /v2/models/nope/infer", "{}", 404, `{"error":"Request for unknown model: 'nope' is not found"}`},
			{"POST /v2/repository/models/m1/unload", "{}", 200, ""},
			{"POST /v2/repository/models/m1/unload", "{}", 200, ""},
			{"POST /v2/repository/models/nope/unload", "{}", 200, ""},
			{"GET /metrics", "", 404, `{"error":"Not Found"}`},
		},
	} {
		server := httptest.NewServer(New(Config{Kind: kind, Models: models}).Handler())
		defer server.Close()
		for _, c := range calls {
			method, path, _ := strings.Cut(c.call, " ")
			r, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := server.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != c.status || string(body) != c.want {
				t.Errorf("%s: %s: %d %s, want %d %s", kind, c.call, resp.StatusCode, body, c.status, c.want)
			}
		}
	}
}

// All flags take effect. A flag that describes an unknown behaviour of a model is an error.
func TestFlags(t *testing.T) {
	s, err := parseFlags(strings.Fields("--kind mlserver --host 127.0.0.2 --port 0 --fixed --event-log - --model a --model b=load=2s&unload=1s&fail=no%20weights --model c=fileless"),
		io.Discard)
	want := map[string]Model{"a": {}, "b": {Load: 2 * time.Second, Unload: time.Second, Fail: "no weights"}, "c": {Fileless: true}}
	if err != nil || s.Kind != engine.MLServer || s.Serving != (llm.Serving{Host: "127.0.0.2", EventLog: "-"}) || !s.Fixed ||
		len(s.Models) != len(want) {
		t.Errorf("%+v, %v", s, err)
	}
	for name, m := range want {
		if s.Models[name] != m {
			t.Errorf("%s is %+v, want %+v", name, s.Models[name], m)
		}
	}
	for args, words := range map[string]string{
		"--kind vllm": "no model repository", "x": "unexpected argument", "--model a=load=x": "load: ", "--model a=x=1": "no such key",
		"--model ../a": "is a path", "--model a=%zz": "invalid URL escape",
	} {
		if _, err := parseFlags(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %q", args, err, words)
		}
	}
}

// The program prints its address and ends when its context ends.
func TestProgramServesUntilItsContextEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	if err := Command(ctx, []string{"--kind", "triton", "--port", "0"}, &out); err != nil ||
		!strings.Contains(out.String(), "serving on http://127.0.0.1:") {
		t.Errorf("%v, and it says %q", err, out.String())
	}
	out.Reset()
	if err := Command(t.Context(), []string{"--help"}, &out); !errors.Is(err, pflag.ErrHelp) || !strings.Contains(out.String(), "--fixed") {
		t.Errorf("help: %v, %q", err, out.String())
	}
}
