package place_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/store"
	"github.com/headgate/headgate/headgate/simulated/runtime"
	"github.com/headgate/headgate/internal/objects"
)

// Models get as many copies as their objects specify, at the existing endpoints, and are unloaded
// when their objects are deleted. If an endpoint is removed, its copies are forgotten, and the
// models are loaded elsewhere.
func TestCopiesFollowObjects(t *testing.T) {
	w := newWorld(t)
	a, b := serveVLLM(t), serveVLLM(t)
	source := settings("source: 'sim:', maxAdapters: 4")
	first, both := list(a.address, ""), slices.Sorted(slices.Values([]string{a.address, b.address}))
	at := func(addresses ...string) string { return strings.Join(addresses, " loaded, ") + " loaded" }

	w.set(source, first, object("x", ", copies: {min: 2}"), object("y", ""))
	w.awaitCopies("x", at(a.address))
	w.set(source, first, list(b.address, ""), object("x", ", copies: {min: 2}"), object("y", ""))
	w.awaitCopies("x", at(both...))
	if got := w.copies("y"); got != "" {
		t.Errorf("y, of which no copy must be, is at %s", got)
	}
	w.set(source, first, list(b.address, ""), object("x", ", copies: {min: 1, max: 1}"))
	w.await("one copy is left", func() bool {
		return !strings.Contains(w.copies("x"), ",") && strings.HasSuffix(w.copies("x"), " loaded")
	})
	kept, other := a, b
	if w.copies("x") == at(b.address) {
		kept, other = b, a
	}
	w.await("the other is unloaded", func() bool { return other.count("unloaded x") == 1 })
	w.set(source, list(other.address, ""), object("x", ", copies: {min: 1}"))
	w.awaitCopies("x", at(other.address))
	if kept.count("unload x") != 0 {
		t.Error("an endpoint that is none of ours any more is told to unload")
	}
	w.set(source, list(other.address, ""))
	w.await("it is unloaded with its object", func() bool { return other.count("unloaded x") == 2 })
	w.await("nothing is left", func() bool { return len(w.Statuses()) == 0 })
}

// A store that keeps data in objects must know a model's object before it writes the model's first
// status, and must learn which models were deleted.
func TestRecordsNameTheirObjects(t *testing.T) {
	w := newWorld(t)
	e := serveVLLM(t)
	source := settings("source: 'sim:', maxAdapters: 4")
	w.set(source, list(e.address, ""))
	w.told = &recorder{}
	w.restart()
	w.set(source, list(e.address, ""), object("x", ", copies: {min: 1}"))
	w.awaitCopies("x", e.address+" loaded")
	w.set(source, list(e.address, ""))
	w.await("its status is forgotten", func() bool {
		w.told.mu.Lock()
		defer w.told.mu.Unlock()
		n := len(w.told.statuses)
		return n > 0 && w.told.statuses[n-1].ID == "x" && w.told.statuses[n-1].Gone
	})
	w.told.mu.Lock()
	defer w.told.mu.Unlock()
	for _, c := range w.told.copies {
		if want := (objects.Name{Namespace: "default", Name: "x"}); c.State == "loading" && c.Object != want {
			t.Errorf("what is asked about x is of the object %v", c.Object)
		}
	}
}

// Without endpoints, the initial state is complete at once, and nothing happens without an event.
func TestStartWithoutEndpoints(t *testing.T) {
	w := newWorld(t)
	if w.board.isReady() {
		t.Error("before there are objects")
	}
	w.set()
	if !w.board.isReady() {
		t.Error("it is not")
	}
}

