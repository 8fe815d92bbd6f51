package controller

import (
	"maps"

	"github.com/headgate/headgate/control/attach/ads"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/internal/objects"
)

// followers records the Envoys of this control, and which change gave each Gateway its current
// resources. Its methods do no I/O.
type followers struct {
	envoys map[ads.Envoy]uint64    // number of the last change that an Envoy has answered completely
	since  map[objects.Name]uint64 // number of the change that gave a Gateway its current resources
}

func newFollowers() followers {
	return followers{make(map[ads.Envoy]uint64), make(map[objects.Name]uint64)}
}

// give records the number of the change that replaced the old resources of Gateways by new ones.
func (f followers) give(had, have map[objects.Name]order.Snapshot, change uint64) {
	maps.DeleteFunc(f.since, func(gateway objects.Name, _ uint64) bool { return have[gateway] == nil })
	for gateway, snapshot := range have {
		if was := had[gateway]; was == nil || !same(was, snapshot) {
			f.since[gateway] = change
		}
	}
}

// programmed returns the Gateways with an Envoy of this control that has answered all current
// resources.
func (f followers) programmed() map[objects.Name]bool {
	all := make(map[objects.Name]bool)
	for e, settled := range f.envoys {
		if since, given := f.since[e.Gateway]; given && settled >= since {
			all[e.Gateway] = true
		}
	}
	return all
}

// same reports whether two snapshots have the same resources and versions.
func same(a, b order.Snapshot) bool {
	return maps.EqualFunc(a, b, func(x, y map[string]order.Resource) bool {
		return maps.EqualFunc(x, y, func(r, s order.Resource) bool { return r.Version == s.Version })
	})
}
