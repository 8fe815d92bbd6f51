package openai

import (
	"net/url"
	"strings"
)

// closed are paths of engines that no request may reach through any gateway. They load, unload and
// list weights; they stop, pause, reset, profile, change or describe an engine. Inference paths and
// health checks are not closed.
//
// A path that ends with a slash includes everything below it. A segment "*" matches any one
// segment. A path that ends with "*" matches every path that begins so. Letters are in lower case.
// A path that several engines serve is listed with the first of these engines.
var closed = []struct {
	path   string
	source string // the engine, its version, and the file that defines the path
	why    string
}{
	// vLLM; files are below vllm/entrypoints.
	{"/v1/load_lora_adapter", "vLLM 0.32.0, serve/lora", "loads an adapter"},
	{"/v1/unload_lora_adapter", "vLLM 0.32.0, serve/lora", "unloads an adapter"},
	{"/adapters/", "vLLM 0.32.0, serve/sagemaker", "loads and unloads adapters, without the API key"},
	{"/invocations", "vLLM 0.32.0, serve/sagemaker; SGLang, TGI", "takes any request, without the API key"},
	{"/metrics*", "vLLM 0.32.0, serve/instrumentator; SGLang: both mount ^/metrics(.*)$; all others", "tells the load"},
	{"/load", "vLLM 0.32.0, serve/instrumentator", "tells the load"},
	{"/version", "vLLM 0.32.0, serve/instrumentator; TensorRT-LLM", "tells of the engine"},
	{"/kv_event_sources", "vLLM 0.32.0, serve/instrumentator", "tells where cache events are published"},
	{"/docs/", "vLLM 0.32.0, launchers (FastAPI); MLServer, TGI", "tells of the engine"},
	{"/redoc", "vLLM 0.32.0, launchers (FastAPI)", "tells of the engine"},
	{"/openapi.json", "vLLM 0.32.0, launchers (FastAPI)", "tells of the engine"},
	{"/tokenizer_info", "vLLM 0.32.0, serve/tokenize", "tells the chat template"},
	{"/server_info", "vLLM 0.32.0, serve/dev/server_info; SGLang, TensorRT-LLM", "tells the configuration"},
	{"/sleep", "vLLM 0.32.0, serve/dev/sleep; LMDeploy", "stops the engine, and may drop its weights"},
	{"/wake_up", "vLLM 0.32.0, serve/dev/sleep", "starts the engine again"},
	{"/is_sleeping", "vLLM 0.32.0, serve/dev/sleep; LMDeploy", "tells of the engine"},
	{"/release_kv_cache_memory", "vLLM 0.32.0, serve/dev/sleep", "drops the cache"},
	{"/reset_prefix_cache", "vLLM 0.32.0, serve/dev/cache", "drops the cache"},
	{"/reset_mm_cache", "vLLM 0.32.0, serve/dev/cache", "drops the cache"},
	{"/reset_encoder_cache", "vLLM 0.32.0, serve/dev/cache", "drops the cache"},
	{"/collective_rpc", "vLLM 0.32.0, serve/dev/rpc", "calls any method of the workers"},
	{"/start_profile", "vLLM 0.32.0, serve/profile; SGLang", "profiles"},
	{"/stop_profile", "vLLM 0.32.0, serve/profile; SGLang", "profiles"},
	{"/scale_elastic_ep", "vLLM 0.32.0, serve/elastic_ep; SGLang", "changes the number of workers"},
	{"/is_scaling_elastic_ep", "vLLM 0.32.0, serve/elastic_ep; SGLang", "tells of the engine"},
	{"/fault_tolerance/", "vLLM 0.32.0, serve/fault_tolerance", "changes and tells which workers take part"},
	{"/pause", "vLLM 0.32.0, rl/online", "stops the engine"},
	{"/resume", "vLLM 0.32.0, rl/online", "starts the engine again"},
	{"/is_paused", "vLLM 0.32.0, rl/online", "tells of the engine"},
	{"/abort_requests", "vLLM 0.32.0, rl/online and scale_out/token_in_token_out", "ends others' requests"},
	{"/inference/v1/abort_requests", "vLLM 0.32.0, scale_out/token_in_token_out", "ends others' requests"},
	{"/init_weight_transfer_engine", "vLLM 0.32.0, rl/online", "changes weights"},
	{"/shutdown_weight_transfer_engine", "vLLM 0.32.0, rl/online", "changes weights"},
	{"/start_weight_update", "vLLM 0.32.0, rl/online", "changes weights"},
	{"/start_draft_weight_update", "vLLM 0.32.0, rl/online", "changes weights"},
	{"/update_weights", "vLLM 0.32.0, rl/online; LMDeploy, TensorRT-LLM", "changes weights"},
	{"/finish_weight_update", "vLLM 0.32.0, rl/online", "changes weights"},
	{"/update_weight_version", "vLLM 0.32.0, rl/online; SGLang", "changes weights"},
	{"/weight_info", "vLLM 0.32.0, rl/online", "tells of weights"},
	{"/weight_checker", "vLLM 0.32.0, rl/online", "reads and changes weights"},
	{"/get_world_size", "vLLM 0.32.0, rl/online", "tells of the engine"},

	// SGLang; files are below sglang.
	{"/load_lora_adapter", "SGLang 0.5.23, srt/entrypoints/http_server", "loads an adapter"},
	{"/load_lora_adapter_from_tensors", "SGLang 0.5.23, srt/entrypoints/http_server", "loads an adapter"},
	{"/unload_lora_adapter", "SGLang 0.5.23, srt/entrypoints/http_server", "unloads an adapter"},
	{"/get_server_info", "SGLang 0.5.23, srt/entrypoints/http_server", "tells the configuration"},
	{"/get_model_info", "SGLang 0.5.23, srt/entrypoints/http_server", "tells of weights"},
	{"/model_info", "SGLang 0.5.23, srt/entrypoints/http_server", "tells of weights"},
	{"/get_load", "SGLang before 0.5.23, srt/entrypoints/http_server", "tells the load"},
	{"/v1/loads", "SGLang 0.5.23, srt/entrypoints/v1_loads", "tells the load"},
	{"/set_internal_state", "SGLang 0.5.23, srt/entrypoints/http_server", "changes the configuration"},
	{"/configure_logging", "SGLang 0.5.23, srt/entrypoints/http_server", "writes requests to a file"},
	{"/set_trace_level", "SGLang 0.5.23, srt/entrypoints/http_server", "traces"},
	{"/dumper/", "SGLang 0.5.23, srt/entrypoints/http_server", "dumps tensors"},
	{"/freeze_gc", "SGLang 0.5.23, srt/entrypoints/http_server", "changes the engine"},
	{"/slow_down", "SGLang 0.5.23, srt/entrypoints/http_server", "slows the engine down"},
	{"/pd_role_switch", "SGLang 0.5.23, srt/entrypoints/http_server", "changes the engine's role"},
	{"/flush_cache", "SGLang 0.5.23, srt/entrypoints/http_server", "drops the cache"},
	{"/clear_hicache_storage_backend", "SGLang before 0.5.23, srt/entrypoints/http_server", "drops the cache"},
	{"/hicache/", "SGLang 0.5.23, srt/entrypoints/http_server", "attaches, detaches and clears the cache's storage"},
	{"/get_hicache_l3_cache_layout", "SGLang 0.5.23, srt/entrypoints/http_server", "tells of the cache"},
	{"/add_external_corpus", "SGLang 0.5.23, srt/entrypoints/http_server", "changes what tokens are drafted from"},
	{"/remove_external_corpus", "SGLang 0.5.23, srt/entrypoints/http_server", "changes what tokens are drafted from"},
	{"/list_external_corpora", "SGLang 0.5.23, srt/entrypoints/http_server", "tells of the engine"},
	{"/start_expert_distribution_record", "SGLang 0.5.23, srt/entrypoints/http_server", "profiles"},
	{"/stop_expert_distribution_record", "SGLang 0.5.23, srt/entrypoints/http_server", "profiles"},
	{"/dump_expert_distribution_record", "SGLang 0.5.23, srt/entrypoints/http_server", "profiles"},
	{"/pause_generation", "SGLang 0.5.23, srt/entrypoints/http_server", "stops the engine"},
	{"/continue_generation", "SGLang 0.5.23, srt/entrypoints/http_server", "starts the engine again"},
	{"/abort_request", "SGLang 0.5.23, srt/entrypoints/http_server; LMDeploy", "ends others' requests"},
	{"/open_session", "SGLang 0.5.23, srt/entrypoints/http_server", "takes memory until it is closed"},
	{"/close_session", "SGLang 0.5.23, srt/entrypoints/http_server", "closes others' sessions"},
	{"/release_memory_occupation", "SGLang 0.5.23, srt/entrypoints/http_server", "drops weights and cache"},
	{"/resume_memory_occupation", "SGLang 0.5.23, srt/entrypoints/http_server", "loads weights"},
	{"/begin_weight_update", "SGLang 0.5.23, srt/entrypoints/http_server", "changes weights"},
	{"/end_weight_update", "SGLang 0.5.23, srt/entrypoints/http_server", "changes weights"},
	{"/update_weights_from_disk", "SGLang 0.5.23, srt/entrypoints/http_server", "changes weights"},
	{"/update_weights_from_tensor", "SGLang 0.5.23, srt/entrypoints/http_server", "changes weights"},
	{"/update_weights_from_distributed", "SGLang 0.5.23, srt/entrypoints/http_server; LMDeploy", "changes weights"},
	{"/update_weights_from_ipc", "SGLang 0.5.23, srt/entrypoints/http_server; LMDeploy", "changes weights"},
	{"/init_weights_update_group", "SGLang 0.5.23, srt/entrypoints/http_server; LMDeploy", "changes weights"},
	{"/destroy_weights_update_group", "SGLang 0.5.23, srt/entrypoints/http_server; LMDeploy", "changes weights"},
	{"/init_weights_send_group_for_remote_instance", "SGLang 0.5.23, srt/entrypoints/http_server", "sends weights"},
	{"/send_weights_to_remote_instance", "SGLang 0.5.23, srt/entrypoints/http_server", "sends weights"},
	{"/get_remote_instance_transfer_engine_info", "SGLang 0.5.23, srt/entrypoints/http_server", "tells how to read memory"},
	{"/remote_instance_transfer_engine_info", "SGLang 0.5.23, srt/entrypoints/http_server", "tells how to read memory"},
	{"/register_transfer_engine_info", "SGLang 0.5.23, srt/entrypoints/engine_info_bootstrap_server", "changes how memory is read"},
	{"/get_transfer_engine_info", "SGLang 0.5.23, srt/entrypoints/engine_info_bootstrap_server", "tells how to read memory"},
	{"/get_weights_by_name", "SGLang 0.5.23, srt/entrypoints/http_server", "reads weights"},
	{"/weights_checker", "SGLang 0.5.23, srt/entrypoints/http_server", "reads and changes weights"},
	{"/gate/", "SGLang 0.5.23, srt/distributed/gated_launch", "starts the engine"},
	{"/stats", "SGLang 0.5.23, multimodal_gen/runtime/entrypoints", "tells the load"},
	{"/v1/model_info", "SGLang 0.5.23, multimodal_gen/runtime/entrypoints", "tells of weights"},
	{"/v1/set_lora", "SGLang 0.5.23, multimodal_gen/runtime/entrypoints", "loads an adapter"},
	{"/v1/merge_lora_weights", "SGLang 0.5.23, multimodal_gen/runtime/entrypoints", "changes weights"},
	{"/v1/unmerge_lora_weights", "SGLang 0.5.23, multimodal_gen/runtime/entrypoints", "changes weights"},
	{"/v1/list_loras", "SGLang 0.5.23, multimodal_gen/runtime/entrypoints", "lists adapters"},
	{"/update_weights_from_tensor_checker", "SGLang 0.5.23, multimodal_gen/runtime/entrypoints", "reads weights"},
	{"/get_weights_checksum", "SGLang 0.5.23, multimodal_gen/runtime/entrypoints", "reads weights"},

	// LMDeploy; files are below lmdeploy/serve.
	{"/terminate", "LMDeploy 0.18.0, openai/endpoints/management", "ends the engine"},
	{"/wakeup", "LMDeploy 0.18.0, openai/endpoints/management", "starts the engine again"},
	{"/distserve/", "LMDeploy 0.18.0, openai/endpoints/distserve", "connects engines, drops their cache, tells of them"},
	{"/nodes/", "LMDeploy 0.18.0, proxy", "adds, removes and ends engines"},

	// TensorRT-LLM; files are below tensorrt_llm.
	{"/prometheus/", "TensorRT-LLM, serve/openai_server", "tells the load"},
	{"/perf_metrics", "TensorRT-LLM, serve/openai_server", "tells the load, and of others' requests"},
	{"/energy_metrics", "TensorRT-LLM, serve/openai_server", "tells of the engine"},
	{"/kv_cache_events", "TensorRT-LLM, serve/openai_server", "takes the events of the cache away"},
	{"/v1/kv_cache_hints", "TensorRT-LLM, serve/openai_server", "says what the cache keeps"},
	{"/v1/data_transceiver_state", "TensorRT-LLM, serve/openai_server", "tells of the engine"},
	{"/_resource_governor/", "TensorRT-LLM, serve/openai_server", "changes what requests get"},
	{"/steady_clock_offset", "TensorRT-LLM, serve/openai_server", "sets the clock"},
	{"/release_memory", "TensorRT-LLM, serve/openai_server", "drops weights and cache"},
	{"/resume_memory", "TensorRT-LLM, serve/openai_server", "loads weights"},
	{"/cluster_info", "TensorRT-LLM, serve/openai_disagg_server", "tells of engines"},
	{"/set", "TensorRT-LLM, serve/cluster_storage", "adds engines"},
	{"/get", "TensorRT-LLM, serve/cluster_storage", "tells of engines"},
	{"/delete", "TensorRT-LLM, serve/cluster_storage", "removes engines"},
	{"/expire", "TensorRT-LLM, serve/cluster_storage", "removes engines"},
	{"/get_prefix", "TensorRT-LLM, serve/cluster_storage", "tells of engines"},

	// Triton Inference Server; the sources are http_server and the documented protocol extensions.
	{"/v2/repository/", "Triton, model repository extension; MLServer 1.7.1", "loads, unloads and lists models"},
	{"/v2/trace/", "Triton, trace extension", "traces"},
	{"/v2/models/*/trace/", "Triton, trace extension", "traces"},
	{"/v2/models/*/versions/*/trace/", "Triton, http_server", "traces"},
	{"/v2/logging", "Triton, logging extension", "changes the log"},
	{"/v2/systemsharedmemory/", "Triton, shared-memory extension", "gives memory to read and write"},
	{"/v2/cudasharedmemory/", "Triton, shared-memory extension", "gives memory to read and write"},
	{"/v2/models/stats", "Triton, statistics extension", "tells the load"},
	{"/v2/models/*/stats", "Triton, statistics extension", "tells the load"},
	{"/v2/models/*/versions/*/stats", "Triton, statistics extension", "tells the load"},
	{"/v2/models/*/config", "Triton, model configuration extension", "tells the configuration"},
	{"/v2/models/*/versions/*/config", "Triton, model configuration extension", "tells the configuration"},

	// MLServer.
	{"/v2/docs/", "MLServer 1.7.1, rest/app", "tells of the engine"},

	// OpenVINO Model Server.
	{"/v1/config/", "OpenVINO Model Server, src/http_rest_api_handler.cpp", "reloads the configuration, lists models"},

	// NVIDIA NIM.
	{"/v1/metrics", "NVIDIA NIM for LLMs 1, observability", "tells the load"},
	{"/v1/metadata", "NVIDIA NIM for LLMs 2.0, API reference", "tells of the engine and of weights"},
	{"/v1/manifest", "NVIDIA NIM 1.10, API reference", "tells of the engine and of weights"},
	{"/v1/version", "NVIDIA NIM for LLMs 2.0, API reference", "tells of the engine"},
	{"/v1/license", "NVIDIA NIM for LLMs 2.0, API reference", "tells of the engine"},

	// Text Generation Inference.
	{"/info", "TGI, router/src/server.rs", "tells the configuration"},
	{"/api-doc/", "TGI, router/src/server.rs", "tells of the engine"},

	// llama.cpp, also as part of llama-cpp-python 0.3.36. Its router mode serves the paths below
	// /models.
	{"/lora-adapters", "llama.cpp, tools/server/server.cpp", "lists adapters, changes their scale"},
	{"/props", "llama.cpp, tools/server/server.cpp", "tells and changes the configuration"},
	{"/slots/", "llama.cpp, tools/server/server.cpp", "tells of others' requests; saves, restores and erases the cache"},
	{"/apply-template", "llama.cpp, tools/server/server.cpp", "tells the chat template"},
	{"/cors-proxy", "llama.cpp, tools/server/server.cpp", "calls any address from the engine"},
	{"/tools", "llama.cpp, tools/server/server.cpp", "runs commands where the engine is"},
	{"/models", "llama.cpp, tools/server/server.cpp; TorchServe, Triton by SageMaker's API", "downloads, deletes and lists models"},
	{"/models/*", "llama.cpp, tools/server/server.cpp; TorchServe, Triton by SageMaker's API", "loads, unloads and tells of models"},

	// Ollama; the source is its API reference.
	{"/api/pull", "Ollama, API reference", "downloads a model"},
	{"/api/push", "Ollama, API reference", "uploads a model"},
	{"/api/create", "Ollama, API reference", "makes a model"},
	{"/api/copy", "Ollama, API reference", "makes a model"},
	{"/api/delete", "Ollama, API reference", "deletes a model"},
	{"/api/blobs/", "Ollama, API reference", "stores files"},
	{"/api/ps", "Ollama, API reference", "tells what is loaded"},
	{"/api/version", "Ollama, API reference", "tells of the engine"},

	// Paths that several servers have, whatever the engine.
	{"/debug/", "MLC LLM, debug_entrypoints; Go's net/http/pprof", "profiles, and dumps memory"},
	{"/shutdown", "servers of several engines", "ends the engine"},
	{"/quitquitquit", "proxies that share a pod with the engine", "ends the proxy"},
}