// Startup waits only a limited time for an engine that does not answer.
func TestStartDoesNotWaitForASilentEngine(t *testing.T) {
	w := newWorld(t)
	l := listen(t, "tcp", "127.0.0.1:0") // accepts connections but never answers
	defer l.Close()
	began := time.Now()
	w.set(list(l.Addr().String(), ""))
	w.await("all is known that will be", w.board.isReady)
	if took := time.Since(began); took < 2900*time.Millisecond || took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestManualChangesAreNoticed(t *testing.T) {
	w := newWorld(t)
	e := serveVLLM(t)
	w.set(settings("source: 'sim:', maxAdapters: 4"), list(e.address, ""), object("x", ""))
	w.await("it was looked at", w.board.isReady)
	e.tell(t, "/v1/load_lora_adapter", `{"lora_name":"x","lora_path":"sim:"}`)
	e.tell(t, "/v1/load_lora_adapter", `{"lora_name":"nobodys","lora_path":"sim:"}`)
	w.awaitCopies("x", e.address+" loaded")
	w.awaitCopies("nobodys", e.address+" loaded")
	e.tell(t, "/v1/unload_lora_adapter", `{"lora_name":"x"}`)
	w.awaitCopies("x", "")
	if n := e.count("load x"); n != 1 {
		t.Errorf("x was loaded %d times", n)
	}
}

// After a restart of control, the recorded copies of a runtime are still believed. This is so over
// a socket, where the process id would show a restart of the runtime, and over TCP, where nothing
// would. Control does not make the runtime ready again, since that would unload its models.
func TestRuntimesCopiesSurviveARestart(t *testing.T) {
	for _, socket := range []string{"", "runtime.sock"} {
		t.Run("at "+socket, func(t *testing.T) {
			if socket != "" {
				socket = filepath.Join(t.TempDir(), socket)
			}
			w := newWorld(t)
			r := serveRuntime(t, socket, nil)
			w.set(list(r.address, managed(r.management)), object("a", ", copies: {min: 1}"),
				object("b", ", source: 'sim:?size=20Mi', copies: {min: 1}"))
			w.awaitCopies("a", r.address+" loaded")
			w.awaitCopies("b", r.address+" loaded")
			w.restart()
			for _, id := range []string{"a", "b"} {
				if got := w.copies(id); got != r.address+" loaded" {
					t.Errorf("at once after the restart %s is at %q", id, got)
				}
			}
			w.await("it was looked at", w.board.isReady)
			for _, st := range w.Statuses() {
				if want := map[string]int64{"a": 50 << 20, "b": 20 << 20}[st.ID]; len(st.Copies) != 1 || st.Bytes != want {
					t.Errorf("after the first look: %+v", st)
				}
			}
			slices.Sort(r.Models())
			if got := r.Models(); !slices.Equal(got, []string{"a", "b"}) || r.Purges() != 1 || r.count("load a")+r.count("load b") != 2 {
				t.Errorf("the runtime has %v; it was told %v", got, r.events())
			}
		})
	}
}

// If an endpoint no longer exists after a restart of control, its record is deleted. A runtime that
// later returns at that address must unload everything, since its models are unknown.
func TestReturningRuntimeIsMadeReady(t *testing.T) {
	w := newWorld(t)
	r := serveRuntime(t, "", nil)
	there := list(r.address, managed(r.management))
	w.set(there, object("a", ", copies: {min: 1}"))
	w.awaitCopies("a", r.address+" loaded")
	w.stop()
	w.start()
	w.set(object("a", ""))
	w.set(there, object("a", ""))
	w.await("it was looked at", func() bool { return len(w.board.seen()) == 1 })
	if r.Purges() != 2 || len(r.Models()) > 0 || w.copies("a") != "" {
		t.Errorf("it was made ready %d times and has %v; a is at %q", r.Purges(), r.Models(), w.copies("a"))
	}
}

// The record of a runtime is deleted when its endpoint is removed or its pod replaced, before or
// after a restart of control, with or without copies. If the runtime returns, other clients may
// have used it, or it may have restarted, and control cannot find out.
func TestRecordOfARuntimeIsDeletedWithItsEndpoint(t *testing.T) {
	for _, c := range []struct {
		what      string
		model     string // spec of model a while the endpoint exists
		meanwhile func(w *world, without string)
		copy      string // state of model a to await before the endpoint is removed; empty: do not wait
	}{
		{"in one process", ", copies: {min: 1}", func(w *world, without string) { w.set(without) }, " loaded"},
		{"before a restart", ", copies: {min: 1}", func(w *world, without string) { w.set(without); w.stop(); w.start() }, " loaded"},
		{"with a restart", "", func(w *world, without string) { w.stop(); w.start(); w.set(without) }, ""},
		{"with its pod, when another has its address", ", copies: {min: 1}", func(w *world, _ string) {
			is := *w.world
			is.Engines = slices.Clone(is.Engines)
			is.Engines[0].Terminating = true
			w.SetWorld(&is)
		}, " loaded"},
		{"with a restart and another after it", "", func(w *world, without string) {
			w.stop()
			w.start()
			w.set(without)
			w.stop()
			w.start()
		}, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			r := serveRuntime(t, "", nil)
			there := list(r.address, managed(r.management))
			w.set(there, object("a", c.model))
			w.await("it was looked at", func() bool { return len(w.board.seen()) == 1 })
			if c.copy != "" {
				w.awaitCopies("a", r.address+c.copy)
			}
			c.meanwhile(w, object("a", ""))
			w.set(there, object("a", ""))
			w.await("it is made ready anew", func() bool { return r.Purges() == 2 })
			if len(r.Models()) > 0 || w.copies("a") != "" {
				t.Errorf("it has %v; a is at %q", r.Models(), w.copies("a"))
			}
		})
	}
}

// The gRPC methods of a runtime are published to extprocs. This is so even after a restart of
// control, when it must not make the runtime ready again. The methods of a removed runtime are
// withdrawn.
func TestRuntimeMethodsSurviveARestart(t *testing.T) {
	w := newWorld(t)
	r := serveRuntime(t, filepath.Join(t.TempDir(), "runtime.sock"), nil)
	there, a := list(r.address, managed(r.management)), object("a", ", copies: {min: 1}")
	w.set(there, a)
	w.awaitCopies("a", r.address+" loaded")
	const infer = "inference.GRPCInferenceService/ModelInfer"
	if path, ok := w.board.takes(r.address).Takes(infer); !ok || !slices.Equal(path, []uint32{1}) {
		t.Errorf("the runtime takes %q", w.board.takes(r.address))
	}
	if _, ok := w.board.takes(r.address).Takes("other.Service/Method"); ok {
		t.Error("it takes a method that it does not name")
	}
	w.stop()
	before := w.board.takes(r.address)
	w.board.SetMethods(r.address, "")
	w.start()
	w.set(there, a)
	w.await("it was looked at", w.board.isReady)
	if is := w.board.takes(r.address); is != before {
		t.Errorf("after a restart it takes %q, before %q", is, before)
	}
	if n := r.count("purge"); n != 1 {
		t.Errorf("it was made ready %d times", n)
	}
	w.set(a)
	w.await("it is forgotten", func() bool { return w.board.takes(r.address) == "" })
}

