package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// group returns a group that asks for one token of each "limit key" in rows.
func group(l *dipwell.Limiter, verb store.Verb, rows ...string) (g store.Group) {
	for _, row := range rows {
		limit, key, _ := strings.Cut(row, " ")
		g.Ops = append(g.Ops, store.Op{Def: l.Limit(limit), Key: key, Verb: verb, Cost: 1})
	}
	return g
}

type fataler interface{ Fatal(...any) }

func apply(t fataler, s store.Store, groups ...store.Group) []store.Group {
	b := store.Batch{Groups: groups}
	if err := s.Apply(context.Background(), &b); err != nil {
		t.Fatal(err)
	}
	return b.Groups
}

// TestSetsAgreeWithOneByOne checks that a batch of groups of any verbs on few
// keys has the same result as the groups one after the other: calls of one
// bucket in order, then groups of several.
func TestSetsAgreeWithOneByOne(t *testing.T) {
	t.Parallel()
	db := client(t)
	limits := []store.Limit{
		{Name: "bucket", Rate: 3, Period: 7 * time.Second, Burst: 10, MaxDebt: store.NoDebt},
		{Name: "coarse", Rate: 5, Period: 30 * 24 * time.Hour, Burst: 40, MaxCharge: 50, MaxDebt: store.NoDebt},
		{Name: "window", Algorithm: store.FixedWindow, Rate: 5, Period: time.Minute, MaxDebt: store.NoDebt},
		{Name: "grid", Algorithm: store.Interval, Rate: 4, Period: 10 * time.Second, Burst: 20, Start: "3s", MaxDebt: store.NoDebt},
		{Name: "shadow", Rate: 1, Period: time.Second, Burst: 3, MaxDebt: store.NoDebt, Mode: store.Shadow},
		{Name: "debt", Rate: 1, Period: 10 * time.Second, Burst: 5, MaxDebt: 6},
	}
	const debt = 5 // the last one has only groups of one op
	var clock atomic.Int64
	rapid.Check(t, func(t *rapid.T) {
		clock.Store(1_800_000_000_000_000 + rapid.Int64Range(0, 60e6).Draw(t, "start"))
		s, err := redisstore.New(context.Background(), db, redisstore.Config{Prefix: fmt.Sprint("sets", prefixes.Add(1)), Clock: clock.Load, Poll: -1})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		l, err := dipwell.New(s, limits...)
		if err != nil {
			t.Fatal(err)
		}
		// A script that the server has lost is sent again, after the others of
		// its batch.
		apply(t, s, group(l, store.VerbReset, "bucket k"), group(l, store.VerbCheck, "bucket l"))
		type row struct{ limit, key string }
		model := map[row]store.State{}
		op := func(n int, most store.Verb) store.Op {
			return store.Op{Def: l.Limit(limits[rapid.IntRange(0, n).Draw(t, "limit")].Name), Key: rapid.SampledFrom([]string{"j", "k", "l"}).Draw(t, "key"),
				Verb: store.Verb(rapid.IntRange(0, int(most)).Draw(t, "verb")), Cost: rapid.Int64Range(0, 12).Draw(t, "cost")}
		}
		for range rapid.IntRange(1, 5).Draw(t, "batches") {
			now := clock.Add(rapid.Int64Range(0, 20e6).Draw(t, "later"))
			var groups []store.Group
			sameCost, costs := rapid.Bool().Draw(t, "alike"), rapid.SliceOfN(rapid.Int64Range(0, 12), len(limits), len(limits)).Draw(t, "costs")
			for i := range rapid.IntRange(1, 40).Draw(t, "groups") {
				g := store.Group{ID: store.Reservation{1, byte(i), 15: byte(now)}, Ops: []store.Op{op(debt, store.VerbRefund)}} // a reset has a call of its own, after those of set.lua
				if o := &g.Ops[0]; o.Verb == store.VerbReserve && o.Def.Mode == store.Shadow {                                  // the same
					o.Verb = store.VerbTake
				}
				if sameCost { // one verb and cost per bucket
					o := &g.Ops[0]
					o.Verb = map[string]store.Verb{"j": store.VerbTake, "k": store.VerbTakeUpTo, "l": store.VerbCheck}[o.Key]
					o.Cost = costs[slices.IndexFunc(limits, func(l store.Limit) bool { return l.Name == o.Def.Name })]
				} else if rapid.Bool().Draw(t, "several") {
					g.Ops, g.ID = nil, store.Reservation{}
					seen := map[row]bool{}
					for range rapid.IntRange(1, 4).Draw(t, "ops") {
						o := op(debt-1, store.VerbReserve)
						if o.Verb == store.VerbTakeUpTo || o.Verb == store.VerbReserve && o.Def.Mode == store.Shadow {
							o.Verb = store.VerbTake
						}
						if r := (row{o.Def.Name, o.Key}); !seen[r] {
							seen[r], g.Ops = true, append(g.Ops, o)
						}
					}
				}
				groups = append(groups, g)
			}
			want := make([]store.Group, len(groups))
			for _, several := range []bool{false, true} {
				for i, g := range groups {
					if len(g.Ops) > 1 != several {
						continue
					}
					g.Ops = append([]store.Op(nil), g.Ops...)
					rows, write := make([]store.State, len(g.Ops)), make([]bool, len(g.Ops))
					for j, o := range g.Ops {
						rows[j] = model[row{o.Def.Name, o.Key}]
					}
					if err := g.Decide(now, rows, write); err != nil {
						t.Fatal(err)
					}
					for j, o := range g.Ops {
						if write[j] {
							model[row{o.Def.Name, o.Key}] = rows[j]
						}
					}
					want[i] = g
				}
			}
			b := store.Batch{Groups: groups}
			if err := s.Apply(context.Background(), &b); err != nil {
				t.Fatal(err)
			}
			for i := range groups {
				g, w := &groups[i], &want[i]
				if g.Err != nil || g.Allowed != w.Allowed || g.Reserved != w.Reserved {
					t.Fatalf("group %d: %v %v %v, not %v %v: %+v", i, g.Allowed, g.Reserved, g.Err, w.Allowed, w.Reserved, g.Ops)
				}
				for j := range g.Ops {
					a, b := g.Ops[j].Answer, w.Ops[j].Answer
					if g.Ops[j].Def.Name == limits[debt].Name { // a refusal may be from before a reservation that waits
						a, b = store.Answer{Allowed: a.Allowed, Granted: a.Granted}, store.Answer{Allowed: b.Allowed, Granted: b.Granted}
					}
					if a != b {
						t.Fatalf("group %d, %s %s %q %d: %+v, not %+v", i, g.Ops[j].Verb, g.Ops[j].Def.Name, g.Ops[j].Key, g.Ops[j].Cost, a, b)
					}
				}
			}
		}
		for r, state := range model {
			o := store.Op{Def: l.Limit(r.limit), Key: r.key, Verb: store.VerbCheck}
			if _, _, err := o.Step(clock.Load(), state, true); err != nil {
				t.Fatal(err)
			}
			d, err := l.Check(context.Background(), r.limit, r.key, 0)
			if err != nil || d.Remaining != o.Remaining || d.ResetAfter.Microseconds() != o.Reset {
				t.Fatalf("%s %q: %+v, not %+v, %v", r.limit, r.key, d, o.Answer, err)
			}
		}
	})
}

