package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// View is a snapshot of all pools, endpoints and models, unsorted. It is immutable.
type View struct {
	Pools     []PoolView
	Endpoints []EndpointView
	Models    []ModelView
}

// PoolView is a pool that has endpoints or models.
type PoolView struct {
	Name objects.Name
	// Free is the free share of its room, 0 to 1, at endpoints that can load models.
	Free float64
	// Missed is the last use of the most recently used model that has no copy and gets none; zero
	// if there is none.
	Missed time.Time
}

// EndpointView is an endpoint.
type EndpointView struct {
	Address string
	// Seen is the result of the last scrape; zero before the first.
	Seen  Endpoint
	Pools []objects.Name
	State EndpointState
	// Models and Bytes are the number and memory of the copies that are not being removed. Usable
	// is the memory for such copies; 0 if only their number is limited. Leaked is the memory that
	// is lost until the engine restarts. All but Models are in bytes.
	Models                int
	Bytes, Usable, Leaked int64
	// GPUBusy is the mean number of adapters with requests in flight, over some seconds. HostUsed
	// is the number of adapters in use.
	GPUBusy  float64
	HostUsed int
	// Loading is the number of loads in progress.
	Loading int
	Copies  []CopyView
}

// CopyView is a copy.
type CopyView struct {
	CopyKey
	State CopyState
	Since time.Time
	For   Purpose
	// Doomed: a loading copy that will be unloaded as soon as it is loaded.
	Doomed bool
	// Misplaced: its model may not be loaded there any more.
	Misplaced bool
	// InFlight is its number of requests in flight.
	InFlight int
}

// ModelView is a model of the catalogue, or another one that an engine has or that requests name.
type ModelView struct {
	Key
	// Known: it is in the catalogue.
	Known bool
	// Held is the number of waiting requests, and Since when the oldest of them began to wait.
	Held  int
	Since time.Time
	// Least is its minimum number of copies.
	Least int
	// Why says why it has fewer copies than it should have; empty if it has them.
	Why      Reason
	Failures []FailureView
}

// FailureView is a failed load.
type FailureView struct {
	Failure
	// Until is when it expires, if the use of the model does not change.
	Until time.Time
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

// View returns a snapshot. Its time is linear in the number of models and copies; it sorts nothing.
func (s *State) View(now time.Time) View {
	v := View{Endpoints: make([]EndpointView, 0, len(s.endpoints)), Models: make([]ModelView, 0, len(s.models))}
	used := make(map[objects.Name]time.Time, len(s.pools)) // becomes Missed
	for _, e := range s.endpoints {
		v.Endpoints = append(v.Endpoints, e.view())
		for _, p := range e.pools {
			used[p] = time.Time{}
		}
	}
	for _, m := range s.models {
		if m.gone && len(m.wants) == 0 && len(m.copies) == 0 {
			continue
		}
		v.Models = append(v.Models, viewModel(s, m, now))
		used[m.Pool] = latest(used[m.Pool], m.missed())
	}
	for name, missed := range used {
		v.Pools = append(v.Pools, PoolView{name, s.pool(name).free(everywhere), missed})
	}
	return v
}

func (e *endpoint) view() EndpointView {
	t := e.tally()
	v := EndpointView{
		Address: e.Address, Seen: e.Endpoint, Pools: e.pools, State: e.viewState(), Models: t.remain.models, Bytes: t.remain.bytes,
		Leaked:  e.leaked,
		GPUBusy: e.demand.gpu, HostUsed: e.demand.host, Loading: t.loading + t.slow, Copies: make([]CopyView, 0, len(e.copies)),
	}
	if e.Bytes > 0 {
		v.Usable = max(0, e.usable())
	}
	for _, c := range e.copies {
		v.Copies = append(v.Copies, CopyView{c.CopyKey, c.State, c.Since, c.claim.purpose, c.doomed, c.misplaced(), c.inFlight})
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
	v := ModelView{Key: m.ModelKey, Known: !m.gone && !m.foreign, Since: m.since(), Least: m.least(), Why: m.blocked}
	if m.failed != "" {
		v.Why = m.failed
	}
	for _, w := range m.wants {
		v.Held += w.Requests
	}
	for _, f := range m.failures {
		v.Failures = append(v.Failures, FailureView{f, f.At.Add(failureCounts(s, m, f, now))})
	}
	return v
}
