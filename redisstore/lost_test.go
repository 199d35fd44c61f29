package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestLostCallSite makes a definition of a call site and an override, and puts back the
// limits as they were before, as a server that had not saved or replicated them. The
// program stores both again, whether it finds the loss by looking or hides it by a change
// of its own, so that the rows that refer to them can be read.
func TestLostCallSite(t *testing.T) {
	t.Parallel()
	db := client(t)
	for name, poll := range map[string]time.Duration{"looks": 10 * time.Millisecond, "changes": -1} {
		t.Run(name, func(t *testing.T) {
			prefix := fmt.Sprint("lostsite", prefixes.Add(1))
			s := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: poll})
			api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10}
			l := limiter(t, s, api)
			hash := prefix + ".limits"
			before, err := db.HGetAll(t.Context(), hash).Result()
			if err != nil {
				t.Fatal(err)
			}
			site := api
			site.Burst = 20
			if d, err := l.TakeWith(t.Context(), site, "k", 5); err != nil || d.Remaining != 15 {
				t.Fatal(d, err)
			}
			if _, err := s.Abilities().Overrides.SetOverride(t.Context(), l.Limit("api"), store.Override{Key: "o", Burst: 30}); err != nil {
				t.Fatal(err)
			}
			if err := db.HSet(t.Context(), hash, before).Err(); err != nil {
				t.Fatal(err)
			}
			if poll < 0 {
				for i := range 2 { // the server's revision becomes what it was
					if _, err := l.Define(t.Context(), store.Limit{Name: fmt.Sprint("other", i), Rate: 1, Period: time.Hour}, store.OwnerCode); err != nil {
						t.Fatal(err)
					}
				}
			}
			eventually(t, "the call site is stored again", func() bool {
				d := l.Limit("api")
				return d.WithPlan("#0") != nil && d.Overridden && db.HGet(t.Context(), hash, "").Val() != before[""]
			})
			if d, err := l.Take(t.Context(), "api", "k", 1); err != nil || d.Remaining != 4 {
				t.Errorf("a take of the limit's own: %+v, %v; want 4 remaining", d, err)
			}
		})
	}
}
