package redisstore_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

const formOfARow = "numbers too big"

// TestOneRowAtFault checks that in a batch of many rows only the callers of a
// key that holds something else get an error; all others are answered and
// charged once, and the value of the key is unchanged.
func TestOneRowAtFault(t *testing.T) {
	t.Parallel()
	for name, put := range map[string]func(ctx context.Context, db redis.UniversalClient, key string) error{
		"a list": func(ctx context.Context, db redis.UniversalClient, key string) error {
			return db.RPush(ctx, key, "x").Err()
		},
		"no numbers": func(ctx context.Context, db redis.UniversalClient, key string) error {
			return db.Set(ctx, key, "a b 1", 0).Err()
		},
		"text": func(ctx context.Context, db redis.UniversalClient, key string) error {
			return db.Set(ctx, key, "hello", 0).Err()
		},
		// A ts in the far future has the form of a row, and a single call
		// decides it.
		formOfARow: func(ctx context.Context, db redis.UniversalClient, key string) error {
			return db.Set(ctx, key, "1 99999999999999999999 1", 0).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			db, ctx := client(t), t.Context()
			prefix := fmt.Sprint("fault", prefixes.Add(1))
			s := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1})
			d, err := s.Define(ctx, store.Limit{Name: "one", Rate: 1, Period: 24 * time.Hour, Burst: 1000}, store.OwnerCode)
			if err != nil {
				t.Fatal(err)
			}
			bad := prefix + ":one:{k50}"
			if err := put(ctx, db, bad); err != nil {
				t.Fatal(err)
			}
			before, _ := db.Dump(ctx, bad).Result()
			ask := func(verb store.Verb) *store.Batch {
				b := new(store.Batch)
				for i := range 100 {
					b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: d, Key: fmt.Sprint("k", i), Verb: verb, Cost: 1}}})
				}
				if err := s.Apply(ctx, b); err != nil {
					t.Fatal(err)
				}
				return b
			}
			for round := range int64(2) {
				took := ask(store.VerbTake)
				left := ask(store.VerbCheck)
				for i := range took.Groups {
					g := &took.Groups[i]
					if i == 50 {
						if g.Err == nil && name != formOfARow {
							t.Errorf("round %d: the key at fault: allowed %v", round, g.Allowed)
						}
						continue
					}
					if g.Err != nil || !g.Allowed || left.Groups[i].Ops[0].Remaining != 999-round {
						t.Errorf("round %d, %s: %v %v, %d left", round, g.Ops[0].Key, g.Allowed, g.Err, left.Groups[i].Ops[0].Remaining)
					}
				}
			}
			if after, err := db.Dump(ctx, bad).Result(); err != nil || after != before && name != formOfARow {
				t.Errorf("the key holds something else now: %v", err)
			}
		})
	}
}
