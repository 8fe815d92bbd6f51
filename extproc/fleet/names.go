package fleet

import (
	"maps"
	"slices"
	"sync"

	"github.com/headgate/headgate/extproc/fleet/belief"
	"github.com/headgate/headgate/internal/objects"
)

// names are the models that requests may name though no object says so, for control registered them: there may be many
// thousands, so that none costs more than itself. It is safe for concurrent use; the zero names is ready.
type names struct {
	mu    sync.RWMutex // guards the following
	heard bool
	pools map[string][]objects.Name // by the model, in order
}

// hear puts in force what control says of names.
func (n *names) hear(news belief.News) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.heard = true
	if news.All || n.pools == nil {
		n.pools = make(map[string][]objects.Name)
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

// Heard says whether control has ever said all that there is.
func (f *Fleet) Heard() bool {
	f.names.mu.RLock()
	defer f.names.mu.RUnlock()
	return f.names.heard
}

// Registered returns the pool for which control registered a model: the given one if it is among them, or with none given
// the first by name.
func (f *Fleet) Registered(model string, given objects.Name) (objects.Name, bool) {
	f.names.mu.RLock()
	defer f.names.mu.RUnlock()
	pools := f.names.pools[model]
	if given == (objects.Name{}) && len(pools) > 0 {
		return pools[0], true
	}
	_, ok := slices.BinarySearchFunc(pools, given, objects.Name.Compare)
	return given, ok
}

// RegisteredNames returns every model that control registered, in order; with a pool given, those of that pool.
func (f *Fleet) RegisteredNames(given objects.Name) []string {
	f.names.mu.RLock()
	defer f.names.mu.RUnlock()
	if given == (objects.Name{}) {
		return slices.Sorted(maps.Keys(f.names.pools))
	}
	var all []string
	for model, pools := range f.names.pools {
		if slices.Contains(pools, given) {
			all = append(all, model)
		}
	}
	slices.Sort(all)
	return all
}
