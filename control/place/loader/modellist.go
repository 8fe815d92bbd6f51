package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/headgate/headgate/internal/atomicfile"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// The behaviour of OpenVINO Model Server is taken from its documentation and its source; it was not
// tried with a real one.

const (
	// batchWait is the time that a change of the list waits for further changes, as in ModelMesh.
	// While the server applies a list, which may take as long as a load, changes gather anyway.
	batchWait = 100 * time.Millisecond
	// listLoads is the number of concurrent loads, as in ModelMesh: the server applies one list at
	// a time.
	listLoads = 1
	// maxOverlooked limits how often the driver writes a list again that the server did not notice.
	// overlookedPause is the time before each of these. Older servers compare the modification time
	// of the file in seconds.
	maxOverlooked, overlookedPause = 2, 1100 * time.Millisecond
)

// listAbsent is the advice for an address without the calls about the list.
const listAbsent = "it serves no API for lists of models there: start OpenVINO Model Server with --rest_port and --config_path"

// modelList is the driver of an OpenVINO Model Server. The server reads its list of models from a
// file on a disk that this program shares, and applies it when this program calls reload. The
// driver writes and applies changes in batches. After a restart, the server loads the models of the
// file itself.
type modelList struct {
	unsized
	caller

	applying chan struct{} // capacity 1: full while a list is written and applied; never closed

	mu        sync.Mutex        // guards the fields below
	list      map[string]string // folder of each model on the list, by name
	changes   int               // number of changes of the list
	applied   int               // number of changes that the engine has applied
	had       loadedModels
	ends      int  // number of loads and unloads that have ended
	restarted bool // the engine has restarted, and no scrape has reported that yet
}

func openModelList(e Endpoint, a engineclient.Access) (*modelList, error) {
	d := &modelList{caller: newCaller(e, a), applying: make(chan struct{}, 1), list: make(map[string]string), had: make(loadedModels)}
	if e.ModelList == "" {
		return nil, errors.New("the path of OpenVINO Model Server's list of models is not set")
	}
	text, err := os.ReadFile(e.ModelList)
	if errors.Is(err, fs.ErrNotExist) {
		return d, d.write(nil) // the engine does not start without the file
	}
	if err != nil {
		return nil, err
	}
	if d.list, err = engine.ReadOVMSModelList(text); err != nil {
		return nil, fmt.Errorf("%s: %w", e.ModelList, err)
	}
	return d, nil
}

