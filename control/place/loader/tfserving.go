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

// What TensorFlow Serving does is as its protocol, its source and its users' reports have it
// (tensorflow_serving/model_servers/server_core.cc, issues 1447, 1519 and 1565 of its repository);
// no real one was run.

const (
	// tfLoads is how many lists of models it takes at once: it locks them, until all that is new
	// has been loaded.
	tfLoads = 1
	// tfPlatform is what models are, for a server that nobody built with others.
	tfPlatform = "tensorflow"
	// tfAbsent says what to do about an address that takes no lists.
	tfAbsent = "it takes no lists of models there: name its gRPC port in ports"
)

// tfServing drives a TensorFlow Serving over gRPC. It is told a list of all models, and unloads
// what that leaves out; and it cannot be asked for the list. So the driver keeps it, and one change
// follows the other: what was recalled or loaded here is on it, as long as the engine has it. What
// the engine has beside, since somebody else configured it, leaves with the first change.
type tfServing struct {
	unsized
	Endpoint
	conn  *grpc.ClientConn
	calls tensorflow.ModelServiceClient

	changing chan struct{} // has one place: full while the list is being changed; never closed

	mu       sync.Mutex // guards what follows
	looked   bool       // the list is known
	recalled map[string]string
	list     map[string]string // base paths, by names
	// unsure are models of which nobody knows whether the list that the engine has holds them: it
	// was sent, and the answer did not come.
	unsure map[string]bool
	had    held
	ends   int  // of loads and unloads
	anew   bool // the engine has begun anew, and no look has told it
}

func openTFServing(e Endpoint, a engineclient.Access) (*tfServing, error) {
	d := &tfServing{Endpoint: e, changing: make(chan struct{}, 1), list: make(map[string]string), unsure: make(map[string]bool),
		had: make(held)}
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

// recall is [Loader.Recall].
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

// Look asks for each model of the list, the first time for those that were recalled.
func (d *tfServing) Look(ctx context.Context, _ Record) (Seen, error) {
	d.mu.Lock()
	ends, had, asked := d.ends, maps.Clone(d.had), maps.Clone(d.list)
	if !d.looked {
		asked = maps.Clone(d.recalled)
	}
	d.mu.Unlock()
	s := Seen{Incarnation: d.Incarnation, Takes: true, Lists: true, Limits: Limits{Loads: tfLoads}}
	found := make(map[string]engine.Stage, len(asked))
	for _, id := range slices.Sorted(maps.Keys(asked)) {
		now, err := d.stage(ctx, id)
		if err != nil {
			return Seen{}, err
		}
		if found[id] = now.Stage; now.Stage != engine.Stored {
			s.Models = append(s.Models, Listed{ID: id, State: listedStates[now.Stage]})
		}
	}
	if len(asked) == 0 { // whether it is there, and lets us in
		if _, err := d.stage(ctx, nobody); err != nil {
			return Seen{}, err
		}
	}
	d.note(ends, had, asked, found)
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Purged, d.anew = d.anew, false
	return s, nil
}

// note notes what a look found of the models that it asked for, when so many calls had ended and
// the engine had had what it had.
func (d *tfServing) note(ends int, had held, asked map[string]string, found map[string]engine.Stage) {
	d.mu.Lock()
	defer d.mu.Unlock()
	there := make(map[string]bool, len(found))
	for id, stage := range found {
		there[id] = stage != engine.Stored
	}
	d.anew = d.had.compare(there, had) || d.anew
	if ends != d.ends || len(d.changing) > 0 {
		return // what is on the list is about to be known better
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
			delete(d.list, id) // else it would be loaded with the next change
		}
	}
}

// change waits until no other change of the list goes on, and returns what ends this one.
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

// send sends the list with a model, or without one where its path is empty, and without what the
// engine turns out to have no more. Taken says of a call that failed that the engine has that list
// all the same.
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
			delete(list, name) // else it would be loaded
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
		d.list[id] = path // it may have it, and it must not leave with the change of another model
	}
	return failed, taken
}

