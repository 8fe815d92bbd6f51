package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
)

// aSecondPool returns a setting that adds the pool "other" with the engine at .13, and a function
// that returns the YAML of the pool with or without its pod.
func aSecondPool(t *testing.T) (set setting, yaml func(with bool) string) {
	t.Helper()
	var docs []string
	set = func(c *rig.Config) {
		text := strings.ReplaceAll(engines(strings.TrimSuffix(c.Listen, "1:8080"), 3), "llama", "other")
		docs = strings.Split(strings.Replace(text, "name: pool", "name: other", 1), "---\n")
		if err := os.WriteFile(filepath.Join(c.Objects, "other.yaml"), []byte(docs[0]+"---\n"+docs[3]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return set, func(with bool) string {
		if !with {
			return docs[0]
		}
		return docs[0] + "---\n" + docs[3]
	}
}

// A pool without endpoints holds requests, longer than Envoy's message timeout, until its first
// endpoint is there. Then they are served. Without an endpoint they get 503 when their time ends.
func TestEmptyPool(t *testing.T) {
	runs(t)
	other, yaml := aSecondPool(t)
	s := start(t, pods(t, 2), other)
	hold := func(empty string) {
		s.write("empty.yaml", aRouteWith("late", "backendRefs: [{name: other}]")+
			"---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: PoolSettings\nmetadata: {name: other}\n"+
			"spec: {poolRef: {name: other}, timeouts: {empty: "+empty+"}}\n")
	}
	hold("60s")
	s.await("the route is in force", func() bool { return s.lists("late") })
	if a := s.must(completion("late", 1, false)); a.served != s.endpoint(3) {
		t.Fatalf("%d from %s: %s", a.status, a.served, a.body)
	}
	s.write("other.yaml", yaml(false))
	s.await("the pool is empty", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_state", "state", "healthy") == 2
	})
	began := time.Now()
	held := s.begins(t.Context(), "late", 3)
	s.await("they wait", func() bool { return s.sum(s.Metrics, "headgate_pool_held_requests") == 3 })
	refused(t, "an unknown model", s.must(completion("unheard-of", 1, false)), http.StatusNotFound, "model_not_found")
	<-time.After(time.Until(began.Add(6 * time.Second))) // longer than message_timeout, which is 5 s
	s.write("other.yaml", yaml(true))
	for range 3 {
		if a := <-held; a.status != http.StatusOK || a.served != s.endpoint(3) {
			t.Errorf("%d from %s: %s", a.status, a.served, a.body)
		}
	}
	hold("2s")
	s.write("other.yaml", yaml(false))
	s.await("the pool is empty", func() bool {
		return s.sum(s.Metrics, "headgate_endpoint_state", "state", "healthy") == 2
	})
	a := s.must(completion("late", 1, false))
	refused(t, "the end of the wait", a, http.StatusServiceUnavailable, "no_endpoint")
	if took := time.Since(a.begun); took < time.Second || took > 4*time.Second {
		t.Errorf("a request that may wait 2 s waited %v", took)
	}
	s.await("nobody waits", func() bool { return s.sum(s.Metrics, "headgate_pool_held_requests") == 0 && s.inFlight() == 0 })
}
