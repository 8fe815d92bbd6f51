package sim

import (
	"slices"

	"github.com/headgate/headgate/internal/profile"
)

// collection is an LRU cache of at most capacity adapters.
type collection struct {
	capacity int
	used     map[string]uint64 // adapter -> number of its last use; all numbers differ
	tick     uint64
}

func newCollection(capacity int) collection {
	return collection{capacity: capacity, used: map[string]uint64{}}
}

// touch marks an adapter as the most recently used. It reports whether the adapter is in the cache.
func (h *collection) touch(adapter string) bool {
	if _, ok := h.used[adapter]; !ok {
		return false
	}
	h.tick++
	h.used[adapter] = h.tick
	return true
}

// put adds an adapter and marks it as the most recently used. If the cache is full, put evicts the
// least recently used adapter for which keep returns false, and returns the evicted name. If keep
// returns true for all adapters, put adds nothing, and ok is false.
//
// It scans all adapters: there are only tens, and each put causes an adapter load, which takes
// millions of times longer.
func (h *collection) put(adapter string, keep func(string) bool) (evicted string, ok bool) {
	if _, there := h.used[adapter]; !there && len(h.used) >= h.capacity {
		oldest := uint64(0)
		for name, tick := range h.used {
			if (oldest == 0 || tick < oldest) && !keep(name) {
				evicted, oldest = name, tick
			}
		}
		if oldest == 0 {
			return "", false
		}
		h.drop(evicted)
	}
	h.tick++
	h.used[adapter] = h.tick
	return evicted, true
}

// drop removes an adapter if it is in the cache.
func (h *collection) drop(adapter string) { delete(h.used, adapter) }

// names returns the names of the adapters, the most recently used first.
func (h *collection) names() []string {
	names := make([]string, 0, len(h.used))
	for name := range h.used {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		if h.used[a] > h.used[b] {
			return -1
		}
		return 1
	})
	return names
}

// useAdapter ensures that the adapter of a scheduled sequence is in a slot. It returns the load
// time in seconds. inUse must already include the sequence, so that its adapter is not evicted.
func (e *Engine) useAdapter(adapter string) (seconds float64) {
	if adapter == "" {
		return 0
	}
	if !e.host.touch(adapter) {
		seconds += e.loadHost(0, adapter)
	}
	if !e.slots.touch(adapter) {
		// This succeeds: the adapters in use, including this one, are at most as many as the slots.
		e.slots.put(adapter, e.isUsed)
		e.counted.SlotLoads++
		e.loaded = append(e.loaded, Event{Kind: SlotLoaded, Adapter: adapter})
		seconds += e.draw(e.profile.AdapterActivation)
	}
	return seconds
}

// loadHost loads an adapter into host memory and returns the load time in seconds. id is the ID of
// a requested load, or 0 if a step needs the adapter. If an adapter is evicted from host memory,
// its slot is freed, too. If all adapters in host memory are in use, the load has no effect.
func (e *Engine) loadHost(id ID, adapter string) (seconds float64) {
	if evicted, ok := e.host.put(adapter, e.isUsed); ok {
		e.slots.drop(evicted)
	}
	e.counted.HostLoads++
	e.loaded = append(e.loaded, Event{Kind: HostLoaded, ID: id, Adapter: adapter})
	return e.draw(e.profile.AdapterLoad)
}

// isUsed reports whether a running sequence uses the adapter.
func (e *Engine) isUsed(adapter string) bool { return e.inUse[adapter] > 0 }

// draw returns a random load time in seconds.
func (e *Engine) draw(s profile.Spread) float64 {
	if s.StdDev == 0 {
		return s.Mean
	}
	return max(0, s.Mean+s.StdDev*e.normal())
}
