// Package recent has a map of bounded size that forgets the entries that were added
// first.
package recent

// A Map is a map of bounded size. It has at most 2 × Most entries, in two generations.
// When the younger one has Most entries, the older one is forgotten. It is not safe for
// concurrent use.
type Map[K comparable, V any] struct {
	Most       int // entries in each of two generations
	young, old map[K]V
}

// Put adds an entry, or replaces it.
func (m *Map[K, V]) Put(key K, v V) {
	delete(m.old, key)
	if _, known := m.young[key]; !known && (m.young == nil || len(m.young) >= m.Most) {
		m.young, m.old = map[K]V{}, m.young
	}
	m.young[key] = v
}

// Get returns an entry.
func (m *Map[K, V]) Get(key K) (v V, ok bool) {
	if v, ok = m.young[key]; !ok {
		v, ok = m.old[key]
	}
	return v, ok
}

// Remove removes an entry.
func (m *Map[K, V]) Remove(key K) {
	delete(m.young, key)
	delete(m.old, key)
}

// Len returns the number of entries.
func (m *Map[K, V]) Len() int { return len(m.young) + len(m.old) }
