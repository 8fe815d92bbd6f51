package decide

import (
	"cmp"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// View is a snapshot of all pools, endpoints and models, for users, as JSON. It is immutable.
// Package place adds what only it knows.
type View struct {
	At time.Time `json:"at"`
	// Paused: control loads and unloads nothing, because it cannot tell whether it is the leader.
	Paused    bool           `json:"paused,omitempty"`
	Pools     []PoolView     `json:"pools"`
	Endpoints []EndpointView `json:"endpoints"`
	Models    []ModelView    `json:"models"`
	VModels   []VModelView   `json:"vmodels"`
}

// PoolView is an InferencePool.
type PoolView struct {
	Name string `json:"name"`
	// Free is the free share of its room, 0 to 1, at endpoints that can load models.
	Free float64 `json:"free"`
	// WarmWindowSeconds is the warm window: each model that was used within this time is loaded or
	// being loaded. It is nil if that holds for all models that were ever used.
	WarmWindowSeconds *float64 `json:"warmWindowSeconds,omitempty"`
}

// EndpointView is an endpoint.
type EndpointView struct {
	Address string `json:"address"`
	// Pod is the endpoint's pod, NAMESPACE/NAME. If Listed, it is the EndpointList.
	Pod    string        `json:"pod,omitempty"`
	Listed bool          `json:"listed,omitempty"`
	Pools  []string      `json:"pools"`
	Engine string        `json:"engine,omitempty"` // its kind, as configured or as its metrics page shows
	State  EndpointState `json:"state"`
	// Fault is why the last scrape failed; empty if it did not.
	Fault string `json:"fault,omitempty"`
	// Static: the endpoint answers, and its engine loads no models while it runs.
	Static bool `json:"static,omitempty"`
	// Models and UsedBytes are the number and memory of the copies that are not being removed, of
	// at most Slots and UsableBytes, which are 0 if there is no limit. LeakedBytes are lost until
	// the engine restarts.
	Models      int   `json:"models"`
	Slots       int   `json:"slots,omitempty"`
	UsedBytes   int64 `json:"usedBytes,omitempty"`
	UsableBytes int64 `json:"usableBytes,omitempty"`
	LeakedBytes int64 `json:"leakedBytes,omitempty"`
	// GPUBusy is the mean number of adapters with requests in flight, over some seconds. HostUsed
	// is the number of adapters in use. GPUAdapters and HostAdapters are the numbers of adapters
	// that fit into the memory of the GPU and of the host; 0 if unknown.
	GPUBusy      float64 `json:"gpuBusy,omitempty"`
	GPUAdapters  int     `json:"gpuAdapters,omitempty"`
	HostUsed     int     `json:"hostUsed,omitempty"`
	HostAdapters int     `json:"hostAdapters,omitempty"`
	// Loading is the number of loads in progress, and Loads the most at once; 0 if unknown.
	Loading int `json:"loading"`
	Loads   int `json:"loads,omitempty"`
	// InFlight is the number of requests in flight at its copies.
	InFlight int        `json:"inFlight"`
	Copies   []CopyView `json:"copies,omitempty"`
}

// CopyView is a copy.
type CopyView struct {
	Pool  string    `json:"pool"`
	ID    string    `json:"id"`
	State CopyState `json:"state"`
	Since time.Time `json:"since"`
	// For is the purpose of the copy; empty if an earlier control decided it.
	For string `json:"for,omitempty"`
	// Doomed: a loading copy that will be unloaded as soon as it is loaded.
	Doomed bool `json:"doomed,omitempty"`
	// Misplaced: the constraints of the pool forbid the model there. The copy leaves when the model
	// is loaded elsewhere.
	Misplaced bool `json:"misplaced,omitempty"`
	InFlight  int  `json:"inFlight,omitempty"`
}

// ModelView is a model of the catalogue, or another one that an engine has or that requests name.
type ModelView struct {
	Pool string `json:"pool"`
	ID   string `json:"id"`
	// Known: it is in the catalogue.
	Known bool `json:"known"`
	// Queued is the number of waiting requests, and Since when the oldest of them began to wait.
	Queued int       `json:"queued,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	// Least is its minimum number of copies.
	Least int `json:"least,omitempty"`
	// Reason says why it has fewer copies than it should have, and Message the same in words. Both
	// are empty if it has them.
	Reason   Reason        `json:"reason,omitempty"`
	Message  string        `json:"message,omitempty"`
	Failures []FailureView `json:"failures,omitempty"`
	// Last is the result of the last call to an engine about it.
	Last *CallResult `json:"last,omitempty"`
}

// VModelView is a VModel.
type VModelView struct {
	Pool string `json:"pool"`
	ID   string `json:"id"`
	// Target is the model that requests should go to. They go to Active, and Percent of a hundred
	// to Canary if it is set.
	Target  string `json:"target"`
	Active  string `json:"active,omitempty"`
	Canary  string `json:"canary,omitempty"`
	Percent int    `json:"percent,omitempty"`
	// Reason is the reason of the VModel's condition Ready, and Message the same in words.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// FailureView is a failed load.
type FailureView struct {
	Failure
	// Until is when it expires, if the use of the model does not change.
	Until time.Time `json:"until"`
}

// CallResult is the result of one call to an engine.
type CallResult struct {
	Endpoint string    `json:"endpoint"`
	Call     string    `json:"call"` // load or unload
	At       time.Time `json:"at"`
	Seconds  float64   `json:"seconds"`
	// Error is the message of an engine that did not do what it was asked.
	Error string `json:"error,omitempty"`
}

// EndpointState says how usable an endpoint is.
type EndpointState uint8

const (
	// Starting: it has not been scraped yet.
	Starting EndpointState = iota
	// Ready: its copies serve, and models can be loaded.
	Ready
	// Silent: it accepts connections and does not answer.
	Silent
	// Down: it refused a connection.
	Down
	// Doubtful: it may have restarted without its models, and there is no way to find out.
	Doubtful
	// Terminating: its pod is being deleted.
	Terminating
	// Migrating: its pod is being deleted, and it serves until its models have copies elsewhere.
	Migrating
	// Stopping: its engine reported that it is stopping.
	Stopping
	// Unready: its pod is not ready.
	Unready
	// OnTrial: its pod is ready but for the trial, which is in progress or has failed.
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

// UnmarshalText sets the state to that of a name.
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

// View returns a snapshot, unsorted. Its time is linear in the number of models and copies.
func (s *State) View(now time.Time) View {
	v := View{
		At: now, Paused: s.paused, Pools: make([]PoolView, 0, len(s.pools)), Endpoints: make([]EndpointView, 0, len(s.endpoints)),
		Models: make([]ModelView, 0, len(s.models)),
	}
	missed := make(map[objects.Name]time.Time, len(s.pools)) // last use of the most recently used model without a copy
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

// viewState returns the most important state of an endpoint.
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
