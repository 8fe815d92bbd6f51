//go:build cluster

package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	system  = "headgate-system"
	example = "llm"
	gateway = "http://headgate." + system + ".svc.cluster.local"
)

// headgate installs Headgate with the simulated example.
func headgate(t *testing.T) (sys, llm *space) {
	t.Helper()
	return apply(t, "simulated", example)
}

// apply applies the manifests of Headgate, and those of an example in another namespace.
func apply(t *testing.T, name, namespace string) (sys, its *space) {
	t.Helper()
	sys, its = &space{t, system}, &space{t, namespace}
	apply := func(folder string) {
		t.Helper()
		if out, err := k8s.Kubectl(t.Context(), "", "apply", "--kustomize", folder); err != nil {
			t.Fatal(out, err)
		}
	}
	gatewayAPI(t)
	apply("../../../manifests/base")
	sys.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd/models.inference.x-k8s.io", "crd/vmodels.inference.x-k8s.io",
		"crd/llmroutes.inference.x-k8s.io", "crd/inferencepools.inference.networking.k8s.io", "crd/poolsettings.inference.x-k8s.io",
		"crd/gatewaysettings.inference.x-k8s.io")
	if out, err := k8s.Kubectl(t.Context(), clusterIP, "apply", "--filename", "-"); err != nil {
		t.Fatal(out, err)
	}
	apply("../../../manifests/examples/" + name)
	logsIfFailed(t)
	return sys, its
}

// logsIfFailed prints the logs of Headgate's pods at the end of the test if it has failed.
func logsIfFailed(t *testing.T) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, args := range [][]string{
			{"get", "pods", "-A", "-o", "wide"},
			{"logs", "-n", system, "-l", "app.kubernetes.io/component=control", "--tail", "40", "--prefix"},
			{"logs", "-n", system, "-l", "app.kubernetes.io/component=envoy", "--all-containers", "--tail", "8", "--prefix"},
		} {
			out, err := k8s.Kubectl(ctx, "", args...)
			t.Logf("kubectl %s:\n%s%v", strings.Join(args, " "), out, err)
		}
	})
}

// clusterIP makes the Services of Gateways ClusterIP Services, because the cluster has no load
// balancers.
const clusterIP = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: { name: headgate }
spec:
  controllerName: headgate.dev/gateway-controller
  parametersRef: { group: inference.x-k8s.io, kind: GatewaySettings, namespace: headgate-system, name: headgate }
---
apiVersion: inference.x-k8s.io/v1alpha1
kind: GatewaySettings
metadata: { namespace: headgate-system, name: headgate }
spec: { service: { type: ClusterIP } }
`

// ready waits until the pods of Headgate and of the example are ready.
func ready(sys, llm *space) {
	sys.t.Helper()
	sys.gatewayServes()
	llm.rolledOut("deployment/llama")
}

// gatewayAPI installs the CRDs of Gateway API.
func gatewayAPI(t *testing.T) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	s := &space{t, system}
	if out, err := k8s.Kubectl(t.Context(), "", "apply", "--server-side", "--filename",
		filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard")); err != nil {
		t.Fatal(out, err)
	}
	s.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd/gateways.gateway.networking.k8s.io",
		"crd/listenersets.gateway.networking.k8s.io",
		"crd/httproutes.gateway.networking.k8s.io", "crd/grpcroutes.gateway.networking.k8s.io",
		"crd/backendtlspolicies.gateway.networking.k8s.io", "crd/gatewayclasses.gateway.networking.k8s.io")
}

// gatewayServes waits until control and the Envoys of the Gateway of manifests/base are ready.
func (s *space) gatewayServes() {
	s.t.Helper()
	s.rolledOut("deployment/headgate-control")
	s.kubectl("wait", "--for=condition=Programmed", "--timeout=2m", "gateway/headgate")
	s.rolledOut(s.envoysOf("headgate"))
}

// envoysOf returns the name of the Deployment of a Gateway's Envoys.
func (s *space) envoysOf(gateway string) string {
	s.t.Helper()
	out, err := k8s.Kubectl(s.t.Context(), "", "get", "deployments", "--namespace", system, "--output", "name",
		"--selector", "headgate.dev/gateway-namespace="+s.name+",gateway.networking.k8s.io/gateway-name="+gateway)
	if err != nil || strings.Count(strings.TrimSpace(out), "\n") != 0 || out == "" {
		s.t.Fatalf("the Deployment of Gateway %s/%s is %q: %v", s.name, gateway, out, err)
	}
	return strings.TrimSpace(out)
}

// complete sends a completion request through the gateway and reads the whole response.
func complete(ctx context.Context, client *http.Client, model string, tokens int, stream bool) (status int, err error) {
	status, _, err = completeAs(ctx, client, "", model, tokens, stream)
	return status, err
}

// completeAs is like complete. It also sends a request ID, and returns the body of an error.
func completeAs(ctx context.Context, client *http.Client, id, model string, tokens int, stream bool) (status int, fault string, err error) {
	response, err := post(ctx, client, id, model, tokens, stream)
	if err != nil {
		return 0, "", err
	}
	answer, err := finish(response, stream)
	if response.StatusCode != http.StatusOK {
		fault = strings.TrimSpace(answer)
	}
	return response.StatusCode, fault, err
}

// post sends a completion request; with an empty id, Envoy generates the request ID. The caller
// reads the response with finish.
func post(ctx context.Context, client *http.Client, id, model string, tokens int, stream bool) (*http.Response, error) {
	body := fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":%d,"stream":%v}`, model, tokens, stream)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	if id != "" {
		request.Header.Set("X-Request-Id", id)
	}
	return client.Do(request)
}

