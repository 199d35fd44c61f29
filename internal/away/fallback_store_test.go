package away

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// TestStore runs the suite of all stores over an inner store that answers, and over
// one that always fails, so that every call is decided locally.
func TestStore(t *testing.T) {
	t.Run("store answers", func(t *testing.T) {
		storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
			s, _ := setup(t, now)
			return &allLocal{Fallback: s}
		}, storetest.Options{Quick: true})
	})
	t.Run("store does not answer", func(t *testing.T) {
		storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
			s, inner := setup(t, now)
			l, err := dipwell.New(s, store.Limit{Name: "tells the time", Rate: 1, Period: 1e9, OnStoreError: store.FailLocal})
			if err == nil {
				_, err = l.Reset(context.Background(), "tells the time", "k")
			}
			if err != nil {
				t.Fatal(err)
			}
			inner.fail = errAway
			inner.Registry().EachOverride = s.local.EachOverride // the overrides are those of the local store
			return failingStore{&allLocal{Fallback: s}, inner.Store, s.local, new(sync.RWMutex)}
		}, storetest.Options{Quick: true})
	})
}

var errAway = errors.New("connection refused")

// faulty is a memstore that fails when the test says so.
type faulty struct {
	*memory.Store
	fail    error        // of the batch
	failing error        // of each group
	source  store.Source // of its answers, as set by a decorator
	after   func()       // called after the store has answered
}

func (f *faulty) Apply(ctx context.Context, b *store.Batch) error {
	if f.fail != nil {
		return f.fail
	}
	err := f.Store.Apply(ctx, b)
	if f.after != nil {
		f.after()
	}
	for i := range b.Groups {
		g := &b.Groups[i]
		g.Err = cmp.Or(g.Err, f.failing)
		for j := range g.Ops {
			g.Ops[j].Source = f.source
		}
	}
	return err
}

func setup(t testing.TB, now func() int64) (*Fallback, *faulty) {
	return setupClocks(t, now, func() int64 { return now() - 12345 })
}

func setupClocks(t testing.TB, store, process func() int64) (*Fallback, *faulty) {
	t.Helper()
	mem, err := memory.New(memory.Config{Clock: store})
	if err != nil {
		t.Fatal(err)
	}
	inner := &faulty{Store: mem}
	s, err := NewFallback(inner, FallbackConfig{Clock: process})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), mem.Close()); err != nil {
			t.Error(err)
		}
	})
	return s, inner
}

// allLocal gives every limit FailLocal, and answers SourceStore.
type allLocal struct {
	*Fallback
	defs sync.Map // by *Definition: the same with FailLocal
}

func (a *allLocal) def(d *store.Definition) *store.Definition {
	c, ok := a.defs.Load(d)
	if !ok {
		failing := *d
		failing.OnStoreError = store.FailLocal
		c, _ = a.defs.LoadOrStore(d, &failing)
	}
	return c.(*store.Definition)
}

func (a *allLocal) Apply(ctx context.Context, b *store.Batch) error {
	for i := range b.Groups {
		for j := range b.Groups[i].Ops {
			op := &b.Groups[i].Ops[j]
			op.Def = a.def(op.Def)
		}
	}
	err := a.Fallback.Apply(ctx, b)
	for i := range b.Groups {
		for j := range b.Groups[i].Ops {
			b.Groups[i].Ops[j].Source = store.SourceStore
		}
	}
	return err
}

// failingStore fails every call. It lists and sweeps the local table. Its error for an
// unknown reservation is the one that the suite expects.
type failingStore struct {
	*allLocal
	*memory.Store // keeps the limits
	local         *memory.Store
	fitting       *sync.RWMutex // as that of a memory.Store, here for two of them
}

func (a failingStore) Abilities() store.Abilities {
	ab := store.AbilitiesOf(a.Store)
	ab.Limits, ab.Keys, ab.Sweep, ab.TopKeys = a, a.local.Keys, a.local.Sweep, a.local.Abilities().TopKeys
	ab.Overrides, ab.Holds = localOverrides{a}, a.local.Holds
	return ab
}

// localOverrides sets overrides in the local table, as answers of the store do.
type localOverrides struct{ a failingStore }

func (o localOverrides) SetOverride(ctx context.Context, d *store.Definition, v store.Override) (store.Override, error) {
	o.a.fitting.RLock()
	defer o.a.fitting.RUnlock()
	return o.a.local.SetOverride(ctx, o.a.def(d), v)
}

func (o localOverrides) EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (*store.Override, error) {
	return o.a.local.EndOverride(ctx, o.a.def(d), key, kind)
}

func (o localOverrides) Overrides(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.Override, error) {
	return o.a.local.Overrides(ctx, o.a.def(d), prefix, after, n)
}

// Define defines the limit in the local table at once. With a clock that steps back,
// the suite can see whether a row was reclaimed before the first call with the new
// definition.
func (a failingStore) Define(ctx context.Context, l store.Limit, owner string) (*store.Definition, error) {
	a.fitting.Lock()
	defer a.fitting.Unlock()
	d, err := a.Store.Define(ctx, l, owner)
	if err == nil {
		a.mu.Lock()
		err = a.follow(l.Name, a.def(d))
		a.mu.Unlock()
	}
	return d, err
}

func (a failingStore) Apply(ctx context.Context, b *store.Batch) error {
	err := a.allLocal.Apply(ctx, b)
	for i := range b.Groups {
		if g := &b.Groups[i]; g.Cancel && errors.Is(g.Err, errAway) {
			g.Err = store.ErrReservation
		} else if g.Settles() && errors.Is(g.Err, errAway) {
			g.Err = store.ErrUnknownHold
		}
	}
	return err
}
