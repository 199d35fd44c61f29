package coalesce_test

import (
	"context"
	"runtime"
	"testing"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// held is an inner store whose call of the key "busy" lasts until it is released.
type held struct {
	store.Store
	entered, release chan struct{}
}

func (h *held) Abilities() store.Abilities { return store.AbilitiesOf(h.Store) }

func (h *held) Apply(ctx context.Context, b *store.Batch) error {
	if ops := b.Groups[0].Ops; len(ops) > 0 && ops[0].Key == "busy" {
		h.entered <- struct{}{}
		<-h.release
		return nil
	}
	return h.Store.Apply(ctx, b)
}

// queueing sends each call while another statement is in flight, so that it queues.
type queueing struct {
	*coalesce.Store
	inner *held
}

func (q queueing) Apply(ctx context.Context, b *store.Batch) error {
	def := limittest.Definition(store.Limit{Name: "busy", Rate: 1, Period: 1e9})
	busy, queued := make(chan error), make(chan error)
	go func() {
		busy <- q.Store.Apply(ctx, &store.Batch{Groups: []store.Group{{Ops: []store.Op{{Def: def, Key: "busy"}}}}})
	}()
	<-q.inner.entered
	go func() { queued <- q.Store.Apply(ctx, b) }()
	for n, _ := coalesce.Waiting(q.Store); n < len(b.Groups); n, _ = coalesce.Waiting(q.Store) {
		runtime.Gosched()
	}
	q.inner.release <- struct{}{}
	if err := <-busy; err != nil {
		return err
	}
	return <-queued
}

// TestEveryFieldCrosses checks calls that are sent alone, and calls that queue.
func TestEveryFieldCrosses(t *testing.T) {
	for _, way := range []string{"alone", "queued"} {
		t.Run(way, func(t *testing.T) {
			limittest.Crossing{Wrap: func(inner store.Store) store.Store {
				h := &held{inner, make(chan struct{}), make(chan struct{})}
				s := newStore(t, coalesce.Config{}, h)
				if way == "alone" {
					return s
				}
				return queueing{s, h}
			}}.Run(t)
		})
	}
}
