package memory

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// planned is a limit with plans of each mode.
var planned = store.Limit{Name: "api", Rate: 1, Period: time.Second, Burst: 10,
	Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 10, Burst: 100}, store.Plan{Name: "staff", Mode: store.Unlimited, OverrideOnly: true},
		store.Plan{Name: "banned", Mode: store.Blocked})}

// decided decides one op on a limit and returns it. plan is the plan that the caller names.
func decided(t testing.TB, s *Store, verb store.Verb, plan, key string, cost int64) store.Op {
	t.Helper()
	var b store.Batch
	g, op := b.Single()
	*op = store.Op{Def: s.reg.Lookup("api").WithPlan(plan), Key: key, Verb: verb, Cost: cost}
	if err := s.Apply(ctx, &b); err != nil || g.Err != nil {
		t.Fatal(err, g.Err)
	}
	return *op
}

func override(t testing.TB, s *Store, o store.Override) store.Override {
	t.Helper()
	set, err := s.SetOverride(ctx, s.reg.Lookup("api"), o)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// TestOverride follows a key through an override with an end, before and after it has a
// row, and after the limit has changed.
func TestOverride(t *testing.T) {
	for _, listed := range []bool{false, true} {
		clock := &fake{1e15}
		s := open(t, Config{Clock: clock.now})
		limit := planned
		limit.ListKeys = listed
		l := limiter(t, s, limit)
		for _, early := range []bool{false, true} {
			key := fmt.Sprint("k", early)
			if early {
				take(t, l, "api", key, 10) // it has a row, of the base
			}
			override(t, s, store.Override{Key: key, Plan: "pro", Until: clock.us + 20e6})
			used := int64(0)
			if early {
				used = 10
			}
			if op := decided(t, s, store.VerbTake, "", key, 50); !op.Allowed || op.Remaining != 50-used || op.Def.Plan != "pro" {
				t.Fatalf("raised: %+v", op)
			}
			if d := take(t, l, "api", key, 50-used); !d.Allowed || d.Capacity != 100 {
				t.Fatalf("raised: %+v", d)
			}
			limit.RetryJitter++
			limit.Burst++ // a new version: the next call gives the override another ID
			if _, err := l.Define(ctx, limit, store.OwnerCode); err != nil {
				t.Fatal(err)
			}
			if d := take(t, l, "api", key, 1); d.Allowed || d.RetryAfter != 100*time.Millisecond {
				t.Fatalf("drained: %+v", d)
			}
			clock.add(time.Second)
			if d := take(t, l, "api", key, 10); !d.Allowed {
				t.Fatalf("after a second: %+v", d)
			}
			if keys, err := l.Keys(ctx, "api", "", "", 10); listed && (err != nil || len(keys) == 0) {
				t.Errorf("keys: %v, %v", keys, err)
			}
			clock.add(20 * time.Second) // 19 s at 10/s: all but 100 - 190 came back; then 1 s at 1/s
			if op := decided(t, s, store.VerbCheck, "", key, 1); op.Def.Plan != "" || op.Remaining != limit.Burst {
				t.Errorf("ended: %+v", op)
			}
			if all, err := s.Overrides(ctx, s.reg.Lookup("api"), "", "", 10); err != nil || len(all) != 0 {
				t.Errorf("%+v, %v", all, err)
			}
			take(t, l, "api", key, 1)
			if n := s.Stats().Overrides; n != 0 {
				t.Errorf("%d overrides after a call found that the last has ended", n)
			}
		}
	}
}

// A call that an override decides is never decided by Quick, whose answer does not say
// so. That includes one of the base's row, which an unlimited or blocked key keeps.
func TestOverriddenModes(t *testing.T) {
	s := open(t, Config{})
	l := limiter(t, s, planned)
	for _, plan := range []string{"staff", "banned"} {
		take(t, l, "api", plan, 4)
		override(t, s, store.Override{Key: plan, Plan: plan})
		for _, key := range []string{plan, plan + "2"} { // with and without a row
			if key != plan {
				override(t, s, store.Override{Key: key, Plan: plan})
			}
			for range 20 {
				d := take(t, l, "api", key, 7)
				if d.Allowed != (plan == "staff") || d.Never == d.Allowed || plan == "staff" && (d.Capacity != store.MaxInt || d.Remaining != store.MaxInt) {
					t.Fatalf("%s: %+v", key, d)
				}
			}
			if op := decided(t, s, store.VerbCharge, "", key, 2); !op.Allowed {
				t.Errorf("%s: %+v", key, op)
			}
			if d := take(t, l, "api", key, 1); d.Allowed != (plan == "staff") {
				t.Errorf("%s, charged: %+v", key, d)
			}
		}
		if ended, err := s.EndOverride(ctx, s.reg.Lookup("api"), plan, store.AnyOverride); ended == nil || err != nil {
			t.Fatal(ended, err)
		}
		if ended, err := s.EndOverride(ctx, s.reg.Lookup("api"), plan, store.AnyOverride); ended != nil || err != nil {
			t.Fatal(ended, err)
		}
		want := int64(5) // 4 were taken
		if plan == "banned" {
			want = 3 // 2 were charged
		}
		if op := decided(t, s, store.VerbTake, "", plan, 1); !op.Allowed || op.Remaining != want {
			t.Errorf("%s, ended: %+v; want %d remaining", plan, op.Answer, want)
		}
		if op := decided(t, s, store.VerbTake, "banned", "other", 1); op.Allowed || !op.Never {
			t.Errorf("named by the caller: %+v", op)
		}
	}
}

// Plans of one version stand side by side, and a row goes from one to the other.
func TestPlansSideBySide(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now})
	l := limiter(t, s, planned)
	for i := range 40 {
		plan, capacity := "", int64(10)
		if i%2 == 1 {
			plan, capacity = "pro", 100
		}
		if op := decided(t, s, store.VerbTake, plan, "k", 1); !op.Allowed && i < 10 || op.Allowed && op.Remaining != capacity-int64(i)-1 && i < 10 {
			t.Fatalf("call %d of plan %q: %+v", i, plan, op)
		}
		if op := decided(t, s, store.VerbTake, plan, plan, 1); i < 10 && (!op.Allowed || op.Remaining != capacity-int64(i/2)-1) {
			t.Fatalf("call %d of plan %q: %+v", i, plan, op)
		}
	}
	if n := len(*s.limits.handles.Load()); n > 4 {
		t.Errorf("%d handles", n)
	}
	_ = l
}

