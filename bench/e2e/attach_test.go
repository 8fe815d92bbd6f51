package e2e

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// onGateway has tests that say nothing else of their data plane run on that of a Gateway, which control drives.
var onGateway = flag.Bool("gateway", false, "run on the Envoy of a Gateway in the place of envoy.yaml")

// aGateway is a Gateway with one listener, at the port 8080 of an address.
func aGateway(address string) string {
	return fmt.Sprintf("apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n---\n"+
		"apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: gateway}\nspec:\n"+
		"  gatewayClassName: headgate\n  addresses: [{type: IPAddress, value: %s}]\n  listeners: [{name: http, port: 8080, protocol: HTTP}]\n", address)
}

// attached has each LLMRoute that names no parent attach to the Gateway.
func attached(t testing.TB, text string) string {
	t.Helper()
	docs := strings.Split(text, "---\n")
	for i, doc := range docs {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil || o["kind"] != "LLMRoute" {
			continue // some tests write what is no YAML
		}
		spec, ok := o["spec"].(map[string]any)
		if !ok || spec["parentRefs"] != nil {
			continue
		}
		spec["parentRefs"] = []any{map[string]any{"name": "gateway"}}
		with, err := yaml.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		docs[i] = string(with)
	}
	return strings.Join(docs, "---\n")
}