// TestCallsOfGroups checks that groups of several buckets share calls of at
// most 64 buckets, and that different costs of one bucket are one call, whether
// all of them fit or not.
func TestCallsOfGroups(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, l := openURL(t, server.URL(), redisstore.Config{Poll: -1}, drained("user", 10), drained("tenant", 1000), drained("hot", 500))
	apply(t, s, group(l, store.VerbTake, "user warm", "tenant warm"), group(l, store.VerbTake, "user warm2", "tenant warm"))
	several := func(n int) (groups []store.Group) {
		for i := range n {
			groups = append(groups, group(l, store.VerbTake, fmt.Sprint("user u", i), "tenant acme"))
		}
		return groups
	}
	costs := func(n int) (groups []store.Group) {
		for i := range n {
			g := group(l, store.VerbTake, "hot k")
			g.Ops[0].Cost = int64(1 + i%5)
			groups = append(groups, g)
		}
		return groups
	}
	for _, c := range []struct {
		name    string
		groups  []store.Group
		allowed int
		want    string
	}{
		{"groups that share a bucket", several(20), 20, "evalsha 1, mget 1, set 21"},
		{"and more of them than go in a call", several(130), 130, "evalsha 3, mget 3, set 133"},
		{"costs that fit", costs(100), 100, "evalsha 1, get 1, set 1"},
		{"costs of which some fit", costs(100), 69, "evalsha 1, get 1, set 1"},
		{"costs of which none fits", costs(100), 0, "evalsha 1, get 1"},
	} {
		do(t, server, "config", "resetstat")
		allowed := 0
		for i, g := range apply(t, s, c.groups...) {
			if g.Err != nil {
				t.Errorf("%s: %d: %v", c.name, i, g.Err)
			}
			if g.Allowed {
				allowed++
			}
		}
		counts, got := commands(t, server), []string(nil)
		for _, name := range []string{"eval", "evalsha", "get", "mget", "set"} {
			if counts[name] > 0 {
				got = append(got, fmt.Sprint(name, " ", counts[name]))
			}
		}
		if strings.Join(got, ", ") != c.want || allowed != c.allowed {
			t.Errorf("%s: %d allowed, %v", c.name, allowed, got)
		}
	}
}

