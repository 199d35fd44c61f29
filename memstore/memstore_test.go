package memstore_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/memory"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

func open(t testing.TB, c memstore.Config) *memstore.Store {
	t.Helper()
	s, err := memstore.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		return open(t, memstore.Config{Clock: now})
	}, storetest.Options{Quick: true})
}

func TestConfig(t *testing.T) {
	for _, c := range []memstore.Config{{MaxKeys: -1}, {MaxKeyBytes: 1}, {MaxReservations: -1}, {Shards: 3}, {Shards: 512}} {
		if s, err := memstore.New(c); err == nil {
			_ = s.Close()
			t.Errorf("%+v: no error", c)
		}
	}
	s := open(t, memstore.Config{MaxKeys: 1, MaxReservations: 1})
	l, err := dipwell.New(s, store.Limit{Name: "l", Rate: 1, Period: time.Hour, Burst: 2, MaxDebt: 5})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if d, err := l.Reserve(t.Context(), "l", "k", 2); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if _, err := l.Reserve(t.Context(), "l", "k", 1); !errors.Is(err, store.ErrFull) {
		t.Errorf("a second reservation: %v", err)
	}
	if _, err := l.Take(t.Context(), "l", "other", 1); !errors.Is(err, store.ErrFull) {
		t.Errorf("a second key: %v", err)
	}
	st := map[string]float64{}
	for _, m := range s.Abilities().Metrics() {
		st[m.Name] = m.Value
	}
	if st["dipwell_keys"] != 1 || st["dipwell_reservations"] != 1 || st["dipwell_store_full_total"] != 2 || st["dipwell_store_bytes"] == 0 {
		t.Errorf("%v", st)
	}
}

// Takes of one limit and of two do not allocate, nor do those of a limit with a parent into a
// Decision that is used again.
func TestTakesDoNotAllocate(t *testing.T) {
	limit := store.Limit{Name: "org", Rate: 1, Period: time.Hour, Burst: 1 << 20}
	child := limit
	child.Name, child.Parent = "user", "org"
	l, err := dipwell.New(open(t, memstore.Config{}), limit, child)
	if err != nil {
		t.Fatal(err)
	}
	var reused dipwell.Decision
	for name, call := range map[string]func() error{
		"Take": func() error { _, err := l.Take(t.Context(), "org", "a", 1); return err },
		"Take with parents": func() error {
			return l.Do(t.Context(), &reused, store.VerbTake, dipwell.Take{Limit: "user", Key: "a/b", Cost: 1})
		},
		"TakeAll": func() error {
			d, err := l.TakeAll(t.Context(), dipwell.Take{Limit: "org", Key: "a", Cost: 1}, dipwell.Take{Limit: "org", Key: "b", Cost: 1})
			if len(d.Limits) != 2 {
				t.Errorf("%d limits", len(d.Limits)) // not d, which would then escape
			}
			return err
		},
	} {
		if n := testing.AllocsPerRun(5000, func() {
			if err := call(); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Calls of several limits into one Decision use the array of its Limits again, and leave
// nothing of an earlier call in it.
func TestLimitsAreUsedAgain(t *testing.T) {
	hour := store.Limit{Name: "org", Rate: 1, Period: time.Hour, Burst: 10}
	child := hour
	child.Name, child.Parent = "user", "org"
	l, err := dipwell.New(open(t, memstore.Config{}), hour, child)
	if err != nil {
		t.Fatal(err)
	}
	var d dipwell.Decision
	var first *dipwell.Decision
	for i, call := range []func() error{
		func() error {
			return l.DoAll(t.Context(), &d, store.VerbTake, []dipwell.Take{{Limit: "org", Key: "a", Cost: 11}, {Limit: "org", Key: "b", Cost: 1}})
		},
		func() error {
			return l.Do(t.Context(), &d, store.VerbTake, dipwell.Take{Limit: "user", Key: "b/c", Cost: 2})
		},
		func() error {
			return l.DoAll(t.Context(), &d, store.VerbCheck, []dipwell.Take{{Limit: "org", Key: "a", Cost: 3}, {Limit: "org", Key: "b", Cost: 4}})
		},
	} {
		if err := call(); err != nil || len(d.Limits) != 2 {
			t.Fatal(d, err)
		}
		if first == nil {
			first = &d.Limits[0]
		}
		if &d.Limits[0] != first {
			t.Errorf("call %d: another array", i)
		}
	}
	alone, err := l.Check(t.Context(), "org", "a", 3)
	if err != nil || !reflect.DeepEqual(d.Limits[0], alone) {
		t.Errorf("%+v, alone %+v, %v", d.Limits[0], alone, err)
	}
}

func TestClosed(t *testing.T) {
	s := open(t, memstore.Config{})
	l, err := dipwell.New(s, store.Limit{Name: "l", Rate: 1, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Take(t.Context(), "l", "k", 1); !errors.Is(err, memory.ErrClosed) || !errors.Is(err, store.ErrStore) {
		t.Errorf("after Close: %v", err)
	}
	ab, def := store.AbilitiesOf(s), l.Limit("l")
	for name, call := range map[string]func() error{
		"Define": func() error {
			_, err := l.Define(t.Context(), store.Limit{Name: "new", Rate: 1, Period: time.Hour}, store.OwnerCode)
			return err
		},
		"Drop": func() error { return l.Drop(t.Context(), "l", store.OwnerCode) },
		"SetOverride": func() error {
			_, err := ab.Overrides.SetOverride(t.Context(), def, store.Override{Key: "k", Rate: 2, Period: time.Hour})
			return err
		},
		"Hold": func() error {
			_, err := l.Hold(t.Context(), time.Minute, "id", dipwell.Take{Limit: "l", Key: "k", Cost: 1})
			return err
		},
	} {
		if err := call(); !errors.Is(err, memory.ErrClosed) {
			t.Errorf("%s after Close: %v", name, err)
		}
	}
}
