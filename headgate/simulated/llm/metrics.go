package llm

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/headgate/headgate/internal/profile"
	"github.com/headgate/headgate/internal/sim"
)

// metrics serves GET /metrics with the names, labels and help texts of vLLM 0.32.
func (c *call) metrics() *failure {
	s := c.s
	p := page{labels: fmt.Sprintf(`engine="0",model_name=%s`, quote(s.models.names[0]))}
	ok := s.driver.do(c.r.Context(), func() {
		p.scheduler(s.driver.sim.Counts(), s.driver.asleep)
		p.tokens(s.driver.stats, s.driver.sim.Counts())
		p.requests(s.driver.stats, s.models.names[0])
		p.histograms(s.driver.stats)
		p.adapters(s.driver.stats, s.config.Profile.Limits)
		p.own(s.driver.sim.Counts(), s.config.Profile.Limits)
	})
	if !ok {
		return abandoned
	}
	p.cacheConfig(s.config)
	p.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	p.line("process_start_time_seconds", float64(s.born.UnixMilli()/10)/100)
	p.family("sim:requests_total", "counter", "HTTP requests of the simulated engine; status 0 had no answer.")
	s.traffic.each(func(e exchange, n uint64) {
		p.line(fmt.Sprintf(`sim:requests_total{path=%s,status="%d"}`, quote(e.path), e.status), float64(n))
	})
	return c.respond(http.StatusOK, "text/plain; version=1.0.0; charset=utf-8", p.text)
}

func (p *page) scheduler(c sim.Counts, asleep int) {
	p.single("vllm:num_requests_running", "gauge", "Number of requests in model execution batches.", float64(c.Running))
	p.single("vllm:num_requests_waiting", "gauge", "Number of requests waiting to be processed.", float64(c.Waiting))
	p.family("vllm:num_requests_waiting_by_reason", "gauge",
		"Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). Sum of all reasons equals vllm:num_requests_waiting.")
	p.sample("vllm:num_requests_waiting_by_reason", `reason="capacity"`, float64(c.Waiting-c.Deferred))
	p.sample("vllm:num_requests_waiting_by_reason", `reason="deferred"`, float64(c.Deferred))
	p.family("vllm:engine_sleep_state", "gauge",
		"Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.")
	for level, state := range []string{"awake", "weights_offloaded", "discard_all"} {
		p.sample("vllm:engine_sleep_state", `sleep_state="`+state+`"`, truth(level == asleep))
	}
	p.single("vllm:kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", c.KVUsage)
	p.single("vllm:num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", float64(c.Preemptions))
}

func (p *page) tokens(s *stats, c sim.Counts) {
	cached := float64(s.cachedTokens)
	p.single("vllm:prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.",
		float64(c.PrefixQueries))
	p.single("vllm:prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.", float64(c.PrefixHits))
	p.single("vllm:prompt_tokens_total", "counter", "Number of prefill tokens processed.", float64(s.promptTokens))
	p.family("vllm:prompt_tokens_by_source_total", "counter", "Number of prompt tokens by source.")
	p.sample("vllm:prompt_tokens_by_source_total", `source="local_compute"`, float64(s.promptTokens)-cached)
	p.sample("vllm:prompt_tokens_by_source_total", `source="local_cache_hit"`, cached)
	p.sample("vllm:prompt_tokens_by_source_total", `source="external_kv_transfer"`, 0)
	p.single("vllm:prompt_tokens_cached_total", "counter", "Number of cached prompt tokens (local + external).", cached)
	p.family("vllm:prompt_tokens_cached_by_source_total", "counter",
		"Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.")
	p.sample("vllm:prompt_tokens_cached_by_source_total", `source="device"`, float64(c.PrefixHits))
	for _, tier := range []string{"host", "p2p", "disk", "external_unspecified"} {
		p.sample("vllm:prompt_tokens_cached_by_source_total", `source="`+tier+`"`, 0)
	}
	p.single("vllm:generation_tokens_total", "counter", "Number of generation tokens processed.", float64(s.generationTokens))
}

func (p *page) requests(s *stats, model string) {
	p.family("vllm:request_success_total", "counter", "Count of successfully processed requests.")
	for _, reason := range finishReasons {
		p.sample("vllm:request_success_total", `finished_reason="`+reason+`"`, float64(s.finished[reason]))
	}
	// The frontend counts these rejections, so they have no engine label.
	p.family("vllm:admission_rejections_total", "counter", "Number of admission attempts rejected by a queue limit, by reason.")
	p.line(fmt.Sprintf(`vllm:admission_rejections_total{model_name=%s,reason="max_num_queued_reqs"}`, quote(model)), float64(s.rejections))
	p.line(fmt.Sprintf(`vllm:admission_rejections_total{model_name=%s,reason="max_num_queued_tokens"}`, quote(model)), 0)
}

