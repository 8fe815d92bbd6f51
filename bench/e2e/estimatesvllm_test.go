//go:build real

package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/bench/provision"
	"github.com/headgate/headgate/control/profile/survey"
	"github.com/headgate/headgate/control/provision/estimate"
	"github.com/headgate/headgate/headgate/rig"
	profiles "github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/test/times"
)

const (
	// sequences is max_num_seqs of the vLLM in bench/real/vllm. tiny is the name of its model.
	sequences = 8
	tiny      = "tiny"
	// leastWords and mostWords limit the words of a prompt. leastAnswer and mostAnswer limit the
	// tokens of an answer.
	leastWords, mostWords   = 8, 64
	leastAnswer, mostAnswer = 16, 64

	// layersOfTiny is the number of layers of the model whose estimates are compared. The model of
	// bench/real/vllm has only two layers, so its step is short compared with the time per token in
	// the gateway and in vLLM's own API server. Both share the cores, and no profile includes them.
	layersOfTiny = 48
)

var (
	estimatesWay = flag.String("estimates-way", "",
		"send queries this `WAY` only: gateway or vllm; none measures the profile and no queries (default both)")
	estimatesProfile = flag.String("estimates-profile", "",
		"take the profile of vLLM in this `FILE`, or, where there is none, write what is measured there")
	estimatesKeep = flag.String("estimates-keep", "", "append the queries to this `FILE`, with how long they took, as lines of JSON")
)

// conversation generates queries for an LLM.
type conversation struct {
	client *http.Client
	random *rand.Rand
}

// prompt returns the body of a request and the number of tokens of its answer.
func (c *conversation) prompt() (body []byte, answer int32) {
	answer = int32(leastAnswer + c.random.IntN(mostAnswer-leastAnswer+1))
	return survey.PromptBody(c.random, survey.Completions, tiny, leastWords+c.random.IntN(mostWords-leastWords+1), int(answer)), answer
}

// ask sends a request, reads the streamed answer, and returns its times.
func (c *conversation) ask(url string, body []byte) (is survey.Stream, err error) {
	began := time.Now()
	r, err := c.client.Post(url+"/v1/completions", "application/json", bytes.NewReader(body))
	if err != nil {
		return is, err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(r.Body)
		return is, fmt.Errorf("%s is answered with %d %s", tiny, r.StatusCode, said)
	}
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		if is.Take(lines.Bytes(), time.Since(began).Seconds()) && is.Whole() {
			return is, nil
		}
	}
	return is, fmt.Errorf("the stream has ended early: %w", cmp.Or(lines.Err(), io.ErrUnexpectedEOF))
}

// spoken is the result of queries sent at given times.
type spoken struct {
	queries []estimate.Query
	took    []estimate.QueryTimes
	late    times.Times
}

