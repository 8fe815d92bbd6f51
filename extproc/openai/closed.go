package openai

import (
	"net/url"
	"path"
	"strings"
)

// closed are the paths of engines that no request may reach, through whatever gateway: what loads, unloads and lists
// weights, what stops, pauses and resets an engine, what tells about it, and what it leaves open without its key. An
// entry with a slash at its end is everything below it.
//
// Sources: vLLM 0.32.0 (api_server, and the dev mode's routes), SGLang (http_server), TensorRT-LLM (trtllm-serve),
// Triton (model repository, trace, log, shared memory extensions), TGI, llama.cpp (server).
var closed = func() map[string]bool {
	set := make(map[string]bool)
	for p := range strings.FieldsSeq(`
		/v1/load_lora_adapter /v1/unload_lora_adapter /load_lora_adapter /unload_lora_adapter
		/load_lora_adapter_from_tensors /lora-adapters /adapters /adapters/ /invocations
		/metrics /prometheus/ /perf_metrics /kv_cache_events /kv_event_sources /load /server_info /get_server_info
		/get_model_info /model_info /get_load /v1/loads /version /props /slots /slots/ /info /docs /docs/ /redoc /openapi.json
		/sleep /wake_up /is_sleeping /pause /resume /is_paused /reset_prefix_cache /reset_mm_cache /reset_encoder_cache
		/collective_rpc /scale_elastic_ep /is_scaling_elastic_ep /start_profile /stop_profile /abort_requests /debug/
		/flush_cache /clear_hicache_storage_backend /pause_generation /continue_generation /abort_request /configure_logging
		/update_weights /update_weights_from_disk /update_weights_from_tensor /update_weights_from_distributed
		/update_weights_from_ipc /update_weight_version /init_weights_update_group /destroy_weights_update_group
		/init_weights_send_group_for_remote_instance /send_weights_to_remote_instance /get_weights_by_name
		/init_weight_transfer_engine /get_world_size /release_memory_occupation /resume_memory_occupation
		/slow_down /set_internal_state /start_expert_distribution_record /stop_expert_distribution_record
		/dump_expert_distribution_record /open_session /close_session /freeze_gc /shutdown /quitquitquit
		/tokenize /detokenize /tokenizer_info /apply-template
		/models/load /models/unload /v2/repository/ /v2/trace/ /v2/logging /v2/systemsharedmemory/ /v2/cudasharedmemory/`) {
		set[p] = true
	}
	return set
}()

// Closed says whether a path may reach an engine through no gateway. It reads the path as the most lenient engine would:
// escapes are undone again and again, slashes merged, dots resolved, a slash at the end and the case of letters ignored.
func Closed(target string) bool {
	p, _, _ := strings.Cut(target, "?")
	p, _, _ = strings.Cut(p, "#")
	for range 8 {
		unescaped, err := url.PathUnescape(p)
		if err != nil || unescaped == p {
			break
		}
		p = unescaped
	}
	if strings.Contains(p, "%") || strings.ContainsAny(p, "\\\x00\r\n") {
		return true // nobody's honest path
	}
	p = strings.ToLower(path.Clean("/" + p))
	// A parameter of a segment (";x") is dropped by some servers.
	segments := strings.Split(p, "/")
	for i, s := range segments {
		segments[i], _, _ = strings.Cut(s, ";")
	}
	p = strings.Join(segments, "/")
	if closed[p] {
		return true
	}
	// Models are loaded below Triton's repository and traced below each model.
	if strings.HasPrefix(p, "/v2/models/") && strings.Contains(p, "/trace/") {
		return true
	}
	for end := 1; ; {
		next := strings.IndexByte(p[end:], '/')
		if next < 0 {
			return false
		}
		end += next + 1
		if closed[p[:end]] {
			return true
		}
	}
}