// Scrape reads the states of all models.
func (d *modelList) Scrape(ctx context.Context, _ Record) (ScrapeResult, error) {
	d.mu.Lock()
	ends, had := d.ends, maps.Clone(d.had)
	d.mu.Unlock()
	models, err := d.models(ctx)
	if err != nil {
		return ScrapeResult{}, err
	}
	s := ScrapeResult{Incarnation: d.Incarnation, Takes: true, Lists: true, Limits: Limits{Loads: listLoads}}
	there := make(map[string]bool, len(models))
	for _, id := range slices.Sorted(maps.Keys(models)) {
		stage := models[id].Stage
		if stage == engine.Stored || engine.CheckStored(d.Kind, id) != nil {
			continue
		}
		there[id] = true
		s.Models = append(s.Models, Listed{ID: id, State: listedStates[stage]})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.restarted = d.had.compare(there, had) || d.restarted
	if ends == d.ends {
		for id, m := range models {
			if m.Stage == engine.Serving {
				d.had[id] = true
			}
		}
	}
	s.Purged, d.restarted = d.restarted, false
	return s, nil
}

// Load puts a model on the list and waits until it serves. A model that fails is taken off the list
// again; otherwise the engine would load it with every change.
func (d *modelList) Load(ctx context.Context, m Model) (Loaded, error) {
	if err := engine.CheckStored(d.Kind, m.ID); err != nil {
		return Loaded{}, fault(Refused, fmt.Sprintf("no model of OpenVINO Model Server is called %q: %v", m.ID, err))
	}
	loaded := false
	defer func() { d.ended(m.ID, loaded) }()
	now, err := d.stage(ctx, m.ID)
	if err != nil {
		return Loaded{}, err
	}
	if loaded = now.Stage == engine.Serving && d.lists(m.ID, m.Source); loaded {
		return Loaded{}, nil
	}
	was, change := d.change(m.ID, m.Source)
	said, err := d.apply(ctx, change)
	if failed := faultOf(err); failed != nil {
		if failed.Outcome == Refused { // the file was not written
			d.change(m.ID, was)
		}
		return Loaded{}, failed
	}
	if now, err = d.await(ctx, m.ID, func(s engine.Stage) bool { return s == engine.Serving || s == engine.Stored }); err != nil {
		return Loaded{}, err
	}
	if loaded = now.Stage == engine.Serving; loaded {
		return Loaded{}, nil
	}
	words := "the engine did not load it, and its log says why"
	if now.Reason != "" {
		words += ": " + now.Reason
	} else if said != "" {
		words += ": " + said
	}
	_, change = d.change(m.ID, "")
	if _, err := d.apply(ctx, change); err != nil {
		return Loaded{}, fault(Unclear, fmt.Sprintf("%s; it cannot be taken off the list: %v", words, err))
	}
	return Loaded{}, fault(Refused, words)
}

// Unload takes a model off the list and waits until its memory is free.
func (d *modelList) Unload(ctx context.Context, id string) error {
	if engine.CheckStored(d.Kind, id) != nil {
		return nil // a model with an invalid name was never loaded
	}
	d.forget(id)
	defer d.ended(id, false)
	now, err := d.stage(ctx, id)
	if err != nil {
		return err
	}
	was, change := d.change(id, "")
	if was == "" && now.Stage == engine.Stored && d.isApplied(change) {
		return nil
	}
	if _, err := d.apply(ctx, change); err != nil {
		failed := faultOf(err)
		if failed.Outcome == Refused {
			failed.Outcome = Unclear // the model is where it was
		}
		return failed
	}
	_, err = d.await(ctx, id, func(s engine.Stage) bool { return s == engine.Stored })
	return err
}

// change puts a model on the list, or takes it off if the folder is empty. It returns the folder
// that the list had before, and the number of changes so far.
func (d *modelList) change(id, folder string) (was string, change int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was = d.list[id]; was == folder {
		return was, d.changes
	}
	d.changes++
	if d.list[id] = folder; folder == "" {
		delete(d.list, id)
	}
	return was, d.changes
}

func (d *modelList) isApplied(change int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.applied >= change
}

// lists reports whether the engine has applied a list that contains a model with that folder.
func (d *modelList) lists(id, folder string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.list[id] == folder && d.applied == d.changes
}

// apply returns when the engine has applied a change of the list, in a batch of this call or of
// another one. It returns the engine's error message if a model of the list failed. The outcome
// Refused means that apply did not call the engine.
func (d *modelList) apply(ctx context.Context, change int) (said string, err error) {
	select {
	case d.applying <- struct{}{}:
	case <-ctx.Done():
		return "", fault(Unclear, "the engine is still applying another list of models: "+ctx.Err().Error())
	}
	defer func() { <-d.applying }()
	if d.isApplied(change) {
		return "", nil
	}
	wait(ctx, batchWait) // if ctx ends, the call fails below
	d.mu.Lock()
	list, changes := maps.Clone(d.list), d.changes
	d.mu.Unlock()
	for overlooked := 0; ; overlooked++ {
		if err := d.write(list); err != nil {
			return "", fault(Refused, "the list of models cannot be written: "+err.Error())
		}
		answer, err := d.call(ctx, http.MethodPost, engine.OVMSReloadPath)
		switch {
		case err != nil:
			return "", err
		case isTransient(answer.status), answer.status == http.StatusUnauthorized, answer.status == http.StatusForbidden,
			answer.status == http.StatusNotFound:
			return "", d.refusal(answer)
		}
		if said = ""; answer.status/100 != 2 {
			said = answer.words
		}
		seen, err := d.noticed(ctx, list)
		if err != nil {
			return "", err
		}
		if seen || overlooked == maxOverlooked {
			break
		}
		if !wait(ctx, overlookedPause) {
			return "", fault(Unclear, "the engine has not noticed the new list of models: "+ctx.Err().Error())
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.applied = changes
	return said, nil
}

// noticed reports whether the engine lists exactly the models of a list.
func (d *modelList) noticed(ctx context.Context, list map[string]string) (bool, error) {
	models, err := d.models(ctx)
	if err != nil {
		return false, err
	}
	for id := range list {
		if _, known := models[id]; !known {
			return false, nil
		}
	}
	for id, m := range models {
		if _, listed := list[id]; !listed && m.Stage > engine.Leaving {
			return false, nil
		}
	}
	return true, nil
}

// write writes the file in one step, since the engine may read it at any time.
func (d *modelList) write(list map[string]string) error {
	text, err := engine.OVMSModelList(list)
	if err != nil {
		return err
	}
	return atomicfile.Write(d.ModelList, append(text, '\n'), 0o644) // the engine, which may be another user, reads it
}

// forget records that a model is about to be unloaded, so that its absence does not count as a
// restart.
func (d *modelList) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.had.note(id, false)
}

// ended records the end of a load or an unload.
func (d *modelList) ended(id string, loaded bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ends++
	d.had.note(id, loaded)
}

// await polls a model until done reports true for its stage.
func (d *modelList) await(ctx context.Context, id string, done func(engine.Stage) bool) (engine.StoredModel, error) {
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		now, err := d.stage(ctx, id)
		if err != nil || done(now.Stage) {
			return now, err
		}
		if !wait(ctx, pause) {
			return now, fault(Unclear, fmt.Sprintf("the engine is still %s the model: %v", doing[now.Stage], ctx.Err()))
		}
	}
}

// stage queries the stage of a model.
func (d *modelList) stage(ctx context.Context, id string) (engine.StoredModel, error) {
	models, err := d.models(ctx)
	return models[id], err
}

func (d *modelList) models(ctx context.Context) (map[string]engine.StoredModel, error) {
	said, err := d.call(ctx, http.MethodGet, engine.OVMSConfigPath)
	if err != nil {
		return nil, err
	}
	if said.status != http.StatusOK {
		return nil, d.refusal(said)
	}
	models, err := engine.ReadOVMSModels(said.body)
	if err != nil {
		return nil, fault(Unclear, err.Error())
	}
	return models, nil
}

func (d *modelList) call(ctx context.Context, method, path string) (answerText, error) {
	var text bytes.Buffer
	is, err := d.ask(ctx, call{method: method, address: d.managedAt(), path: path}, &text)
	if err != nil {
		return answerText{}, err
	}
	return answerText{answer: answerTo(is, text.Bytes()[:min(text.Len(), maxAnswer)]), body: text.Bytes()}, nil
}

// refusal converts an unsuccessful answer to an Error.
func (d *modelList) refusal(said answerText) *Error {
	words := said.String()
	switch said.status {
	case http.StatusUnauthorized, http.StatusForbidden:
		words += ": " + engineclient.WantsToken
	case http.StatusNotFound:
		words += ": " + listAbsent
	}
	refused := fault(Unclear, words)
	refused.Transient = isTransient(said.status)
	return refused
}
