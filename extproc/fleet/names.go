package fleet

import (
	"slices"
	"sync"

	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/internal/hash"
	"github.com/headgate/headgate/internal/objects"
)

// names are control's reports about names of models: registered models without an object, and
// targets of VModels. There may be many thousands of names, so an update costs only as much as the
// entries that it contains. It is safe for concurrent use; the zero value is ready.
type names struct {
	mu      sync.RWMutex // guards the fields below
	synced  bool
	pools   map[string][]objects.Name // sorted pools of each registered model
	vmodels map[objects.ModelKey]endpointstate.Switch
}

// apply applies an update of control.
func (n *names) apply(news endpointstate.PlacementUpdate) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.synced = true
	if news.All || n.pools == nil {
		n.pools, n.vmodels = make(map[string][]objects.Name), make(map[objects.ModelKey]endpointstate.Switch)
	}
	for k, to := range news.VModels {
		if n.vmodels[k] = to; to == (endpointstate.Switch{}) {
			delete(n.vmodels, k)
		}
	}
	for k, is := range news.Registered {
		pools := n.pools[k.ID]
		at, there := slices.BinarySearchFunc(pools, k.Pool, objects.Name.Compare)
		switch {
		case is && !there:
			n.pools[k.ID] = slices.Insert(slices.Clone(pools), at, k.Pool)
		case !is && there && len(pools) == 1:
			delete(n.pools, k.ID)
		case !is && there:
			n.pools[k.ID] = slices.Delete(slices.Clone(pools), at, at+1)
		}
	}
}

// Synced reports whether control has ever sent a complete update.
func (f *Fleet) Synced() bool {
	f.names.mu.RLock()
	defer f.names.mu.RUnlock()
	return f.names.synced
}

// Active returns the active model of a VModel. It uses control's report, or the VModel's object if
// there is no report. For a name that is not a VModel, it returns the name.
func (f *Fleet) Active(w *objects.World, key objects.ModelKey) string {
	return f.names.of(w, key).Active
}

// Resolve returns the model that serves a request for a model or VModel. Lot is the request's hash
// bucket; requests with the same bucket get the same model.
func (f *Fleet) Resolve(w *objects.World, key objects.ModelKey, lot uint64) string {
	to := f.names.of(w, key)
	if to.Canary != "" && lot*hash.Gamma>>32%100 < uint64(to.Percent) { //nolint:gosec // a percentage
		return to.Canary
	}
	return to.Active
}

// IsVModel reports whether a VModel has this name.
func (f *Fleet) IsVModel(w *objects.World, key objects.ModelKey) bool {
	_, is := f.names.vmodel(w, key)
	return is
}

// of returns the target for requests that name a model or VModel.
func (n *names) of(w *objects.World, key objects.ModelKey) endpointstate.Switch {
	if to, is := n.vmodel(w, key); is {
		return to
	}
	return endpointstate.Switch{Active: key.ID}
}

// vmodel returns the target of a VModel, and whether there is a VModel with this name.
func (n *names) vmodel(w *objects.World, key objects.ModelKey) (to endpointstate.Switch, is bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if to, ok := n.vmodels[key]; ok {
		return to, true
	}
	if v, ok := w.VModel(key); ok && !slices.Contains(n.pools[key.ID], key.Pool) { // a registered model takes precedence
		return endpointstate.Switch{Active: v.Target, Canary: v.Canary, Percent: v.Percent}, true
	}
	return endpointstate.Switch{}, false
}

// Registered returns the first pool, sorted by name, that counts accepts and for which control
// registered this model.
func (f *Fleet) Registered(model string, counts func(pool objects.Name) bool) (objects.Name, bool) {
	f.names.mu.RLock()
	defer f.names.mu.RUnlock()
	return first(f.names.pools[model], counts)
}

// RegisteredNames returns the sorted models that control registered for any pool that counts
// accepts.
func (f *Fleet) RegisteredNames(counts func(pool objects.Name) bool) []string {
	f.names.mu.RLock()
	defer f.names.mu.RUnlock()
	var all []string
	for model, pools := range f.names.pools {
		if _, ok := first(pools, counts); ok {
			all = append(all, model)
		}
	}
	slices.Sort(all)
	return all
}

// SomeRegistered returns names that RegisteredNames would return, unsorted; most is their maximum
// number. It also returns whether these are all names.
func (f *Fleet) SomeRegistered(counts func(pool objects.Name) bool, most int) (some []string, all bool) {
	f.names.mu.RLock()
	defer f.names.mu.RUnlock()
	for model, pools := range f.names.pools {
		if most--; most < 0 {
			return some, false
		}
		if _, ok := first(pools, counts); ok {
			some = append(some, model)
		}
	}
	return some, true
}

func first(pools []objects.Name, counts func(objects.Name) bool) (objects.Name, bool) {
	at := slices.IndexFunc(pools, counts)
	if at < 0 {
		return objects.Name{}, false
	}
	return pools[at], true
}
