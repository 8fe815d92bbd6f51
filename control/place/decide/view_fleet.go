package decide

import (
	"time"

	"github.com/headgate/headgate/internal/objects"
)

// View is all pools, endpoints and models of one moment, for people. Nothing in it is in order, and
// nothing of it changes later.
type View struct {
	Pools     []PoolView
	Endpoints []EndpointView
	Models    []ModelView
}

// PoolView is a pool that has endpoints or models.
type PoolView struct {
	Name objects.Name
	// Free is the share of its room that is free, 0 to 1, at endpoints where models can be loaded.
	Free float64
	// Missed is when that one of its models was used last that has no copy and gets none; zero if
	// there is none.
	Missed time.Time
}

// EndpointView is an endpoint.
type EndpointView struct {
	Address string
	// Seen is what the last look found; zero before the first.
	Seen  Endpoint
	Pools []objects.Name
	State EndpointState
	// Models and Bytes are what copies take up that are not on their way out; Usable is what such
	// copies may take, 0 where only their number is bounded, and Leaked what is lost until the
	// engine's next life. All but Models are in bytes.
	Models                int
	Bytes, Usable, Leaked int64
	// GPUBusy is how many adapters have requests there, in the mean of some seconds, HostUsed how
	// many are in use.
	GPUBusy  float64
	HostUsed int
	// Loading is how many loads go on.
	Loading int
	Copies  []CopyView
}

// CopyView is a copy.
type CopyView struct {
	CopyKey
	State CopyState
	Since time.Time
	For   Purpose
	// Doomed says of one that is loading that it is unloaded as soon as it is loaded.
	Doomed bool
	// Misplaced says that its model may not be loaded there any more.
	Misplaced bool
	// InFlight is how many requests there are.
	InFlight int
}

// ModelView is a model of the catalogue, or one beside it that an engine has or that requests ask
// for.
type ModelView struct {
	Key
	// Known says that it is in the catalogue.
	Known bool
	// Held is how many requests wait for it, and Since when the first of them began to.
	Held  int
	Since time.Time
	// Least is how many copies there are to be.
	Least int
	// Why says why it has fewer copies than it should have; empty if it has them.
	Why      Reason
	Failures []FailureView
}

// FailureView is a load that failed.
type FailureView struct {
	Failure
	// Until is until when it counts, if the model is used as it is now.
	Until time.Time
}

// EndpointState is in how far an endpoint is of use.
type EndpointState uint8

const (
	// Starting: it was not looked at yet.
	Starting EndpointState = iota
	// Ready: what it has serves, and more can be loaded.
	Ready
	// Silent: it takes connections and does not answer.
	Silent
	// Down: it turned a connection away.
	Down
	// Doubtful: it may have begun anew, without what it had, and nothing tells.
	Doubtful
	// Terminating: its pod is being deleted.
	Terminating
	// Migrating: the same, and what it has serves until it has copies elsewhere.
	Migrating
	// Stopping: its engine said that it is stopping.
	Stopping
	// Unready: its pod is not ready.
	Unready
	// OnTrial: nothing keeps its pod from being ready but that models are tried there, or failed to
	// load.
	OnTrial
)

// EndpointStates are the names of the states.
var EndpointStates = [...]string{
	Starting: "starting", Ready: "ready", Silent: "silent", Down: "down", Doubtful: "doubtful", Terminating: "terminating",
	Migrating: "migrating", Stopping: "stopping", Unready: "unready", OnTrial: "on trial",
}

func (s EndpointState) String() string { return EndpointStates[s] }

// View returns what there is. It takes time by the number of models and copies, and sorts nothing.
func (s *State) View(now time.Time) View {
	v := View{Endpoints: make([]EndpointView, 0, len(s.endpoints)), Models: make([]ModelView, 0, len(s.models))}
	used := make(map[objects.Name]time.Time, len(s.pools)) // as Missed
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

// viewState is what matters most of how an endpoint is.
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
