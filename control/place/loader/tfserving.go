package loader

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/tensorflow"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
)

// The behaviour of TensorFlow Serving is taken from its protocol, its source and its users' reports
// (tensorflow_serving/model_servers/server_core.cc, issues 1447, 1519 and 1565 of its repository);
// it was not tried with a real one.

const (
	// tfLoads is the number of concurrent loads: TensorFlow Serving accepts no other list of models
	// until all new models of the last one are loaded.
	tfLoads = 1
	// tfPlatform is the platform of every model. A server may be built without support for others.
	tfPlatform = "tensorflow"
	// tfAbsent is the advice for an address that accepts no lists.
	tfAbsent = "it takes no lists of models there: name its gRPC port in ports"
)

// tfServing is the driver of a TensorFlow Serving over gRPC. Each call sends the list of all
// models. The server unloads models that the list lacks, and cannot report the list. So the driver
// keeps the list, and makes one change at a time. The list contains the models that were recalled
// or loaded, as long as the engine has them. Models that the server was configured with in another
// way are unloaded by the first change.
type tfServing struct {
	unsized
	Endpoint
	conn  *grpc.ClientConn
	calls tensorflow.ModelServiceClient

	changing chan struct{} // capacity 1: full during a change of the list; never closed

	mu       sync.Mutex // guards the fields below
	looked   bool       // the list is known
	recalled map[string]string
	list     map[string]string // base path of each model on the list, by name
	// unsure are models that the engine's list may or may not contain: a list was sent, and no
	// answer arrived.
	unsure    map[string]bool
	had       loadedModels
	ends      int  // number of loads and unloads that have ended
	restarted bool // the engine has restarted, and no scrape has reported that yet
}

func openTFServing(e Endpoint, a engineclient.Access) (*tfServing, error) {
	d := &tfServing{
		Endpoint: e, changing: make(chan struct{}, 1), list: make(map[string]string), unsure: make(map[string]bool),
		had: make(loadedModels),
	}
	at := cmp.Or(e.GRPC, e.Address)
	own, err := a.Config(e.Host, at)
	if err != nil {
		return nil, err
	}
	d.conn, err = connect(a, own, at, func(ctx context.Context) (net.Conn, error) { return a.DialContext(ctx, "tcp", at) })
	if err != nil {
		return nil, err
	}
	d.calls = tensorflow.NewModelServiceClient(d.conn)
	return d, nil
}

func (d *tfServing) Close() error { return d.conn.Close() }

// recall implements [Loader.Recall].
func (d *tfServing) recall(told []Model) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recalled = nil
	if d.looked {
		return
	}
	d.recalled = make(map[string]string, len(told))
	for _, m := range told {
		if engine.CheckStored(d.Kind, m.ID) == nil {
			d.recalled[m.ID] = m.Source
		}
	}
}

// Scrape queries each model on the list. The first Scrape queries the recalled models.
func (d *tfServing) Scrape(ctx context.Context, _ Record) (ScrapeResult, error) {
	d.mu.Lock()
	ends, had, asked := d.ends, maps.Clone(d.had), maps.Clone(d.list)
	if !d.looked {
		asked = maps.Clone(d.recalled)
	}
	d.mu.Unlock()
	s := ScrapeResult{Incarnation: d.Incarnation, Takes: true, Lists: true, Limits: Limits{Loads: tfLoads}}
	found := make(map[string]engine.Stage, len(asked))
	for _, id := range slices.Sorted(maps.Keys(asked)) {
		now, err := d.stage(ctx, id)
		if err != nil {
			return ScrapeResult{}, err
		}
		if found[id] = now.Stage; now.Stage != engine.Stored {
			s.Models = append(s.Models, Listed{ID: id, State: listedStates[now.Stage]})
		}
	}
	if len(asked) == 0 { // check that the engine answers and accepts the token
		if _, err := d.stage(ctx, noSuchModel); err != nil {
			return ScrapeResult{}, err
		}
	}
	d.note(ends, had, asked, found)
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Purged, d.restarted = d.restarted, false
	return s, nil
}

// note records the result of a scrape: the stages that it found. The other arguments are from the
// beginning of the scrape: the number of ended calls, the engine's models, and the queried models.
func (d *tfServing) note(ends int, had loadedModels, asked map[string]string, found map[string]engine.Stage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	there := make(map[string]bool, len(found))
	for id, stage := range found {
		there[id] = stage != engine.Stored
	}
	d.restarted = d.had.compare(there, had) || d.restarted
	if ends != d.ends || len(d.changing) > 0 {
		return // a load or unload meanwhile knows the list better
	}
	if !d.looked {
		d.looked, d.list, d.recalled = true, asked, nil
		if d.list == nil {
			d.list = make(map[string]string)
		}
	}
	for id, stage := range found {
		switch stage {
		case engine.Serving:
			d.had[id] = true
		case engine.Stored:
			delete(d.list, id) // otherwise the next change would load it again
		}
	}
}

