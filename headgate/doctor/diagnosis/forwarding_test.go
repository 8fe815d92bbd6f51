package diagnosis_test

import (
	"encoding/json"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/headgate/doctor/diagnosis"
)

// dump returns what Envoy reports of its static listeners.
func dump(t *testing.T, config []byte) []byte {
	t.Helper()
	var bootstrap struct {
		Resources struct {
			Listeners []any `json:"listeners"`
		} `json:"static_resources"`
	}
	if err := yaml.Unmarshal(config, &bootstrap); err != nil {
		t.Fatal(err)
	}
	var all []any
	for _, l := range bootstrap.Resources.Listeners {
		all = append(all, map[string]any{"listener": l})
	}
	text, err := json.Marshal(map[string]any{"configs": all})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Each header is forwarded, or is in missing.
func TestForwarding(t *testing.T) {
	headers := []string{"x-team", "x-tenant-id", "x-program-id", "x-headgate-client"}
	filter := func(rules string) []byte {
		return dump(t, []byte(`static_resources: {listeners: [{http_filters: [{typed_config: {
			"@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor`+rules+`}}]}]}`))
	}
	keys := `, x: {type_urls: [type.googleapis.com/envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth]}`
	for name, c := range map[string]struct {
		dump    []byte
		missing []string
	}{
		"envoy.yaml":         {dump(t, headgate.EnvoyYAML), []string{"x-team", "x-headgate-client"}},
		"no rules":           {filter(""), nil},
		"allowed by a regex": {filter(`, forward_rules: {allowed_headers: {patterns: [{safe_regex: {regex: "x-.*m"}}]}}`), headers[1:]},
		"disallowed":         {filter(`, forward_rules: {disallowed_headers: {patterns: [{contains: TEN, ignore_case: true}]}}`), headers[1:2]},
		"a removed client":   {filter(`, x: [{remove: x-headgate-client}]`), headers[3:]},
		"API keys":           {filter(`, y: [{remove: x-headgate-client}]` + keys), nil},
	} {
		f := diagnosis.ReadForwarding(c.dump)
		if f == nil {
			t.Errorf("%s: no filter is found in %s", name, c.dump)
			continue
		}
		missing := slices.DeleteFunc(slices.Clone(headers), f.Forwards)
		if !slices.Equal(missing, c.missing) {
			t.Errorf("%s: it lacks %v, want %v", name, missing, c.missing)
		}
	}
	for _, none := range []string{"", "{}", `{"configs": [{"listener": {}}]}`} {
		if f := diagnosis.ReadForwarding([]byte(none)); f != nil {
			t.Errorf("%q: %+v", none, f)
		}
	}
	copies := filter(", observability_mode: true")
	if f := diagnosis.ReadForwarding(copies); f != nil {
		t.Errorf("a filter that sends copies: %+v", f)
	}
}
