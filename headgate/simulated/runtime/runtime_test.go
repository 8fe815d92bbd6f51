package runtime

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/simulated/llm"
)

// inMemory runs a test with a runtime, on a clock that advances only when all goroutines wait.
func inMemory(t *testing.T, c Config, test func(t *testing.T, r *Runtime)) {
	t.Helper()
	if c.Capacity == 0 {
		c.Capacity = 100
	}
	c.DefaultSize, c.LoadingThreads = 10, max(2, c.LoadingThreads)
	synctest.Test(t, func(t *testing.T) {
		r := New(c)
		test(t, r)
		r.Close()
	})
}

func load(r *Runtime, id, path string) (uint64, error) {
	answer, err := r.LoadModel(context.Background(), &mmesh.LoadModelRequest{ModelId: id, ModelPath: path})
	return answer.GetSizeInBytes(), err
}

func unload(t *testing.T, r *Runtime, id string) {
	t.Helper()
	if _, err := r.UnloadModel(t.Context(), &mmesh.UnloadModelRequest{ModelId: id}); err != nil {
		t.Error(err)
	}
}

func TestPathConfiguresAModel(t *testing.T) {
	for path, want := range map[string]spec{
		"":                      {size: 10, predict: 10, failures: -1},
		"/models/x":             {size: 10, predict: 10, failures: -1},
		"sim:":                  {size: 10, predict: 10, failures: -1},
		"sim:?size=1Ki&load=2s": {size: 1024, predict: 1024, load: 2 * time.Second, failures: -1},
		"sim:?predict=5&unload=1s&sizing=3s&hang&stubborn": {
			size: 10, predict: 5, unload: time.Second, sizing: 3 * time.Second,
			sizes: true, hang: true, stubborn: true, failures: -1,
		},
		"sim:?fail=INTERNAL:disk%20broken:%20sda&failures=2": {
			size: 10, predict: 10, code: codes.Internal, words: "disk broken: sda",
			failures: 2,
		},
		"sim:?fail=FAILED_PRECONDITION&size=0&load=1ms&hang=1": {
			predict: 0, code: codes.FailedPrecondition, load: time.Millisecond,
			hang: true, failures: -1,
		},
	} {
		if got, err := parseSpec(path, 10); err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", path, got, err, want)
		}
	}
	for path, want := range map[string]string{
		"sim:?sise=1":        "sise: there is no such key",
		"sim:?size=much":     "size: quantities must match",
		"sim:?size=-1":       "size: -1 is below 0",
		"sim:?load=2":        "load: time: missing unit",
		"sim:?fail=OOPS":     "fail: invalid code",
		"sim:?failures=x":    "failures: strconv",
		"sim:?concurrency=0": "concurrency: it must be at least 1",
		"sim:?a=%zz":         "invalid URL escape",
	} {
		if _, err := parseSpec(path, 10); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", path, err, want)
		}
	}
}

func TestMemoryIsUsedUntilTheUnloadEnds(t *testing.T) {
	inMemory(t, Config{}, func(t *testing.T, r *Runtime) {
		start := time.Now()
		at := func(when string, want time.Duration, used int64) {
			t.Helper()
			synctest.Wait()
			if got := time.Since(start); got != want || r.Used() != used {
				t.Errorf("%s: at %v, %d bytes, want %v, %d", when, got, r.Used(), want, used)
			}
		}
		done := make(chan error, 1)
		go func() { _, err := load(r, "x", "sim:?size=60&load=2s&unload=3s"); done <- err }()
		at("during the load", 0, 60)
		if _, err := load(r, "y", "sim:?size=50"); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("more than fits: %v", err)
		}
		if err := <-done; err != nil || !r.Loaded("x") {
			t.Error(err)
		}
		at("loaded", 2*time.Second, 60)
		go func() { unload(t, r, "x"); done <- nil }()
		synctest.Wait()
		if r.Loaded("x") {
			t.Error("a model that unloads answers")
		}
		at("during the unload", 2*time.Second, 60)
		if err := <-done; err != nil {
			t.Error(err)
		}
		at("unloaded", 5*time.Second, 0)
		unload(t, r, "x") // x is not loaded
		at("unloaded again", 5*time.Second, 0)
	})
}

func TestNoMoreLoadsAtOnceThanThreads(t *testing.T) {
	inMemory(t, Config{}, func(t *testing.T, r *Runtime) {
		for _, id := range []string{"a", "b"} {
			go func() { _, _ = load(r, id, "sim:?load=1s") }()
		}
		synctest.Wait()
		if _, err := load(r, "c", "sim:"); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a third load: %v", err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := load(r, "c", "sim:"); err != nil {
			t.Errorf("a load after the others: %v", err)
		}
	})
}

