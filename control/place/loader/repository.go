package loader

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

const (
	// indexShare is how many times as long as the last index took the next one is waited for, where
	// one follows the other.
	indexShare = 10
)

// reread is how old an index may become, where it is not read at each look. MLServer reads its
// whole repository for one, and serves nobody meanwhile: 62 ms for 50 folders, 350 ms for 300, 560
// ms for 500. Triton reads one in 1 to 22 ms.
var reread = map[engine.Kind]time.Duration{engine.MLServer: 5 * time.Minute}

// repositoryLoads is how many models an engine loads at once: MLServer one after the other; Triton,
// whose loads each keep one of eight threads that answer everybody, as many as ModelMesh let it.
var repositoryLoads = map[engine.Kind]int{engine.MLServer: 1, engine.Triton: 2}

// closedWords say what to do about an engine that lets nobody load.
var closedWords = map[engine.Kind]string{
	engine.MLServer: "it has no V2 model repository there", engine.Triton: "start Triton with --model-control-mode=explicit",
}

// nobody is a model that no repository has: to unload it does nothing but tell whether models may
// be unloaded.
const nobody = "headgate-nobody"

// empty is the body of calls that say nothing. MLServer wants one.
var empty = []byte("{}")

// modelRepository drives an engine with a V2 model repository (KServe's model repository extension)
// over HTTP. A model's name there is its id. What the engine answers means what package engine has
// of it; where that leaves open what was done, the engine's index tells. Health is not asked for: a
// Triton is not ready while it loads anything, if it is started so.
type modelRepository struct {
	unsized
	caller

	mu  sync.Mutex // guards what follows
	had held
	// calls counts ends of loads and unloads.
	calls int
	// last is the last index, nil before the first, with what is known to have come of loads and
	// unloads since. It was asked for at lastAt. It counts while lastCalls is calls: else something
	// ended of which it may know nothing.
	last      []engine.StoredModel
	lastAt    time.Time
	lastCalls int
	witness   int  // which of the models that serve is asked next
	anew      bool // the engine has begun anew, and no look has told it
	asked     bool // whether it lets models be loaded
	closed    bool // it does not
}

func openRepository(e Endpoint, a engineclient.Access) *modelRepository {
	return &modelRepository{caller: newCaller(e, a), had: make(held)}
}