// finish reads a response to its end, and returns an error if a stream was cut.
func finish(response *http.Response, stream bool) (answer string, err error) {
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && stream && response.StatusCode == http.StatusOK && !bytes.HasSuffix(bytes.TrimSpace(text), []byte("[DONE]")) {
		err = errors.New("the stream was cut")
	}
	return string(text), err
}

// load is the load of several clients, each of which sends one request at a time.
type load struct {
	stop func() (sent int64, faults []string)
	each []atomic.Int64
	// slowest is the longest duration of a request. Read it after stop.
	slowest time.Duration
}

// explained is the number of failed requests of a load that are printed with their access log
// records.
const explained = 5

// pour starts clients, each with its own connection. A third of their requests are streams.
func pour(t *testing.T, clients int, models ...string) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{each: make([]atomic.Int64, clients)}
	var all, search sync.WaitGroup
	var mu sync.Mutex // guards faults and slowest
	var faults []string
	records := make([]string, explained)
	for i := range clients {
		all.Go(func() {
			client := k8s.Client()
			defer client.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				model, id := models[(i+n)%len(models)], rand.Text()
				began := time.Now()
				status, answer, err := completeAs(context.WithoutCancel(ctx), client, id, model, 20, n%3 == 0)
				l.each[i].Add(1)
				mu.Lock()
				l.slowest = max(l.slowest, time.Since(began))
				if err != nil || status != http.StatusOK {
					n := len(faults)
					faults = append(faults, fmt.Sprintf("%s to %s %s %s: %d %v %s",
						began.Format("15:04:05.000"), time.Now().Format("15:04:05.000"), id, model, status, err, answer))
					if n < explained { // now, because the pod may soon be gone with its log
						search.Go(func() { records[n] = accessLog(context.WithoutCancel(ctx), id) })
					}
				}
				mu.Unlock()
			}
		})
	}
	l.stop = sync.OnceValues(func() (sent int64, _ []string) {
		cancel()
		all.Wait()
		search.Wait()
		for i := range l.each {
			sent += l.each[i].Load()
		}
		for i := range faults[:min(explained, len(faults))] {
			faults[i] += "\n" + records[i]
		}
		return sent, faults
	})
	t.Cleanup(func() { l.stop() })
	return l
}

// accessLog returns the records of a request in the access logs of Gateways' Envoys, each with the
// name of its pod. Envoy writes them within 10 s.
func accessLog(ctx context.Context, id string) string {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		out, _ := k8s.Kubectl(ctx, "", "logs", "--namespace", system, "--selector", "app.kubernetes.io/component=envoy",
			"--container", "envoy", "--prefix", "--ignore-errors", "--since", "1m", "--tail", "-1")
		var records strings.Builder
		for line := range strings.Lines(out) {
			if strings.Contains(line, id) {
				records.WriteString(line)
			}
		}
		if records.Len() > 0 {
			return records.String()
		}
		select {
		case <-ctx.Done():
		case <-time.After(2 * time.Second):
		}
	}
	return "no access log has a record of it"
}

