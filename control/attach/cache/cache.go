// Package cache reuses results that the previous round computed. It does no I/O.
package cache

// Cache contains the results of this round and of the last, by key. Callers must not change
// results. The zero Cache is ready to use. Only one goroutine may use it.
type Cache[K comparable, V any] struct{ last, now map[K]V }

// Get returns the cached result for a key. If there is none, it calls from and caches the result;
// an error is not cached.
func (m *Cache[K, V]) Get(key K, from func() (V, error)) (V, error) {
	if v, known := m.now[key]; known {
		return v, nil
	}
	v, known := m.last[key]
	if !known {
		var err error
		if v, err = from(); err != nil {
			return v, err
		}
	}
	if m.now == nil {
		m.now = make(map[K]V, len(m.last))
	}
	m.now[key] = v
	return v, nil
}

// NextRound ends a round, and drops the results that the round did not use.
func (m *Cache[K, V]) NextRound() { m.last, m.now = m.now, nil }