// The concurrency limits of copies are published to extprocs. This is so even after a restart of
// control, when it must not make the runtime ready again. A copy loaded after the restart has the
// limit that the runtime reported when it was made ready.
func TestConcurrencyLimitsSurviveARestart(t *testing.T) {
	w := newWorld(t)
	r := serveRuntime(t, filepath.Join(t.TempDir(), "runtime.sock"), func(c *runtime.Config) { c.Concurrency = 3 })
	there, a, b := list(r.address, managed(r.management)), object("a", ", copies: {min: 1}, source: 'sim:?concurrency=7'"), object("b", "")
	w.set(there, a, b)
	w.awaitCopies("a", r.address+" loaded")
	if n := w.board.limit("a", r.address); n != 7 {
		t.Errorf("the copy takes %d requests at once", n)
	}
	w.stop()
	w.board.Publish(decide.Change{Copies: map[decide.CopyKey]decide.CopyChange{{ModelKey: key("a"), Endpoint: r.address}: {}}})
	w.start()
	w.set(there, a, b)
	w.await("it was looked at", w.board.isReady)
	if n := w.board.limit("a", r.address); n != 7 {
		t.Errorf("after a restart the copy takes %d requests at once", n)
	}
	w.Wanted("x", key("b"), decide.Want{Requests: 1, Since: time.Now()})
	w.awaitCopies("b", r.address+" loaded")
	if n := w.board.limit("b", r.address); n != 3 {
		t.Errorf("a copy that was loaded since takes %d requests at once", n)
	}
	if n := r.count("purge"); n != 1 {
		t.Errorf("it was made ready %d times", n)
	}
}

// The results of calls to an earlier incarnation of a runtime, or to a removed runtime, are
// ignored.
func TestCallsToAnEarlierIncarnationAreIgnored(t *testing.T) {
	w := newWorld(t)
	r := serveRuntime(t, filepath.Join(t.TempDir(), "runtime.sock"), nil)
	there, a, b := list(r.address, managed(r.management)), object("a", ", copies: {min: 1}"), object("b", "")
	w.set(there, a, b)
	w.awaitCopies("a", r.address+" loaded")
	w.stop()
	file, err := store.Open(w.file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := file.PutCopy(store.Copy{Endpoint: r.address, Pool: pool.String(), ID: "b", State: "loaded", Incarnation: "earlier"},
		true); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	w.told = &recorder{}
	w.start()
	w.set(there, a, b)
	w.await("it was looked at", w.board.isReady)
	if w.copies("a") != r.address+" loaded" || w.copies("b") != "" || r.count("load a") != 1 {
		t.Errorf("a is at %q, b at %q; the runtime was told %v", w.copies("a"), w.copies("b"), r.events())
	}
	w.set(a, b)
	w.await("what was there is forgotten", func() bool {
		w.told.mu.Lock()
		defer w.told.mu.Unlock()
		return slices.Equal(w.told.deleted, []string{r.address + " b", r.address + " a"})
	})
}

// A load that cannot be recorded waits until it can be. This is not treated as a failed load.
func TestLoadWaitsUntilItIsRecorded(t *testing.T) {
	w := newRecordedWorld(t, &recorder{away: fmt.Errorf("%w: connection refused", store.ErrNotNow)})
	r := serveRuntime(t, "", nil)
	w.set(list(r.address, managed(r.management)), object("a", ", copies: {min: 1}"))
	w.await("it was tried again", func() bool { return w.told.asked() > 1 })
	if st := w.Statuses(); len(st) != 1 || len(st[0].Failures) > 0 || r.count("load a") > 0 {
		t.Errorf("meanwhile: %+v, and the runtime was told %v", st, r.events())
	}
	w.told.setAway(nil)
	w.awaitCopies("a", r.address+" loaded")
}

// A model whose pool does not exist is not ready, and its status names what is missing. The status
// also reports whether the model owns its id.
func TestModelStatusNamesWhatIsMissing(t *testing.T) {
	w := newWorld(t)
	w.told = &recorder{}
	w.stop()
	w.start()
	says := func(condition string) (says string) {
		w.told.mu.Lock()
		defer w.told.mu.Unlock()
		for _, st := range w.told.statuses {
			if c := meta.FindStatusCondition(st.Status.Conditions, condition); st.ID == "x" && c != nil {
				says = string(c.Status) + " " + c.Reason + ": " + c.Message
			}
		}
		return says
	}
	ready := func() string { return says(v1alpha1.ConditionReady) }
	x := objects.Set{Models: []*v1alpha1.Model{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"},
		Spec:       v1alpha1.ModelSpec{PoolRef: v1alpha1.PoolReference{Name: "p"}},
	}}}
	w.SetWorld(objects.Build(x))
	w.await("it is told", func() bool { return ready() != "" })
	if want := "False PoolNotFound: the InferencePool default/p does not exist: nothing can load it"; ready() != want {
		t.Errorf("it says %q, want %q", ready(), want)
	}
	w.set(object("x", ""))
	w.await("it is ready with its pool", func() bool { return ready() == "True Loadable: control loads it when a request names it" })
	w.SetWorld(objects.Build(x))
	w.await("it is not without", func() bool { return strings.HasPrefix(ready(), "False PoolNotFound") })

	// The model owns its id until an LLMRoute uses that id for something else.
	if got := says(v1alpha1.ConditionAccepted); got != "True Accepted: " {
		t.Errorf("its id is its own: %q", got)
	}
	x.Routes = []v1alpha1.LLMRoute{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "r"},
		Spec:       v1alpha1.LLMRouteSpec{ModelNames: []string{"x"}, BackendRefs: []v1alpha1.BackendReference{{Name: "p"}}},
	}}
	w.SetWorld(objects.Build(x))
	w.await("it is a route's", func() bool {
		return says(v1alpha1.ConditionAccepted) == `False ModelNameTaken: requests for "x" belong to LLMRoute default/r: no request can name this Model by its id`
	})
}

