package place_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

func (w *world) drainer() place.Drainer { return place.Drainer{Placer: w.Placer} }

// drainOf returns the progress of a drain.
func (w *world) drainOf(endpoint string) place.Drain {
	w.Helper()
	d, err := w.drainer().Progress(endpoint)
	if err != nil {
		w.Error(err)
	}
	return d
}

// endpointOf returns the endpoint in a view.
func (w *world) endpointOf(address string) decide.EndpointView {
	all := w.View().Endpoints
	return all[slices.IndexFunc(all, func(e decide.EndpointView) bool { return e.Address == address })]
}

// A drained endpoint stays drained when control restarts, and gets no models until it is put back.
func TestDrainedEndpointGetsNoModels(t *testing.T) {
	w := newWorld(t)
	ends, stays := serveVLLM(t), serveVLLM(t)
	all := []string{settings("maxAdapters: 4, source: 'sim:'"), list(ends.address, ""), object("a", ""), object("b", "")}
	w.set(all...)
	w.Wanted("x", key("a"), decide.Want{Requests: 1, Since: time.Now()})
	w.awaitCopies("a", ends.address+" loaded")
	w.Wanted("x", key("a"), decide.Want{})
	all = append(all, list(stays.address, ""))
	w.set(all...)
	if d := w.drainOf(ends.address); d.Drained || d.Done {
		t.Errorf("before it is %+v", d)
	}
	for range 2 { // a repeated call changes nothing
		if err := w.drainer().Drain(ends.address, time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if e := w.endpointOf(ends.address); !e.Drained || e.State == decide.Ready {
		t.Errorf("status shows %+v", e)
	}
	w.await("a is elsewhere", func() bool { return w.drainOf(ends.address).Done })
	if d := w.drainOf(ends.address); d.Moved != 1 || len(d.Unmoved) > 0 || !strings.Contains(w.copies("a"), stays.address+" loaded") {
		t.Errorf("it is %+v, and a is at %s", d, w.copies("a"))
	}
	w.restart()
	w.await("the engines are scraped", func() bool { return w.endpointOf(stays.address).State == decide.Ready })
	if d := w.drainOf(ends.address); !d.Drained {
		t.Errorf("after a restart it is %+v", d)
	}
	w.Wanted("x", key("b"), decide.Want{Requests: 1, Since: time.Now()})
	w.awaitCopies("b", stays.address+" loaded")
	w.Wanted("x", key("b"), decide.Want{})
	for range 2 {
		if err := w.drainer().Undo(ends.address); err != nil {
			t.Fatal(err)
		}
	}
	if d := w.drainOf(ends.address); d.Drained || d.Done || w.endpointOf(ends.address).Drained {
		t.Errorf("put back it is %+v", d)
	}
	w.set(append(all, object("c", ", copies: {min: 2}"))...)
	w.await("both get c", func() bool { return strings.Count(w.copies("c"), "loaded") == 2 })
	w.restart()
	if d := w.drainOf(ends.address); d.Drained {
		t.Errorf("after another restart it is %+v", d)
	}
}

// The drain of an endpoint ends when the objects lack it.
func TestDrainEndsWithItsEndpoint(t *testing.T) {
	w := newWorld(t)
	e, other := serveVLLM(t), serveVLLM(t)
	source := settings("maxAdapters: 4, source: 'sim:'")
	w.set(source, list(e.address, ""), list(other.address, ""))
	if err := w.drainer().Drain(e.address, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	w.set(source, list(other.address, ""))
	for _, err := range []error{w.drainer().Drain(e.address, time.Now()), w.drainer().Undo(e.address)} {
		if !place.ErrUnknownEndpoint(err) || !strings.Contains(err.Error(), "there is no endpoint "+e.address+"; there is "+other.address) {
			t.Errorf("%v", err)
		}
	}
	w.set(source, list(e.address, ""), list(other.address, ""))
	if d := w.drainOf(e.address); d.Drained {
		t.Errorf("back in the objects it is %+v", d)
	}
	if err := w.drainer().Drain(e.address, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	w.world = w.build(source, list(e.address, ""), list(other.address, ""))
	is := slices.IndexFunc(w.world.Engines, func(is objects.Engine) bool { return is.Address == e.address })
	w.world.Engines[is].Terminating = true
	w.SetWorld(w.world)
	if d := w.drainOf(e.address); !d.Drained {
		t.Errorf("while its pod is being deleted it is %+v", d)
	}
	w.set(source, list(e.address, ""), list(other.address, ""))
	if d := w.drainOf(e.address); d.Drained {
		t.Errorf("when another pod has its address it is %+v", d)
	}
	if err := w.drainer().Drain(e.address, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.world = w.build(source, list(other.address, "")) // the endpoint goes while control is down
	w.start()
	w.SetWorld(w.world)
	for _, again := range []func(){func() {}, w.restart} { // neither memory nor the state file has the drain
		again()
		w.set(source, list(e.address, ""), list(other.address, ""))
		if d := w.drainOf(e.address); d.Drained {
			t.Errorf("back after a restart it is %+v", d)
		}
	}
}
