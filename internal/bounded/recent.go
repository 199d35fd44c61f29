package bounded

import "sync"

// A Map is a map of bounded size. A Map has at most 2 × Most entries, in two generations.
// When the younger one has Most entries, the older one is forgotten, except for entries
// that Keep wants, up to half of Most. It is safe for concurrent use.
type Map[K comparable, V any] struct {
	Most       int                   // entries in each of the two generations
	Keep       func(key K, v V) bool // reports whether an entry is still needed; nil: none is
	mu         sync.Mutex
	young, old map[K]V
}

func (m *Map[K, V]) Put(key K, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.old, key)
	if _, known := m.young[key]; !known && (m.young == nil || len(m.young) >= m.Most) {
		m.age()
	}
	m.young[key] = v
}

// age begins a new generation, and forgets the oldest.
func (m *Map[K, V]) age() {
	oldest := m.old
	m.young, m.old = map[K]V{}, m.young
	for key, v := range oldest {
		if m.Keep == nil || len(m.young) >= m.Most/2 {
			return
		}
		if m.Keep(key, v) {
			m.young[key] = v
		}
	}
}

func (m *Map[K, V]) Get(key K) (v V, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, ok = m.young[key]; !ok {
		v, ok = m.old[key]
	}
	return v, ok
}

func (m *Map[K, V]) Remove(key K) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.young, key)
	delete(m.old, key)
}

func (m *Map[K, V]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.young) + len(m.old)
}
