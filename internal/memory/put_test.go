package memory

import (
	"errors"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

func TestPut(t *testing.T) {
	now := int64(1e15)
	s := open(t, Config{Clock: func() int64 { return now }, MaxKeys: 2})
	l, err := dipwell.New(s, store.Limit{Name: "a", Rate: 1, Period: time.Hour, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	def := l.Limit("a")
	unit := def.Rule.Unit
	for _, c := range []struct {
		used, ts, want int64
	}{
		{4, now, 6},
		{3, now - 1, 6}, // older than the row
		{3, now, 6},     // as old, and fuller
		{7, now, 3},
		{5, now + 1, 5},
		{0, now + 2, 10}, // full: the row is deleted
	} {
		if err := s.Put(def, "k", store.State{Used: c.used * unit, TS: c.ts, Version: 1}); err != nil {
			t.Fatal(err)
		}
		now = max(now, c.ts)
		if d, err := l.Check(t.Context(), "a", "k", 0); err != nil || d.Remaining != c.want {
			t.Errorf("%+v: %d remaining (%v)", c, d.Remaining, err)
		}
	}
	for i, want := range []error{nil, nil, store.ErrFull} {
		if err := s.Put(def, string(rune('p'+i)), store.State{Used: unit, TS: now, Version: 1}); !errors.Is(err, want) {
			t.Errorf("key %d: %v", i, err)
		}
	}
}

// A row of an older definition is converted to the current one.
func TestPutCarries(t *testing.T) {
	now := int64(1e15)
	s := open(t, Config{Clock: func() int64 { return now }})
	limit := store.Limit{Name: "a", Rate: 1, Period: time.Hour, Burst: 10}
	l, err := dipwell.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	old := l.Limit("a")
	limit.Burst = 20
	if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(old, "k", store.State{Used: 4 * old.Rule.Unit, TS: now, Version: 1}); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Check(t.Context(), "a", "k", 0); err != nil || d.Remaining != 16 {
		t.Errorf("%d remaining (%v), want 16", d.Remaining, err)
	}
	if err := s.Put(old, "k", store.State{Used: 1, TS: now, Version: 9}); !errors.Is(err, store.ErrStaleDefinition) {
		t.Errorf("a row of a later version: %v", err)
	}
}
