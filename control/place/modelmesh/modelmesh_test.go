package modelmesh_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/modelmesh"
	"github.com/headgate/headgate/internal/objects"
)

var pool = objects.Name{Namespace: "default", Name: "p"}

// placer is a Placer whose state the test sets.
type placer struct {
	modelmesh.Placer
	pool     error
	register error

	mu     sync.Mutex // guards the fields below
	there  bool
	model  *v1alpha1.Model
	used   time.Time
	asked  int
	status decide.Status
	vmodel decide.VModelStatus
	news   chan struct{} // receives a value when the status has changed
}

func newPlacer() *placer { return &placer{news: make(chan struct{}, 1)} }

func (p *placer) Pool() (objects.Name, error) { return pool, p.pool }

func (p *placer) Register(m *v1alpha1.Model, used time.Time) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := !p.there
	p.model, p.used, p.there = m, used, true
	return fresh, p.register
}

func (p *placer) Unregister(decide.Key) error { return p.register }

func (p *placer) SetVModel(*v1alpha1.VModel, *v1alpha1.Model, decide.Conditions) error {
	return p.register
}

func (p *placer) DeleteVModel(decide.Key, string) error { return p.register }

func (p *placer) VModel(decide.Key) (st decide.VModelStatus, owner string, there bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.vmodel, "", p.vmodel.Active != ""
}

func (p *placer) Ensure(_ decide.Key, used time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used = used
	p.asked++
	p.status.Asked = true
}

func (p *placer) Status(decide.Key) (decide.Status, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status, p.there
}

func (p *placer) set(st decide.Status) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.there = st, true
	select {
	case p.news <- struct{}{}:
	default:
	}
}

func (p *placer) Await(ctx context.Context, key decide.Key, done func(decide.Status) bool) (decide.Status, bool, error) {
	for {
		st, there := p.Status(key)
		if !there || done(st) {
			return st, there, nil
		}
		select {
		case <-p.news:
		case <-ctx.Done():
			return st, there, ctx.Err()
		}
	}
}

func at(minutes int) time.Time { return time.Date(2026, 1, 2, 3, minutes, 0, 0, time.UTC) }

func copyAt(endpoint string, state decide.CopyState, minutes int) decide.Copy {
	return decide.Copy{
		CopyKey: decide.CopyKey{ModelKey: decide.Key{Pool: pool, ID: "m"}, Endpoint: endpoint}, State: state,
		Since: at(minutes),
	}
}

func failure(endpoint, words string, minutes int) decide.Failure {
	return decide.Failure{Endpoint: endpoint, Message: words, At: at(minutes)}
}

// say formats a status on one line: the status, each copy, and the errors.
func say(st *mmesh.ModelStatusInfo) string {
	all := []string{st.GetStatus().String()}
	for _, c := range st.GetModelCopyInfos() {
		all = append(all, c.GetLocation()+"="+c.GetCopyStatus().String()+"@"+time.UnixMilli(int64(c.GetTime())).UTC().Format("4"))
	}
	for _, e := range st.GetErrors() {
		all = append(all, "'"+e+"'")
	}
	return strings.Join(all, " ")
}

