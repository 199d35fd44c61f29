package memory

import (
	"errors"
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
	l := limiter(t, s, planned, other, store.Limit{Name: "gone", Rate: 1, Period: time.Second})
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
	if err := l.Drop(ctx, "gone", store.OwnerCode); err != nil {
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
