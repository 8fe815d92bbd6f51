package fleet

import (
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
)

// Moves is sent to when requests have begun or ended since [Fleet.Backlogs] was last called, at most once until then. It is only where
// somebody is told: with Config.Placed.
func (f *Fleet) Moves() <-chan struct{} { return f.moves }

// move notes that a request began or ended.
func (f *Fleet) move() {
	if !f.Placed || f.moved.Load() || !f.moved.CompareAndSwap(false, true) {
		return
	}
	select {
	case f.moves <- struct{}{}:
	default:
	}
}

// Backlogs visits what this process has at endpoints, as [endpointstate.State.Backlogs]. Visit must be quick and ask nothing of the Fleet.
func (f *Fleet) Backlogs(visit func(endpointstate.Backlog)) {
	f.moved.Store(false) // first: what begins meanwhile is told the next time
	f.locked(func() { f.state.Backlogs(visit) })
}
