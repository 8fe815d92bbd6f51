package manifests

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// gateways has two facts about each gateway: the name by which it calls the picker that the
// endpointPickerRef of its example names, according to its source; and whether it accepts a list of
// endpoints from the picker.
var gateways = map[string]struct {
	authority string
	lists     bool
}{
	// Envoy sends the name of the cluster if no other authority is configured. The cluster has the
	// load balancing policy override_host.
	"istio": {"outbound|9002||headgate-extproc.llm.svc.cluster.local", true},
	// The name is the host and port of the Service. The gateway reads the header as one address.
	"kgateway": {"headgate-extproc.llm.svc.cluster.local:9002", false},
	// An ORIGINAL_DST cluster uses the header.
	"envoy-ai-gateway": {"headgate-extproc.llm.svc:9002", false},
	// The name is that of the Backend. The policy override_host reads the header.
	"envoy-gateway": {"headgate-extproc.llm", true},
	// Neither the name nor whether it accepts a list is documented.
	"gke": {"", false},
}

// extproc finds the pool of each example by the name that the gateway calls, even if there are
// other pools, or by its flags.
func TestEachGatewayUsesThePool(t *testing.T) {
	all := built(t)
	for folder := range all {
		if name, ok := strings.CutPrefix(folder, "gateways/"); ok && name != "shared" {
			if _, known := gateways[name]; !known {
				t.Errorf("nothing says what %s calls", name)
			}
		}
	}
	want := objects.Name{Namespace: "llm", Name: "llama"}
	const others = `
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: { name: second, namespace: llm }
spec:
  selector: { matchLabels: { app: second } }
  targetPorts: [{ number: 8000 }]
  endpointPickerRef: { name: second-picker, port: { number: 9002 } }
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: { name: llama, namespace: elsewhere }
spec:
  selector: { matchLabels: { app: llama } }
  targetPorts: [{ number: 8000 }]
  endpointPickerRef: { name: headgate-extproc, port: { number: 9002 } }
`
	for name, g := range gateways {
		at := t.TempDir()
		texts := [][]byte{[]byte(others)}
		var args []string
		for _, o := range all["gateways/"+name] {
			if o.GetKind() == "InferencePool" {
				text, err := yaml.Marshal(o.Object)
				if err != nil {
					t.Fatal(err)
				}
				texts = append(texts, text)
			}
			if s := spec(t, o); s != nil {
				args = append(args, s.Containers[0].Args...)
			}
		}
		for i, text := range texts {
			if err := os.WriteFile(filepath.Join(at, string(rune('a'+i))+".yaml"), text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		set, err := dir.Read(at, kinds.All())
		if err != nil {
			t.Fatal(err)
		}
		found, ok := objects.Build(set).PoolOf(g.authority, 9002)
		flags := slices.Contains(args, "--pool-name="+want.Name) && slices.Contains(args, "--pool-namespace="+want.Namespace)
		if ok && found != want || !ok && !flags {
			t.Errorf("%s calls %q and means %v (%v), not %v", name, g.authority, found, ok, want)
		}
		picks := map[bool]string{true: "--endpoints-per-request=3", false: "--endpoints-per-request=1"}[g.lists]
		if !slices.Contains(args, picks) {
			t.Errorf("%s wants %s, and extproc has %v", name, picks, args)
		}
	}
}
