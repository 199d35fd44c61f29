package redisstore

import (
	"fmt"
	"testing"

	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// TestKnownOverridesAreBounded meets more overrides than a program remembers.
func TestKnownOverridesAreBounded(t *testing.T) {
	text := catalog.EncodeOverride(&store.Override{Burst: 9, ID: 1, Version: 1})
	d := knownOverrides{Map: bounded.Map[[2]string, *knownOverride]{Most: maxKnown}}
	for i := range 3 * maxKnown {
		key := fmt.Sprint("k", i)
		if o, err := d.decode("api", key, text); err != nil || o.Key != key {
			t.Fatalf("%s: %+v, %v", key, o, err)
		}
		if n := d.Len(); n < min(i+1, maxKnown) || n > 2*maxKnown {
			t.Fatalf("%d of %d overrides are remembered; at most %d", n, i+1, 2*maxKnown)
		}
	}
}
