package profile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/headgate/headgate/control/profile/survey"
	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/pipenet"
)

// sleeper is a V2 server with the model resnet. A request has at most 8 items. It takes the
// duration base, plus the duration each for every item. Seven of every eight requests take longer,
// by 1, 2, … 7 times the duration spread.
type sleeper struct {
	*httptest.Server
	base, each, spread time.Duration
	answer             func(w http.ResponseWriter, request int) bool // if not nil, may answer a request itself and then returns true

	mu       sync.Mutex
	requests int
	took     map[int][]float64 // by number of items: seconds measured by the server, because sleeps take longer on a busy machine
}

func newSleeper(t *testing.T, base, each time.Duration) *sleeper {
	t.Helper()
	s := &sleeper{base: base, each: each, took: map[int][]float64{}}
	s.Server = httptest.NewServer(s.handler())
	t.Cleanup(s.Close)
	return s
}

func (s *sleeper) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"name": "sleeper"}`) })
	mux.HandleFunc("GET /v2/models/{model}", func(w http.ResponseWriter, r *http.Request) {
		switch r.PathValue("model") {
		case "resnet":
			fmt.Fprint(w, `{"name": "resnet", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]}`)
		case "odd":
			fmt.Fprint(w, `{"name": "odd", "inputs": [{"name": "x", "datatype": "BF16", "shape": [-1, 2]}]}`)
		default:
			http.Error(w, `{"error": "no such model"}`, http.StatusNotFound)
		}
	})
	mux.HandleFunc("POST /v2/models/resnet/infer", s.infer)
	return mux
}

func (s *sleeper) infer(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	var body struct {
		Inputs []struct {
			Shape []int
			Data  []float64
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body.Inputs) != 1 ||
		len(body.Inputs[0].Data) != 2*body.Inputs[0].Shape[0] {
		http.Error(w, "inputs and their shapes do not agree", http.StatusBadRequest)
		return
	}
	rows := body.Inputs[0].Shape[0]
	s.mu.Lock()
	s.requests++
	request := s.requests
	s.mu.Unlock()
	if s.answer != nil && s.answer(w, request) {
		return
	}
	if rows > 8 {
		http.Error(w, "batch-size must be <= 8", http.StatusBadRequest)
		return
	}
	time.Sleep(s.base + time.Duration(rows)*s.each + time.Duration(request%8)*s.spread)
	s.mu.Lock()
	s.took[rows] = append(s.took[rows], time.Since(begun).Seconds())
	s.mu.Unlock()
	fmt.Fprint(w, `{"outputs": []}`)
}

// count returns the number of inference requests since the last call.
func (s *sleeper) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.requests = 0 }()
	return s.requests
}

// control runs the command and returns its output, its progress and its error.
func control(ctx context.Context, args ...string) (printed, said string, err error) {
	var out, progress bytes.Buffer
	err = command(ctx, args, &out, &progress, nil)
	return out.String(), progress.String(), err
}

func readBatches(t *testing.T, file string) *profile.Batches {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := profile.ParseBatches(text)
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return b
}

// The latencies in the profile are within 5 % of those that the server measured.
func TestServerIsMeasured(t *testing.T) {
	t.Parallel()
	s := &sleeper{base: 15 * time.Millisecond, each: 5 * time.Millisecond, spread: time.Millisecond, took: map[int][]float64{}}
	file := filepath.Join(t.TempDir(), "resnet.yaml")
	_, said := inMemory(t, func(listener net.Listener) (run func() error, stop func()) {
		server := &http.Server{Handler: s.handler()}
		return func() error { return server.Serve(listener) }, func() { _ = server.Close() }
	}, "--model", "resnet", "--hardware", "t4", "--price", "0.35", "--max-batch", "32",
		"--min-samples", "10", "--max-samples", "60", "--precision", "0.05", "-o", file)
	b := readBatches(t, file)
	if b.Name != "resnet on t4" || b.Hardware != "t4" || b.Price != 0.35 || b.MaxBatch() != 8 || len(b.Batches) != 4 ||
		len(b.Batches[0].Quantiles) < 6 {
		t.Errorf("the profile is %+v", b)
	}
	for _, want := range []string{
		"Left out are batches of 16 and more: ", "answers 400: batch-size must be <= 8",
		"one request of 1 to 8 rows at a time", "95 % interval",
	} {
		if !strings.Contains(b.Source, want) {
			t.Errorf("the source does not say %q: %s", want, b.Source)
		}
	}
	if !strings.Contains(said, "batches of 4, ") || !strings.Contains(said, "Left out are batches of 16 and more") {
		t.Errorf("on the way it says\n%s", said)
	}
	for size, took := range s.took {
		median := func(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }
		if got, want := b.Time(size, 0.5), median(took); got < 0.95*want || got > 1.05*want {
			t.Errorf("half of batches of %d take %.4f s at most, want %.4f", size, got, want)
		}
		t.Logf("batches of %d: %.5f s, and the server took %.5f s (median)", size, b.Time(size, 0.5), median(took))
	}
}

// If the server rejects a batch size after some requests of that size, the profile leaves it out.
func TestSizeRejectedLaterIsLeftOut(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, time.Millisecond, 0)
	const first = 24 // requests 21 to 30 have four items: the server rejects the 24th and all later requests
	s.answer = func(w http.ResponseWriter, request int) bool {
		if request < first {
			return false
		}
		http.Error(w, "out of memory", http.StatusBadRequest)
		return true
	}
	file := filepath.Join(t.TempDir(), "resnet.yaml")
	if _, _, err := control(t.Context(), "--url", s.URL, "--model", "resnet", "--batches", "1,2,4", "--min-samples", "10", "--max-samples",
		"10", "--warmup-requests", "0", "-o", file); err != nil {
		t.Fatal(err)
	}
	if b := readBatches(t, file); b.MaxBatch() != 2 || !strings.Contains(b.Source, "Left out are batches of 4 and more") {
		t.Errorf("the profile is %+v", b)
	}
}

// An interrupted survey resumes from its file, even if the last line is incomplete, and repeats
// only the measurement that was interrupted.
func TestInterruptedSurveyResumes(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, time.Millisecond, 0)
	file := filepath.Join(t.TempDir(), "resnet.yaml")
	record := strings.TrimSuffix(file, "yaml") + "csv"
	args := []string{
		"--url", s.URL, "--model", "resnet", "--batches", "1,2,4", "--min-samples", "10", "--max-samples", "10", "--warmup-requests", "0",
		"-o", file,
	}
	const all, until = 30, 17
	ctx, kill := context.WithCancel(t.Context())
	s.answer = func(_ http.ResponseWriter, request int) bool {
		if request == until {
			kill()
		}
		return false
	}
	_, _, err := control(ctx, args...)
	if err == nil || err.Error() != "interrupted; measurements are in "+record+", and the same command resumes from there" {
		t.Errorf("interrupted, it says %v", err)
	}
	if _, err := os.Stat(file); err == nil {
		t.Error("an interrupted survey has a profile")
	}
	text, err := os.ReadFile(record)
	if err != nil || bytes.Count(text, []byte("\n")) != until { // the header and one line per request, except the interrupted one
		t.Fatalf("%v: the file is\n%s", err, text)
	}
	if err := os.WriteFile(record, text[:len(text)-4], 0o600); err != nil {
		t.Fatal(err)
	}
	s.answer = nil
	s.count()
	_, said, err := control(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	if n, want := s.count(), all-(until-2); n != want {
		t.Errorf("%d requests were sent to go on, want %d", n, want)
	}
	if !strings.Contains(said, "1 of 3 points are in "+record+" already") {
		t.Errorf("it says\n%s", said)
	}
	text, err = os.ReadFile(record)
	if err != nil || bytes.Count(text, []byte("\n")) != 1+all || len(readBatches(t, file).Batches) != 3 {
		t.Errorf("%v: the file is\n%s", err, text)
	}

	// The same command again sends nothing. With a larger --max-batch, only the new sizes are
	// measured, even if the URL differs.
	if _, _, err := control(t.Context(), args...); err != nil || s.count() != 0 {
		t.Errorf("%v: what was measured is measured again", err)
	}
	elsewhere := newSleeper(t, time.Millisecond, 0)
	args[1], args[5] = elsewhere.URL, "1,2,4,8"
	if _, _, err := control(t.Context(), args...); err != nil || elsewhere.count() != 10 || readBatches(t, file).MaxBatch() != 8 {
		t.Errorf("%v: a further size is not measured alone", err)
	}
	if _, _, err := control(t.Context(), append(args, "--hardware", "t4")...); err == nil ||
		!strings.Contains(err.Error(), "use another file with -o") {
		t.Errorf("on other hardware it says %v", err)
	}
}

func TestFaultsOfServers(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, time.Millisecond, 0)
	nobody := httptest.NewServer(http.NotFoundHandler())
	nobody.Close()
	listed := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprint(w, `{"data": [{"id": "a"}, {"id": "b"}]}`)
		case "/v1/completions":
			http.Error(w, `{"error": "no"}`, http.StatusUnauthorized)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(listed.Close)
	wrong := filepath.Join(t.TempDir(), "row.json")
	if err := os.WriteFile(wrong, []byte(`{"inputs": [{"name": "x", "shape": [2]}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	failing := newSleeper(t, time.Millisecond, 0)
	failing.answer = func(w http.ResponseWriter, _ int) bool {
		http.Error(w, "out of\nmemory", http.StatusInternalServerError)
		return true
	}
	small := newSleeper(t, time.Millisecond, 0)
	small.answer = func(w http.ResponseWriter, _ int) bool {
		http.Error(w, "want 3 numbers", http.StatusBadRequest)
		return true
	}
	silent := newSleeper(t, time.Minute, 0)
	silent.answer = func(_ http.ResponseWriter, _ int) bool {
		time.Sleep(300 * time.Millisecond)
		return false
	}
	silent.base = 0
	for _, c := range []struct{ args, want string }{
		{"--url http://x --precision 2", "--precision 2: want a share of the mean, such as 0.03"},
		{"--url http://x --batches 2,4", "--batches [2 4]: want ascending sizes that start with 1, such as 1,2,4,8"},
		{"--url http://x --batches 1,2 --max-batch 4", "--batches conflicts with --max-batch: use one of them"},
		{"--url http://x --api v3", `--api "v3": want v2, embeddings, completions or chat`},
		{"--url http://x --api v2 --llm", "--llm conflicts with --api v2"},
		{
			"--url http://x -o profile.csv",
			"-o profile.csv: want another name, such as profile.yaml: measurements are written to the .csv file of that name",
		},
		{"--url 10.0.0.7:8000", `--url "10.0.0.7:8000": want http://HOST:PORT, such as http://127.0.0.1:8000`},
		{"--url " + nobody.URL, "connection refused at " + nobody.URL + ": check that the server runs and the port"},
		{"--url " + nobody.URL + " --model m", "connection refused at " + nobody.URL + ": check that the server runs and the port"},
		{"--url " + s.URL, "the server has no model list at /v1/models: set --model to measure a model of a V2 server"},
		{"--url " + s.URL + " --model alexnet", `the V2 server has not loaded the model "alexnet": load it, or change --model`},
		{"--url " + s.URL + " --model alexnet --api v2", `the V2 server has not loaded the model "alexnet": load it, or change --model`},
		{"--url " + s.URL + " --api v2", "set --model: a V2 server has no model list"},
		{
			"--url " + s.URL + " --model odd",
			`input "x" is BF16, which cannot be filled automatically: write a request with one item into a file and use --body`,
		},
		{"--url " + s.URL + " --model resnet --body " + wrong, "--body " + wrong +
			`: input "x" of the body has the shape [2]: its first dimension is the batch and must be 1`},
		{"--url " + listed.URL, "set --model; the server has a, b"},
		{"--url " + listed.URL + " --model c", `the server has no model "c"; it has a, b`},
		{
			"--url " + listed.URL + " --model a",
			`prompts of 16: /v1/completions answers 401: {"error": "no"} (--engine-token-file names the file of a token)`,
		},
		{"--url " + listed.URL + " --model a --body " + wrong, "--body is for V2 and embeddings only: LLM prompts are generated"},
		{"--url " + listed.URL + " --model a --price 1", "--price is for batch profiles only"},
		{
			"--url " + listed.URL + " --model a --prompt-tokens 16,9000",
			"--prompt-tokens [16 9000]: the engine computes at most 8192 tokens per step, so a longer prompt takes several steps: " +
				"leave it out, or set --max-batched-tokens",
		},
		{"--url " + failing.URL + " --model resnet", "batches of 1: /v2/models/resnet/infer answers 500: out of memory"},
		{"--url " + small.URL + " --model resnet", "batches of 1: /v2/models/resnet/infer answers 400: want 3 numbers"},
		{
			"--url " + silent.URL + " --model resnet --timeout 100ms",
			"batches of 1: /v2/models/resnet/infer has not answered within 100ms: use a longer --timeout",
		},
	} {
		if _, _, err := control(t.Context(), strings.Fields(c.args)...); err == nil ||
			strings.TrimSuffix(err.Error(), "; see headgate profile --help") != c.want {
			t.Errorf("%s: it says\n%v, want\n%s", c.args, err, c.want)
		}
	}
}

// known is the true profile of the simulated engine.
var known = profile.Profile{
	Name: "known", FrontendOverhead: 0.003,
	Prefill: profile.Prefill{Base: 0.012, PerToken: 4e-5},
	Decode:  profile.Decode{Base: 0.01, PerSequence: 0.0005, PerKVToken: 1.5e-6},
	Limits:  profile.Limits{MaxSequences: 4, MaxBatchedTokens: 8192, KVBlocks: 4000, BlockSize: 32},
}

// near reports whether got is within 5 % of want, and describes the difference.
func near(got, want float64) (bool, string) {
	return math.Abs(got/want-1) < 0.05, fmt.Sprintf("%.5f s, want %.5f (%+.1f %%)", got, want, 100*(got/want-1))
}

// The measured profile equals that of the simulated engine at all measured points. Prefill times
// come from the engine's metrics. Step times come from token arrivals, which the engine keeps on
// schedule.
func TestSimulatedEngineIsMeasured(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "llama.yaml")
	inputs := []int{16, 256, 1024}
	_, said := controlInMemory(t, known, "--prompt-tokens", "16,256,1024", "--output-tokens", "12", "--concurrency", "1,2,4,8",
		"--min-samples", "9", "--max-samples", "12", "--warmup-requests", "1", "--max-sequences", "4", "-o", file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s\n%s", said, text)
	for _, n := range inputs {
		if ok, off := near(p.PrefillTime(0, n), known.PrefillTime(0, n)); !ok {
			t.Errorf("a prompt of %d takes %s", n, off)
		}
		for _, sequences := range []int{1, 2, 4} {
			w := profile.Work{Sequences: sequences, KVTokens: sequences * (n + 6)}
			if ok, off := near(p.StepTime(w), known.StepTime(w)); !ok {
				t.Errorf("a step of %d with prompts of %d takes %s", sequences, n, off)
			}
		}
	}
	// The client also measures HTTP and the load of this machine as frontend overhead.
	if p.FrontendOverhead < known.FrontendOverhead || p.FrontendOverhead > known.FrontendOverhead+0.01 {
		t.Errorf("the frontend overhead is %v s, want %v", p.FrontendOverhead, known.FrontendOverhead)
	}
	want := profile.Limits{MaxSequences: 4, MaxBatchedTokens: 8192, KVBlocks: 4000, BlockSize: 32}
	if p.Limits != want || p.Name != "llama" {
		t.Errorf("the limits of %q are %+v, want %+v", p.Name, p.Limits, want)
	}
	for _, want := range []string{
		"completions", "The engine reports kvBlocks and blockSize. Assumed: maxBatchedTokens.",
		"The frontend overhead is the time to first token minus the engine's own times",
		"Left out are steps of 8 with prompts of 16 and more: the engine does not compute 8 requests at once",
	} {
		if !strings.Contains(p.Source, want) {
			t.Errorf("the source does not say %q: %s", want, p.Source)
		}
	}
	printed, _, err := control(t.Context(), "fit", strings.TrimSuffix(file, "yaml")+"csv")
	if q, errRead := profile.Parse([]byte(printed)); err != nil || errRead != nil || q.Prefill != p.Prefill || q.Decode != p.Decode ||
		q.FrontendOverhead != p.FrontendOverhead {
		t.Errorf("%v, %v: of its file, headgate profile fit makes\n%s", err, errRead, printed)
	}
}

// launching is the profile of an engine with asynchronous scheduling, in which steps with prompts
// have a high launch overhead.
var launching = profile.Profile{
	Name: "launching", FrontendOverhead: 0.003, LaunchOverhead: 0.03, AsyncScheduling: true,
	Prefill: profile.Prefill{Floor: 0.03, Base: 0.006, PerToken: 2e-5},
	Decode:  profile.Decode{Base: 0.006, PerSequence: 0.0002, PerKVToken: 4e-7},
	Limits:  profile.Limits{MaxSequences: 64, MaxBatchedTokens: 4096, KVBlocks: 4000, BlockSize: 32},
}

// controlInMemory runs the command against a simulated engine with a given profile. See inMemory.
func controlInMemory(t *testing.T, of profile.Profile, args ...string) (printed, said string) {
	t.Helper()
	return inMemory(t, func(listener net.Listener) (run func() error, stop func()) {
		s, err := llm.New(llm.Config{Profile: of, Model: "llama", Listener: listener})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(context.Background())
		return func() error { return s.Run(ctx) }, stop
	}, args...)
}

// inMemory runs the command against an in-memory server at http://engine:8000, on a fake clock.
// start returns the server. The results are the output and the progress of the command.
func inMemory(t *testing.T, start func(net.Listener) (run func() error, stop func()), args ...string) (printed, said string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := pipenet.Listen()
		run, stop := start(network)
		over := make(chan error, 1)
		go func() { over <- run() }()
		var out, progress bytes.Buffer
		err := command(t.Context(), append([]string{"--url", "http://engine:8000"}, args...), &out, &progress, network.Dial)
		stop()
		if ended := <-over; err != nil || ended != nil && !errors.Is(ended, http.ErrServerClosed) {
			t.Fatalf("%v, %v\n%s", err, ended, progress.String())
		}
		printed, said = out.String(), progress.String()
	})
	t.Logf("%s\n%s", said, printed)
	return printed, said
}

