//go:build cluster

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/apiserver"
)

const (
	system  = "headgate-system"
	example = "llm"
	gateway = "http://headgate." + system + ".svc.cluster.local"
)

// headgate is Headgate with the simulated example, from its manifests.
func headgate(t *testing.T) (sys, llm *space) {
	t.Helper()
	sys, llm = &space{t, system}, &space{t, example}
	apply := func(folder string) {
		t.Helper()
		if out, err := k8s.Kubectl(t.Context(), "", "apply", "--kustomize", folder); err != nil {
			t.Fatal(out, err)
		}
	}
	apply("../../../manifests/base")
	if out, err := k8s.Kubectl(t.Context(), "", "wait", "--for=condition=Established", "--timeout=30s", "crd/models.inference.x-k8s.io", "crd/llmroutes.inference.x-k8s.io", "crd/inferencepools.inference.networking.k8s.io", "crd/poolsettings.inference.x-k8s.io"); err != nil {
		t.Fatal(out, err)
	}
	apply("../../../manifests/examples/simulated")
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for _, args := range [][]string{
			{"get", "pods", "-A", "-o", "wide"},
			{"logs", "-n", system, "-l", "app.kubernetes.io/component=control", "--tail", "12", "--prefix"},
			{"logs", "-n", system, "-l", "app.kubernetes.io/component=gateway", "--all-containers", "--tail", "8", "--prefix"},
		} {
			out, err := k8s.Kubectl(ctx, "", args...)
			t.Logf("kubectl %s:\n%s%v", strings.Join(args, " "), out, err)
		}
	})
	return sys, llm
}

// ready waits until all of it runs.
func ready(sys, llm *space) {
	sys.t.Helper()
	sys.rolledOut("deployment/headgate-gateway")
	sys.rolledOut("deployment/headgate-control")
	llm.rolledOut("deployment/llama")
}

// complete asks for a completion through the gateway, and reads all of the answer.
func complete(ctx context.Context, client *http.Client, model string, tokens int, stream bool) (status int, err error) {
	body := fmt.Sprintf(`{"model":%q,"prompt":"hello","max_tokens":%d,"stream":%v}`, model, tokens, stream)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && stream && response.StatusCode == http.StatusOK && !bytes.HasSuffix(bytes.TrimSpace(answer), []byte("[DONE]")) {
		err = errors.New("the stream was cut")
	}
	return response.StatusCode, err
}

// load is clients that send one request after the other.
type load struct {
	stop func() (sent int64, faults []string)
	each []atomic.Int64
}

// pour starts clients, each with a connection of its own, a third of whose requests are streams.
func pour(t *testing.T, clients int, models ...string) *load {
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{each: make([]atomic.Int64, clients)}
	var all sync.WaitGroup
	var mu sync.Mutex // guards faults
	var faults []string
	for i := range clients {
		all.Go(func() {
			client := k8s.Client()
			defer client.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				model := models[(i+n)%len(models)]
				status, err := complete(context.WithoutCancel(ctx), client, model, 20, n%3 == 0)
				l.each[i].Add(1)
				if err != nil || status != http.StatusOK {
					mu.Lock()
					faults = append(faults, fmt.Sprintf("%s %s: %d %v", time.Now().Format("15:04:05.000"), model, status, err))
					mu.Unlock()
				}
			}
		})
	}
	l.stop = sync.OnceValues(func() (sent int64, _ []string) {
		cancel()
		all.Wait()
		for i := range l.each {
			sent += l.each[i].Load()
		}
		return sent, faults
	})
	t.Cleanup(func() { l.stop() })
	return l
}

// goesOn waits until each client has had n more answers.
func (l *load) goesOn(t *testing.T, n int64) {
	t.Helper()
	for i := range l.each {
		before := l.each[i].Load()
		await(t, "each client's requests are answered", time.Minute, func() bool { return l.each[i].Load() >= before+n })
	}
}

// none ends a load none of whose requests may have failed.
func (l *load) none(t *testing.T, while string) {
	t.Helper()
	sent, faults := l.stop()
	for _, fault := range faults[:min(5, len(faults))] {
		t.Error(fault)
	}
	t.Logf("%s: %d requests, %d failed", while, sent, len(faults))
}

// The example answers soon after it was applied, and kubectl shows a person what is going on.
func TestTheExampleAnswersAndTellsOfItself(t *testing.T) {
	began := time.Now()
	sys, llm := headgate(t)
	client := k8s.Client()
	defer client.CloseIdleConnections()
	await(t, "the gateway answers", time.Minute, func() bool {
		status, err := complete(t.Context(), client, "adapter-17", 5, false)
		return err == nil && status == http.StatusOK
	})
	t.Logf("a request for an adapter that nobody had loaded was answered %v after kubectl apply began", time.Since(began).Round(100*time.Millisecond))
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
	await(t, "the new route's adapter answers", 30*time.Second, func() bool {
		status, err := complete(t.Context(), client, "newcomer", 1, true)
		return err == nil && status == http.StatusOK
	})
	t.Logf("a new route's first answer came %v after kubectl apply began", time.Since(applied).Round(10*time.Millisecond))
	if out, err := k8s.Kubectl(t.Context(), "", "delete", "--kustomize", route); err != nil {
		t.Fatal(out, err)
	}
	deleted := time.Now()
	await(t, "a deleted route is 404", 10*time.Second, func() bool {
		status, err := complete(t.Context(), client, "newcomer", 1, false)
		return err == nil && status == http.StatusNotFound
	})
	t.Logf("404 came %v after kubectl delete ended", time.Since(deleted).Round(10*time.Millisecond))
}

