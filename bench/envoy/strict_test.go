package envoy_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	// These extensions occur in the configurations. Without the package of an extension, its Any
	// cannot be decoded.
	_ "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/common/matching/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/content_parsers/json/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/matcher/action/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_to_metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/json_to_metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/lua/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/sse_to_metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/subset/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/input_matchers/metadata/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/fixed_heap/v3"
	upstreamsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/extproc/settings"
	"github.com/headgate/headgate/test/protos"
)

// check decodes a bootstrap strictly and validates it, including the content of every Any. It
// returns the number of messages of type Any.
func check(text []byte) (int, error) {
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return 0, err
	}
	var b bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(asJSON, &b); err != nil { // rejects unknown fields
		return 0, err
	}
	return protos.Validate(b.ProtoReflect())
}

func TestConfigurationsAreValidToTheirLastAny(t *testing.T) {
	for path, least := range map[string]int{envoyYAML: 20, originalDstYAML: 17} {
		n, err := check(text(t, path))
		if err != nil {
			t.Errorf("%s: %v", path, err)
		} else if n < least {
			t.Errorf("%s: %d messages were inside an Any, want at least %d: the walk does not reach them", path, n, least)
		}
	}
}

// The function check detects faults at any depth.
func TestCheckSeesFaults(t *testing.T) {
	text := string(text(t, envoyYAML))
	for _, c := range []struct{ name, old, new string }{
		{"an unknown field", "failure_mode_allow: true", "failure_mode_alow: true"},
		{"an unknown field in an Any", "suppress_envoy_headers: true", "suppress: true"},
		{"a wrong type", "max_event_size: 65536", "max_event_size: many"},
		{"a rule of the protos", "stat_prefix: ingress", "stat_prefix: ''"},
		{
			"a rule inside an Any inside an Any", "metadata_namespace: gateway.usage, key: load, type: STRING }",
			"metadata_namespace: gateway.usage, key: '', type: STRING }",
		},
		{"a key twice", "      type: EDS", "      type: EDS\n      type: EDS"},
	} {
		if !strings.Contains(text, c.old) {
			t.Fatalf("%s: envoy.yaml has no %q", c.name, c.old)
		}
		if _, err := check([]byte(strings.Replace(text, c.old, c.new, 1))); err == nil {
			t.Errorf("%s: no error", c.name)
		}
	}
}

// Envoy removes every header that could control an endpoint picker from clients' requests.
func TestControlHeadersAreRemoved(t *testing.T) {
	removed := regexp.MustCompile(`^(x-gateway-.*|x-llm-d-.*|x-slo-(ttft|tpot)-ms|epp-profile|test-epp-endpoint-selection)$`)
	for _, name := range append([]string{wire.DestinationHeader, wire.ModelHeader, wire.ElsewhereHeader, wire.ControlPrefix + "x"},
		wire.ControlHeaders...) {
		if !removed.MatchString(name) {
			t.Errorf("envoy.yaml lets %s pass", name)
		}
	}
	// The configurations contain the same expressions as the one above.
	for _, path := range []string{envoyYAML, originalDstYAML} {
		for _, want := range []string{
			"prefix: x-gateway- ", "prefix: x-llm-d- ",
			`regex: "x-slo-(ttft|tpot)-ms|epp-profile|test-epp-endpoint-selection"`,
		} {
			if !strings.Contains(string(text(t, path)), want) {
				t.Errorf("%s lacks %s", path, want)
			}
		}
	}
}

