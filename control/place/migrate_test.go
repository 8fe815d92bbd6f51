package place_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// migrating sets a World in which the pod of the endpoint is being deleted and migrates. It returns
// the name of the pod.
func (w *world) migrating(address string, all ...string) (pod objects.Name) {
	w.Helper()
	w.world = w.build(all...)
	i := slices.IndexFunc(w.world.Engines, func(e objects.Engine) bool { return e.Address == address })
	e := &w.world.Engines[i]
	e.Listed, e.Terminating, e.Migrates = false, true, time.Now().Add(time.Minute)
	w.SetWorld(w.world)
	return e.Pod
}

// If a new pod gets the address of a deleted pod before the objects are read again, the old pod's
// models are no longer believed to be there, until a scrape finds them.
func TestNewPodWithAnOldAddressHasNoModels(t *testing.T) {
	w := newWorld(t)
	e := serveVLLM(t)
	all := []string{settings("maxAdapters: 4, source: 'sim:'"), list(e.address, ""), object("a", ", copies: {min: 1}")}
	w.set(all...)
	w.awaitCopies("a", e.address+" loaded")
	w.migrating(e.address, all...)
	w.set(all...)
	w.board.mu.Lock()
	gone := slices.Clone(w.board.gone)
	w.board.mu.Unlock()
	if want := []decide.CopyKey{{ModelKey: key("a"), Endpoint: e.address}}; !slices.Equal(gone, want) {
		t.Errorf("extprocs are told that %v are gone, want %v", gone, want)
	}
	w.awaitCopies("a", e.address+" loaded") // the engine lists the model
}

// The models of a pod that is about to end are first loaded elsewhere, even if another control
// process takes over during the migration. Nothing is unloaded at the pod.
func TestMigrationLoadsModelsElsewhere(t *testing.T) {
	w := newWorld(t)
	ends, stays := serveVLLM(t), serveVLLMThat(t, 200*time.Millisecond, 0)
	all := []string{
		settings("maxAdapters: 4, source: 'sim:'"), list(ends.address, ""), object("a", ""), object("b", ""),
		object("c", ", copies: {min: 1}"),
	}
	w.set(all...)
	for _, id := range []string{"a", "b"} {
		w.Wanted("x", key(id), decide.Want{Requests: 1, Since: time.Now()})
		w.awaitCopies(id, ends.address+" loaded")
		w.Wanted("x", key(id), decide.Want{})
	}
	w.awaitCopies("c", ends.address+" loaded")
	pod := w.migrating(ends.address, append(all, list(stays.address, ""))...)
	if is := w.Migration(pod); is.Over() || !is.Migrates || !strings.Contains(is.Words[0], "on their way") {
		t.Errorf("at first it is %+v", is)
	}
	w.await("the first is there", func() bool { return stays.count("load a")+stays.count("load b") > 0 })
	w.restart()
	w.await("all are", func() bool { return w.Migration(pod).Over() && strings.Contains(w.copies("c"), stays.address) })
	for _, id := range []string{"a", "b"} {
		if at := w.copies(id); !strings.Contains(at, ends.address+" loaded") || !strings.Contains(at, stays.address+" loaded") {
			t.Errorf("%s is at %s", id, at)
		}
	}
	if events := ends.events(); slices.ContainsFunc(events, func(e string) bool { return strings.Contains(e, "unload") }) {
		t.Errorf("the engine that ends was told %v", events)
	}
	is := w.Migration(pod)
	if len(is.Words) != 1 || !strings.HasPrefix(is.Words[0], ends.address+": 2 models moved, 1 let go") {
		t.Errorf("it is said %q", is.Words)
	}
	if other := w.Migration(objects.Name{Namespace: "default", Name: "other"}); other.Selected {
		t.Errorf("a pod that is not there is %+v", other)
	}
	if listed := w.Migration(objects.Name{Namespace: "default", Name: "at-" +
		strings.NewReplacer(".", "-", ":", "-").Replace(stays.address)}); listed.Selected {
		t.Errorf("a list with the name of a pod is %+v", listed)
	}
}

// The migration of a pod with several engines ends when the migrations of all its engines have
// ended.
func TestMigrationEndsWithAllEngines(t *testing.T) {
	w := newWorld(t)
	has, none, stays := serveVLLM(t), serveVLLM(t), serveVLLMThat(t, time.Second, 0)
	if has.address > none.address { // so that the endpoint whose migration ends at once is last
		has, none = none, has
	}
	all := []string{settings("maxAdapters: 4, source: 'sim:'"), list(has.address, ""), object("a", "")}
	w.set(all...)
	w.Wanted("x", key("a"), decide.Want{Requests: 1, Since: time.Now()})
	w.awaitCopies("a", has.address+" loaded")
	w.Wanted("x", key("a"), decide.Want{})
	w.world = w.build(append(all, list(none.address, ""), list(stays.address, ""))...)
	pod := objects.Name{Namespace: "default", Name: "two"}
	for i := range w.world.Engines {
		if e := &w.world.Engines[i]; e.Address != stays.address {
			e.Pod, e.Listed, e.Terminating, e.Migrates = pod, false, true, time.Now().Add(time.Minute)
		}
	}
	w.SetWorld(w.world)
	w.await("one is done", func() bool { return slices.Contains(w.Migration(pod).Words, none.address+": 0 models moved") })
	if is := w.Migration(pod); is.Over() || len(is.Words) != 2 {
		t.Errorf("at first it is %+v", is)
	}
	w.await("both are", func() bool { return w.Migration(pod).Over() })
	if words := w.Migration(pod).Words; !slices.Contains(words, has.address+": 1 models moved") {
		t.Errorf("it is said %q", words)
	}
	w.awaitLogged(`"the models of the leaving endpoint have been moved" endpoint=` + has.address + " moved=1 idle=0")
}

// The migration of a pod without models begins and ends at once. Its end is logged like any other.
func TestMigrationWithoutModelsEndsAtOnce(t *testing.T) {
	w := newWorld(t)
	ends := serveVLLM(t)
	all := []string{settings("maxAdapters: 4, source: 'sim:'"), list(ends.address, "")}
	w.set(all...)
	w.await("it is known what the engine has", func() bool { return w.View().Endpoints[0].State == decide.Ready })
	if is := w.Migration(w.migrating(ends.address, all...)); !is.Over() || !is.Migrates {
		t.Errorf("it is %+v", is)
	}
	w.awaitLogged(`"the models of the leaving endpoint have been moved" endpoint=` + ends.address + " moved=0 idle=0")
}

// Models that could not be moved are reported.
func TestUnmovedModelsAreReported(t *testing.T) {
	w := newWorld(t)
	ends := serveVLLM(t)
	all := []string{settings("maxAdapters: 4, source: 'sim:'"), list(ends.address, ""), object("a", "")}
	w.set(all...)
	w.Wanted("x", key("a"), decide.Want{Requests: 1, Since: time.Now()})
	w.awaitCopies("a", ends.address+" loaded")
	w.Wanted("x", key("a"), decide.Want{})
	pod := w.migrating(ends.address, all...)
	w.await("it is over", func() bool { return w.Migration(pod).Over() })
	if is := w.Migration(pod); !strings.Contains(is.Words[0],
		"0 models moved, 1 not moved: a has 0 of 1 copies elsewhere, for control reaches no endpoint") {
		t.Errorf("it is said %q", is.Words)
	}
}
