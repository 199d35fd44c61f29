package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// TestCallSitesAreBounded checks that call sites which come and go leave nothing behind.
func TestCallSitesAreBounded(t *testing.T) {
	now := int64(1e15)
	s, err := New(Config{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	l := store.Limit{Name: "site", Rate: 1, Period: time.Second, Burst: 5}
	if _, err = s.Define(t.Context(), l, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	take := func(d *store.Definition, key string, cost int64) store.Op {
		t.Helper()
		b := store.Batch{Groups: []store.Group{{Ops: []store.Op{{Def: d, Key: key, Cost: cost}}}}}
		if err := s.Apply(t.Context(), &b); err != nil || b.Groups[0].Err != nil {
			t.Fatal(err, b.Groups[0].Err)
		}
		return b.Groups[0].Ops[0]
	}
	for i := range int64(3000) {
		now += 500_000
		site := l
		site.Burst = 100 + i
		d, err := s.CallSite(t.Context(), s.reg.Lookup("site"), site)
		if err != nil {
			t.Fatal(i, err)
		}
		if op := take(d, "k", 1); !op.Allowed || op.Def.Rule.Burst != site.Burst {
			t.Fatalf("%d: %+v", i, op)
		}
		take(d, fmt.Sprint("once", i), 90)
	}
	of := s.limits.byName["site"]
	if len(of.handles) > number.MaxIndex || len(of.bindings) > aliveMax {
		t.Errorf("%d handles, %d bindings", len(of.handles), len(of.bindings))
	}
}
