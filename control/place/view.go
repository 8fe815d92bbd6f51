package place

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// View is a snapshot of all models and copies, and of the reasons for missing ones, as JSON for
// operators.
type View struct {
	At time.Time `json:"at"`
	// Paused: control loads and unloads nothing, because it cannot be sure that it is the leader.
	Paused    bool           `json:"paused,omitempty"`
	Pools     []PoolView     `json:"pools"`     // sorted by name
	Endpoints []EndpointView `json:"endpoints"` // sorted by address
	Models    []ModelView    `json:"models"`    // sorted by pool and id
	VModels   []VModelView   `json:"vmodels"`   // sorted by pool and id
}

// PoolView is an InferencePool.
type PoolView struct {
	Name string `json:"name"`
	// Free is the free share of the room of its endpoints, 0 to 1.
	Free float64 `json:"free"`
	// CoverSeconds is the warm window: every model used within it is loaded or being loaded. Absent
	// if this holds for every model ever used.
	CoverSeconds *float64 `json:"coverSeconds,omitempty"`
}

// EndpointView is an endpoint with its copies.
type EndpointView struct {
	Address string `json:"address"`
	// Pod is its pod, NAMESPACE/NAME; with Listed, its EndpointList.
	Pod    string   `json:"pod,omitempty"`
	Listed bool     `json:"listed,omitempty"`
	Pools  []string `json:"pools"`
	Engine string   `json:"engine,omitempty"` // its kind, as configured or found on its metrics page
	State  string   `json:"state"`            // one of decide.EndpointStates
	// Fault is why the last scrape failed; empty if it succeeded.
	Fault string `json:"fault,omitempty"`
	// Static: its engine answers, but cannot load models while it runs.
	Static bool `json:"static,omitempty"`
	// Models is the number of its models, loaded or to be loaded, and Slots the most it may have;
	// UsedBytes is their memory, and UsableBytes the memory for them. Slots and UsableBytes are 0
	// if there is no such limit. LeakedBytes are lost until the engine restarts.
	Models      int   `json:"models"`
	Slots       int   `json:"slots,omitempty"`
	UsedBytes   int64 `json:"usedBytes,omitempty"`
	UsableBytes int64 `json:"usableBytes,omitempty"`
	LeakedBytes int64 `json:"leakedBytes,omitempty"`
	// GPUBusy is the mean number of adapters with requests, over some seconds, and GPUAdapters the
	// number of slots on its GPU. HostUsed is the number of adapters in use, and HostAdapters the
	// number for which host memory has room. Either limit is 0 if unknown.
	GPUBusy      float64 `json:"gpuBusy,omitempty"`
	GPUAdapters  int     `json:"gpuAdapters,omitempty"`
	HostUsed     int     `json:"hostUsed,omitempty"`
	HostAdapters int     `json:"hostAdapters,omitempty"`
	// Loading is the number of loads in progress, and Loads the most at once; 0 if not known yet.
	Loading int `json:"loading"`
	Loads   int `json:"loads,omitempty"`
	// InFlight is the number of requests in flight at its copies.
	InFlight int        `json:"inFlight"`
	Copies   []CopyView `json:"copies,omitempty"` // sorted by pool and id
}

// CopyView is a copy.
type CopyView struct {
	Pool  string    `json:"pool"`
	ID    string    `json:"id"`
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// For is its purpose; empty if an earlier control loaded it.
	For string `json:"for,omitempty"`
	// Doomed: a loading copy that will be unloaded as soon as it is loaded.
	Doomed bool `json:"doomed,omitempty"`
	// Misplaced: the pool's constraints forbid it there. It is unloaded once its model is loaded
	// elsewhere.
	Misplaced bool `json:"misplaced,omitempty"`
	InFlight  int  `json:"inFlight,omitempty"`
}

// ModelView is a model.
type ModelView struct {
	Pool string `json:"pool"`
	ID   string `json:"id"`
	// Known: it is in the catalogue, declared by an object or registered by a client.
	Known bool `json:"known"`
	Held  int  `json:"queued,omitempty"` // waiting requests
	// Since is when the oldest of them began to wait.
	Since *time.Time `json:"since,omitempty"`
	Least int        `json:"least,omitempty"` // minimum number of copies
	// Reason is why it has fewer copies than it needs, and Message explains it.
	Reason   string        `json:"reason,omitempty"`
	Message  string        `json:"message,omitempty"`
	Failures []FailureView `json:"failures,omitempty"`
	// Last is the outcome of the last call to an engine about it.
	Last *AnswerStatus `json:"last,omitempty"`
}