// The status of a model follows from its copies and from its failures, newest first.
func TestStatuses(t *testing.T) {
	for want, st := range map[string]decide.Status{
		"NOT_LOADED":                           {},
		"LOADING e1=LOADING@1":                 {Copies: []decide.Copy{copyAt("e1", decide.Queued, 1)}},
		"LOADING e2=LOADING@2 e1=NOT_LOADED@1": {Copies: []decide.Copy{copyAt("e1", decide.Unloading, 1), copyAt("e2", decide.Loading, 2)}},
		"LOADED e2=LOADING@3 e1=LOADED@1":      {Copies: []decide.Copy{copyAt("e1", decide.Loaded, 1), copyAt("e2", decide.Loading, 3)}},
		"LOADED e2=LOADING_FAILED@4 e1=LOADED@1": {
			Copies: []decide.Copy{copyAt("e1", decide.Loaded, 1)}, Failures: []decide.Failure{failure("e2", "disk", 4)},
		},
		// A draining copy gets no new requests.
		"NOT_LOADED e1=NOT_LOADED@1": {Copies: []decide.Copy{copyAt("e1", decide.Draining, 1)}},
		"LOADING e2=LOADING@5 e1=LOADING_FAILED@1": {
			Copies: []decide.Copy{copyAt("e2", decide.Queued, 5)}, Failures: []decide.Failure{failure("e1", "disk", 1)},
		},
		"LOADING_FAILED e2=LOADING_FAILED@3 e1=LOADING_FAILED@1 'disk' 'memory'": {
			Failures: []decide.Failure{failure("e1", "disk", 1), failure("e2", "memory", 3)}, Why: decide.LoadFailed,
		},
		"NOT_LOADED 'it is larger than any endpoint'": {Why: decide.TooLarge},
		// The load is retried for queued requests.
		"LOADING e1=LOADING_FAILED@1": {
			Queued: 1, Retrying: true,
			Failures: []decide.Failure{{Endpoint: "e1", At: failure("e1", "", 1).At, Message: "busy", Why: decide.LoadRetried}},
		},
		// The failure has expired, and the next load has not begun.
		"LOADING": {Asked: true, Retrying: true},
		// No request is queued, and the load has failed too often.
		"LOADING_FAILED e1=LOADING_FAILED@1 'busy'": {
			Asked: true, Retrying: true, Exhausted: true,
			Failures: []decide.Failure{failure("e1", "busy", 1)},
		},
	} {
		p := newPlacer()
		p.set(st)
		got, err := modelmesh.New(p).GetModelStatus(t.Context(), &mmesh.GetStatusRequest{ModelId: "m"})
		if err != nil || say(got) != want {
			t.Errorf("%s, %v; want %s", say(got), err, want)
		}
	}
	got, err := modelmesh.New(newPlacer()).GetModelStatus(t.Context(), &mmesh.GetStatusRequest{ModelId: "m"})
	if err != nil || say(got) != "NOT_FOUND" { // a status, not an error
		t.Errorf("%s, %v", say(got), err)
	}
}

