package e2e

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// unloads returns when an engine was last asked to unload a model, zero if never.
func (s *stack) unloads(model string) (last time.Time) {
	s.t.Helper()
	for _, e := range s.events() {
		if e.Event == "unload" && e.Model == model {
			last = e.Time
		}
	}
	return last
}

// steal unloads an adapter without control's knowledge.
func (s *stack) steal(address, model string) {
	s.t.Helper()
	if said := s.post(address+"/v1/unload_lora_adapter", map[string]string{"lora_name": model}); !strings.HasPrefix(said, "200 ") {
		s.t.Fatalf("the engine unloads with %s", said)
	}
}

// flow opens a stream and returns after its first token. When the stream ends, the channel receives
// the time and the error.
func (s *stack) flow(model string, tokens int) <-chan ended {
	s.t.Helper()
	response, err := s.open(s.t.Context(), completion(model, tokens, true))
	if err != nil {
		s.t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		s.t.Fatalf("a stream begins with %d", response.StatusCode)
	}
	end := make(chan ended, 1)
	go func() {
		defer response.Body.Close()
		var body strings.Builder
		_, err := io.Copy(&body, response.Body)
		if err == nil && !(answer{body: body.String()}).done() {
			err = errNotDone
		}
		end <- ended{time.Now(), err}
	}()
	return end
}

// ended is when and how a stream ended.
type ended struct {
	at  time.Time
	err error
}

// If somebody unloads an adapter by hand and another copy exists, no request fails or waits for a
// load.
func TestAdapterUnloadedByHandIsServedByItsOtherCopy(t *testing.T) {
	runs(t, raced)
	s := start(t, pods(t, 2), placed(t, 4, "a01"))
	s.write("models.yaml", modelObject("a01", "copies: {min: 2}"))
	both := func() bool { return len(s.listed(s.endpoint(1)))+len(s.listed(s.endpoint(2))) == 2 && s.agreed() == "" }
	s.await("both engines have it", both)
	l := s.pour(8, func(_, n int) request { return completion("a01", 5, n%2 == 0) }, isOK)
	s.await("requests flow", func() bool { return l.sent.Load() > 100 })
	for n := 1; n <= 2; n++ {
		s.steal(s.endpoint(n), "a01")
		s.await("both engines have it again", both)
		sent := l.sent.Load()
		s.await("requests go on", func() bool { return l.sent.Load() > sent+50 })
	}
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	for n := 1; n <= 2; n++ { // both copies at once, as the Model requires
		events := slices.DeleteFunc(s.events(), func(e engineEvent) bool { return e.Engine != s.endpoint(n) })
		if loads := s.exactlyOnce(events); loads != 2 {
			t.Errorf("%s was told to load %d times, want 2", s.endpoint(n), loads)
		}
	}
}

// If there is no other copy, the first request discovers the loss. After Envoy has reported that
// request, later requests wait until the model has been loaded again.
func TestAdapterUnloadedByHandIsLoadedAgain(t *testing.T) {
	runs(t, raced)
	s := start(t, pods(t, 2), placed(t, 4, "a01"))
	s.beginsEach(1, "a01")()
	for range 2 {
		s.await("control and the engines agree", func() bool { return s.agreed() == "" })
		for c := range held(s.events()) {
			s.steal(c.engine, c.model)
		}
		var first, last time.Time
		for range 30 {
			a := s.must(completion("a01", 2, false))
			if a.status == http.StatusOK {
				continue
			}
			refused(t, "a request for what is not there", a, http.StatusServiceUnavailable, "no_endpoint")
			if last = time.Now(); first.IsZero() {
				first = last
			}
		}
		// Envoy's record arrives within 50 ms (envoy.yaml); then extproc reads the engine's list of
		// models.
		if last.Sub(first) > 500*time.Millisecond {
			t.Errorf("requests failed for %v", last.Sub(first))
		}
	}
	if loads := s.exactlyOnce(s.events()); loads != 3 {
		t.Errorf("%d loads, want one, and one for each time that it was unloaded", loads)
	}
}

// A deleted model serves its current requests to their end, and no new ones.
func TestModelIsDeletedWhileRequestsFlow(t *testing.T) {
	runs(t, raced)
	s := start(t, pods(t, 2), placed(t, 4))
	s.write("model.yaml", modelObject("gone", "copies: {min: 1}"))
	s.await("it is loaded", func() bool { return s.must(completion("gone", 1, false)).status == http.StatusOK && s.agreed() == "" })
	l := s.pour(4, func(_, n int) request { return completion("gone", 5, n%2 == 0) }, func(a answer, err error) string {
		if err == nil && a.status == http.StatusNotFound {
			return ""
		}
		return isOK(a, err)
	})
	end := s.flow("gone", 2000)
	deleted := time.Now()
	if err := os.Remove(filepath.Join(s.objects, "model.yaml")); err != nil {
		t.Fatal(err)
	}
	s.promised(time.Second, "new requests get 404", func() bool {
		return s.must(completion("gone", 1, false)).status == http.StatusNotFound
	})
	refused(t, "after it was deleted", s.must(completion("gone", 1, false)), http.StatusNotFound, "model_not_found")
	l.stop()
	for _, fault := range l.faults {
		t.Error(fault)
	}
	stream := <-end
	if stream.err != nil {
		t.Errorf("a stream that was there did not come to its end: %v", stream.err)
	}
	s.await("the engine is told", func() bool { return !s.unloads("gone").IsZero() && s.agreed() == "" })
	s.afterEnd("gone", deleted, stream)
}