// goesOn waits until each client has received n more responses.
func (l *load) goesOn(t *testing.T, n int64) {
	t.Helper()
	want := make([]int64, len(l.each))
	for i := range l.each {
		want[i] = l.each[i].Load() + n
	}
	for i := range l.each {
		await(t, "each client's requests are answered", time.Minute, func() bool { return l.each[i].Load() >= want[i] })
	}
}

// none stops a load and fails the test if a request failed.
func (l *load) none(t *testing.T, while string) {
	t.Helper()
	sent, faults := l.stop()
	for _, fault := range faults[:min(explained, len(faults))] {
		t.Error(fault)
	}
	t.Logf("%s: %d requests, %d failed", while, sent, len(faults))
}

// The example serves requests soon after its manifests are applied, and kubectl shows its status.
func TestExampleServesAndReportsStatus(t *testing.T) {
	began := time.Now()
	sys, llm := headgate(t)
	client := k8s.Client()
	defer client.CloseIdleConnections()
	await(t, "the gateway answers", time.Minute, func() bool {
		status, err := complete(t.Context(), client, "adapter-17", 5, false)
		return err == nil && status == http.StatusOK
	})
	t.Logf("a request for an adapter that nobody had loaded was answered %v after kubectl apply began",
		time.Since(began).Round(100*time.Millisecond))
	ready(sys, llm)
	await(t, "kubectl shows copies and conditions", 20*time.Second, func() bool {
		out := llm.kubectl("get", "llmroutes,inferencepools,models")
		for _, want := range []string{"text-to-sql", "True", "adapter-17", "Loaded", "Loadable"} {
			if !strings.Contains(out, want) {
				return false
			}
		}
		return true
	})

	route := "testdata/newcomer"
	applied := time.Now()
	if out, err := k8s.Kubectl(t.Context(), "", "apply", "--kustomize", route); err != nil {
		t.Fatal(out, err)
	}
	await(t, "the new route's adapter answers", 10*time.Second, func() bool {
		status, err := complete(t.Context(), client, "newcomer", 1, true)
		return err == nil && status == http.StatusOK
	})
	t.Logf("a new route's first answer came %v after kubectl apply began", time.Since(applied).Round(10*time.Millisecond))
	if out, err := k8s.Kubectl(t.Context(), "", "delete", "--kustomize", route); err != nil {
		t.Fatal(out, err)
	}
	deleted := time.Now()
	await(t, "a deleted route is 404", 4*time.Second, func() bool {
		status, err := complete(t.Context(), client, "newcomer", 1, false)
		return err == nil && status == http.StatusNotFound
	})
	t.Logf("404 came %v after kubectl delete ended", time.Since(deleted).Round(10*time.Millisecond))
}

// streams starts n streams, in which each token takes about 40 ms, and returns when all have
// started. The function ended waits until all streams end and reports which were cut.
func streams(t *testing.T, n, tokens int) (ended func()) {
	t.Helper()
	ends, begun := make(chan error, n), make(chan error, n)
	for range n {
		go func() {
			client := k8s.Client()
			defer client.CloseIdleConnections()
			response, err := post(context.WithoutCancel(t.Context()), client, "", "llama", tokens, true)
			if err == nil && response.StatusCode != http.StatusOK {
				err = fmt.Errorf("a stream begins with %d", response.StatusCode)
			}
			if begun <- err; err != nil {
				return
			}
			_, err = finish(response, true)
			ends <- err
		}()
	}
	for range n {
		if err := <-begun; err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		t.Helper()
		for range n {
			if err := <-ends; err != nil {
				t.Error(err)
			}
		}
	}
}

