package endpointstate_test

import (
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
)

func TestModelsAreCandidatesWhereTheyAreListed(t *testing.T) {
	s := started()
	s.list(b, engine.Models{Base: []string{"llama"}})
	p := s.pool()
	if len(p.Copies["sql"]) != 1 || len(p.Copies["llama"]) != 2 || len(p.Copies["alias"]) != 1 || len(p.Base) != 2 ||
		p.Copies["none"] != nil {
		t.Errorf("copies are %+v, base %+v", p.Copies, p.Base)
	}
	s.list("10.9.9.9:1", engine.Models{}) // an endpoint removed before its list arrives: nothing happens
}

// SGLang serves the base model for a bare adapter name, so the request names base:adapter. The
// engine kind may be known only from metrics, which are read after the list.
func TestSGLangsAdaptersAreNamedAfterTheirBase(t *testing.T) {
	s := started()
	s.see(a, engine.Load{Kind: engine.SGLang})
	s.see(b, engine.Load{Kind: engine.VLLM})
	snapshot := s.view().Snapshot
	for address, want := range map[string]string{a: "llama:sql", b: "sql"} {
		picks, err := pick.Pick(pick.Policy{Threshold: 4}, snapshot,
			pick.Request{Pool: thePool.String(), Model: "sql", Only: pick.ParseSubset([]string{address})}, make([]pick.Decision, 1))
		if err != nil || picks[0].Model != want {
			t.Errorf("%s is asked for %q, %v, want %q", address, picks[0].Model, err, want)
		}
	}
	for _, c := range snapshot.Pools[thePool.String()].Copies["sql"] {
		if c.Model != "sql" {
			t.Errorf("the model of a copy is %q", c.Model)
		}
	}
}

func TestControlTakesPrecedenceOverLists(t *testing.T) {
	s := started() // both engines list sql and chat
	s.expectWhere(t, "before control reports", "sql", a, b)
	s.advance(time.Second)
	s.place(endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a),
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{
			copyOf("chat", a): endpointstate.Loaded,
			copyOf("new", a):  endpointstate.Loaded,
		},
	})
	s.expectWhere(t, "control does not report it at a", "sql", b)
	s.expectWhere(t, "control reports it", "chat", a, b)
	s.expectWhere(t, "control reports it before the list", "new", a)
	s.expectWhere(t, "base models come from the list", "llama", a, b)

	s.report("chat", endpointstate.Unloading)
	s.expectWhere(t, "it is being unloaded", "chat", b)
	s.place(endpointstate.PlacementUpdate{All: true, Endpoints: governing()})
	s.expectWhere(t, "control manages no endpoint any more", "sql", a, b)
	s.expectWhere(t, "control manages no endpoint any more", "new")
}

// An engine that restarts loses its adapters. A list that is read after control's report shows it.
func TestVanishedCopyIsReportedOnce(t *testing.T) {
	s := started()
	early := s.scrape(a)
	s.advance(time.Second)
	s.place(endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a),
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("new", a): endpointstate.Loaded},
	})
	s.ModelsListed(early, engine.Models{Base: []string{"llama"}})
	s.expectWhere(t, "the scrape began before the report", "new", a)
	s.ModelMissing(copyOf("new", a), s.now, s.now) // ignored: the engine at a has a list
	s.advance(time.Second)
	for range 3 {
		s.list(a, engine.Models{Base: []string{"llama"}})
		s.pool()
	}
	s.expectWhere(t, "a later list does not have it", "new")
	if !s.TakeUrgent() {
		t.Error("the report that a copy is missing is not urgent")
	}
	if got := s.TakeMissing(); !slices.Equal(got, []endpointstate.CopyKey{copyOf("new", a)}) {
		t.Errorf("missing are %v", got)
	}
	s.advance(time.Second)
	s.report("new", endpointstate.Loaded)
	s.expectWhere(t, "control has loaded it again", "new", a)
}