// Whatever is replaced under load, no request fails and no stream is cut.
func TestRolloutsCostNoRequest(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	for _, c := range []struct {
		s        *space
		workload string
	}{{sys, "deployment/headgate-control"}, {sys, "deployment/headgate-gateway"}, {llm, "deployment/llama"}} {
		l := pour(t, 8, "llama", "adapter-01", "adapter-02")
		l.goesOn(t, 10)
		c.s.kubectl("rollout", "restart", c.workload)
		c.s.kubectl("rollout", "status", c.workload, "--timeout", "5m")
		l.goesOn(t, 10)
		l.none(t, "while "+c.workload+" was replaced")
	}
}

// An extproc that is killed costs 503s until the kubelet has it back, and no stream.
func TestAKilledExtprocCutsNoStream(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	ended := make(chan error, 8)
	for range 8 {
		go func() {
			client := k8s.Client()
			defer client.CloseIdleConnections()
			status, err := complete(context.WithoutCancel(t.Context()), client, "llama", 200, true)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("a stream begins with %d", status)
			}
			ended <- err
		}()
	}
	time.Sleep(2 * time.Second) // they flow: 200 tokens take some eight seconds
	for _, pod := range sys.pods("app.kubernetes.io/component=gateway") {
		if err := k8s.Kill(t.Context(), system, pod, "extproc"); err != nil {
			t.Fatal(err)
		}
	}
	l := pour(t, 4, "llama")
	for range 8 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	client := k8s.Client()
	defer client.CloseIdleConnections()
	await(t, "requests are answered again", time.Minute, func() bool {
		status, err := complete(t.Context(), client, "llama", 1, false)
		return err == nil && status == http.StatusOK
	})
	_, faults := l.stop()
	for _, fault := range faults {
		if !strings.Contains(fault, ": 503 ") {
			t.Error(fault)
		}
	}
	t.Logf("%d requests got 503", len(faults))
}

// While the API server is away what is loaded serves on and nothing is loaded; when it is back, somebody decides.
func TestAnOutageOfTheAPIServerCostsNoRequest(t *testing.T) {
	sys, llm := headgate(t)
	ready(sys, llm)
	restarts := func() string {
		return sys.kubectl("get", "pods", "--output", "jsonpath={.items[*].status.containerStatuses[*].restartCount}")
	}
	client := k8s.Client()
	defer client.CloseIdleConnections()
	for _, model := range []string{"adapter-01", "adapter-02"} {
		if status, err := complete(t.Context(), client, model, 1, false); err != nil || status != http.StatusOK {
			t.Fatal(status, err)
		}
	}
	before := restarts()
	l := pour(t, 8, "llama", "adapter-01", "adapter-02")
	l.goesOn(t, 5)
	if err := k8s.Outage(t.Context()); err != nil {
		t.Fatal(err)
	}
	down := time.Now()
	for time.Since(down) < 30*time.Second { // longer than a Lease lasts
		l.goesOn(t, 5)
	}
	cold := make(chan int, 1)
	go func() {
		client := k8s.Client()
		defer client.CloseIdleConnections()
		status, _ := complete(context.WithoutCancel(t.Context()), client, "adapter-33", 1, false)
		cold <- status
	}()
	l.goesOn(t, 20)
	select {
	case status := <-cold:
		t.Errorf("while nobody can be sure to decide, a model that is not loaded is answered %d", status)
	default:
	}
	if err := k8s.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	if status := <-cold; status != http.StatusOK {
		t.Errorf("who waited through the outage gets %d", status)
	}
	t.Logf("who waited for a model was answered %v after the API server was back", time.Since(back).Round(100*time.Millisecond))
	l.goesOn(t, 10)
	l.none(t, "while the API server was away")
	if after := restarts(); after != before {
		t.Errorf("containers were restarted: %s, before %s", after, before)
	}
}

// What the programs ask of the API server is what the manifests let them ask. It is the last test: it reads what all did.
func TestRightsAreThoseThatAreUsed(t *testing.T) {
	requests, err := apiserver.Requests(k8s.AuditLog())
	if err != nil {
		t.Fatal(err)
	}
	allowed, denied := make(map[string]int), make(map[string]int)
	for _, r := range requests {
		account, ours := strings.CutPrefix(r.User.Name, "system:serviceaccount:"+system+":")
		if !ours {
			continue
		}
		what := fmt.Sprintf("%s: %s %s", account, r.Verb, strings.TrimSuffix(r.Object.Resource+"/"+r.Object.Subresource, "/"))
		if r.Denied() {
			denied[what]++
		} else {
			allowed[what]++
		}
	}
	for what, n := range denied {
		if allowed[what] == 0 { // a server that begins knows no rules for a moment
			t.Errorf("%s was denied %d times", what, n)
		}
	}
	var lines []string
	for what, n := range allowed {
		lines = append(lines, fmt.Sprintf("%s, %d times", what, n))
	}
	slices.Sort(lines)
	t.Logf("requests made:\n%s", strings.Join(lines, "\n"))
}
