package pgstore

import (
	"fmt"
	"testing"

	"github.com/dipwell/dipwell/store"
)

// TestOverriddenIsBounded meets more overridden keys than a store remembers. The ones that
// were met last are remembered.
func TestOverriddenIsBounded(t *testing.T) {
	base, err := store.NewDefinition(store.Limit{Name: "api", Rate: 1, Period: 1e9})
	if err != nil {
		t.Fatal(err)
	}
	base.Number, base.Overridden = 1, true
	o := &store.Override{Burst: 9, ID: 1, Version: 1}
	o.Prepare()
	d, e := base.WithOverride(o), &entry{id: 1, def: base}
	m := newOverridden()
	for i := range 3 * maxOverridden {
		m.Put(bucketKey{1, fmt.Sprint("k", i)}, d)
		if n := m.Len(); n > maxOverridden {
			t.Fatalf("%d keys are remembered; at most %d", n, maxOverridden)
		}
	}
	for i := 5*maxOverridden/2 + 1; i < 3*maxOverridden; i++ {
		if m.of(e, fmt.Sprint("k", i)) != d {
			t.Fatalf("key %d of %d is not remembered", i, 3*maxOverridden)
		}
	}
}