// Rollouts under load fail no request. They cut no stream, even a stream that lasts longer than the
// pod's grace period. When engines are replaced, their adapters are loaded on other engines before
// the pods end, so that no request waits for a load.
func TestRolloutsCostNoRequest(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	for _, c := range []struct {
		s        *space
		workload string
	}{{sys, "deployment/headgate-control"}, {sys, sys.envoysOf("headgate")}, {llm, "deployment/llama"}} {
		ended := streams(t, 8, 600)
		l := pour(t, 8, "llama", "adapter-01", "adapter-02")
		l.goesOn(t, 10)
		var extproc func(name string) []float64
		var held []float64
		if c.s == llm {
			extproc = sys.metrics("envoy", 9090)
			held = extproc("headgate_queue_time_seconds_count")
		}
		began := time.Now()
		c.s.kubectl("rollout", "restart", c.workload)
		c.s.kubectl("rollout", "status", c.workload, "--timeout", "5m")
		rolled := time.Now()
		l.goesOn(t, 10)
		l.none(t, "while "+c.workload+" was replaced")
		ended()
		t.Logf("%s was replaced in %v; streams that began before ended %v after", c.workload, rolled.Sub(began).Round(100*time.Millisecond),
			time.Since(rolled).Round(100*time.Millisecond))
		if c.s == llm {
			if now := extproc("headgate_queue_time_seconds_count"); !slices.Equal(now, held) {
				t.Errorf("requests waited for adapters: the gateways held %v, before %v", now, held)
			}
			logs := sys.kubectl("logs", "--selector", "app.kubernetes.io/component=control", "--since-time", began.Format(time.RFC3339),
				"--tail", "-1")
			migrated := 0
			for line := range strings.Lines(logs) { // some retries may find no endpoint while pods start
				if strings.Contains(line, "models of the leaving endpoint have been moved") ||
					strings.Contains(line, "models of the leaving endpoint could be moved") {
					migrated++
					t.Log(strings.TrimSpace(line))
				}
			}
			if migrated != 4 {
				t.Errorf("of %d pods control says what became of their models: %s", migrated, logs)
			}
		}
	}
	if failed := llm.kubectl("get", "events", "--field-selector", "reason=FailedPreStopHook", "--output",
		"jsonpath={.items[*].message}"); failed != "" {
		t.Errorf("hooks failed: %s", failed)
	}
}

// A node is drained of engines by evictions, which a PodDisruptionBudget limits. Meanwhile the
// leading control is killed. There are more adapters than slots, and no request fails.
func TestDrainCostsNoRequest(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	const budget = `{"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "llama"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "llama"}}}}`
	if out, err := k8s.Kubectl(t.Context(), budget, "apply", "--namespace", example, "--filename", "-"); err != nil {
		t.Fatal(out, err)
	}
	models := make([]string, 40)
	for i := range models {
		models[i] = fmt.Sprintf("adapter-%02d", i+1)
	}
	pods := llm.pods("app=llama")
	l := pour(t, 8, models...)
	l.goesOn(t, 5)
	began := time.Now()
	for i, pod := range pods {
		eviction := `{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "` + pod + `"}}`
		await(t, pod+" is evicted", time.Minute, func() bool {
			_, err := k8s.Kubectl(t.Context(), eviction, "create", "--raw", "/api/v1/namespaces/"+example+"/pods/"+pod+"/eviction",
				"--filename", "-")
			return err == nil // otherwise the disruption budget is used up
		})
		if i == len(pods)/2 {
			leader := sys.kubectl("get", "lease", "headgate-control", "--output", "jsonpath={.spec.holderIdentity}")
			if err := k8s.Kill(t.Context(), system, leader, "control"); err != nil {
				t.Fatal(err)
			}
		}
		llm.kubectl("wait", "--for=delete", "pod/"+pod, "--timeout", "2m")
		llm.rolledOut("deployment/llama")
	}
	t.Logf("%d pods were replaced in %v", len(pods), time.Since(began).Round(time.Second))
	l.goesOn(t, 3)
	l.none(t, "while pods were evicted")
	t.Logf("the slowest request took %v", l.slowest.Round(100*time.Millisecond))
	llm.kubectl("delete", "poddisruptionbudget/llama")
}

