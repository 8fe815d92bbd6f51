package decide_test

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/leak"
)

var histories = flag.Uint64("histories", 40, "how many random histories to run through, with engines of each kind")

var decisions = flag.String("decisions", "", "a file for every decision of the random histories, to compare two versions")

// world simulates what is outside the State: engines that carry out actions or fail. It does not
// use the State's own bookkeeping, so that the invariants can be checked against it after each
// step.
type world struct {
	t       *testing.T
	s       *decide.State
	rng     *rand.Rand
	now     time.Time
	engines map[string]*simulatedEngine
	pending []pending // calls that engines have not answered yet
	models  map[string]*simulatedModel
	scrapes map[string]decide.ScrapeResult // scrapes in progress
	givenUp map[decide.CopyKey]bool        // loads abandoned because the engine was about to end
	// denied are copies that engines still have although they answered that they lack them. Such a
	// copy may be loaded again.
	denied map[decide.CopyKey]bool
	// only are the endpoints where models of type t may be loaded; nil allows all. rehoused: such
	// a model left an endpoint where it was not allowed any more.
	only     map[string]bool
	rehoused bool
	// vmodels are the VModels after the last decision.
	vmodels map[decide.Key]decide.VModelStatus
	paused  bool
	// migrated: at least one model moved away from a migrating endpoint.
	migrated bool
	// passed: at least one trial passed. failed: at least one load failed at an endpoint on trial.
	passed, failed bool
	// spread: at least one adapter moved to an endpoint with free GPU slots.
	spread bool
	// removes: endpoints are removed and added again. removed is the endpoint that is removed now;
	// empty if none is.
	removes bool
	removed string
	ending  bool // all objects are being removed
	// short: requests are short, loads take seconds, and unloads take no time.
	short bool
	// reached are the rules for brief requests and fast unloads that were applied.
	reached decide.Reached
	step    int
	trace   []string
	// record receives every decision and every published change; it may be nil. published is what
	// followers have received.
	record    io.Writer
	published map[any]any
}

type simulatedEngine struct {
	life  int  // number of restarts so far
	lists bool // the engine lists its models
	lives bool // the engine reports an incarnation
	slots int
	full  int // original number of slots
	bytes int64
	loads int
	// overlap is the maximum number of concurrent loads if some of them are slow.
	overlap int
	// seenSlots and seenBytes are the capacity at the last scrape; the capacity may have shrunk
	// since.
	seenSlots int
	seenBytes int64
	gpu       int             // number of adapter slots
	has       map[string]bool // ids of loaded and loading models
	dead      bool
	anew      bool // the next scrape must make the runtime ready again
	// terminating: the engine's pod is being deleted. stopped is when the engine reported that it
	// is stopping.
	terminating bool
	stopped     time.Time
	pod         decide.Pod
}

// leaving reports whether the engine is known to be about to end.
func (w *world) leaving(e *simulatedEngine) bool {
	return e.terminating || w.now.Sub(e.stopped) < decide.StoppingFor
}

type simulatedModel struct {
	objects.Entry
	wanted bool
	size   int64
	// late: no engine can tell the model's size before it has loaded the model.
	late bool
}

// leastSlow is the shortest time after which a load may be treated as slow.
const leastSlow = 10 * time.Second / 3

// unsized is the assumed size of a model of unknown size.
const unsized = 50 << 20

// taken returns the size that the State may assume for a model: the size that an engine reported
// or, if none has, the default.
func (m *simulatedModel) taken() int64 {
	if m.late {
		return unsized
	}
	return m.size
}

type pending struct {
	decide.Action
	dead   bool // the engine was not reached, or has died since the call
	purged bool // the runtime was made ready again since the call
	quit   bool // the call was abandoned
	// overdue: the call is a load that ended without a clear answer; its model is being unloaded.
	overdue bool
	began   time.Time
}

func (w *world) logf(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%d: ", w.step)+fmt.Sprintf(format, args...))
}

func (w *world) fatalf(format string, args ...any) {
	w.t.Helper()
	for _, line := range w.trace[max(0, len(w.trace)-400):] {
		w.t.Log(line)
	}
	w.t.Log(w.s)
	for address, e := range w.engines {
		w.t.Log(address, e.has)
	}
	w.t.Fatalf("step %d: "+format, append([]any{w.step}, args...)...)
}

