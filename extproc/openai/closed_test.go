package openai_test

import (
	"testing"

	"github.com/headgate/headgate/extproc/openai"
)

func TestEnginesAdminPathsAreClosed(t *testing.T) {
	for _, path := range []string{
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/invocations", "/adapters", "/adapters/x", "/metrics", "/sleep", "/sleep?level=1",
		"/wake_up", "/tokenize", "/load_lora_adapter", "/prometheus/metrics", "/lora-adapters", "/slots/1", "/shutdown", "/flush_cache",
		"/v2/repository/index", "/v2/repository/models/m/load", "/v2/models/m/trace/setting", "/debug/pprof/heap", "/update_weights_from_disk",

		// However they are written.
		"/V1/Load_Lora_Adapter", "/metrics/", "//metrics", "/x/../metrics", "/./metrics", "/%6detrics", "/%256detrics", "/x%2f..%2fmetrics",
		"/metrics;a=b", "/v1;x/load_lora_adapter", "metrics", "/metrics%00", "/metrics#x", "/v2/repository/models/%2e%2e/index", "/%zz", "/a\\..\\metrics",
	} {
		if !openai.Closed(path) {
			t.Errorf("%s is open", path)
		}
	}
	for _, path := range []string{
		"/", "", "/health", "/v1/chat/completions", "/v1/pooling", "/v1/files", "/v2/models/m/infer", "/v2/models/metrics/infer", "/generate",
		"/v2/health/ready", "/a%20b", "/metricsx", "/v1/metrics", "/x?path=/metrics",
	} {
		if openai.Closed(path) {
			t.Errorf("%s is closed", path)
		}
	}
}