// The configurations spell names as api/wire does. No compiler checks this.
func TestConfigurationsSpeakTheWire(t *testing.T) {
	both := []string{
		fmt.Sprintf(`{"key_matcher":{"prefix":%q}}`, wire.ControlPrefix),
		fmt.Sprintf(`"receiving_namespaces":{"untyped":[%q,%q,%q]}`, wire.DestinationNamespace, wire.PickNamespace, wire.RateLimitNamespace),
		fmt.Sprintf(`{"prefix":%q},{"prefix":%q},{"exact":%q}`, wire.TenantPrefix, wire.ProgramPrefix, wire.ClientHeader),
		fmt.Sprintf(`"key":%q,"value":"%%DYNAMIC_METADATA(%s:%s)%%"`, wire.FallbackHeader, wire.PickNamespace, wire.PickFallbackName),
		fmt.Sprintf(`response.code_details.startsWith('%s')`, wire.ReplyDetails),
		fmt.Sprintf(`%%DYNAMIC_METADATA(%s)%%`, wire.PickNamespace),
		fmt.Sprintf(`%%DYNAMIC_METADATA(%s)%%`, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageLoad, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsagePrompt, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageCompletion, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageID, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageInput, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageBegunInput, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageCacheRead, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageCacheCreation, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageBegunCacheRead, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageBegunCacheCreation, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageError, wire.UsageNamespace),
		fmt.Sprintf(`"key":%q,"metadata_namespace":%q`, wire.UsageErrorCode, wire.UsageNamespace),
		fmt.Sprintf(`"tag":%q`, wire.TagFirstBody),
		fmt.Sprintf(`"tag":%q`, wire.TagGateway),
		fmt.Sprintf(`"name":%q`, wire.EndpointsCluster),
		fmt.Sprintf(`"cluster":%q`, wire.EndpointsCluster),
		fmt.Sprintf(`"response_headers_to_remove":[%q,%q]`, wire.ElsewhereHeader, wire.FinalHeader),
		fmt.Sprintf(`{"exact":%q}`, wire.RelayTokenHeader),
		fmt.Sprintf(`|%s|`, wire.RelayTokenHeader),
		fmt.Sprintf(`headers:get(\"%s\") ~= nil then return`, wire.FinalHeader),
		fmt.Sprintf(`request:headers():replace(\"%s\", usage[\"%s\"])`, wire.MissingHeader, wire.UsageMissing),
		fmt.Sprintf(`response:headers():add(\"%s\"`, wire.ElsewhereHeader),
		fmt.Sprintf(`metadata:get(\"%s\")`, wire.DestinationNamespace),
		fmt.Sprintf(`lb[\"%s\"] or lb[\"%s\"]`, wire.ServedKey, wire.DestinationHeader),
		fmt.Sprintf(`metadata:get(\"%s\")`, wire.UsageNamespace),
		fmt.Sprintf(`metadata:set(\"%s\", key, endpoint)`, wire.UsageNamespace),
		`note(metadata, key, endpoint)`,
		fmt.Sprintf(`(metadata:get(\"%s\") or {})[\"%s\"]`, wire.PickNamespace, wire.PickUnlisted),
		fmt.Sprintf(`(metadata:get(\"%s\") or {})[\"%s\"]`, wire.PickNamespace, wire.PickUnavailable),
		fmt.Sprintf(`"filter":%q,"path":[{"key":%q}]`, wire.PickNamespace, wire.PickNoUsage),
		fmt.Sprintf(`get(\"%s\") or {})[\"%s\"]`, wire.PickNamespace, wire.PickNoUsage),
		fmt.Sprintf(`metadata:set(\"%s\", \"%s\", scalar(failure)`, wire.ErrorNamespace, wire.ErrorWhole),
		fmt.Sprintf(`write(metadata, \"%s\", tonumber(`, wire.UsagePrompt),
		fmt.Sprintf(`write(metadata, \"%s\", tonumber(`, wire.UsageCompletion),
		fmt.Sprintf(`write(metadata, \"%s\", scalar(`, wire.UsageError),
		fmt.Sprintf(`write(metadata, \"%s\", scalar(`, wire.UsageErrorCode),
		fmt.Sprintf(`(metadata:get(\"%s\") or {})[\"%s\"]`, wire.PickNamespace, wire.PickMessages),
		fmt.Sprintf(`metadata:set(\"%s\", \"%s\", true)`, wire.UsageNamespace, wire.UsageAnswered),
		fmt.Sprintf(`trailers:replace(\"grpc-status\", pick[\"%s\"])`, wire.PickRefused),
		fmt.Sprintf(`trailers:replace(\"grpc-message\", pick[\"%s\"])`, wire.PickWords),
		fmt.Sprintf(`"forwarding_namespaces":{"untyped":[%q]}`, wire.UsageNamespace),
		fmt.Sprintf(`metadata:set(\"%s\", \"%s\", response:timestampString(EnvoyTimestampResolution.MICROSECOND))`, wire.UsageNamespace,
			wire.UsageOutput),
		fmt.Sprintf(`metadata:set(\"%s\", \"%s\", \"%s\")`, wire.UsageNamespace, wire.UsageOutput, wire.NoOutput),
		fmt.Sprintf(`metadata:set(\"%s\", \"%s\", response:timestampString(EnvoyTimestampResolution.MICROSECOND))`, wire.UsageNamespace,
			wire.UsageOpened),
		fmt.Sprintf(`local key = \"%s\"`, wire.UsageElsewhere),
		fmt.Sprintf(`key = \"%s\"`, wire.UsageMissing),
		fmt.Sprintf(`note(metadata, \"%s\", endpoint)`, wire.UsageStopping),
	}
	for _, name := range wire.RateLimitHeaders {
		both = append(both, fmt.Sprintf(`"key":%q,"value":"%%DYNAMIC_METADATA(%s:%s)%%"`, name, wire.RateLimitNamespace, name))
	}
	for path, alone := range map[string][]string{
		envoyYAML: {
			fmt.Sprintf(`"initial_metadata":[{"key":%q,"value":%q}]`, wire.BackMetadata, wire.BackSocket),
			fmt.Sprintf(`"pipe":{"mode":384,"path":".run/%s"}`, wire.BackSocket),
			fmt.Sprintf(`"service_name":%q`, wire.EndpointsCluster),
			fmt.Sprintf(`"override_host_sources":[{"metadata":{"key":%q,"path":[{"key":%q}]}}]`, wire.DestinationNamespace,
				wire.DestinationHeader),
			fmt.Sprintf(`"selected_host_key":{"key":%q,"path":[{"key":%q}]}`, wire.DestinationNamespace, wire.ServedKey),
			fmt.Sprintf(`"retriable_headers":[{"name":%q,"present_match":true}]`, wire.ElsewhereHeader),
			fmt.Sprintf(`(metadata:get(\"%s\") or {})[\"%s\"]`, wire.PickNamespace, wire.PickStored),
			fmt.Sprintf(`key = \"%s\"`, wire.UsageWithout),
			"|x-envoy-[a-z-]+|", // covers wire.RetriesHeader and wire.TimeoutHeader
		},
		originalDstYAML: {
			fmt.Sprintf(`"metadata_key":{"key":%q,"path":[{"key":%q}]}`, wire.DestinationNamespace, wire.DestinationHeader),
		},
	} {
		var root any
		if err := yaml.Unmarshal(text(t, path), &root); err != nil {
			t.Fatal(err)
		}
		flat, err := json.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range append(alone, both...) {
			if !strings.Contains(string(flat), want) {
				t.Errorf("%s lacks %s", path, want)
			}
		}
	}
}