// do checks that actions are allowed, and begins them.
func (w *world) do(todo []decide.Action) {
	for _, a := range todo {
		if w.record != nil {
			fmt.Fprintf(w.record, "%d: %s %s at %s for %s within %v, waited %v, stalled %v\n", w.step, a.Kind, a.Model.ID, a.Endpoint,
				a.For, a.Timeout, a.Waited, a.Stalled)
		}
		if w.paused {
			w.fatalf("paused, and yet %s is to %s %s", a.Endpoint, a.Kind, a.Model.ID)
		}
		w.logf("%s %s at %s", a.Kind, a.Model.ID, a.Endpoint)
		w.spread = w.spread || a.For == decide.ForSlots
		e := w.engines[a.Endpoint]
		if a.Endpoint == w.removed {
			w.fatalf("%s is removed, and is to %s %s", a.Endpoint, a.Kind, a.Model.ID)
		}
		if a.Kind == decide.Quit {
			w.quit(a.Endpoint)
			continue
		}
		if w.leaving(e) && a.Kind != decide.Cancel {
			w.fatalf("%s is about to end, and yet is to %s %s", a.Endpoint, a.Kind, a.Model.ID)
		}
		if e.dead { // the engine cannot be reached
			w.pending = append(w.pending, pending{Action: a, dead: true})
			continue
		}
		switch a.Kind {
		case decide.Load, decide.Reload:
			if a.Kind == decide.Load && (e.pod.Unready && a.For != decide.ForTrial || a.For == decide.ForTrial && !e.pod.OnTrial) {
				w.fatalf("%s is told to load %s for %s, and its pod is %+v", a.Endpoint, a.Model.ID, a.For, e.pod)
			}
			if a.Kind == decide.Load && w.misplaced(a.Model, a.Endpoint) {
				w.fatalf("%s is told to load %s, which may not be there", a.Endpoint, a.Model.ID)
			}
			at := decide.CopyKey{ModelKey: a.Model.ModelKey, Endpoint: a.Endpoint}
			if e.has[a.Model.ID] && a.Kind == decide.Load && !w.denied[at] {
				w.fatalf("%s is told to load %s, which it has", a.Endpoint, a.Model.ID)
			}
			e.has[a.Model.ID] = true
			delete(w.denied, at)
			delete(w.givenUp, at)
			loading, quick, bytes := 1, 1, int64(0)
			for _, p := range w.pending {
				if p.Kind <= decide.Reload && p.Kind >= decide.Load && p.Endpoint == a.Endpoint && !p.dead && !p.overdue {
					loading++
					if w.now.Sub(p.began) < leastSlow {
						quick++
					}
				}
			}
			for id := range e.has {
				bytes = plus(bytes, w.models[id].taken())
			}
			switch {
			case loading > max(e.loads, e.overlap), quick > e.loads:
				w.fatalf("%s loads %d at once, of %d, or of %d where some are slow; %d of them have just begun", a.Endpoint, loading,
					e.loads, e.overlap, quick)
			case e.slots > 0 && len(e.has) > e.seenSlots:
				w.fatalf("%s holds %d models in %d slots", a.Endpoint, len(e.has), e.seenSlots)
			case e.bytes > 0 && bytes > e.seenBytes:
				w.fatalf("%s holds %d bytes of %d", a.Endpoint, bytes, e.seenBytes)
			}
		case decide.Cancel:
			if w.misplaced(a.Model, a.Endpoint) { // it will be unloaded unless the endpoint is allowed again before
				w.givenUp[decide.CopyKey{ModelKey: a.Model.ModelKey, Endpoint: a.Endpoint}] = true
			}
		case decide.Unload:
			if w.misplaced(a.Model, a.Endpoint) {
				w.rehoused = true
				break
			}
			if m := w.models[a.Model.ID]; !w.ending && a.Timeout == 0 && m.Pinned && m.Max != 1 &&
				!w.givenUp[decide.CopyKey{ModelKey: m.ModelKey, Endpoint: a.Endpoint}] {
				w.fatalf("%s is pinned, and unloaded at %s", a.Model.ID, a.Endpoint)
			}
		}
		w.pending = append(w.pending, pending{Action: a, began: w.now})
	}
}

// misplaced reports whether a model may not be loaded at an endpoint.
func (w *world) misplaced(m objects.Entry, address string) bool {
	return m.Type == "t" && w.only != nil && !w.only[address]
}

// constrain restricts models of type t to one endpoint. With an empty address it removes the
// restriction.
func (w *world) constrain(address string) {
	fit := &decide.Fit{Preferred: map[string]bool{"e2": true}}
	w.only = nil
	if address != "" {
		w.only = map[string]bool{address: true}
		fit.Only = w.only
	}
	w.logf("models of type t are for %q", address)
	w.s.SetFits(pool, decide.Fits{Types: map[string]*decide.Fit{"t": fit}})
}

func (w *world) setPod(address string, to decide.Pod) {
	w.logf("the pod of %s is %+v", address, to)
	w.engines[address].pod = to
	w.s.SetPod(address, to)
}

// checkTrials fails if nothing is in progress and a trial has not ended.
func (w *world) checkTrials() {
	w.t.Helper()
	for _, address := range addresses {
		is, onTrial := w.s.Trial(address)
		if onTrial != w.engines[address].pod.OnTrial || onTrial && !is.Passed && !is.Failed {
			w.fatalf("all is quiet, and the trial of %s is %v, %+v", address, onTrial, is)
		}
		w.passed, w.failed = w.passed || is.Passed && is.Loaded > 0, w.failed || len(is.Failures) > 0
	}
}

// leaves records that an engine is about to end: its loads are abandoned, but may continue.
func (w *world) leaves(address string) {
	for _, p := range w.pending {
		if p.Endpoint == address && (p.Kind == decide.Load || p.Kind == decide.Reload) {
			w.givenUp[w.key(p)] = true
		}
	}
}