// Invalid calls and errors of placement are answered with the same codes as in ModelMesh.
func TestErrors(t *testing.T) {
	info := &mmesh.ModelInfo{Type: "t"}
	register := func(id string, info *mmesh.ModelInfo) func(*modelmesh.Server) error {
		return func(s *modelmesh.Server) error {
			_, err := s.RegisterModel(t.Context(), &mmesh.RegisterModelRequest{ModelId: id, ModelInfo: info})
			return err
		}
	}
	unregister := func(id string) func(*modelmesh.Server) error {
		return func(s *modelmesh.Server) error {
			_, err := s.UnregisterModel(t.Context(), &mmesh.UnregisterModelRequest{ModelId: id})
			return err
		}
	}
	set := func(r *mmesh.SetVModelRequest) func(*modelmesh.Server) error {
		return func(s *modelmesh.Server) error {
			_, err := s.SetVModel(t.Context(), r)
			return err
		}
	}
	v := &mmesh.SetVModelRequest{VModelId: "v", TargetModelId: "m"}
	remove := func(id string) func(*modelmesh.Server) error {
		return func(s *modelmesh.Server) error {
			_, err := s.DeleteVModel(t.Context(), &mmesh.DeleteVModelRequest{VModelId: id})
			return err
		}
	}
	for name, c := range map[string]struct {
		placer *placer
		call   func(*modelmesh.Server) error
		code   codes.Code
		words  string
	}{
		"register without an id": {call: register("", info), code: codes.InvalidArgument, words: "modelId must not be empty"},
		"register without info": {
			call: register("m", nil), code: codes.InvalidArgument,
			words: "modelInfo must be there, with a type",
		},
		"register without a type": {
			call: register("m", &mmesh.ModelInfo{Path: "p"}), code: codes.InvalidArgument,
			words: "with a type",
		},
		"register a path": {
			call: register("../m", info), code: codes.InvalidArgument,
			words: `no model can have the id "../m": it is a path`,
		},
		"register a long path": {
			call: register("m", &mmesh.ModelInfo{Type: "lora", Path: strings.Repeat("p", 4097)}),
			code: codes.InvalidArgument, words: "modelInfo.path: Too long",
		},
		"register a long key": {
			call: register("m", &mmesh.ModelInfo{Type: "lora", Key: strings.Repeat("k", 65537)}),
			code: codes.InvalidArgument, words: "modelInfo.key: Too long",
		},
		"register a long type": {
			call: register("m", &mmesh.ModelInfo{Type: strings.Repeat("t", 513)}), code: codes.InvalidArgument,
			words: "modelInfo.type: Too long",
		},
		"register another of the id": {
			placer: &placer{register: decide.ErrExists}, call: register("m", info), code: codes.AlreadyExists,
			words: "Model already exists with different attribute values",
		},
		"register on a full disk": {
			placer: &placer{register: errors.New("no space")}, call: register("m", info), code: codes.Internal,
			words: "no space",
		},
		"register without a pool": {
			placer: &placer{pool: errors.New("say --mesh-pool")}, call: register("m", info),
			code: codes.FailedPrecondition, words: "--mesh-pool",
		},
		"unregister without an id":   {call: unregister(""), code: codes.InvalidArgument, words: "modelId"},
		"unregister what is unknown": {call: unregister("m")},
		"unregister what objects say": {
			placer: &placer{register: decide.ErrDeclared}, call: unregister("m"),
			code: codes.FailedPrecondition, words: "delete that",
		},
		"unregister on a full disk": {
			placer: &placer{register: errors.New("no space")}, call: unregister("m"), code: codes.Internal,
			words: "no space",
		},
		"status without an id": {call: func(s *modelmesh.Server) error {
			_, err := s.GetModelStatus(t.Context(), &mmesh.GetStatusRequest{})
			return err
		}, code: codes.InvalidArgument},
		"ensure without an id": {call: func(s *modelmesh.Server) error {
			_, err := s.EnsureLoaded(t.Context(), &mmesh.EnsureLoadedRequest{})
			return err
		}, code: codes.InvalidArgument},
		"ensure what is unknown": {call: func(s *modelmesh.Server) error {
			_, err := s.EnsureLoaded(t.Context(), &mmesh.EnsureLoadedRequest{ModelId: "m"})
			return err
		}, code: codes.NotFound, words: "model not found"},
		"unregister what VModels name": {
			placer: &placer{register: fmt.Errorf("%w: v", decide.ErrReferred)}, call: unregister("m"),
			code: codes.FailedPrecondition, words: "VModels name the model: move or delete them first: v",
		},
		"set a VModel without an id": {
			call: set(&mmesh.SetVModelRequest{TargetModelId: "m"}), code: codes.InvalidArgument,
			words: "vModelId must not be empty",
		},
		"set a VModel without a target": {
			call: set(&mmesh.SetVModelRequest{VModelId: "v"}), code: codes.InvalidArgument,
			words: "targetModelId must not be empty",
		},
		"set a VModel to no type": {call: set(&mmesh.SetVModelRequest{
			VModelId: "v", TargetModelId: "m",
			ModelInfo: &mmesh.ModelInfo{},
		}), code: codes.InvalidArgument, words: "with a type"},
		"set a VModel to another model": {
			placer: &placer{register: decide.ErrExists}, call: set(v), code: codes.AlreadyExists,
			words: "Model already exists with different attribute values",
		},
		"set a VModel of somebody else": {
			placer: &placer{register: &decide.OwnedError{Owner: "o"}}, call: set(v),
			code: codes.AlreadyExists, words: `vmodel v already exists with different owner "o"`,
		},
		"move a VModel that is not": {
			placer: &placer{register: decide.ErrNoVModel}, call: set(v), code: codes.NotFound,
			words: "vmodel not found",
		},
		"set a VModel to no model": {
			placer: &placer{register: decide.ErrNoModel}, call: set(v), code: codes.NotFound,
			words: "model not found",
		},
		"move a VModel that moved": {
			placer: &placer{register: decide.ErrUnexpected}, call: set(v), code: codes.FailedPrecondition,
			words: "another target",
		},
		"move a VModel that objects say": {placer: &placer{register: decide.ErrDeclared}, call: set(v), code: codes.FailedPrecondition},
		"set a VModel on a full disk": {
			placer: &placer{register: errors.New("no space")}, call: set(v), code: codes.Internal,
			words: "no space",
		},
		"delete a VModel without an id": {call: remove(""), code: codes.InvalidArgument, words: "vModelId"},
		"delete a VModel that objects say": {
			placer: &placer{register: decide.ErrDeclared}, call: remove("v"),
			code: codes.FailedPrecondition,
		},
		"delete a VModel on a full disk": {
			placer: &placer{register: errors.New("no space")}, call: remove("v"), code: codes.Internal,
			words: "no space",
		},
		"status of a VModel without an id": {call: func(s *modelmesh.Server) error {
			_, err := s.GetVModelStatus(t.Context(), &mmesh.GetVModelStatusRequest{})
			return err
		}, code: codes.InvalidArgument},
	} {
		p := c.placer
		if p == nil {
			p = newPlacer()
		}
		err := c.call(modelmesh.New(p))
		if status.Code(err) != c.code || !strings.Contains(status.Convert(err).Message(), c.words) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.code, c.words)
		}
	}
}