// If a restart of control interrupts a load, its progress is unknown, so the model is unloaded and
// then loaded again.
func TestInterruptedLoadIsRepeated(t *testing.T) {
	w := newWorld(t)
	r := serveRuntime(t, "", nil)
	w.set(list(r.address, managed(r.management)), object("a", ", source: 'sim:?load=200ms', copies: {min: 1}"))
	w.await("it is being loaded", func() bool { return r.count("load a") == 1 })
	w.restart()
	w.awaitCopies("a", r.address+" loaded")
	told := slices.DeleteFunc(r.events(), func(e string) bool { return strings.HasPrefix(e, "loaded") || strings.HasPrefix(e, "unloaded") })
	if want := []string{"purge", "load a", "unload a", "load a"}; !slices.Equal(told, want) {
		t.Errorf("the runtime was told %v, want %v", told, want)
	}
}

// After a restart of control, an engine's list of models overrides the records.
func TestListOverridesRecordsAfterARestart(t *testing.T) {
	w := newWorld(t)
	e := serveVLLM(t)
	w.set(settings("source: 'sim:', maxAdapters: 4"), list(e.address, ""), object("x", ", copies: {min: 1}"), object("y", ""))
	w.awaitCopies("x", e.address+" loaded")
	w.stop()
	e.tell(t, "/v1/load_lora_adapter", `{"lora_name":"y","lora_path":"sim:"}`)
	w.start()
	w.SetWorld(w.world)
	w.awaitCopies("y", e.address+" loaded")
	if got := w.copies("x"); got != e.address+" loaded" || e.count("load x") != 1 || e.count("unload x") != 0 {
		t.Errorf("x is at %q; the engine was told %v", got, e.events())
	}
}

// A failed load is remembered after a restart of control, unless the model has changed.
func TestFailuresCountAfterARestart(t *testing.T) {
	w := newWorld(t)
	r := serveRuntime(t, "", nil)
	model := func(source string) []string {
		return []string{list(r.address, managed(r.management)), object("a", ", type: sim, source: '"+source+"', copies: {min: 1}")}
	}
	failures := func() string {
		st, _ := w.Status(key("a"))
		var all []string
		for _, f := range st.Failures {
			all = append(all, f.Endpoint+" "+f.Message+" "+string(f.Why)+" "+f.At.UTC().Format(time.StampMicro))
		}
		return strings.Join(all, ", ")
	}
	w.set(model("sim:?fail=INTERNAL:no%20such%20file")...)
	w.await("it failed", func() bool { return failures() != "" })
	before := failures()
	for range 2 {
		w.restart()
		w.await("the runtime is known", w.board.isReady)
		if after := failures(); after != before {
			t.Errorf("before the restart %q failed, and %q after", before, after)
		}
	}
	if n := r.count("load a"); n != 1 {
		t.Errorf("it was told to load it %d times: %v", n, r.events())
	}
	w.stop()
	w.start()
	w.set(model("sim:")...)
	w.awaitCopies("a", r.address+" loaded")
	if after := failures(); after != "" {
		t.Errorf("another source: %q", after)
	}
}

// If a load takes too long at one endpoint, it is tried at the next endpoint at once, while the
// model is still being unloaded at the first.
func TestTimedOutLoadIsTriedElsewhere(t *testing.T) {
	w := newWorld(t)
	// The first endpoint has more room, and a load timeout of 200 ms.
	first := serveRuntime(t, "", func(c *runtime.Config) { c.Capacity, c.LoadTimeout = 4<<30, 200*time.Millisecond })
	second := serveRuntime(t, "", nil)
	w.set(list(first.address, managed(first.management)), list(second.address, managed(second.management)))
	w.await("both were looked at", w.board.isReady)
	w.set(list(first.address, managed(first.management)), list(second.address, managed(second.management)),
		object("a", ", source: 'sim:?load=1500ms&stubborn', copies: {min: 1}"))
	w.await("it is loaded at the second", func() bool { return strings.Contains(w.copies("a"), second.address+" loaded") })
	w.await("the first is cleared", func() bool { return first.count("unloaded a") == 1 })
	w.awaitCopies("a", second.address+" loaded")
	var began, ended time.Time
	for _, e := range second.all() {
		if e.Event == "load" {
			began = e.Time
		}
	}
	for _, e := range first.all() {
		if e.Event == "unload" {
			ended = e.Time
		}
	}
	if gap := ended.Sub(began); gap < 500*time.Millisecond { // control pauses for a second before the unload, as ModelMesh does
		t.Errorf("the second was told %v before the first was cleared; first %v, second %v", gap, first.events(), second.events())
	}
	for _, st := range w.Statuses() {
		if len(st.Failures) != 1 || st.Failures[0].Endpoint != first.address ||
			!strings.Contains(st.Failures[0].Message, "no answer in time") {
			t.Errorf("%+v", st)
		}
	}
}