// quit abandons the calls to an engine. In this test, an abandoned load leaves nothing behind, and
// an abandoned unload is carried out.
func (w *world) quit(address string) {
	e := w.engines[address]
	if !w.leaving(e) {
		w.fatalf("%s stays, and what it was told is given up", address)
	}
	for i, p := range w.pending {
		if p.Endpoint == address && p.Kind != decide.Predict {
			w.pending[i].quit = true
			delete(e.has, p.Model.ID)
		}
	}
}

func (w *world) pause(paused bool) {
	w.paused = paused
	w.s.Pause(paused)
	w.logf("paused: %v", paused)
}

// decide calls Decide, begins its actions, and returns when to call it again.
func (w *world) decide() (wake time.Time) {
	todo, wake := w.s.Decide(w.now)
	w.do(todo)
	w.publish(wake)
	if err := w.s.Audit(!w.paused); err != nil {
		w.fatalf("%v", err)
	}
	for key, was := range w.vmodels {
		is, _ := w.s.VModel(key)
		if was.Active != is.Active && was.Needed > 0 && w.loaded(is.Active) == 0 {
			w.fatalf("%s went from %s to %s, which has no copy", key.ID, was.Active, is.Active)
		}
		w.vmodels[key] = is
	}
	w.reached = w.reached.Or(w.s.Reached())
	if !w.paused {
		w.checkNothingForgotten(wake)
	}
	return wake
}

// publish passes changes on to followers and records them.
func (w *world) publish(wake time.Time) {
	if w.record == nil {
		return
	}
	var news []string
	publish := func(key, is any) {
		if w.published[key] != is {
			w.published[key] = is
			news = append(news, fmt.Sprintf("%v is %+v", key, is))
		}
	}
	c := w.s.Changes()
	for key, is := range c.Copies {
		publish(key, is)
	}
	for key, why := range c.Failures {
		publish(key, why)
	}
	for key, is := range c.VModels {
		publish(key, is)
	}
	for address, is := range c.Leaving {
		publish(address, is)
	}
	for _, key := range c.Gone {
		news = append(news, fmt.Sprintf("%v is gone", key))
	}
	for _, key := range c.Unnamed {
		news = append(news, fmt.Sprintf("%v is unnamed", key))
	}
	if c.Endpoints != nil {
		publish("endpoints", fmt.Sprint(c.Endpoints))
	}
	if c.Trials {
		news = append(news, "trials changed")
	}
	slices.Sort(news)
	fmt.Fprintf(w.record, "%d: %s; until %v\n", w.step, strings.Join(news, "; "), wake)
}

// longestPause is the longest time that an eviction waits for a better victim.
const longestPause = 10 * time.Second

// checkNothingForgotten fails if a copy waits too long at an engine that has answered all calls.
func (w *world) checkNothingForgotten(wake time.Time) {
	w.t.Helper()
	if !wake.IsZero() && wake.Sub(w.now) <= longestPause {
		return
	}
	for _, c := range w.copies() {
		e := w.engines[c.Endpoint]
		switch {
		case c.State != decide.Queued, e.dead, e.anew, w.scrapes[c.Endpoint].Purged, w.leaving(e):
		case slices.ContainsFunc(w.pending, func(p pending) bool { return p.Endpoint == c.Endpoint }):
		case slices.ContainsFunc(w.copies(), func(o decide.Copy) bool { return o.Endpoint == c.Endpoint && o.State == decide.Draining }):
		default:
			w.fatalf("%s waits at %s, which has nothing to do, and it is asked again at %v", c.ID, c.Endpoint, wake)
		}
	}
}

// countInFlight sends short requests to all loaded copies, and lets all unloads end.
func (w *world) countInFlight() {
	for _, c := range w.copies() {
		if c.State == decide.Loaded {
			w.s.InFlight(c.CopyKey, 1, w.now)
			w.s.Used(c.ModelKey, decide.Use{Requests: w.rng.IntN(3), Last: w.now})
		}
	}
	w.now = w.now.Add(10 * time.Millisecond)
	for _, c := range w.copies() {
		w.s.InFlight(c.CopyKey, 0, w.now)
		if c.State == decide.Draining {
			w.do(w.s.Drained(c.CopyKey, w.now))
		}
	}
	for i, p := range slices.Backward(w.pending) {
		if p.Kind == decide.Unload {
			w.answer(i)
		}
	}
	w.s.Tick()
	w.decide()
}

// loaded counts the copies of a model. It includes copies that were loaded until a moment ago,
// since other copies may be waiting for their room.
func (w *world) loaded(id string) (n int) {
	st, _ := w.s.Status(key(id))
	for _, c := range st.Copies {
		if (c.State == decide.Loaded || c.State == decide.Draining) && !w.leaving(w.engines[c.Endpoint]) {
			n++
		}
	}
	return n
}