// longestPrefill is how long an engine may send nothing while it processes a prompt: 128,000 tokens
// at 600 per second, as with a 70B model on one GPU with a queue. Few clients would wait longer.
const longestPrefill = 240 * time.Second

// Envoy waits for extproc as long as a request may wait for its model. The idle timeout is long
// enough for this wait and the prefill after it.
func TestEnvoyAllowsTheLongestWaitForAModel(t *testing.T) {
	for _, path := range []string{envoyYAML, originalDstYAML} {
		asked := func(setting string) (all []time.Duration) {
			for _, m := range regexp.MustCompile(`(?m)^ *`+setting+`: (\S+)`).FindAllStringSubmatch(string(text(t, path)), -1) {
				d, err := time.ParseDuration(m[1])
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, d)
			}
			return all
		}
		if got := asked("max_message_timeout"); len(got) != 1 || got[0] != settings.DefaultQueueTimeout {
			t.Errorf("%s: max_message_timeout is %v, and a request waits for %v", path, got, settings.DefaultQueueTimeout)
		}
		silences := append(asked("stream_idle_timeout"), asked("idle_timeout")...)
		if len(silences) < 3 {
			t.Fatalf("%s: silences are %v", path, silences)
		}
		for _, silence := range silences {
			if settings.DefaultQueueTimeout+longestPrefill >= silence {
				t.Errorf("%s: %v and %v are no less than the idle timeout of %v", path, settings.DefaultQueueTimeout, longestPrefill, silence)
			}
		}
	}
}

// gRPC servers permit one ping every five minutes on an idle connection, and close connections with
// more pings (EnforcementPolicy.MinTime in grpc-go, and
// GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS in other implementations).
func TestPingsDoNotEndConnectionsOfCalls(t *testing.T) {
	for _, path := range []string{envoyYAML, originalDstYAML} {
		asJSON, err := yaml.YAMLToJSONStrict(text(t, path))
		if err != nil {
			t.Fatal(err)
		}
		var b bootstrapv3.Bootstrap
		if err := protojson.Unmarshal(asJSON, &b); err != nil {
			t.Fatal(err)
		}
		found := false
		for _, c := range b.GetStaticResources().GetClusters() {
			if c.GetName() != wire.CallsCluster {
				continue
			}
			options := new(upstreamsv3.HttpProtocolOptions)
			if err := c.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"].UnmarshalTo(options); err != nil {
				t.Fatal(err)
			}
			found = true
			keepalive := options.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetConnectionKeepalive()
			if is := keepalive.GetInterval().AsDuration(); is > 0 && is < 5*time.Minute {
				t.Errorf("%s: a ping every %v", path, is)
			}
		}
		if !found {
			t.Errorf("%s has no cluster %s", path, wire.CallsCluster)
		}
	}
}
