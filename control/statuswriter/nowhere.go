package statuswriter

import (
	"github.com/headgate/headgate/control/attach/conditions"
	"github.com/headgate/headgate/internal/objects"
)

// Nowhere is in the place of a [Report] where objects have no status: in a folder's files.
type Nowhere struct{}

// SetWorld says nothing.
func (Nowhere) SetWorld(*objects.World) {}

// SetGateways says nothing.
func (Nowhere) SetGateways(conditions.Input) {}
