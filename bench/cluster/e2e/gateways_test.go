//go:build cluster

package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"
)

// gatewayObjects contains one object of each kind whose status control writes.
const gatewayObjects = `apiVersion: gateway.networking.k8s.io/v1
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
  rules: [{ backendRefs: [{ group: inference.networking.k8s.io, kind: InferencePool, name: llama }, { name: shop, port: 443 }] }]
---
apiVersion: v1
kind: Service
metadata: { name: shop }
spec: { ports: [{ port: 443 }] }
---
apiVersion: gateway.networking.k8s.io/v1
kind: BackendTLSPolicy
metadata: { name: p }
spec:
  targetRefs: [{ group: "", kind: Service, name: shop }]
  validation: { hostname: shop.test, wellKnownCACertificates: System }
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

// The leading control writes the status of Gateways, of routes attached to them, and of their
// pools.
func TestGatewayStatus(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
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
		"backendtlspolicy/p":    `{.status.ancestors[0].conditions[?(@.type=="Accepted")].status}`,
		"inferencepool/llama":   `{.status.parents[0].conditions[?(@.type=="Accepted")].status}`,
	} {
		await(t, what+" is accepted", 30*time.Second, func() bool {
			return llm.kubectl("get", what, "--output", "jsonpath="+want) == "True"
		})
	}
	await(t, "a reference to nobody is told", 30*time.Second, func() bool {
		return llm.kubectl("get", "grpcroute/r", "--output",
			`jsonpath={.status.parents[0].conditions[?(@.type=="ResolvedRefs")].reason}`) == "BackendNotFound"
	})
}

// A Gateway gets its own Envoys and address. A new listener is served without a rollout. A rollout
// fails no request and cuts no stream. When the Gateway is deleted, everything that was created for
// it is deleted too.
func TestGatewayHasItsOwnPods(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	apply := func(how, listeners string) {
		t.Helper()
		if out, err := k8s.Kubectl(t.Context(), strings.ReplaceAll(ownGateway, "LISTENERS", listeners), how, "--namespace", llm.name,
			"--filename", "-"); err != nil {
			t.Fatal(out, err)
		}
	}
	const one, two = "{ name: http, port: 80, protocol: HTTP }",
		"{ name: http, port: 80, protocol: HTTP }, { name: more, port: 10080, protocol: HTTP }"
	apply("apply", one)
	llm.kubectl("wait", "--for=condition=Programmed", "--timeout=2m", "gateway/own")
	deployment := llm.envoysOf("own")
	sys.rolledOut(deployment)
	address := llm.kubectl("get", "gateway/own", "--output", "jsonpath={.status.addresses[0].value}")
	client := k8s.Client()
	defer client.CloseIdleConnections()
	serves := func(port string) bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+port+"/v1/completions",
			strings.NewReader(`{"model":"llama","prompt":"x","max_tokens":2}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		response, err := client.Do(request)
		if err != nil {
			return false
		}
		_, err = finish(response, false)
		return err == nil && response.StatusCode == http.StatusOK
	}
	await(t, "its listener serves", 30*time.Second, func() bool { return serves("") })

	generation := func() string { return sys.kubectl("get", deployment, "--output", "jsonpath={.metadata.generation}") }
	before := generation()
	apply("apply", two)
	await(t, "another listener serves", 30*time.Second, func() bool { return serves(":10080") })
	if now := generation(); now != before {
		t.Errorf("the Deployment is of generation %s, and was of %s", now, before)
	}

	sent, failed := 0, 0
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if sent++; !serves("") {
				failed++
			}
		}
	}()
	sys.kubectl("rollout", "restart", deployment)
	sys.kubectl("rollout", "status", deployment, "--timeout", "5m")
	stop()
	<-done
	if failed > 0 || sent < 10 {
		t.Errorf("%d of %d requests failed while the Envoys were replaced", failed, sent)
	}
	t.Logf("%d requests while the Envoys were replaced", sent)

	apply("delete", two)
	left := func() string {
		return sys.kubectl("get", "deployments,services,poddisruptionbudgets,networkpolicies", "--output", "name",
			"--selector", "headgate.dev/gateway-namespace="+llm.name+",gateway.networking.k8s.io/gateway-name=own")
	}
	await(t, "all that was made for it is gone", 30*time.Second, func() bool { return left() == "" })
}

// ownGateway is a Gateway that serves the model of the simulated example.
const ownGateway = `apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: own }
spec:
  gatewayClassName: headgate
  listeners: [LISTENERS]
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: { name: own }
spec: { parentRefs: [{ name: own }], modelNames: [llama], backendRefs: [{ name: llama }] }
`

// In a cluster without the CRDs of Gateway API, the static data plane serves every LLMRoute.
func TestStaticDataPlaneServes(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	sys.apply("../../../manifests/static")
	sys.rolledOut("deployment/headgate-gateway")
	client := k8s.Client()
	defer client.CloseIdleConnections()
	defer func() {
		sys.kubectl("delete", "deployment/headgate-gateway", "poddisruptionbudget/headgate-gateway", "networkpolicy/headgate-gateway")
		sys.apply("../../../manifests/base")
	}()
	sys.kubectl("delete", "gateway/headgate", "gatewayclass/headgate")
	await(t, "a route is accepted without a Gateway", time.Minute, func() bool {
		return strings.Contains(llm.kubectl("get", "llmr/llama", "--output", `jsonpath={.status.conditions[?(@.type=="Accepted")]}`),
			`"it attaches to no Gateway, but the standalone data plane serves it"`)
	})
	await(t, "a request is answered without a Gateway", time.Minute, func() bool {
		status, err := complete(t.Context(), client, "llama", 1, false)
		return err == nil && status == http.StatusOK &&
			sys.kubectl("get", "deployments", "--selector", "app.kubernetes.io/component=envoy", "--output", "name") == ""
	})
}
