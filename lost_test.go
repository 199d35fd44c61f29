package dipwell_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/door"
	"github.com/dipwell/dipwell/store"
)

// core is what package store has for this module alone.
var core = store.Core(door.Key{})

// A cutOff store decides some calls only after their context has ended, which get
// store.ErrOutcomeUnknown.
type cutOff struct {
	*tableStore
	cuts func(g *store.Group) bool
}

func (s cutOff) Abilities() store.Abilities {
	ab := s.tableStore.Abilities()
	ab.Store = s
	return ab
}

func (s cutOff) Apply(ctx context.Context, b *store.Batch) error {
	g := &b.Groups[0]
	if !s.cuts(g) {
		return s.tableStore.Apply(ctx, b)
	}
	late := store.Group{Ops: append([]store.Op(nil), g.Ops...), ID: g.ID}
	if g.Hold != nil {
		h := *g.Hold
		late.Hold = &h
	}
	<-ctx.Done()
	time.AfterFunc(time.Second, func() {
		_ = s.tableStore.Apply(context.Background(), &store.Batch{Groups: []store.Group{late}})
	})
	return errors.Join(store.ErrOutcomeUnknown, ctx.Err())
}

// TestLostHold checks that what a hold has taken is given back if its answer was lost and
// nobody knows its id.
func TestLostHold(t *testing.T) {
	takes := []dipwell.Take{take("slots", "k", 1), take("tokens", "k", 40)}
	for name, hold := range map[string]func(ctx context.Context, l *dipwell.Limiter) error{
		"Hold": func(ctx context.Context, l *dipwell.Limiter) error {
			_, err := l.Hold(ctx, time.Hour, "", takes...)
			return err
		},
		"Holding": func(ctx context.Context, l *dipwell.Limiter) error {
			_, err := l.Holding(ctx, time.Hour, takes, func(context.Context) ([]int64, error) { t.Error("runs"); return nil, nil })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				cut := l.With(cutOff{st, func(g *store.Group) bool { return g.Hold != nil && g.Hold.Verb == store.MakeHold }})
				if err := hold(ctx, cut); !errors.Is(err, store.ErrOutcomeUnknown) {
					t.Error(err)
				}
				time.Sleep(15 * time.Second)
				synctest.Wait()
				if slots, tokens := remaining(t, l, "slots", "k"), remaining(t, l, "tokens", "k"); slots != 2 || tokens != 100 {
					t.Errorf("%d slots and %d tokens left, want 2 and 100", slots, tokens)
				}
			})
		})
	}
}

// TestLostWait checks that what a wait has reserved is given back if its answer was lost.
func TestLostWait(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		if d, err := l.Take(t.Context(), "debt", "k", 5); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		cut := l.With(cutOff{st, func(g *store.Group) bool { return len(g.Ops) > 0 && g.Ops[0].Verb == store.VerbReserve }})
		if d, err := cut.Wait(t.Context(), "debt", "k", 3); !errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if d, err := l.Reserve(t.Context(), "debt", "k", 1); err != nil || d.Delay > time.Hour {
			t.Errorf("%+v, %v", d, err)
		}
	}, dipwell.Limit{Name: "debt", Rate: 1, Period: time.Hour, Burst: 5, MaxDebt: 5, Timeout: time.Second})
}

// TestLostWaitInTurn checks that a lost wait over limits of which one has no debt gives
// back what it has reserved of the others.
func TestLostWaitInTurn(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		takes := []dipwell.Take{take("strict", "k", 1), take("drip", "k", 1)}
		if d, err := l.Take(t.Context(), "drip", "k", 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		cut := l.With(cutOff{st, func(g *store.Group) bool { return len(g.Ops) > 0 && g.Ops[0].Verb == store.VerbTake }})
		var d dipwell.Decision
		if err := cut.DoWait(t.Context(), &d, takes, forever); !errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed || d.Reservation != (dipwell.Reservation{}) {
			t.Errorf("%+v, %v", d, err)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if left := remaining(t, l, "strict", "k"); left != 5 {
			t.Errorf("%d tokens left, want 5", left)
		}
		if d, err := l.Reserve(t.Context(), "drip", "k", 1); err != nil || d.Delay > time.Hour {
			t.Errorf("%+v, %v", d, err)
		}
	}, dipwell.Limit{Name: "strict", Rate: 5, Period: time.Hour, MaxDebt: dipwell.NoDebt},
		dipwell.Limit{Name: "drip", Rate: 1, Period: time.Hour, Algorithm: dipwell.LeakyBucket, MaxDebt: 9, Timeout: time.Second})
}