// VModelView is a VModel.
type VModelView struct {
	Pool string `json:"pool"`
	ID   string `json:"id"`
	// Target is the model that its requests should go to, and Active the one that they go to. If
	// Canary is loaded, Percent of them go there.
	Target  string `json:"target"`
	Active  string `json:"active,omitempty"`
	Canary  string `json:"canary,omitempty"`
	Percent int    `json:"percent,omitempty"`
	// Reason is the reason of its condition Ready; v1alpha1.ReasonDefined means that requests go to
	// the target. Message explains it.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// FailureView is a failed load, with the engine's message.
type FailureView struct {
	FailureStatus
	// Until is when it expires, if the use of the model does not change.
	Until time.Time `json:"until"`
}

// View returns a snapshot. It blocks decisions while it copies the state, and sorts afterwards.
func (p *Placer) View() View {
	p.mu.Lock()
	now := time.Now()
	known, world := p.state.View(now), p.world
	v := View{
		At: now, Paused: p.paused, Pools: make([]PoolView, 0, len(known.Pools)), Endpoints: make([]EndpointView, 0, len(known.Endpoints)),
		Models: make([]ModelView, 0, len(known.Models)),
	}
	sites := make(map[string]EndpointView, len(p.endpoints))
	for address, s := range p.endpoints {
		sites[address] = EndpointView{Engine: string(cmp.Or(s.Kind, s.kind)), Fault: s.fault}
	}
	last := make(map[decide.Key]*AnswerStatus)
	for key, all := range p.answers {
		if n := len(all); n > 0 {
			answer := all[n-1]
			last[key] = &answer
		}
	}
	v.VModels = p.viewVModels()
	p.mu.Unlock()

	for _, e := range world.Engines {
		if site, ok := sites[e.Address]; ok && e.Pod != (objects.Name{}) {
			site.Pod, site.Listed = e.Pod.String(), e.Listed
			sites[e.Address] = site
		}
	}
	empty := maps.Clone(world.Pools) // pools without endpoints and models
	for _, q := range known.Pools {
		delete(empty, q.Name)
		is := PoolView{Name: q.Name.String(), Free: q.Free}
		if !q.Missed.IsZero() {
			is.CoverSeconds = new(max(0, now.Sub(q.Missed).Seconds()))
		}
		v.Pools = append(v.Pools, is)
	}
	for q := range empty {
		v.Pools = append(v.Pools, PoolView{Name: q.String()})
	}
	for _, e := range known.Endpoints {
		v.Endpoints = append(v.Endpoints, viewEndpoint(sites[e.Address], e))
	}
	for _, m := range known.Models {
		v.Models = append(v.Models, viewModel(m, last[m.Key]))
	}
	slices.SortFunc(v.Pools, func(a, b PoolView) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(v.Endpoints, func(a, b EndpointView) int { return cmp.Compare(a.Address, b.Address) })
	slices.SortFunc(v.Models, func(a, b ModelView) int { return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.ID, b.ID)) })
	return v
}

// viewEndpoint completes the view of an endpoint.
func viewEndpoint(v EndpointView, e decide.EndpointView) EndpointView {
	v.Address, v.State, v.Models, v.UsedBytes, v.LeakedBytes = e.Address, e.State.String(), e.Models, e.Bytes, e.Leaked
	v.Slots, v.UsableBytes, v.Loading, v.Loads = e.Seen.Slots, e.Usable, e.Loading, e.Seen.Loads
	v.GPUBusy, v.GPUAdapters, v.HostUsed, v.HostAdapters = e.GPUBusy, e.Seen.GPUAdapters, e.HostUsed, e.Seen.HostAdapters
	v.Static = !e.Seen.CanLoad && (e.State == decide.Ready || e.State == decide.Doubtful)
	for _, q := range e.Pools {
		v.Pools = append(v.Pools, q.String())
	}
	for _, c := range e.Copies {
		v.InFlight += c.InFlight
		cv := CopyView{Pool: c.Pool.String(), ID: c.ID, State: c.State.String(), Since: c.Since, Doomed: c.Doomed, Misplaced: c.Misplaced,
			InFlight: c.InFlight}
		if c.For != decide.ForRecord {
			cv.For = c.For.String()
		}
		v.Copies = append(v.Copies, cv)
	}
	slices.SortFunc(v.Copies, func(a, b CopyView) int { return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.ID, b.ID)) })
	return v
}

func viewModel(m decide.ModelView, last *AnswerStatus) ModelView {
	v := ModelView{
		Pool: m.Pool.String(), ID: m.ID, Known: m.Known, Held: m.Held, Least: m.Least, Reason: string(m.Why), Message: m.Why.Message(),
		Last: last,
	}
	if !m.Since.IsZero() {
		v.Since = &m.Since
	}
	for _, f := range m.Failures {
		v.Failures = append(v.Failures, FailureView{FailureStatus{f.Endpoint, f.At, string(f.Why), f.Words}, f.Until})
	}
	return v
}
