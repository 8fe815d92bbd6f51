package fleet

import (
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

// Registered returns the pool for which control registered a model: of those that count the first by name; false if there is none.
func (f *Fleet) Registered(model string, counts func(pool objects.Name) bool) (objects.Name, bool) {
	f.names.mu.RLock()
	defer f.names.mu.RUnlock()
	return first(f.names.pools[model], counts)
}

// RegisteredNames returns every model that control registered for a pool that counts, in order.
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

func first(pools []objects.Name, counts func(objects.Name) bool) (objects.Name, bool) {
	at := slices.IndexFunc(pools, counts)
	if at < 0 {
		return objects.Name{}, false
	}
	return pools[at], true
}
