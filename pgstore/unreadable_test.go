package pgstore_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestUnreadableLimit checks that a limit with an unknown algorithm or past
// does not affect other limits. Its own calls return an error that names it,
// and its rows do not count as full.
func TestUnreadableLimit(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, migrate := range map[string]func(string) error{
		"functions": migrated,
		"portable":  func(dsn string) error { return migratedFor(dsn, "Portable") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := connect(t, pgtest.Database(t, "dipwell_unreadable_"+name, migrate))
			first, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}),
				store.Limit{Name: "good", Rate: 5, Period: time.Hour}, store.Limit{Name: "newer", Rate: 5, Period: time.Hour}, store.Limit{Name: "past", Rate: 5, Period: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := first.Define(ctx, store.Limit{Name: "past", Rate: 6, Period: time.Hour}, store.OwnerCode); err != nil {
				t.Fatal(err)
			}
			if name == "portable" {
				must(t, pool, `update dipwell.limits set definition = replace(definition, '["rate"', '["martian"') where name = 'newer'`)
				must(t, pool, `update dipwell.limits set definition = replace(definition, '"policy":"keep"', '"policy":"martian"') where name = 'past'`)
			} else {
				must(t, pool, "update dipwell.limits set algorithm = 'martian' where name = 'newer'")
				must(t, pool, "update dipwell.versions set per = 'a fortnight' where number = 1 and limit_id = (select id from dipwell.limits where name = 'past')")
			}
			var reports atomic.Int64
			l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1, OnError: func(error) { reports.Add(1) }}))
			if err != nil {
				t.Fatal(err)
			}
			if d, err := l.Take(ctx, "good", "k", 1); err != nil || !d.Allowed {
				t.Errorf("a limit beside it: %+v, %v", d, err)
			}
			for _, limit := range []string{"newer", "past"} {
				d, err := l.Take(ctx, limit, "k", 1)
				if !errors.Is(err, store.ErrStore) || d.Allowed || !strings.Contains(err.Error(), "limit "+limit+" cannot be read") {
					t.Errorf("%s: %+v, %v", limit, d, err)
				}
				if _, err := l.Define(ctx, store.Limit{Name: limit, Rate: 7, Period: time.Hour}, store.OwnerCode); name == "portable" && err == nil {
					t.Errorf("%s was defined over what cannot be read", limit)
				}
			}
			if n := reports.Load(); n != 2 {
				t.Errorf("%d reports", n)
			}
		})
	}
}
