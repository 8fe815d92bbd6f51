package loader

import (
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
	// indexShare limits the share of time that a polling loop spends on reading the index: the
	// pause after a read is this many times as long as the read.
	indexShare = 10
)

// reread is the age at which an index is read again, for engines whose index is too expensive to
// read at each scrape. To answer, MLServer reads its whole repository and serves no requests
// meanwhile: 62 ms for 50 folders, 350 ms for 300, 560 ms for 500. Triton takes 1 to 22 ms.
var reread = map[engine.Kind]time.Duration{engine.MLServer: 5 * time.Minute}

// repositoryLoads is the number of concurrent loads. MLServer loads one model at a time. Triton
// loads in its eight threads that also answer requests, so it gets only 2 loads, as in ModelMesh.
var repositoryLoads = map[engine.Kind]int{engine.MLServer: 1, engine.Triton: 2}

// closedAdvice is the advice in the error of an engine that does not allow loads.
var closedAdvice = map[engine.Kind]string{
	engine.MLServer: "it has no V2 model repository there", engine.Triton: "start Triton with --model-control-mode=explicit",
}

// noSuchModel is the name of a model that no repository has: an attempt to unload it only shows
// whether the engine allows unloads.
const noSuchModel = "headgate-nobody"

// repositoryAPI makes the calls of a V2 model repository over HTTP or gRPC. A method returns an
// *[Error] if the engine did not answer. Answers of gRPC are expressed as those of HTTP.
type repositoryAPI interface {
	index(ctx context.Context) (answerText, error)
	live(ctx context.Context) (answerText, error)
	// about makes a call about one model, whose name passed engine.CheckStored.
	about(ctx context.Context, c engine.RepositoryCall, id string) (answerText, error)
	Close() error
}

// modelRepository is the driver of an engine with a V2 model repository (KServe's model repository
// extension). A model's name there is its id. Package engine interprets the answers; if an answer
// is unclear, the engine's index decides. Health is not queried: a Triton may report that it is not
// ready while it loads a model.
type modelRepository struct {
	unsized
	Endpoint
	api repositoryAPI

	mu  sync.Mutex // guards the fields below
	had loadedModels
	// calls is the number of loads and unloads that have ended.
	calls int
	// last is the last index, updated after each later load or unload with a known outcome; nil
	// before the first read. It was requested at lastAt. It is valid while lastCalls equals calls;
	// otherwise a call with an unknown outcome has ended since.
	last      []engine.StoredModel
	lastAt    time.Time
	lastCalls int
	witness   int  // position of the loaded model to query next
	restarted bool // the engine has restarted, and no scrape has reported that yet
	asked     bool // the engine was asked whether it allows loads
	closed    bool // the engine does not allow loads
}

func openRepository(e Endpoint, a engineclient.Access) (*modelRepository, error) {
	d := &modelRepository{Endpoint: e, had: make(loadedModels)}
	if !e.RepositoryOverGRPC {
		d.api = &httpRepository{newCaller(e, a)}
		return d, nil
	}
	var err error
	d.api, err = openGRPCRepository(e, a)
	return d, err
}

// Close closes connections.
func (d *modelRepository) Close() error { return d.api.Close() }