// move changes the target of a VModel.
func (w *world) move(target string) {
	v := decide.VModel{Key: key([]string{"v0", "v1"}[w.rng.IntN(2)]), Target: target}
	if w.rng.IntN(3) == 0 {
		v.Canary, v.Percent = fmt.Sprintf("m%02d", w.rng.IntN(len(w.models))), 10
	}
	w.s.SetVModel(v, decide.VModelProgress{}, false, w.now)
	w.vmodels[v.Key], _ = w.s.VModel(v.Key)
	w.logf("%s is to go to %s, and some to %q", v.ID, v.Target, v.Canary)
}

func (w *world) key(p pending) decide.CopyKey {
	return decide.CopyKey{ModelKey: p.Model.ModelKey, Endpoint: p.Endpoint}
}

// answer lets an engine answer the pending call i.
func (w *world) answer(i int) {
	p := w.pending[i]
	w.pending = slices.Delete(w.pending, i, i+1)
	e := w.engines[p.Endpoint]
	switch p.Kind {
	case decide.Predict:
		if m := w.models[p.Model.ID]; m.late {
			w.s.Predicted(w.key(p), 0)
		} else {
			w.s.Predicted(w.key(p), m.size)
		}
	case decide.Load, decide.Reload:
		r := decide.LoadResult{Bytes: w.models[p.Model.ID].size, Took: time.Duration(1+w.rng.IntN(4000)) * time.Millisecond}
		if w.short {
			r.Took += 3 * time.Second
		}
		switch {
		case p.quit:
			r = decide.LoadResult{Failed: true, Left: true, Message: "given up"}
		case p.purged && !e.dead:
			r = decide.LoadResult{Failed: true, Left: w.rng.IntN(2) == 0, Message: "made ready anew"}
		case p.dead || e.dead:
			r = decide.LoadResult{Failed: true, Unreached: true}
			if w.rng.IntN(2) == 0 { // the engine died before it answered, so it cannot be told to unload
				r = decide.LoadResult{Failed: true, Left: true, Message: "died"}
			}
		case p.overdue:
			r = decide.LoadResult{Failed: true, Message: "late"}
			delete(e.has, p.Model.ID)
		case w.rng.IntN(25) == 0:
			w.logf("load of %s at %s is overdue", p.Model.ID, p.Endpoint)
			p.overdue = true
			w.pending = append(w.pending, p)
			w.s.LoadFailing(w.key(p), "no answer", decide.LoadFailed, w.now)
			return
		case w.rng.IntN(20) == 0:
			r = decide.LoadResult{Failed: true, Message: "no", Why: []decide.Reason{"", decide.LoadRetried}[w.rng.IntN(2)]}
			delete(e.has, p.Model.ID)
		default:
			w.models[p.Model.ID].late = false
		}
		w.logf("load of %s at %s ends, failed %v", p.Model.ID, p.Endpoint, r.Failed)
		w.s.LoadEnded(w.key(p), r, w.now)
	case decide.Unload:
		if !p.dead {
			delete(e.has, p.Model.ID)
		}
		w.s.UnloadEnded(w.key(p), p.quit || p.dead, w.now)
	}
}

// scrape begins a scrape. If a scrape is in progress, it ends that scrape instead; the result is
// the engine's state at its beginning.
func (w *world) scrape(address string) {
	e := w.engines[address]
	if e.dead {
		delete(w.scrapes, address)
		w.s.Down(address)
		return
	}
	if l, begun := w.scrapes[address]; begun {
		delete(w.scrapes, address)
		w.logf("%s is seen with %v in %d slots or %d bytes, as of %v ago", address, l.Listed, l.Slots, l.Bytes, w.now.Sub(l.Began))
		e.seenSlots, e.seenBytes = l.Slots, l.Bytes
		w.s.Scraped(l, w.now)
		if l.Purged && !e.stopped.After(l.Began) { // a later report is from the new incarnation
			e.stopped = time.Time{}
		}
		return
	}
	l := decide.ScrapeResult{Began: w.now, Endpoint: decide.Endpoint{
		Address: address, CanLoad: true, Lists: e.lists, CanPredict: e.bytes > 0, Slots: e.slots, Bytes: e.bytes, DefaultBytes: unsized,
		Loads: e.loads, Overlap: e.overlap,
	}}
	if e.slots > 0 {
		l.GPUAdapters, l.HostAdapters = e.gpu, 2*e.gpu
	}
	if e.anew {
		w.logf("%s is made ready anew", address)
		e.anew, l.Purged = false, true
		clear(e.has)
		for i := range w.pending {
			if w.pending[i].Endpoint == address {
				w.pending[i].purged = true
			}
		}
	}
	if e.lives {
		l.Incarnation = fmt.Sprintf("life %d", e.life)
	}
	for id := range e.has {
		switch {
		case !e.lists:
		case w.onTheWay(address, id):
			l.InTransition = append(l.InTransition, id)
		default:
			l.Listed = append(l.Listed, id)
		}
	}
	slices.Sort(l.Listed)
	w.scrapes[address] = l
}