// keep appends the queries to the file that a flag names, or does nothing if it names none.
func (s spoken) keep(t *testing.T, url string, slowness float64) {
	t.Helper()
	if *estimatesKeep == "" {
		return
	}
	line, err := json.Marshal(map[string]any{"url": url, "slowness": slowness, "queries": s.queries, "took": s.took})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(*estimatesKeep, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
}

// drive sends queries at the given times, without waiting for earlier queries to end.
func (c *conversation) drive(t *testing.T, url string, at []float64) spoken {
	s := spoken{queries: make([]estimate.Query, len(at)), took: make([]estimate.QueryTimes, len(at))}
	var queries sync.WaitGroup
	began := time.Now()
	for i, seconds := range at {
		body, answer := c.prompt()
		due := began.Add(time.Duration(seconds * float64(time.Second)))
		time.Sleep(time.Until(due))
		s.late = append(s.late, time.Since(due))
		s.queries[i] = estimate.Query{At: time.Since(began).Seconds(), Output: answer}
		queries.Go(func() {
			is, err := c.ask(url, body)
			if err != nil {
				t.Error(err)
				return
			}
			last := is.At[len(is.At)-1]
			s.queries[i].Prompt = int32(is.Prompt) //nolint:gosec // hundreds
			s.took[i] = estimate.QueryTimes{
				Latency: last, FirstToken: is.FirstToken(),
				PerToken: (last - is.FirstToken()) / float64(answer-1),
			}
		})
	}
	queries.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return s
}

// spokenTimes are the latencies of an LLM query that the test compares.
var spokenTimes = []struct {
	name string
	of   func(estimate.QueryTimes) float64
	hops bool // whether this latency includes the gateway overhead
}{
	{"time to the first token", func(t estimate.QueryTimes) float64 { return t.FirstToken }, true},
	{"time per token", func(t estimate.QueryTimes) float64 { return t.PerToken }, false},
	{"whole answer", func(t estimate.QueryTimes) float64 { return t.Latency }, true},
}

// The estimates for an LLM engine agree with a real vLLM behind a real Envoy and extproc. "control
// profile" measures the profile. From the load, the estimate gets only the send times and the token
// counts. The same queries are also sent directly to vLLM, because a gateway on the same cores
// slows vLLM down.
func TestRealVLLMEstimatesAreAsMeasured(t *testing.T) {
	runs(t, alone)
	if *estimates == 0 {
		t.Skip("-estimates says of how many queries")
	}
	s, engine := startTiny(t, "--load-format", "dummy", "--hf-overrides", fmt.Sprintf(`{"num_hidden_layers":%d}`, layersOfTiny))
	p := keptProfileOf(t, engine, "--prompt-tokens", "16,64,256", "--concurrency", "1,2,4,8", "--time-limit", "10s")
	if *estimatesWay == "none" {
		return
	}

	c := &conversation{client: manyConnections(t), random: rand.New(rand.NewPCG(17, 17))}
	c.client.Timeout = 5 * time.Minute
	first := func(url string) float64 {
		var all times.Times
		for range 60 {
			body, _ := c.prompt()
			is, err := c.ask(url, body)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, time.Duration(is.FirstToken()*float64(time.Second)))
		}
		return all.Percentile(50).Seconds()
	}
	itself := "http://" + engine.address()
	direct := first(itself)
	hops := max(0, first(s.url)-direct)
	t.Logf("one query alone has its first token after %.2f ms at vLLM, and %.2f ms later through the gateway", 1e3*direct, 1e3*hops)

	const prompt, answer = 80, (leastAnswer + mostAnswer) / 2 // mean numbers of tokens
	full := profiles.Work{Sequences: sequences, KVTokens: sequences * (prompt + answer)}
	most := 1 / (p.PrefillTime(0, prompt) + answer*p.StepTime(full)/sequences)
	t.Logf("a load of 1 is %.1f queries a second", most)
	for _, way := range []struct {
		way, name, url string
		hops           float64
		rounds         int
	}{{"gateway", "through the gateway", s.url, hops, *again}, {"vllm", "at vLLM itself", itself, 0, 1}} {
		if *estimatesWay != "" && *estimatesWay != way.way {
			continue
		}
		tables, asProfiled := make([]comparison, len(spokenTimes)), make([]comparison, len(spokenTimes))
		for _, load := range []float64{0.2, 0.35, 0.5, 0.65} {
			for _, cv := range []float64{1, 4} {
				at := provision.Gamma(rand.NewPCG(uint64(100*load), uint64(cv)), *estimates, load*most, cv)
				now, then := c.measure(t, way.url, itself, p, at, way.hops, way.rounds)
				for i, kind := range spokenTimes {
					now[i].cv, now[i].load, then[i].cv, then[i].load = cv, load, cv, load
					t.Logf("%s, %s: %v", way.name, kind.name, now[i])
					tables[i], asProfiled[i] = append(tables[i], now[i]), append(asProfiled[i], then[i])
				}
			}
		}
		for i, kind := range spokenTimes {
			t.Logf("\n%s, %s\n\n%v\nas it was when it was measured:\n\n%v", way.name, kind.name, tables[i], asProfiled[i])
			t.Logf("%s, %s: the mean of absolute errors of the mean is %.1f %%, and %.1f %% as it was when it was measured",
				way.name, kind.name, 100*tables[i].meanError(), 100*asProfiled[i].meanError())
		}
	}
}

// meanError returns the average over all cells of the absolute error of the mean latency, including
// gateway overhead.
func (all comparison) meanError() (sum float64) {
	for _, c := range all {
		_, e := c.errors(0)
		sum += math.Abs(e) / float64(len(all))
	}
	return sum
}

// measure sends queries in rounds with the same arrival times. It returns two cells for each of
// spokenTimes. The first is scaled to vLLM's speed around each round, which lone queries measure.
// The second uses the speed at the time of profiling.
func (c *conversation) measure(t *testing.T, url, itself string, p profiles.Profile, at []float64, hops float64, rounds int) (now,
	then []*cell,
) {
	for range spokenTimes {
		now, then = append(now, &cell{replicas: 1}), append(then, &cell{replicas: 1})
	}
	for range rounds {
		before := c.slowness(t, itself, p)
		r := c.drive(t, url, at)
		slowness := (before + c.slowness(t, itself, p)) / 2
		t.Logf("vLLM is %.2f times as slow as it was", slowness)
		r.keep(t, url, slowness)
		for i, kind := range spokenTimes {
			is := round{there: make(times.Times, len(at)), late: r.late}
			for _, took := range r.took {
				is.took = append(is.took, time.Duration(kind.of(took)*float64(time.Second)))
			}
			way := hops
			if !kind.hops {
				way = 0
			}
			add := func(into *cell, by float64) {
				into.rounds = append(into.rounds, is)
				into.add(is, way, func(scale float64) times.Times { return foreseen(t, p.Times(scale*by), r.queries, kind.of) })
			}
			add(now[i], slowness)
			add(then[i], 1)
		}
	}
	return now, then
}

