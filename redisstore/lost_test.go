package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestLostOverride sets the first override of a limit, and puts back the limits as they
// were before, as a server that had not saved or replicated them. The program stores again
// that keys have overrides, whether it finds the loss by looking or hides it by a change of
// its own.
func TestLostOverride(t *testing.T) {
	t.Parallel()
	db := client(t)
	for name, poll := range map[string]time.Duration{"looks": 10 * time.Millisecond, "changes": -1} {
		t.Run(name, func(t *testing.T) {
			prefix := fmt.Sprint("lostoverride", prefixes.Add(1))
			s := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: poll})
			api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10}
			l := limiter(t, s, api)
			hash := prefix + ".limits"
			before, err := db.HGetAll(t.Context(), hash).Result()
			if err != nil {
				t.Fatal(err)
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
			eventually(t, "the mark is stored again", func() bool {
				return l.Limit("api").Overridden && db.HGet(t.Context(), hash, "").Val() != before[""]
			})
			if d, err := l.Take(t.Context(), "api", "o", 1); err != nil || d.Remaining != 29 {
				t.Errorf("a take of the key with an override: %+v, %v; want 29 remaining", d, err)
			}
		})
	}
}

// TestLostVersion puts back the limits as they were before a change, as a server that had
// not saved or replicated it. Another program, which does not know of the change, makes
// others before the one that made it looks. That one stores its version again, and learns
// of theirs.
func TestLostVersion(t *testing.T) {
	t.Parallel()
	db := client(t)
	for others := 1; others <= 3; others++ { // the counter is behind, as far as it was, or ahead
		prefix := fmt.Sprint("lostversion", prefixes.Add(1))
		a, b := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1}), newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1})
		api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10}
		la, lb := limiter(t, a, api), limiter(t, b, api)
		hash := prefix + ".limits"
		before, err := db.HGetAll(t.Context(), hash).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, burst := range []int64{20, 30} {
			api.Burst = burst
			if _, err := la.Define(t.Context(), api, store.OwnerCode); err != nil {
				t.Fatal(err)
			}
		}
		if d, err := la.Take(t.Context(), "api", "k", 5); err != nil || d.Remaining != 25 {
			t.Fatal(d, err)
		}
		if err := db.HSet(t.Context(), hash, before).Err(); err != nil {
			t.Fatal(err)
		}
		for i := range others {
			if _, err := lb.Define(t.Context(), store.Limit{Name: fmt.Sprint("other", i), Rate: 1, Period: time.Hour}, store.OwnerCode); err != nil {
				t.Fatal(err)
			}
		}
		for _, s := range []*redisstore.Store{a, b} {
			if err := s.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if d := la.Limit("other0"); d == nil {
			t.Errorf("%d changes by another program: they are not known", others)
		}
		if d, err := lb.Take(t.Context(), "api", "k", 1); err != nil || d.Remaining != 24 {
			t.Errorf("%d changes by another program: a take under the lost version: %+v, %v; want 24 remaining", others, d, err)
		}
	}
}

// TestLostDrop puts back the limits as they were before a limit was dropped. The program
// that has dropped it drops it again.
func TestLostDrop(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("lostdrop", prefixes.Add(1))
	s := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1})
	l := limiter(t, s, store.Limit{Name: "api", Rate: 1, Period: time.Hour})
	before, err := db.HGetAll(t.Context(), prefix+".limits").Result()
	if err != nil {
		t.Fatal(err)
	}
	if err = l.Drop(t.Context(), "api", store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if err = db.HSet(t.Context(), prefix+".limits", before).Err(); err != nil {
		t.Fatal(err)
	}
	if err = s.Refresh(t.Context()); err != nil || l.Limit("api") != nil {
		t.Errorf("%v, %v; want no limit", l.Limit("api"), err)
	}
}

// A losing store makes holds and loses the answers, as a decorator does whose caller has
// gone before the answer: the caller does not learn the id that the store has set.
type losing struct{ *redisstore.Store }

func (s losing) Abilities() store.Abilities {
	ab := s.Store.Abilities()
	ab.Store = s
	return ab
}

func (s losing) Apply(ctx context.Context, b *store.Batch) error {
	g := &b.Groups[0]
	if g.Hold == nil || g.Hold.Verb != store.MakeHold {
		return s.Store.Apply(ctx, b)
	}
	sent, hold := *g, *g.Hold
	sent.Ops, sent.Hold = append([]store.Op(nil), g.Ops...), &hold
	err := s.Store.Apply(ctx, &store.Batch{Groups: []store.Group{sent}})
	return errors.Join(store.ErrOutcomeUnknown, err)
}

// TestLostHoldInCluster checks that what a hold has taken in a cluster is given back if its
// answer was lost.
func TestLostHoldInCluster(t *testing.T) {
	t.Parallel()
	s := newStore(t, connect(t, redistest.SharedCluster(t).URL()), redisstore.Config{})
	l := limiter(t, losing{s}, drained("tokens", 100), store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 2})
	for _, limit := range []string{"tokens", "jobs"} {
		was := left(t, l, limit, "k")
		if d, err := l.Hold(t.Context(), time.Hour, "", dipwell.Take{Limit: limit, Key: "k", Cost: 2}); !errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("%+v, %v", d, err)
		}
		eventually(t, limit+": the hold is given back", func() bool {
			holds, err := l.Holds(t.Context(), limit, "k")
			return err == nil && len(holds) == 0 && left(t, l, limit, "k") == was
		})
	}
}
