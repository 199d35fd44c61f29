package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// TestManyCallsOfOneBucket checks that calls of one bucket are charged once
// each, for any number in a batch.
func TestManyCallsOfOneBucket(t *testing.T) {
	t.Parallel()
	const calls = 1200
	s := newStore(t, client(t), redisstore.Config{Poll: -1})
	l := limiter(t, s, store.Limit{Name: "hot", Rate: 1, Period: 24 * time.Hour, Burst: 10 * calls, MaxDebt: store.NoDebt})
	apply(t, s, group(l, store.VerbTake, "hot k"))
	groups := make([]store.Group, calls)
	for i := range groups {
		groups[i] = group(l, store.VerbTake, "hot k")
	}
	for i, g := range apply(t, s, groups...) {
		if want := int64(10*calls - 2 - i); g.Err != nil || g.Ops[0].Remaining != want {
			t.Fatalf("call %d: %d remaining, %v; want %d", i, g.Ops[0].Remaining, g.Err, want)
		}
	}
}

// TestLimitChangeWithinBatch checks that if a limit changes while a batch is
// assembled, a call has its bucket under one definition only; under both it
// would be charged twice from the same state.
func TestLimitChangeWithinBatch(t *testing.T) {
	t.Parallel()
	s := newStore(t, client(t), redisstore.Config{Poll: -1})
	l := limiter(t, s, drained("user", 9), drained("tenant", 9))
	for name, c := range map[string]struct {
		change bool
		calls  int
	}{"none": {false, 1}, "another": {true, 2}} {
		one, two := group(l, store.VerbTake, "user u"), group(l, store.VerbTake, "user u", "tenant t")
		n := s.CountCallsAcrossChange(t.Context(), &one, &two, func() {
			if c.change {
				same := *l.Limit("user")
				s.InstallDefinition(&same, "u")
			}
		})
		if n != c.calls {
			t.Errorf("%s: %d calls, not %d", name, n, c.calls)
		}
	}
}

// tryAgainHook answers the first calls of several keys with TRYAGAIN, as a node
// does during a slot migration.
type tryAgainHook struct{ remaining int }

type tryAgain struct{ error }

func (tryAgain) RedisError() {}

func (m *tryAgainHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (m *tryAgainHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (m *tryAgainHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); m.remaining > 0 && len(args) > 2 && fmt.Sprint(args[2]) == "2" {
			m.remaining--
			cmd.SetErr(tryAgain{errors.New("TRYAGAIN Multiple keys request during rehashing of slot")})
			return cmd.Err()
		}
		return next(ctx, cmd)
	}
}

// TestGroupWhileItsSlotMoves checks that a single group, which cannot be
// divided, is retried while its slot moves, whichever script decides it.
func TestGroupWhileItsSlotMoves(t *testing.T) {
	t.Parallel()
	db, m := client(t), &tryAgainHook{}
	db.AddHook(m)
	s := newStore(t, db, redisstore.Config{Poll: -1})
	window := drained("window", 3)
	window.Algorithm = store.FixedWindow
	l := limiter(t, s, drained("user", 3), drained("tenant", 3), window)
	for _, g := range []store.Group{group(l, store.VerbTake, "user k", "tenant k"), group(l, store.VerbTake, "user k", "window k")} {
		m.remaining = 2
		if g = apply(t, s, g)[0]; g.Err != nil || !g.Allowed || m.remaining != 0 {
			t.Errorf("%s: %v, %v", g.Ops[1].Def.Name, g.Allowed, g.Err)
		}
	}
}

// TestBatchesChargeWhatTheyGrant checks that for any batch on few buckets,
// including reservations that have to wait, the tokens used afterwards are
// exactly those granted.
func TestBatchesChargeWhatTheyGrant(t *testing.T) {
	t.Parallel()
	db := client(t)
	limits := []store.Limit{
		{Name: "debt", Rate: 1, Period: time.Hour, Burst: 5, MaxDebt: 6},
		{Name: "deep", Rate: 1, Period: time.Hour, Burst: 60, MaxDebt: 40},
		{Name: "none", Rate: 1, Period: time.Hour, Burst: 900, MaxDebt: store.NoDebt},
		{Name: "window", Algorithm: store.FixedWindow, Rate: 40, Period: 24 * time.Hour, Start: "0s", MaxDebt: 20},
	}
	const now = 1_800_000_000_000_000
	rapid.Check(t, func(t *rapid.T) {
		s, err := redisstore.New(context.Background(), db, redisstore.Config{Prefix: fmt.Sprint("grants", prefixes.Add(1)), Clock: func() int64 { return now }, Poll: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l, err := dipwell.New(s, limits...)
		if err != nil {
			t.Fatal(err)
		}
		type row struct{ limit, key string }
		used, made := map[row]int64{}, byte(0)
		for range rapid.IntRange(1, 4).Draw(t, "batches") {
			var b store.Batch
			for range rapid.IntRange(1, 20).Draw(t, "kinds") {
				ops, seen := []store.Op(nil), map[row]bool{}
				for range rapid.IntRange(1, 4).Draw(t, "ops") {
					o := store.Op{Def: l.Limit(limits[rapid.IntRange(0, len(limits)-1).Draw(t, "limit")].Name), Key: rapid.SampledFrom([]string{"", "k", "l"}).Draw(t, "key"),
						Verb: rapid.SampledFrom([]store.Verb{store.VerbTake, store.VerbReserve, store.VerbCheck}).Draw(t, "verb"), Cost: rapid.Int64Range(0, 7).Draw(t, "cost")}
					if r := (row{o.Def.Name, o.Key}); !seen[r] {
						seen[r], ops = true, append(ops, o)
					}
				}
				if len(ops) == 1 && rapid.Bool().Draw(t, "part") {
					ops[0].Verb = store.VerbTakeUpTo
				}
				times := rapid.SampledFrom([]int{1, 1, 1, 3, 30, 600}).Draw(t, "times")
				if slices.ContainsFunc(ops, func(op store.Op) bool { return op.Verb == store.VerbReserve }) {
					times = min(times, 12) // they are decided one by one
				}
				for i := range times {
					made++
					b.Groups = append(b.Groups, store.Group{ID: store.Reservation{1, made, byte(i), byte(i >> 8), 15: byte(len(b.Groups))}, Ops: append([]store.Op(nil), ops...)})
				}
			}
			if err := s.Apply(context.Background(), &b); err != nil {
				t.Fatal(err)
			}
			for i := range b.Groups {
				g := &b.Groups[i]
				if g.Err != nil {
					t.Fatalf("group %d: %v: %+v", i, g.Err, g.Ops)
				}
				for j := range g.Ops {
					if o := &g.Ops[j]; g.Allowed {
						used[row{o.Def.Name, o.Key}] += o.Granted
					}
				}
			}
		}
		for r, n := range used {
			o := store.Op{Def: l.Limit(r.limit), Key: r.key, Verb: store.VerbCheck}
			if one := apply(t, s, store.Group{Ops: []store.Op{o}}); one[0].Ops[0].Used != n*o.Def.Rule.Unit {
				t.Fatalf("%s %q: %d units used, and %d tokens of %d were granted", r.limit, r.key, one[0].Ops[0].Used, n, o.Def.Rule.Unit)
			}
		}
	})
}