// slowness returns the latency of lone queries at vLLM, divided by the latency from its profile.
func (c *conversation) slowness(t *testing.T, itself string, p profiles.Profile) float64 {
	const apart = 1000 // seconds between simulated queries, so that each is alone
	var queries []estimate.Query
	seconds := 0.0
	for i := range 12 {
		body, answer := c.prompt()
		time.Sleep(rest)
		is, err := c.ask(itself, body)
		if err != nil {
			t.Fatal(err)
		}
		seconds += is.At[len(is.At)-1]
		queries = append(queries, estimate.Query{
			At: float64(i) * apart, Prompt: int32(is.Prompt),
			Output: answer,
		}) //nolint:gosec // hundreds
	}
	want := 0.0
	for _, took := range foreseen(t, p, queries, func(took estimate.QueryTimes) float64 { return took.Latency }) {
		want += took.Seconds()
	}
	return seconds / want
}

// "headgate plan" accepts the profile that "headgate profile" measures at a real vLLM.
func TestRealVLLMIsMeasuredAndPlanned(t *testing.T) {
	runs(t, alone)
	_, engine := startTiny(t)
	planned(t, profileOf(t, engine, "--prompt-tokens", "16,256", "--concurrency", "1,8", "--time-limit", "8s"))
}

// startTiny runs a real vLLM with the given flags behind Envoy and extproc.
func startTiny(t *testing.T, flags ...string) (s *stack, engine *realEngine) {
	t.Helper()
	s = start(t, standalone, func(c *rig.Config) {
		engine = &realEngine{t: t, host: strings.TrimSuffix(c.Listen, "1:8080") + "11", dir: t.TempDir(), flags: flags}
		engine.start()
		t.Cleanup(func() { engine.KillGroup() })
		(&stack{t: t}).awaitWithin(3*time.Minute, "vLLM serves", func() bool {
			select {
			case <-engine.Done():
				text, _ := os.ReadFile(engine.Log)
				t.Fatalf("vLLM ended: %s", text[max(0, len(text)-1000):])
			default:
			}
			r, err := http.Get("http://" + engine.address() + "/health")
			if err == nil {
				_ = r.Body.Close()
			}
			return err == nil && r.StatusCode == http.StatusOK
		})
		pools(t, c, map[string][]string{tiny: {engine.host}})
	})
	return s, engine
}

// foreseen returns the estimated latencies of queries.
func foreseen(t *testing.T, p profiles.Profile, queries []estimate.Query, of func(estimate.QueryTimes) float64) times.Times {
	t.Helper()
	all := make(times.Times, len(queries))
	_, err := estimate.Run(&estimate.Pipeline{Stages: 1}, []estimate.Setting{{Engine: &p, Batch: sequences, Replicas: 1}}, queries, 1,
		func(q int, took estimate.QueryTimes) bool {
			all[q] = time.Duration(of(took) * float64(time.Second))
			return true
		})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// keptProfileOf returns the profile in the file that a flag names. Without that flag it measures
// the engine with "headgate profile".
func keptProfileOf(t *testing.T, e *realEngine, flags ...string) profiles.Profile {
	t.Helper()
	if *estimatesProfile == "" {
		return profileOf(t, e, flags...)
	}
	text, err := os.ReadFile(*estimatesProfile)
	if err == nil {
		p, err := profiles.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	p := profileOf(t, e, flags...)
	if err := os.WriteFile(*estimatesProfile, profiles.Format(p), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// profileOf returns the profile that "headgate profile" measures at an engine.
func profileOf(t *testing.T, e *realEngine, flags ...string) profiles.Profile {
	t.Helper()
	args := []string{
		"--url", "http://" + e.address(), "--llm", "--model", tiny, "--max-sequences", fmt.Sprint(sequences),
		"--hardware", "cpu",
	}
	out, text := headgateProfile(t, append(args, flags...)...)
	t.Logf("%s\n%s", out, text)
	p, err := profiles.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// planned runs "headgate plan" with a profile.
func planned(t *testing.T, p profiles.Profile) {
	t.Helper()
	dir := t.TempDir()
	queries := "at,prompt_tokens,output_tokens\n"
	for i := range 200 {
		queries += fmt.Sprintf("%v,80,40\n", float64(i)/4)
	}
	for file, text := range map[string]string{"tiny.yaml": string(profiles.Format(p)), "queries.csv": queries, "plan.yaml": `
apiVersion: inference.x-k8s.io/v1alpha1
kind: CapacityPlan
metadata: {name: tiny}
spec:
  objectives: [{metric: TimeToFirstToken, within: 1s, quantile: 0.99}, {metric: TimePerOutputToken, within: 100ms, quantile: 0.9}]
  trace: queries.csv
  stages:
  - {name: tiny, hardware: [{name: cpu, price: 1, file: tiny.yaml}]}
`} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), programs(t).Headgate, "plan", "-f",
		filepath.Join(dir, "plan.yaml")).CombinedOutput() //nolint:gosec // of this test
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%s", out)
}