// Estimates with the measured profile equal those with the true profile, even if a prompt hardly
// delays the other requests, or delays them by more than a step. If the command measured prompts
// only one at a time, it would miss launch overhead and asynchronous scheduling, and estimates
// would be off by 17 to 40 %.
func TestEstimatesByAMeasuredProfileAreAsByTheEngines(t *testing.T) {
	t.Parallel()
	eager, ahead, plain := launching, launching, launching
	eager.AsyncScheduling = false
	ahead.LaunchOverhead, ahead.Prefill.Floor = 0, 0
	plain.AsyncScheduling, plain.LaunchOverhead, plain.Prefill.Floor, plain.MixedBatchOverhead = false, 0, 0, 0.004
	for name, want := range map[string]profile.Profile{
		"launches ahead": launching, "launches": eager, "schedules ahead": ahead,
		"neither, and takes longer for both": plain,
	} {
		t.Run(name, func(t *testing.T) {
			printed, _ := controlInMemory(t, want, "--prompt-tokens", "16,512,2500", "--output-tokens", "32", "--concurrency", "1,3",
				"--min-samples", "12", "--max-samples", "20", "--max-sequences", "64", "--max-batched-tokens", "4096")
			p, err := profile.Parse([]byte(printed))
			if err != nil {
				t.Fatal(err)
			}
			if p.AsyncScheduling != want.AsyncScheduling || math.Abs(p.LaunchOverhead-want.LaunchOverhead) > 0.1*want.LaunchOverhead ||
				math.Abs(p.MixedBatchOverhead-want.MixedBatchOverhead) > 0.25*want.MixedBatchOverhead {
				t.Errorf("asynchronous is %v, launch %v and mixed %v, want %v, %v and %v", p.AsyncScheduling, p.LaunchOverhead,
					p.MixedBatchOverhead, want.AsyncScheduling, want.LaunchOverhead, want.MixedBatchOverhead)
			}
			for _, load := range []float64{0.3, 0.7} {
				is, should := foreseen(t, p, load), foreseen(t, want, load)
				for i, of := range []string{"latency", "first token", "per token"} {
					off := is[i]/should[i] - 1
					t.Logf("at a load of %v the %s is %.1f ms, and by the measured profile %.1f (%+.1f %%)", load, of, 1e3*should[i],
						1e3*is[i], 100*off)
					if math.Abs(off) > 0.15 {
						t.Errorf("at a load of %v the %s is off by %.1f %%", load, of, 100*off)
					}
				}
			}
		})
	}
}

