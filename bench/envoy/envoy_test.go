// Package envoy_test tests envoy.yaml with a real Envoy, and original-dst.yaml, an Envoy that
// cannot retry.
package envoy_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/headgate/envoy/adapt"
	"github.com/headgate/headgate/headgate/envoy/find"
)

const cache = "../../.cache"

// The two Envoy configurations that Headgate ships.
const (
	envoyYAML       = "../../envoy.yaml"
	originalDstYAML = "original-dst.yaml"
)

func text(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestEnvoyItselfAcceptsTheConfigurations(t *testing.T) {
	binary, err := find.Envoy(t.Context(), cache, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	validate := func(file string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return exec.CommandContext(ctx, binary, "--mode", "validate", "--config-path", file).CombinedOutput()
	}
	for _, path := range []string{envoyYAML, originalDstYAML} {
		config, err := adapt.Config(text(t, path), adapt.Addresses{})
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "envoy.json")
		for _, c := range []struct {
			what, old, new string
			ok             bool
		}{
			{"what it is", "", "", true},
			// Only Envoy itself detects these faults; protobuf validation permits them.
			{"with a command that does not exist", "%PATH(NQ):256%", "%NO_SUCH_COMMAND%", false},
			{"with a fault in its program", "if status ==", "if if status ==", false},
		} {
			changed := strings.Replace(string(config), c.old, c.new, 1)
			if c.old != "" && changed == string(config) {
				t.Fatalf("%s has no %q", path, c.old)
			}
			if err := os.WriteFile(file, []byte(changed), 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := validate(file); (err == nil) != c.ok {
				t.Errorf("envoy --mode validate of %s %s: %v\n%s", path, c.what, err, out)
			}
		}
	}
}

// The configurations differ only where they have different purposes. An edit of anything else must
// be made in both.
func TestConfigurationsDifferOnlyOnPurpose(t *testing.T) {
	rest := make(map[string]any)
	for _, path := range []string{envoyYAML, originalDstYAML} {
		var root map[string]any
		if err := yaml.Unmarshal(text(t, path), &root); err != nil {
			t.Fatal(err)
		}
		resources := root["static_resources"].(map[string]any)
		for _, i := range []int{0, 2} { // the clusters of endpoints: for gRPC calls, and for other requests
			cluster := resources["clusters"].([]any)[i].(map[string]any)
			for _, key := range []string{
				"type", "eds_cluster_config", "load_balancing_policy", "lb_policy", "cleanup_interval",
				"original_dst_lb_config",
			} {
				delete(cluster, key)
			}
		}
		listener := resources["listeners"].([]any)[0].(map[string]any)
		listener["additional_addresses"] = listener["additional_addresses"].([]any)[:2] // removes the address of the relay
		hcm := listener["filter_chains"].([]any)[0].(map[string]any)["filters"].([]any)[0].(map[string]any)["typed_config"].(map[string]any)
		routes := hcm["route_config"].(map[string]any)["virtual_hosts"].([]any)[0].(map[string]any)["routes"].([]any)
		differing := 0
		for _, r := range routes {
			if action, ok := r.(map[string]any)["route"].(map[string]any); ok && action["retry_policy"] != nil {
				delete(action, "retry_policy")
				differing++
			}
		}
		for _, f := range hcm["http_filters"].([]any) {
			config := f.(map[string]any)["typed_config"].(map[string]any)
			if service, ok := config["grpc_service"].(map[string]any); ok {
				delete(service, "initial_metadata") // the metadata names the socket of the relay
			}
		}
		if differing != 5 {
			t.Errorf("%s: %d routes have a retry policy, want the 5 that lead to endpoints", path, differing)
		}
		rest[path] = root
	}
	if diff := cmp.Diff(rest[envoyYAML], rest[originalDstYAML]); diff != "" {
		t.Errorf("they have drifted apart (-envoy.yaml +original-dst.yaml):\n%s", diff)
	}
}

func TestOnlyTheAddressesChange(t *testing.T) {
	changed, err := adapt.Config(text(t, envoyYAML), adapt.Addresses{Listen: "127.9.8.7:1234", Admin: "127.9.8.7:1235", Socket: "/tmp/x.sock"})
	if err != nil {
		t.Fatal(err)
	}
	var b bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(changed, &b); err != nil {
		t.Fatal(err)
	}
	listen := b.GetStaticResources().GetListeners()[0].GetAddress().GetSocketAddress()
	admin := b.GetAdmin().GetAddress().GetSocketAddress()
	extproc := b.GetStaticResources().GetClusters()[1].GetLoadAssignment().GetEndpoints()[0]
	socket := extproc.GetLbEndpoints()[0].GetEndpoint().GetAddress().GetPipe().GetPath()
	if listen.GetAddress() != "127.9.8.7" || listen.GetPortValue() != 1234 || admin.GetPortValue() != 1235 || socket != "/tmp/x.sock" {
		t.Errorf("the addresses are %v, %v, %s", listen, admin, socket)
	}
	// Setting the addresses that the configuration already has changes nothing.
	same, err := adapt.Config(text(t, envoyYAML), adapt.Addresses{
		Listen: "0.0.0.0:8080", More: []string{"0.0.0.0:8008", "0.0.0.0:8033"}, Admin: "127.0.0.1:9901", Socket: ".run/extproc.sock",
	})
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	if err := errors.Join(yaml.Unmarshal(text(t, envoyYAML), &want), json.Unmarshal(same, &got)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("more than the addresses changed (-want +got):\n%s", diff)
	}

	// Other ports open only if they are named, also at the address of the configuration.
	alone, err := adapt.Config(text(t, envoyYAML), adapt.Addresses{Listen: "0.0.0.0:8080"})
	if err != nil || strings.Contains(string(alone), "8008") || strings.Contains(string(alone), "8033") {
		t.Errorf("ports that are not named open, %v", err)
	}

	if _, err := adapt.Config(text(t, "../../Makefile"), adapt.Addresses{Admin: "127.0.0.1:1"}); err == nil {
		t.Error("a file that is no configuration is accepted")
	}
	if _, err := adapt.Config(text(t, envoyYAML), adapt.Addresses{Listen: "8080"}); err == nil {
		t.Error("an address without a host is accepted")
	}
	for path, want := range map[string]bool{envoyYAML: true, originalDstYAML: false} {
		if knows, err := adapt.KnowsEndpoints(text(t, path)); knows != want || err != nil {
			t.Errorf("%s is told of the endpoints: %v, %v", path, knows, err)
		}
	}
}
