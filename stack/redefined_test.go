package stack_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/stack"
	"github.com/dipwell/dipwell/store"
)

// TestDroppedAndDefinedAgain checks that no refusal of a limit is remembered once it was dropped.
// In PostgreSQL a limit of the same name then has the same version.
func TestDroppedAndDefinedAgain(t *testing.T) {
	s, _, _ := onWires(t)
	k, err := stack.New(t.Context(), s, stack.Options{DenyMaxAge: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	l, err := dipwell.New(k.Store)
	if err != nil {
		t.Fatal(err)
	}
	limit := store.Limit{Name: "a", Rate: 1, Period: time.Hour}
	for i := range 3 {
		if _, err := l.Define(t.Context(), limit, store.OwnerCode); err != nil {
			t.Fatal(err)
		}
		d, err := l.Take(t.Context(), "a", "k", 1)
		if err != nil || !d.Allowed {
			t.Errorf("%d: %+v %v", i, d, err)
		}
		for range 2 {
			if d, err := l.Take(t.Context(), "a", "k", 1); err != nil || d.Allowed {
				t.Errorf("%d: %+v %v", i, d, err)
			}
		}
		if err := l.Drop(t.Context(), "a", store.OwnerCode); err != nil {
			t.Fatal(err)
		}
	}
}