// Overrides have a bound of their own, and those that have ended are swept.
func TestOverridesAreBounded(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, MaxOverrides: 3})
	limiter(t, s, planned)
	for i := range 3 {
		override(t, s, store.Override{Key: fmt.Sprint(i), Plan: "pro", Until: clock.us + 1e6})
	}
	override(t, s, store.Override{Key: "2", Plan: "staff", Until: clock.us + 1e6})
	_, err := s.SetOverride(ctx, s.reg.Lookup("api"), store.Override{Key: "more", Plan: "pro"})
	if !errors.Is(err, store.ErrFull) {
		t.Errorf("a fourth: %v", err)
	}
	if op := decided(t, s, store.VerbTake, "", "1", 1); op.Remaining != 99 {
		t.Errorf("%+v", op)
	}
	clock.add(2 * time.Second)
	if _, err = s.Sweep(ctx, 100); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Overrides != 0 || st.Keys != 0 {
		t.Errorf("%+v", st)
	}
	override(t, s, store.Override{Key: "more", Plan: "pro"})
}

// Blocks have a bound beside that of other overrides: a new one ends the oldest.
func TestBlocksAreBounded(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, MaxOverrides: 3, Shards: 1})
	limit := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Block: time.Hour}
	limiter(t, s, limit)
	blocked := func(key string) bool {
		return decided(t, s, store.VerbCheck, "", key, 0).Def.Mode == store.Blocked
	}
	for i := range 40 {
		key := fmt.Sprint(i)
		decided(t, s, store.VerbTake, "", key, 1)
		if op := decided(t, s, store.VerbTake, "", key, 1); op.Def.Mode != store.Blocked {
			t.Fatalf("%s: %+v", key, op.Answer)
		}
		clock.add(time.Minute)
		for j := range i + 1 {
			if want := j > i-4; blocked(fmt.Sprint(j)) != want {
				t.Fatalf("after %d: %d is blocked: %v", i, j, !want)
			}
		}
	}
	if st := s.Stats(); st.Overrides != 0 {
		t.Errorf("%+v", st)
	}
	// Those of people stay, and have their own bound; a block over one counts as that.
	for i := range 3 {
		override(t, s, store.Override{Key: fmt.Sprint("set", i), Burst: 2})
		decided(t, s, store.VerbTake, "", fmt.Sprint("set", i), 2)
		decided(t, s, store.VerbTake, "", fmt.Sprint("set", i), 1)
	}
	if _, err := s.SetOverride(ctx, s.reg.Lookup("api"), store.Override{Key: "more", Burst: 2}); !errors.Is(err, store.ErrFull) {
		t.Errorf("a fourth: %v", err)
	}
	for _, key := range []string{"36", "37", "38", "39", "set0", "set1", "set2"} {
		if !blocked(key) {
			t.Errorf("%s is not blocked", key)
		}
	}
	clock.add(2 * time.Hour)
	if _, err := s.Sweep(ctx, 100); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Overrides != 3 || s.shards[0].blocks.Len() != 0 {
		t.Errorf("%+v, %d blocks", st, s.shards[0].blocks.Len())
	}
}