// The command detects asynchronous scheduling for any frontend overhead. It sends prompts at random
// times within a step. Their median wait is half a step, or one and a half with asynchronous
// scheduling.
func TestAsynchronousSchedulingIsDetected(t *testing.T) {
	t.Parallel()
	for _, share := range []float64{0.1, 0.9} {
		for _, asynchronous := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v of a step, asynchronous %v", share, asynchronous), func(t *testing.T) {
				of := known
				of.FrontendOverhead, of.AsyncScheduling = share*of.StepTime(profile.Work{Sequences: 1, KVTokens: 40}), asynchronous
				printed, _ := controlInMemory(t, of, "--prompt-tokens", "16,256,1024", "--output-tokens", "32", "--concurrency", "1,2",
					"--min-samples", "96", "--max-samples", "96", "--warmup-requests", "0", "--max-sequences", "4")
				p, err := profile.Parse([]byte(printed))
				if err != nil || p.AsyncScheduling != asynchronous {
					t.Errorf("%v: asynchronous is %v: %s", err, p.AsyncScheduling, p.Source)
				}
				want, waited := 0.5, 0.0
				if asynchronous {
					want++
				}
				_, after, _ := strings.Cut(p.Source, "; they wait for ")
				if _, err := fmt.Sscan(after, &waited); err != nil || math.Abs(waited-want) > 0.31 {
					t.Errorf("%v: prompts wait for %v steps, want %v", err, waited, want)
				}
			})
		}
	}
}