// change waits until no other change of the list is in progress, and returns a function that ends
// this one.
func (d *tfServing) change(ctx context.Context) (end func(), err error) {
	select {
	case d.changing <- struct{}{}:
	case <-ctx.Done():
		return nil, fault(Unreached, "control did not ask the engine, which is told one list of models after the other: "+ctx.Err().Error())
	}
	d.mu.Lock()
	looked := d.looked
	d.mu.Unlock()
	if !looked {
		<-d.changing
		return nil, fault(Unreached, "control has not looked at the engine yet, and knows no list of its models")
	}
	return func() {
		d.mu.Lock()
		d.ends++
		d.mu.Unlock()
		<-d.changing
	}, nil
}

// send sends the list with the model id added, or removed if path is empty, and without models that
// the engine turns out to lack. If the call fails, taken reports whether the engine accepted the
// list nevertheless.
func (d *tfServing) send(ctx context.Context, id, path string) (failed *Error, taken bool) {
	d.mu.Lock()
	list, was := maps.Clone(d.list), d.unsure[id]
	d.mu.Unlock()
	delete(list, id)
	for _, name := range slices.Sorted(maps.Keys(list)) {
		now, err := d.stage(ctx, name)
		if err != nil {
			return faultOf(err), false
		}
		if now.Stage == engine.Stored {
			delete(list, name) // otherwise this call would load it again
		}
	}
	if path != "" {
		list[id] = path
	}
	d.mu.Lock()
	d.unsure[id] = true
	d.mu.Unlock()
	configs := make([]*tensorflow.ModelConfig, 0, len(list))
	for _, name := range slices.Sorted(maps.Keys(list)) {
		configs = append(configs, &tensorflow.ModelConfig{Name: name, BasePath: list[name], ModelPlatform: tfPlatform})
	}
	var to peer.Peer
	_, err := d.calls.HandleReloadConfigRequest(ctx, &tensorflow.ReloadConfigRequest{Config: &tensorflow.ModelServerConfig{
		Config: &tensorflow.ModelServerConfig_ModelConfigList{ModelConfigList: &tensorflow.ModelConfigList{Config: configs}},
	}}, grpc.Peer(&to))
	failed = refusedCall("HandleReloadConfigRequest", err, to)
	taken = failed == nil || failed.Outcome == Refused && !untaken[status.Code(err)]
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case taken:
		d.list = list
		clear(d.unsure)
	case failed.Outcome != Unclear:
		d.unsure[id] = was
	case path != "":
		d.list[id] = path // the engine may have it, and a change of another model must not unload it
	}
	return failed, taken
}

// untaken are the codes with which the engine rejects a list. Any other error code means that the
// engine has accepted the list, and one of its models has failed.
var untaken = map[codes.Code]bool{
	codes.InvalidArgument: true, codes.FailedPrecondition: true, codes.Unauthenticated: true, codes.PermissionDenied: true,
	codes.Unimplemented: true,
}

// refusedCall converts a failed call to an Error, Refused if the engine answered; nil for a
// successful one.
func refusedCall(method string, err error, to peer.Peer) *Error {
	if err == nil {
		return nil
	}
	words := method + ": " + formatStatus(err)
	switch status.Code(err) {
	case codes.Unavailable:
		if unconnected(err, to) {
			return fault(Unreached, words)
		}
		return transientFault(words)
	case codes.DeadlineExceeded, codes.Canceled:
		return fault(Unclear, words)
	case codes.Unauthenticated, codes.PermissionDenied:
		words += ": " + engineclient.WantsToken
	case codes.Unimplemented:
		words += ": " + tfAbsent
	}
	return fault(Refused, words)
}

// Load sends the list with the model. The engine answers once the model serves or has failed. If
// the engine is still loading the model for an abandoned call, Load first waits for that.
func (d *tfServing) Load(ctx context.Context, m Model) (Loaded, error) {
	if err := engine.CheckStored(d.Kind, m.ID); err != nil {
		return Loaded{}, fault(Refused, fmt.Sprintf("no model of TensorFlow Serving is called %q: %v", m.ID, err))
	}
	end, err := d.change(ctx)
	if err != nil {
		return Loaded{}, err
	}
	defer end()
	came, err := d.await(ctx, m.ID, func(s engine.Stage) bool { return s == engine.Serving || s == engine.Stored })
	if err != nil {
		return Loaded{}, err
	}
	switch listed := d.lists(m.ID); {
	case came.Stage == engine.Serving && listed:
		d.loaded(m.ID)
		return Loaded{}, nil
	case came.came: // the load of the abandoned call has failed
		return Loaded{}, d.leave(ctx, m.ID, "the engine did not load it: "+came.Reason)
	case listed: // the engine would not load a listed model again
		if failed, _ := d.send(ctx, m.ID, ""); failed != nil {
			return Loaded{}, unsettled(failed)
		}
	}
	failed, taken := d.send(ctx, m.ID, m.Source)
	switch {
	case failed == nil:
	case taken: // the list contains the model although it failed
		words := failed.Message
		if now, err := d.stage(ctx, m.ID); err == nil && now.Reason != "" {
			words += ": " + now.Reason
		}
		return Loaded{}, d.leave(ctx, m.ID, words)
	default:
		if failed.Outcome == Unclear {
			failed.Message += d.pending(ctx, m)
		}
		return Loaded{}, failed
	}
	now, err := d.stage(ctx, m.ID)
	switch {
	case err != nil:
		return Loaded{}, fault(Unclear, "the engine took the list, but does not say what it has: "+err.Error())
	case now.Stage != engine.Serving:
		return Loaded{}, fault(Unclear, "the engine took the list, but the model does not serve")
	}
	d.loaded(m.ID)
	return Loaded{}, nil
}