// Scrape reads the index. If that is expensive and the last index may still be valid, Scrape
// instead queries one of the loaded models, another one each time. An engine that has restarted has
// none of them.
func (d *modelRepository) Scrape(ctx context.Context, r Record) (ScrapeResult, error) {
	s := ScrapeResult{Incarnation: d.Incarnation}
	models, err := d.kept(ctx, r.Stale)
	if err == nil && models == nil {
		models, err = d.index(ctx)
	}
	if err != nil || models == nil {
		return s, err
	}
	if s.Takes, err = d.open(ctx); err != nil {
		return ScrapeResult{}, err
	}
	s.Lists, s.Limits.Loads = true, repositoryLoads[d.Kind]
	for _, m := range models {
		if m.Stage != engine.Stored && engine.CheckName(m.Name) == nil {
			s.Models = append(s.Models, Listed{ID: m.Name, State: listedStates[m.Stage]})
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Purged, d.restarted = d.restarted, false
	return s, nil
}

var listedStates = map[engine.Stage]ListedState{engine.Serving: Ready, engine.Coming: Loading, engine.Leaving: Unloading}

// kept returns the last index if it is still valid, otherwise nil. It is valid if it is not too
// old, all later loads and unloads have known outcomes, none was in progress when the index was
// read, and a query shows that the engine still has one of its loaded models. With afresh, the
// result is nil.
func (d *modelRepository) kept(ctx context.Context, afresh bool) ([]engine.StoredModel, error) {
	d.mu.Lock()
	models := d.last
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
	var said answerText
	var err error
	if len(serving) > 0 {
		said, err = d.api.about(ctx, engine.ReadyCall, serving[turn%len(serving)])
	} else {
		said, err = d.api.live(ctx)
	}
	if err != nil || said.status != http.StatusOK {
		return nil, err
	}
	return models, nil
}

// index reads the index, and compares it with the models that the engine is known to have. It
// returns nil if the engine has no index.
func (d *modelRepository) index(ctx context.Context) ([]engine.StoredModel, error) {
	d.mu.Lock()
	calls, had := d.calls, maps.Clone(d.had)
	d.mu.Unlock()
	began := time.Now()
	said, err := d.api.index(ctx)
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
		d.restarted, d.asked = true, false
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

// open reports whether the engine allows loads. It asks the engine once per incarnation.
func (d *modelRepository) open(ctx context.Context) (bool, error) {
	d.mu.Lock()
	asked, closed := d.asked, d.closed
	d.mu.Unlock()
	if asked {
		return !closed, nil
	}
	said, err := d.api.about(ctx, engine.UnloadCall, noSuchModel)
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

// Load loads a model that the engine lacks. If the engine is still loading the model for an
// abandoned call, Load waits for that, since a second call would load the model twice.
func (d *modelRepository) Load(ctx context.Context, m Model) (Loaded, error) {
	if err := engine.CheckStored(d.Kind, m.ID); err != nil {
		return Loaded{}, fault(Refused, fmt.Sprintf("no model in a repository is called %q: %v", m.ID, err))
	}
	at, sure := engine.Stored, false // stage of the model at the end, and whether it is certain
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
	said, err := d.api.about(ctx, engine.LoadCall, m.ID)
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

// Unload first waits until no load of the model is in progress, since the engine would wait for the
// load in one of the threads that answer requests. Then it unloads the model, and waits until the
// memory is free, since Triton's answer does not show that.
func (d *modelRepository) Unload(ctx context.Context, id string) (err error) {
	if err := engine.CheckStored(d.Kind, id); err != nil {
		return nil // a model with an invalid name was never loaded
	}
	d.forget(id)
	defer func() {
		d.forget(id) // an index read meanwhile may have added it again
		d.ended(id, engine.Stored, err == nil)
	}()
	if _, err := d.await(ctx, id, func(s engine.Stage) bool { return s != engine.Coming }); err != nil {
		return err
	}
	said, err := d.api.about(ctx, engine.UnloadCall, id)
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

// forget records that a model is about to be unloaded, so that its absence is no sign of a restart.
func (d *modelRepository) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.had, id)
}

// ended records the end of a load or an unload, and the model's stage, if that is certain.
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

// finding is the stage of a model at the engine, and how it was found.
type finding struct {
	engine.StoredModel
	came bool // an earlier poll found the model loading
	// took is how long the engine took to return its index; 0 if the index was not read.
	took time.Duration
}

// await polls a model until done reports true for its stage.
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

var doing = map[engine.Stage]string{
	engine.Coming: "loading", engine.Leaving: "unloading", engine.Serving: "serving",
	engine.Stored: "without",
}

// stage returns the stage of a model: it queries the model and, if that is not conclusive, the
// index.
func (d *modelRepository) stage(ctx context.Context, id string) (finding, error) {
	said, err := d.api.about(ctx, engine.ReadyCall, id)
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

// refusal converts an unsuccessful answer to an Error.
func (d *modelRepository) refusal(said answerText, means engine.Told) *Error {
	outcome, words := Unclear, said.String()
	switch {
	case means == engine.Closed:
		outcome, words = Refused, words+": "+closedAdvice[d.Kind]
	case means == engine.Absent:
		outcome = Refused
	case said.status == http.StatusUnauthorized || said.status == http.StatusForbidden:
		outcome, words = Refused, words+": "+engineclient.WantsToken
	case said.status/100 == 3:
		outcome, words = Refused, words+": a redirect, which is not followed"
	}
	refused := fault(outcome, words)
	refused.Transient = isTransient(said.status)
	return refused
}
