package front_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// A stuckOnce store does not answer the first Extend.
type stuckOnce struct {
	store.Store
	stuck atomic.Bool
}

func (s *stuckOnce) Abilities() store.Abilities { return store.AbilitiesOf(s.Store) }

func (s *stuckOnce) Apply(ctx context.Context, b *store.Batch) error {
	if h := b.Groups[0].Hold; h != nil && h.Verb == store.ExtendHold && !s.stuck.Swap(true) {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.Store.Apply(ctx, b)
}

// TestKeepWithAStuckExtend checks that an Extend without an answer does not keep the next
// ones from being sent.
func TestKeepWithAStuckExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
		if err != nil {
			t.Fatal(err)
		}
		defer kept.Close()
		l, err := dipwell.New(&stuckOnce{Store: kept}, dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		var d dipwell.Decision
		ttl, err := front.Decide(t.Context(), l, &d, []dipwell.Take{{Limit: "slots", Key: "k", Cost: 1}}, front.NoWait, time.Minute, nil)
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		ctx, release := front.Keep(t.Context(), l, d.Hold, ttl)
		time.Sleep(10 * time.Minute)
		if live, err := l.Holds(t.Context(), "slots", "k"); err != nil || len(live) != 1 || ctx.Err() != nil {
			t.Errorf("live holds %v, %v, %v", live, err, context.Cause(ctx))
		}
		release()
	})
}

// TestHoldUnderAParent checks that a hold lives no longer than the parents of its limits
// allow.
func TestHoldUnderAParent(t *testing.T) {
	kept, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	l, err := dipwell.New(kept, dipwell.Limit{Name: "all", Algorithm: dipwell.Concurrency, Burst: 9, TTL: 5 * time.Second, Shared: true},
		dipwell.Limit{Name: "tenant", Algorithm: dipwell.Concurrency, Burst: 9, Parent: "all"},
		dipwell.Limit{Name: "user", Algorithm: dipwell.Concurrency, Burst: 9, Parent: "tenant"})
	if err != nil {
		t.Fatal(err)
	}
	var d dipwell.Decision
	ttl, err := front.Decide(t.Context(), l, &d, []dipwell.Take{{Limit: "user", Key: "acme/u7", Cost: 1}}, front.NoWait, time.Minute, nil)
	if err != nil || !d.Allowed || ttl != 5*time.Second {
		t.Errorf("%+v, %v, %v", d, ttl, err)
	}
}

// A failing store does not settle: the first call has no answer, the next fails.
type failing struct {
	store.Store
	settles atomic.Int64
}

func (s *failing) Abilities() store.Abilities { return store.AbilitiesOf(s.Store) }

func (s *failing) Apply(ctx context.Context, b *store.Batch) error {
	if h := b.Groups[0].Hold; h != nil && h.Verb == store.SettleHold {
		switch s.settles.Add(1) {
		case 1:
			<-ctx.Done()
			return ctx.Err()
		case 2:
			return store.ErrStore
		}
	}
	return s.Store.Apply(ctx, b)
}

// TestReleaseWhileTheStoreFails checks that a release does not keep a response while the
// store does not answer, and that the hold is settled once it does.
func TestReleaseWhileTheStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kept, err := memstore.New(memstore.Config{Clock: func() int64 { return time.Now().UnixMicro() }})
		if err != nil {
			t.Fatal(err)
		}
		defer kept.Close()
		s := &failing{Store: kept}
		l, err := dipwell.New(s, dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		var d dipwell.Decision
		ttl, err := front.Decide(t.Context(), l, &d, []dipwell.Take{{Limit: "slots", Key: "k", Cost: 1}}, front.NoWait, time.Minute, nil)
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		_, release := front.Keep(t.Context(), l, d.Hold, ttl)
		began := time.Now()
		release()
		if took := time.Since(began); took > time.Second {
			t.Errorf("the release took %v", took)
		}
		time.Sleep(30 * time.Second)
		if live, err := l.Holds(t.Context(), "slots", "k"); err != nil || len(live) != 0 || s.settles.Load() != 3 {
			t.Errorf("live holds %v after %d settles: %v", live, s.settles.Load(), err)
		}
	})
}

// TestHoldForLongerThanADay checks that a TTL above the default of limits, a day, is
// lowered to it.
func TestHoldForLongerThanADay(t *testing.T) {
	kept, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	l, err := dipwell.New(kept, dipwell.Limit{Name: "slots", Algorithm: dipwell.Concurrency, Burst: 9},
		dipwell.Limit{Name: "long", Algorithm: dipwell.Concurrency, Burst: 9, TTL: 48 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[string]time.Duration{"slots": 24 * time.Hour, "long": 30 * time.Hour} {
		var d dipwell.Decision
		ttl, err := front.Decide(t.Context(), l, &d, []dipwell.Take{{Limit: limit, Key: "k", Cost: 1}}, front.NoWait, 30*time.Hour, nil)
		if err != nil || !d.Allowed || ttl != want {
			t.Errorf("%s: %+v, %v, %v", limit, d, ttl, err)
		}
	}
}