// afterEnd checks that the engine was asked to unload a model only after a long stream had ended.
// It tolerates a client that reads the end late on a busy machine.
func (s *stack) afterEnd(model string, leaving time.Time, stream ended) {
	s.t.Helper()
	const slack = 500 * time.Millisecond
	unloaded := s.unloads(model)
	s.t.Logf("the stream went on for %v, and the engine was told %v after its end", stream.at.Sub(leaving).Round(time.Millisecond),
		unloaded.Sub(stream.at).Round(time.Millisecond))
	if stream.at.Sub(leaving) < 2*slack {
		s.t.Fatal("the stream was too short to tell")
	}
	if unloaded.Before(stream.at.Add(-slack)) {
		s.t.Errorf("the engine was told to unload %v before the end of a stream there", stream.at.Sub(unloaded))
	}
}

// A model's identity cannot change. An edit that gives a model another source is rejected with file
// and line, and the model with the old source keeps serving.
func TestChangedSourceOfAModelIsRejected(t *testing.T) {
	runs(t, raced)
	s := start(t, pods(t, 1), placed(t, 4))
	s.write("model.yaml", "\n"+modelObject("m", "source: 'sim:rank=4'"))
	s.await("it is there", func() bool { return s.must(completion("m", 1, false)).status == http.StatusOK })
	s.write("model.yaml", "\n"+modelObject("m", "source: 'sim:rank=8'"))
	place := filepath.Join(s.objects, "model.yaml") + ":5:" // file and line of the Model's metadata
	for _, p := range []struct{ log, metrics string }{{s.Control.Log, s.ControlMetrics}, {s.Extproc.Log, s.Metrics}} {
		s.await("the edit is refused in "+p.log, func() bool {
			return s.tells(p.log, "objects refused", place) && s.sum(p.metrics, "headgate_objects_rejected_files") == 1
		})
	}
	for range 3 {
		if a := s.must(completion("m", 1, false)); a.status != http.StatusOK {
			t.Errorf("the old one answers %d %s", a.status, a.body)
		}
	}
	var all []struct{ ID, Source string }
	s.get("http://"+s.ControlMetrics+"/models?id=m", &all)
	if len(all) != 1 || all[0].Source != "sim:rank=4" {
		t.Errorf("control has %+v", all)
	}
	if events := s.events(); len(events) != 2 {
		t.Errorf("the engine was told %v", events)
	}
}

// An adapter that is evicted serves its current requests to their end and gets no new ones. Only
// then is the engine asked to unload it.
func TestAdapterIsUnloadedAfterItsStreamsEnd(t *testing.T) {
	runs(t, raced)
	s := start(t, pods(t, 1), placed(t, 1, "a01", "a02"))
	end := s.flow("a01", 2000) // must last until control is sure that there is no other extproc, 3 s after control's start
	leaving := time.Now()
	answered := s.beginsEach(1, "a02")
	s.await("it leaves", func() bool { return s.sum(s.ControlMetrics, "headgate_copies", "state", "draining") == 1 })
	again := s.beginsEach(1, "a01") // this request waits until both adapters are unloaded
	stream := <-end
	if stream.err != nil {
		t.Errorf("the stream did not come to its end: %v", stream.err)
	}
	answered()
	s.afterEnd("a01", leaving, stream)
	again()
	if loads := s.exactlyOnce(s.events()); loads != 3 {
		t.Errorf("%d loads, want 3", loads)
	}
}

// A drain waits for streams only until its time limit. vLLM still finishes the streams, because
// unloading removes only the adapter's name.
func TestAdapterIsUnloadedAtTheDrainTimeout(t *testing.T) {
	onBothPlanes(t, adapterIsUnloadedAtTheDrainTimeout, raced)
}

func adapterIsUnloadedAtTheDrainTimeout(t *testing.T) {
	s := start(t, pods(t, 1), placed(t, 1, "a01", "a02"), controlFlags("--drain-timeout", "1s"))
	end := s.flow("a01", 800)
	leaving := time.Now()
	s.beginsEach(1, "a02")()
	if told := s.unloads("a01").Sub(leaving); told < time.Second || told > 2*time.Second {
		t.Errorf("the engine was told after %v, the limit is a second", told)
	}
	if len(end) > 0 {
		t.Error("the stream was too short to tell")
	}
	if stream := <-end; stream.err != nil {
		t.Errorf("the stream did not come to its end: %v", stream.err)
	}
	if events := s.events(); s.exactlyOnce(events) != 2 {
		t.Errorf("the engine was told %v", fmt.Sprint(events))
	}
}
