package place

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/headgate/headgate/control/place/decide"
	"github.com/headgate/headgate/internal/objects"
)

// View is where all models are and why some are not, in one moment, for people, as JSON.
type View struct {
	At time.Time `json:"at"`
	// Paused says that control loads and unloads nothing, because it cannot tell whether it leads.
	Paused    bool           `json:"paused,omitempty"`
	Pools     []PoolView     `json:"pools"`     // in order of name
	Endpoints []EndpointView `json:"endpoints"` // in order of address
	Models    []ModelView    `json:"models"`    // in order of pool and id
	VModels   []VModelView   `json:"vmodels"`   // in order of pool and id
}

// PoolView is an InferencePool.
type PoolView struct {
	Name string `json:"name"`
	// Free is the share of the room of its endpoints that is free, 0 to 1.
	Free float64 `json:"free"`
	// CoverSeconds: every model that was used within so many seconds is loaded, or being loaded;
	// absent if all are that were ever used.
	CoverSeconds *float64 `json:"coverSeconds,omitempty"`
}

// EndpointView is an endpoint and what it holds.
type EndpointView struct {
	Address string `json:"address"`
	// Pod is its pod, NAMESPACE/NAME, or with Listed its EndpointList.
	Pod    string   `json:"pod,omitempty"`
	Listed bool     `json:"listed,omitempty"`
	Pools  []string `json:"pools"`
	Engine string   `json:"engine,omitempty"` // its kind, as configured or as its metrics page shows
	State  string   `json:"state"`            // a name of decide.EndpointStates
	// Fault is why the last look failed; empty if it did not.
	Fault string `json:"fault,omitempty"`
	// Static says of an endpoint that answers that its engine loads no models while it runs.
	Static bool `json:"static,omitempty"`
	// Models is how many models it holds or is to hold, of so many Slots; UsedBytes what they take
	// up, of so many UsableBytes. Slots and UsableBytes are 0 where they bound nothing. LeakedBytes
	// are lost until the engine begins anew.
	Models      int   `json:"models"`
	Slots       int   `json:"slots,omitempty"`
	UsedBytes   int64 `json:"usedBytes,omitempty"`
	UsableBytes int64 `json:"usableBytes,omitempty"`
	LeakedBytes int64 `json:"leakedBytes,omitempty"`
	// GPUBusy is how many adapters have requests, in the mean of some seconds, of so many
	// GPUAdapters that have a slot on its GPU; HostUsed how many are in use, of so many
	// HostAdapters that host memory holds. GPUAdapters and HostAdapters are 0 where nobody says.
	GPUBusy      float64 `json:"gpuBusy,omitempty"`
	GPUAdapters  int     `json:"gpuAdapters,omitempty"`
	HostUsed     int     `json:"hostUsed,omitempty"`
	HostAdapters int     `json:"hostAdapters,omitempty"`
	// Loading is how many loads go on, of so many Loads at once, 0 where that is not known yet.
	Loading int `json:"loading"`
	Loads   int `json:"loads,omitempty"`
	// InFlight is how many requests its copies have.
	InFlight int        `json:"inFlight"`
	Copies   []CopyView `json:"copies,omitempty"` // in order of pool and id
}

// CopyView is a copy.
type CopyView struct {
	Pool  string    `json:"pool"`
	ID    string    `json:"id"`
	State string    `json:"state"`
	Since time.Time `json:"since"`
	// For is what it is for, where this control decided it.
	For string `json:"for,omitempty"`
	// Doomed says of one that is loading that it is to be unloaded then.
	Doomed bool `json:"doomed,omitempty"`
	// Misplaced says that the pool's constraints forbid it there: it leaves once its model is
	// loaded elsewhere.
	Misplaced bool `json:"misplaced,omitempty"`
	InFlight  int  `json:"inFlight,omitempty"`
}

// ModelView is a model.
type ModelView struct {
	Pool string `json:"pool"`
	ID   string `json:"id"`
	// Known says that it is in the catalogue: an object or a client says what it is.
	Known bool `json:"known"`
	Held  int  `json:"queued,omitempty"` // requests that wait for it
	// Since is when the first of them began to.
	Since *time.Time `json:"since,omitempty"`
	Least int        `json:"least,omitempty"` // copies that there are to be
	// Reason is why it has fewer copies than it should have, and Message the same in words.
	Reason   string        `json:"reason,omitempty"`
	Message  string        `json:"message,omitempty"`
	Failures []FailureView `json:"failures,omitempty"`
	// Last is what came of the last call to an engine for it.
	Last *AnswerStatus `json:"last,omitempty"`
}

// VModelView is a VModel.
type VModelView struct {
	Pool string `json:"pool"`
	ID   string `json:"id"`
	// Target is the model that its requests are to go to, Active the one that they do, but for
	// Percent of a hundred where there is a Canary that is loaded.
	Target  string `json:"target"`
	Active  string `json:"active,omitempty"`
	Canary  string `json:"canary,omitempty"`
	Percent int    `json:"percent,omitempty"`
	// Reason is that of its condition Ready, v1alpha1.ReasonDefined where requests go as they are
	// to, and Message the same in words.
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// FailureView is a load that failed, in the engine's own words.
type FailureView struct {
	FailureStatus
	// Until is until when it counts, if the model is used as it is now.
	Until time.Time `json:"until"`
}

// View returns where all models are. Nothing is decided while what is known is copied; in order it
// comes after that.
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
	empty := maps.Clone(world.Pools) // those without endpoints and models
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

// viewEndpoint is an endpoint of which the site says what it is.
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