// untaken are the codes with which it answers a list that it does not take; with any other one it
// has taken it, and a model of it has failed.
var untaken = map[codes.Code]bool{
	codes.InvalidArgument: true, codes.FailedPrecondition: true, codes.Unauthenticated: true, codes.PermissionDenied: true,
	codes.Unimplemented: true,
}

// refusedCall is a call that failed, as an Error; nil for one that did not. Refused is one that the
// engine answered.
func refusedCall(method string, err error, to peer.Peer) *Error {
	if err == nil {
		return nil
	}
	words := method + ": " + sayStatus(err)
	switch status.Code(err) {
	case codes.Unavailable:
		if unconnected(err, to) {
			return fault(Unreached, words)
		}
		return passingFault(Unclear, words)
	case codes.DeadlineExceeded, codes.Canceled:
		return fault(Unclear, words)
	case codes.Unauthenticated, codes.PermissionDenied:
		words += ": " + engineclient.WantsToken
	case codes.Unimplemented:
		words += ": " + tfAbsent
	}
	return fault(Refused, words)
}

// Load sends the list with the model, which the engine answers when that serves or has failed. One
// that it is loading already, since an earlier call whose caller left, is waited for.
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
	case came.came: // it failed
		return Loaded{}, d.leave(ctx, m.ID, "the engine did not load it: "+came.Reason)
	case listed: // a model that is on the list is not loaded again
		if failed, _ := d.send(ctx, m.ID, ""); failed != nil {
			return Loaded{}, unsettled(failed)
		}
	}
	failed, taken := d.send(ctx, m.ID, m.Source)
	switch {
	case failed == nil:
	case taken: // it is on the list, too, when it has failed
		words := failed.Words
		if now, err := d.stage(ctx, m.ID); err == nil && now.Reason != "" {
			words += ": " + now.Reason
		}
		return Loaded{}, d.leave(ctx, m.ID, words)
	default:
		if failed.Outcome == Unclear {
			failed.Words += d.pending(ctx, m)
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

// pending says what else is known of a list that was not answered in time; empty for nothing.
func (d *tfServing) pending(ctx context.Context, m Model) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	if now, err := d.stage(ctx, m.ID); err != nil || now.Stage != engine.Stored {
		return ""
	}
	return fmt.Sprintf("; the engine finds no version of the model, and takes no other list until it does: is there a folder with a number for its name in %s?",
		m.Source)
}

// leave takes a model that failed off the list, without which it could not be loaded again.
func (d *tfServing) leave(ctx context.Context, id, words string) error {
	if failed, _ := d.send(ctx, id, ""); failed != nil {
		return fault(Unclear, fmt.Sprintf("%s; control cannot take it off the list: %s", words, failed.Words))
	}
	return fault(Refused, words)
}

// unsettled is the failure of a list of which something is left.
func unsettled(failed *Error) error {
	if failed.Outcome == Refused {
		failed.Outcome = Unclear
	}
	return failed
}

// Unload sends the list without the model, and waits until the memory is free, of which the answer
// says nothing.
func (d *tfServing) Unload(ctx context.Context, id string) error {
	if engine.CheckStored(d.Kind, id) != nil {
		return nil // it was never told
	}
	d.forget(id)
	end, err := d.change(ctx)
	if err != nil {
		return fault(Unclear, err.Error()) // the engine is there
	}
	defer end()
	defer d.forget(id) // a look may have had it meanwhile
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

// lists says whether the list that the engine has holds a model, or may hold it.
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

// forget notes that a model is about to be unloaded: that it is gone says nothing of the engine.
func (d *tfServing) forget(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.had.note(id, false)
}

// await asks for a model until it is as far as it is to be.
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

// stage asks how far a model is there.
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

// tfStages are the states of a version. One that nobody knows is taken for that of a version which
// may come.
var tfStages = map[tensorflow.ModelVersionStatus_State]engine.Stage{
	tensorflow.ModelVersionStatus_AVAILABLE: engine.Serving, tensorflow.ModelVersionStatus_UNLOADING: engine.Leaving,
	tensorflow.ModelVersionStatus_END: engine.Stored,
}

// stageOf is how far a model is whose versions are told: as far as that which is furthest. The
// reason is that of the newest version that failed.
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
