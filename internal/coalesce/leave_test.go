package coalesce_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/store"
)

// slowErrContext is a context whose Err blocks until the test lets it continue, after
// its Done channel is closed.
type slowErrContext struct {
	context.Context
	blocked, resume chan struct{}
}

func (c *slowErrContext) Err() error {
	err := c.Context.Err()
	if err != nil {
		c.blocked <- struct{}{}
		<-c.resume
	}
	return err
}

// queuedPair is a lane with a statement in flight for key a, and two queued calls.
// The context of the one for key b ends.
type queuedPair struct {
	gate                 *gate
	store                *coalesce.Store
	first, leaver, other *call
	one                  *statement
	end                  *slowErrContext // the leaver's context
}

func newQueuedPair(t *testing.T) *queuedPair {
	t.Helper()
	b := &queuedPair{gate: newGate()}
	b.store = newStore(t, coalesce.Config{}, b.gate)
	b.first = ask(b.store, "a")
	b.one = <-b.gate.arrived
	ctx, cancel := context.WithCancel(context.Background())
	b.end = &slowErrContext{ctx, make(chan struct{}), make(chan struct{})}
	b.leaver = askIn(b.end, b.store, "b")
	b.leaver.cancel = cancel
	b.other = ask(b.store, "c")
	return b
}

// leave ends the context of b's call, and returns when the call blocks in Err.
func (b *queuedPair) leave() {
	b.leaver.cancel()
	<-b.end.blocked
}

// next ends the first statement and returns the second one.
func (b *queuedPair) next(t *testing.T) *statement {
	t.Helper()
	b.one.finish <- outcome{}
	b.first.turn(t)
	return <-b.gate.arrived
}

// idle checks that the queue is empty and the lane decides the next call.
func (b *queuedPair) idle(t *testing.T) {
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

// TestContextEndsAsTheRunnerTakesTheCall checks a call whose context ends, and which
// is sent, answered or refused by Close before it leaves the queue.
func TestContextEndsAsTheRunnerTakesTheCall(t *testing.T) {
	t.Run("still queued", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newQueuedPair(t)
			b.leave()
			close(b.end.resume)
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
			b := newQueuedPair(t)
			b.leave()
			two := b.next(t) // with the leaver's call
			close(b.end.resume)
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
			b := newQueuedPair(t)
			two := b.next(t)
			b.leave()
			two.finish <- outcome{}
			b.other.turn(t) // and so the leaver's answer is there
			close(b.end.resume)
			if b.leaver.turn(t) != 1 {
				t.Error("an answer that is there is given, whatever became of the context")
			}
			b.idle(t)
		})
	})
	t.Run("failed meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newQueuedPair(t)
			two := b.next(t)
			b.leave()
			two.finish <- outcome{group: map[string]error{"b": store.ErrStaleDefinition}}
			b.other.turn(t)
			close(b.end.resume)
			b.leaver.fails(t, store.ErrStaleDefinition)
			b.idle(t)
		})
	})
	t.Run("closed meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newQueuedPair(t)
			b.leave()
			closed := make(chan error)
			go func() { closed <- b.store.Close() }()
			synctest.Wait()
			close(b.end.resume)
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

// TestAllQueuedContextsEnd checks that no statement is sent, and the lane becomes
// idle, if the contexts of all queued calls have ended when a statement returns.
func TestAllQueuedContextsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newQueuedPair(t)
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