// If the token budget is unknown, the command sends only prompts that fit into one step of an
// engine with a small budget.
func TestPromptsTakeOneStepOfASmallBudget(t *testing.T) {
	t.Parallel()
	small := known
	small.Limits.MaxBatchedTokens = 2048
	printed, said := controlInMemory(t, small, "--output-tokens", "16", "--concurrency", "1,2", "--min-samples", "8", "--max-samples", "8",
		"--warmup-requests", "0", "--max-sequences", "4")
	p, err := profile.Parse([]byte(printed))
	if err != nil {
		t.Fatal(err)
	}
	if p.Prefill.MaxMeasuredTokens < 1024 || p.Prefill.MaxMeasuredTokens > 2048 || strings.Contains(said, "prompts of 2048") {
		t.Errorf("the longest prompt has %d tokens, and a step computes 2048:\n%s", p.Prefill.MaxMeasuredTokens, said)
	}
	for _, n := range []int{16, 500, 2000} {
		if ok, off := near(p.PrefillTime(0, n), small.PrefillTime(0, n)); !ok {
			t.Errorf("a prompt of %d takes %s", n, off)
		}
	}
}

// foreseen returns the estimated means of latency, time to first token and time per token. A load
// of 1 is one query per launch time.
func foreseen(t *testing.T, p profile.Profile, load float64) (means [3]float64) {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // a test's
	queries := make([]estimate.Query, 2000)
	at := 0.0
	for i := range queries {
		at += random.ExpFloat64() * launching.LaunchOverhead / load
		queries[i] = estimate.Query{At: at, Prompt: 300, Output: 40}
	}
	_, err := estimate.Run(&estimate.Pipeline{Stages: 1}, []estimate.Setting{{Engine: &p, Batch: p.Limits.MaxSequences, Replicas: 1}},
		queries, 1, func(_ int, took estimate.QueryTimes) bool {
			for i, is := range [3]float64{took.Latency, took.FirstToken, took.PerToken} {
				means[i] += is / float64(len(queries))
			}
			return true
		})
	if err != nil {
		t.Fatal(err)
	}
	return means
}

