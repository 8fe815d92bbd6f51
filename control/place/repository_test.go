package place_test

import (
	"context"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/modelmesh"
	"github.com/headgate/headgate/headgate/simulated/llm"
	"github.com/headgate/headgate/headgate/simulated/repository"
	"github.com/headgate/headgate/internal/engine"
)

// stored is a simulated engine with a model repository. It can restart without breaking or refusing
// connections.
type stored struct {
	*log
	config  repository.Config
	address string
	now     atomic.Pointer[repository.Server]
}

func serveStored(t *testing.T, kind engine.Kind, models ...string) *stored {
	t.Helper()
	at := listen(t, "tcp", "127.0.0.1:0")
	s := &stored{log: new(log), address: at.Addr().String(), config: repository.Config{Kind: kind, Models: map[string]repository.Model{}}}
	for _, name := range models {
		s.config.Models[name] = repository.Model{Load: 10 * time.Millisecond, Unload: 10 * time.Millisecond}
	}
	s.config.Events = llm.NewEvents(s.log, s.address)
	s.anew()
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.now.Load().Handler().ServeHTTP(w, r) }),
	}
	go func() { _ = server.Serve(at) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

// anew replaces the engine by a new one without any loaded models.
func (s *stored) anew() { s.now.Store(repository.New(s.config)) }

func (s *stored) models() []string      { return s.now.Load().Models() }
func (s *stored) asked(call string) int { return s.now.Load().Asked(call) }

// serveKind serves a simulated engine of this kind with these models. It returns the engine, its
// log and its address.
func serveKind(t *testing.T, kind engine.Kind, models ...string) (*repository.Server, *log, string) {
	t.Helper()
	at, events, c := listen(t, "tcp", "127.0.0.1:0"), new(log), repository.Config{Kind: kind, Models: map[string]repository.Model{}}
	for _, name := range models {
		c.Models[name] = repository.Model{Load: 10 * time.Millisecond}
	}
	c.Events = llm.NewEvents(events, at.Addr().String())
	s := repository.New(c)
	serve(t, func(ctx context.Context) error { return repository.Serve(ctx, s, at) })
	return s, events, at.Addr().String()
}

// A TensorFlow Serving engine keeps its models when control restarts, although each change sends
// the whole list of models, and control cannot read that list from the engine. The test fails if
// the record is not written, not read, or read without sources.
func TestTFServingKeepsItsModelsAfterARestart(t *testing.T) {
	w := newWorld(t)
	e, events, at := serveKind(t, engine.TFServing, "a", "b", "c", "deleted")
	objects := []string{
		settings("maxModels: 4, source: '/models/{id}'"), list(at, ofKind(engine.TFServing)), object("a", ""),
		object("b", ", source: /other/b"), object("c", ""),
	}
	w.set(append(objects, object("deleted", ""))...)
	w.await("it is looked at", w.board.isReady)
	for _, id := range []string{"a", "b", "deleted"} {
		w.Ensure(key(id), time.Now())
		w.awaitCopies(id, at+" loaded")
	}
	w.stop()
	w.world = w.build(objects...)
	w.start()
	w.SetWorld(w.world)
	w.await("it is looked at", w.board.isReady)
	w.Ensure(key("c"), time.Now())
	w.awaitCopies("c", at+" loaded")
	w.awaitCopies("a", at+" loaded")
	w.awaitCopies("b", at+" loaded")
	w.await("what was deleted meanwhile leaves", func() bool { return slices.Equal(e.Models(), []string{"a", "b", "c"}) })
	for _, id := range []string{"a", "b", "c"} {
		if n := events.count("load " + id); n != 1 {
			t.Errorf("%s was loaded %d times", id, n)
		}
		if n := events.count("unload " + id); n != 0 {
			t.Errorf("%s was unloaded %d times", id, n)
		}
	}
}

// Requested models are registered at TorchServe's management port with the source of the Model, as
// long as there is room.
func TestTorchServeLoadsModels(t *testing.T) {
	w := newWorld(t)
	e, _, at := serveKind(t, engine.TorchServe, "a", "b")
	w.set(settings("maxModels: 1, source: '{id}.mar'"),
		list(at, ofKind(engine.TorchServe)+", management: 'port:"+at[strings.LastIndex(at, ":")+1:]+"'"), object("a", ""), object("b", ""),
		object("nope", ""))
	w.await("it is looked at", w.board.isReady)
	for i, id := range []string{"a", "b"} {
		w.Ensure(key(id), time.Now().Add(time.Duration(i)*time.Second))
		w.awaitCopies(id, at+" loaded")
		w.await("it has that one alone", func() bool { return slices.Equal(e.Models(), []string{id}) })
	}
	w.Ensure(key("nope"), time.Now().Add(2*time.Second))
	w.await("nope has failed", func() bool { st, _ := w.Status(key("nope")); return len(st.Failures) > 0 })
	if st, _ := w.Status(key("nope")); st.Failures[0].Why != decide.FilesMissing ||
		!strings.Contains(st.Failures[0].Message, "Model not found at: nope.mar") {
		t.Errorf("nope: %+v", st.Failures)
	}
}

func ofKind(kind engine.Kind) string { return ", engine: " + string(kind) }

// An engine with a model repository loads requested models within the room in the pool's settings,
// and other models are evicted for them. The test fails if the capacity is ignored, or if the size
// of a model comes from neither its Model nor the settings.
func TestRepositoryLoadsModelsWithinItsRoom(t *testing.T) {
	for _, kind := range []engine.Kind{engine.MLServer, engine.Triton} {
		w := newWorld(t)
		e := serveStored(t, kind, "a", "b", "c", "large", "small")
		w.set(settings("capacity: 10M, defaultSize: 4M"), list(e.address, ofKind(kind)), object("a", ""), object("b", ""), object("c", ""),
			object("large", ", size: 20M"), object("small", ", key: '{\"disk_size_bytes\": 800000}'"))
		w.await("it is looked at", w.board.isReady)
		for _, id := range []string{"a", "b"} {
			w.Ensure(key(id), time.Now())
			w.awaitCopies(id, e.address+" loaded")
		}
		w.Ensure(key("c"), time.Now().Add(time.Second)) // used later than a and b
		w.awaitCopies("c", e.address+" loaded")
		if got := len(e.models()); got != 2 {
			t.Errorf("%s has %v, and room for two", kind, e.models())
		}
		w.Ensure(key("small"), time.Now())
		w.awaitCopies("small", e.address+" loaded")
		w.Ensure(key("large"), time.Now())
		w.await("large has no room", func() bool { st, _ := w.Status(key("large")); return st.Why == decide.TooLarge })
		st, _ := w.Status(key("small"))
		if st.Bytes != 1_000_000 || st.Sized != decide.HintedSize {
			t.Errorf("%s: small takes %d bytes, by %v", kind, st.Bytes, st.Sized)
		}
		if n := e.count("load large"); n > 0 {
			t.Errorf("%s was told to load what has no room", kind)
		}
	}
}

// The settings may give the room as a number of models. If they give neither a capacity nor a
// number, the room is one model.
func TestRepositoryRoomAsANumberOfModels(t *testing.T) {
	for placement, want := range map[string]int{"source: x": 1, "maxModels: 2": 2, "capacity: 1Gi": 3} {
		w := newWorld(t)
		e := serveStored(t, engine.Triton, "a", "b", "c")
		w.set(settings(placement), list(e.address, ofKind(engine.Triton)), object("a", ""), object("b", ""), object("c", ""))
		w.await("it is looked at", w.board.isReady)
		for i, id := range []string{"a", "b", "c"} {
			w.Ensure(key(id), time.Now().Add(time.Duration(i)*time.Second))
			w.awaitCopies(id, e.address+" loaded")
		}
		if got := len(e.models()); got != want {
			t.Errorf("with %s it has %v, want %d", placement, e.models(), want)
		}
	}
}

// A changed capacity takes effect at once.
func TestRepositoryRoomCanChange(t *testing.T) {
	w := newWorld(t)
	e := serveStored(t, engine.Triton, "a", "b")
	objects := []string{list(e.address, ofKind(engine.Triton)), object("a", ", copies: {min: 1}"), object("b", ", copies: {min: 1}")}
	w.set(append(objects, settings("maxModels: 1"))...)
	w.await("one has room", func() bool { return len(e.models()) == 1 })
	w.set(append(objects, settings("maxModels: 2"))...)
	w.await("both have", func() bool { return len(e.models()) == 2 })
}

// If an engine restarts between two scrapes, it loses all models, and the next scrape finds out.
// Models without another copy are loaded there again.
func TestRestartedRepositoryGetsItsModels(t *testing.T) {
	for _, kind := range []engine.Kind{engine.MLServer, engine.Triton} {
		// The long tick interval ensures that no model is loaded only to fill free room.
		w := &world{T: t, file: filepath.Join(t.TempDir(), "control.db"), tick: time.Hour}
		w.start()
		t.Cleanup(func() { w.stop() })
		e := serveStored(t, kind, "a", "b")
		w.set(settings("maxModels: 4"), list(e.address, ofKind(kind)), object("a", ""), object("b", ""))
		w.await("it is looked at", w.board.isReady)
		for _, id := range []string{"a", "b"} {
			w.Ensure(key(id), time.Now())
			w.awaitCopies(id, e.address+" loaded")
		}
		time.Sleep(100 * time.Millisecond) // long enough for five scrapes
		e.anew()
		w.await("it has both again", func() bool { return slices.Equal(e.models(), []string{"a", "b"}) })
		for _, id := range []string{"a", "b"} {
			w.awaitCopies(id, e.address+" loaded")
		}
	}
}

// If a request finds a model missing, control reads the engine's index at once. Other scrapes skip
// the index for minutes.
func TestMissingModelCausesAnIndexRead(t *testing.T) {
	w := newWorld(t)
	e := serveStored(t, engine.MLServer, "a", "b", "c", "d")
	w.set(settings("maxModels: 4"), list(e.address, ofKind(engine.MLServer)), object("a", ""), object("b", ""), object("c", ""),
		object("d", ""))
	w.await("it is looked at", w.board.isReady)
	for _, id := range []string{"a", "b", "c", "d"} {
		w.Ensure(key(id), time.Now())
		w.awaitCopies(id, e.address+" loaded")
	}
	w.await("it was looked at since", func() bool {
		before := e.asked("POST " + engine.IndexPath)
		time.Sleep(50 * time.Millisecond)
		return e.asked("POST "+engine.IndexPath) == before
	})
	before := e.asked("POST " + engine.IndexPath)
	w.Missing(decide.CopyKey{ModelKey: key("a"), Endpoint: e.address})
	w.await("the index is read", func() bool { return e.asked("POST "+engine.IndexPath) > before })
}

// Models that a client of ModelMesh registers belong to the only pool with model runtimes or, if
// there is none, to the only pool with model repositories.
func TestPoolOfRegisteredModels(t *testing.T) {
	w := newWorld(t)
	e := serveStored(t, engine.MLServer, "m")
	w.set(settings("capacity: 1Gi"), list(e.address, ofKind(engine.MLServer)))
	w.await("it is looked at", w.board.isReady)
	w.RegisteredPool.Name, w.RegisteredPool.Namespace = "", "" // no pool is configured
	if pool, err := w.Pool(); err != nil || pool != key("m").Pool {
		t.Errorf("they belong to %v, %v", pool, err)
	}
	api := modelmesh.New(w.Placer)
	st, err := api.RegisterModel(t.Context(), &mmesh.RegisterModelRequest{
		ModelId: "m", ModelInfo: &mmesh.ModelInfo{Type: "sklearn", Path: "ignored", Key: `{"disk_size_bytes": 4000}`}, LoadNow: true,
		Sync: true,
	})
	if err != nil || st.GetStatus() != mmesh.ModelStatusInfo_LOADED || !slices.Equal(e.models(), []string{"m"}) {
		t.Errorf("%v, %v; the engine has %v", st, err, e.models())
	}
	if st, _ := w.Status(key("m")); st.Bytes != 5000 {
		t.Errorf("it takes %d bytes", st.Bytes)
	}
	st, err = api.RegisterModel(t.Context(), &mmesh.RegisterModelRequest{
		ModelId: "nope", ModelInfo: &mmesh.ModelInfo{Type: "sklearn"},
		LoadNow: true, Sync: true,
	})
	if err != nil || st.GetStatus() != mmesh.ModelStatusInfo_LOADING_FAILED ||
		!strings.Contains(strings.Join(st.GetErrors(), " "), "Model nope not found") {
		t.Errorf("one that the repository has not: %v, %v", st, err)
	}
	r := serveRuntime(t, "", nil)
	other := "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: r}\nspec: {selector: {matchLabels: {app: r}}, targetPorts: [{number: 8000}]}\n"
	w.set(settings("capacity: 1Gi"), list(e.address, ofKind(engine.MLServer)), other,
		strings.Replace(list(r.address, managed(r.management)), "app: p", "app: r", 1))
	if pool, err := w.Pool(); err != nil || pool.Name != "r" {
		t.Errorf("beside model runtimes they belong to %v, %v", pool, err)
	}
}