// A version whose engines cannot load adapters stops its own rollout: its first pod reports why it
// cannot and gets no requests, while the old pods serve. A version that works is rolled out. The
// test uses the Role for control from docs/kubernetes.md.
func TestVersionThatCannotLoadModelsStopsItsRollout(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	if out, err := k8s.Kubectl(t.Context(), documented(t, "headgate-readiness"), "apply", "--filename", "-"); err != nil {
		t.Fatal(out, err)
	}
	const gate = "inference.x-k8s.io/models-load"
	patch := func(ops string) { llm.kubectl("patch", "deployment/llama", "--type", "json", "--patch", ops) }
	of := func(field string) []string {
		return strings.Fields(llm.kubectl("get", "pods", "--selector", "app=llama", "--output",
			`jsonpath={.items[*].status.conditions[?(@.type=="`+gate+`")].`+field+`}`))
	}
	l := pour(t, 8, "llama", "adapter-01", "adapter-02", "adapter-03")
	l.goesOn(t, 10)

	began := time.Now()
	patch(`[{"op": "add", "path": "/spec/template/spec/readinessGates", "value": [{"conditionType": "` + gate + `"}]},
		{"op": "add", "path": "/spec/template/spec/containers/0/args/-", "value": "--max-lora-rank=1"}]`)
	await(t, "the first pod says that models do not load", 2*time.Minute, func() bool {
		return slices.Equal(of("reason"), []string{"LoadsFail"})
	})
	t.Logf("after %v: %v", time.Since(began).Round(time.Second), of("message"))
	if is := of("status"); !slices.Equal(is, []string{"False"}) {
		t.Errorf("its condition is %v", is)
	}
	l.goesOn(t, 5)
	replicas := llm.kubectl("get", "deployment/llama", "--output",
		"jsonpath={.status.readyReplicas} of {.status.replicas}, {.status.updatedReplicas} updated")
	if replicas != "3 of 4, 1 updated" {
		t.Errorf("ready are %s", replicas)
	}

	began = time.Now()
	patch(`[{"op": "remove", "path": "/spec/template/spec/containers/0/args/6"}]`)
	llm.kubectl("rollout", "status", "deployment/llama", "--timeout", "5m")
	t.Logf("the version that loads them was rolled out in %v", time.Since(began).Round(time.Second))
	if is := of("status"); !slices.Equal(is, []string{"True", "True", "True", "True"}) {
		t.Errorf("their conditions are %v", is)
	}
	l.goesOn(t, 10)
	l.none(t, "while versions were rolled")
}

// documented returns the YAML block in docs/kubernetes.md with a given name.
func documented(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(text), "```") {
		if yaml, ok := strings.CutPrefix(block, "yaml\n"); ok && strings.Contains(yaml, "name: "+name) {
			return yaml
		}
	}
	t.Fatalf("docs/kubernetes.md has no YAML of %s", name)
	return ""
}

// When all extprocs are killed, new requests get 503 until the kubelet restarts the extprocs, or
// are refused while no pod is ready. No stream is cut.
func TestKilledExtprocCutsNoStream(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	ended := streams(t, 8, 200)
	for _, pod := range sys.pods("app.kubernetes.io/component=envoy") {
		if err := k8s.Kill(t.Context(), system, pod, "extproc"); err != nil {
			t.Fatal(err)
		}
	}
	l := pour(t, 4, "llama")
	ended()
	client := k8s.Client()
	defer client.CloseIdleConnections()
	await(t, "requests are answered again", time.Minute, func() bool {
		status, err := complete(t.Context(), client, "llama", 1, false)
		return err == nil && status == http.StatusOK
	})
	_, faults := l.stop()
	refused := 0
	for _, fault := range faults {
		switch {
		case strings.Contains(fault, ": 503 "):
		case strings.Contains(fault, "connect: connection refused"), strings.Contains(fault, "connect: no route to host"):
			refused++ // the Service has no ready pod, and kube-proxy refuses connections
		default:
			t.Error(fault)
		}
	}
	t.Logf("%d requests got 503, %d no connection", len(faults)-refused, refused)
}

// outage is how long the API server is down: longer than a Lease object is valid.
const outage = 2 * time.Minute