// TestGroupsInOrder checks that a refused group charges nothing, whatever the
// groups next to it get, and that earlier groups come first.
func TestGroupsInOrder(t *testing.T) {
	t.Parallel()
	s := newStore(t, client(t), redisstore.Config{Poll: -1})
	l := limiter(t, s, drained("user", 2), drained("tenant", 3))
	for i, g := range apply(t, s,
		group(l, store.VerbTake, "user a", "tenant acme"),
		group(l, store.VerbTake, "user a", "tenant acme"),
		group(l, store.VerbTake, "user a", "tenant acme"), // a is empty
		group(l, store.VerbTake, "user b", "tenant acme"),
		group(l, store.VerbTake, "user c", "tenant acme"), // acme is empty
		group(l, store.VerbTake, "user c", "tenant other"),
		group(l, store.VerbCheck, "user c", "tenant other"),
		group(l, store.VerbCheck, "user c", "tenant acme"),
	) {
		if want := i != 2 && i != 4 && i != 7; g.Err != nil || g.Allowed != want {
			t.Errorf("group %d: %v, %v", i, g.Allowed, g.Err)
		}
	}
	for row, want := range map[string]int64{"user a": 0, "user b": 1, "user c": 1, "tenant acme": 0, "tenant other": 2} {
		limit, key, _ := strings.Cut(row, " ")
		if n := left(t, l, limit, key); n != want {
			t.Errorf("%s: %d left, not %d", row, n, want)
		}
	}
}

// scriptRecorder records the scripts that a client calls.
type scriptRecorder struct{ names []string }

func (a *scriptRecorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a *scriptRecorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (a *scriptRecorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if args := cmd.Args(); args[0] == "evalsha" {
			a.names = append(a.names, redisstore.ScriptName(args[1]))
		}
		return next(ctx, cmd)
	}
}

