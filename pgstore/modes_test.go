package pgstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestExecModes checks every statement in each of pgx's query modes, with
// functions and with portable tables: alone, in a batch, reserved and
// cancelled.
func TestExecModes(t *testing.T) {
	for template, prepare := range map[string]func(string) error{"dipwell": migrated, "portable": migratedPortable} {
		for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
			t.Run(template+"/"+mode, func(t *testing.T) {
				t.Parallel()
				options := "&default_query_exec_mode=" + mode
				if mode == "exec" || mode == "simple_protocol" { // programs behind a pooler turn the caches off
					options += "&statement_cache_capacity=0&description_cache_capacity=0"
				}
				pool := connect(t, pgtest.Database(t, template, prepare)+options)
				checkMode(t, newStore(t, pool, pgstore.Config{Poll: -1}))
			})
		}
	}
}

func checkMode(t *testing.T, s *pgstore.Store) {
	t.Helper()
	ctx := context.Background()
	l, err := dipwell.New(s, store.Limit{Name: "a", Rate: 1, Period: day, Burst: 20, MaxDebt: 20}, store.Limit{Name: "b", Rate: 1, Period: day, Burst: 20, MaxDebt: 20},
		store.Limit{Name: "daily", Algorithm: store.FixedWindow, Rate: 20, Period: day, Start: "00:00 Europe/Rome"})
	if err != nil {
		t.Fatal(err)
	}
	key := `k"',\{}é`
	for _, limit := range []string{"a", "daily"} {
		for verb, want := range []int64{store.VerbTake: 1, store.VerbCheck: 0, store.VerbTakeUpTo: 1, store.VerbReserve: 1, store.VerbCharge: 1, store.VerbRefund: 0} {
			verb := store.Verb(verb)
			var d dipwell.Decision
			if err := l.Do(ctx, &d, verb, dipwell.Take{Limit: limit, Key: key, Cost: 1}); err != nil || !d.Allowed || d.Granted != want {
				t.Error(limit, verb, d, err)
			}
		}
	}
	if d, err := l.TakeAll(ctx, dipwell.Take{Limit: "a", Key: key, Cost: 1}, dipwell.Take{Limit: "b", Key: key, Cost: 1}); err != nil || !d.Allowed {
		t.Error(d, err)
	}
	d, err := l.Reserve(ctx, "a", key, 30)
	if err != nil || d.Delay == 0 {
		t.Fatal(d, err)
	}
	if err := l.Cancel(ctx, d.Reservation); err != nil {
		t.Error(err)
	}
	if err := l.Cancel(ctx, d.Reservation); !errors.Is(err, store.ErrReservation) {
		t.Error("cancelled twice:", err)
	}
	if _, err := l.SetOverride(ctx, "a", dipwell.Override{Key: "o", Burst: 10}); err != nil {
		t.Error(err)
	}
	if keys, err := l.Keys(ctx, "a", "o", "", 10); err != nil || len(keys) != 1 {
		t.Errorf("%+v, %v", keys, err)
	}
	var b store.Batch
	for _, verb := range []store.Verb{store.VerbTake, store.VerbTake, store.VerbCharge, store.VerbTakeUpTo} {
		for _, limit := range []string{"a", "b", "daily"} {
			b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: l.Limit(limit), Key: key, Verb: verb, Cost: 1}}})
		}
	}
	if err := s.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Groups {
		if g := &b.Groups[i]; g.Err != nil || !g.Allowed {
			t.Error(g.Ops[0].Def.Name, g.Ops[0].Verb, g.Err)
		}
	}
	for limit, want := range map[string]int64{"a": 12, "b": 15, "daily": 13} {
		if d, err := l.Check(ctx, limit, key, 0); err != nil || d.Remaining != want {
			t.Error(limit, "has", d.Remaining, "left, not", want, err)
		}
	}
}