// The pool's settings limit the time of a load, and set after what time a failed load expires.
// Changed settings apply at once.
func TestSettingsLimitLoadsAndFailures(t *testing.T) {
	w := newWorld(t)
	r := serveRuntime(t, "", nil) // the runtime's own load timeout is a minute
	w.set(settings("loadTimeout: 100ms, failureExpiry: 1h"), list(r.address, managed(r.management)),
		object("a", ", source: 'sim:?hang', copies: {min: 1}"))
	w.await("the load has failed", func() bool { return r.count("unload a") == 1 && w.copies("a") == "" })
	w.set(settings("loadTimeout: 100ms, failureExpiry: 1s"), list(r.address, managed(r.management)),
		object("a", ", source: 'sim:?hang', copies: {min: 1}"))
	w.await("it is tried again", func() bool { return r.count("load a") == 2 })
}

// A model is loaded only at endpoints that are allowed for its type, and moves when the settings
// change.
func TestConstraintsCanChange(t *testing.T) {
	w := newWorld(t)
	w.stop()
	w.tick = 50 * time.Millisecond
	w.start()
	a, b := serveVLLM(t), serveVLLM(t)
	disk := func(e vllm, is string) string {
		return strings.Replace(list(e.address, ""), "{app: p}", "{app: p, disk: "+is+"}", 1)
	}
	constrained := func(disk string) string {
		return settings("source: 'sim:', maxAdapters: 4, constraints: [{modelType: lora, required: {disk: " + disk + "}}]")
	}
	x := object("x", ", copies: {min: 1}")
	w.set(constrained("fast"), disk(a, "slow"), disk(b, "fast"), x)
	w.awaitCopies("x", b.address+" loaded")
	w.set(constrained("slow"), disk(a, "slow"), disk(b, "fast"), x)
	w.awaitCopies("x", a.address+" loaded")
	// A model also moves when the labels of endpoints change.
	w.set(constrained("slow"), disk(a, "fast"), disk(b, "slow"), x)
	w.awaitCopies("x", b.address+" loaded")
	w.set(constrained("none"), disk(a, "fast"), disk(b, "slow"), x, object("y", ", copies: {min: 1}"))
	w.await("nobody takes y", func() bool {
		y, _ := w.Status(key("y"))
		return y.Why == decide.NoLabels
	})
	if a.count("load x") != 1 || w.copies("x") != b.address+" loaded" {
		t.Errorf("x is at %s, which no endpoint may have", w.copies("x"))
	}
	if at := endpointOf(w.View(), b.address).Copies; len(at) != 1 || !at[0].Misplaced {
		t.Errorf("%s has %+v, where x may not be", b.address, at)
	}
	// A pool without settings allows all models at all endpoints.
	w.set(disk(a, "fast"), disk(b, "slow"), object("y", ", copies: {min: 1}, source: 'sim:'"))
	w.await("y is loaded", func() bool { return strings.HasSuffix(w.copies("y"), " loaded") })
}

// An engine that answers neither a load nor the unload after it still loads other models, once the
// time limit of the first load has passed.
func TestHangingLoadDelaysNoOther(t *testing.T) {
	w := newWorld(t)
	e, _ := serveHanging(t, "/v1/load_lora_adapter", "/v1/unload_lora_adapter")
	settings := settings("source: 'sim:', maxAdapters: 4, loadTimeout: 300ms")
	w.set(settings, list(e.address, ""), object("hangs", ", copies: {min: 1}"))
	w.await("it is being loaded", func() bool { return w.copies("hangs") == e.address+" loading" })
	began := time.Now()
	w.set(settings, list(e.address, ""), object("hangs", ", copies: {min: 1}"), object("b", ", copies: {min: 1}"),
		object("c", ", copies: {min: 1}"))
	w.awaitCopies("b", e.address+" loaded")
	w.awaitCopies("c", e.address+" loaded")
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the others were loaded after %v", took)
	}
	if got := w.copies("hangs"); got != e.address+" unloading" {
		t.Errorf("nobody knows what is left of it, and it is at %q", got)
	}
}

// An unload that is never answered does not delay a load if the engine has room for both models.
func TestHangingUnloadDelaysNoLoad(t *testing.T) {
	w := newWorld(t)
	e, hung := serveHanging(t, "/v1/unload_lora_adapter")
	settings := settings("source: 'sim:', maxAdapters: 2")
	w.set(settings, list(e.address, ""), object("hangs", ", copies: {min: 1}"))
	w.awaitCopies("hangs", e.address+" loaded")
	w.set(settings, list(e.address, ""))
	w.await("it is being unloaded", func() bool { return hung.Load() > 0 })
	w.set(settings, list(e.address, ""), object("b", ", copies: {min: 1}"))
	w.awaitCopies("b", e.address+" loaded")
}

