package loader

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"sync"

	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// torchLoads is the number of concurrent loads at a TorchServe. Each model has a process of its
// own, so loads do not wait for each other.
const torchLoads = 2

// torchClosed is the advice for a TorchServe that does not allow loads.
const torchClosed = "start TorchServe with --enable-model-api, and name its management port in management"

// torchServe is the driver of a TorchServe, at its management port. A load call does not wait for
// the end of the load, since TorchServe would block a thread that answers other calls. Instead, the
// driver polls the model's description until a process serves it or has ended.
type torchServe struct {
	unsized
	caller

	mu        sync.Mutex // guards the fields below
	had       loadedModels
	calls     int  // number of ended loads, begun unloads and ended unloads
	restarted bool // the engine has restarted, and no scrape has reported that yet
	asked     bool // the engine was asked whether it allows loads
	closed    bool // the engine does not allow loads
}

func openTorchServe(e Endpoint, a engineclient.Access) *torchServe {
	return &torchServe{caller: newCaller(e, a), had: make(loadedModels)}
}

// Scrape reads the list, which contains only names, and the description of each model that is not
// yet known to serve.
func (d *torchServe) Scrape(ctx context.Context, _ Record) (ScrapeResult, error) {
	d.mu.Lock()
	calls, had := d.calls, maps.Clone(d.had)
	d.mu.Unlock()
	names, err := d.list(ctx)
	if err != nil {
		return ScrapeResult{}, err
	}
	s := ScrapeResult{Incarnation: d.Incarnation, Lists: true}
	there := make(map[string]bool, len(names))
	var serving []string
	for _, id := range names {
		if engine.CheckStored(d.Kind, id) != nil {
			continue
		}
		stage := engine.Serving
		if _, known := had[id]; !known {
			now, err := d.describe(ctx, id)
			if err != nil {
				return ScrapeResult{}, err
			}
			stage = now.Stage
		}
		if stage == engine.Stored {
			continue // no process serves the model, or it was removed meanwhile
		}
		there[id] = true
		s.Models = append(s.Models, Listed{ID: id, State: listedStates[stage]})
		if stage == engine.Serving {
			serving = append(serving, id)
		}
	}
	d.note(calls, had, there, serving)
	if s.Takes, err = d.open(ctx); err != nil {
		return ScrapeResult{}, err
	}
	s.Limits.Loads = torchLoads
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Purged, d.restarted = d.restarted, false
	return s, nil
}

// note records a list. calls and had are the number of calls and the engine's models when the list
// was requested.
func (d *torchServe) note(calls int, had loadedModels, there map[string]bool, serving []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.had.compare(there, had) {
		d.restarted, d.asked = true, false
	}
	if calls == d.calls {
		for _, id := range serving {
			d.had[id] = true
		}
	}
}

// list reads all pages of the list.
func (d *torchServe) list(ctx context.Context) (all []string, err error) {
	for next := ""; ; {
		said, err := d.call(ctx, http.MethodGet, engine.TorchModels(next))
		if err != nil {
			return nil, err
		}
		if said.status != http.StatusOK {
			return nil, d.refusal(said, engine.Unsure)
		}
		names, following, err := engine.ReadTorchModels(said.body)
		if err != nil {
			return nil, fault(Unclear, err.Error())
		}
		all = append(all, names...)
		if following == "" || following == next || len(names) == 0 {
			return all, nil
		}
		next = following
	}
}

