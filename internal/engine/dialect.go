package engine

import (
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
)

// dialect describes how engines of one kind report their load: where the metrics page is and which
// of its series count. For each quantity the first selector found on the page counts; a quantity
// without one stays unknown. A new engine needs a new entry in dialects and a page in testdata.
type dialect struct {
	kind  Kind
	pages []Page

	running []selector
	waiting []selector
	aside   []selector // waiting requests not included in waiting
	// deferred are waiting requests, included in waiting, that the batch does not delay.
	deferred []selector
	kvUsage  []selector // 0 to 1

	// The size of the KV cache in tokens: as one number, as blocks times tokens per block, or in
	// labels of vLLM's configuration.
	kvTokens, kvBlocks, blockTokens, kvConfig []selector

	slots    []selector // adapter slots on the GPU
	adapters []selector // vLLM's table of active adapters, which also has the slots
	awake    []selector // 0 while the engine sleeps

	totals counters
}

// Page is a place where an engine may serve its metrics.
type Page struct {
	// Port is the page's port; 0 means the endpoint's own.
	Port uint16
	Path string
}

// dialects are in the order of detection: if a page has names of two kinds, the first one is
// chosen.
//
// Sources: the pages of vLLM 0.32.0 and Triton 2.51.0 are recorded; other names are from
// documentation and source code, each with a page in testdata that says so.
var dialects = []dialect{
	{
		kind: VLLM, pages: pages("/metrics"),
		// Newest first: V1, V0 and older, and NIM's.
		running:  series("vllm:num_requests_running", "num_requests_running"),
		waiting:  series("vllm:num_requests_waiting", "num_requests_waiting"),
		deferred: series("vllm:num_requests_waiting_by_reason{reason=deferred}"), // from 0.24 on
		aside:    series("vllm:num_requests_swapped"),                            // V0 only
		kvUsage:  series("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "gpu_cache_usage_perc"),
		kvConfig: series("vllm:cache_config_info", "cache_config_info"),
		adapters: series("vllm:lora_requests_info", "lora_requests_info"),
		awake:    series("vllm:engine_sleep_state{sleep_state=awake}", "engine_sleep_state{sleep_state=awake}"),
		totals: counters{
			queue: series("vllm:request_queue_time_seconds"), prefill: series("vllm:request_prefill_time_seconds"),
			decode: series("vllm:request_decode_time_seconds"), firstToken: series("vllm:time_to_first_token_seconds"),
			interToken: series("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"), // newest first
			prompt:     series("vllm:prompt_tokens_total"), generated: series("vllm:generation_tokens_total"),
			cached:        series("vllm:prompt_tokens_cached_total", "vllm:prefix_cache_hits_total"), // the latter counts at admission
			prefillTokens: series("vllm:request_prefill_kv_computed_tokens"), steps: series("vllm:iteration_tokens_total"),
		},
	},
	{
		// Newer versions serve /v1/metrics, older ones /metrics. Detected by its metrics page
		// alone, NIM is taken for vLLM.
		kind: NIM, pages: pages("/v1/metrics", "/metrics"),
		running: series("num_requests_running"),
		waiting: series("num_requests_waiting"),
		kvUsage: series("gpu_cache_usage_perc"),
	},
	{
		kind: SGLang, pages: pages("/metrics"),
		// With priorities there is a series for each, and one for the total, whose priority is
		// empty.
		running:  series("sglang:num_running_reqs{priority=}"),
		waiting:  series("sglang:num_queue_reqs{priority=}"),
		kvUsage:  series("sglang:token_usage"),
		kvTokens: series("sglang:max_total_num_tokens"),
		slots:    series("sglang:lora_pool_slots_total"),
		totals: counters{
			queue: series("sglang:queue_time_seconds"), firstToken: series("sglang:time_to_first_token_seconds"),
			interToken: series("sglang:inter_token_latency_seconds"), prompt: series("sglang:prompt_tokens_total"),
			// cached has a label for the cache level
			cached: series("sglang:cached_tokens_total"), generated: series("sglang:generation_tokens_total"),
		},
	},
	{
		// Its /metrics is JSON. Dynamo serves the same names, older versions with a colon.
		kind: TRTLLM, pages: pages("/prometheus/metrics", "/metrics"),
		running:     series("trtllm_num_requests_running", "trtllm:num_requests_running"),
		waiting:     series("trtllm_num_requests_waiting", "trtllm:num_requests_waiting"),
		kvUsage:     series("trtllm_kv_cache_utilization", "trtllm:kv_cache_utilization"),
		kvBlocks:    series("trtllm_kv_cache_max_blocks", "trtllm:kv_cache_max_blocks"),
		blockTokens: series("trtllm_kv_cache_tokens_per_block", "trtllm:kv_cache_tokens_per_block"),
	},
	{
		kind: TritonTRTLLM, pages: tritonPages,
		running:     series("nv_trt_llm_request_metrics{request_type=scheduled}"),
		waiting:     series("nv_trt_llm_request_metrics{request_type=waiting}"),
		kvUsage:     series("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"),
		kvBlocks:    series("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
		blockTokens: series("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
	},
	{
		kind: Triton, pages: tritonPages,
		waiting: series("nv_inference_pending_request_count"),
	},
	{
		kind: TGI, pages: pages("/metrics"),
		running: series("tgi_batch_current_size"),
		waiting: series("tgi_queue_size"),
	},
	{
		kind: LlamaCpp, pages: pages("/metrics"), // only with --metrics
		running: series("llamacpp:requests_processing"),
		waiting: series("llamacpp:requests_deferred"),
		kvUsage: series("llamacpp:kv_cache_usage_ratio"), // older versions
	},
	{
		kind: LMDeploy, pages: pages("/metrics"),
		running: series("lmdeploy:num_requests_running"),
		waiting: series("lmdeploy:num_requests_waiting"),
		aside:   series("lmdeploy:num_api_requests_waiting"), // wait for a handle, before the engine's own queue
		kvUsage: series("lmdeploy:gpu_cache_usage_perc"),
	},
	{
		// Its page, on port 8082, counts requests that arrived and ended, and has a histogram of
		// waiting requests. The only current count is that of REST calls, which include loads
		// (1.7.1).
		kind: MLServer,
	},
	{
		// Its page, on port 8082, counts requests that ended and has a gauge of the last one's
		// queue time. It has no current count (0.12.0).
		kind: TorchServe,
	},
	{
		// Its page, which a configuration file must enable, counts requests and loads that ended.
		kind: TFServing,
	},
	{
		// Its interface has no metrics, and its request port may speak any protocol: there is no
		// page to read.
		kind: ModelRuntime,
	},
}

// tritonPages: Triton's OpenAI frontend serves the page beside its API; plain Triton serves it on a
// port of its own, 8002 by default (2.51.0; its HTTP port answers 404).
var tritonPages = []Page{{Path: "/metrics"}, {Port: 8002, Path: "/metrics"}}

func pages(paths ...string) []Page {
	all := make([]Page, len(paths))
	for i, path := range paths {
		all[i].Path = path
	}
	return all
}

// Pages returns where engines of a kind may serve their metrics, the most likely place first. For
// an unknown kind it is only the endpoint's own port: other ports are not called unless the kind
// was stated.
func Pages(k Kind) []Page {
	if d, known := dialectOf(k); known {
		return d.pages
	}
	var all []Page
	for _, d := range dialects {
		for _, p := range d.pages {
			if p.Port == 0 && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return all
}

// dialectOf returns the dialect of a kind, and whether there is one.
func dialectOf(k Kind) (d dialect, known bool) {
	for _, d := range dialects {
		if d.kind == k {
			return d, true
		}
	}
	return dialect{}, false
}

// all returns every selector of the current load, without kvConfig.
func (d dialect) all() []selector {
	return slices.Concat(d.running, d.waiting, d.aside, d.deferred, d.kvUsage, d.kvTokens, d.kvBlocks, d.blockTokens, d.slots, d.adapters,
		d.awake)
}

// speaks reports whether a page has a series of the dialect. A configuration series alone is no
// load.
func (d dialect) speaks(families families) bool { return len(families.first(d.all())) > 0 }

// selector selects series of one family: all of them, or those with a label value. An empty value
// also matches series without the label.
type selector struct{ name, label, value string }

// series parses selectors of the form name or name{label=value}.
func series(texts ...string) []selector {
	all := make([]selector, len(texts))
	for i, text := range texts {
		name, rest, _ := strings.Cut(text, "{")
		label, value, _ := strings.Cut(strings.TrimSuffix(rest, "}"), "=")
		all[i] = selector{name, label, value}
	}
	return all
}

// families is a metrics page by family name.
type families map[string]*dto.MetricFamily

// first returns the series of the first selector found on the page, nil if there is none.
// Histograms and summaries do not count.
func (f families) first(selectors []selector) []*dto.Metric {
	for _, s := range selectors {
		switch f[s.name].GetType() {
		case dto.MetricType_HISTOGRAM, dto.MetricType_GAUGE_HISTOGRAM, dto.MetricType_SUMMARY:
			continue
		}
		all := f[s.name].GetMetric()
		if s.label == "" {
			if len(all) > 0 {
				return all
			}
			continue
		}
		var some []*dto.Metric
		for _, m := range all {
			if label(m, s.label) == s.value {
				some = append(some, m)
			}
		}
		if len(some) > 0 {
			return some
		}
	}
	return nil
}

// started is the process's start time, which Prometheus' client libraries export for a single
// process.
var started = series("process_start_time_seconds")

// wanted is the set of names whose lines a Reader parses. If a family's name ends like a part of a
// histogram or summary, its type may be declared under the stem.
var wanted = func() map[string]bool {
	set := make(map[string]bool)
	for _, d := range dialects {
		for _, s := range slices.Concat(d.all(), d.kvConfig, d.totals.numbers(), started) {
			set[s.name] = true
			for _, part := range []string{"_count", "_sum", "_bucket"} {
				if stem, ok := strings.CutSuffix(s.name, part); ok {
					set[stem] = true
				}
			}
		}
		for _, s := range d.totals.histograms() { // histograms without their buckets
			set[s.name], set[s.name+"_sum"], set[s.name+"_count"] = true, true, true
		}
		for _, s := range d.totals.steps {
			set[s.name+"_bucket"] = true
		}
	}
	return set
}()

// settled is the subset of wanted whose lines never change while an engine runs.
var settled = func() map[string]bool {
	set := make(map[string]bool)
	for _, d := range dialects {
		for _, s := range d.kvConfig {
			set[s.name] = true
		}
	}
	return set
}()

// adapterTables is the subset of wanted with vLLM's tables of adapters.
var adapterTables = func() map[string]bool {
	set := make(map[string]bool)
	for _, d := range dialects {
		for _, s := range d.adapters {
			set[s.name] = true
		}
	}
	return set
}()