// What an earlier process's load may have left is unloaded before the model is loaded again. If
// that unload takes longer than the time limit of a load, it delays no other load, and the model is
// not loaded there afterwards.
func TestUnloadBeforeALoadHasItsTimeout(t *testing.T) {
	w := newWorld(t)
	r := serveRuntime(t, "", func(c *runtime.Config) { c.LoadingThreads = 1 })
	settings := settings("loadTimeout: 1s")
	a := object("a", ", source: 'sim:?load=300ms&stubborn&unload=4s', copies: {min: 1}")
	w.set(settings, list(r.address, managed(r.management)), a)
	w.await("it is being loaded", func() bool { return r.count("load a") == 1 })
	w.restart()
	w.await("it is unloaded first", func() bool { return r.count("unload a") == 1 })
	w.set(settings, list(r.address, managed(r.management)), a, object("b", ", source: 'sim:', copies: {min: 1}"))
	w.awaitCopies("b", r.address+" loaded")
	if r.count("unloaded a") > 0 {
		t.Error("b waited until a was unloaded")
	}
	w.awaitCopies("a", "")
	if n := r.count("load a"); n != 1 {
		t.Errorf("a was loaded %d times", n)
	}
}

// A vLLM that is stopping does not report it, and can still be scraped. Control asks it whether it
// is stopping, and then starts no loads there: a load would keep the engine from ending.
func TestStoppingEngineGetsNoLoads(t *testing.T) {
	w := newWorld(t)
	stays, stops := serveVLLM(t), serveVLLMThat(t, 10*time.Millisecond, 2*time.Second)
	w.set(settings("maxAdapters: 20, source: 'sim:'"), list(stays.address, ""), list(stops.address, ""))
	w.await("both were looked at", w.board.isReady)
	stops.stop()
	for n := 0; ; n++ {
		select {
		case <-stops.over:
			if n < 10 {
				t.Errorf("it ended after %d models were wanted", n)
			}
			if events := stops.events(); len(events) > 0 {
				t.Errorf("an engine that is stopping was told %v", events)
			}
			return
		case <-time.After(20 * time.Millisecond):
		}
		id := fmt.Sprintf("m%d", n)
		w.set(settings("maxAdapters: 200, source: 'sim:'"), list(stays.address, ""), list(stops.address, ""), object(id, ""))
		w.Wanted("x", key(id), decide.Want{Requests: 1, Since: time.Now()})
		w.awaitCopies(id, stays.address+" loaded")
		w.Wanted("x", key(id), decide.Want{})
	}
}

// A load at an engine that is about to end is abandoned and repeated elsewhere. Nothing is unloaded
// at that engine afterwards.
func TestLoadAtALeavingEndpointIsAbandoned(t *testing.T) {
	for name, why := range map[string]decide.Leaving{
		"stopping":    {Stopping: time.Now().Add(time.Second)},
		"terminating": {Terminating: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ends, stays := serveVLLMThat(t, 3*time.Second, 0), serveVLLM(t)
			all := []string{settings("maxAdapters: 4, source: 'sim:'"), list(ends.address, ""), object("a", ""), object("b", "")}
			w.set(all...)
			for _, id := range []string{"a", "b"} { // load one after the other
				w.Wanted("x", key(id), decide.Want{Requests: 1, Since: time.Now()})
			}
			w.await("a is being loaded", func() bool { return ends.count("load a") == 1 })
			w.set(append(all, list(stays.address, ""))...)
			told := time.Now()
			w.Leaving("x", map[string]decide.Leaving{ends.address: why})
			for _, id := range []string{"a", "b"} {
				w.await(id+" is at the other", func() bool { return strings.Contains(w.copies(id), stays.address+" loaded") })
			}
			if took := time.Since(told); took > 2*time.Second {
				t.Errorf("it took %v, as long as the load that was given up", took)
			}
			w.awaitCopies("a", stays.address+" loaded")
			if events := ends.events(); !slices.Equal(events, []string{"load a"}) {
				t.Errorf("the engine was told %v", events)
			}
			for _, st := range w.Statuses() {
				if len(st.Failures) > 0 {
					t.Errorf("%s is blamed: %+v", st.ID, st.Failures)
				}
			}
		})
	}
}

// Nothing is loaded at a pod that is being deleted according to the objects.
func TestTerminatingPodGetsNoLoads(t *testing.T) {
	w := newWorld(t)
	ends := serveVLLM(t)
	all := []string{settings("maxAdapters: 4, source: 'sim:'"), list(ends.address, ""), object("a", "")}
	w.world = w.build(all...)
	w.world.Engines[0].Terminating = true
	w.SetWorld(w.world)
	w.await("it was looked at", w.board.isReady)
	w.Wanted("x", key("a"), decide.Want{Requests: 1, Since: time.Now()})
	if st, _ := w.Status(key("a")); len(st.Copies) > 0 || st.Failed != decide.NoEndpoint {
		t.Errorf("%+v", st)
	}
	w.set(all...)
	w.awaitCopies("a", ends.address+" loaded")
}