// Look reads the index; or, where that is dear and the last one may still count, asks for one of
// the models that served then, by turns: an engine that has begun anew has none of them.
func (d *modelRepository) Look(ctx context.Context, r Record) (Seen, error) {
	s := Seen{Incarnation: d.Incarnation}
	models, err := d.kept(ctx, r.Afresh)
	if err == nil && models == nil {
		models, err = d.index(ctx)
	}
	if err != nil || models == nil {
		return s, err
	}
	if s.Takes, err = d.open(ctx); err != nil {
		return Seen{}, err
	}
	s.Lists, s.Limits.Loads = true, repositoryLoads[d.Kind]
	for _, m := range models {
		if m.Stage != engine.Stored && engine.CheckName(m.Name) == nil {
			s.Models = append(s.Models, Listed{ID: m.Name, State: listedStates[m.Stage]})
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Purged, d.anew = d.anew, false
	return s, nil
}

var listedStates = map[engine.Stage]ListedState{engine.Serving: Ready, engine.Coming: Loading, engine.Leaving: Unloading}

// kept returns the last index if it counts still, else nil: what came of loads and unloads since is
// known, nothing was on its way then, and the engine has a model that it had.
func (d *modelRepository) kept(ctx context.Context, afresh bool) ([]engine.StoredModel, error) {
	d.mu.Lock()
	models, path := d.last, engine.LivePath
	counts := !afresh && d.lastCalls == d.calls && time.Since(d.lastAt) < reread[d.Kind]
	d.witness++
	turn := d.witness
	d.mu.Unlock()
	var serving []string
	for _, m := range models {
		switch m.Stage {
		case engine.Coming, engine.Leaving:
			counts = false
		case engine.Serving:
			if engine.CheckStored(d.Kind, m.Name) == nil {
				serving = append(serving, m.Name)
			}
		}
	}
	if models == nil || !counts {
		return nil, nil
	}
	if len(serving) > 0 {
		path = engine.ReadyCall.Path(d.Kind, serving[turn%len(serving)])
	}
	said, err := d.tell(ctx, http.MethodGet, path)
	if err != nil || said.status != http.StatusOK {
		return nil, err
	}
	return models, nil
}

// index asks for the index, nil if the engine has none, and notes what that says of what it had.
func (d *modelRepository) index(ctx context.Context) ([]engine.StoredModel, error) {
	d.mu.Lock()
	calls, had := d.calls, maps.Clone(d.had)
	d.mu.Unlock()
	began := time.Now()
	said, err := d.tell(ctx, http.MethodPost, engine.IndexPath)
	if err != nil {
		return nil, err
	}
	switch said.status {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return nil, nil
	default:
		return nil, d.refusal(said, engine.Unsure)
	}
	models, err := engine.ReadIndex(said.body)
	if err != nil {
		return nil, fault(Unclear, err.Error())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last, d.lastAt, d.lastCalls = models, began, calls
	there := make(map[string]bool)
	for _, m := range models {
		if m.Stage != engine.Stored {
			there[m.Name] = true
		}
	}
	if d.had.compare(there, had) {
		d.anew, d.asked = true, false
	}
	if calls == d.calls {
		for _, m := range models {
			if m.Stage == engine.Serving {
				d.had[m.Name] = true
			}
		}
	}
	return models, nil
}

// open says whether the engine lets models be loaded, which it is asked once in each life.
func (d *modelRepository) open(ctx context.Context) (bool, error) {
	d.mu.Lock()
	asked, closed := d.asked, d.closed
	d.mu.Unlock()
	if asked {
		return !closed, nil
	}
	said, err := d.tell(ctx, http.MethodPost, engine.UnloadCall.Path(d.Kind, nobody))
	if err != nil {
		return false, err
	}
	told := engine.ReadUnloadAnswer(said.status, said.body)
	if told == engine.Unsure {
		return false, d.refusal(said, told)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked, d.closed = true, told == engine.Closed
	return !d.closed, nil
}

// Load tells the engine to load a model that it has not got. One that it is loading already, since
// an earlier call whose caller left, is waited for: an engine that is told twice loads it twice.
func (d *modelRepository) Load(ctx context.Context, m Model) (Loaded, error) {
	if err := engine.CheckStored(d.Kind, m.ID); err != nil {
		return Loaded{}, fault(Refused, fmt.Sprintf("no model in a repository is called %q: %v", m.ID, err))
	}
	at, sure := engine.Stored, false // what is left of it
	defer func() { d.ended(m.ID, at, sure) }()
	found, err := d.await(ctx, m.ID, func(s engine.Stage) bool { return s == engine.Serving || s == engine.Stored })
	switch {
	case err != nil:
		return Loaded{}, err
	case found.Stage == engine.Serving:
		at, sure = engine.Serving, true
		return Loaded{}, nil
	case found.came:
		sure = true
		return Loaded{}, fault(Refused, "the engine did not load it: "+found.Reason)
	}
	said, err := d.tell(ctx, http.MethodPost, engine.LoadCall.Path(d.Kind, m.ID))
	if err != nil {
		return Loaded{}, err
	}
	told, why := engine.ReadLoadAnswer(said.status, said.body)
	failed := d.refusal(said, told)
	failed.Fault = why
	switch told {
	case engine.Done, engine.Failed:
	default:
		sure = told == engine.Absent
		return Loaded{}, failed
	}
	if found, err = d.stage(ctx, m.ID); err != nil {
		return Loaded{}, fault(Unclear, fmt.Sprintf("the engine answered %v, but does not say what it has: %v", said, err))
	}
	switch {
	case told == engine.Done && found.Stage == engine.Serving:
		at, sure = engine.Serving, true
		return Loaded{}, nil
	case told == engine.Failed && found.Stage == engine.Stored:
		failed.Outcome, sure = Refused, true
	case told == engine.Done:
		return Loaded{}, fault(Unclear, fmt.Sprintf("the engine answered %v, but the model does not serve", said))
	}
	return Loaded{}, failed
}

// Unload waits until no load of the model goes on, which would let the engine wait, and one of the
// threads with which it answers; tells it to unload; and waits until the memory is free, of which
// Triton's answer says nothing.
func (d *modelRepository) Unload(ctx context.Context, id string) (err error) {
	if err := engine.CheckStored(d.Kind, id); err != nil {
		return nil // it was never told
	}
	d.forget(id)
	defer func() {
		d.forget(id) // an index may have had it meanwhile
		d.ended(id, engine.Stored, err == nil)
	}()
	if _, err := d.await(ctx, id, func(s engine.Stage) bool { return s != engine.Coming }); err != nil {
		return err
	}
	said, err := d.tell(ctx, http.MethodPost, engine.UnloadCall.Path(d.Kind, id))
	if err != nil {
		return err
	}
	switch told := engine.ReadUnloadAnswer(said.status, said.body); told {
	case engine.Absent:
		return nil
	case engine.Done:
		_, err = d.await(ctx, id, func(s engine.Stage) bool { return s == engine.Stored })
		return err
	default:
		return d.refusal(said, told)
	}
}

// forget notes that a model is about to be unloaded: that it is gone says nothing of the engine.
func (d *modelRepository) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.had, id)
}

// ended notes that a load or an unload has ended, and how far the model is there now, if that is
// sure.
func (d *modelRepository) ended(id string, at engine.Stage, sure bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	counted := d.last != nil && d.lastCalls == d.calls
	d.calls++
	if !sure {
		return
	}
	d.had.note(id, at == engine.Serving)
	if !counted {
		return
	}
	d.last = slices.DeleteFunc(slices.Clone(d.last), func(m engine.StoredModel) bool { return m.Name == id })
	d.last = append(d.last, engine.StoredModel{Name: id, Stage: at})
	d.lastCalls = d.calls
}

// finding is what the engine says of a model, once or after a while.
type finding struct {
	engine.StoredModel
	came bool // it was being loaded before
	// took is how long the engine took for its index, 0 where that was not needed.
	took time.Duration
}

// await asks for a model until it is as far as it is to be.
func (d *modelRepository) await(ctx context.Context, id string, done func(engine.Stage) bool) (finding, error) {
	came := false
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		now, err := d.stage(ctx, id)
		if err != nil {
			return now, err
		}
		now.came = came
		if done(now.Stage) {
			return now, nil
		}
		came = came || now.Stage == engine.Coming
		if !wait(ctx, max(pause, min(indexShare*now.took, maxPause))) {
			return now, fault(Unclear, fmt.Sprintf("the engine is still %s the model: %v", doing[now.Stage], ctx.Err()))
		}
	}
}

var doing = map[engine.Stage]string{engine.Coming: "loading", engine.Leaving: "unloading", engine.Serving: "serving",
	engine.Stored: "without"}

// stage asks how far a model is there: the model itself, and where that does not tell, the index.
func (d *modelRepository) stage(ctx context.Context, id string) (finding, error) {
	said, err := d.tell(ctx, http.MethodGet, engine.ReadyCall.Path(d.Kind, id))
	if err != nil {
		return finding{}, err
	}
	found := engine.StoredModel{Name: id}
	stage, sure := engine.ReadReady(d.Kind, said.status)
	if sure {
		found.Stage = stage
		return finding{StoredModel: found}, nil
	}
	began := time.Now()
	models, err := d.index(ctx)
	if err != nil {
		return finding{}, err
	}
	for _, m := range models {
		if m.Name == id {
			found = m
		}
	}
	return finding{StoredModel: found, took: time.Since(began)}, nil
}

// told is what an engine answered, and the whole of its words.
type told struct {
	answer
	body []byte
}

// tell makes a call.
func (d *modelRepository) tell(ctx context.Context, method, path string) (told, error) {
	of := call{method: method, address: d.managedAt(), path: path, raw: d.Kind == engine.Triton}
	if method == http.MethodPost {
		of.body = empty
	}
	var text bytes.Buffer
	is, err := d.ask(ctx, of, &text)
	if err != nil {
		return told{}, err
	}
	return told{answerTo(is, text.Bytes()[:min(text.Len(), maxAnswer)]), text.Bytes()}, nil
}

// refusal is an answer that is no success, as an Error.
func (d *modelRepository) refusal(said told, means engine.Told) *Error {
	outcome, words := Unclear, said.String()
	switch {
	case means == engine.Closed:
		outcome, words = Refused, words+": "+closedWords[d.Kind]
	case means == engine.Absent:
		outcome = Refused
	case said.status == http.StatusUnauthorized || said.status == http.StatusForbidden:
		outcome, words = Refused, words+": "+engineclient.WantsToken
	case said.status/100 == 3:
		outcome, words = Refused, words+": a redirect, which is not followed"
	}
	refused := fault(outcome, words)
	refused.Passing = isPassing(said.status)
	return refused
}
