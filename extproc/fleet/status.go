package fleet

import (
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/objects"
)

// Endpoints returns the status of every endpoint of the objects in force, as [endpointstate.State.Endpoints].
func (f *Fleet) Endpoints() (all []endpointstate.Status) {
	f.locked(func() { all = f.state.Endpoints(f.Now()) })
	return all
}

// MaxLength is the most tokens of a request, prompt and answer, that every endpoint of a pool takes that says so; 0 if none does.
func (f *Fleet) MaxLength(pool objects.Name) (least int) {
	f.locked(func() { least = f.state.MaxLength(pool) })
	return least
}

// FailOpen returns the pools of which all endpoints are used because most look bad.
func (f *Fleet) FailOpen() (pools []string) {
	f.locked(func() { pools = f.state.FailOpen() })
	return pools
}

// Settled says whether as much is known of every endpoint as a look tells, and all that control has to say, if there is control: a
// process that takes the place of another decides no worse then.
func (f *Fleet) Settled() (settled bool) {
	f.locked(func() { settled = f.state.Settled() })
	return settled && (!f.Placed || f.Heard())
}

// Leaving returns the endpoints that are about to end, as [endpointstate.State.Leaving].
func (f *Fleet) Leaving() (all map[string]endpointstate.Leaving) {
	f.locked(func() { all = f.state.Leaving(f.Now()) })
	return all
}

// Sharing is among how many processes limits of copies are shared, as [endpointstate.State.Sharing].
func (f *Fleet) Sharing() (processes int) {
	f.locked(func() { processes = f.state.Sharing() })
	return processes
}

// TakeMissing returns the copies that engines have no more though control believes in them, each once.
func (f *Fleet) TakeMissing() (all []endpointstate.CopyKey) {
	f.locked(func() { all = f.state.TakeMissing() })
	return all
}

// Usage takes the use of every model, as [endpointstate.State.Usage].
func (f *Fleet) Usage() (all map[objects.ModelKey]endpointstate.Used) {
	f.locked(func() { all = f.state.Usage() })
	return all
}

// InFlight is how many requests this process has at each copy, as [endpointstate.State.InFlight].
func (f *Fleet) InFlight() (all map[endpointstate.CopyKey]endpointstate.Flying) {
	f.locked(func() { all = f.state.InFlight() })
	return all
}

// Known is what is known of how long engines take, as [endpointstate.State.Known].
func (f *Fleet) Known() (all []endpointstate.Known) {
	f.locked(func() { all = f.state.Known() })
	return all
}
