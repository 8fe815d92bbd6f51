package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/api/placement"
	"github.com/headgate/headgate/api/wire"
)

// anEmptyPool has no endpoints.
const anEmptyPool = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: empty}
spec: {selector: {matchLabels: {app: nobody}}, targetPorts: [{number: 8000}]}
`

// aRouteWith returns the YAML of an LLMRoute for the model of the same name, with these fields.
func aRouteWith(name, fields string) string {
	return fmt.Sprintf("---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: %s}\nspec: {modelNames: [%[1]s], %s}\n", name, fields)
}

// fallsBackTo checks that the fallback of that name served a request; empty means no fallback.
func fallsBackTo(t *testing.T, what string, a answer, name string) {
	t.Helper()
	if got := a.header.Get(wire.FallbackHeader); a.status != http.StatusOK || got != name {
		t.Errorf("%s: %d by fallback %q, want 200 by %q: %s", what, a.status, got, name, a.body)
	}
}

// lists reports whether clients see a model.
func (s *stack) lists(model string) bool {
	s.t.Helper()
	return strings.Contains(s.must(request{method: http.MethodGet, path: "/v1/models"}).body, strconv.Quote(model))
}

// Where Headgate would answer 503, another pool or the base model serves, and a header says so.
func TestFallbackServes(t *testing.T) { onBothPlanes(t, fallbackServes) }

func fallbackServes(t *testing.T) {
	s := start(t, pods(t, 2))
	s.write("fallback.yaml", anEmptyPool+
		aRouteWith("spare", "backendRefs: [{name: empty}], fallback: {pool: pool}")+
		aRouteWith("tuned-spare", "backendRefs: [{name: empty}], adapter: {name: a01}, fallback: {pool: pool}")+
		aRouteWith("tuned", "backendRefs: [{name: pool}], adapter: {name: nobody}, fallback: {baseModel: true}")+
		aRouteWith("alone", "backendRefs: [{name: empty}]")+
		aRouteWith("twice", "backendRefs: [{name: pool}], adapter: {name: nobody}, fallback: {pool: empty}"))
	s.await("the routes are in force", func() bool { return s.lists("twice") })

	for _, stream := range []bool{false, true} {
		a := s.must(completion("spare", 2, stream))
		fallsBackTo(t, "an empty pool", a, "pool")
		if !strings.Contains(a.body, baseName) {
			t.Errorf("the base model is not in %s", a.body)
		}
		a = s.must(completion("tuned-spare", 2, stream))
		fallsBackTo(t, "an adapter in an empty pool", a, "pool")
		if !strings.Contains(a.body, `"a01"`) {
			t.Errorf("the adapter is not in %s", a.body)
		}
		a = s.must(completion("tuned", 2, stream))
		fallsBackTo(t, "an adapter without a copy", a, "baseModel")
		if !strings.Contains(a.body, baseName) {
			t.Errorf("the base model is not in %s", a.body)
		}
		fallsBackTo(t, "a route without a fallback", s.must(completion("a01", 2, stream)), "")
	}
	for _, model := range []string{"alone", "twice"} {
		a := s.must(completion(model, 2, false))
		refused(t, model, a, http.StatusServiceUnavailable, "no_endpoint")
		if got := a.header.Values(wire.FallbackHeader); got != nil {
			t.Errorf("%s: an error has the fallback %q", model, got)
		}
	}
	s.await("nothing is in flight", func() bool { return s.inFlight() == 0 })
}

// A request that waits for its model falls back when the model cannot be loaded, when the queue is
// full, and when its wait ends, which is later than Envoy's message timeout.
func TestFallbackOfAWaitingRequest(t *testing.T) {
	runs(t)
	c, control := controlled(t, 2)
	s := start(t, control, extprocFlags("--max-queue-time", "6s"))
	c.say(s, &placement.Update{Complete: true, Endpoints: &placement.Endpoints{Addresses: []string{s.endpoint(1), s.endpoint(2)}}})
	s.write("fallback.yaml", aRouteWith("tuned", "backendRefs: [{name: pool}], adapter: {name: nobody}, fallback: {baseModel: true}")+
		aRouteWith("failing", "backendRefs: [{name: pool}], adapter: {name: broken}, fallback: {baseModel: true}"))
	s.await("the routes are in force", func() bool { return s.lists("failing") })
	began := time.Now()
	late := s.begins(t.Context(), "tuned", 2)
	s.await("they are wanted", func() bool { return c.waiting("nobody") == 2 })
	failing := s.begins(t.Context(), "failing", 1)
	s.await("it is wanted", func() bool { return c.waiting("broken") == 1 })
	c.say(s, &placement.Update{Failures: []*placement.Failure{{Key: keyOf("broken"), Reason: "load_failed"}}})
	fallsBackTo(t, "a failed load", <-failing, "baseModel")
	fallsBackTo(t, "a new request after it", s.must(completion("failing", 1, false)), "baseModel")
	for range 2 {
		fallsBackTo(t, "the end of the wait", <-late, "baseModel")
	}
	if took := time.Since(began); took < 5*time.Second || took > 6*time.Second+500*time.Millisecond {
		t.Errorf("requests that may wait 6 s fell back after %v", took)
	}
	s.await("nobody waits", func() bool { return s.inFlight() == 0 && c.waiting("nobody") == 0 })
}

// While all endpoints are silent, a route that fails open sends them requests, and one that fails
// closed answers 503 or falls back.
func TestFailurePolicy(t *testing.T) { onBothPlanes(t, failurePolicy) }

func failurePolicy(t *testing.T) {
	other, _ := aSecondPool(t)
	s := start(t, pods(t, 2), other, extprocFlags("--stale-after", "500ms", "--lost-after", "1s"))
	s.write("failure.yaml", aRouteWith("open", "backendRefs: [{name: other}]")+
		aRouteWith("closed", "backendRefs: [{name: other}], failurePolicy: FailClose")+
		aRouteWith("closed-spare", "backendRefs: [{name: other}], failurePolicy: FailClose, fallback: {pool: pool}"))
	s.await("the routes are in force", func() bool { return s.lists("closed-spare") })
	for _, model := range []string{"open", "closed", "closed-spare"} {
		a := s.must(completion(model, 1, false))
		if fallsBackTo(t, "the pool answers scrapes", a, ""); a.served != s.endpoint(3) {
			t.Errorf("%s: %s serves", model, a.served)
		}
	}
	s.Engines[s.endpoint(3)].Signal(syscall.SIGSTOP)
	s.await("it is lost", func() bool { return s.tells(filepath.Join(s.Dir, "extproc.log"), "endpoint is lost", s.endpoint(3)) })
	refused(t, "FailClose", s.must(completion("closed", 1, false)), http.StatusServiceUnavailable, "no_endpoint")
	fallsBackTo(t, "FailClose with a fallback", s.must(completion("closed-spare", 1, false)), "pool")
	sent := s.begins(t.Context(), "open", 1)
	s.await("FailOpen sends it to the silent endpoint", func() bool { return s.inFlight() == 1 })
	s.Engines[s.endpoint(3)].Signal(syscall.SIGCONT)
	fallsBackTo(t, "FailOpen", <-sent, "")
	s.await("it serves again", func() bool { return s.must(completion("closed", 1, false)).status == http.StatusOK })
}
