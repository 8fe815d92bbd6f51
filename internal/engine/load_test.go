package engine_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/engine"
)

var compareLoads = cmp.Comparer(func(a, b engine.Value) bool { return a == b })

func recorded(tb testing.TB, name string) []byte {
	tb.Helper()
	page, err := os.ReadFile("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return page
}

func timed(count, seconds float64) engine.Timed {
	return engine.Timed{Count: engine.Known(count), Seconds: engine.Known(seconds)}
}

// idle is the counters of an engine without a request so far.
var idle = engine.Totals{
	Queue: timed(0, 0), Prefill: timed(0, 0), Decode: timed(0, 0), FirstToken: timed(0, 0), InterToken: timed(0, 0),
	PromptTokens: engine.Known(0), CachedTokens: engine.Known(0), GeneratedTokens: engine.Known(0),
	PrefillTokens: engine.Known(0), Steps: engine.Steps{Count: engine.Known(0)},
}

// A page whose file is called "documented" is not recorded; its first line says where its names are
// from.
func TestPageOfEachEngine(t *testing.T) {
	seen := make(map[engine.Kind]bool)
	for _, c := range []struct {
		file string
		want engine.Load
	}{
		{"vllm-0.32-idle.txt", engine.Load{
			Kind: engine.VLLM, Running: engine.Known(0), Waiting: engine.Known(0), Deferred: engine.Known(0), KVUsage: engine.Known(0),
			KVTokens: engine.Known(2097152), Started: engine.Known(1.79522831586e+09), Totals: idle,
		}},
		{"vllm-0.32-loaded.txt", engine.Load{
			Kind: engine.VLLM, Running: engine.Known(8), Waiting: engine.Known(10), Deferred: engine.Known(6),
			KVUsage: engine.Known(0.0004883110541414881), KVTokens: engine.Known(2097152),
			MaxAdapters: engine.Known(2), Active: []string{"a1", "a2"}, Started: engine.Known(1.79522831586e+09),
			Totals: engine.Totals{
				Queue: timed(24, 0.0005860769998662363), Prefill: timed(24, 0.6138861800004634), Decode: timed(24, 0.5493223799994666),
				FirstToken: timed(32, 1.2181923389434814), InterToken: timed(106, 1.3352265579995901),
				PromptTokens: engine.Known(450), CachedTokens: engine.Known(0), GeneratedTokens: engine.Known(138),
				PrefillTokens: engine.Known(309),
				Steps: engine.Steps{
					Count: engine.Known(89),
					UpTo:  [15]float64{57, 67, 67, 67, 88, 88, 88, 88, 89, 89, 89, 89, 89, 89, 89},
				},
			},
		}},
		{"sglang-documented.txt", engine.Load{
			Kind: engine.SGLang, Running: engine.Known(7), Waiting: engine.Known(3), KVUsage: engine.Known(0.28),
			KVTokens: engine.Known(442368), MaxAdapters: engine.Known(8),
			Totals: engine.Totals{
				FirstToken: timed(11, 2.35), PromptTokens: engine.Known(5400), CachedTokens: engine.Known(2700),
				GeneratedTokens: engine.Known(980),
			},
		}},
		{"trtllm-serve-documented.txt", engine.Load{
			Kind: engine.TRTLLM, Running: engine.Known(6), Waiting: engine.Known(2),
			KVUsage: engine.Known(0.62), KVTokens: engine.Known(204800),
		}},
		{"triton-tensorrt-llm-documented.txt", engine.Load{
			Kind: engine.TritonTRTLLM, Running: engine.Known(4), Waiting: engine.Known(3),
			KVUsage: engine.Known(0.25), KVTokens: engine.Known(6242 * 64),
		}},
		{"triton-2.51.txt", engine.Load{Kind: engine.Triton, Waiting: engine.Known(3)}},
		{"tgi-documented.txt", engine.Load{Kind: engine.TGI, Running: engine.Known(5), Waiting: engine.Known(3)}},
		{"llama.cpp-documented.txt", engine.Load{Kind: engine.LlamaCpp, Running: engine.Known(4), Waiting: engine.Known(46)}},
		{"lmdeploy-documented.txt", engine.Load{
			Kind: engine.LMDeploy, Running: engine.Known(24), Waiting: engine.Known(5),
			KVUsage: engine.Known(0.4),
		}},
		{"nim-documented.txt", engine.Load{
			Kind: engine.NIM, Running: engine.Known(3), Waiting: engine.Known(1),
			KVUsage: engine.Known(0.5),
		}},
	} {
		seen[c.want.Kind] = true
		told := c.want
		if told.Kind == engine.NIM {
			told.Kind = engine.VLLM // has older vLLM names
		}
		for _, by := range []struct {
			kind engine.Kind
			want engine.Load
		}{{"", told}, {c.want.Kind, c.want}} {
			got, err := new(engine.Reader).Load(recorded(t, c.file), by.kind)
			if err != nil {
				t.Fatalf("%s: %v", c.file, err)
			}
			if diff := cmp.Diff(by.want, got, compareLoads); diff != "" {
				t.Errorf("%s as an engine of kind %q (-want +got):\n%s", c.file, by.kind, diff)
			}
		}
	}
	for _, kind := range engine.Kinds() {
		if !seen[kind] && len(engine.Pages(kind)) > 0 {
			t.Errorf("no page of %s is read", kind)
		}
	}
}

// A stated kind overrides the page: another engine's names are ignored.
func TestNamedKindCountsAndNotThePage(t *testing.T) {
	both := "vllm:num_requests_running 1\nsglang:num_running_reqs 2\n"
	for kind, want := range map[engine.Kind]engine.Load{
		"":            {Kind: engine.VLLM, Running: engine.Known(1)},
		engine.VLLM:   {Kind: engine.VLLM, Running: engine.Known(1)},
		engine.SGLang: {Kind: engine.SGLang, Running: engine.Known(2)},
		engine.TGI:    {},
	} {
		got, err := new(engine.Reader).Load([]byte(both), kind)
		if diff := cmp.Diff(want, got, compareLoads); err != nil || diff != "" {
			t.Errorf("as %q: %v (-want +got):\n%s", kind, err, diff)
		}
	}
}

func TestKinds(t *testing.T) {
	for _, name := range []string{
		"", "vllm", "sglang", "trtllm-serve", "triton-tensorrt-llm", "triton", "tgi", "llama.cpp", "lmdeploy",
		"nim", "mlserver", "modelruntime",
	} {
		if kind, ok := engine.ParseKind(name); !ok || kind != engine.Kind(name) {
			t.Errorf("%q is the kind %q, %v", name, kind, ok)
		}
	}
	if kind, ok := engine.ParseKind("vLLM"); ok || kind != "" {
		t.Errorf("vLLM is the kind %q", kind)
	}
	for kind, want := range map[engine.Kind][]engine.Page{
		engine.VLLM:   {{Path: "/metrics"}},
		engine.Triton: {{Path: "/metrics"}, {Port: 8002, Path: "/metrics"}},
		"":            {{Path: "/metrics"}, {Path: "/v1/metrics"}, {Path: "/prometheus/metrics"}},
		"xllm":        {{Path: "/metrics"}, {Path: "/v1/metrics"}, {Path: "/prometheus/metrics"}},
	} {
		if diff := cmp.Diff(want, engine.Pages(kind)); diff != "" {
			t.Errorf("pages of %q (-want +got):\n%s", kind, diff)
		}
	}
}

func TestEveryVariantOfAName(t *testing.T) {
	for _, c := range []struct {
		name, page string
		want       engine.Load
	}{
		{"nothing", "", engine.Load{}},
		{"missing is unknown, not zero", "vllm:num_requests_running 0\n", engine.Load{Kind: engine.VLLM, Running: engine.Known(0)}},
		{
			"NVIDIA NIM has no prefix", "num_requests_running 3\nnum_requests_waiting 1\ngpu_cache_usage_perc 0.5\n",
			engine.Load{Kind: engine.VLLM, Running: engine.Known(3), Waiting: engine.Known(1), KVUsage: engine.Known(0.5)},
		},
		{
			"V0 names",
			"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\nvllm:num_requests_swapped 2\nvllm:gpu_cache_usage_perc 0.5\nvllm:cpu_cache_usage_perc 0.9\n",
			engine.Load{Kind: engine.VLLM, Running: engine.Known(3), Waiting: engine.Known(3), KVUsage: engine.Known(0.5)},
		},
		{
			"the newer name counts", "vllm:gpu_cache_usage_perc 0.1\nvllm:kv_cache_usage_perc 0.7\n",
			engine.Load{Kind: engine.VLLM, KVUsage: engine.Known(0.7)},
		},
		{
			"by reason is another family", "vllm:num_requests_waiting 10\nvllm:num_requests_waiting_by_reason{reason=\"capacity\"} 4\n",
			engine.Load{Kind: engine.VLLM, Waiting: engine.Known(10)},
		},
		{
			"data parallelism",
			"vllm:num_requests_running{engine=\"0\"} 3\nvllm:num_requests_running{engine=\"1\"} 4\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.2\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.6\n",
			engine.Load{Kind: engine.VLLM, Running: engine.Known(7), KVUsage: engine.Known(0.6)},
		},
		{
			"asleep", "vllm:engine_sleep_state{sleep_state=\"awake\"} 0\nvllm:engine_sleep_state{sleep_state=\"weights_offloaded\"} 1\n",
			engine.Load{Kind: engine.VLLM, Asleep: true},
		},
		{
			"one of two engines asleep",
			"vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} 1\nvllm:engine_sleep_state{engine=\"1\",sleep_state=\"awake\"} 0\n",
			engine.Load{Kind: engine.VLLM, Asleep: true},
		},
		{
			"the newest series of adapters counts",
			"vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a,b\",waiting_lora_adapters=\"a,b\"} 1.7e9\nvllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"\",waiting_lora_adapters=\"c\"} 1.8e9\n",
			engine.Load{Kind: engine.VLLM, MaxAdapters: engine.Known(4), Active: []string{"c"}},
		},
		{
			"the older sets differ by label",
			"vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"b\",waiting_lora_adapters=\"c, b\"} 5\n",
			engine.Load{Kind: engine.VLLM, MaxAdapters: engine.Known(1), Active: []string{"b", "c"}},
		},
		{
			"the KV of each engine of the endpoint",
			"vllm:num_requests_running 1\nvllm:cache_config_info{engine=\"0\",block_size=\"16\",num_gpu_blocks=\"100\"} 1\nvllm:cache_config_info{engine=\"1\",block_size=\"16\",num_gpu_blocks=\"50\"} 1\n",
			engine.Load{Kind: engine.VLLM, Running: engine.Known(1), KVTokens: engine.Known(2400)},
		},
		{
			"an engine without prefix caching",
			"vllm:num_requests_running 1\nvllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"False\",num_gpu_blocks=\"100\"} 1\n",
			engine.Load{Kind: engine.VLLM, Running: engine.Known(1), KVTokens: engine.Known(1600), Forgets: true},
		},
		{
			"one of two without prefix caching",
			"vllm:num_requests_running 1\nvllm:cache_config_info{engine=\"0\",enable_prefix_caching=\"False\"} 1\nvllm:cache_config_info{engine=\"1\",enable_prefix_caching=\"True\"} 1\n",
			engine.Load{Kind: engine.VLLM, Running: engine.Known(1), Forgets: true},
		},
		{
			"prefix caching that nobody decided yet",
			"vllm:num_requests_running 1\nvllm:cache_config_info{enable_prefix_caching=\"None\"} 1\n",
			engine.Load{Kind: engine.VLLM, Running: engine.Known(1)},
		},
		{"a configuration alone is no load", "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"100\"} 1\n", engine.Load{}},
		{
			"a configuration by a quoted name",
			"vllm:num_requests_running 1\n{\"vllm:cache_config_info\",block_size=\"16\",num_gpu_blocks=\"100\"} 1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1\"} 1\n",
			engine.Load{Kind: engine.VLLM, Running: engine.Known(1), KVTokens: engine.Known(1616)},
		},
		{
			"KV of a size that is not known yet",
			"vllm:num_requests_running 1\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n",
			engine.Load{Kind: engine.VLLM, Running: engine.Known(1)},
		},
		{
			"KV of blocks of a size that nobody tells", "trtllm_num_requests_running 1\ntrtllm_kv_cache_max_blocks 100\n",
			engine.Load{Kind: engine.TRTLLM, Running: engine.Known(1)},
		},
		{
			"not a number", "vllm:num_requests_running NaN\nvllm:num_requests_waiting +Inf\nvllm:kv_cache_usage_perc -1\n",
			engine.Load{Kind: engine.VLLM},
		},
		{"a quoted name", "{\"vllm:num_requests_running\",engine=\"0\"} 2\n", engine.Load{Kind: engine.VLLM, Running: engine.Known(2)}},
		{"a page of an unknown engine", "xllm:running 3\n", engine.Load{}},
		{
			"SGLang without priorities", "sglang:num_running_reqs{dp_rank=\"0\"} 2\nsglang:num_running_reqs{dp_rank=\"1\"} 3\n",
			engine.Load{Kind: engine.SGLang, Running: engine.Known(5)},
		},
		{"JSON, as trtllm-serve has at /metrics", "[{\"gpuMemUsage\": 1}]", engine.Load{}},
		{
			"a part of a summary is no gauge", "# TYPE nv_inference_pending_request summary\nnv_inference_pending_request_count 3\n",
			engine.Load{},
		},
		{
			"a broken line elsewhere", "http_requests{ 1\nvllm:num_requests_running 2\n",
			engine.Load{Kind: engine.VLLM, Running: engine.Known(2)},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := new(engine.Reader).Load([]byte(c.page), "")
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, compareLoads); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Lines that never change while an engine runs are parsed again after it restarts.
func TestConfigurationIsParsedAgainAfterARestart(t *testing.T) {
	var r engine.Reader
	config := func(blocks int) string {
		return fmt.Sprintf("# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"%d\"} 1.0\n", blocks)
	}
	for i, c := range []struct {
		page string
		want engine.Value
	}{
		{"vllm:num_requests_running 1\n" + config(10), engine.Known(160)},
		{"vllm:num_requests_running 2\n" + config(10), engine.Known(160)},
		{"vllm:num_requests_running 2\n" + config(20), engine.Known(320)},
		{"vllm:num_requests_running 2\n", engine.Value{}},
		{"sglang:num_running_reqs 2\n" + config(20), engine.Value{}},
		{"vllm:num_requests_running 2\n" + config(20), engine.Known(320)},
	} {
		got, err := r.Load([]byte(c.page), "")
		if err != nil || got.KVTokens != c.want {
			t.Errorf("page %d: %v, %v, want %v", i, got.KVTokens, err, c.want)
		}
	}
	if load, err := r.Load([]byte("vllm:num_requests_running 2\nvllm:cache_config_info{ 1\n"), ""); err == nil {
		t.Errorf("a configuration in another format is read as %+v", load)
	}
}

func TestPageInAnotherFormatIsAnError(t *testing.T) {
	for _, page := range []string{
		"vllm:num_requests_running{ 1\n",
		"vllm:num_requests_running many\n",
		"{\"vllm:num_requests_running\": 1}\n",
		// The parser panics.
		"# TYPE vllm:iteration_tokens_total histogram\nvllm:num_requests_running 1\n{\"vllm:iteration_tokens_total_count\",a=\"b\"} 1\n",
	} {
		if load, err := new(engine.Reader).Load([]byte(page), ""); err == nil {
			t.Errorf("%q is read as %+v", page, load)
		}
	}
}

func TestLoadReport(t *testing.T) {
	got, err := engine.ReadReport("TEXT named_metrics.num_requests_waiting=2.0, named_metrics.kv_cache_usage_perc=0.4")
	want := engine.Load{Waiting: engine.Known(2), KVUsage: engine.Known(0.4)}
	if diff := cmp.Diff(want, got, compareLoads); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"", "TEXT", "TEXT x", "TEXT named_metrics.num_requests_waiting=two", `JSON {"named_metrics": {}}`} {
		if got, err := engine.ReadReport(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

func TestModels(t *testing.T) {
	for _, c := range []struct {
		name, list string
		want       engine.Models
	}{
		{
			"vLLM", `{"object":"list","data":[{"id":"tiny","parent":null},{"id":"tiny-alias"},{"id":"a1","parent":"tiny"},{"id":"../x","parent":"tiny"},{"id":""}]}`,
			engine.Models{Base: []string{"tiny", "tiny-alias"}, Adapters: []string{"a1", "../x"}},
		},
		{
			"a vLLM's owner", `{"data":[{"id":"tiny","owned_by":"vllm","parent":null},{"id":"a1","owned_by":"vllm","parent":"tiny"}]}`,
			engine.Models{Base: []string{"tiny"}, Adapters: []string{"a1"}, Kind: engine.VLLM},
		},
		{
			"SGLang",
			`{"object":"list","data":[{"id":"llama","object":"model","owned_by":"sglang","root":"llama","parent":null,"max_model_len":40960},{"id":"sql","root":"/adapters/sql","parent":"llama"}]}`,
			engine.Models{Base: []string{"llama"}, Adapters: []string{"sql"}, MaxLength: 40960, Kind: engine.SGLang},
		},
		{
			"the shortest of several",
			`{"data":[{"id":"a"},{"id":"b","max_model_len":4096},{"id":"c","max_model_len":1024},{"id":"d","max_model_len":-1},{"id":"x","parent":"a","max_model_len":7}]}`,
			engine.Models{Base: []string{"a", "b", "c", "d"}, Adapters: []string{"x"}, MaxLength: 1024},
		},
		{
			"TGI", `{"object":"list","data":[{"id":"meta-llama/Llama-3.1-8B","object":"model","created":0,"owned_by":"meta-llama/Llama-3.1-8B"}]}`,
			engine.Models{Base: []string{"meta-llama/Llama-3.1-8B"}},
		},
		{
			"llama.cpp",
			`{"models":[{"name":"other","model":"other","details":{"parent_model":"x"}}],"object":"list","data":[{"id":"qwen3","aliases":["qwen3"],"object":"model","owned_by":"llamacpp","meta":{"n_ctx":40960}}]}`,
			engine.Models{Base: []string{"qwen3"}, Kind: engine.LlamaCpp},
		},
		{
			"models named by paths", `{"data":[{"id":"/models/qwen3.gguf"},{"id":"../a","parent":"/models/qwen3.gguf"},{"id":"b\u0000"}]}`,
			engine.Models{Base: []string{"/models/qwen3.gguf"}, Adapters: []string{"../a"}},
		},
		{"an empty list", `{"data":[]}`, engine.Models{}},
	} {
		got, err := engine.ReadModels([]byte(c.list))
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", c.name, err, diff)
		}
	}
	for _, bad := range []string{"", "{}", "[]", `{"detail":"Not Found"}`, `{"models":[{"name":"x"}]}`} {
		if got, err := engine.ReadModels([]byte(bad)); err == nil {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
}

func TestNamesThatAreNotModels(t *testing.T) {
	for _, name := range []string{
		"", "/etc/passwd", "../lora/a4", "a/../../b", "a/./b", "a//b", "a/", "~/x", `..\x`, "a\x00b", "a\nb",
		"a\x7fb", "a\u0085b", "a\xffb", "a\ufffdb", strings.Repeat("a", 513),
	} {
		if engine.CheckName(name) == nil {
			t.Errorf("%q is taken for a model's name", name)
		}
	}
	for _, name := range []string{"tiny", "meta-llama/Llama-3.1-8B-Instruct", "gpt-4:ft.x@1", "模型", "a..b", "...", ".hidden", "a b"} {
		if err := engine.CheckName(name); err != nil {
			t.Errorf("%q is refused: %v", name, err)
		}
	}
}

// The oracle is expfmt on the lines that count, whatever pages the Reader read before. If expfmt
// can parse the whole page, the result is the same.
func FuzzLoad(f *testing.F) {
	for _, file := range []string{"vllm-0.32-idle.txt", "vllm-0.32-loaded.txt"} {
		page := recorded(f, file)
		lines := bytes.SplitAfter(page, []byte("\n"))
		var short []byte // one line in ten: the fuzzer is faster on small pages
		for i, line := range lines {
			if i%10 == 0 || bytes.Contains(line, []byte("vllm:num_requests")) || bytes.Contains(line, []byte("lora")) ||
				bytes.Contains(line, []byte("cache_config")) {
				short = append(short, line...)
			}
		}
		f.Add(short, "")
	}
	for _, kind := range engine.Kinds() {
		if pages, _ := filepath.Glob("testdata/" + string(kind) + "-*"); kind != engine.VLLM && kind != engine.Triton && len(pages) > 0 {
			f.Add(recorded(f, filepath.Base(pages[0])), string(kind))
		}
	}
	f.Add(recorded(f, "triton-2.51.txt"), "triton")
	f.Add([]byte("# TYPE vllm:num_requests_running histogram\nvllm:num_requests_running_sum 1\n\t {\"vllm:kv_cache_usage_perc\"} 1\n"), "")
	f.Add([]byte("# TYPE vllm:num_requests_running histogram\nvllm:num_requests_running_sum 1\n\t "), "")
	f.Add([]byte("vllm:num_requests_running 1\n{\"vllm:cache_config_info\",block_size=\"16\",num_gpu_blocks=\"100\"} 1\n# TYPE vllm:cache_config_info summary\n"), "vllm")
	f.Add([]byte("vllm:num_requests_running 1\n# TYPE vllm:inter_token_latency_seconds histogram\nvllm:inter_token_latency_seconds_bucket{le=\"1\"} 1\n"+
		"vllm:inter_token_latency_seconds_sum 2\nvllm:prompt_tokens_total{a=\"b\"} 1\n"), "")
	f.Add([]byte("sglang:num_running_reqs 1\n# TYPE sglang:time_to_first_token_seconds histogram\nsglang:time_to_first_token_seconds_bucket{a=\"b\",le=\"1\"} 1\n"+
		"sglang:time_to_first_token_seconds_sum 2\nsglang:time_to_first_token_seconds_count 1\n"), "")
	f.Add([]byte("# TYPE nv_inference_pending_request summary\nnv_inference_pending_request_count 3\n"), "triton")
	f.Fuzz(func(t *testing.T, page []byte, kind string) {
		var r engine.Reader
		later := bytes.ReplaceAll(page, []byte("1"), []byte("7")) // mostly the same layout
		for _, p := range [][]byte{page, page, later, page} {
			_ = compare(t, &r, p, engine.Kind(kind))
		}
		want, oracleErr := engine.ParseWhole(page, engine.Kind(kind))
		if oracleErr != nil {
			return
		}
		got, err := r.Load(page, engine.Kind(kind))
		if err != nil {
			t.Fatalf("%q: %v, but the whole page is read", page, err)
		}
		if diff := cmp.Diff(want, got, compareLoads); diff != "" {
			t.Fatalf("%q (-whole +lines):\n%s", page, diff)
		}
	})
}

// With data parallelism there is a series for each rank, and a value missing for one is unknown for
// all. Of several names the first one on the page counts.
func TestTotals(t *testing.T) {
	two := func(name, first, second string) string {
		return name + `{engine="0"} ` + first + "\n" + name + `{engine="1"} ` + second + "\n"
	}
	for _, c := range []struct {
		name, page string
		want       engine.Totals
	}{
		{
			"two engines", "# TYPE vllm:inter_token_latency_seconds histogram\n" +
				two("vllm:inter_token_latency_seconds_count", "10", "30") +
				two("vllm:inter_token_latency_seconds_sum", "0.5", "1.5") + two("vllm:generation_tokens_total", "12", "31"),
			engine.Totals{InterToken: timed(40, 2), GeneratedTokens: engine.Known(43)},
		},
		{
			"one of two says what is no time", "# TYPE vllm:inter_token_latency_seconds histogram\n" +
				two("vllm:inter_token_latency_seconds_count", "10", "30") +
				two("vllm:inter_token_latency_seconds_sum", "0.5", "NaN") + two("vllm:generation_tokens_total", "NaN", "31"),
			engine.Totals{InterToken: engine.Timed{Count: engine.Known(40)}},
		},
		{
			"one of two has no sum", "# TYPE vllm:inter_token_latency_seconds histogram\n" +
				two("vllm:inter_token_latency_seconds_count", "10", "30") +
				`vllm:inter_token_latency_seconds_sum{engine="0"} 1` + "\n",
			engine.Totals{},
		},
		{
			"older names",
			"# TYPE vllm:time_per_output_token_seconds histogram\nvllm:time_per_output_token_seconds_count 4\nvllm:time_per_output_token_seconds_sum 0.25\n" +
				"vllm:prefix_cache_hits_total 3\n",
			engine.Totals{InterToken: timed(4, 0.25), CachedTokens: engine.Known(3)},
		},
		{
			"steps of two engines, in buckets of their own", "# TYPE vllm:iteration_tokens_total histogram\n" +
				two("vllm:iteration_tokens_total_count", "10", "30") + two("vllm:iteration_tokens_total_sum", "100", "300") +
				`vllm:iteration_tokens_total_bucket{engine="0",le="1"} 1` + "\n" +
				`vllm:iteration_tokens_total_bucket{engine="0",le="10"} 4` + "\n" +
				`vllm:iteration_tokens_total_bucket{engine="1",le="8"} 20` + "\n" +
				`vllm:iteration_tokens_total_bucket{engine="1",le="+Inf"} 30` + "\n",
			engine.Totals{Steps: engine.Steps{
				Count: engine.Known(40),
				UpTo:  [15]float64{21, 30, 30, 30, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40, 40},
			}},
		},
		{
			"newer names before older ones", "vllm:prompt_tokens_cached_total 2\nvllm:prefix_cache_hits_total 3\n",
			engine.Totals{CachedTokens: engine.Known(2)},
		},
	} {
		got, err := new(engine.Reader).Load([]byte("vllm:num_requests_running 1\n"+c.page), "")
		if diff := cmp.Diff(c.want, got.Totals, compareLoads); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", c.name, err, diff)
		}
	}
}

// Run it with go test ./internal/engine -run "^$" -bench Load. "Plain" is the parser before the
// Reader remembered layouts; "whole" is expfmt on all lines.
func BenchmarkLoad(b *testing.B) {
	page := recorded(b, "vllm-0.32-loaded.txt")
	var busy [][]byte
	for i := range 8 {
		busy = append(busy, moved(page, i))
	}
	for _, c := range []struct {
		name  string
		pages [][]byte
	}{{"idle", [][]byte{page}}, {"busy", busy}} {
		for _, by := range []struct {
			impl string
			load func([]byte, engine.Kind) (engine.Load, error)
		}{{"plain", new(engine.PlainReader).Load}, {"headgate", new(engine.Reader).Load}, {"whole", engine.ParseWhole}} {
			b.Run("engine="+c.name+"/impl="+by.impl, func(b *testing.B) {
				b.SetBytes(int64(len(page)))
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if _, err := by.load(c.pages[i%len(c.pages)], ""); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func TestBlockTokens(t *testing.T) {
	for page, want := range map[string]engine.Value{
		"vllm:cache_config_info{block_size=\"128\",num_gpu_blocks=\"100\"} 1\n": engine.Known(128),
		"vllm:num_requests_running 1\n":                                         {},
		"vllm:cache_config_info{block_size=\"None\"} 1\n":                       {},
		"sglang:cache_config_info{page_size=\"64\",num_pages=\"9\"} 1\n":        {},
	} {
		if got, err := engine.BlockTokens([]byte(page)); err != nil || got != want {
			t.Errorf("%v: of %s it is %v, want %v", err, page, got, want)
		}
	}
	if _, err := engine.BlockTokens([]byte("<html>")); err == nil {
		t.Error("what is no page of metrics is no error")
	}
}