// A registered model is a Model with a valid object name, although ids are any UTF-8.
func TestRegisteredModelIsAnObject(t *testing.T) {
	names := make(map[string]string)
	for _, id := range []string{"m", "模型/v1", "模型/v2", strings.Repeat("é", 256)} {
		p := newPlacer()
		if _, err := modelmesh.New(p).RegisterModel(t.Context(), &mmesh.RegisterModelRequest{
			ModelId: id, ModelInfo: &mmesh.ModelInfo{Type: "lora", Path: "s3://a", Key: `{"k":1}`},
		}); err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		want := v1alpha1.ModelSpec{ID: id, PoolRef: v1alpha1.PoolReference{Name: "p"}, Type: "lora", Source: "s3://a", Key: `{"k":1}`}
		if p.model.Spec != want || p.model.Namespace != "default" {
			t.Errorf("%s: %+v", id, p.model)
		}
		if errs := objects.CheckModelObject(p.model); len(errs) > 0 {
			t.Errorf("%s: %v", id, errs)
		}
		if other, taken := names[p.model.Name]; taken {
			t.Errorf("%s and %s are both %s", id, other, p.model.Name)
		}
		names[p.model.Name] = id
	}
}

// A model that is registered without a time of last use gets one: an hour ago if it is loaded at
// once, otherwise six hours ago. A future time becomes now.
func TestWhenAModelCountsAsUsed(t *testing.T) {
	info := &mmesh.ModelInfo{Type: "t"}
	ago := func(d time.Duration) uint64 { return uint64(time.Now().Add(-d).UnixMilli()) }
	for _, c := range []struct {
		loadNow bool
		used    uint64
		want    time.Duration
	}{
		{false, 0, 6 * time.Hour},
		{true, 0, time.Hour},
		{false, ago(20 * time.Minute), 20 * time.Minute},
		{true, ago(90 * time.Minute), 90 * time.Minute},
		{true, ago(-time.Hour), 0},
	} {
		p := newPlacer()
		if _, err := modelmesh.New(p).RegisterModel(t.Context(),
			&mmesh.RegisterModelRequest{ModelId: "m", ModelInfo: info, LoadNow: c.loadNow, LastUsedTime: c.used}); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(p.used).Round(time.Minute); got != c.want || p.asked == 1 != c.loadNow {
			t.Errorf("%+v: used %v ago, asked for %d times", c, got, p.asked)
		}
	}
	for used, want := range map[uint64]time.Duration{0: 0, ago(time.Hour): time.Hour} {
		p := newPlacer()
		p.set(decide.Status{})
		if _, err := modelmesh.New(p).EnsureLoaded(t.Context(), &mmesh.EnsureLoadedRequest{ModelId: "m", LastUsedTime: used}); err != nil {
			t.Fatal(err)
		}
		if got := time.Since(p.used).Round(time.Minute); got != want || p.asked != 1 {
			t.Errorf("ensured with %d: used %v ago, asked for %d times", used, got, p.asked)
		}
	}
}

