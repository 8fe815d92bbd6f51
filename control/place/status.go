package place

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/control/place/loader"
)

// Status is the status of a model, shown to operators as JSON.
type Status struct {
	Pool     string           `json:"pool"`
	ID       string           `json:"id"`
	Type     string           `json:"type"`
	Source   string           `json:"source"`
	Queued   int              `json:"queued,omitempty"` // number of waiting requests
	LastUsed *time.Time       `json:"lastUsed,omitempty"`
	Bytes    int64            `json:"bytes,omitempty"`
	Size     string           `json:"size,omitempty"` // where Bytes comes from
	Copies   []CopyStatus     `json:"copies,omitempty"`
	Failures []decide.Failure `json:"failures,omitempty"`
	// Answers are the latest answers of engines about the model, the oldest first.
	Answers []decide.CallResult `json:"answers,omitempty"`
	// Message explains why the model has fewer copies than it needs.
	Message string `json:"message,omitempty"`
}

// CopyStatus is the status of a copy.
type CopyStatus struct {
	Endpoint string           `json:"endpoint"`
	State    decide.CopyState `json:"state"`
	Since    time.Time        `json:"since"`
}

// maxAnswers is the largest number of answers that are kept for each model.
const maxAnswers = 8

// keepAnswer stores an engine's answer about a model. The caller holds mu.
func (p *Placer) keepAnswer(key decide.Key, endpoint string, a loader.Answer) {
	kept := decide.CallResult{Endpoint: endpoint, Call: "load", At: a.At, Seconds: a.Took.Seconds()}
	if a.Unload {
		kept.Call = "unload"
	}
	if a.Err != nil {
		kept.Error = a.Err.Message
	}
	all := p.answers[key]
	if len(all) == maxAnswers {
		all = slices.Delete(all, 0, 1)
	}
	p.answers[key] = append(all, kept)
	p.unsaved[key] = true
}

// status converts a model's status for operators, and adds the latest answers of engines about it.
func status(st decide.Status, answers []decide.CallResult) Status {
	out := Status{
		Answers: slices.Clone(answers),
		Pool:    st.Pool.String(), ID: st.ID, Type: st.Type, Source: st.Source, Queued: st.Queued,
		Bytes: st.Bytes, Failures: st.Failures, Message: st.Why.Message(),
	}
	if !st.LastUsed.IsZero() {
		out.LastUsed = &st.LastUsed
	}
	if st.Bytes > 0 {
		out.Size = decide.SizeSources[st.Sized]
	}
	for _, c := range st.Copies {
		out.Copies = append(out.Copies, CopyStatus{c.Endpoint, stateOf(c), c.Since})
	}
	return out
}

// explain returns why a model gets no copy. If loads failed, it adds the engine's last message.
func explain(why decide.Reason, failures []decide.Failure) string {
	words := why.Message()
	if n := len(failures); why.Failures() && n > 0 {
		words += "; the last one said: " + failures[n-1].Message
	}
	return words
}

// stateOf returns the state of a copy as shown to users: a copy whose load has failed is unloading.
func stateOf(c decide.Copy) decide.CopyState {
	if c.Failed() {
		return decide.Unloading
	}
	return c.State
}

// modelStatus converts a model's status for its object. The caller holds mu.
func (p *Placer) modelStatus(st decide.Status) v1alpha1.ModelStatus {
	out := v1alpha1.ModelStatus{ObservedGeneration: st.Generation, Bytes: st.Bytes, Message: explain(st.Why, st.Failures)}
	if !st.LastUsed.IsZero() {
		out.LastUsed = &metav1.Time{Time: st.LastUsed}
	}
	if st.Bytes > 0 {
		out.SizeSource = decide.SizeSources[st.Sized]
	}
	for _, c := range st.Copies {
		if c.State == decide.Loaded {
			out.Loaded++
		}
		s := v1alpha1.CopyStatus{
			Endpoint: c.Endpoint, State: stateOf(c).String(), Since: metav1.NewMicroTime(c.Since), Bytes: c.Bytes,
			Concurrency: int32(c.Limit), Incarnation: p.records[c.Endpoint].Incarnation,
		}
		if c.Bytes > 0 {
			s.SizeSource = decide.SizeSources[c.Source]
		}
		out.Copies = append(out.Copies, s)
	}
	for _, f := range st.Failures {
		out.Failures = append(out.Failures, v1alpha1.FailureStatus{
			Endpoint: f.Endpoint, At: metav1.NewMicroTime(f.At), Message: f.Message,
			Reason: string(f.Why),
		})
	}
	is := conditions.Model{
		Pool: st.Pool, Exists: p.world.Pools[st.Pool] != nil, Endpoints: p.observed.tallies[st.Pool], Loaded: int(out.Loaded),
		Min: st.Min, Taken: st.Taken,
	}
	switch {
	case st.Why != "":
		is.Failed = out.Message
	case out.Loaded == 0 && st.Retrying:
		is.Failed = explain(decide.LoadRetried, st.Failures)
	}
	out.Conditions = conditions.OfModel(is)
	if i := slices.IndexFunc(out.Conditions, cannotServe); i >= 0 {
		out.Message = out.Conditions[i].Message
	}
	return out
}

// cannotServe reports whether a condition of a model explains why no copy serves requests.
func cannotServe(c metav1.Condition) bool {
	return c.Type == v1alpha1.ConditionReady && c.Status == metav1.ConditionFalse && c.Reason != v1alpha1.ReasonLoading
}

// Statuses returns the status of every model, sorted by pool and id.
func (p *Placer) Statuses() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.state.All()
	out := make([]Status, len(all))
	for i, st := range all {
		out[i] = status(st, p.answers[st.ModelKey])
	}
	return out
}

// Count returns the numbers of models and copies.
func (p *Placer) Count() decide.Count {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Count()
}

// Status returns the status of a model, and whether it is in the catalogue.
func (p *Placer) Status(key decide.Key) (decide.Status, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state.Status(key)
}

// Await waits until done reports true for a model's status, the model is not in the catalogue, or
// ctx ends. It returns the last status.
func (p *Placer) Await(ctx context.Context, key decide.Key, done func(decide.Status) bool) (st decide.Status, there bool, err error) {
	err = p.watch(ctx, key, func() bool {
		st, there = p.Status(key)
		return !there || done(st)
	})
	return st, there, err
}

// watch returns when done reports true or ctx ends. It calls done at once, and after every change
// of the model or VModel.
func (p *Placer) watch(ctx context.Context, key decide.Key, done func() bool) error {
	news := make(chan struct{}, 1)
	p.mu.Lock()
	if p.watchers[key] == nil {
		p.watchers[key] = make(map[chan struct{}]bool)
	}
	p.watchers[key][news] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watchers[key], news)
		if len(p.watchers[key]) == 0 {
			delete(p.watchers, key)
		}
	}()
	for {
		if done() {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