// TestLostReserve checks that a reservation whose answer was lost can be cancelled.
func TestLostReserve(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		cut := l.With(cutOff{st, func(g *store.Group) bool { return len(g.Ops) > 0 && g.Ops[0].Verb == store.VerbReserve }})
		for name, reserve := range map[string]func() (dipwell.Decision, error){
			"Reserve": func() (dipwell.Decision, error) { return cut.Reserve(t.Context(), "debt", "k", 8) },
			"DoAll": func() (d dipwell.Decision, err error) {
				err = cut.DoAll(t.Context(), &d, store.VerbReserve, []dipwell.Take{take("debt", "k", 8), take("debt", "other", 1)})
				return d, err
			},
		} {
			d, err := reserve()
			if !errors.Is(err, store.ErrOutcomeUnknown) || d.Allowed {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
			time.Sleep(2 * time.Second)
			synctest.Wait()
			if err := l.Cancel(t.Context(), d.Reservation); err != nil {
				t.Errorf("%s: Cancel: %v", name, err)
			}
			if left := remaining(t, l, "debt", "k"); left != 5 {
				t.Errorf("%s: %d tokens left, want 5", name, left)
			}
		}
	}, dipwell.Limit{Name: "debt", Rate: 1, Period: time.Hour, Burst: 5, MaxDebt: 5, Timeout: time.Second})
}

// A panicking store panics in some calls, after it has decided them.
type panicking struct {
	*tableStore
	panics func(g *store.Group) bool
}

func (s panicking) Abilities() store.Abilities {
	ab := s.tableStore.Abilities()
	ab.Store = s
	return ab
}

func (s panicking) Apply(ctx context.Context, b *store.Batch) error {
	err := s.tableStore.Apply(ctx, b)
	if s.panics(&b.Groups[0]) {
		panic("the store is broken")
	}
	return err
}

// TestPanicInTheBackground checks that a store that panics in a call that a Limiter makes
// in a goroutine of its own does not end the process.
func TestPanicInTheBackground(t *testing.T) {
	withHolds(t, func(t *testing.T, l *dipwell.Limiter, st *tableStore) {
		extends, cancels, settles := 0, 0, 0
		broken := l.With(panicking{st, func(g *store.Group) bool {
			switch {
			case g.Cancel:
				cancels++
			case g.Hold != nil && g.Hold.Verb == store.ExtendHold:
				extends++
			default:
				return false
			}
			return true
		}})
		d, err := broken.Holding(t.Context(), time.Minute, []dipwell.Take{take("slots", "k", 1)}, func(ctx context.Context) ([]int64, error) {
			time.Sleep(5 * time.Minute)
			return nil, context.Cause(ctx)
		})
		synctest.Wait()
		if err != nil || !d.Allowed || extends < 10 {
			t.Errorf("%+v, %v, %d times extended", d, err, extends)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if d, err := broken.Wait(ctx, "leaky", "k", 1); err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		time.AfterFunc(500*time.Millisecond, cancel)
		d, err = broken.Wait(ctx, "leaky", "k", 1)
		synctest.Wait()
		if !errors.Is(err, context.Canceled) || d.Allowed || cancels == 0 {
			t.Errorf("%+v, %v, %d times cancelled", d, err, cancels)
		}
		cut := l.With(cutOff{st, func(g *store.Group) bool {
			if core.Settles(g) {
				settles++
				panic("the store is broken")
			}
			return true
		}})
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := cut.Hold(ctx, time.Minute, "", take("slots", "k", 1)); !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Error(err)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if settles != 6 {
			t.Errorf("%d times settled", settles)
		}
	})
}