// An endpoint without a list has the copies that control reports. It does not serve unknown models.
func TestEndpointWithoutAListHasReportedCopies(t *testing.T) {
	s := started()
	for _, address := range []string{a, b} {
		s.list(address, engine.Models{Unlisted: true})
	}
	s.place(endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a, b),
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("m", a): endpointstate.Loaded},
	})
	s.expectWhere(t, "no list", "m", a)
	p := s.pool()
	other, _ := p.Has("other")
	if m, _ := p.Has("m"); !p.Listed || other || !m {
		t.Errorf("listed %v, has other %v, has m %v", p.Listed, other, m)
	}
	s.advance(time.Second)
	s.ModelMissing(copyOf("m", a), s.now, s.now)
	s.ModelMissing(copyOf("m", a), s.now, s.now)
	s.expectWhere(t, "after a request found it missing", "m")
	missing := func(when string, want ...endpointstate.CopyKey) {
		t.Helper()
		if got := s.TakeMissing(); !slices.Equal(got, want) {
			t.Errorf("%s missing are %v, want %v", when, got, want)
		}
	}
	missing("once", copyOf("m", a))
	reload := func() {
		s.report("m", endpointstate.Gone)
		s.advance(time.Second)
		s.report("m", endpointstate.Loaded)
		s.expectWhere(t, "control has loaded it again", "m", a)
	}
	before := s.now
	s.ModelMissing(copyOf("m", a), before, s.now)
	missing("before control answers")
	reload()
	s.ModelMissing(copyOf("m", a), before, s.now)
	missing("after a request that began before the load")
	// An engine may lose the model several times.
	for range 3 {
		s.advance(time.Second)
		s.ModelMissing(copyOf("m", a), s.now, s.now)
		s.expectWhere(t, "it is lost again", "m")
		missing("again", copyOf("m", a))
		reload()
	}
	// A 404 for a second attempt at a copy that was loaded earlier may be the engine's answer.
	s.advance(time.Second)
	s.OwnNotFound(copyOf("m", a), s.now, s.now)
	s.expectWhere(t, "it is lost before the second attempt", "m")
	missing("after a second attempt", copyOf("m", a))
	before = s.now
	reload()
	// A 404 just after the model was loaded for the request is taken for the model's own answer:
	// for 10 s at first, then for twice as long each time.
	reloads := func() bool {
		copies := s.pool().Copies["m"]
		return len(copies) == 1 && copies[0].Unlisted && copies[0].Own <= s.now.UnixNano()
	}
	for _, wait := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		wait *= time.Second
		if !reloads() {
			t.Errorf("before %v: a 404 counts as the model's own answer for too long", wait)
		}
		s.OwnNotFound(copyOf("m", a), before, s.now)
		s.advance(wait - time.Second)
		s.OwnNotFound(copyOf("m", a), before, s.now) // the answer to a concurrent request
		s.ModelMissing(copyOf("m", a), s.now, s.now)
		if missing("while a 404 counts as the model's own answer"); reloads() {
			t.Errorf("a 404 counts as the model's own answer for less than %v", wait)
		}
		s.advance(time.Second)
	}
	s.ModelMissing(copyOf("m", a), s.now, s.now)
	s.expectWhere(t, "much later it is missing", "m")
	missing("much later", copyOf("m", a))
	// After a reconnect control repeats its earlier reports. That does not mean that a model was
	// reloaded.
	s.place(endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a, b),
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("m", a): endpointstate.Loaded},
	})
	s.expectWhere(t, "before control knows", "m")
}

// An engine without a list that has ended has no models after it restarts, until control reports
// some.
func TestEndedEngineHasNoModels(t *testing.T) {
	s := started()
	s.list(a, engine.Models{Unlisted: true})
	s.list(b, engine.Models{Base: []string{"llama"}, Adapters: []string{"m"}})
	s.place(endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a, b),
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{
			copyOf("m", a): endpointstate.Loaded, copyOf("m", b): endpointstate.Loaded, copyOf("n", a): endpointstate.Loading,
		},
	})
	s.expectWhere(t, "before", "m", a, b)
	s.ProcessEnded(a, s.now)
	s.ProcessEnded(b, s.now) // b's list will show its models
	s.expectWhere(t, "after the end", "m", b)
	if got := s.TakeMissing(); !slices.Equal(got, []endpointstate.CopyKey{copyOf("m", a)}) {
		t.Errorf("missing are %v", got)
	}
	s.report("n", endpointstate.Loaded)
	s.expectWhere(t, "a load has ended since", "n", a)
	s.report("m", endpointstate.Loaded)
	s.expectWhere(t, "control has loaded it again", "m", a, b)
}

// A view keeps the methods that were current when it was made. It has no entry for an engine that
// accepts all methods. A new control replaces all methods.
func TestViewsHaveMethods(t *testing.T) {
	s := started()
	s.place(endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a, b),
		Methods: map[string]engine.Methods{a: "a.S/One 1", b: "a.S/One 1"},
	})
	before := s.view()
	s.place(endpointstate.PlacementUpdate{Methods: map[string]engine.Methods{a: "a.S/Two 1", b: ""}})
	if before.Methods[a] != "a.S/One 1" || before.Methods[b] != "a.S/One 1" {
		t.Errorf("the view from before has %v", before.Methods)
	}
	if now := s.view().Methods; len(now) != 1 || now[a] != "a.S/Two 1" {
		t.Errorf("the next view has %v", now)
	}
	s.place(endpointstate.PlacementUpdate{All: true, Endpoints: governing(a, b)})
	if now := s.view().Methods; len(now) != 0 {
		t.Errorf("with a control that reports no methods, the view has %v", now)
	}
}

// An answer that the model is missing changes nothing at an endpoint that control does not manage,
// or that has a list.
func TestMissingModelIsIgnored(t *testing.T) {
	s := started() // both engines have lists
	s.place(endpointstate.PlacementUpdate{
		All: true, Endpoints: governing(a),
		Copies: map[endpointstate.CopyKey]endpointstate.CopyState{copyOf("sql", a): endpointstate.Loaded},
	})
	s.list(b, engine.Models{Unlisted: true})
	for _, address := range []string{a, b, "10.9.9.9:8000"} {
		s.ModelMissing(copyOf("sql", address), s.now, s.now)
		s.OwnNotFound(copyOf("sql", address), s.now, s.now)
	}
	if got := s.TakeMissing(); len(got) > 0 {
		t.Errorf("missing are %v", got)
	}
}
