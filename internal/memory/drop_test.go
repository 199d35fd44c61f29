package memory

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// A call that finds under its locks that a limit was dropped does not wait for a change of
// another limit, which waits for these locks to look at the overrides.
func TestDroppedBesideChange(t *testing.T) {
	s := open(t, Config{Shards: 1})
	other := planned
	other.Name = "other"
	limiter(t, s, planned, other, store.Limit{Name: "gone", Rate: 1, Period: time.Second})
	override(t, s, store.Override{Key: "k", Plan: "pro"})

	var b store.Batch
	g, op := b.Single()
	*op = store.Op{Def: s.reg.Lookup("other"), Key: "k", Cost: 1}
	g.Ops = append(g.Ops, store.Op{Def: s.reg.Lookup("gone"), Key: "k", Cost: 1})
	call := s.newTxn(s.now())
	defer call.end()
	if err := call.placeGroup(g); err != nil {
		t.Fatal(err)
	}
	if err := s.reg.Drop("gone", store.OwnerCode); err != nil { // Store.Drop has come so far
		t.Fatal(err)
	}
	looks, locked, changed := make(chan bool), make(chan bool), make(chan error)
	s.reg.EachOverride = func(limit string, check func(o *store.Override)) error {
		close(looks)
		<-locked
		return s.EachOverride(limit, check)
	}
	go func() {
		limit := planned
		limit.Burst++
		_, err := s.Define(ctx, limit, store.OwnerCode)
		changed <- err
	}()
	<-looks
	if err := call.lock(); err != nil {
		t.Fatal(err)
	}
	close(locked)
	if err := g.DecideIn(call, &s.reg, call.now); !errors.Is(err, store.ErrUnknownLimit) {
		t.Errorf("the call: %v", err)
	}
	call.unlock()
	if err := <-changed; err != nil {
		t.Errorf("the change: %v", err)
	}
}

// A call has found a definition, and before it locks the shard, the limit gets so many
// versions that the handle of the definition may be that of another one.
func TestChangedBeforeLock(t *testing.T) {
	s := open(t, Config{Shards: 1})
	limit := store.Limit{Name: "x", Rate: 1, Period: time.Hour, Burst: 10}
	l := limiter(t, s, limit)
	take := func() (remaining int64) {
		d, err := l.Take(ctx, "x", "k", 1)
		if err != nil {
			t.Fatal(err)
		}
		return d.Remaining
	}
	take()
	var b store.Batch
	g, op := b.Single()
	*op = store.Op{Def: s.reg.Lookup("x"), Key: "k", Cost: 1}
	call := s.newTxn(s.now())
	defer call.end()
	if err := call.placeGroup(g); err != nil {
		t.Fatal(err)
	}
	handle := call.rows[0].handle
	for i := 0; !slices.Contains(s.limits.free, handle); i++ {
		if i == 1000 {
			t.Fatal("the handle of the first version is not free after 1000 versions")
		}
		limit.Period = time.Duration(1+i%2) * time.Hour
		if _, err := s.Define(ctx, limit, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
	if left := take(); left != 8 {
		t.Fatalf("%d remaining of 10 after 2 were taken", left)
	}
	if err := call.lock(); !errors.Is(err, errNotLocked) {
		t.Fatalf("lock with a superseded definition: %v", err)
	}
	if err := s.change(op.Def, "k", func(c *txn, _ *store.Definition) error {
		row, err := c.Row("x", "k")
		if err == nil && row.Version != s.reg.Lookup("x").Number {
			t.Errorf("the row has version %d", row.Version)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
