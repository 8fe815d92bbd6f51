package llm

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// loadSGLang serves POST /load_lora_adapter of SGLang.
func (c *call) loadSGLang() *failure {
	root, f := c.read()
	if f != nil {
		return f
	}
	a := Adapter{Name: root.Get("lora_name").String(), Path: root.Get("lora_path").String()}
	if a.Name == "" || a.Path == "" {
		return c.listLoaded(invalidInput("lora_name and lora_path are needed"))
	}
	return c.listLoaded(c.inTurn("load", a, func(done func(*failure)) {
		if c.s.adapters.has(a.Name) {
			done(invalidInput("the adapter %q is already loaded", a.Name))
			return
		}
		c.s.bring(a, false, done)
	}))
}

// unloadSGLang serves POST /unload_lora_adapter of SGLang. Unloading an unknown adapter is an
// error.
func (c *call) unloadSGLang() *failure {
	root, f := c.read()
	if f != nil {
		return f
	}
	name := root.Get("lora_name").String()
	return c.listLoaded(c.inTurn("unload", Adapter{Name: name}, func(done func(*failure)) {
		done(c.s.remove(name, "no adapter %q is loaded"))
	}))
}

// listLoaded answers a load or an unload as SGLang does: with the loaded adapters, and with 200, or
// with 400 after a failure.
func (c *call) listLoaded(f *failure) *failure {
	if f == abandoned {
		return f
	}
	answer := struct {
		Success bool              `json:"success"`
		Message string            `json:"error_message,omitempty"`
		Loaded  map[string]string `json:"loaded_adapters"`
	}{f == nil, "", map[string]string{}}
	status := http.StatusOK
	if f != nil {
		status, answer.Message = http.StatusBadRequest, f.message
	}
	for _, a := range c.s.adapters.all() {
		answer.Loaded[a.Name] = a.Path
	}
	body, err := json.Marshal(answer)
	if err != nil {
		panic(err) // cannot happen: texts always encode
	}
	return c.json(status, body)
}

// sglangMetrics serves GET /metrics of SGLang with --enable-metrics and --enable-lora, with
// the documented names.
func (c *call) sglangMetrics() *failure {
	s := c.s
	p := page{labels: fmt.Sprintf(`engine_type="unified",model_name=%s,moe_ep_rank="0",pp_rank="0",tp_rank="0"`, quote(s.models.names[0]))}
	limits := s.config.Profile.Limits
	ok := s.driver.do(c.r.Context(), func() {
		counts, stats := s.driver.sim.Counts(), s.driver.stats
		tokens := float64(limits.KVBlocks * limits.BlockSize)
		p.single("sglang:num_running_reqs", "gauge", "Requests that run.", float64(counts.Running))
		p.single("sglang:num_queue_reqs", "gauge", "Requests that wait.", float64(counts.Waiting))
		p.single("sglang:num_used_tokens", "gauge", "Tokens in the KV cache.", counts.KVUsage*tokens)
		p.single("sglang:max_total_num_tokens", "gauge", "Tokens that the KV cache holds.", tokens)
		p.single("sglang:token_usage", "gauge", "Share of the KV cache in use.", counts.KVUsage)
		p.single("sglang:cache_hit_rate", "gauge", "Share of prompt tokens that were cached.",
			float64(counts.PrefixHits)/float64(max(1, counts.PrefixQueries)))
		p.single("sglang:num_retracted_reqs", "gauge", "Requests that lost their place.", float64(counts.Preemptions))
		if limits.GPUAdapters > 0 {
			used := float64(min(len(s.driver.sim.Active(nil)), limits.GPUAdapters))
			p.single("sglang:lora_pool_slots_used", "gauge", "Adapter slots whose adapter runs.", used)
			p.single("sglang:lora_pool_slots_total", "gauge", "Adapter slots.", float64(limits.GPUAdapters))
			p.single("sglang:lora_pool_utilization", "gauge", "Share of the adapter slots in use.", used/float64(limits.GPUAdapters))
		}
		p.single("sglang:prompt_tokens_total", "counter", "Tokens of prompts.", float64(stats.promptTokens))
		p.single("sglang:cached_tokens_total", "counter", "Tokens of prompts that were cached.", float64(stats.cachedTokens))
		p.single("sglang:generation_tokens_total", "counter", "Tokens of answers.", float64(stats.generationTokens))
		p.histogram("sglang:time_to_first_token_seconds", "Time to the first token.", &stats.firstToken)
		p.histogram("sglang:inter_token_latency_seconds", "Time between tokens.", &stats.interToken)
		p.histogram("sglang:e2e_request_latency_seconds", "Time of a request.", &stats.e2e)
		p.histogram("sglang:queue_time_seconds", "Time that a request waited.", &stats.queue)
		p.own(counts, limits)
	})
	if !ok {
		return abandoned
	}
	return c.respond(http.StatusOK, "text/plain; version=1.0.0; charset=utf-8", p.text)
}
