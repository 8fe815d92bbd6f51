package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/headgate/rig"
)

// loading sets how long an engine takes to load an adapter.
func loading(t testing.TB, seconds float64) setting {
	file := filepath.Join(t.TempDir(), "loading.yaml")
	text := strings.Replace(profile, "adapterLoad: {mean: 0.02}", fmt.Sprintf("adapterLoad: {mean: %g}", seconds), 1)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return engineFlags("--profile", file)
}

// runtimes makes the rig run n model runtimes instead of vLLMs. The first is managed over a port
// and the others over sockets. sources contains the source of each model.
func runtimes(t testing.TB, n int, sources map[string]string) setting {
	return func(c *rig.Config) {
		placed(t, 1)(c)
		net := strings.TrimSuffix(c.Listen, "1:8080")
		pool, _, _ := strings.Cut(engines(net, 0), "---")
		objects := []string{pool}
		management := "port:8085"
		for i := 11; i < 11+n; i++ {
			objects = append(objects,
				fmt.Sprintf("---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: EndpointList\nmetadata: {name: runtime-%d, labels: {app: llama, %s: 'true'}}\nspec: {addresses: ['%s%d:8000'], engine: modelruntime, management: '%s'}\n",
					i, rig.SimulateLabel, net, i, management))
			management = fmt.Sprintf("unix:%s/%d.sock", c.Dir, i+1)
		}
		for name, source := range sources {
			objects = append(objects, modelObject(name, fmt.Sprintf("type: sim, source: '%s'", source)))
		}
		if err := os.WriteFile(filepath.Join(c.Objects, "engines.yaml"), []byte(strings.Join(objects, "")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// modelObject returns the YAML of a Model of the pool, with more fields of the spec.
func modelObject(name, more string) string {
	return fmt.Sprintf("---\napiVersion: inference.x-k8s.io/v1alpha1\nkind: Model\nmetadata: {name: %s}\nspec: {poolRef: {name: pool}, %s}\n",
		name, more)
}

// beginsEach sends n requests for each model and returns a function that waits until all are
// answered with 200.
func (s *stack) beginsEach(n int, models ...string) (answered func()) {
	var all []<-chan answer
	for _, m := range models {
		all = append(all, s.begins(s.t.Context(), m, n))
	}
	return func() {
		s.t.Helper()
		for i, answers := range all {
			for range n {
				if a := <-answers; a.status != http.StatusOK {
					s.t.Errorf("a request for %s is answered with %d %s", models[i], a.status, a.body)
				}
			}
		}
	}
}

// unknown returns the name of a model that does not have exactly one copy in control's state, empty
// if there is none.
func (s *stack) unknown(models []string) string {
	s.t.Helper()
	copies := make(map[string]int)
	for _, m := range s.models() {
		copies[m.ID] = len(m.Copies)
	}
	for _, m := range models {
		if copies[m] != 1 {
			return fmt.Sprintf("%s has %d copies", m, copies[m])
		}
	}
	return ""
}

// However many requests arrive at once, and through however many gateways, their model is loaded
// once.
func TestTwoHundredRequestsThroughTwoEnvoysLoadOnce(t *testing.T) {
	runs(t)
	a := start(t, placed(t, 4, adapters...), loading(t, 2))
	b := start(t, before(t, a), extprocFlags("--control", "unix:"+a.ControlSocket()))
	a.await("both extprocs follow", func() bool { return a.sum(a.ControlMetrics, "headgate_extprocs") == 2 })
	through := [2]func(){a.beginsEach(100, "a01"), b.beginsEach(100, "a01")}
	a.await("requests wait at both", func() bool {
		return a.sum(a.Metrics, "headgate_queued_requests") > 0 && b.sum(b.Metrics, "headgate_queued_requests") > 0
	})
	a.await("control knows of more than one extproc has", func() bool {
		return a.sum(a.ControlMetrics, "headgate_place_queued_requests") > 100
	})
	for _, answered := range through {
		answered()
	}
	if loads := a.exactlyOnce(a.events()); loads != 1 {
		t.Errorf("%d loads, want one:\n%v", loads, a.events())
	}
	a.await("nobody waits", func() bool { return a.sum(a.ControlMetrics, "headgate_place_queued_requests") == 0 })
}

// killedAmidLoads kills control while the cold models are being loaded, and restarts it. Meanwhile,
// requests for the hot models continue. It returns when control was first killed.
func (s *stack) killedAmidLoads(hot, cold []string) (killed time.Time) {
	s.t.Helper()
	s.beginsEach(1, hot...)()
	l := s.pour(4, func(client, n int) request { return completion(hot[(client+n)%len(hot)], 5, n%2 == 0) }, isOK)
	began := time.Now()
	s.await("there is something to compare with", func() bool { return l.sent.Load() > 100 })
	answered := s.beginsEach(2, cold...)
	s.await("some loads have ended and some have not", func() bool {
		events := from(s.events(), began)
		// If an engine lists its models, control calls it and records the load at the same time.
		// After 200 ms without events, all records have been written.
		written := time.Now().Add(-200 * time.Millisecond)
		return len(held(events)) >= 4 && len(underWay(events)) >= 2 && len(from(events, written)) == 0
	})
	killed = time.Now()
	s.Control.Kill()
	l.goesOn(s, 10) // requests continue without control
	restart := func() {
		s.t.Helper()
		if err := s.StartControl(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	}
	restarted := time.Now()
	restart()
	s.promised(5*time.Second-time.Since(restarted), "it is known where each model is", func() bool { return s.unknown(cold) == "" })
	known := time.Since(restarted)
	answered()
	took := time.Since(restarted)
	// Kill control again, now while it has nothing to do.
	s.Control.Kill()
	l.goesOn(s, 25)
	restart()
	s.await("each model is where it was", func() bool { return s.unknown(cold) == "" })
	l.stop()
	for _, fault := range l.faults {
		s.t.Error(fault)
	}
	s.await("control knows of no request that waits", func() bool { return s.sum(s.ControlMetrics, "headgate_place_queued_requests") == 0 })

	s.Envoy.Stop(5 * time.Second) // Envoy flushes its log when it stops
	slowest := make(map[bool]float64)
	for _, r := range s.accessLog(func(r logged) bool { return r.Time.After(began) && slices.Contains(hot, r.Pick.Model) }) {
		after := r.Time.After(killed)
		slowest[after] = max(slowest[after], r.Before)
	}
	s.t.Logf("%v after the restart each model's place was known, and after %v every request was answered; %d requests for what was loaded came to their engine within %v ms before control was killed and %v ms after",
		known.Round(time.Millisecond), took.Round(time.Millisecond), l.sent.Load(), slowest[false], slowest[true])
	return killed
}

func TestControlIsKilledWhileEnginesLoadAdapters(t *testing.T) {
	runs(t, raced)
	hot, cold := adapters[:4], numbered(20)
	// There is room for all adapters even if one engine is slow.
	s := start(t, placed(t, len(hot)+len(cold), append(slices.Clone(hot), cold...)...), loading(t, 1))
	killed := s.killedAmidLoads(hot, cold)
	s.await("control and the engines agree", func() bool { return s.agreed() == "" })
	events := s.events()
	cut := underWay(until(events, killed))
	t.Logf("%d loads were cut off", len(cut))
	if len(cut) == 0 {
		t.Fatal("no load was under way when control was killed")
	}
	// An engine continues a load after its caller is gone. Control repeats the call to learn the
	// result, and the engine answers that it already has the adapter.
	events = slices.DeleteFunc(events, func(e engineEvent) bool {
		if e.Event == "loaded" && strings.Contains(e.Error, "already been loaded") {
			return true
		}
		again := e.Event == "load" && e.Time.After(killed) && cut[copyAt{e.Engine, e.Model}]
		if again {
			delete(cut, copyAt{e.Engine, e.Model})
		}
		return again
	})
	if loads := s.exactlyOnce(events); loads != len(hot)+len(cold) {
		t.Errorf("%d loads of %d adapters", loads, len(hot)+len(cold))
	}
	if n := len(held(events)); n != len(hot)+len(cold) {
		t.Errorf("%d copies of %d adapters", n, len(hot)+len(cold))
	}
}

// A model runtime cannot list its models. Loaded models nevertheless stay, without a purge. A load
// that was interrupted is in an unknown state, so control unloads the model and loads it again.
func TestControlIsKilledWhileRuntimesLoad(t *testing.T) {
	runs(t, raced)
	hot, cold := adapters[:4], numbered(20)
	sources := make(map[string]string)
	for _, name := range hot {
		sources[name] = "sim:?size=20Mi"
	}
	for i, name := range cold {
		sources[name] = "sim:?load=500ms&size=20Mi"
		if i%2 == 1 {
			sources[name] += "&stubborn" // a stubborn runtime continues a load after its caller is gone
		}
	}
	s := start(t, runtimes(t, 3, sources), func(c *rig.Config) { c.EngineFlags = []string{"--loading-threads", "2"} })
	killed := s.killedAmidLoads(hot, cold)
	s.await("control believes what is so", func() bool {
		believed := make(map[copyAt]bool)
		for _, m := range s.models() {
			for _, c := range m.Copies {
				believed[copyAt{c.Endpoint, m.ID}] = c.State == "loaded"
			}
		}
		return maps.Equal(believed, held(s.events())) && len(believed) == len(hot)+len(cold)
	})
	events := s.events()
	s.exactlyOnce(events)
	purges := make(map[string]int)
	for _, e := range events {
		if e.Event == "purge" {
			purges[e.Engine]++
		}
	}
	before, after := until(events, killed), from(events, killed)
	cut := underWay(before)
	first := make(map[copyAt]string)
	for _, e := range after {
		c := copyAt{e.Engine, e.Model}
		if slices.Contains(hot, e.Model) { // a load may have ended just before the kill, so that control has not recorded it
			t.Errorf("%s has %s, and is told to %s it", e.Engine, e.Model, e.Event)
		}
		if first[c] == "" && (e.Event == "load" || e.Event == "unload") {
			first[c] = e.Event
		}
	}
	for c := range cut {
		if first[c] != "unload" {
			t.Errorf("after the load of %s at %s was cut off it is told %q, want unload", c.model, c.engine, first[c])
		}
	}
	if len(cut) == 0 || len(purges) != 3 {
		t.Errorf("%d loads were cut off, %d runtimes made ready", len(cut), len(purges))
	}
	for engine, n := range purges {
		if n != 1 {
			t.Errorf("%s was purged %d times in one life", engine, n)
		}
	}
}

// An engine is killed, and some of its models have a second copy. No later request for these models
// fails or waits for a load: the other copy answers, and each model gets a second copy at another
// engine.
func TestEngineIsKilledAndSecondCopiesAnswer(t *testing.T) {
	runs(t, raced)
	s := start(t, pods(t, 3), placed(t, 8, "once"), loading(t, 0.5))
	names := numbered(6)
	models := make([]string, len(names))
	for i, name := range names {
		models[i] = modelObject(name, "source: 'sim:', copies: {min: 2, max: 2}")
	}
	s.write("models.yaml", strings.Join(models, ""))
	twice := func(but string) bool {
		all := make(map[string]int)
		for _, m := range s.models() {
			for _, c := range m.Copies {
				if c.State == "loaded" && c.Endpoint != but {
					all[m.ID]++
				}
			}
		}
		return !slices.ContainsFunc(names, func(name string) bool { return all[name] != 2 })
	}
	s.await("each model is there twice", func() bool { return twice("") })
	s.must(completion("once", 1, false)) // this request waits for its model's load
	waited := s.histogram(s.Metrics, "headgate_queue_time_seconds").GetSampleCount()

	var o outage
	l := s.pour(12, func(client, n int) request { return completion(names[(client+n)%len(names)], 40, n%2 == 0) }, o.good)
	l.goesOn(s, 3)
	victim := s.endpoint(1)
	s.await("the victim serves", func() bool { return s.sum(victim, "vllm:num_requests_running") > 0 })
	began := time.Now()
	o.kill(s, victim)
	s.promised(5*time.Second, "each model is there twice again", func() bool { return twice(victim) })
	l.goesOn(s, 5)
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	if now := s.histogram(s.Metrics, "headgate_queue_time_seconds").GetSampleCount(); now != waited {
		t.Errorf("%d requests waited for a load", now-waited)
	}
	had := 0
	for c := range held(until(s.events(), began)) {
		if c.engine == victim && slices.Contains(names, c.model) {
			had++
		}
	}
	again := slices.DeleteFunc(from(s.events(), began), func(e engineEvent) bool { return !slices.Contains(names, e.Model) })
	if loads := count(again, "load"); loads != had || had == 0 {
		t.Errorf("%d loads for the %d copies that were lost", loads, had)
	}
	if o.lost.Load() == 0 {
		t.Error("no request was lost: the engine was killed idle")
	}
	t.Logf("of %d requests %d were lost with the engine, which had %d copies", l.sent.Load(), o.lost.Load(), had)
}

// Each model of an engine that dies is served by another engine after one load. Only the requests
// on the dead engine fail.
func TestEngineIsKilledAndItsModelsAnswerElsewhere(t *testing.T) {
	runs(t, raced)
	const interval = 200 * time.Millisecond // the default scrape interval
	all := numbered(9)
	names, later := all[:6], all[6:]
	// Control learns from extproc that the engine died, long before its own scrape.
	s := start(t, pods(t, 3), placed(t, 4, all...), loading(t, 0.1), controlFlags("--scrape-interval", "1m"))
	l := s.pour(8, func(client, n int) request { return completion(names[(client+n)%len(names)], 20, n%2 == 0) },
		func(a answer, err error) string {
			if err == nil && a.status != http.StatusOK && a.status != http.StatusServiceUnavailable {
				return fmt.Sprintf("%d %s", a.status, a.body)
			}
			return "" // checked below: Envoy's log contains the endpoint
		})
	s.await("each model has been used", func() bool { return len(held(s.events())) == len(names) && l.sent.Load() > 100 })
	var victim string
	for c := range held(s.events()) {
		victim = c.engine
	}
	killed := time.Now()
	s.Engines[victim].Kill()
	var lost []string
	for c := range held(until(s.events(), killed)) {
		if c.engine == victim {
			lost = append(lost, c.model)
		}
	}
	s.await("what it had is loaded elsewhere", func() bool {
		there := make(map[string]bool)
		for c := range held(from(s.events(), killed)) {
			there[c.model] = true
		}
		return !slices.ContainsFunc(lost, func(m string) bool { return !there[m] })
	})
	sent := l.sent.Load()
	s.await("requests go on", func() bool { return l.sent.Load() > sent+200 })
	restarted := time.Now()
	if err := s.StartEngine(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	s.await("control knows what is left there", func() bool { return s.agreed() == "" })
	s.beginsEach(1, later...)()
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	s.await("control and the engines agree", func() bool { return s.agreed() == "" })
	s.Envoy.Stop(5 * time.Second) // Envoy flushes its log when it stops

	loads := 0
	for _, e := range from(until(s.events(), restarted), killed) {
		if e.Event == "load" {
			loads++
		}
	}
	if loads != len(lost) || loads == 0 {
		t.Errorf("%d loads for the %d models that were lost", loads, len(lost))
	}
	s.exactlyOnce(died(s.events(), victim, killed))
	if !slices.ContainsFunc(from(s.events(), restarted), func(e engineEvent) bool { return e.Engine == victim && e.Event == "load" }) {
		t.Error("the engine that came back is not used")
	}
	failed := s.accessLog(func(r logged) bool { return r.Status != http.StatusOK || r.Flags != "-" })
	first := restarted
	for _, r := range failed {
		if ended := r.Time.Add(time.Duration(r.MS) * time.Millisecond); r.Endpoint == victim && ended.Before(first) {
			first = ended
		}
	}
	for _, r := range failed {
		if r.Endpoint != victim || r.Time.After(first.Add(interval)) {
			t.Errorf("a request for %s failed that was not at the engine that died: %+v", r.Pick.Model, r)
		}
	}
	late := s.accessLog(func(r logged) bool {
		return r.Endpoint == victim && r.Time.After(first.Add(interval)) && r.Time.Before(restarted)
	})
	if len(late) > 0 {
		t.Errorf("%d requests were sent to it more than a scrape interval after its first refusal", len(late))
	}
	t.Logf("%d requests, of which %d failed; %d models were lost", l.sent.Load(), len(failed), len(lost))
}

// When extproc is killed, only waiting requests fail. Control forgets that they were waiting. Later
// requests wait for the model, too, and are answered.
func TestExtprocDiesWhileRequestsWait(t *testing.T) {
	runs(t)
	s := start(t, pods(t, 1), placed(t, 4, adapters...), loading(t, 3))
	waiting := func(n float64) func() bool {
		return func() bool { return s.sum(s.ControlMetrics, "headgate_place_queued_requests") == n }
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	answers := s.begins(ctx, "a01", 10)
	s.await("control knows that they wait", waiting(10))
	s.Extproc.Kill()
	for range 10 {
		refused(t, "with extproc killed", <-answers, http.StatusServiceUnavailable, "picker_unavailable")
	}
	s.await("control has forgotten them", waiting(0))
	if err := s.StartExtproc(t.Context()); err != nil {
		t.Fatal(err)
	}
	answers = s.begins(ctx, "a01", 5)
	s.await("control knows that others wait", waiting(5))
	for range 5 {
		if a := <-answers; a.status != http.StatusOK {
			t.Errorf("after the restart: %d %s", a.status, a.body)
		}
	}
	s.await("nobody waits", waiting(0))
	s.await("nothing is held or in flight", func() bool { return s.sum(s.Metrics, "headgate_queued_requests") == 0 && s.idle() })
	if loads := s.exactlyOnce(s.events()); loads != 1 {
		t.Errorf("%d loads, want one", loads)
	}
}
