package coalesce_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/store"
)

// slowEnd is a context that has ended for its caller, which does not know why
// before the test lets it go on.
type slowEnd struct {
	context.Context
	asked, on chan struct{}
}

func (c *slowEnd) Err() error {
	err := c.Context.Err()
	if err != nil {
		c.asked <- struct{}{}
		<-c.on
	}
	return err
}

// behind is a lane with a statement in flight for a, and two callers behind it:
// the one with b leaves.
type behind struct {
	gate                 *gate
	store                *coalesce.Store
	first, leaver, other *call
	one                  *statement
	end                  *slowEnd // the leaver's context
}

func newBehind(t *testing.T) *behind {
	t.Helper()
	b := &behind{gate: newGate()}
	b.store = over(t, coalesce.Config{}, b.gate)
	b.first = ask(b.store, "a")
	b.one = <-b.gate.arrived
	ctx, cancel := context.WithCancel(context.Background())
	b.end = &slowEnd{ctx, make(chan struct{}), make(chan struct{})}
	b.leaver = askIn(b.end, b.store, "b")
	b.leaver.cancel = cancel
	b.other = ask(b.store, "c")
	return b
}

// leave ends the leaver's context and returns when the leaver has noticed.
func (b *behind) leave() {
	b.leaver.cancel()
	<-b.end.asked
}

// next lets the first statement end and returns the second one.
func (b *behind) next(t *testing.T) *statement {
	t.Helper()
	b.one.finish <- outcome{}
	b.first.turn(t)
	return <-b.gate.arrived
}

// idle checks that nobody waits and that the lane serves the next caller.
func (b *behind) idle(t *testing.T) {
	t.Helper()
	synctest.Wait()
	if n, busy := coalesce.Waiting(b.store); n != 0 || busy {
		t.Errorf("%d wait, busy %v", n, busy)
	}
	last := ask(b.store, "z")
	s := <-b.gate.arrived
	if !slices.Equal(s.keys, []string{"z"}) {
		t.Errorf("the next statement has %v", s.keys)
	}
	s.finish <- outcome{}
	last.turn(t)
}

// TestLeavingMeetsTheRunner: a caller's context ends; before it can leave, its
// call is taken for a statement, or answered as well, or refused by Close.
func TestLeavingMeetsTheRunner(t *testing.T) {
	t.Run("still queued", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBehind(t)
			b.leave()
			close(b.end.on)
			b.leaver.fails(t, context.Canceled)
			if errors.Is(b.leaver.err, store.ErrOutcomeUnknown) {
				t.Error("it was never sent")
			}
			two := b.next(t)
			if !slices.Equal(two.keys, []string{"c"}) {
				t.Errorf("sent %v, want c alone", two.keys)
			}
			two.finish <- outcome{}
			b.other.turn(t)
			b.idle(t)
		})
	})
	t.Run("taken meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBehind(t)
			b.leave()
			two := b.next(t) // with the leaver's call
			close(b.end.on)
			b.leaver.fails(t, store.ErrOutcomeUnknown)
			b.leaver.fails(t, context.Canceled)
			if !slices.Equal(two.keys, []string{"b", "c"}) {
				t.Errorf("sent %v", two.keys)
			}
			two.finish <- outcome{}
			if b.other.turn(t) != 1 {
				t.Error("the other one's answer is wrong")
			}
			b.idle(t)
		})
	})
	t.Run("answered meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBehind(t)
			two := b.next(t)
			b.leave()
			two.finish <- outcome{}
			b.other.turn(t) // and so the leaver's answer is there
			close(b.end.on)
			if b.leaver.turn(t) != 1 {
				t.Error("an answer that is there is given, whatever became of the context")
			}
			b.idle(t)
		})
	})
	t.Run("failed meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBehind(t)
			two := b.next(t)
			b.leave()
			two.finish <- outcome{group: map[string]error{"b": store.ErrStaleDefinition}}
			b.other.turn(t)
			close(b.end.on)
			b.leaver.fails(t, store.ErrStaleDefinition)
			b.idle(t)
		})
	})
	t.Run("closed meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBehind(t)
			b.leave()
			closed := make(chan error)
			go func() { closed <- b.store.Close() }()
			synctest.Wait()
			close(b.end.on)
			b.leaver.fails(t, coalesce.ErrClosed)
			b.other.fails(t, coalesce.ErrClosed)
			b.one.finish <- outcome{}
			b.first.turn(t)
			if err := <-closed; err != nil {
				t.Error(err)
			}
		})
	})
}

// TestAllLeaveTheRunner: when a shared statement returns, all who waited for the
// next one are gone: nothing is sent, and the lane is idle again.
func TestAllLeaveTheRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBehind(t)
		two := b.next(t)
		var late []*call
		for range 3 {
			late = append(late, ask(b.store, "d"))
		}
		for _, c := range late {
			c.cancel()
			c.fails(t, context.Canceled)
		}
		two.finish <- outcome{}
		b.leaver.turn(t)
		b.other.turn(t)
		b.idle(t)
	})
}

// slowLink is a spare lane's store that never has a connection, and lets the
// test stop the first caller that asks for one.
type slowLink struct {
	*gate
	first     sync.Once
	asked, on chan struct{}
}

func (l *slowLink) connected(int) bool {
	l.first.Do(func() {
		l.asked <- struct{}{}
		<-l.on
	})
	return false
}

// TestLeavingWithTheLane: the lane falls idle before a caller has queued, so
// that it is handed the lane, and just then its context ends. It asks under that
// context, and those behind it are served.
func TestLeavingWithTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &behind{gate: newGate()}
		spare := &slowLink{gate: newGate(), asked: make(chan struct{}), on: make(chan struct{})}
		b.store = overLanes(t, coalesce.Config{}, store.Lanes{Stores: []store.Store{b.gate, spare}, Spare: 1, Connected: spare.connected})
		earnCredits(t, b.store, b.gate)
		first := ask(b.store, "a")
		one := <-b.gate.arrived
		leader := ask(b.store, "b")
		<-spare.asked // the leader found no idle lane
		one.finish <- outcome{}
		first.turn(t)
		close(spare.on)
		synctest.Wait() // for the leader to have the lane
		follower := ask(b.store, "c")
		leader.cancel()
		two := <-b.gate.arrived
		if !slices.Equal(two.keys, []string{"b"}) || two.ctx.Err() == nil {
			t.Errorf("asked about %v under a context that has %v", two.keys, two.ctx.Err())
		}
		leader.fails(t, context.Canceled)
		three := <-b.gate.arrived
		three.finish <- outcome{}
		follower.turn(t)
		b.idle(t)
	})
}
