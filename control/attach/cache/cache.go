// Package cache caches results from one round to the next. It is pure.
package cache

// Cache has the results of this round and the last by key. Callers must not change results. The
// zero Cache is ready. It is for one goroutine.
type Cache[K comparable, V any] struct{ last, now map[K]V }

// Get returns the result for a key. It calls from if there is none; an error is not cached.
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

// NextRound ends a round. Results that it did not use are dropped.
func (m *Cache[K, V]) NextRound() { m.last, m.now = m.now, nil }
