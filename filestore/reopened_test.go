package filestore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// reopened is a store that crashes after every few calls and continues with what the
// file has. Every other time it is closed instead.
type reopened struct {
	t     testing.TB
	c     Config
	after int // calls
	reg   store.Registry

	mu     sync.RWMutex
	s      *Store
	calls  int
	rounds int
}

func (r *reopened) Abilities() store.Abilities {
	return store.Abilities{Store: r, Limits: r, Keys: r.Keys, Overrides: r, Holds: r.Holds, Sweep: r.Sweep, Now: r.Now}
}

func (r *reopened) SetOverride(ctx context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	r.maybeReopen()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return overrides{r.s}.SetOverride(ctx, d, o)
}

func (r *reopened) EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (*store.Override, error) {
	r.maybeReopen()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return overrides{r.s}.EndOverride(ctx, d, key, kind)
}

func (r *reopened) Overrides(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.Override, error) {
	r.maybeReopen()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return overrides{r.s}.Overrides(ctx, d, prefix, after, n)
}

func (r *reopened) Holds(ctx context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
	r.maybeReopen()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.mem.Holds(ctx, d, key)
}

func (r *reopened) Apply(ctx context.Context, b *store.Batch) error {
	r.maybeReopen()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.Apply(ctx, b)
}

// maybeReopen reopens the file after every few calls.
func (r *reopened) maybeReopen() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls++; r.calls%r.after != 0 {
		return
	}
	if err := r.s.writer.flush(); err != nil {
		r.t.Error(err)
	}
	path := r.s.path
	if r.rounds++; r.rounds%2 == 1 {
		path = copied(r.t, path)
	}
	if err := r.s.Close(); err != nil {
		r.t.Error(err)
	}
	r.s = open(r.t, path, r.c)
}

func (r *reopened) Registry() *store.Registry { return &r.reg }

func (r *reopened) Define(ctx context.Context, l store.Limit, owner string) (*store.Definition, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	d, err := r.s.Define(ctx, l, owner)
	r.reg.Install(r.s.Registry().All())
	return d, err
}

func (r *reopened) Drop(ctx context.Context, name, owner string) error {
	r.mu.RLock()
	defer r.mu.RUnlock()
	err := r.s.Drop(ctx, name, owner)
	r.reg.Install(r.s.Registry().All())
	return err
}

func (r *reopened) Sweep(ctx context.Context, n int) (int, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.sweep(ctx, n)
}

func (r *reopened) Now(ctx context.Context) (int64, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.mem.Now(ctx)
}

func (r *reopened) Keys(ctx context.Context, d *store.Definition, prefix, after string, n int) ([]store.KeyState, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.s.keys(ctx, d, prefix, after, n)
}

// TestStoreReopened runs the suite of all stores on a store that is reopened again
// and again, so that lows and records are loaded too.
func TestStoreReopened(t *testing.T) {
	t.Parallel()
	for name, every := range map[string]time.Duration{"each": Each, "every": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
				c := Config{Clock: now, Every: every}
				return &reopened{t: t, c: c, after: 7, s: open(t, inMemory(t), c)}
			}, storetest.Options{Brief: true})
		})
	}
}

// TestReservationInTheFarFuture checks that a file can be reopened with a reservation
// that is due after the year 2255, beyond store.MaxInt.
func TestReservationInTheFarFuture(t *testing.T) {
	path, now := inMemory(t), int64(1767225600e6)
	c := Config{Clock: func() int64 { return now }}
	limit := store.Limit{Name: "x", Rate: 1, Period: 365 * 24 * time.Hour, Burst: 1, MaxDebt: 250}
	s := open(t, path, c)
	l, err := dipwell.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Reserve(ctx, "x", "k", 251)
	if err != nil || now+d.Delay.Microseconds() <= store.MaxInt {
		t.Fatalf("%+v, %v", d, err)
	}
	if err = s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, c)
	if l, err = dipwell.New(s, limit); err != nil {
		t.Fatal(err)
	}
	if err = l.Cancel(ctx, d.Reservation); err != nil {
		t.Error(err)
	}
	if d, err = l.Check(ctx, "x", "k", 1); err != nil || !d.Allowed {
		t.Errorf("after the cancellation: %+v, %v", d, err)
	}
}

// TestForgottenHoldsGo closes a file with holds, and opens it when they may be forgotten:
// their rows go too.
func TestForgottenHoldsGo(t *testing.T) {
	path, now := inMemory(t), int64(1767225600e6)
	c := Config{Clock: func() int64 { return now }}
	s := open(t, path, c)
	l, err := dipwell.New(s, slow)
	if err != nil {
		t.Fatal(err)
	}
	hold := func(ttl time.Duration) {
		if d, err := l.Hold(ctx, ttl, "", dipwell.Take{Limit: slow.Name, Key: "k", Cost: 1}); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	for range 9 {
		hold(time.Minute)
	}
	hold(24 * time.Hour)
	if err = s.Close(); err != nil {
		t.Fatal(err)
	}
	now += time.Hour.Microseconds()
	s = open(t, path, c)
	var n int
	if err = s.disk.conn.QueryRowContext(ctx, "select count(*) from holds").Scan(&n); err != nil || n != 1 {
		t.Errorf("the file has %d holds (%v), want the one that lives", n, err)
	}
}

// TestFullUnderAnotherDefinition has a key whose row in the file is of a slow definition,
// and that is soon full under a fast one that another call names: it is full after a
// restart too.
func TestFullUnderAnotherDefinition(t *testing.T) {
	for _, slowFirst := range []bool{true, false} {
		path, now := inMemory(t), int64(1767225600e6)
		c := Config{Clock: func() int64 { return now }, Every: time.Hour}
		base := store.Limit{Name: "x", Rate: 1, Period: time.Hour, Burst: 10}
		other := store.Plan{Name: "other", Rate: 3_600_000, Burst: 20}
		if !slowFirst {
			base.Rate, other.Rate = other.Rate, base.Rate
		}
		base.Plans = store.NewPlans(other)
		s := open(t, path, c)
		l, err := dipwell.New(s, base)
		if err != nil {
			t.Fatal(err)
		}
		takes := []func(n int64) (dipwell.Decision, error){
			func(n int64) (dipwell.Decision, error) { return l.Take(ctx, "x", "k", n) },
			func(n int64) (dipwell.Decision, error) {
				return l.TakeAll(ctx, dipwell.Take{Limit: "x", Plan: "other", Key: "k", Cost: n})
			},
		}
		if !slowFirst {
			takes[0], takes[1] = takes[1], takes[0]
		}
		for i, n := range []int64{9, 1} {
			if d, err := takes[i](n); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			if i == 0 {
				if err = s.writer.flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
		now += 1e6
		if err = s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, path, c)
		if l, err = dipwell.New(s, base); err != nil {
			t.Fatal(err)
		}
		if d, err := l.Check(ctx, "x", "k", 1); err != nil || d.Remaining != 10 {
			t.Errorf("slow first %v: after a restart %+v, %v; want 10 remaining", slowFirst, d, err)
		}
	}
}