// All embedded texts differ, so that the engine cannot use its cache. If a request has several
// texts, the engine computes the first in a step of its own.
func TestEmbeddingsAreMeasured(t *testing.T) {
	t.Parallel()
	printed, _ := controlInMemory(t, known, "--url", "http://engine:8000/v1", "--api", "embeddings", "--max-batch", "8", "--min-samples",
		"5", "--max-samples", "9",
		"--warmup-requests", "1", "--name", "e5")
	b, err := profile.ParseBatches([]byte(printed))
	if err != nil || b.Name != "e5" || b.MaxBatch() != 8 {
		t.Fatalf("%v: it prints\n%s", err, printed)
	}
	for _, size := range []int{1, 8} {
		least := known.FrontendOverhead + known.Prefill.Base + float64(16*size)*known.Prefill.PerToken
		if got := b.MeanTime(size); got < least || got > least+known.Prefill.Base+1e-4 {
			t.Errorf("%d texts take %v s, want a little more than %v", size, got, least)
		}
	}
}

// Warm-up requests are sent for each size, and the profile ignores their times.
func TestWarmUpDoesNotCount(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, time.Millisecond, 0)
	s.answer = func(_ http.ResponseWriter, request int) bool {
		if request <= 2 {
			time.Sleep(500 * time.Millisecond)
		}
		return false
	}
	printed, _, err := control(t.Context(), "--url", s.URL, "--model", "resnet", "--max-batch", "2", "--min-samples", "4", "--max-samples",
		"4", "--warmup-requests", "2")
	b, errRead := profile.ParseBatches([]byte(printed))
	if err != nil || errRead != nil || b.Time(1, 1) > 0.5 || s.count() != 2*(2+4) {
		t.Errorf("%v, %v: it prints\n%s", err, errRead, printed)
	}
}