// While the API server is down, loaded models serve requests and no model is loaded. When the API
// server is back, the same control leads again.
func TestAPIServerOutageFailsNoRequest(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	restarts := func() string {
		return sys.kubectl("get", "pods", "--output", "jsonpath={.items[*].status.containerStatuses[*].restartCount}")
	}
	control, extproc := sys.metrics("control", 9091), sys.metrics("envoy", 9090)
	client := k8s.Client()
	defer client.CloseIdleConnections()
	for _, model := range []string{"adapter-01", "adapter-02"} {
		if status, err := complete(t.Context(), client, model, 1, false); err != nil || status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	await(t, "one control leads", 30*time.Second, func() bool { return slices.Max(control("headgate_leader")) == 1 })
	decided := control("headgate_leader")
	before := restarts()
	l := pour(t, 8, "llama", "adapter-01", "adapter-02")
	l.goesOn(t, 5)
	if err := k8s.Outage(t.Context()); err != nil {
		t.Fatal(err)
	}
	down := time.Now()
	await(t, "it is known that objects cannot be read", 30*time.Second, func() bool {
		return slices.Max(extproc("headgate_objects_connected")) == 0
	})
	await(t, "nobody leads", 30*time.Second, func() bool { return slices.Max(control("headgate_leader")) == 0 })
	loads := control("headgate_place_load_seconds_count")
	cold := make(chan int, 1)
	go func() {
		client := k8s.Client()
		defer client.CloseIdleConnections()
		status, _ := complete(context.WithoutCancel(t.Context()), client, "adapter-33", 1, false)
		cold <- status
	}()
	for time.Since(down) < outage {
		l.goesOn(t, 5)
	}
	if followers := slices.Max(control("headgate_extprocs")); followers != 2 {
		t.Errorf("in the outage %v extprocs follow control, want 2", followers)
	}
	if now := control("headgate_place_load_seconds_count"); !slices.Equal(now, loads) {
		t.Errorf("in the outage there were %v loads, and %v before", now, loads)
	}
	select {
	case status := <-cold:
		t.Errorf("while nobody can be sure to decide, a model that is not loaded is answered %d", status)
	default:
	}
	if err := k8s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	await(t, "one control leads again", time.Minute, func() bool { return slices.Max(control("headgate_leader")) == 1 })
	t.Logf("one leads %v after the API server was back", time.Since(back).Round(100*time.Millisecond))
	if now := control("headgate_leader"); !slices.Equal(now, decided) {
		t.Errorf("of the controls %v decide, before the outage %v", now, decided)
	}
	if status := <-cold; status != http.StatusOK {
		t.Errorf("who waited through the outage gets %d", status)
	}
	if now := control("headgate_place_load_seconds_count"); slices.Equal(now, loads) {
		t.Errorf("it was answered, and there were still %v loads", now)
	}
	t.Logf("who waited for a model was answered %v after the API server was back", time.Since(back).Round(100*time.Millisecond))
	l.goesOn(t, 10)
	l.none(t, "while the API server was away")
	if after := restarts(); after != before {
		t.Errorf("containers were restarted: %s, before %s", after, before)
	}
}

// metrics returns a function that reads a metric of each pod of a component, in the order of the
// pods' addresses. If the metric has labels, the value is the sum of its series.
func (s *space) metrics(component string, port int) func(name string) []float64 {
	s.t.Helper()
	addresses := strings.Fields(s.kubectl("get", "pods", "--selector", "app.kubernetes.io/component="+component, "--output",
		"go-template={{range .items}}{{if not .metadata.deletionTimestamp}}{{.status.podIP}} {{end}}{{end}}"))
	slices.Sort(addresses)
	client := k8s.Client()
	s.t.Cleanup(client.CloseIdleConnections)
	return func(name string) []float64 {
		s.t.Helper()
		all := make([]float64, len(addresses))
		for i, address := range addresses {
			_, text := get(s.t, client, "http://"+net.JoinHostPort(address, strconv.Itoa(port))+"/metrics")
			for line := range strings.Lines(text) {
				is, value, _ := strings.Cut(strings.TrimSpace(line), " ")
				if is, _, _ = strings.Cut(is, "{"); is != name {
					continue
				}
				n, err := strconv.ParseFloat(value, 64)
				if err != nil {
					s.t.Fatalf("%s: %v", line, err)
				}
				all[i] += n
			}
		}
		return all
	}
}
