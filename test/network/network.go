// Package network reads Gateway API objects and Services, for tests of code that uses them.
package network

import (
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kinds"
)

// Read parses objects in YAML, separated by ---. The objects need no apiVersion.
func Read(t testing.TB, text string) *objects.Network {
	t.Helper()
	return Set(t, text).Network
}

// Set is like Read, but returns the whole Set.
func Set(t testing.TB, text string) objects.Set {
	t.Helper()
	set := objects.Set{Network: new(objects.Network)}
	table := kinds.WithNetwork()
	for doc := range strings.SplitSeq(text, "\n---\n") {
		var meta struct{ Kind string }
		if err := yaml.Unmarshal([]byte(doc), &meta); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		i := slices.IndexFunc(table, func(k kinds.Kind) bool { return k.Kind == meta.Kind })
		if i < 0 {
			t.Fatalf("a %s in\n%s", meta.Kind, doc)
		}
		o := table[i].New()
		if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		kept, _ := table[i].Server(o)
		table[i].Keep(&set, kept)
	}
	return set
}

// Standard adds a GatewayClass, some Services and some pools to objects in YAML. If the objects
// have no Gateway, it adds the Gateway ns/g with an HTTP listener on port 80.
func Standard(text string) string {
	const class = "kind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n"
	const services = "kind: Service\nmetadata: {namespace: ns, name: a}\nspec: {ports: [{port: 80}, {port: 81, name: h2, appProtocol: kubernetes.io/h2c}, {port: 53, name: dns, protocol: UDP}]}\n---\n" +
		"kind: Service\nmetadata: {namespace: ns, name: b}\nspec: {ports: [{port: 80}]}\n---\n" +
		"kind: Service\nmetadata: {namespace: other, name: a}\nspec: {ports: [{port: 80}]}\n---\n" +
		"kind: Service\nmetadata: {namespace: ns, name: outside}\nspec: {type: ExternalName, ports: [{port: 80}]}\n---\n" +
		"kind: InferencePool\nmetadata: {namespace: ns, name: llama}\n---\nkind: InferencePool\nmetadata: {namespace: other, name: phi}\n---\n"
	const gateway = "kind: Gateway\nmetadata: {namespace: ns, name: g}\nspec: {gatewayClassName: headgate, listeners: [{name: http, port: 80, protocol: HTTP}]}\n---\n"
	if !strings.Contains(text, "kind: Gateway\n") {
		text = gateway + text
	}
	return class + services + text
}
