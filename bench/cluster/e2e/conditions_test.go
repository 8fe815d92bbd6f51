//go:build cluster

package e2e

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// conditionObjects has an object for each case of a condition. Pool two has engines, and pool none
// has none.
const conditionObjects = `apiVersion: apps/v1
kind: Deployment
metadata: { name: two }
spec:
  replicas: 2
  selector: { matchLabels: { app: two } }
  template:
    metadata: { labels: { app: two } }
    spec:
      terminationGracePeriodSeconds: 1
      containers:
        - name: engine
          image: headgate.dev/bench:dev
          args: [engine, llama, --host=0.0.0.0, --served-model-name=two, --max-loras=4]
          ports: [{ name: http, containerPort: 8000 }]
          readinessProbe: { httpGet: { path: /health, port: http }, periodSeconds: 1 }
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: { name: two }
spec: { selector: { matchLabels: { app: two } }, targetPorts: [{ number: 8000 }] }
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: { name: none }
spec: { selector: { matchLabels: { app: none } }, targetPorts: [{ number: 8000 }] }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: { name: good }
spec: { parentRefs: [{ namespace: headgate-system, name: headgate }], modelNames: [two], backendRefs: [{ name: two }] }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: { name: alone }
spec: { modelNames: [alone, a-second-name], backendRefs: [{ name: two }] }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: { name: lost }
spec: { parentRefs: [{ name: nowhere }], modelNames: [lost], backendRefs: [{ name: two }] }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: { name: empty }
spec: { parentRefs: [{ namespace: headgate-system, name: headgate }], modelNames: [empty], backendRefs: [{ name: none }] }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: PoolSettings
metadata: { name: first }
spec: { poolRef: { name: two }, placement: { maxAdapters: 4, source: "sim:" } }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: PoolSettings
metadata: { name: second }
spec: { poolRef: { name: two }, placement: { maxAdapters: 4, source: "sim:" } }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: EndpointList
metadata: { name: stray }
spec: { addresses: ["10.99.99.99:8000"] }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: EndpointList
metadata: { name: silent, labels: { app: none } }
spec: { addresses: ["10.99.99.98:8000"] }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: Model
metadata: { name: m }
spec: { poolRef: { name: none } }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: VModel
metadata: { name: v }
spec: { poolRef: { name: two }, target: nobody }
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: { name: bad }
spec: { gatewayClassName: headgate, listeners: [{ name: a, port: 80, protocol: example.com/OTHER }] }
`

// nobody is the model to which the VModel points.
const nobody = `apiVersion: inference.x-k8s.io/v1alpha1
kind: Model
metadata: { name: nobody }
spec: { poolRef: { name: two } }
`

// picked is a pool that another gateway serves, with extproc as its endpoint picker.
const picked = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: { name: picked }
spec:
  selector: { matchLabels: { app: two } }
  targetPorts: [{ number: 8000 }]
  endpointPickerRef: { name: headgate-extproc, port: { number: 9002 } }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: LLMRoute
metadata: { name: picked }
spec: { modelNames: [picked], backendRefs: [{ name: picked }] }
`

// columns returns what kubectl get prints, as "NAME COLUMN=CELL ..." with the given columns.
func (s *space) columns(kind string, columns ...string) (lines []string) {
	s.t.Helper()
	all := strings.Split(strings.TrimRight(s.kubectl("get", kind, "--output", "wide"), "\n"), "\n")
	for _, row := range all[1:] {
		line := []string{strings.Fields(row)[0]}
		for _, column := range columns {
			from := strings.Index(" "+all[0]+" ", " "+column+" ")
			if from < 0 {
				s.t.Fatalf("kubectl get %s has no column %s:\n%s", kind, column, strings.Join(all, "\n"))
			}
			cell := ""
			if from < len(row) && row[from] != ' ' {
				cell = strings.Fields(row[from:])[0]
			}
			line = append(line, column+"="+cell)
		}
		lines = append(lines, strings.Join(line, " "))
	}
	if strings.ContainsAny(strings.Join(all, ""), `[]{}"`) {
		s.t.Errorf("kubectl get %s prints JSON:\n%s", kind, strings.Join(all, "\n"))
	}
	return lines
}

// events returns the Events of the namespace, as "KIND/NAME TYPE REASON".
func (s *space) events() []string {
	s.t.Helper()
	out := s.kubectl("get", "events.events.k8s.io", "--no-headers", "--output",
		"custom-columns=KIND:.regarding.kind,NAME:.regarding.name,TYPE:.type,REASON:.reason")
	var all []string
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 4 {
			all = append(all, fmt.Sprintf("%s/%s %s %s", f[0], f[1], f[2], f[3]))
		}
	}
	return all
}

