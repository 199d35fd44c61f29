package bounded

import "testing"

// TestMap checks that a map keeps what was added last, and forgets what was added first.
func TestMap(t *testing.T) {
	m := Map[int, int]{Most: 4}
	for i := range 100 {
		m.Put(i, 10*i)
		m.Put(i, 20*i)
		for back := range min(i+1, 4) {
			if v, ok := m.Get(i - back); !ok || v != 20*(i-back) {
				t.Fatalf("after %d, %d is %d, %v", i, i-back, v, ok)
			}
		}
		if m.Len() > 8 || i >= 8 && m.Len() < 4 {
			t.Fatalf("%d entries after %d", m.Len(), i)
		}
	}
	for i := range 100 {
		_, known := m.Get(i)
		n := m.Len()
		if m.Remove(i); known != (m.Len() == n-1) {
			t.Fatalf("%d entries of %d after %d, known %v, is removed", m.Len(), n, i, known)
		}
	}
	if m.Len() != 0 {
		t.Errorf("%d entries are left", m.Len())
	}
	m.Put(1, 1)
	if v, ok := m.Get(1); !ok || v != 1 {
		t.Error(v, ok)
	}
}

// TestKeep checks that an entry that is needed outlives any number of others, and that
// entries that are needed do not fill the map.
func TestKeep(t *testing.T) {
	m := Map[int, int]{Most: 8, Keep: func(key, _ int) bool { return key < 0 }}
	m.Put(-1, 7)
	for i := range 1000 {
		m.Put(i, i)
		if v, ok := m.Get(-1); !ok || v != 7 || m.Len() > 16 {
			t.Fatalf("after %d: %d, %v, %d entries", i, v, ok, m.Len())
		}
	}
	for i := range 1000 {
		m.Put(-i, i)
		if _, ok := m.Get(-i); !ok || m.Len() > 16 {
			t.Fatalf("%d is known %v, %d entries", -i, ok, m.Len())
		}
	}
}
