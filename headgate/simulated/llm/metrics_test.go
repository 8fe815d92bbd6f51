package llm

import (
	"context"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/sim"
)

// familiesLeftOut has the recorded metric families that the simulated engine lacks, with the
// reasons.
var familiesLeftOut = map[string]string{
	"vllm:estimated_flops_per_gpu_total":       "no arithmetic is done",
	"vllm:estimated_read_bytes_per_gpu_total":  "no memory is read",
	"vllm:estimated_write_bytes_per_gpu_total": "no memory is written",
	"vllm:external_prefix_cache_queries_total": "there is no KV connector",
	"vllm:external_prefix_cache_hits_total":    "there is no KV connector",
	"vllm:mm_cache_queries_total":              "there is no cache of images",
	"vllm:mm_cache_hits_total":                 "there is no cache of images",
	"process_virtual_memory_bytes":             "the engine is often one of many in a process",
	"process_resident_memory_bytes":            "the same",
	"process_cpu_seconds_total":                "the same",
	"process_open_fds":                         "the same",
	"process_max_fds":                          "the same",
}

// prefixesLeftOut has name prefixes of families that the simulated engine lacks, with the reasons.
var prefixesLeftOut = map[string]string{
	"python_": "no Python",
	"http_":   "of the web framework, not of vLLM; sim:requests_total says the same",
}

func parseMetrics(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// described has the properties of a metric family that must match the recording: type, help, label
// sets of its series, and histogram buckets.
type described struct {
	Kind, Help string
	Labels     []string
	Bounds     []float64
}

func describeFamily(f *dto.MetricFamily) described {
	d := described{Kind: f.GetType().String(), Help: f.GetHelp()}
	for _, m := range f.GetMetric() {
		var names []string
		for _, l := range m.GetLabel() {
			names = append(names, l.GetName())
		}
		slices.Sort(names)
		d.Labels = append(d.Labels, strings.Join(names, ","))
		if h := m.GetHistogram(); h != nil {
			d.Bounds = nil
			for _, b := range h.GetBucket() {
				d.Bounds = append(d.Bounds, b.GetUpperBound())
			}
		}
	}
	slices.Sort(d.Labels)
	d.Labels = slices.Compact(d.Labels)
	return d
}

func TestMetricsHaveTheNamesAndLabelsOfTheRecording(t *testing.T) {
	for _, state := range []string{"idle", "loaded"} {
		t.Run(state, func(t *testing.T) {
			text, err := os.ReadFile(recordings + "metrics-" + state + ".txt")
			if err != nil {
				t.Fatal(err)
			}
			want := parseMetrics(t, string(text))
			inWorld(t, recordedServer(makeModels(t)), func(w *world) {
				if state == "loaded" {
					for _, m := range []string{"tiny", "a1", "a2"} {
						w.post("/v1/chat/completions", `{"model":"`+m+`","messages":[{"role":"user","content":"hello"}],"max_tokens":3}`)
					}
				}
				got := parseMetrics(t, w.do("GET /metrics", "").body)
				compareFamilies(t, want, got)
			})
		})
	}
}

func compareFamilies(t *testing.T, want, got map[string]*dto.MetricFamily) {
	t.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		left := leftOut(name)
		switch {
		case got[name] == nil && !left:
			t.Errorf("%s is neither served nor left out with a reason", name)
		case got[name] != nil && left:
			t.Errorf("%s is served and stands among those left out", name)
		case got[name] != nil:
			if diff := cmp.Diff(describeFamily(want[name]), describeFamily(got[name])); diff != "" {
				t.Errorf("%s (-recorded +served):\n%s", name, diff)
			}
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "vllm:") && want[name] == nil {
			t.Errorf("%s is not vLLM's", name)
		}
	}
	for name := range familiesLeftOut {
		if want[name] == nil {
			t.Errorf("%s is left out and was never there", name)
		}
	}
}

