package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// load is a number of clients that send requests without pauses until they are stopped. It records
// failures.
type load struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	sent   atomic.Int64
	each   []atomic.Int64 // number of requests that each client has sent

	mu     sync.Mutex // guards the fields below
	faults []string
	served map[string]int
}

// pour starts clients, each of which sends one request at a time. next returns a client's nth
// request. good returns what is wrong with a response, empty if nothing is.
func (s *stack) pour(clients int, next func(client, n int) request, good func(answer, error) string) *load {
	ctx, cancel := context.WithCancel(s.t.Context())
	l := &load{cancel: cancel, served: make(map[string]int), each: make([]atomic.Int64, clients)}
	for client := range clients {
		l.done.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				a, err := s.ask(context.WithoutCancel(ctx), next(client, n))
				l.sent.Add(1)
				l.each[client].Add(1)
				fault := good(a, err)
				l.mu.Lock()
				l.served[a.served]++
				if fault != "" {
					l.faults = append(l.faults, time.Now().UTC().Format(time.StampMilli)+": "+fault)
				}
				l.mu.Unlock()
			}
		})
	}
	s.t.Cleanup(l.stop) // stops the load if the test ends early
	return l
}

// stop ends the load and waits for the requests in flight.
func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// goesOn waits until each client has received n more responses.
func (l *load) goesOn(s *stack, n int64) {
	s.t.Helper()
	for client, want := range l.counts(n) {
		s.await("each client's requests are answered", func() bool { return l.each[client].Load() >= want })
	}
}

// counts returns, for each client, how many responses it will have received after n more.
func (l *load) counts(n int64) []int64 {
	all := make([]int64, len(l.each))
	for client := range l.each {
		all[client] = l.each[client].Load() + n
	}
	return all
}

// isOK returns what is wrong with a response, for loads in which no request may fail.
func isOK(a answer, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case a.status != 200:
		return fmt.Sprintf("%d %s", a.status, a.body)
	case a.stream && !a.done():
		return errNotDone.Error()
	}
	return ""
}

// outage counts the requests that are lost because an engine was killed.
type outage struct {
	dead atomic.Pointer[time.Time] // when an engine was last killed
	lost atomic.Int64
}

// good returns what is wrong with a response, empty if nothing is. It counts the failure of a
// request that was sent before the kill as lost, and returns nothing for it.
func (o *outage) good(a answer, err error) string {
	fault := isOK(a, err)
	if at := o.dead.Load(); fault != "" && at != nil && a.begun.Before(*at) {
		o.lost.Add(1)
		return ""
	}
	return fault
}

// kill kills an engine, and returns when it was dead.
func (o *outage) kill(s *stack, victim string) time.Time {
	soon := time.Now().Add(time.Second) // failures up to this time are attributed to the kill
	o.dead.Store(&soon)
	s.Engines[victim].Kill()
	killed := time.Now()
	o.dead.Store(&killed)
	return killed
}