// TestScriptOfABatch checks that one call of set.lua decides all of a batch for plain
// buckets.
func TestScriptOfABatch(t *testing.T) {
	t.Parallel()
	db, a := client(t), &scriptRecorder{}
	s := newStore(t, db, redisstore.Config{Poll: -1})
	window := drained("window", 99)
	window.Algorithm = store.FixedWindow
	l := limiter(t, s, drained("user", 99), drained("tenant", 99), window)
	take := func(row string, cost int64) store.Group {
		g := group(l, store.VerbTake, row)
		g.Ops[0].Cost = cost
		return g
	}
	apply(t, s, take("user a", 2), take("user b", 2)) // so that the server has the scripts
	apply(t, s, take("user a", 1), take("user a", 2))
	db.AddHook(a)
	for name, c := range map[string]struct {
		groups []store.Group
		want   string
	}{
		"takes":             {[]store.Group{take("user a", 1), take("tenant a", 2), take("window a", 1), take("user a", 1)}, "set"},
		"takes and a look":  {[]store.Group{take("user a", 1), group(l, store.VerbCheck, "user b")}, "set"},
		"a take of nothing": {[]store.Group{take("user a", 0), take("user b", 1)}, "set"},
		"take up to":        {[]store.Group{group(l, store.VerbTakeUpTo, "user c"), take("user d", 1)}, "set"},
		"costs":             {[]store.Group{take("user a", 1), take("user a", 2)}, "set"},
		"verbs of a bucket": {[]store.Group{take("user a", 1), group(l, store.VerbTakeUpTo, "user a")}, "set"},
		"a charge":          {[]store.Group{take("user a", 1), group(l, store.VerbCharge, "user b")}, "set"},
		"a refund":          {[]store.Group{take("user a", 1), group(l, store.VerbRefund, "user b")}, "set"},
		"several":           {[]store.Group{take("user c", 1), group(l, store.VerbTake, "user d", "tenant d")}, "set"},
	} {
		a.names = nil
		for i, g := range apply(t, s, c.groups...) {
			if g.Err != nil || !g.Allowed {
				t.Errorf("%s: group %d: %v, %v", name, i, g.Allowed, g.Err)
			}
		}
		if !slices.Equal(a.names, []string{c.want}) {
			t.Errorf("%s: by %v, not %s", name, a.names, c.want)
		}
	}
}

// TestGroupsOfNothing checks that a take of 0 tokens creates no bucket, alone
// or with others.
func TestGroupsOfNothing(t *testing.T) {
	t.Parallel()
	db := client(t)
	prefix := fmt.Sprint("nothing", prefixes.Add(1))
	s := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1})
	l := limiter(t, s, drained("a", 2), drained("b", 3))
	none := group(l, store.VerbTake, "a k", "b k")
	none.Ops[0].Cost, none.Ops[1].Cost = 0, 0
	for _, groups := range [][]store.Group{{none}, {none, none}, {group(l, store.VerbCheck, "a k", "b k")}} {
		for _, g := range apply(t, s, groups...) {
			if g.Err != nil || !g.Allowed {
				t.Errorf("%v, %v", g.Allowed, g.Err)
			}
		}
	}
	if n := db.Exists(t.Context(), prefix+":a:{k}", prefix+":b:{k}").Val(); n != 0 {
		t.Errorf("%d buckets were made", n)
	}
}

// TestOneGroupAtFault checks that a key that is not a bucket, has another
// version, or has reservations only affects the groups that use it.
func TestOneGroupAtFault(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		put    func(ctx context.Context, db redis.UniversalClient, l *dipwell.Limiter, row string) error
		failed bool
		taken  int64 // before
	}{
		"a list": {func(ctx context.Context, db redis.UniversalClient, _ *dipwell.Limiter, row string) error {
			return db.RPush(ctx, row, "x").Err()
		}, true, 0},
		"text": {func(ctx context.Context, db redis.UniversalClient, _ *dipwell.Limiter, row string) error {
			return db.Set(ctx, row, "hello", 0).Err()
		}, true, 0},
		"another version": {func(ctx context.Context, _ redis.UniversalClient, l *dipwell.Limiter, _ string) error {
			if _, err := l.Take(ctx, "user", "u50", 3); err != nil {
				return err
			}
			_, err := l.Define(ctx, drained("user", 20), store.OwnerCode)
			return err
		}, false, 3},
		"reservations": {func(ctx context.Context, _ redis.UniversalClient, l *dipwell.Limiter, _ string) error {
			if d, err := l.Reserve(ctx, "user", "u50", 21); err != nil || d.Delay == 0 {
				return fmt.Errorf("%+v, %w", d, err)
			}
			_, err := l.Refund(ctx, "user", "u50", 10)
			return err
		}, false, 11},
	} {
		t.Run(name, func(t *testing.T) {
			db, prefix := client(t), fmt.Sprint("group", prefixes.Add(1))
			s := newStore(t, db, redisstore.Config{Prefix: prefix, Poll: -1})
			l := limiter(t, s, drained("tenant", 1000), store.Limit{Name: "user", Rate: 1, Period: 24 * time.Hour, Burst: 20})
			if err := c.put(t.Context(), db, l, prefix+":user:{u50}"); err != nil {
				t.Fatal(err)
			}
			var groups []store.Group
			for i := range 100 {
				groups = append(groups, group(l, store.VerbTake, fmt.Sprint("user u", i), "tenant acme"))
			}
			admitted := int64(0)
			for i, g := range apply(t, s, groups...) {
				if failed := g.Err != nil; failed != (i == 50 && c.failed) || !failed && !g.Allowed {
					t.Errorf("group %d: %v, %v", i, g.Allowed, g.Err)
				} else if !failed {
					admitted++
				}
			}
			if n := left(t, l, "tenant", "acme"); n != 1000-admitted {
				t.Errorf("%d were admitted, and %d are left", admitted, n)
			}
			if c.failed {
				return
			}
			if n := left(t, l, "user", "u50"); n != 20-c.taken-1 {
				t.Errorf("%d of u50 are left", n)
			}
		})
	}
}

