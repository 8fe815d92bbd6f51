package envoy_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/control/attach/envoy"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/network"
	"github.com/headgate/headgate/test/protos"
)

func envoyYAML(t *testing.T) []byte {
	t.Helper()
	text, err := os.ReadFile("../../../envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func template(t *testing.T) *envoy.Template {
	t.Helper()
	is, err := envoy.Read(envoyYAML(t))
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// bootstrap returns envoy.yaml, parsed.
func bootstrap(t *testing.T) *bootstrapv3.Bootstrap {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON(envoyYAML(t))
	if err != nil {
		t.Fatal(err)
	}
	b := new(bootstrapv3.Bootstrap)
	if err := protojson.Unmarshal(asJSON, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// options returns the options of an Envoy whose only xDS server is extproc.
func options(t *testing.T) envoy.Options {
	source := bootstrap(t).GetStaticResources().GetClusters()[0].GetEdsClusterConfig().GetEdsConfig()
	return envoy.Options{
		Bind:   func(port int32) (string, uint32) { return "127.0.0.1", uint32(port) },
		Config: source, Services: source,
	}
}

// certificates returns a certificate for every Secret that listeners name.
func certificates(n *objects.Network) map[objects.Name]plan.Certificate {
	all := make(map[objects.Name]plan.Certificate)
	for _, name := range plan.Secrets(attach.Of(n), n) {
		all[name] = plan.Certificate{Chain: []byte("chain"), Key: []byte("key")}
	}
	return all
}

// started returns the bootstrap configuration of a Gateway's Envoy.
func started(t *testing.T) *bootstrapv3.Bootstrap {
	t.Helper()
	text, err := template(t).Bootstrap(envoy.Place{
		Gateway: objects.Name{Namespace: "ns", Name: "g"}, Node: "a",
		Admin: netip.MustParseAddrPort("127.0.0.1:9901"), Extproc: "extproc", Control: "control",
	})
	if err != nil {
		t.Fatal(err)
	}
	b := new(bootstrapv3.Bootstrap)
	if err := protojson.Unmarshal(text, b); err != nil {
		t.Fatal(err)
	}
	return b
}

// inline returns a static configuration, in which the listeners contain the routes.
func inline(t *testing.T, r *envoy.Resources) []byte {
	t.Helper()
	routes := make(map[string]*routev3.RouteConfiguration)
	for _, c := range r.Routes {
		routes[c.GetName()] = c
	}
	b := bootstrap(t)
	b.StaticResources.Listeners = nil
	for _, l := range r.Listeners {
		for _, chain := range l.GetFilterChains() {
			filter := chain.GetFilters()[0]
			m := new(hcmv3.HttpConnectionManager)
			if err := filter.GetTypedConfig().UnmarshalTo(m); err != nil {
				t.Fatal(err)
			}
			config := routes[m.GetRds().GetRouteConfigName()]
			config.ValidateClusters = wrapperspb.Bool(false) // as with RDS: Envoy accepts routes to missing clusters
			m.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: config}
			if err := filter.GetTypedConfig().MarshalFrom(m); err != nil {
				t.Fatal(err)
			}
		}
		b.StaticResources.Listeners = append(b.StaticResources.Listeners, l)
	}
	b.LayeredRuntime = started(t).GetLayeredRuntime()
	pools := func(c *clusterv3.Cluster) bool { return c.GetType() == clusterv3.Cluster_EDS } // Envoy would wait for endpoints
	b.StaticResources.Clusters = append(slices.DeleteFunc(b.GetStaticResources().GetClusters(), pools), r.Clusters...)
	text, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Every plan passes protobuf validation, and Envoy accepts it.
func TestEnvoyAcceptsPlans(t *testing.T) {
	binary, err := find.Envoy(t.Context(), "../../../.cache", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	for name, n := range scenarios(t) {
		for _, p := range plan.Of(attach.Of(n), n, plan.Known{Certificates: certificates(n)}).Gateways {
			r, err := template(t).Of(p, options(t))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for _, m := range all(r) {
				if _, err := protos.Validate(m.ProtoReflect()); err != nil {
					t.Errorf("%s: %v in\n%s", name, err, protojson.Format(m))
				}
			}
			if out, err := validate(t, binary, inline(t, r)); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
	}
}

// scenarios returns the objects of package plan's scenarios.
func scenarios(t *testing.T) map[string]*objects.Network {
	t.Helper()
	files, err := filepath.Glob("../plan/testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	all := make(map[string]*objects.Network)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, block := range strings.Split(string(text), "\n\n") {
			if input, _, ok := strings.Cut(block, "\n----\n"); ok {
				all[fmt.Sprintf("%s %d", filepath.Base(file), i)] = network.Read(t, network.Standard(input))
			}
		}
	}
	return all
}

func all(r *envoy.Resources) (messages []proto.Message) {
	for _, l := range r.Listeners {
		messages = append(messages, l)
	}
	for _, c := range r.Routes {
		messages = append(messages, c)
	}
	for _, c := range r.Clusters {
		messages = append(messages, c)
	}
	for _, secret := range r.Secrets {
		messages = append(messages, secret)
	}
	return messages
}

func validate(t *testing.T, binary string, config []byte) ([]byte, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return exec.CommandContext(ctx, binary, "--mode", "validate", "--config-path", file, "--log-level", "warning").CombinedOutput()
}