func TestEditTakesEffectWithinASecondAndDropsNothing(t *testing.T) {
	runs(t)
	s := start(t)
	l := s.pour(8, func(client, n int) request { return completion(adapters[(client+n)%12], 5, n%2 == 0) }, isOK)
	status := func(model string) int { return s.must(completion(model, 1, false)).status }
	network := strings.TrimSuffix(s.Listen, "1:8080")

	if got := status("newcomer"); got != 404 {
		t.Fatalf("before the edit: %d", got)
	}
	s.write("more.yaml", strings.Replace(routes("a01"), "name: a01}\nspec:", "name: newcomer}\nspec:\n  modelNames: [newcomer]", 1))
	s.promised(time.Second, "a new route is in force", func() bool { return status("newcomer") == 200 })
	if err := os.Remove(filepath.Join(s.objects, "more.yaml")); err != nil {
		t.Fatal(err)
	}
	s.promised(time.Second, "a removed route is gone", func() bool { return status("newcomer") == 404 })

	// A pool is renamed in three edits: add a pool with the new name, move the routes, remove the
	// old pool.
	first, _, _ := strings.Cut(engines(network, 4), "---")
	s.write("engines.yaml", engines(network, 4)+"---\n"+strings.Replace(first, "name: pool}", "name: pool2}", 1))
	s.promised(time.Second, "the new pool is there", func() bool {
		return s.sum(s.Metrics, "headgate_objects", "kind", "InferencePool") == 2
	})
	everyRoute := append([]string{baseRoute}, adapters...)
	s.write("routes.yaml", strings.ReplaceAll(routes(everyRoute...), "name: pool}", "name: pool2}"))
	s.promised(time.Second, "requests go to the new pool", func() bool {
		return s.sum(s.Metrics, "headgate_picks_total", "pool", "default/pool2") > 0
	})
	alone := strings.Replace(engines(network, 4), "name: pool}", "name: pool2}", 1)
	s.write("engines.yaml", alone)
	s.promised(time.Second, "the old pool is gone", func() bool {
		return s.sum(s.Metrics, "headgate_objects", "kind", "InferencePool") == 1
	})

	s.write("engines.yaml", strings.Replace(alone, "{name: engine-14,", "{name: engine-14, deletionTimestamp: '2026-01-01T00:00:00Z',", 1))
	s.promised(time.Second, "a pod that is being deleted is out", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_state", "endpoint", network+"14:8000", "state", "out") == 1
	})

	// An invalid edit is rejected with file and line, and the previous objects stay in effect.
	s.write("routes.yaml", routes("only-this")+"  priority: high\n")
	s.promised(time.Second, "an invalid edit is refused", func() bool { return s.sum(s.Metrics, "headgate_objects_rejected_files") == 1 })
	log, err := os.ReadFile(s.Extproc.Log)
	written, _ := os.ReadFile(filepath.Join(s.objects, "routes.yaml"))
	before, _, _ := strings.Cut(string(written), "priority: high")
	if err != nil || !strings.Contains(string(log),
		fmt.Sprintf("%s:%d: spec.priority: want a whole number, not string", filepath.Join(s.objects, "routes.yaml"), 1+
			strings.Count(before, "\n"))) {
		t.Errorf("the log does not name file, line and reason: %v\n%s", err, log)
	}
	if got := status("a01"); got != 200 {
		t.Errorf("after an invalid edit: %d", got)
	}

	l.stop()
	if len(l.faults) > 0 {
		t.Errorf("%d of %d requests failed, the first: %s", len(l.faults), l.sent.Load(), l.faults[0])
	}
	if l.sent.Load() < 100 {
		t.Errorf("only %d requests were sent meanwhile", l.sent.Load())
	}
}

// Prompts appear in no log and no metric.
func TestPromptsAreInNoLogAndNoMetric(t *testing.T) { onBothPlanes(t, promptsAreInNoLogAndNoMetric) }

func promptsAreInNoLogAndNoMetric(t *testing.T) {
	s := start(t, extprocFlags("--log-level", "debug"))
	const secret = "zanzibar-marmalade"
	for _, r := range []request{
		{body: `{"model":"a01","prompt":"` + secret + `","max_tokens":3}`},
		{body: `{"model":"a01","prompt":"` + secret + `","max_tokens":3,"stream":true}`},
		{path: "/v1/chat/completions", body: `{"model":"llama","messages":[{"role":"user","content":"` + secret + `"}],"max_tokens":3}`},
		{body: `{"model":"a01","prompt":"` + secret},                                 // the body is not JSON
		{body: `{"model":"a01","model":"` + secret + `","prompt":"` + secret + `"}`}, // the body names two models
		{body: `{"model":"` + secret + `"}`},
		{body: `{"model":"a01","prompt":"` + secret + `"}`, header: map[string]string{"X-Sim-Fault": "reset"}},
		{path: "/v1/completions?key=" + secret, body: `{"model":"a01","prompt":"x","max_tokens":1}`},
		{path: "/v1/foo", body: secret},
	} {
		s.must(r)
	}
	s.await("the outcomes have come", func() bool { return s.sum(s.Metrics, "headgate_failures_total", "kind", "reset") == 1 })
	texts := map[string]string{"metrics": s.page(s.Metrics)}
	s.Stop(5 * time.Second) // the programs flush their logs when they stop
	logs, err := filepath.Glob(filepath.Join(s.Dir, "*.log"))
	if err != nil || len(logs) < 6 {
		t.Fatalf("logs %v, %v", logs, err)
	}
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(path)] = string(text)
	}
	if !strings.Contains(texts["envoy.log"], `"route":"default/a01"`) {
		t.Errorf("the access log has no pick:\n%s", texts["envoy.log"])
	}
	for name, text := range texts {
		if strings.Contains(text, secret) {
			t.Errorf("%s holds what a client wrote", name)
		}
	}
}