// open reports whether the engine allows loads. It asks the engine once per incarnation.
func (d *torchServe) open(ctx context.Context) (bool, error) {
	d.mu.Lock()
	asked, closed := d.asked, d.closed
	d.mu.Unlock()
	if asked {
		return !closed, nil
	}
	said, err := d.call(ctx, http.MethodDelete, engine.TorchModel(noSuchModel))
	if err != nil {
		return false, err
	}
	told := engine.ReadTorchAnswer(said.status, said.body)
	if told == engine.Unsure || told == engine.Failed {
		return false, d.refusal(said, told)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked, d.closed = true, told == engine.Closed
	return !d.closed, nil
}

// Load registers a model, if it is not registered, and starts a process for it, if it has none. If
// a process is still starting for an abandoned call, Load waits for that.
func (d *torchServe) Load(ctx context.Context, m Model) (Loaded, error) {
	if err := engine.CheckStored(d.Kind, m.ID); err != nil {
		return Loaded{}, fault(Refused, fmt.Sprintf("no model of TorchServe is called %q: %v", m.ID, err))
	}
	loaded := false
	defer func() {
		d.change(func() {
			if loaded {
				d.had.note(m.ID, true)
			}
		})
	}()
	now, err := d.describe(ctx, m.ID)
	if err != nil {
		return Loaded{}, err
	}
	if now.Stage == engine.Stored {
		method, path := http.MethodPost, engine.TorchRegister(m.ID, m.Source)
		if now.Registered {
			method, path = http.MethodPut, engine.TorchScale(m.ID)
		}
		said, err := d.call(ctx, method, path)
		if err != nil {
			return Loaded{}, err
		}
		if told := engine.ReadTorchAnswer(said.status, said.body); told != engine.Done {
			failed := d.refusal(said, told)
			if told == engine.Absent {
				failed.Fault = engine.FilesMissing
			}
			return Loaded{}, failed
		}
	}
	if err := d.await(ctx, m.ID); err != nil {
		return Loaded{}, err
	}
	loaded = true
	return Loaded{}, nil
}

// await waits until a starting model serves. If its process ends first, the model is unregistered:
// otherwise TorchServe would restart the process forever, and requests would wait.
func (d *torchServe) await(ctx context.Context, id string) error {
	var before engine.TorchState
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		now, err := d.describe(ctx, id)
		switch {
		case err != nil:
			return fault(Unclear, "the engine was loading the model: "+err.Error())
		case now.Stage == engine.Serving:
			return nil
		case !now.Registered:
			return fault(Refused, "somebody unregistered the model while it was loaded")
		case now.Died(before):
			const words = "the process that was to serve the model ended: TorchServe's log says why"
			if err := d.unregister(ctx, id); err != nil {
				return fault(Unclear, fmt.Sprintf("%s; control cannot unregister it: %v", words, err))
			}
			return fault(Refused, words)
		}
		before = now
		if !wait(ctx, pause) {
			return fault(Unclear, fmt.Sprintf("the engine is still %s the model: %v", doing[engine.Coming], ctx.Err()))
		}
	}
}

// Unload unregisters a model, which also ends a load of it.
func (d *torchServe) Unload(ctx context.Context, id string) error {
	if engine.CheckStored(d.Kind, id) != nil {
		return nil // a model with an invalid name was never loaded
	}
	forget := func() { d.had.note(id, false) }
	d.change(forget) // before the call, so that the model's absence is no sign of a restart
	defer d.change(forget)
	return d.unregister(ctx, id)
}

// unregister returns once the engine has answered that the model's processes have ended, or that
// the model does not exist.
func (d *torchServe) unregister(ctx context.Context, id string) error {
	said, err := d.call(ctx, http.MethodDelete, engine.TorchModel(id))
	if err != nil {
		return err
	}
	switch told := engine.ReadTorchAnswer(said.status, said.body); told {
	case engine.Done, engine.Absent:
	default:
		return d.refusal(said, told)
	}
	now, err := d.describe(ctx, id)
	if err == nil && now.Registered {
		return fault(Unclear, fmt.Sprintf("the engine answered %v, but has the model still", said))
	}
	return err
}

// change counts the end of a load, or the beginning or the end of an unload, and records its
// outcome by calling note.
func (d *torchServe) change(note func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls++
	note()
}

// describe queries the stage of a model.
func (d *torchServe) describe(ctx context.Context, id string) (engine.TorchState, error) {
	said, err := d.call(ctx, http.MethodGet, engine.TorchModel(id))
	if err != nil {
		return engine.TorchState{}, err
	}
	state, err := engine.ReadTorchModel(said.status, said.body)
	if err != nil {
		return state, d.refusal(said, engine.Unsure)
	}
	return state, nil
}

// call sends a management request to the engine, and reads the answer.
func (d *torchServe) call(ctx context.Context, method, path string) (answerText, error) {
	var text bytes.Buffer
	is, err := d.ask(ctx, call{method: method, address: d.Management, path: path}, &text)
	if err != nil {
		return answerText{}, err
	}
	said := answerText{answer: answer{status: is.status, words: string(text.Bytes()[:min(text.Len(), maxAnswer)])}, body: text.Bytes()}
	if e, own := engine.ReadTorchError(said.body); own {
		said.words, said.known = e.Message, true
	}
	said.words = engineclient.Conceal(said.words, engineclient.Sent(is.to))
	return said, nil
}

// refusal converts an unsuccessful answer to an Error.
func (d *torchServe) refusal(said answerText, means engine.Told) *Error {
	e, _ := engine.ReadTorchError(said.body)
	outcome, words := Unclear, said.String()
	switch {
	case e.WantsToken():
		outcome, words = Refused, words+": "+engineclient.WantsToken
	case means == engine.Closed:
		outcome, words = Refused, words+": "+torchClosed
	case means == engine.Absent, means == engine.Failed && said.status/100 == 4:
		outcome = Refused
	case said.status/100 == 3:
		outcome, words = Refused, words+": a redirect, which is not followed"
	}
	refused := fault(outcome, words)
	refused.Transient = isTransient(said.status)
	return refused
}