// If an engine turns out to be ending while a load is still being recorded, the load does not
// start.
func TestUnrecordedLoadIsAbandoned(t *testing.T) {
	w := newRecordedWorld(t, &recorder{away: store.ErrNotNow})
	ends := serveVLLM(t)
	w.set(settings("maxAdapters: 4, source: 'sim:'"), list(ends.address, ""), object("a", ""))
	w.Wanted("x", key("a"), decide.Want{Requests: 1, Since: time.Now()})
	w.await("it is to be written down", func() bool { return w.told.asked() > 0 })
	w.Leaving("x", map[string]decide.Leaving{ends.address: {Terminating: true}})
	w.awaitCopies("a", "")
	w.told.setAway(nil)
	w.Leaving("x", map[string]decide.Leaving{ends.address: {}})
	w.awaitCopies("a", ends.address+" loaded")
	if events := ends.events(); !slices.Equal(events, []string{"load a", "loaded a"}) {
		t.Errorf("the engine was told %v", events)
	}
}

// A registered model without a source gets the source in its pool's settings, even after a restart.
func TestSourceFromPoolSettingsSurvivesARestart(t *testing.T) {
	w := newWorld(t)
	r := serveRuntime(t, "", nil)
	w.set(settings("source: 'sim:?size=7Mi'"), list(r.address, managed(r.management)))
	m := &v1alpha1.Model{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"},
		Spec:       v1alpha1.ModelSpec{ID: "a", PoolRef: v1alpha1.PoolReference{Name: "p"}, Type: "t"},
	}
	if fresh, err := w.Register(m, time.Now()); err != nil || !fresh {
		t.Fatal(fresh, err)
	}
	if !slices.Equal(w.board.awaited, []decide.Key{key("a")}) { // the model's client may send a request at once
		t.Errorf("it was answered when all knew of %v", w.board.awaited)
	}
	for range 2 {
		if st, ok := w.Status(key("a")); !ok || st.Source != "sim:?size=7Mi" {
			t.Errorf("%v: %+v", ok, st)
		}
		w.restart()
	}
}

// A runtime over TCP that restarts refuses a connection. It is made ready once, before any model is
// loaded there, and then its models are loaded again.
func TestRestartedRuntimeIsMadeReady(t *testing.T) {
	w := newWorld(t)
	data, management := listen(t, "tcp", "127.0.0.1:0"), listen(t, "tcp", "127.0.0.1:0")
	address, at := data.Addr().String(), management.Addr().String()
	_, port, _ := net.SplitHostPort(at)
	_, end := beginRuntime(t, data, management)
	w.set(list(address, managed("port:"+port)), object("a", ", copies: {min: 1}"), object("b", ", copies: {min: 1}"))
	for _, id := range []string{"a", "b"} {
		w.awaitCopies(id, address+" loaded")
	}
	end()
	w.await("its end is known", func() bool { return endpointOf(w.View(), address).State == decide.Down })
	r, _ := beginRuntime(t, listen(t, "tcp", address), listen(t, "tcp", at))
	w.await("it has both again", func() bool { return r.Loaded("a") && r.Loaded("b") })
	if r.Purges() != 1 {
		t.Errorf("it was made ready %d times", r.Purges())
	}
}

// A runtime restarts behind a proxy, which refuses no connection. Its copies are believed to exist
// until a request finds one of them missing. Then the runtime is made ready once, before any model
// is loaded there, and models without a copy elsewhere are loaded again. If another copy is found
// missing later, only that copy is loaded again.
func TestRuntimeWithAMissingModelIsMadeReady(t *testing.T) {
	w := newWorld(t)
	data, management := listen(t, "tcp", "127.0.0.1:0"), listen(t, "tcp", "127.0.0.1:0")
	address, at := data.Addr().String(), management.Addr().String()
	front, made := proxy(t, at)
	_, port, _ := net.SplitHostPort(front)
	_, end := beginRuntime(t, data, management)
	w.set(list(address, managed("port:"+port)), object("a", ", copies: {min: 1}"), object("b", ", copies: {min: 1}"))
	for _, id := range []string{"a", "b"} {
		w.awaitCopies(id, address+" loaded")
	}
	end()
	r, _ := beginRuntime(t, listen(t, "tcp", address), listen(t, "tcp", at))
	before := made.Load()
	w.await("it is scraped several times", func() bool { return made.Load() >= before+10 })
	for _, id := range []string{"a", "b"} {
		if got := w.copies(id); got != address+" loaded" || r.Purges() != 0 {
			t.Errorf("before anything is known %s is at %q, and it was made ready %d times", id, got, r.Purges())
		}
	}
	w.Missing(decide.CopyKey{ModelKey: key("a"), Endpoint: address})
	w.await("it has both again", func() bool { return r.Loaded("a") && r.Loaded("b") })
	for _, id := range []string{"a", "b"} {
		w.awaitCopies(id, address+" loaded")
	}
	w.Missing(decide.CopyKey{ModelKey: key("a"), Endpoint: address})
	w.awaitCopies("b", address+" loaded")
	if r.Purges() != 1 {
		t.Errorf("it was made ready %d times", r.Purges())
	}
}