func TestCancelledLoadLeavesNothing(t *testing.T) {
	for path, want := range map[string]time.Duration{
		"sim:?load=10s":          time.Second,
		"sim:?hang":              time.Second,
		"sim:?load=10s&stubborn": 10 * time.Second,
	} {
		inMemory(t, Config{}, func(t *testing.T, r *Runtime) {
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := r.LoadModel(ctx, &mmesh.LoadModelRequest{
				ModelId:   "x",
				ModelPath: path,
			}); status.Code(err) != codes.DeadlineExceeded {
				t.Errorf("%s: %v", path, err)
			}
			unload(t, r, "x")
			if got := time.Since(start); got != want || r.Used() != 0 || r.Loaded("x") {
				t.Errorf("%s: unloaded after %v with %d bytes left, want %v", path, got, r.Used(), want)
			}
		})
	}
}

func TestPathSetsTheNumberOfFailures(t *testing.T) {
	inMemory(t, Config{}, func(t *testing.T, r *Runtime) {
		for i, want := range []codes.Code{codes.Internal, codes.Internal, codes.OK} {
			if _, err := load(r, "x", "sim:?fail=INTERNAL:broken&failures=2"); status.Code(err) != want {
				t.Errorf("load %d: %v, want %v", i, err, want)
			}
		}
		if got := r.Models(); !slices.Equal(got, []string{"x"}) || r.Used() != 10 {
			t.Errorf("it holds %v, %d bytes", got, r.Used())
		}
	})
}

func TestReadinessQueryUnloadsModels(t *testing.T) {
	var log bytes.Buffer
	inMemory(t, Config{Startup: 3 * time.Second, Events: llm.NewEvents(&log, "here")}, func(t *testing.T, r *Runtime) {
		for _, want := range []mmesh.RuntimeStatusResponse_Status{mmesh.RuntimeStatusResponse_STARTING, mmesh.RuntimeStatusResponse_READY} {
			if _, err := load(r, "x", "sim:"); err != nil {
				t.Fatal(err)
			}
			s, err := r.RuntimeStatus(t.Context(), nil)
			if err != nil || s.GetStatus() != want || r.Loaded("x") || r.Used() != 0 {
				t.Errorf("%v, %v with %d bytes used, want %v", s, err, r.Used(), want)
			}
			time.Sleep(3 * time.Second)
		}
		if r.Purges() != 2 {
			t.Errorf("%d purges", r.Purges())
		}
	})
	var events []string
	for d := json.NewDecoder(&log); d.More(); {
		var e llm.Event
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		events = append(events, e.Event)
	}
	if want := []string{"load", "loaded", "purge", "load", "loaded", "purge"}; !slices.Equal(events, want) {
		t.Errorf("the log has %v, want %v", events, want)
	}
}

func TestSizesArePredictedAndMeasured(t *testing.T) {
	inMemory(t, Config{}, func(t *testing.T, r *Runtime) {
		p, err := r.PredictModelSize(t.Context(), &mmesh.PredictModelSizeRequest{ModelPath: "sim:?size=20&predict=15"})
		if err != nil || p.GetSizeInBytes() != 15 {
			t.Errorf("predicted: %v, %v", p, err)
		}
		if size, err := load(r, "x", "sim:?size=20&sizing=2s"); err != nil || size != 0 {
			t.Errorf("the load says %d, %v", size, err)
		}
		start := time.Now()
		for id, want := range map[string]uint64{"x": 20, "unknown": 10} {
			if s, err := r.ModelSize(t.Context(), &mmesh.ModelSizeRequest{ModelId: id}); err != nil || s.GetSizeInBytes() != want {
				t.Errorf("the size of %s: %v, %v", id, s, err)
			}
		}
		if got := time.Since(start); got != 2*time.Second {
			t.Errorf("measuring took %v", got)
		}
	})
	inMemory(t, Config{Unpredicting: true}, func(t *testing.T, r *Runtime) {
		if _, err := r.PredictModelSize(t.Context(), &mmesh.PredictModelSizeRequest{}); status.Code(err) != codes.Unimplemented {
			t.Error(err)
		}
	})
}