// TestGroupsWithoutMemory checks that if memory is full, calls that need none
// are still decided, also in a batch with others.
func TestGroupsWithoutMemory(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, l := openURL(t, server.URL(), redisstore.Config{Poll: -1}, drained("a", 10), drained("b", 10))
	for _, key := range []string{"k", "empty"} {
		if _, err := l.TakeAll(t.Context(), dipwell.Take{Limit: "a", Key: key, Cost: 10}, dipwell.Take{Limit: "b", Key: key, Cost: 6}); err != nil {
			t.Fatal(err)
		}
	}
	do(t, server, "set", "junk", strings.Repeat("x", 1<<20))
	do(t, server, "config", "set", "maxmemory", "1mb")
	for i, g := range apply(t, s,
		group(l, store.VerbTake, "a new", "b new"),
		group(l, store.VerbTake, "a empty", "b empty"),
		group(l, store.VerbCheck, "b k"),
		group(l, store.VerbRefund, "a k"),
		group(l, store.VerbTake, "b k"),
		group(l, store.VerbCheck, "b k", "b empty"),
	) {
		if full := i == 0 || i == 4; full != errors.Is(g.Err, store.ErrNoSpace) || !full && (g.Err != nil || g.Allowed != (i != 1)) {
			t.Errorf("group %d: %v, %v", i, g.Allowed, g.Err)
		}
	}
	do(t, server, "config", "set", "maxmemory", "0")
	for row, want := range map[string]int64{"a new": 10, "b new": 10, "a empty": 0, "b empty": 4, "a k": 1, "b k": 4} {
		limit, key, _ := strings.Cut(row, " ")
		if n := left(t, l, limit, key); n != want {
			t.Errorf("%s: %d left, not %d", row, n, want)
		}
	}
}

// TestGroupsInACluster checks that groups in one slot share a call, and that a
// group in several slots is rejected without affecting others.
func TestGroupsInACluster(t *testing.T) {
	t.Parallel()
	s := newStore(t, connect(t, redistest.SharedCluster(t).URL()), redisstore.Config{Poll: -1})
	l := limiter(t, s, drained("user", 2), drained("tenant", 30))
	var groups []store.Group
	for i := range 40 {
		tag := fmt.Sprintf("{t%d}", i%4)
		groups = append(groups, group(l, store.VerbTake, fmt.Sprint("user ", tag, i), "tenant "+tag))
	}
	groups[7] = group(l, store.VerbTake, "user one", "tenant another")
	for i, g := range apply(t, s, groups...) {
		var field *store.FieldError
		if bad := errors.As(g.Err, &field); bad != (i == 7) || !bad && (g.Err != nil || !g.Allowed) {
			t.Errorf("group %d: %v, %v", i, g.Allowed, g.Err)
		}
	}
	for i, want := range []int64{20, 20, 20, 21} {
		if n := left(t, l, "tenant", fmt.Sprintf("{t%d}", i)); n != want {
			t.Errorf("{t%d}: %d left, not %d", i, n, want)
		}
	}
}
