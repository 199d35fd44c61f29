package coalesce_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/coalesce"
)

// stop holds a goroutine at a point until the test lets it go on.
type stop struct {
	reached, on chan struct{}
}

// stopAt stops the first goroutine that comes to each of the points.
func stopAt(s *coalesce.Store, points ...coalesce.Point) (stops []stop) {
	first := map[coalesce.Point]chan stop{}
	for _, p := range points {
		st := stop{make(chan struct{}), make(chan struct{})}
		stops = append(stops, st)
		first[p] = make(chan stop, 1)
		first[p] <- st
	}
	coalesce.StopAt(s, func(p coalesce.Point) {
		select {
		case st := <-first[p]:
			st.reached <- struct{}{}
			<-st.on
		default:
		}
	})
	return stops
}

// behind is a lane with a statement in flight for a, and two callers behind it:
// the one with b leaves.
type behind struct {
	gate                 *gate
	store                *coalesce.Store
	first, leaver, other *call
	one                  *statement
	stop                 stop
}

// newBehind stops the first goroutine that comes to p.
func newBehind(t *testing.T, p coalesce.Point) *behind {
	t.Helper()
	b := &behind{gate: newGate()}
	b.store = over(t, coalesce.Config{}, b.gate)
	b.stop = stopAt(b.store, p)[0]
	b.first = ask(b.store, "a")
	b.one = <-b.gate.arrived
	b.leaver, b.other = ask(b.store, "b"), ask(b.store, "c")
	return b
}

// leave ends the leaver's context and returns when it is stopped.
func (b *behind) leave() {
	b.leaver.cancel()
	<-b.stop.reached
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
			b := newBehind(t, coalesce.Ending)
			b.leave()
			close(b.stop.on)
			b.leaver.fails(t, context.Canceled)
			if errors.Is(b.leaver.err, dipwell.ErrOutcomeUnknown) {
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
			b := newBehind(t, coalesce.Ending)
			b.leave()
			two := b.next(t) // with the leaver's call
			close(b.stop.on)
			b.leaver.fails(t, dipwell.ErrOutcomeUnknown)
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
	for name, p := range map[string]coalesce.Point{"answered meanwhile": coalesce.Ending, "answered after it was seen as sent": coalesce.Giving} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBehind(t, p)
				two := b.next(t)
				b.leave()
				two.finish <- outcome{}
				b.other.turn(t) // and so the leaver's answer is there
				close(b.stop.on)
				if b.leaver.turn(t) != 1 {
					t.Error("an answer that is there is given, whatever became of the context")
				}
				b.idle(t)
			})
		})
	}
	t.Run("failed meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBehind(t, coalesce.Giving)
			two := b.next(t)
			b.leave()
			two.finish <- outcome{group: map[string]error{"b": dipwell.ErrStaleDefinition}}
			b.other.turn(t)
			close(b.stop.on)
			b.leaver.fails(t, dipwell.ErrStaleDefinition)
			b.idle(t)
		})
	})
	t.Run("closed meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBehind(t, coalesce.Ending)
			b.leave()
			closed := make(chan error)
			go func() { closed <- b.store.Close() }()
			synctest.Wait()
			close(b.stop.on)
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

// TestAllLeaveTheRunner: a runner was started for callers who are gone before
// it looks: it sends nothing, and the lane is idle again.
func TestAllLeaveTheRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBehind(t, coalesce.Beginning)
		b.one.finish <- outcome{}
		b.first.turn(t)
		<-b.stop.reached
		b.leaver.cancel()
		b.leaver.fails(t, context.Canceled)
		b.other.cancel()
		b.other.fails(t, context.Canceled)
		close(b.stop.on)
		b.idle(t)
	})
}

// TestLeavingWithTheLane: the lane falls idle before a caller has queued, so
// that it is handed the lane, and just then its context ends. It asks under that
// context, and those behind it are served.
func TestLeavingWithTheLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &behind{gate: newGate()}
		b.store = over(t, coalesce.Config{}, b.gate)
		stops := stopAt(b.store, coalesce.Arriving, coalesce.Leading)
		arriving, leading := stops[0], stops[1]
		first := ask(b.store, "a")
		one := <-b.gate.arrived
		leader := ask(b.store, "b")
		<-arriving.reached
		one.finish <- outcome{}
		first.turn(t)
		close(arriving.on)
		<-leading.reached
		follower := ask(b.store, "c")
		leader.cancel()
		close(leading.on)
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