// Closed reports whether a path must not reach an engine through any gateway. Engines may interpret
// the same bytes in different ways, so a path is closed if any interpretation of it is in the
// table: unescaped never, once or repeatedly; with slashes merged; in lower case; with and without
// parameters (";x"); up to an escaped query. Paths that no honest client sends are always closed:
// dot segments, backslashes, control characters, invalid escapes, and paths that do not begin with
// a slash.
//
// Closed is called for each request behind another gateway whose path Headgate does not know.
func Closed(target string) bool {
	p, _, _ := strings.Cut(target, "?")
	if p == "" {
		return false
	}
	for range maxEscapes {
		if closedAs(p) {
			return true
		}
		if strings.IndexByte(p, '%') < 0 {
			return false
		}
		unescaped, err := url.PathUnescape(p)
		if err != nil {
			return true
		}
		p = unescaped
	}
	return true
}

// maxEscapes is how often a path is unescaped at most. A path that still has escapes after that is
// closed.
const maxEscapes = 8

// closedAs reports whether a path that is already unescaped is closed.
func closedAs(p string) bool {
	if p[0] != '/' {
		return true
	}
	p = strings.ToLower(p)
	if closedWithParameters(p) {
		return true
	}
	end := strings.IndexAny(p, "?#")
	return end >= 0 && closedWithParameters(p[:end])
}

