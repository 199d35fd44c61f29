package dipwell_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// TestTakeAllAddsCostsOfOneLimit checks that the costs of two takes are added if their
// limits have different fields but mean the same.
func TestTakeAllAddsCostsOfOneLimit(t *testing.T) {
	st, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st)
	if err != nil {
		t.Fatal(err)
	}
	of := func(l store.Limit, n int64) dipwell.Take {
		return dipwell.Take{Limit: l.Name, With: &l, Key: "k", Cost: n}
	}
	old := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10}
	other := old
	other.MaxDebt, other.MaxCharge = 10, 100 // the defaults
	d, err := l.TakeAll(t.Context(), of(old, 4), of(other, 3))
	if err != nil || !d.Allowed || d.Remaining != 3 {
		t.Errorf("4 and 3 of 10: %+v, %v", d.Limits, err)
	}
	if d, err = l.TakeAll(t.Context(), of(old, 2), of(other, 2)); err != nil || d.Allowed {
		t.Errorf("2 and 2 of 3 were granted: %+v, %v", d.Limits, err)
	}
}

// TestDoResetsTheDecision checks that nothing of an earlier call remains in a Decision
// that is reused.
func TestDoResetsTheDecision(t *testing.T) {
	st, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 2, MaxDebt: 10})
	if err != nil {
		t.Fatal(err)
	}
	var d dipwell.Decision
	for _, verb := range []store.Verb{store.VerbTake, store.VerbCheck, store.VerbReset} {
		if err := l.DoAll(t.Context(), &d, store.VerbReserve, []dipwell.Take{{Limit: "api", Key: "k", Cost: 3}}); err != nil || d.Reservation == (store.Reservation{}) {
			t.Fatalf("%+v, %v", d, err)
		}
		if err := l.Do(t.Context(), &d, verb, dipwell.Take{Limit: "api", Key: "k", Cost: 1}); err != nil || d.Reservation != (store.Reservation{}) || d.Limits != nil {
			t.Errorf("%v: reservation %v and %d limits, %v", verb, d.Reservation, len(d.Limits), err)
		}
	}
}

// TestNoVerb checks that a number that is no verb is an error, and charges nothing. The
// rule would take it for a charge.
func TestNoVerb(t *testing.T) {
	st, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	l, err := dipwell.New(st, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 5}, store.Limit{Name: "all", Rate: 1, Period: time.Hour, Burst: 5},
		store.Limit{Name: "user", Parent: "all", Rate: 1, Period: time.Hour, Burst: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"api", "user"} {
		take := dipwell.Take{Limit: limit, Key: "k", Cost: 2}
		for _, verb := range []store.Verb{store.VerbReset + 1, 255} {
			var d dipwell.Decision
			for how, err := range map[string]error{"Do": l.Do(t.Context(), &d, verb, take), "DoAll": l.DoAll(t.Context(), &d, verb, []dipwell.Take{take})} {
				if field, ok := errors.AsType[*dipwell.FieldError](err); !ok || !strings.HasSuffix(field.Field, "verb") {
					t.Errorf("%s of %s with verb %d: %v", how, limit, verb, err)
				}
			}
		}
		if d, err := l.Check(t.Context(), limit, "k", 0); err != nil || d.Remaining != 5 {
			t.Errorf("%s: %d left, %v", limit, d.Remaining, err)
		}
	}
}