// scrapeNow performs a whole scrape, which takes no time.
func (w *world) scrapeNow(address string) {
	delete(w.scrapes, address)
	w.scrape(address)
	w.scrape(address)
}

// checkLoaded fails if requests for a model may go to a healthy engine that lacks the model.
func (w *world) checkLoaded() {
	for _, c := range w.copies() {
		if e := w.engines[c.Endpoint]; c.State == decide.Loaded && e.lists && !e.dead && !e.has[c.ID] {
			w.fatalf("%s at %s counts as loaded and is not there", c.ID, c.Endpoint)
		}
	}
}

func (w *world) sorted() []*simulatedModel {
	all := slices.Collect(maps.Values(w.models))
	slices.SortFunc(all, func(a, b *simulatedModel) int { return a.Compare(b.ModelKey) })
	return all
}

func (w *world) copies() []decide.Copy {
	all := w.s.Copies()
	slices.SortFunc(all, func(a, b decide.Copy) int { return a.Compare(b.CopyKey) })
	return all
}

func (w *world) onTheWay(address, id string) bool {
	return slices.ContainsFunc(w.pending, func(p pending) bool {
		return p.Endpoint == address && p.Model.ID == id && (p.Kind == decide.Load || p.Kind == decide.Reload)
	})
}

var addresses = []string{"e1", "e2", "e3"}

// removeOrRestore removes an endpoint, and its engine dies. If an endpoint is already removed, it
// is added again instead.
func (w *world) removeOrRestore(address string) {
	if w.removed != "" {
		w.logf("%s comes back", w.removed)
		w.add(w.removed)
		return
	}
	w.logf("%s is removed", address)
	w.die(address)
	w.removed = address
	w.engines[address].pod = decide.Pod{}
	w.s.RemoveEndpoint(address)
	if w.rng.IntN(2) == 0 {
		w.decide()
	}
}

// add adds the removed endpoint again.
func (w *world) add(address string) {
	w.removed = ""
	e := w.engines[address]
	e.stopped, e.anew = time.Time{}, false
	w.pending = slices.DeleteFunc(w.pending, func(p pending) bool { return p.Endpoint == address })
	w.s.SetEndpoint(address, []objects.Name{pool})
	w.revive(address)
}

// die ends the engine of an endpoint.
func (w *world) die(address string) {
	w.engines[address].dead = true
	clear(w.engines[address].has)
	delete(w.scrapes, address)
	for i := range w.pending {
		if w.pending[i].Endpoint == address {
			w.pending[i].dead = true
		}
	}
}

func (w *world) random() {
	e := addresses[w.rng.IntN(3)]
	if w.removes && w.rng.IntN(20) == 0 {
		w.removeOrRestore(e)
	}
	if e == w.removed {
		e = addresses[(slices.Index(addresses, e)+1)%3]
	}
	id := fmt.Sprintf("m%02d", w.rng.IntN(len(w.models)))
	m := w.models[id]
	switch n := w.rng.IntN(100); {
	case n < 30:
		m.wanted = true
		if w.rng.IntN(2) == 0 {
			w.s.Used(m.ModelKey, decide.Use{Requests: w.rng.IntN(3), Last: w.now})
		}
		w.s.Wanted("x", m.ModelKey, decide.Want{Requests: 1, Since: w.now})
		w.logf("want %s", id)
	case n < 60 && len(w.pending) > 0:
		w.answer(w.rng.IntN(len(w.pending)))
	case n < 75:
		for _, c := range w.copies() {
			if c.State == decide.Draining {
				w.do(w.s.Drained(c.CopyKey, w.now))
				break
			}
		}
	case n < 85:
		w.scrape(e)
	case n < 88:
		if all := w.copies(); len(all) > 0 {
			w.s.InFlight(all[w.rng.IntN(len(all))].CopyKey, w.rng.IntN(3), w.now)
		}
	case n < 89 && w.rng.IntN(2) == 0:
		w.logf("%s terminates", e)
		w.leaves(e)
		w.engines[e].terminating = true
		w.s.Terminating("y", e, true, w.until())
	case n < 89:
		w.logf("%s says that it is stopping", e)
		w.leaves(e)
		w.engines[e].stopped = w.now
		w.s.Stopping(e, w.now, w.now)
	case n < 90 && w.rng.IntN(2) == 0:
		w.s.Tick()
	case n < 90 && w.rng.IntN(4) > 0:
		w.setPod(e, [...]decide.Pod{{}, {}, {}, {Outgoing: true}, {Unready: true}, {Unready: true, OnTrial: true}}[w.rng.IntN(6)])
	case n < 90 || w.paused && n < 92:
		w.pause(!w.paused)
	case n < 91 && w.rng.IntN(4) == 0:
		w.resize(e)
	case n < 91 && w.rng.IntN(5) < 2:
		w.constrain([]string{e, ""}[w.rng.IntN(2)])
	case n < 91 && w.rng.IntN(3) == 0:
		w.move(id)
	case n < 91 && w.rng.IntN(2) == 0 && !m.Pinned:
		w.logf("%s is removed and set again", id)
		w.s.RemoveModel(m.ModelKey)
		w.decide()
		w.s.SetModel(m.Entry, time.Time{})
	case n < 91:
		w.s.Tick()
	case n < 92:
		w.logf("%s dies", e)
		w.die(e)
	case n < 96:
		// The endpoint is added again when the calls to its earlier incarnation have ended.
		if !slices.ContainsFunc(w.pending, func(p pending) bool { return p.Endpoint == e }) && w.engines[e].dead {
			w.s.Down(e)
			w.revive(e)
			w.logf("%s is back", e)
		}
	default:
		at := decide.CopyKey{ModelKey: m.ModelKey, Endpoint: e}
		was, there := w.s.Copy(at)
		if w.s.Missing(at, w.now) {
			w.logf("%s is to be made ready anew, since it has no %s", e, id)
			w.engines[e].anew = true
			delete(w.scrapes, e)
		} else if was.State == decide.Loaded && there && !w.engines[e].lists {
			if w.rng.IntN(2) == 0 { // the engine really lacks the model
				delete(w.engines[e].has, id)
			} else {
				w.denied[at] = w.engines[e].has[id]
			}
			w.logf("%s answers as if it had no %s, which is %v", e, id, !w.engines[e].has[id])
		}
	}
	w.decide()
	// Requests whose model is loaded now do not wait any more.
	for _, m := range w.sorted() {
		if st, ok := w.s.Status(m.ModelKey); ok && m.wanted &&
			(st.Failed != "" || slices.ContainsFunc(st.Copies, func(c decide.Copy) bool { return c.State == decide.Loaded })) {
			m.wanted = false
			w.s.Wanted("x", m.ModelKey, decide.Want{})
		}
	}
	w.now = w.now.Add(time.Duration(1+w.rng.IntN(1000)) * time.Millisecond) // so that no two events are simultaneous
	w.decide()
	if w.short {
		w.countInFlight()
	}
	w.checkLoaded()
}

