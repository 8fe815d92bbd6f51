package fleet

import (
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/bench/traffic"
)

func TestReadAzure(t *testing.T) {
	all, err := readAzure(strings.NewReader("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:46.5000000,374,44\r\n2023-11-16 18:15:48.7500000,396,109\r\n2023-11-16 18:16:00.0000000,5,0\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []traced{{0, traffic.Length{Prompt: 374, Output: 44}, nil}, {2.25, traffic.Length{Prompt: 396, Output: 109}, nil}}
	if !slices.EqualFunc(all, want, func(a, b traced) bool { return a.at == b.at && a.Length == b.Length }) {
		t.Errorf("there is %v, want %v", all, want)
	}
}

func TestReadMooncake(t *testing.T) {
	all, err := readMooncake(strings.NewReader(`{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}` + "\n" +
		`{"timestamp": 3000, "input_length": 600, "output_length": 4, "hash_ids": [0, 2]}` + "\n"))
	if err != nil || len(all) != 2 || all[1].at != 3 || all[1].Length != (traffic.Length{Prompt: 600, Output: 4}) {
		t.Fatalf("there is %v, %v", all, err)
	}
	first, second := all[0].prompt(0, 0), all[1].prompt(1, 0)
	shared := 0
	for shared < 600 && first[shared] == second[shared] {
		shared++
	}
	if len(first) != 700 || len(second) != 600 || shared != 512 {
		t.Errorf("prompts of %d and %d tokens share %d, want 700, 600 and 512", len(first), len(second), shared)
	}
	if again := all[0].prompt(2, 1); again[0] == first[0] {
		t.Error("a prompt shares tokens with that of the time before")
	}
}

// A replayed trace starts at a random time, starts over when it ends, has the requested mean rate,
// and keeps its bursts.
func TestReplay(t *testing.T) {
	all := []traced{
		{0, traffic.Length{Prompt: 1, Output: 1}, nil},
		{1, traffic.Length{Prompt: 2, Output: 1}, nil},
		{1, traffic.Length{Prompt: 3, Output: 1}, nil},
		{6, traffic.Length{Prompt: 4, Output: 1}, nil},
	}
	requests := slices.Collect(replay(all, 0)(1, 4, 4001))
	if last := requests[4000].At; math.Abs(last-1000) > 1e-6 {
		t.Errorf("4000 more at 4 a second take %g s, want 1000", last)
	}
	if requests[0].At != 0 {
		t.Errorf("the first comes at %g", requests[0].At)
	}
	for i := range requests[:4000] {
		// The mean gap of 2 s is scaled to 0.25 s.
		gap, want := requests[i+1].At-requests[i].At, []float64{0, 0.125, 0, 0.625, 0.25}[len(requests[i].Prompt)]
		if math.Abs(gap-want) > 1e-6 {
			t.Fatalf("request %d, %d of the trace, is followed after %g s, want %g", i, len(requests[i].Prompt), gap, want)
		}
	}
	begins := make(map[int]bool)
	for seed := range uint64(20) {
		for r := range replay(all, 0)(seed, 4, 1) {
			begins[len(r.Prompt)] = true
		}
	}
	if len(begins) != 4 {
		t.Errorf("seeds begin with %v", begins)
	}
	together := 0
	for i := range requests[:100] {
		if requests[i+1].At == requests[i].At {
			together++
		}
	}
	spread := slices.Collect(replay(all, 3)(1, 4, 100))
	for i := range spread[:99] {
		if spread[i+1].At <= spread[i].At {
			t.Fatalf("requests %d and %d come at %g and %g, though times are spread", i, i+1, spread[i].At, spread[i+1].At)
		}
	}
	if together == 0 {
		t.Error("no two requests come together, though they do in the trace")
	}
}

// A policy scrapes at the interval of its project unless a flag sets it.
func TestScrapeIntervals(t *testing.T) {
	for args, want := range map[string]map[string]float64{
		"":                      {"latency": 0.2, "lmetric": 0.2, "scored": 0.05, "scored+lora": 0.05},
		"--scrape-interval 1s":  {"latency": 1, "lmetric": 1, "scored": 1, "scored+lora": 1},
		"--scrape-interval 0ms": {"latency": 0, "scored": 0},
	} {
		c, err := parseFlags(strings.Fields(args), "", io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		for name, want := range want {
			if f, _ := c.under(name); f.ScrapeInterval != want {
				t.Errorf("%s: %s looks each %g s, want %g", args, name, f.ScrapeInterval, want)
			}
		}
	}
}

// Invalid flags and missing traces are errors.
func TestCommand(t *testing.T) {
	run := func(args ...string) (string, error) {
		var out strings.Builder
		err := runCommand(t.Context(), args, "", &out, io.Discard)
		return out.String(), err
	}
	dir := t.TempDir()
	for args, words := range map[string]string{
		"--workload none":                  `--workload: unknown name "none": use one of adapters, prefixes, plain, chat, long, bursts, cancelled, azure-conversation`,
		"--workload azure-code":            "there is no trace azure/code-2023.csv: name the folder that has it by --traces or $TRACE_DIR",
		"--workload plain --traces " + dir: "azure/conv-2023.csv: name the folder",
		"--policy best":                    `--policy: unknown name "best": use some of latency, proposal,`,
		"--rate 0":                         "--rate must be above 0",
		"--pickers 0":                      "at least 1",
		"--slow-endpoints 17":              "--slow-endpoints must be from 0 to --endpoints",
		"--requests 3":                     "at least 10",
		"--scrape-interval -1s":            "must not be negative",
		"--token-error 1":                  "--token-error must be from 0 to below 1",
		"--plots " + dir:                   "--plots needs --goodput",
		"--assumed-profile half":           `--assumed-profile: unknown name "half": use one of true, none, x10, x0.1`,
		"--fault all":                      `--fault: unknown name "all": use one of none, nan, missing, reset, clock, half`,
		"more":                             `unexpected argument "more"`,
		"--profile " + filepath.Join(dir, "none.yaml"): "--profile: open",
	} {
		if _, err := run(strings.Split(args, " ")...); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v, want %s", args, err, words)
		}
	}
	text, err := run("--workload", "plain", "--policy", "leastRequest,random", "--requests", "300", "--rate", "3", "--endpoints", "4",
		"--seeds", "2", "--goodput")
	if err != nil || strings.Count(text, "\n") != 7 || !strings.Contains(text, "leastRequest") || !strings.Contains(text, "goodput") {
		t.Errorf("it prints %s, %v", text, err)
	}
	var told strings.Builder
	args := strings.Fields("--workload plain --policy latency --requests 500 --rate 3 --endpoints 4 --assumed-profile none --fault reset")
	if err := runCommand(t.Context(), args, "", io.Discard, &told); err != nil ||
		!strings.Contains(told.String(), "latency: predictions gained or lost trust at most 1 times in a run") {
		t.Errorf("of what is learned it tells %s, %v", told.String(), err)
	}
	if help, err := run("--help"); !errors.Is(err, pflag.ErrHelp) || !strings.Contains(help, "bench fleet [flags]") {
		t.Errorf("help is %s, %v", help, err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "azure"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "azure", "conv-2023.csv"),
		[]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,100,3\n2023-11-16 18:15:47.5,100,3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := run("--traces", dir, "--workload", "azure-conversation", "--requests", "20", "--policy", "proposal"); err != nil ||
		!strings.Contains(text, "100.00 %") {
		t.Errorf("it prints %s, %v", text, err)
	}
}

// The profile of the smaller model can be read.
func TestSmallProfile(t *testing.T) {
	if p := smallProfile(); p.Limits.MaxBatchedTokens != 2048 {
		t.Errorf("it is %+v", p)
	}
}
