package lifecycle

import (
	"sync"

	"github.com/headgate/headgate/api/admin"
	"github.com/headgate/headgate/control/conditions"
	"github.com/headgate/headgate/control/place"
	"github.com/headgate/headgate/internal/objects"
)

// maxConditions is the maximum number of conditions in an answer.
const maxConditions = 1000

// latest is a StatusWriter that keeps the latest input of conditions and passes it on. So operators
// see the same conditions whether objects have a status or not.
type latest struct {
	StatusWriter
	placer *place.Placer

	mu       sync.Mutex // guards the fields below
	in       conditions.Input
	observed bool // whether SetObserved was called
}

func (l *latest) SetWorld(w *objects.World) {
	l.mu.Lock()
	l.in.World = w
	l.mu.Unlock()
	l.StatusWriter.SetWorld(w)
}

func (l *latest) SetGateways(in conditions.Input) {
	l.mu.Lock()
	l.in.Attachments, l.in.Plans, l.in.Network, l.in.Facts, l.in.Pending = in.Attachments, in.Plans, in.Network, in.Facts, in.Pending
	l.mu.Unlock()
	l.StatusWriter.SetGateways(in)
}

func (l *latest) SetObserved(o conditions.Observed) {
	l.mu.Lock()
	l.in.Observed, l.observed = o, true
	l.mu.Unlock()
	l.StatusWriter.SetObserved(o)
}

// conditions returns the conditions of all objects that are False, at most maxConditions. Before
// the first call of SetObserved, those that depend on endpoints are missing.
func (l *latest) conditions() []admin.Condition {
	l.mu.Lock()
	in, observed := l.in, l.observed
	l.mu.Unlock()
	all := conditions.OfGateways(in)
	if observed {
		all = append(all, conditions.OfEndpoints(in)...)
	}
	if in.World != nil {
		all = append(all, conditions.OfDuplicates(in.World)...)
	}
	out := append([]admin.Condition{}, conditions.False(all)...)
	out = append(out, place.FalseConditions(l.placer)...)
	return out[:min(len(out), maxConditions)]
}
