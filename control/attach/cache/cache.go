// Package memo remembers what was made of what, from one round to the next: where little changes, little is made. It is pure.
package cache

// Cache has what was made of each key in this round and the last. What is made is not changed afterwards. The zero Cache is ready. It is
// used from one goroutine.
type Cache[K comparable, V any] struct{ last, now map[K]V }

// Get returns what was made of a key, and makes it where nobody has. What cannot be made is tried again.
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

// Round ends a round: what nobody has asked for in it is forgotten.
func (m *Cache[K, V]) NextRound() { m.last, m.now = m.now, nil }
