package controller

import (
	"maps"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/internal/objects"
)

// followers are the Envoys that a control serves, and the changes by which their Gateways were given something else. It is pure.
type followers struct {
	envoys map[ads.Envoy]uint64    // the latest change of which each has all
	since  map[objects.Name]uint64 // the change by which what the Envoys of a Gateway are to have became what it is
}

func newFollowers() followers {
	return followers{make(map[ads.Envoy]uint64), make(map[objects.Name]uint64)}
}

// give notes what Gateways had, and what they have by a change.
func (f followers) give(had, have map[objects.Name]order.Snapshot, change uint64) {
	maps.DeleteFunc(f.since, func(gateway objects.Name, _ uint64) bool { return have[gateway] == nil })
	for gateway, snapshot := range have {
		if was := had[gateway]; was == nil || !same(was, snapshot) {
			f.since[gateway] = change
		}
	}
}

// programmed are the Gateways of which an Envoy has, or has refused, all that it is to have.
func (f followers) programmed() map[objects.Name]bool {
	all := make(map[objects.Name]bool)
	for e, settled := range f.envoys {
		if since, given := f.since[e.Gateway]; given && settled >= since {
			all[e.Gateway] = true
		}
	}
	return all
}

// same says whether two snapshots have the same resources in the same versions.
func same(a, b order.Snapshot) bool {
	return maps.EqualFunc(a, b, func(x, y map[string]order.Resource) bool {
		return maps.EqualFunc(x, y, func(r, s order.Resource) bool { return r.Version == s.Version })
	})
}
