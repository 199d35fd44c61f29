package store_test

import (
	"testing"

	"github.com/dipwell/dipwell/store"
)

// TestBlockOfWait checks that the attempts of a wait begin no block, and that a block which
// another call began refuses them.
func TestBlockOfWait(t *testing.T) {
	b := newBench(t, "login=1/1s,burst=2,max_debt=3,block=10s")
	b.do(store.VerbReserve, "login k 5")
	attempt := func(longest int64) *store.Op {
		t.Helper()
		op := b.op(store.VerbReserve, "login k 1")
		op.Bounded, op.MaxDelay = true, longest
		g, err := b.decide(&store.Group{Ops: []store.Op{op}, ID: store.Reservation{1}})
		if err != nil || g.Allowed {
			t.Fatalf("%+v, %v", g.Ops[0].Answer, err)
		}
		return &g.Ops[0]
	}
	for _, longest := range []int64{0, 3e6, store.MaxInt} {
		if op := attempt(longest); op.Def.Override != nil || b.table.overrides["login/k"] != nil {
			t.Errorf("a wait of at most %d µs: %+v", longest, op.Def.Override)
		}
	}
	b.do(store.VerbTake, "login k 1")
	if op := attempt(store.MaxInt); op.Def.Mode != store.Blocked || op.Retry != 10e6 {
		t.Errorf("beside a block: %+v", op.Answer)
	}
}
