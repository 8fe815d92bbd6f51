package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"
)

// vmodelObject returns the YAML of a VModel of the pool.
func vmodelObject(name, target string) string {
	return fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: VModel\nmetadata: {name: %s}\nspec: {poolRef: {name: pool}, target: %s}\n",
		name, target)
}

// routeTo returns the YAML of a route whose name differs from its adapter's name.
func routeTo(name, adapter string) string {
	return fmt.Sprintf("---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: %s}\nspec: {modelNames: [%[1]s], backendRefs: [{name: pool}], adapter: {name: %s}}\n", name,
		adapter)
}

// answers sends a request for a model and returns the name of the model that answered.
func (s *stack) answers(model string) string {
	s.t.Helper()
	var said struct{ Model string }
	a := s.must(completion(model, 1, false))
	if err := json.Unmarshal([]byte(a.body), &said); err != nil {
		s.t.Fatalf("%s: %v", a.body, err)
	}
	return said.Model
}

// A VModel moves to another adapter and back. Meanwhile some requests name the VModel, and others
// name a route whose adapter is the VModel. No request fails or waits for a load, even if control
// is killed before, during or just after the load.
func TestAVModelMovesUnderLoad(t *testing.T) {
	runs(t, raced)
	s := start(t, placed(t, 4, "v1", "v2"), loading(t, 2))
	s.write("vmodels.yaml", vmodelObject("sql", "v1")+routeTo("text-to-sql", "sql"))
	s.await("extproc admits the VModel", func() bool {
		a, err := s.ask(t.Context(), completion("sql", 1, false))
		return err == nil && a.status == http.StatusOK
	})
	l := s.pour(4, func(client, n int) request {
		return completion([]string{"sql", "text-to-sql"}[client%2], 5, n%2 == 0)
	}, isOK)
	l.goesOn(s, 10)
	began, held := time.Now(), s.histogram(s.Metrics, "headgate_queue_time_seconds").GetSampleCount()
	if held == 0 {
		t.Error("nobody waited for the first load")
	}
	restart := func() {
		s.Control.Kill()
		l.goesOn(s, 10)
		if err := s.StartControl(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	move := func(target string, then func()) {
		t.Helper()
		s.write("vmodels.yaml", vmodelObject("sql", target)+routeTo("text-to-sql", "sql"))
		then()
		for _, name := range []string{"sql", "text-to-sql"} {
			s.await(name+" goes to "+target, func() bool { return s.answers(name) == target })
		}
		l.goesOn(s, 10)
	}
	told := func(event, model string) func() bool {
		since := time.Now()
		return func() bool {
			return slices.ContainsFunc(from(s.events(), since), func(e engineEvent) bool { return e.Event == event && e.Model == model })
		}
	}
	loads := told("load", "v2")
	move("v2", func() {
		s.await("v2 is being loaded", loads)
		if got := s.answers("sql"); got != "v1" {
			t.Errorf("while v2 is loaded %s answers", got)
		}
		restart()
	})
	if s.answers("v1"); told("unload", "v1")() {
		t.Error("the model before was unloaded")
	}
	back := time.Now()
	move("v1", func() {})
	if again := from(s.events(), back); len(again) > 0 {
		t.Errorf("the way back took loads: %v", again)
	}
	move("v2", restart)
	move("v1", func() {
		s.await("it has moved", func() bool { return s.answers("sql") == "v1" })
		restart()
	})
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	if now := s.histogram(s.Metrics, "headgate_queue_time_seconds").GetSampleCount(); now != held {
		t.Errorf("requests waited for a load: %v were held, and %v before the first move", now, held)
	}
	s.Envoy.Stop(5 * time.Second) // Envoy flushes its log when it stops
	slowest := 0.0
	for _, r := range s.accessLog(func(r logged) bool { return r.Time.After(began) }) {
		slowest = max(slowest, r.Before)
	}
	t.Logf("%d requests; the slowest was %v ms on its way to its engine", l.sent.Load(), slowest)
}