// The record of a model that could not be unloaded remains until the engine lacks the model. Even
// after a restart of control, the model is recorded as a leak there.
func TestFailedUnloadStaysOnRecord(t *testing.T) {
	w := newRecordedWorld(t, new(recorder))
	data, management := listen(t, "tcp", "127.0.0.1:0"), listen(t, "tcp", "127.0.0.1:0")
	address, at := data.Addr().String(), management.Addr().String()
	front, _ := proxy(t, at)
	_, port, _ := net.SplitHostPort(front)
	_, end := beginRuntime(t, data, management)
	there := list(address, managed("port:"+port))
	w.set(there, object("a", ", copies: {min: 1}"))
	w.awaitCopies("a", address+" loaded")
	end()
	w.set(there)
	leaked := func() bool { return endpointOf(w.View(), address).LeakedBytes > 0 }
	w.await("a could not be unloaded", leaked)
	recorded := func() (all []string) {
		copies, err := w.told.Copies()
		if err != nil {
			t.Error(err)
		}
		for _, c := range copies {
			all = append(all, c.ID+" "+c.State)
		}
		return all
	}
	if got := recorded(); !slices.Equal(got, []string{"a unloading"}) {
		t.Errorf("on record is %q", got)
	}
	w.restart()
	w.await("a could not be unloaded again", leaked)
	beginRuntime(t, listen(t, "tcp", address), listen(t, "tcp", at))
	w.await("it is unloaded", func() bool { return !leaked() && len(recorded()) == 0 })
}

// beginRuntime serves a runtime until end is called or the test ends.
func beginRuntime(t *testing.T, data, management net.Listener) (r *runtime.Runtime, end func()) {
	r = runtime.New(runtime.Config{Capacity: 1 << 30, DefaultSize: 50 << 20, LoadingThreads: 6, LoadTimeout: time.Minute})
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- runtime.Serve(ctx, r, data, management) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-over; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return r, end
}

// proxy starts a TCP proxy to another address. It returns the proxy's address and the number of
// connections that it has made. The proxy accepts every connection, and closes it if its target
// refuses a connection.
func proxy(t *testing.T, to string) (address string, made *atomic.Int64) {
	listener := listen(t, "tcp", "127.0.0.1:0")
	made = new(atomic.Int64)
	var all sync.WaitGroup
	all.Go(func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			there, err := net.Dial("tcp", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			made.Add(1)
			for _, way := range [][2]net.Conn{{from, there}, {there, from}} {
				all.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					_ = from.Close()
					_ = there.Close()
				})
			}
		}
	})
	t.Cleanup(func() { _ = listener.Close(); all.Wait() })
	return listener.Addr().String(), made
}

// An engine never answers the load of one model, and answers the load of another without ever
// listing it. Before either load has failed, the engine loads other models. A load after which the
// model is not listed fails soon.
func TestHangingAdapterLoadsDelayNoOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := serveVLLM(t)
	w.set(settings("maxAdapters: 4"), list(e.address, ""), object("hangs", ", source: 'sim:hang', copies: {min: 1}"))
	w.await("one is being loaded", func() bool { return w.copies("hangs") == e.address+" loading" })
	began := time.Now()
	w.set(settings("maxAdapters: 4"), list(e.address, ""), object("hangs", ", source: 'sim:hang', copies: {min: 1}"),
		object("unlisted", ", source: 'sim:unlisted', copies: {min: 1}"))
	w.await("another is being loaded", func() bool { return e.count("load unlisted") == 1 })
	w.set(settings("maxAdapters: 4"), list(e.address, ""), object("hangs", ", source: 'sim:hang', copies: {min: 1}"),
		object("unlisted", ", source: 'sim:unlisted', copies: {min: 1}"),
		object("a", ", source: 'sim:', copies: {min: 1}"))
	w.awaitCopies("a", e.address+" loaded")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the third is loaded after %v", took)
	}
	w.await("the one that is not listed has failed", func() bool { st, _ := w.Status(key("unlisted")); return len(st.Failures) == 1 })
	if st, _ := w.Status(key("unlisted")); !strings.Contains(st.Failures[0].Message, "3 lists since do not have the model") {
		t.Errorf("%+v", st.Failures)
	}
	if got := w.copies("hangs"); got != e.address+" loading" {
		t.Errorf("the first is at %q", got)
	}
}

// With only one engine, a load is retried there after a busy answer or a broken connection, while
// requests wait for the model.
func TestLoadIsRetriedAtTheOnlyEngine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	e := serveVLLM(t)
	resets := new(atomic.Int64)
	to := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: e.address})
	drops := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/load_lora_adapter" && resets.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		to.ServeHTTP(w, r)
	}))
	defer drops.Close()
	address := drops.Listener.Addr().String()
	w.set(settings("maxAdapters: 4"), list(address, ", engine: vllm"), object("dropped", ", source: 'sim:'"),
		object("busy", ", source: 'sim:busy=1'"))
	w.await("it is looked at", w.board.isReady)
	for _, id := range []string{"dropped", "busy"} {
		w.Wanted("x", key(id), decide.Want{Requests: 1, Since: time.Now()})
		w.awaitCopies(id, address+" loaded")
		if st, _ := w.Status(key(id)); len(st.Failures) > 0 {
			t.Errorf("%s: %+v", id, st.Failures)
		}
	}
	if n := e.count("load busy"); n != 2 {
		t.Errorf("the busy one was loaded %d times", n)
	}
}
