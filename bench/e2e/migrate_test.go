package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
	"github.com/headgate/headgate/headgate/simulated/llm"
)

// hooked makes control answer the requests of preStop hooks.
func hooked(c *rig.Config) {
	c.ControlFlags = append(c.ControlFlags, "--prestop-address", strings.TrimSuffix(c.Listen, "1:8080")+"1:8036")
}

// deleted returns the YAML of n engines' pods. The pod of one endpoint is being deleted and
// migrates.
func (s *stack) deleted(n, endpoint int) string {
	name := fmt.Sprintf("metadata: {name: engine-%d, ", 10+endpoint)
	const grace = 60
	return strings.Replace(engines(strings.TrimSuffix(s.Listen, "1:8080"), n), name,
		fmt.Sprintf("%sannotations: {inference.x-k8s.io/prestop: migrate}, deletionTimestamp: '%s', deletionGracePeriodSeconds: %d, ",
			name, time.Now().Add(grace*time.Second).UTC().Format(time.RFC3339), grace), 1)
}

// without returns the YAML of n engines' pods, except the pod of one endpoint.
func (s *stack) without(n, endpoint int) string {
	kept := make([]string, 0, n)
	for text := range strings.SplitSeq(engines(strings.TrimSuffix(s.Listen, "1:8080"), n), "---\n") {
		if !strings.Contains(text, fmt.Sprintf("name: engine-%d,", 10+endpoint)) {
			kept = append(kept, text)
		}
	}
	return strings.Join(kept, "---\n")
}

// hook sends the request of a pod's preStop hook and returns the response.
func (s *stack) hook(ctx context.Context, endpoint int) (string, error) {
	var words strings.Builder
	url := fmt.Sprintf("http://%s1:8036/prestop/default/engine-%d", strings.TrimSuffix(s.Listen, "1:8080"), 10+endpoint)
	err := llm.WaitForControl(ctx, url, time.Minute, &words)
	return words.String(), err
}

var movedModels = regexp.MustCompile(`(\d+) models moved`)

// Engines are replaced one after the other under load, and their pods wait for control in preStop
// hooks. Their adapters are first loaded on other engines, so that no request fails or waits for a
// load. The same is true if control is killed before or during the move.
func TestAdapterMovesBeforeItsPodEnds(t *testing.T) {
	runs(t, raced)
	const n = 4
	names := []string{"v1", "v2", "v3"}
	s := start(t, placed(t, 4, names...), loading(t, 1), hooked, engineFlags("--shutdown-timeout", "15"))
	for _, name := range names {
		s.must(completion(name, 1, false))
	}
	l := s.pour(6, func(client, n int) request { return completion(names[client%3], 20, n%2 == 0) }, isOK)
	l.goesOn(s, 10)
	held := s.histogram(s.Metrics, "headgate_queue_time_seconds").GetSampleCount()
	moved := 0
	for endpoint := 1; endpoint <= n; endpoint++ {
		began := time.Now()
		s.write("engines.yaml", s.deleted(n, endpoint))
		told := make(chan string, 1)
		go func() {
			words, err := s.hook(t.Context(), endpoint)
			if err != nil {
				t.Errorf("the hook of engine %d: %v", endpoint, err)
			}
			told <- words
		}()
		if endpoint > 2 { // kill control only when a load has begun, or if no load is needed
			s.await("control moves what is there", func() bool {
				return len(told) > 0 || slices.ContainsFunc(from(s.events(), began), func(e engineEvent) bool { return e.Event == "load" })
			})
		}
		s.Control.Kill()
		if err := s.StartControl(t.Context()); err != nil {
			t.Fatal(err)
		}
		words := <-told
		t.Logf("engine %d: %s", endpoint, strings.TrimSpace(words))
		if of := movedModels.FindStringSubmatch(words); of == nil || strings.Contains(words, "not moved") {
			t.Errorf("the hook of engine %d is told %q", endpoint, words)
		} else {
			n, _ := strconv.Atoi(of[1])
			moved += n
		}
		s.endEngine(endpoint)
		s.write("engines.yaml", s.without(n, endpoint))
		if err := s.StartEngine(t.Context(), s.endpoint(endpoint)); err != nil {
			t.Fatal(err)
		}
		s.write("engines.yaml", engines(strings.TrimSuffix(s.Listen, "1:8080"), n))
		s.awaitHealthy(endpoint)
		l.goesOn(s, 5)
		if now := s.histogram(s.Metrics, "headgate_queue_time_seconds").GetSampleCount(); now != held {
			t.Errorf("requests waited for a load while engine %d was replaced: %v were held, and %v before; since it began the engines did %+v",
				endpoint,
				now, held,
				from(s.events(), began))
			held = now
		}
	}
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	if moved < len(names) {
		t.Errorf("%d models were moved: each was at some engine", moved)
	}
	t.Logf("%d requests, %d models moved", l.sent.Load(), moved)
}