// closedWithParameters reports whether a path is closed for any way to interpret parameters: as
// part of the segment, as the end of a segment, or as the end of the path.
func closedWithParameters(p string) bool {
	if dishonest(p) || closedPaths.match(p) {
		return true
	}
	start, _, has := strings.Cut(p, ";")
	if !has {
		return false
	}
	bare := withoutParameters(p)
	return dishonest(bare) || closedPaths.match(bare) || closedPaths.match(start)
}

// dishonest reports whether a path contains a backslash, a control character, or a segment that
// consists of dots.
func dishonest(p string) bool {
	dots := true // the current segment is empty so far, or has only dots
	for i := range len(p) {
		switch c := p[i]; {
		case c == '\\', c < ' ', c == 0x7f:
			return true
		case c == '/':
			if dots && i > 0 && p[i-1] == '.' {
				return true
			}
			dots = true
		case c != '.':
			dots = false
		}
	}
	return dots && p[len(p)-1] == '.'
}

// withoutParameters removes the parameters from each segment of a path.
func withoutParameters(p string) string {
	var bare strings.Builder
	bare.Grow(len(p))
	inside := false
	for i := range len(p) {
		switch p[i] {
		case '/':
			inside = false
		case ';':
			inside = true
		}
		if !inside {
			bare.WriteByte(p[i])
		}
	}
	return bare.String()
}