// With sync, a call returns when the load has ended; without sync, at once.
func TestSyncCallWaitsForTheLoad(t *testing.T) {
	loading := decide.Status{Copies: []decide.Copy{copyAt("e1", decide.Loading, 1)}, Asked: true}
	for want, end := range map[string]decide.Status{
		"LOADED e1=LOADED@2":                          {Copies: []decide.Copy{copyAt("e1", decide.Loaded, 2)}},
		"LOADING_FAILED e1=LOADING_FAILED@2 'disk'":   {Failures: []decide.Failure{failure("e1", "disk", 2)}, Why: decide.LoadFailed},
		"NOT_LOADED 'it is larger than any endpoint'": {Why: decide.TooLarge},
		"NOT_LOADED": {}, // the model was loaded and evicted again
	} {
		p := newPlacer()
		p.set(decide.Status{})
		s := modelmesh.New(p)
		if got, err := s.EnsureLoaded(t.Context(), &mmesh.EnsureLoadedRequest{ModelId: "m"}); err != nil || say(got) != "NOT_LOADED" {
			t.Errorf("without sync: %s, %v", say(got), err)
		}
		answered := make(chan string, 1)
		go func() {
			got, err := s.EnsureLoaded(t.Context(), &mmesh.EnsureLoadedRequest{ModelId: "m", Sync: true})
			if err != nil {
				answered <- err.Error()
			}
			answered <- say(got)
		}()
		p.set(loading)
		select {
		case got := <-answered:
			t.Errorf("it answers %s while the model is loading", got)
		case <-time.After(20 * time.Millisecond):
		}
		p.set(end)
		if got := <-answered; got != want {
			t.Errorf("it answers %s, want %s", got, want)
		}
	}
}

func TestDeadlineEndsOnlyTheWait(t *testing.T) {
	p := newPlacer()
	p.set(decide.Status{Copies: []decide.Copy{copyAt("e1", decide.Loading, 1)}})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := modelmesh.New(p).EnsureLoaded(ctx, &mmesh.EnsureLoadedRequest{ModelId: "m", Sync: true})
	if status.Code(err) != codes.DeadlineExceeded {
		t.Error(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = modelmesh.New(p).RegisterModel(canceled,
		&mmesh.RegisterModelRequest{ModelId: "m", ModelInfo: &mmesh.ModelInfo{Type: "t"}, LoadNow: true, Sync: true})
	if status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// A VModel is in transition until its requests go to the target. The target is reported as failed
// only if no other load of it is in progress.
func TestStatusesOfVModels(t *testing.T) {
	failed := decide.Status{Failures: []decide.Failure{failure("e1", "disk", 1)}, Why: decide.LoadFailed}
	loaded := decide.Status{Copies: []decide.Copy{copyAt("e1", decide.Loaded, 1)}}
	vmodel := func(active, target string, why decide.Reason) (st decide.VModelStatus) {
		st.Active, st.Target, st.Failed = active, target, why
		return st
	}
	for _, c := range []struct {
		st     decide.VModelStatus
		models decide.Status
		want   mmesh.VModelStatusInfo_VModelStatus
		target string
	}{
		{vmodel("", "", ""), loaded, mmesh.VModelStatusInfo_NOT_FOUND, "NOT_FOUND"},
		{vmodel("a", "a", ""), loaded, mmesh.VModelStatusInfo_DEFINED, "NOT_FOUND"},
		{vmodel("a", "b", ""), loaded, mmesh.VModelStatusInfo_TRANSITIONING, "LOADED e1=LOADED@1"},
		{vmodel("a", "b", ""), failed, mmesh.VModelStatusInfo_TRANSITIONING, "LOADING e1=LOADING_FAILED@1 'disk'"},
		{
			vmodel("a", "b", decide.LoadFailed), failed, mmesh.VModelStatusInfo_TRANSITION_FAILED,
			"LOADING_FAILED e1=LOADING_FAILED@1 'disk'",
		},
	} {
		p := newPlacer()
		p.set(c.models)
		p.vmodel = c.st
		got, err := modelmesh.New(p).GetVModelStatus(t.Context(), &mmesh.GetVModelStatusRequest{VModelId: "v"})
		if err != nil || got.GetStatus() != c.want || got.GetActiveModelId() != c.st.Active || got.GetTargetModelId() != c.st.Target ||
			say(got.GetTargetModelStatus()) != c.target {
			t.Errorf("%s to %s: %v %s, %v; want %v %s", c.st.Active, c.st.Target, got.GetStatus(), say(got.GetTargetModelStatus()), err,
				c.want, c.target)
		}
		if got.GetActiveModelStatus() == nil {
			t.Errorf("%s to %s: no status of the active model", c.st.Active, c.st.Target)
		}
	}
}
