package openai_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/extproc/openai"
)

// spellings are ways to write a path that some server treats like the original path.
var spellings = []struct {
	name  string
	spell func(string) string
}{
	{"as it is", func(p string) string { return p }},
	{"with a query", func(p string) string { return p + "?level=1&x=/v1/files" }},
	{"with a query that is no escape", func(p string) string { return p + "?%zz" }},
	{"with a fragment", func(p string) string { return p + "#x" }},
	{"with an escaped query", func(p string) string { return p + "%3fx=1" }},
	{"with an escaped fragment", func(p string) string { return p + "%23x" }},
	{"in upper case", strings.ToUpper},
	{"in mixed case", func(p string) string { return strings.ToUpper(p[:2]) + p[2:] }},
	{"with a slash at its end", func(p string) string { return p + "/" }},
	{"with an escaped slash at its end", func(p string) string { return p + "%2f" }},
	{"with two slashes at its beginning", func(p string) string { return "/" + p }},
	{"with double slashes", func(p string) string { return strings.ReplaceAll(p, "/", "//") }},
	{"without its first slash", func(p string) string { return p[1:] }},
	{"with backslashes", func(p string) string { return strings.ReplaceAll(p, "/", `\`) }},
	{"with escaped backslashes", func(p string) string { return strings.ReplaceAll(p, "/", "%5c") }},
	{"with a dot segment", func(p string) string { return "/." + p }},
	{"with a dot segment at its end", func(p string) string { return p + "/." }},
	{"below another path", func(p string) string { return "/x/.." + p }},
	{"below an honest path", func(p string) string { return "/v1/models/.." + strings.Repeat("/..", 3) + p }},
	{"up from below", func(p string) string { return p + "/x/.." }},
	{"with escaped dots", func(p string) string { return "/x/%2e%2e" + p }},
	{"with half-escaped dots", func(p string) string { return "/x/.%2E" + p }},
	{"with dots and escaped slashes", func(p string) string { return "/x%2f..%2f" + p[1:] }},
	{"with parameters in dot segments", func(p string) string { return "/x/..;" + p }},
	{"with named parameters in dot segments", func(p string) string { return "/x/..;a=b" + p }},
	{"with escaped parameters in dot segments", func(p string) string { return "/x/..%3b" + p }},
	{"with parameters in a dot", func(p string) string { return "/.;a=b" + p }},
	{"below a parameter", func(p string) string { return "/;a=b" + p }},
	{"with a parameter", func(p string) string { return p + ";a=b" }},
	{"with an escaped parameter", func(p string) string { return p + "%3Ba=b" }},
	{"with parameters in each segment", func(p string) string { return "/" + strings.ReplaceAll(p[1:], "/", ";a=b/") + ";c" }},
	{"with a parameter that ends it", func(p string) string { return p + ";/x/y" }},
	{"with escaped slashes", func(p string) string { return "/" + strings.ReplaceAll(p[1:], "/", "%2f") }},
	{"with slashes that are escaped twice", func(p string) string { return "/" + strings.ReplaceAll(p[1:], "/", "%252F") }},
	{"escaped", escape},
	{"escaped twice", func(p string) string { return escape(escape(p)) }},
	{"escaped nine times", func(p string) string { return "/" + strings.Repeat("%25", 8) + "2f" + p[1:] }},
	{"with an escape that is none", func(p string) string { return p + "%zz" }},
	{"with a zero byte", func(p string) string { return p + "%00" }},
	{"with a line break", func(p string) string { return p + "%0d%0a" }},
	{"with a tab", func(p string) string { return p + "\t" }},
}

// escape escapes every character except a slash at the beginning.
func escape(p string) string {
	escaped := []byte("/")
	for _, c := range []byte(p[1:]) {
		escaped = fmt.Appendf(escaped, "%%%02x", c)
	}
	return string(escaped)
}

// The table contains at least these paths.
func TestEnginesAdminPathsAreClosed(t *testing.T) {
	for _, path := range []string{
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/invocations", "/adapters", "/adapters/x", "/metrics", "/sleep",
		"/sleep?level=1", "/wake_up", "/load_lora_adapter", "/prometheus/metrics", "/lora-adapters", "/slots/1", "/shutdown",
		"/flush_cache", "/tokenizer_info", "/apply-template", "/v2/repository/index", "/v2/repository/models/m/load",
		"/v2/models/m/trace/setting", "/debug/pprof/heap", "/update_weights_from_disk", "/terminate", "/wakeup",
		"/distserve/free_cache", "/distserve/p2p_connect", "/v1/config/reload", "/v1/config", "/metricsx", "/v1/metrics",
		"/cors-proxy", "/tools", "/models", "/models/load", "/models/sse", "/release_memory", "/pd_role_switch",
		"/hicache/storage-backend", "/start_weight_update",

		// Other spellings of closed paths.
		"/V1/Load_Lora_Adapter", "/metrics/", "//metrics", "/x/../metrics", "/./metrics", "/%6detrics", "/%256detrics",
		"/x%2f..%2fmetrics", "/metrics;a=b", "/v1;x/load_lora_adapter", "metrics", "/metrics%00", "/metrics#x",
		"/v2/repository/models/%2e%2e/index", "/%zz", "/a\\..\\metrics", "/x/..;/metrics", "http://engine/metrics",
	} {
		if !openai.Closed(path) {
			t.Errorf("%s is open", path)
		}
	}
}

// TestEverySpellingIsRejected tries each row of the table in each spelling and in each pair
// of spellings.
func TestEverySpellingIsRejected(t *testing.T) {
	for _, row := range openai.ClosedPaths() {
		var paths []string
		path := strings.ReplaceAll(row, "/*", "/any")
		if start, ok := strings.CutSuffix(path, "*"); ok {
			paths = append(paths, start, start+"x", start+"/x", start+"-x/y/z")
		} else if below, ok := strings.CutSuffix(path, "/"); ok {
			paths = append(paths, below, below+"/x", below+"/x/y", below+"/v1/models")
		} else {
			paths = append(paths, path)
		}
		for _, path := range paths {
			for _, first := range spellings {
				once := first.spell(path)
				for _, second := range spellings {
					if once[0] != '/' || len(once) < 2 {
						continue // the result is no path any more
					}
					if strings.Contains(first.name, "parameter") && strings.Contains(second.name, "parameter") {
						continue // no server interprets parameters in two ways
					}
					if twice := second.spell(once); !openai.Closed(twice) {
						t.Fatalf("row %s: %s, %s and then %s: %s is open", row, path, first.name, second.name, twice)
					}
				}
				if !openai.Closed(once) {
					t.Fatalf("row %s: %s, %s: %s is open", row, path, first.name, once)
				}
			}
		}
	}
}

// A server that finds the model's name before it unescapes the path sees the whole name. So an
// escaped slash in the name must not hide a closed path.
func TestEscapedNameHidesNoPath(t *testing.T) {
	for _, path := range []string{
		"/v2/models/a%2fb/stats", "/v2/models/a%2Fb/trace/setting", "/v2/models/a%3fb/config", "/v2/models/a%23b/stats",
		"/v2/models/;a/config", "/v2/models/a;b/stats", "/v2/models/%252f/stats", "/models/a%2fb",
		"/v2/models/a%2fb/versions/1/config",
	} {
		if !openai.Closed(path) {
			t.Errorf("%s is open", path)
		}
	}
}

// TestTableIsInOrder checks what the tree, the spellings and readers of the table assume about it.
func TestTableIsInOrder(t *testing.T) {
	if rows := openai.Unexplained(); len(rows) > 0 {
		t.Errorf("the table has no source or reason for %v", rows)
	}
	rows := openai.ClosedPaths()
	for i, row := range rows {
		if row != strings.ToLower(row) || row[0] != '/' || strings.ContainsAny(row, `;?#%\ `) || strings.Contains(row, "//") ||
			strings.Contains(row, "..") {
			t.Errorf("%s cannot be matched", row)
		}
		if slices.Contains(rows[:i], row) {
			t.Errorf("%s is listed twice", row)
		}
		if op, _ := openai.Find("POST", row); op != openai.None {
			t.Errorf("%s is inference and closed", row)
		}
	}
}

func TestHonestPathsAreOpen(t *testing.T) {
	for _, path := range []string{
		"", "/", "/?x", "/health", "/health_generate", "/ready", "/readyz", "/livez", "/ping", "/v1/health",
		"/v1/health/ready", "/v2", "/v2/", "/v2/health/live", "/v2/health/ready", "/v1/chat/completions",
		"/v1/chat/completions/", "/v1/chat/completions/render", "/v1/chat/completions/batch", "/v1/completions",
		"/v1/embeddings", "/v1/responses/resp_1", "/v1/responses/resp_1/input_items", "/v1/realtime", "/v1/models",
		"/v1/models/meta-llama%2FLlama-3", "/v1/models/metrics", "/v1/models/m:predict", "/v1/models/m/versions/1:predict",
		"/v1/models/m/metadata", "/v3/chat/completions", "/v3/models", "/v1/files", "/v1/files/metrics", "/v1/files/a..b",
		"/v1/files/.hidden", "/v1/files/my%20file.txt", "/v1/files/what%3f", "/v1/files/x;v=1", "/v1/batches",
		"/v1/images/generations", "/v1/pooling", "/pooling", "/classify", "/v1/classify", "/score", "/rerank", "/tokenize",
		"/detokenize", "/v1/tokenize", "/v1/detokenize", "/_internal/tokenize", "/generate", "/generate_stream", "/encode",
		"/v1/encode", "/get_ppl", "/vertex_generate", "/inference/v1/generate", "/generative_scoring", "/cohere/v2/chat",
		"/v2/embed", "/v1/systemone", "/completion", "/infill", "/embedding", "/api/chat", "/api/generate", "/api/embed",
		"/api/tags", "/api/show", "/predictions/m", "/models/m/invoke", "/v2/models/m", "/v2/models/m/ready",
		"/v2/models/m/infer", "/v2/models/m/generate_stream", "/v2/models/m/versions/1/infer", "/v2/models/m/docs",
		"/v2/models/metrics/infer", "/v2/models/stats/infer", "/v2/models/trace/infer", "/v2/models/config",
		"/v2/models/repository/ready", "/a%20b", "/my-metrics", "/x/metrics", "/v1/metricsx", "/sleepy", "/sleep/x",
		"/loads", "/loading", "/v1/config-x", "/models-x", "/infos", "/x?path=/metrics", "/x?a=..;/metrics",
	} {
		if openai.Closed(path) {
			t.Errorf("%s is closed", path)
		}
	}
}

// BenchmarkClosed is run with go test ./extproc/openai -run "^$" -bench Closed.
func BenchmarkClosed(b *testing.B) {
	for _, c := range []struct{ name, path string }{
		{"query", "/v1/files/file-abc123/content?limit=20"},
		{"short", "/generate"},
		{"model", "/v2/models/resnet50/infer"},
		{"escaped", "/v1/files/my%20file.txt"},
		{"closed", "/v1/load_lora_adapter"},
		{"parameters", "/x;a=b/generate;c=d"},
	} {
		b.Run("path="+c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				openai.Closed(c.path)
			}
		})
	}
}
