//go:build cluster

package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// gatewayObjects are one of each kind that tells of itself.
const gatewayObjects = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: { name: headgate }
spec: { controllerName: headgate.dev/gateway-controller }
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: g }
spec:
  gatewayClassName: headgate
  allowedListeners: { namespaces: { from: Same } }
  listeners: [{ name: http, port: 80, protocol: HTTP }, { name: grpc, port: 81, protocol: HTTP }]
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: { name: more }
spec: { parentRef: { name: g }, listeners: [{ name: more, port: 82, protocol: HTTP }] }
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: { name: h }
spec:
  parentRefs: [{ name: g, sectionName: http }]
  rules: [{ backendRefs: [{ group: inference.networking.k8s.io, kind: InferencePool, name: llama }] }]
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: { name: r }
spec:
  parentRefs: [{ name: g, sectionName: grpc }]
  rules: [{ backendRefs: [{ name: nobody, port: 80 }] }]
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: { name: at-gateway }
spec: { parentRefs: [{ name: g }], backendRefs: [{ name: llama }] }
`

// Gateways, what attaches to them, and the pools behind say what is in force, by the control that leads.
func TestGatewaysTellOfThemselves(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	sys.kubectl("apply", "--server-side", "--filename", filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard"))
	sys.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd/gateways.gateway.networking.k8s.io", "crd/listenersets.gateway.networking.k8s.io",
		"crd/httproutes.gateway.networking.k8s.io", "crd/grpcroutes.gateway.networking.k8s.io", "crd/gatewayclasses.gateway.networking.k8s.io")
	kubectl := func(args ...string) {
		t.Helper()
		if out, err := k8s.Kubectl(t.Context(), gatewayObjects, append(args, "--namespace", llm.name, "--filename", "-")...); err != nil {
			t.Fatal(out, err)
		}
	}
	kubectl("apply")
	defer kubectl("delete")
	for what, want := range map[string]string{
		"gatewayclass/headgate": `{.status.conditions[?(@.type=="Accepted")].status}`,
		"gateway/g":             `{.status.conditions[?(@.type=="Accepted")].status}`,
		"listenerset/more":      `{.status.conditions[?(@.type=="Accepted")].status}`,
		"httproute/h":           `{.status.parents[0].conditions[?(@.type=="ResolvedRefs")].status}`,
		"llmroute/at-gateway":   `{.status.parents[0].conditions[?(@.type=="Accepted")].status}`,
		"inferencepool/llama":   `{.status.parents[0].conditions[?(@.type=="Accepted")].status}`,
	} {
		await(t, what+" is accepted", 30*time.Second, func() bool { return llm.kubectl("get", what, "--output", "jsonpath="+want) == "True" })
	}
	await(t, "a reference to nobody is told", 30*time.Second, func() bool {
		return llm.kubectl("get", "grpcroute/r", "--output", `jsonpath={.status.parents[0].conditions[?(@.type=="ResolvedRefs")].reason}`) == "BackendNotFound"
	})
}