// An inference beyond the concurrency limit of its model fails, and the event log records it. A
// runtime without --concurrency reports no limit for any model.
func TestInferencesBeyondTheLimitOfAModelFail(t *testing.T) {
	var log bytes.Buffer
	inMemory(t, Config{Concurrency: 2, Events: llm.NewEvents(&log, "here")}, func(t *testing.T, r *Runtime) {
		if s, err := r.RuntimeStatus(t.Context(), nil); err != nil || !s.GetLimitModelConcurrency() {
			t.Errorf("%v, %v", s, err)
		}
		for path, want := range map[string]uint32{"sim:?infer=1s": 2, "sim:?infer=1s&concurrency=1": 1} {
			answer, err := r.LoadModel(t.Context(), &mmesh.LoadModelRequest{ModelId: path, ModelPath: path})
			if err != nil || answer.GetMaxConcurrency() != want || answer.GetSizeInBytes() != 10 {
				t.Errorf("%s: %v, %v", path, answer, err)
			}
			done := make(chan error)
			for range want {
				go func() { done <- r.compute(t.Context(), path) }()
			}
			synctest.Wait()
			if err := r.compute(t.Context(), path); status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: one more: %v", path, err)
			}
			for range want {
				if err := <-done; err != nil {
					t.Error(path, err)
				}
			}
			if err := r.compute(t.Context(), path); err != nil {
				t.Errorf("%s: after the others: %v", path, err)
			}
		}
	})
	if n := strings.Count(log.String(), `"event":"crowded"`); n != 2 {
		t.Errorf("%d were told:\n%s", n, &log)
	}
	inMemory(t, Config{}, func(t *testing.T, r *Runtime) {
		s, err := r.RuntimeStatus(t.Context(), nil)
		if err != nil || s.GetLimitModelConcurrency() {
			t.Errorf("%v, %v", s, err)
		}
		answer, err := r.LoadModel(t.Context(), &mmesh.LoadModelRequest{ModelId: "x", ModelPath: "sim:?concurrency=1"})
		if err != nil || answer.GetMaxConcurrency() != 0 {
			t.Errorf("%v, %v", answer, err)
		}
	})
}

func TestRequestsNeedALoadedModel(t *testing.T) {
	r := New(Config{Capacity: 100, DefaultSize: 10, LoadingThreads: 1})
	defer r.Close()
	if _, err := load(r, "x", "sim:"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	for _, c := range []struct {
		request, body string
		status        int
		want          string
	}{
		{"POST /v1/chat/completions", `{"model":"x"}`, 200, `"message":{"content":"This is a simulated answer."`},
		{"POST /v1/chat/completions", `{"model":"x","stream":true}`, 200, "data: [DONE]"},
		{"POST /v1/completions", `{"model":"x"}`, 200, `"text":"This is a simulated answer."`},
		{"POST /v1/chat/completions", `{"model":"y"}`, 404, `{"error":{"code":404,"message":"The model` + " `y` " +
			`does not exist.","param":"model","type":"NotFoundError"}}`},
		{"POST /v1/chat/completions", `{`, 400, "not JSON"},
		{"GET /v1/models", "", 404, `{"detail":"Not Found"}`},
		{"GET /metrics", "", 404, `{"detail":"Not Found"}`},
		{"GET /health", "", 200, ""},
	} {
		method, path, _ := strings.Cut(c.request, " ")
		q, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(q)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != c.status || !strings.Contains(string(body), c.want) ||
			resp.Header.Get(llm.ServedHeader) != server.Listener.Addr().String() {
			t.Errorf("%s %s: %d %s %v, %v", c.request, c.body, resp.StatusCode, body, resp.Header, err)
		}
	}
}

func TestCommandLine(t *testing.T) {
	s, err := parseFlags(strings.Fields("--kind modelruntime --port 0 --management unix:/x --capacity 2Gi --default-size 1Mi --loading-threads 3 --load-timeout 5s --startup 2s --no-predictions --concurrency 4"),
		io.Discard)
	want := Config{
		Capacity: 2 << 30, DefaultSize: 1 << 20, LoadingThreads: 3, LoadTimeout: 5 * time.Second, Startup: 2 * time.Second,
		Unpredicting: true, Concurrency: 4,
	}
	if err != nil || s.Config != want || s.Serving != (llm.Serving{Host: "127.0.0.1"}) || s.management != "unix:/x" {
		t.Errorf("%+v, %v", s, err)
	}
	for args, want := range map[string]string{
		"x":                   `unexpected argument "x"`,
		"--capacity x":        "--capacity: quantities",
		"--default-size -1":   "--default-size: -1 is below 0",
		"--unknown-model OK:": "--unknown-model OK:: \"OK\" is not a gRPC code",
		"--loading-threads 0": "must be at least 1",
		"--concurrency -1":    "must not be below 0",
	} {
		if _, err := parseFlags(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestSocketOfADeadProcessIsReused(t *testing.T) {
	socket := t.TempDir() + "/runtime.sock"
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Command(ctx, []string{"--port", "0", "--management", "unix:" + socket}, write)
		_ = write.Close()
	}()
	go func() {
		defer cancel()
		text := make([]byte, 200)
		n, err := read.Read(text)
		if got := string(text[:n]); err != nil || !strings.HasPrefix(got, "serving on http://127.0.0.1:") ||
			!strings.Contains(got, "managed at "+socket) {
			t.Errorf("it says %q, %v", got, err)
		}
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
