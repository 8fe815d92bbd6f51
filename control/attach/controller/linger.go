package controller

import (
	"maps"
	"time"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/control/attach/order"
	"github.com/headgate/headgate/internal/objects"
)

// linger is how long Envoys keep the cluster of a pool that no route names any more. extproc picks
// the pool of a request from its own copy of the objects, so for some seconds it may still pick a
// removed pool.
const linger = 10 * time.Second

// lingering contains the clusters of pools that were recently removed from plans, by Gateway and
// cluster name. Its methods do no I/O.
type lingering map[objects.Name]map[string]left

type left struct {
	cluster order.Resource
	until   time.Time
}

// note records that clusters of pools were removed at the time now: those that the old snapshots
// contain and the new ones do not.
func (l lingering) note(had, have map[objects.Name]order.Snapshot, now time.Time) {
	for gateway, snapshot := range had {
		if have[gateway] == nil {
			delete(l, gateway) // the Gateway's Envoys get no more updates
			continue
		}
		for name, cluster := range snapshot[order.Clusters] {
			_, stays := have[gateway][order.Clusters][name]
			if _, pool := wire.PoolOf(name); pool && !stays {
				if l[gateway] == nil {
					l[gateway] = make(map[string]left)
				}
				l[gateway][name] = left{cluster, now.Add(linger)}
			}
		}
	}
	for gateway, names := range l {
		maps.DeleteFunc(names, func(name string, _ left) bool {
			_, back := have[gateway][order.Clusters][name]
			return back
		})
	}
}

// end removes the clusters that have lingered long enough, and reports whether there were any.
func (l lingering) end(now time.Time) (some bool) {
	for gateway, names := range l {
		maps.DeleteFunc(names, func(_ string, c left) bool {
			over := !now.Before(c.until)
			some = some || over
			return over
		})
		if len(names) == 0 {
			delete(l, gateway)
		}
	}
	return some
}

// with returns the snapshots with lingering clusters added.
func (l lingering) with(given map[objects.Name]order.Snapshot) map[objects.Name]order.Snapshot {
	all := maps.Clone(given)
	for gateway, names := range l {
		snapshot := maps.Clone(given[gateway])
		clusters := maps.Clone(snapshot[order.Clusters])
		for name, c := range names {
			clusters[name] = c.cluster
		}
		snapshot[order.Clusters] = clusters
		all[gateway] = snapshot
	}
	return all
}