func leftOut(name string) bool {
	if _, ok := familiesLeftOut[name]; ok {
		return true
	}
	// The Python client library adds a gauge with the creation time to every family.
	if strings.HasSuffix(name, "_created") {
		return true
	}
	for prefix := range prefixesLeftOut {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// Times and tokens on the metrics page equal the counts of the step model. So a profile that is
// learned from either is the same.
func TestTotalsAreTheStepModels(t *testing.T) {
	inWorld(t, recordedServer(makeModels(t)), func(w *world) {
		for n := range 5 {
			for _, m := range []string{"tiny", "a1"} {
				w.post("/v1/chat/completions", `{"model":"`+m+`","messages":[{"role":"user","content":"`+strings.Repeat("hello ", 200)+
					`"}],"max_tokens":`+strconv.Itoa(1+10*n)+`}`)
			}
		}
		load, err := new(engine.Reader).Load([]byte(w.do("GET /metrics", "").body), "")
		if err != nil {
			t.Fatal(err)
		}
		var c sim.Counts
		w.server.driver.do(w.Context(), func() { c = w.server.driver.sim.Counts() })
		got := load.Totals
		for name, pair := range map[string][2]float64{
			"queue": {got.Queue.Seconds.Or(-1), c.Queue.Seconds}, "prefill": {got.Prefill.Seconds.Or(-1), c.Prefill.Seconds},
			"decode": {got.Decode.Seconds.Or(-1), c.Decode.Seconds}, "first token": {got.FirstToken.Seconds.Or(-1), c.FirstToken.Seconds},
			"inter token": {got.InterToken.Seconds.Or(-1), c.InterToken.Seconds},
			"of them":     {got.InterToken.Count.Or(-1), float64(c.InterToken.Count)},
			"ended":       {got.Prefill.Count.Or(-1), float64(c.Prefill.Count)},
			"prompt":      {got.PromptTokens.Or(-1), float64(c.PromptTokens)},
			"cached":      {got.CachedTokens.Or(-1), float64(c.CachedTokens)},
			"generated":   {got.GeneratedTokens.Or(-1), float64(c.GeneratedTokens)},
		} {
			if math.Abs(pair[0]-pair[1]) > 1e-6 {
				t.Errorf("%s: the page says %g, the step model %g", name, pair[0], pair[1])
			}
		}
		if c.InterToken.Count == 0 || c.CachedTokens == 0 {
			t.Errorf("there is nothing to compare: %+v", c)
		}
	})
}

// Under the recorded load, an engine of the same size has the recorded gauges: 8 requests run, 4
// wait for a place in the batch and 6 for a slot. Each running request uses one of 16383 blocks.
func TestRecordedLoadGivesRecordedGauges(t *testing.T) {
	text, err := os.ReadFile(recordings + "metrics-loaded.txt")
	if err != nil {
		t.Fatal(err)
	}
	c := recordedServer(makeModels(t))
	inWorld(t, c, func(w *world) {
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		for _, name := range slices.Concat([]string{"a1", "a2"}, slices.Repeat([]string{"a3"}, 6), slices.Repeat([]string{"a1", "a2"}, 5)) {
			go func() {
				if resp, err := w.send(ctx, "POST /v1/completions", ask4(name, 100)); err == nil {
					w.close(resp)
				}
			}()
			synctest.Wait()
		}
		time.Sleep(3 * time.Second)
		page := w.do("GET /metrics", "").body
		for _, series := range []string{
			"vllm:num_requests_running{", "vllm:num_requests_waiting{", "vllm:num_requests_waiting_by_reason{", "vllm:kv_cache_usage_perc{",
			"vllm:engine_sleep_state{",
		} {
			if want, got := grep(string(text), series), grep(page, series); !slices.Equal(want, got) {
				t.Errorf("recorded %q\n  served %q", want, got)
			}
		}
		if got := grep(page, `{max_lora="2",running_lora_adapters="a1,a2",waiting_lora_adapters="a1,a2"}`); len(got) != 1 {
			t.Errorf("of the adapters it says %q", grep(page, "vllm:lora_requests_info{"))
		}
	})
}