// closedPaths is the table of closed paths as a tree.
var closedPaths = func() (root node) {
	for _, row := range closed {
		root.add(row.path)
	}
	return root
}()

// node is a point in the tree at which paths continue or end.
type node struct {
	ends   bool             // a path ends here
	below  bool             // a path ends here and includes everything below
	next   map[string]*node // nodes by the next segment
	any    *node            // node for any next segment
	starts []string         // prefixes of the next segment; a path with such a segment is closed, with everything below it
}

// add adds a path of the table to the tree.
func (n *node) add(path string) {
	path = path[1:]
	for {
		segment, rest, more := strings.Cut(path, "/")
		start, begins := strings.CutSuffix(segment, "*")
		switch {
		case begins && start != "":
			n.starts = append(n.starts, start)
			return
		case begins:
			if n.any == nil {
				n.any = &node{}
			}
			n = n.any
		default:
			if n.next == nil {
				n.next = make(map[string]*node)
			}
			if n.next[segment] == nil {
				n.next[segment] = &node{}
			}
			n = n.next[segment]
		}
		if rest == "" {
			n.ends = true
			n.below = n.below || more
			return
		}
		path = rest
	}
}

// match reports whether a path is in the table. It ignores empty segments.
func (n node) match(path string) bool {
	for at := &n; ; {
		path = strings.TrimLeft(path, "/")
		if path == "" || at.below {
			return at.ends
		}
		segment, rest, _ := strings.Cut(path, "/")
		for _, start := range at.starts {
			if strings.HasPrefix(segment, start) {
				return true
			}
		}
		if at.any != nil && at.any.match(rest) {
			return true
		}
		if at = at.next[segment]; at == nil {
			return false
		}
		path = rest
	}
}
