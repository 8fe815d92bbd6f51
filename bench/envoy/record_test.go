package envoy_test

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/wire"
)

// The access-log records carry only what extproc reads, as far as Envoy can choose: Envoy always
// sends its own properties and the whole dynamic metadata.
func TestRecordsCarryOnlyWhatIsUsed(t *testing.T) {
	for _, path := range []string{envoyYAML, originalDstYAML} {
		var root any
		if err := yaml.Unmarshal(text(t, path), &root); err != nil {
			t.Fatal(err)
		}
		logs := recordLogs(root)
		if len(logs) != 1 {
			t.Fatalf("%s has %d access logs of records, want 1", path, len(logs))
		}
		common, _ := logs[0]["common_config"].(map[string]any)
		tags, _ := common["custom_tags"].([]any)
		var names []string
		for _, tag := range tags {
			names = append(names, tag.(map[string]any)["tag"].(string))
		}
		slices.Sort(names)
		used := []string{wire.TagAnswered, wire.TagCall, wire.TagFirstBody, wire.TagGateway}
		slices.Sort(used)
		if !slices.Equal(names, used) {
			t.Errorf("%s: the tags are %v, and extproc reads %v", path, names, used)
		}
		delete(common, "custom_tags")
		want := map[string]any{
			"@type":                              recordType,
			"additional_response_headers_to_log": []any{"content-type"},
			"common_config": map[string]any{
				"log_name":              "outcome",
				"transport_api_version": "V3",
				"grpc_service":          map[string]any{"envoy_grpc": map[string]any{"cluster_name": "extproc", "authority": "extproc"}},
				"buffer_flush_interval": "0.01s",
				"buffer_size_bytes":     16384.0,
			},
		}
		if diff := cmp.Diff(want, logs[0]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

const recordType = "type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig"

// recordLogs returns the configurations of access logs that send records, wherever they are.
func recordLogs(v any) (all []map[string]any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			all = append(all, recordLogs(e)...)
		}
	case map[string]any:
		if v["@type"] == recordType {
			return []map[string]any{v}
		}
		for _, e := range v {
			all = append(all, recordLogs(e)...)
		}
	}
	return all
}