// Blocks that have ended make room for a new one before an older one that lasts, although
// the program never sweeps.
func TestEndedBlocksMakeRoom(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, MaxOverrides: 3, Shards: 1})
	l := limiter(t, s, store.Limit{Name: "long", Rate: 1, Period: time.Hour, Block: time.Hour},
		store.Limit{Name: "short", Rate: 1, Period: time.Hour, Block: time.Minute})
	take(t, l, "long", "k", 1)
	take(t, l, "long", "k", 1)
	for i := range 6 {
		for j := range 3 {
			take(t, l, "short", fmt.Sprint(i, j), 1)
			take(t, l, "short", fmt.Sprint(i, j), 1)
		}
		clock.add(2 * time.Minute)
	}
	if o, err := s.Overrides(ctx, s.reg.Lookup("long"), "", "", 10); err != nil || len(o) != 1 {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestFilter sets and ends overrides of more and more keys of a shard. The filter must pass
// each key that has one, and few others.
func TestFilter(t *testing.T) {
	s := open(t, Config{Shards: 1, MaxOverrides: 1 << 15})
	limiter(t, s, planned)
	d := s.reg.Lookup("api")
	passes := func(key string) bool {
		var p place
		if err := s.place(&p, d, key); err != nil {
			t.Fatal(err)
		}
		return s.shards[0].filter.passes(p.id, p.tag)
	}
	live := map[string]bool{}
	for n, i := 1, 0; n <= 1<<15; n *= 2 {
		for ; i < n; i++ {
			key := fmt.Sprint("k", i)
			override(t, s, store.Override{Key: key, Plan: "pro"})
			if live[key] = true; i%4 > 0 {
				continue
			}
			if _, err := s.EndOverride(ctx, d, key, store.StandingOverride); err != nil {
				t.Fatal(err)
			}
			delete(live, key)
		}
		for key := range live {
			if !passes(key) {
				t.Fatalf("%d keys: %s has an override and does not pass", n, key)
			}
		}
		others := 0
		for j := range 20_000 {
			if passes(fmt.Sprint("other", j)) {
				others++
			}
		}
		if others > 20_000/40 {
			t.Errorf("%d keys: %d of 20000 keys without an override pass", n, others)
		}
	}
}

// Overrides that are copied count as those that are set: blocks have a bound of their own.
func TestPutOverrideOverBlocks(t *testing.T) {
	clock := &fake{1e15}
	s := open(t, Config{Clock: clock.now, MaxOverrides: 3, Shards: 1})
	limiter(t, s, store.Limit{Name: "api", Rate: 1, Period: time.Hour, Block: time.Hour})
	d := s.reg.Lookup("api")
	for i := range 50 {
		if err := s.PutOverride(d, &store.Override{Key: fmt.Sprint(i), Until: clock.us + 3600e6, Note: "automatic", ID: uint32(i + 1), Version: d.Number}); err != nil {
			t.Fatal(i, err)
		}
	}
	if blocks := s.shards[0].blocks.Len(); blocks != 4 {
		t.Errorf("%d blocks", blocks)
	}
	set := 0
	for i := range 50 {
		if s.PutOverride(d, &store.Override{Key: fmt.Sprint(i), Burst: 5, ID: uint32(i + 100), Version: d.Number}) == nil {
			set++
		}
	}
	if set != 3 {
		t.Errorf("%d overrides of people, with MaxOverrides 3", set)
	}
	if err := s.PutOverride(d, &store.Override{Key: "another", Until: clock.us + 3600e6, Note: "automatic", ID: 200, Version: d.Number}); err != nil {
		t.Error("a block beside MaxOverrides overrides of people: ", err)
	}
}