// On a terminal, progress is one line that is overwritten. Other outputs get a line per finished
// point.
func TestOutputWithoutATerminal(t *testing.T) {
	t.Parallel()
	s := newSleeper(t, time.Millisecond, 0)
	_, said, err := control(t.Context(), "--url", s.URL, "--model", "resnet", "--max-batch", "2", "--min-samples", "3",
		"--max-samples", "4")
	if lines := strings.Split(strings.TrimSpace(said), "\n"); err != nil || len(lines) != 2 ||
		!strings.HasPrefix(lines[1], "[##########] 2/2  batches of 2, ") {
		t.Errorf("%v: it says\n%s", err, said)
	}
	var out bytes.Buffer
	surveyed := survey.Progress{Points: 2, At: survey.Point{Batch: 1}}
	b := &bar{out: &out, terminal: true}
	for range 2 {
		b.tell(surveyed, false)
	}
	b.end()
	if got, want := out.String(), strings.Repeat("\r\x1b[K"+surveyed.Line(), 2)+"\n"; got != want {
		t.Errorf("a terminal gets %q, want %q", got, want)
	}
}

// Whatever can be wrong with the inputs is found before the first measurement.
func TestInputsAreCheckedBeforeMeasuring(t *testing.T) {
	s := newSleeper(t, time.Millisecond, 0)
	dir := t.TempDir()
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for args, want := range map[string]string{
		"-o " + dir:                             "-o: cannot write the profile: ",
		"-o " + filepath.Join(dir, "no", "p"):   "-o: cannot write the profile: ",
		"--body " + filepath.Join(dir, "none"):  "--body: open ",
		"--llm --body " + dir:                   "--body is for V2 and embeddings only",
		"--kv-blocks -1":                        "must be 0 (unknown) or more",
		"--path infer":                          "--path infer: want a path that begins with /",
		"--url " + closed.URL + " --api v2":     "connection refused",
		"--url 127.0.0.1:1":                     `--url "127.0.0.1:1": want http://HOST:PORT`,
		"--engine-token-file " + dir + "/token": "--engine-token-file: ",
	} {
		_, _, err := control(t.Context(), append([]string{"--url", s.URL, "--model", "resnet"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
		if n := s.count(); n > 0 {
			t.Errorf("%s: %d requests were measured", args, n)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("the folder has %v, %v", left, err)
	}
}
