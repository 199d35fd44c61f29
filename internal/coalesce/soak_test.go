package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// unreliable is a store of varying speed, which sometimes outlasts its context, and
// sometimes fails before or after it decides.
type unreliable struct {
	store.Store
	locks bool

	mu  sync.Mutex
	rnd *rand.Rand
}

func (m *unreliable) chance() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rnd.Float64()
}

func (m *unreliable) applyWithin(ctx context.Context, b *store.Batch, _ time.Duration) error {
	return m.Apply(ctx, b)
}

func (m *unreliable) Apply(ctx context.Context, b *store.Batch) error {
	wait, mood := time.Duration(m.chance()*float64(2*time.Millisecond)), m.chance()
	if mood < 0.02 {
		wait = time.Hour
	}
	select {
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrStore, ctx.Err())
	case <-time.After(wait):
	}
	switch {
	case mood < 0.04:
		return store.ErrStore
	case m.locks && mood < 0.09:
		for i := range b.Groups {
			b.Groups[i].Err = store.ErrLocked
		}
		return nil
	}
	if err := m.Store.Apply(ctx, b); err != nil {
		return err
	}
	if mood > 0.98 {
		return store.ErrOutcomeUnknown
	}
	return nil
}

const soakTimeout = 100 * time.Millisecond

// TestSoak makes bursts of calls for few keys over an unreliable store. Every call
// returns in time, no token is granted twice, and the charges are those of granted
// calls and of some with an unknown outcome.
func TestSoak(t *testing.T) {
	for seed := range uint64(40) {
		for _, locks := range []bool{false, true} {
			t.Run(fmt.Sprint(seed, locks), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { soak(t, seed, locks) })
			})
		}
	}
}

func soak(t *testing.T, seed uint64, locks bool) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	inner, err := memstore.New(memstore.Config{Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	newMoody := func() *unreliable {
		return &unreliable{Store: inner, locks: locks, rnd: rand.New(rand.NewPCG(seed, rnd.Uint64()))}
	}
	lanes := store.Lanes{Stores: make([]store.Store, 2+rnd.IntN(5))}
	for i := range lanes.Stores {
		lanes.Stores[i] = newMoody()
	}
	c := coalesce.Config{Timeout: soakTimeout, MaxBatch: 1 + rnd.IntN(64)}
	if locks {
		lanes.LockWait, lanes.Sorter, lanes.Quarantine = 5*time.Millisecond, newMoody(), newMoody().applyWithin
	}
	s, err := coalesce.New(lanes, c)
	if err != nil {
		t.Fatal(err)
	}
	const burst = 1 << 20
	def := limittest.Definition(store.Limit{Name: "l", Rate: 1, Period: time.Hour, Burst: burst})
	a := outcomes{seen: map[[2]string]bool{}, granted: map[string]int64{}, unknown: map[string]int64{}}
	var callers sync.WaitGroup
	for range 1 + rnd.IntN(60) {
		own := rand.New(rand.NewPCG(seed, rnd.Uint64()))
		callers.Go(func() {
			for range 20 {
				time.Sleep(time.Duration(own.ExpFloat64() * float64(time.Millisecond)))
				a.call(t, s, def, own)
			}
		})
	}
	callers.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	b := store.Batch{Groups: []store.Group{{}}}
	for key, granted := range a.granted {
		b.Groups[0].Ops = []store.Op{{Def: def, Key: key, Verb: store.VerbCheck}}
		if err := inner.Apply(context.Background(), &b); err != nil {
			t.Fatal(err)
		}
		if charged := burst - b.Groups[0].Ops[0].Remaining; charged < granted || charged > granted+a.unknown[key] {
			t.Errorf("key %s: %d charged, %d granted, %d unknown", key, charged, granted, a.unknown[key])
		}
	}
}

// outcomes are the answers that callers got.
type outcomes struct {
	mu               sync.Mutex
	seen             map[[2]string]bool
	granted, unknown map[string]int64
}

// call makes a call of one or several groups, whose context may end.
func (a *outcomes) call(t *testing.T, s *coalesce.Store, def *store.Definition, rnd *rand.Rand) {
	ctx, cancel := context.Background(), func() {}
	latest := soakTimeout + soakTimeout/10
	switch rnd.IntN(4) {
	case 0:
		latest = time.Duration(rnd.IntN(int(soakTimeout)))
		ctx, cancel = context.WithTimeout(ctx, latest)
	case 1:
		leave, after := context.WithCancel(ctx)
		ctx, cancel = leave, after
		latest = time.Duration(rnd.IntN(int(soakTimeout)))
		defer time.AfterFunc(latest, after).Stop()
	}
	defer cancel()
	b := store.Batch{Groups: make([]store.Group, 1+rnd.IntN(8)/6)}
	for i := range b.Groups {
		b.Groups[i].Ops = []store.Op{{Def: def, Key: fmt.Sprint(rnd.IntN(5)), Verb: store.VerbTake, Cost: 1}}
	}
	began := time.Now()
	err := s.Apply(ctx, &b)
	if took := time.Since(began); took > latest {
		t.Errorf("a call took %v, at most %v", took, latest)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range b.Groups {
		g, op := &b.Groups[i], &b.Groups[i].Ops[0]
		if err != nil {
			g.Err = err
		}
		switch {
		case errors.Is(g.Err, store.ErrOutcomeUnknown):
			a.unknown[op.Key]++
		case g.Err == nil:
			token := [2]string{op.Key, fmt.Sprint(op.Remaining)}
			if a.seen[token] {
				t.Errorf("key %s: %d remaining, twice", op.Key, op.Remaining)
			}
			a.seen[token] = true
			a.granted[op.Key]++
		}
	}
}