func (p *page) histograms(s *stats) {
	for _, h := range []struct {
		name, help string
		of         *histogram
	}{
		{"request_prompt_tokens", "Number of prefill tokens processed.", &s.promptLength},
		{"request_generation_tokens", "Number of generation tokens processed.", &s.outputLength},
		{"iteration_tokens_total", "Histogram of number of tokens per engine_step.", &s.iterationTokens},
		{"request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", &s.outputLength},
		{"request_params_n", "Histogram of the n request parameter.", &s.choices},
		{"request_params_max_tokens", "Histogram of the max_tokens request parameter.", &s.maxTokens},
		{"time_to_first_token_seconds", "Histogram of time to first token in seconds.", &s.firstToken},
		{"inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &s.interToken},
		{"request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", &s.perToken},
		{"e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &s.e2e},
		{"request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", &s.queue},
		{"request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", &s.inference},
		{"request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", &s.prefill},
		{"request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", &s.decode},
		{"request_num_preemptions", "Histogram of the number of times a request was preempted.", &s.preemptions},
		{
			"request_prefill_kv_computed_tokens", "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
			&s.computed,
		},
	} {
		p.histogram("vllm:"+h.name, h.help, h.of)
	}
}

func (p *page) histogram(name, help string, h *histogram) {
	p.family(name, "histogram", help)
	total := uint64(0)
	for i, n := range h.counts {
		total += n
		bound := "+Inf"
		if i < len(h.bounds) {
			bound = number(h.bounds[i])
		}
		p.sample(name+"_bucket", `le="`+bound+`"`, float64(total))
	}
	p.sample(name+"_count", "", float64(total))
	p.sample(name+"_sum", "", h.sum)
}

func (p *page) adapters(s *stats, limits profile.Limits) {
	if limits.GPUAdapters == 0 {
		return
	}
	p.family("vllm:lora_requests_info", "gauge", "Running stats on lora requests.")
	for _, set := range slices.Sorted(maps.Keys(s.loraInfo)) {
		// Both labels have the same adapters: vLLM does not distinguish running from waiting.
		p.line(fmt.Sprintf(`vllm:lora_requests_info{max_lora="%d",running_lora_adapters=%[2]s,waiting_lora_adapters=%[2]s}`,
			limits.GPUAdapters, quote(set)), s.loraInfo[set])
	}
}

// own writes metrics that no vLLM has: the number of adapter slots and how many are used, and how
// often adapters were loaded.
func (p *page) own(c sim.Counts, limits profile.Limits) {
	p.single("sim:slots", "gauge", "Adapter slots on the GPU.", float64(limits.GPUAdapters))
	p.single("sim:slots_used", "gauge", "Adapter slots that hold an adapter.", float64(c.Slots))
	p.single("sim:slot_loads_total", "counter", "Adapters brought from host memory into a slot.", float64(c.SlotLoads))
	p.single("sim:host_loads_total", "counter", "Adapters brought from storage into host memory.", float64(c.HostLoads))
}

// cacheConfig writes the cache configuration as labels. What the simulation lacks has the values of
// the recording.
func (p *page) cacheConfig(c Config) {
	limits := c.Profile.Limits
	tokens := limits.KVBlocks * limits.BlockSize
	p.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	var labels []string
	for _, l := range [][2]any{
		{"_block_size_resolved", "True"},
		{"block_size", limits.BlockSize},
		{"cache_dtype", "auto"},
		{"cache_hit_alignment_tokens", "None"},
		{"effective_attention_block_size", limits.BlockSize},
		{"enable_mamba_shared_prefix_checkpoint", "False"},
		{"enable_prefix_caching", "True"},
		{"engine", 0},
		{"gpu_memory_utilization", "0.92"},
		{"hash_block_size", "None"},
		{"is_attention_free", "False"},
		{"kv_cache_dtype_skip_layers", "[]"},
		{"kv_cache_layout", "None"},
		{"kv_cache_max_concurrency", number(float64(tokens) / float64(c.MaxModelLen))},
		{"kv_cache_memory_bytes", "None"},
		{"kv_cache_size_tokens", tokens},
		{"kv_offloading_backend", "native"},
		{"kv_offloading_size", "None"},
		{"kv_sharing_fast_prefill", "False"},
		{"mamba_block_size", "None"},
		{"mamba_cache_dtype", "auto"},
		{"mamba_cache_mode", "none"},
		{"mamba_page_size_padded", "None"},
		{"mamba_ssm_cache_dtype", "float32"},
		{"num_cpu_blocks", "None"},
		{"num_gpu_blocks", limits.KVBlocks},
		{"num_gpu_blocks_override", "None"},
		{"prefix_cache_retention_interval", 0},
		{"prefix_caching_hash_algo", "sha256"},
		{"prefix_match_unit", "None"},
		{"replayssm_buffer_len", 16},
		{"skip_page_size_padded", "None"},
		{"sliding_window", "None"},
		{"swa_bounded_replay", "True"},
		{"use_kda_recoverssm", "False"},
		{"use_replayssm", "False"},
		{"user_specified_block_size", "False"},
	} {
		labels = append(labels, fmt.Sprintf(`%s="%v"`, l[0], l[1]))
	}
	p.line("vllm:cache_config_info{"+strings.Join(labels, ",")+"}", 1)
}

// page is a metrics page in Prometheus' text format.
type page struct {
	text   []byte
	labels string // labels of every vllm: sample
}

func (p *page) family(name, kind, help string) {
	p.text = fmt.Appendf(p.text, "# HELP %[1]s %[2]s\n# TYPE %[1]s %[3]s\n", name, help, kind)
}

func (p *page) single(name, kind, help string, v float64) {
	p.family(name, kind, help)
	p.sample(name, "", v)
}

// sample writes a sample with the common labels and one additional label.
func (p *page) sample(name, label string, v float64) {
	p.text = append(append(append(p.text, name...), '{'), p.labels...)
	if label != "" {
		p.text = append(append(p.text, ','), label...)
	}
	p.text = append(append(append(p.text, "} "...), number(v)...), '\n')
}

func (p *page) line(series string, v float64) {
	p.text = append(append(append(append(p.text, series...), ' '), number(v)...), '\n')
}

// number formats v as Python does: 8.0, 0.25, 1.7952284e+09.
func number(v float64) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if strings.ContainsAny(text, ".e") || math.IsInf(v, 0) || math.IsNaN(v) {
		return text
	}
	return text + ".0"
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