// Each fault of an object is a condition with its reason, a column of kubectl get and an Event.
// When the fault is mended, they say so. A Gateway without a valid listener gets no pods.
func TestConditionsColumnsAndEvents(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	its := namespace(t)
	kubectl := func(objects string, args ...string) {
		t.Helper()
		if out, err := k8s.Kubectl(t.Context(), objects, append(args, "--namespace", its.name, "--filename", "-")...); err != nil {
			t.Fatal(out, err)
		}
	}
	kubectl(conditionObjects, "apply")
	defer func() { its.kubectl("delete", "llmroutes,gateways", "--all") }() // they use the Gateway of all tests
	its.rolledOut("deployment/two")

	want := func(kind string, columns []string, want ...string) {
		t.Helper()
		await(t, fmt.Sprintf("kubectl get %s prints %q", kind, want), time.Minute, func() bool {
			return slices.Equal(its.columns(kind, columns...), want)
		})
	}
	event := func(of string) {
		t.Helper()
		await(t, "there is the Event "+of, time.Minute, func() bool { return slices.Contains(its.events(), of) })
	}
	read := func(of, path, condition, field string) string {
		t.Helper()
		return its.kubectl("get", of, "--output", fmt.Sprintf(`jsonpath={.status.%s[?(@.type=="%s")].%s}`, path, condition, field))
	}
	reason := func(of, condition, want string) {
		t.Helper()
		if is := read(of, "conditions", condition, "reason"); is != want {
			t.Errorf("the reason of %s of %s is %q, want %s", condition, of, is, want)
		}
	}
	// ofParents is the path of an InferencePool's conditions: it has some for each parent.
	const ofParents = "parents[*].conditions"
	parents := func(of, want string) {
		t.Helper()
		await(t, fmt.Sprintf("Ready of the parent of %s is %s", of, want), time.Minute, func() bool {
			return read(of, ofParents, "Ready", "reason") == want
		})
	}

	want("llmr", []string{"MODELS", "POOLS", "ACCEPTED", "READY"},
		"alone MODELS=alone,a-second-name POOLS=two ACCEPTED=False READY=False", "empty MODELS=empty POOLS=none ACCEPTED=True READY=False",
		"good MODELS=two POOLS=two ACCEPTED=True READY=True", "lost MODELS=lost POOLS=two ACCEPTED=False READY=False")
	reason("llmr/alone", "Accepted", "NoMatchingParent")
	reason("llmr/lost", "Accepted", "NoMatchingParent")
	reason("llmr/empty", "Ready", "NoEndpoints")
	if out := its.kubectl("describe", "llmr/alone"); !strings.Contains(out, "it attaches to no Gateway: set spec.parentRefs") ||
		!strings.Contains(out, "Warning  NoMatchingParent") {
		t.Errorf("kubectl describe prints\n%s", out)
	}
	event("LLMRoute/alone Warning NoMatchingParent")
	event("LLMRoute/lost Warning NoMatchingParent")
	event("LLMRoute/empty Warning NoEndpoints")

	want("infpool", []string{"PORT", "ENDPOINTS", "READY"}, "none PORT=8000 ENDPOINTS=0/1 READY=False", "two PORT=8000 ENDPOINTS=2/2 READY=True")
	parents("infpool/none", "NoEndpoints")
	parents("infpool/two", "EndpointsAnswer")
	event("InferencePool/none Warning NoEndpoints")
	if is := its.kubectl("get", "infpool/two", "--output", "jsonpath={.status.parents[*].parentRef.name}"); is != "headgate" {
		t.Errorf("the parent of the pool is %q", is)
	}
	want("poolset", []string{"POOL", "ACCEPTED", "ENDPOINTS", "READY"},
		"first POOL=two ACCEPTED=True ENDPOINTS=2/2 READY=True", "second POOL=two ACCEPTED=False ENDPOINTS= READY=False")
	reason("poolset/second", "Accepted", "Conflicted")
	if is := read("poolset/second", "conditions", "Accepted", "message"); !strings.Contains(is, "uses PoolSettings "+its.name+"/first") {
		t.Errorf("the second PoolSettings does not name the one in force: %s", is)
	}
	event("PoolSettings/second Warning Conflicted")
	want("epl", []string{"ENDPOINTS", "READY"}, "silent ENDPOINTS=0/1 READY=False", "stray ENDPOINTS= READY=False")
	reason("epl/silent", "Ready", "NoEndpoints")
	reason("epl/stray", "Accepted", "NotSelected")
	event("EndpointList/stray Warning NotSelected")
	want("mdl", []string{"READY", "STATE"}, "m READY=False STATE=NoEndpoints")
	event("Model/m Warning NoEndpoints")
	want("vmdl", []string{"READY", "STATE"}, "v READY=False STATE=TargetNotFound")
	event("VModel/v Warning TargetNotFound")
	event("Gateway/bad Warning ListenersNotValid")
	pods := func() string {
		return sys.kubectl("get", "deployments", "--output", "name", "--selector", "headgate.dev/gateway-namespace="+its.name)
	}
	if is := pods(); is != "" {
		t.Errorf("a Gateway without a valid listener has %s", is)
	}

	// Each fault is mended.
	its.kubectl("patch", "llmr/alone", "--type=merge", `--patch={"spec":{"parentRefs":[{"namespace":"headgate-system","name":"headgate"}]}}`)
	its.kubectl("delete", "poolset/first")
	its.kubectl("label", "epl/stray", "app=none")
	kubectl(nobody, "apply")
	kubectl(strings.ReplaceAll(conditionObjects[strings.LastIndex(conditionObjects, "---"):], "example.com/OTHER", "HTTP"), "apply")
	event("LLMRoute/alone Normal Accepted")
	event("PoolSettings/second Normal Accepted")
	event("EndpointList/stray Normal Accepted")
	event("VModel/v Normal Defined")
	event("Gateway/bad Normal Accepted")
	await(t, "the Gateway gets its pods with its first valid listener", time.Minute, func() bool { return strings.Contains(pods(), "deployment") })

	// A route without parentRefs is accepted if another gateway's picker serves its pool.
	kubectl(picked, "apply")
	event("LLMRoute/picked Warning NoMatchingParent")
	reason("llmr/picked", "Accepted", "NoMatchingParent")
	const picker = "../../../manifests/extproc"
	sys.apply(picker)
	removed := func() { sys.kubectl("delete", "--ignore-not-found", "--kustomize", picker) }
	defer removed()
	sys.rolledOut("deployment/headgate-extproc")
	await(t, "a route that another gateway's picker serves is accepted, and ready", time.Minute, func() bool {
		return read("llmr/picked", "conditions", "Accepted", "status") == "True" && read("llmr/picked", "conditions", "Ready", "status") == "True"
	})
	if is := read("llmr/picked", "conditions", "Accepted", "message"); is !=
		"it attaches to no Gateway, but the endpoint picker of another gateway serves its InferencePool picked" {
		t.Errorf("the message of its condition is %q", is)
	}
	event("LLMRoute/picked Normal Accepted")
	removed()

	// Where the CRD of InferencePools is another project's, kubectl prints no columns of ours. The
	// conditions and Events are the same.
	const crd = "inferencepools.inference.networking.k8s.io"
	its.kubectl("patch", "crd/"+crd, "--type=json", `--patch=[{"op":"remove","path":"/spec/versions/0/additionalPrinterColumns"}]`)
	defer func() {
		its.kubectl("apply", "--filename", "../../../manifests/crds/inference.networking.k8s.io_inferencepools.yaml")
	}()
	await(t, "kubectl prints no columns", time.Minute, func() bool {
		return !strings.Contains(its.kubectl("get", "infpool"), "ENDPOINTS")
	})

	// Engines go and come back twice. The second time increases the count of the Event.
	count := func() string {
		return its.kubectl("get", "events.events.k8s.io", "--output",
			`jsonpath={range .items[?(@.regarding.name=="good")]}{.reason}={.series.count} {end}`)
	}
	repeated := regexp.MustCompile(`NoEndpoints=\d`)
	for i := range 2 {
		its.kubectl("scale", "deployment/two", "--replicas=0")
		want("poolset", []string{"ENDPOINTS", "READY"}, "second ENDPOINTS=0/0 READY=False")
		event("LLMRoute/good Warning NoEndpoints")
		parents("infpool/two", "NoEndpoints")
		event("InferencePool/two Warning NoEndpoints")
		if i > 0 {
			await(t, "the Event has a count", time.Minute, func() bool { return repeated.MatchString(count()) })
		}
		its.kubectl("scale", "deployment/two", "--replicas=2")
		want("poolset", []string{"ENDPOINTS", "READY"}, "second ENDPOINTS=2/2 READY=True")
		event("LLMRoute/good Normal EndpointsAnswer")
		parents("infpool/two", "EndpointsAnswer")
		event("InferencePool/two Normal EndpointsAnswer")
	}
	t.Logf("the Events of the namespace are\n%s", strings.Join(its.events(), "\n"))
}