// pending returns a likely reason why the engine did not answer a list in time, or an empty text.
func (d *tfServing) pending(ctx context.Context, m Model) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	if now, err := d.stage(ctx, m.ID); err != nil || now.Stage != engine.Stored {
		return ""
	}
	return fmt.Sprintf("; the engine finds no version of the model, and takes no other list until it does: is there a folder with a number for its name in %s?",
		m.Source)
}

// leave removes a failed model from the list; otherwise it could not be loaded again.
func (d *tfServing) leave(ctx context.Context, id, words string) error {
	if failed, _ := d.send(ctx, id, ""); failed != nil {
		return fault(Unclear, fmt.Sprintf("%s; control cannot take it off the list: %s", words, failed.Message))
	}
	return fault(Refused, words)
}

// unsettled returns the Error of a call after which a part of the model may be left.
func unsettled(failed *Error) error {
	if failed.Outcome == Refused {
		failed.Outcome = Unclear
	}
	return failed
}

// Unload sends the list without the model. Then it waits until the memory is free, since the answer
// does not show that.
func (d *tfServing) Unload(ctx context.Context, id string) error {
	if engine.CheckStored(d.Kind, id) != nil {
		return nil // a model with an invalid name was never loaded
	}
	d.forget(id)
	end, err := d.change(ctx)
	if err != nil {
		return fault(Unclear, err.Error()) // not Unreached: the engine was reached
	}
	defer end()
	defer d.forget(id) // a scrape may have added it again meanwhile
	now, err := d.await(ctx, id, func(s engine.Stage) bool { return s != engine.Coming })
	if err != nil {
		return err
	}
	if now.Stage != engine.Stored || d.lists(id) {
		if failed, taken := d.send(ctx, id, ""); failed != nil && !taken {
			return unsettled(failed)
		}
	}
	_, err = d.await(ctx, id, func(s engine.Stage) bool { return s == engine.Stored })
	return err
}

// lists reports whether the engine's list contains a model, or may contain it.
func (d *tfServing) lists(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, listed := d.list[id]
	return listed || d.unsure[id]
}

func (d *tfServing) loaded(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.had.note(id, true)
}

// forget records that a model is about to be unloaded, so that its absence is no sign of a restart.
func (d *tfServing) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.had.note(id, false)
}

// await polls a model until done reports true for its stage.
func (d *tfServing) await(ctx context.Context, id string, done func(engine.Stage) bool) (finding, error) {
	came := false
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		now, err := d.stage(ctx, id)
		if err != nil {
			return finding{}, err
		}
		if done(now.Stage) {
			return finding{StoredModel: now, came: came}, nil
		}
		came = came || now.Stage == engine.Coming
		if !wait(ctx, pause) {
			return finding{}, fault(Unclear, fmt.Sprintf("the engine is still %s the model: %v", doing[now.Stage], ctx.Err()))
		}
	}
}

// stage queries the stage of a model.
func (d *tfServing) stage(ctx context.Context, id string) (engine.StoredModel, error) {
	var to peer.Peer
	answer, err := d.calls.GetModelStatus(ctx, &tensorflow.GetModelStatusRequest{ModelSpec: &tensorflow.ModelSpec{Name: id}},
		grpc.Peer(&to))
	if status.Code(err) == codes.NotFound {
		return engine.StoredModel{Name: id}, nil
	}
	if failed := refusedCall("GetModelStatus", err, to); failed != nil {
		return engine.StoredModel{}, failed
	}
	return stageOf(id, answer.GetModelVersionStatus()), nil
}

// tfStages are the stages of version states. A version in an unknown state is treated as not loaded
// yet.
var tfStages = map[tensorflow.ModelVersionStatus_State]engine.Stage{
	tensorflow.ModelVersionStatus_AVAILABLE: engine.Serving, tensorflow.ModelVersionStatus_UNLOADING: engine.Leaving,
	tensorflow.ModelVersionStatus_END: engine.Stored,
}

// stageOf returns the stage of a model: that of its most advanced version. The reason is that of
// the newest failed version.
func stageOf(id string, versions []*tensorflow.ModelVersionStatus) engine.StoredModel {
	m := engine.StoredModel{Name: id}
	newest := int64(-1)
	for _, v := range versions {
		stage, known := tfStages[v.GetState()]
		if !known {
			stage = engine.Coming
		}
		m.Stage = max(m.Stage, stage)
		if words := v.GetStatus().GetErrorMessage(); words != "" && v.GetVersion() > newest {
			newest, m.Reason = v.GetVersion(), words
		}
	}
	return m
}