// resize shrinks the capacity of an engine, or restores it.
func (w *world) resize(address string) {
	e := w.engines[address]
	switch {
	case e.slots == 1, e.bytes == 256<<20:
		e.slots, e.bytes = e.slots*4, e.bytes*2
	case e.slots > 0:
		e.slots--
	default:
		e.bytes = 256 << 20
	}
	w.logf("%s has %d slots or %d bytes", address, e.slots, e.bytes)
}

func plus(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// until returns the time until which a terminating pod serves; zero if the pod does not wait until
// its models have moved.
func (w *world) until() time.Time {
	if w.rng.IntN(3) == 0 {
		return time.Time{}
	}
	return w.now.Add(time.Duration(1+w.rng.IntN(60)) * time.Second)
}

// revive restarts an engine that has died.
func (w *world) revive(address string) {
	e := w.engines[address]
	e.dead, e.terminating = false, false
	if e.lists || e.lives { // without a list and an incarnation, the restart cannot be noticed
		e.stopped = time.Time{}
	}
	clear(e.has)
	e.life++
	w.s.Terminating("y", address, false, time.Time{})
	w.scrapeNow(address)
}

// For random histories: an engine is never told to load a model that it already has, more models
// than its capacity, or more at once than it accepts. It gets no calls while placement is paused or
// the engine is about to end. No copy is published as loaded that a healthy engine lacks. Pinned
// models stay. When everything has settled, every model has the copies that it needs, and a request
// for any model gets a copy.
func TestRandomHistories(t *testing.T) {
	var record io.Writer
	if *decisions != "" {
		file, err := os.Create(*decisions)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		buffered := bufio.NewWriter(file)
		defer buffered.Flush()
		record = buffered
	}
	moved, rehoused, passed, failed, spread, reached := 0, 0, 0, 0, 0, applied{}
	for seed := range *histories {
		for _, kind := range []string{"slots", "bytes", "listed bytes", "bytes without lives"} {
			w := &world{
				t: t, s: decide.New(decide.Config{}), rng: rand.New(rand.NewPCG(seed, 1)), now: start, short: seed%4 == 3,
				removes: seed%8 >= 6,
				engines: map[string]*simulatedEngine{}, models: map[string]*simulatedModel{}, scrapes: map[string]decide.ScrapeResult{},
				givenUp: map[decide.CopyKey]bool{}, denied: map[decide.CopyKey]bool{}, vmodels: map[decide.Key]decide.VModelStatus{},
				record: record, published: map[any]any{},
			}
			if record != nil {
				fmt.Fprintf(record, "history %d of %s\n", seed, kind)
			}
			for i, address := range addresses {
				e := &simulatedEngine{slots: 2 + i, gpu: int(seed % 3), loads: 1 + i, has: map[string]bool{}}
				if seed%2 == 0 {
					e.overlap = e.loads + 1
				}
				if e.gpu == 1 { // with many registered adapters, some get no GPU slot
					e.slots = 6
				}
				if e.lists, e.lives = kind == "slots" || kind == "listed bytes", kind == "bytes"; kind != "slots" {
					e.slots, e.bytes = 0, 512<<20
				}
				e.full = e.slots
				w.engines[address] = e
				w.s.SetEndpoint(address, []objects.Name{pool})
			}
			for i := range 14 {
				e := objects.Entry{ModelKey: key(fmt.Sprintf("m%02d", i))}
				switch i {
				case 0:
					e.Pinned = true
				case 1:
					e.Min, e.Max = 2, 2
				case 2:
					e.Max = 1
				}
				if i%3 == 0 {
					e.Type = "t"
				}
				m := &simulatedModel{Entry: e.Complete(nil), size: int64(20+10*i) << 20, late: kind != "slots" && i%4 == 3}
				w.models[m.ID] = m
				w.s.SetModel(m.Entry, time.Time{})
			}
			w.logf("history %d of %s", seed, kind)
			for w.step = range 600 {
				w.random()
			}
			w.settle()
			w.end()
			reached.count(w.reached)
			if w.migrated {
				moved++
			}
			if w.rehoused {
				rehoused++
			}
			if w.passed {
				passed++
			}
			if w.failed {
				failed++
			}
			if w.spread {
				spread++
			}
		}
	}
	if moved == 0 {
		t.Error("no models of an endpoint that migrates were moved")
	}
	if passed == 0 || failed == 0 {
		t.Errorf("endpoints on trial passed in %d histories, and in %d loads failed there", passed, failed)
	}
	if spread == 0 {
		t.Error("no adapters were kept apart")
	}
	if min(reached.brief, reached.waits, reached.noReserve)*20 < int(*histories) {
		t.Errorf("in hardly any history the rules for short requests were applied: %+v", reached)
	}
	if rehoused == 0 {
		t.Error("no models were moved that might not be where they were")
	}
}

// applied counts the histories in which each rule for brief requests and fast unloads was applied.
type applied struct{ brief, waits, noReserve int }

func (a *applied) count(r decide.Reached) {
	for n, is := range map[*int]bool{&a.brief: r.Brief, &a.waits: r.Waits, &a.noReserve: r.NoReserve} {
		if is {
			*n++
		}
	}
}

// checkNothingWaits fails if nothing is in progress and a copy waits for an engine or for room.
func (w *world) checkNothingWaits() {
	w.t.Helper()
	for _, c := range w.copies() {
		if c.State != decide.Loaded {
			w.fatalf("all is quiet, and %s at %s is %s", c.ID, c.Endpoint, c.State)
		}
	}
}

// checkNothingLeaks fails if an engine permanently loses room. A failed unload must be repeated at
// most a minute and two scrapes later.
func (w *world) checkNothingLeaks() {
	w.t.Helper()
	for _, pause := range []time.Duration{0, 2 * time.Minute} {
		w.now = w.now.Add(pause)
		for address := range w.engines {
			w.scrapeNow(address)
		}
		w.decide()
		for len(w.pending) > 0 {
			w.answer(0)
			w.decide()
		}
	}
	for _, e := range w.s.View(w.now).Endpoints {
		if e.LeakedBytes > 0 {
			w.fatalf("all is quiet, and %d bytes of %s are lost", e.LeakedBytes, e.Address)
		}
	}
}

// checkNothingMisplaced fails if a misplaced copy remains although its model is also loaded at an
// allowed endpoint, or needs no copy.
func (w *world) checkNothingMisplaced() {
	w.t.Helper()
	for _, m := range w.sorted() {
		st, _ := w.s.Status(m.ModelKey)
		isMisplaced := func(c decide.Copy) bool { return w.misplaced(m.Entry, c.Endpoint) }
		some := slices.ContainsFunc(st.Copies, isMisplaced)
		proper := slices.ContainsFunc(st.Copies, func(c decide.Copy) bool { return !isMisplaced(c) })
		if some && (proper || m.Min == 0 && !m.Pinned && w.now.Sub(st.LastUsed) >= time.Hour) {
			w.fatalf("%s is where it may not be: %v", m.ID, st.Copies)
		}
	}
}

// settle lets everything in progress end successfully, and then requests each model.
func (w *world) settle() {
	w.logf("settle")
	if w.removed != "" {
		w.add(w.removed)
	}
	w.pause(false)
	quiet := func() {
		for range 200 {
			for len(w.pending) > 0 {
				w.answer(0)
				w.decide()
			}
			for _, c := range w.copies() {
				if c.State == decide.Draining {
					w.do(w.s.Drained(c.CopyKey, w.now))
				}
			}
			wake := w.decide()
			// An engine that is about to end gets no calls.
			if len(w.pending) > 0 || slices.ContainsFunc(w.copies(), func(c decide.Copy) bool {
				return c.State == decide.Draining && !w.leaving(w.engines[c.Endpoint])
			}) {
				continue
			}
			if wake.IsZero() || !slices.ContainsFunc(w.copies(), func(c decide.Copy) bool { return c.State == decide.Queued }) {
				return
			}
			if wake.Before(w.now) {
				w.fatalf("it is to be asked again %v ago", w.now.Sub(wake))
			}
			w.now = wake
		}
		w.fatalf("it does not end")
	}
	quiet()
	unready := false // a model may wait for an unready engine, whether or not it has a place there
	for _, e := range w.engines {
		unready = unready || e.pod.Unready || e.anew
	}
	for _, l := range w.scrapes {
		unready = unready || l.Purged
	}
	for _, m := range w.sorted() { // a model may also wait for the retry of its load
		st, _ := w.s.Status(m.ModelKey)
		unready = unready || st.Retrying
	}
	for _, address := range addresses {
		is, migrates := w.s.Migration(address)
		if migrates && w.s.Unscraped() == 0 && is.Moving > 0 && !unready {
			w.fatalf("all is quiet, and %s migrates: %+v", address, is)
		}
		if w.migrated = w.migrated || is.Moved > 0; is.Moved > 0 && !w.leaving(w.engines[address]) {
			w.fatalf("%s stays, and migrates: %+v", address, is)
		}
	}
	for _, address := range addresses {
		if e := w.engines[address]; e.dead || w.leaving(e) {
			w.s.Down(address)
			w.revive(address)
		} else {
			w.scrapeNow(address)
		}
		w.decide()
	}
	w.now = w.now.Add(16 * time.Minute) // until all failures have expired
	quiet()
	w.s.Unwanted("x")
	w.decide()
	quiet()
	w.checkTrials()
	for address := range w.engines {
		w.setPod(address, decide.Pod{})
	}
	w.decide()
	quiet()
	for range 10 { // a copy may be removed only after another is loaded, one load at a time
		w.s.Tick()
		w.decide()
		quiet()
	}
	w.checkNothingWaits()
	w.checkNothingMisplaced()
	w.constrain("") // no restriction, so that every model has room
	for address, e := range w.engines {
		if e.slots = e.full; e.slots == 0 {
			e.bytes = 512 << 20
		}
		w.scrapeNow(address)
	}
	w.decide()
	quiet()
	for key := range w.vmodels {
		if st, _ := w.s.VModel(key); st.Active != st.Target && st.Failed == "" {
			w.fatalf("%s does not go from %s to %s, which has %d copies of %d, and nobody says why", key.ID, st.Active, st.Target,
				st.Loaded, st.Needed)
		}
		delete(w.vmodels, key)
		w.s.RemoveVModel(key)
	}
	w.decide()
	quiet()
	for _, m := range w.sorted() {
		st, _ := w.s.Status(m.ModelKey)
		if len(st.Copies) < m.Min && len(st.Failures) == 0 && st.Why == "" {
			w.fatalf("%s has %d copies of %d, and nobody says why", m.ID, len(st.Copies), m.Min)
		}
		if m.Max > 0 && len(st.Copies) > m.Max {
			w.fatalf("%s has %d copies, at most %d", m.ID, len(st.Copies), m.Max)
		}
	}
	w.checkNothingLeaks()
	for i := range 14 {
		m := w.models[fmt.Sprintf("m%02d", i)]
		for range 5 { // repeated because a load may fail
			w.s.Used(m.ModelKey, decide.Use{Requests: w.rng.IntN(3), Last: w.now})
			w.s.Wanted("x", m.ModelKey, decide.Want{Requests: 1, Since: w.now})
			w.decide()
			quiet()
			w.checkNothingWaits()
			st, _ := w.s.Status(m.ModelKey)
			if slices.ContainsFunc(st.Copies, func(c decide.Copy) bool { return c.State == decide.Loaded }) {
				break
			}
			w.now = w.now.Add(16 * time.Minute)
		}
		st, _ := w.s.Status(m.ModelKey)
		if !slices.ContainsFunc(st.Copies, func(c decide.Copy) bool { return c.State == decide.Loaded }) {
			w.fatalf("%s is asked for and is not there: why %q, failed %q, failures %v, held %d", m.ID, st.Why, st.Failed, st.Failures,
				st.Queued)
		}
		w.s.Wanted("x", m.ModelKey, decide.Want{})
		w.now = w.now.Add(time.Second)
	}
}

// end removes all objects, and fails if the State then still has any data.
func (w *world) end() {
	w.logf("end")
	w.ending = true
	for _, m := range w.sorted() {
		w.s.RemoveModel(m.ModelKey)
	}
	w.decide()
	for len(w.copies()) > 0 {
		for _, c := range w.copies() {
			w.do(w.s.Drained(c.CopyKey, w.now))
		}
		if len(w.pending) == 0 {
			w.fatalf("the models are gone, and %d copies stay", len(w.copies()))
		}
		for len(w.pending) > 0 {
			w.answer(0)
		}
		w.decide()
	}
	w.now = w.now.Add(time.Second)
	for _, address := range addresses {
		w.scrapeNow(address)
		w.decide()
		w.s.RemoveEndpoint(address)
	}
	w.s.SetFits(pool, decide.Fits{})
	w.decide()
	w.s.Changes()
	for path, n := range leak.MapsAndSlices(w.s) {
		if n > 0 {
			w.fatalf("everything has ended, and %s has %d entries", path, n)
		}
	}
}
