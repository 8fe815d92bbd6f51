package decide

import (
	"cmp"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// View is a snapshot of all pools, endpoints and models that users get as JSON. It is immutable.
// Package place adds the fields that package decide does not know.
type View struct {
	At time.Time `json:"at"`
	// Paused: control loads and unloads nothing, because it cannot tell whether it is the leader.
	Paused    bool           `json:"paused,omitempty"`
	Pools     []PoolView     `json:"pools"`
	Endpoints []EndpointView `json:"endpoints"`
	Models    []ModelView    `json:"models"`
	VModels   []VModelView   `json:"vmodels"`
}

// PoolView describes an InferencePool.
type PoolView struct {
	Name string `json:"name"`
	// Free is the share of room, 0 to 1, that is free at the pool's endpoints that can load models.
	Free float64 `json:"free"`
	// WarmWindowSeconds is the warm window: each model that was used within this time is loaded or
	// being loaded. It is nil if this is true of all models that were ever used.
	WarmWindowSeconds *float64 `json:"warmWindowSeconds,omitempty"`
}

// EndpointView describes an endpoint.
type EndpointView struct {
	Address string `json:"address"`
	// Pod is the endpoint's pod, as NAMESPACE/NAME, or its EndpointList if Listed is true.
	Pod    string        `json:"pod,omitempty"`
	Listed bool          `json:"listed,omitempty"`
	Pools  []string      `json:"pools"`
	Engine string        `json:"engine,omitempty"` // the engine's kind: configured, or found from its metrics page
	State  EndpointState `json:"state"`
	// Drained: an operator drains the endpoint, or has drained it. Its state is then Migrating or
	// Terminating, even if no pod is being deleted.
	Drained bool `json:"drained,omitempty"`
	// Fault is why the last scrape failed; empty if it succeeded.
	Fault string `json:"fault,omitempty"`
	// Static: the endpoint answers, and its engine loads no models while it runs.
	Static bool `json:"static,omitempty"`
	// Models is the number of copies that are not being removed, and UsedBytes is their memory.
	// Slots and UsableBytes are the limits of these two; 0 if there is no limit. LeakedBytes is the
	// memory of leaks, which is lost until the engine restarts or unloads them.
	Models      int   `json:"models"`
	Slots       int   `json:"slots,omitempty"`
	UsedBytes   int64 `json:"usedBytes,omitempty"`
	UsableBytes int64 `json:"usableBytes,omitempty"`
	LeakedBytes int64 `json:"leakedBytes,omitempty"`
	// GPUBusy is the mean number of adapters with requests in flight, over some seconds. HostUsed
	// is the number of adapters in use. GPUAdapters is the number of adapters that fit into GPU
	// memory, and HostAdapters the number that fit into host memory; 0 if unknown.
	GPUBusy      float64 `json:"gpuBusy,omitempty"`
	GPUAdapters  int     `json:"gpuAdapters,omitempty"`
	HostUsed     int     `json:"hostUsed,omitempty"`
	HostAdapters int     `json:"hostAdapters,omitempty"`
	// Loading is the number of loads in progress. Loads is the maximum number of concurrent loads;
	// 0 if unknown.
	Loading int `json:"loading"`
	Loads   int `json:"loads,omitempty"`
	// InFlight is the number of requests in flight at the endpoint's copies.
	InFlight int        `json:"inFlight"`
	Copies   []CopyView `json:"copies,omitempty"`
}

// CopyView describes a copy.
type CopyView struct {
	Pool  string    `json:"pool"`
	ID    string    `json:"id"`
	State CopyState `json:"state"`
	Since time.Time `json:"since"`
	// For is the purpose of the copy; empty if an earlier process decided to load it.
	For string `json:"for,omitempty"`
	// Doomed: the copy is loading and will be unloaded as soon as its load ends.
	Doomed bool `json:"doomed,omitempty"`
	// Misplaced: the constraints of the pool forbid the model at this endpoint. The copy is removed
	// once the model is loaded elsewhere.
	Misplaced bool `json:"misplaced,omitempty"`
	InFlight  int  `json:"inFlight,omitempty"`
}

// ModelView describes a model: one of the catalogue, or an unknown one that an engine has or that
// requests name.
type ModelView struct {
	Pool string `json:"pool"`
	ID   string `json:"id"`
	// Known: the model is in the catalogue.
	Known bool `json:"known"`
	// Queued is the number of waiting requests. Since is when the oldest of them began to wait.
	Queued int       `json:"queued,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	// Least is the model's minimum number of copies.
	Least int `json:"least,omitempty"`
	// Reason is why the model has fewer copies than it should have, and Message explains it to
	// operators. Both are empty if it has enough copies.
	Reason   Reason        `json:"reason,omitempty"`
	Message  string        `json:"message,omitempty"`
	Failures []FailureView `json:"failures,omitempty"`
	// Last is the result of the last call to an engine about this model.
	Last *CallResult `json:"last,omitempty"`
}

// VModelView describes a VModel.
type VModelView struct {
	Pool string `json:"pool"`
	ID   string `json:"id"`
	// Target is the model that requests should go to. Active is the model that they go to now,
	// except for Percent of a hundred, which go to Canary if that is set.
	Target  string `json:"target"`
	Active  string `json:"active,omitempty"`
	Canary  string `json:"canary,omitempty"`
	Percent int    `json:"percent,omitempty"`
	// Reason is the reason of the VModel's condition Ready, and Message is its message.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// FailureView describes a failed load.
type FailureView struct {
	Failure
	// Until is when the failure expires, if the use of the model does not change.
	Until time.Time `json:"until"`
}

// CallResult is the result of one call to an engine.
type CallResult struct {
	Endpoint string    `json:"endpoint"`
	Call     string    `json:"call"` // "load" or "unload"
	At       time.Time `json:"at"`
	Seconds  float64   `json:"seconds"`
	// Error is the engine's error message; empty if the call succeeded.
	Error string `json:"error,omitempty"`
}

// EndpointState is how usable an endpoint is.
type EndpointState uint8

const (
	// Starting: the endpoint has not been scraped yet.
	Starting EndpointState = iota
	// Ready: the endpoint's copies serve, and models can be loaded there.
	Ready
	// Silent: the endpoint accepts connections and does not answer.
	Silent
	// Down: the endpoint refused a connection.
	Down
	// Doubtful: the endpoint's engine may have restarted without its models, and no scrape can
	// tell.
	Doubtful
	// Terminating: the endpoint's pod is being deleted.
	Terminating
	// Migrating: the endpoint's pod is being deleted, and serves until its models have copies
	// elsewhere.
	Migrating
	// Stopping: the endpoint's engine reported that it is stopping.
	Stopping
	// Unready: the endpoint's pod is not ready.
	Unready
	// OnTrial: the endpoint's pod is ready except for the trial, which is in progress or has
	// failed.
	OnTrial
)

// EndpointStates are the names of the states.
var EndpointStates = [...]string{
	Starting: "starting", Ready: "ready", Silent: "silent", Down: "down", Doubtful: "doubtful", Terminating: "terminating",
	Migrating: "migrating", Stopping: "stopping", Unready: "unready", OnTrial: "on trial",
}

func (s EndpointState) String() string { return EndpointStates[s] }

// MarshalText returns the name of the state.
func (s EndpointState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets the state to the one with this name.
func (s *EndpointState) UnmarshalText(name []byte) error {
	*s = EndpointState(max(0, slices.Index(EndpointStates[:], string(name))))
	return nil
}

// Sort sorts the parts of a view by name.
func (v *View) Sort() {
	slices.SortFunc(v.Pools, func(a, b PoolView) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(v.Endpoints, func(a, b EndpointView) int { return cmp.Compare(a.Address, b.Address) })
	for _, e := range v.Endpoints {
		slices.SortFunc(e.Copies, func(a, b CopyView) int { return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.ID, b.ID)) })
	}
	slices.SortFunc(v.Models, func(a, b ModelView) int { return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.ID, b.ID)) })
}

// View returns a snapshot, unsorted. The time that it takes is linear in the number of models and
// copies.
func (s *State) View(now time.Time) View {
	v := View{
		At: now, Paused: s.paused, Pools: make([]PoolView, 0, len(s.pools)), Endpoints: make([]EndpointView, 0, len(s.endpoints)),
		Models: make([]ModelView, 0, len(s.models)),
	}
	missed := make(map[objects.Name]time.Time, len(s.pools)) // by pool: when the most recently used model without a copy was last used
	for _, e := range s.endpoints {
		v.Endpoints = append(v.Endpoints, e.view())
		for _, p := range e.pools {
			missed[p] = time.Time{}
		}
	}
	for _, m := range s.models {
		if m.gone && len(m.wants) == 0 && len(m.copies) == 0 {
			continue
		}
		v.Models = append(v.Models, viewModel(s, m, now))
		missed[m.Pool] = latest(missed[m.Pool], m.lastMissing())
	}
	for name, at := range missed {
		is := PoolView{Name: name.String(), Free: s.pool(name).free(everywhere)}
		if !at.IsZero() {
			is.WarmWindowSeconds = new(max(0, now.Sub(at).Seconds()))
		}
		v.Pools = append(v.Pools, is)
	}
	return v
}

func (e *endpoint) view() EndpointView {
	t, state := e.tally(), e.viewState()
	v := EndpointView{
		Address: e.Address, State: state, Static: !e.CanLoad && (state == Ready || state == Doubtful), Models: t.remain.models,
		Slots: e.Slots, UsedBytes: t.remain.bytes, LeakedBytes: e.leaked, GPUBusy: e.demand.gpu, GPUAdapters: e.GPUAdapters,
		HostUsed: e.demand.host, HostAdapters: e.HostAdapters, Loading: t.loading + t.slow, Loads: e.Loads,
		Copies: make([]CopyView, 0, len(e.copies)),
	}
	if e.Bytes > 0 {
		v.UsableBytes = max(0, e.usable())
	}
	for _, p := range e.pools {
		v.Pools = append(v.Pools, p.String())
	}
	for _, c := range e.copies {
		cv := CopyView{c.Pool.String(), c.ID, c.State, c.Since, "", c.doomed, c.misplaced(), c.inFlight}
		if c.claim.purpose != ForRecord {
			cv.For = c.claim.purpose.String()
		}
		v.InFlight += c.inFlight
		v.Copies = append(v.Copies, cv)
	}
	return v
}

// viewState returns the state of an endpoint. If several states apply, it returns the most
// important one.
func (e *endpoint) viewState() EndpointState {
	switch {
	case e.IsMigrating():
		return Migrating
	case e.Terminating:
		return Terminating
	case e.Is():
		return Stopping
	case e.state == unknown:
		return Starting
	case e.state == down:
		return Down
	case e.state == silent:
		return Silent
	case e.pod.OnTrial:
		return OnTrial
	case e.pod.Unready:
		return Unready
	case e.doubtful:
		return Doubtful
	}
	return Ready
}

func viewModel(s *State, m *model, now time.Time) ModelView {
	v := ModelView{
		Pool: m.Pool.String(), ID: m.ID, Known: !m.gone && !m.foreign, Since: m.since(), Least: m.least(),
		Reason: cmp.Or(m.failed, m.blocked),
	}
	v.Message = v.Reason.Message()
	for _, w := range m.wants {
		v.Queued += w.Requests
	}
	for _, f := range m.failures {
		v.Failures = append(v.Failures, FailureView{f, f.At.Add(failureCounts(s, m, f, now))})
	}
	return v
}
