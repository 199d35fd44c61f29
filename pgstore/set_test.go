package pgstore_test

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestSetUnderWriters sends batches of groups of up to three buckets and every
// verb that takes, from eight concurrent callers on new buckets. The tokens
// granted must be what the rows say, no bucket may give more than it has, and
// no call may fail.
func TestSetUnderWriters(t *testing.T) {
	for _, keys := range []int{6, 300} { // few keys that all callers use, and many that are new
		t.Run(fmt.Sprint(keys), func(t *testing.T) {
			t.Parallel()
			setUnderWriters(t, keys)
		})
	}
}

func setUnderWriters(t *testing.T, keys int) {
	pool := newPool(t)
	ctx := context.Background()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	var defs []*store.Definition
	for i := range 3 {
		d, err := s.Define(ctx, store.Limit{Name: fmt.Sprint("l", i), Rate: 1, Period: 100 * 24 * time.Hour, Burst: 40, MaxDebt: store.NoDebt, MaxCharge: 5}, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	const callers, batches = 8, 12
	granted := [3][]atomic.Int64{make([]atomic.Int64, keys), make([]atomic.Int64, keys), make([]atomic.Int64, keys)}
	verbs := []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbReserve, store.VerbCharge}
	start := make(chan struct{})
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 7))
			<-start
			for range batches {
				var b store.Batch
				for range 1 + random.IntN(24) {
					b.Groups = append(b.Groups, groupOf(random, defs, keys, verbs))
				}
				if err := s.Apply(ctx, &b); err != nil {
					t.Error(err)
				}
				for i := range b.Groups {
					g := &b.Groups[i]
					if g.Err != nil {
						t.Error(g.Err)
					}
					for j := range g.Ops {
						if op := &g.Ops[j]; g.Err == nil && g.Allowed {
							var l, k int
							fmt.Sscanf(op.Def.Name+" "+op.Key, "l%d k%d", &l, &k)
							granted[l][k].Add(op.Granted)
						}
					}
				}
			}
		})
	}
	close(start)
	wg.Wait()
	for l := range granted {
		for k := range granted[l] {
			want := granted[l][k].Load()
			var used int64
			if err := pool.QueryRow(ctx, "select coalesce((select b.used / l.unit from dipwell.buckets b where b.limit_id = l.id and b.key = $2), 0) from dipwell.limits l where l.name = $1",
				fmt.Sprint("l", l), fmt.Sprint("k", k)).Scan(&used); err != nil {
				t.Fatal(err)
			}
			// Less than a token comes back during the test.
			if used != want && used != want-1 {
				t.Errorf("l%d k%d: %d tokens granted, %d used", l, k, want, used)
			}
		}
	}
	var deadlocks int
	if err := pool.QueryRow(ctx, "select deadlocks from pg_stat_database where datname = current_database()").Scan(&deadlocks); err != nil || deadlocks > 0 {
		t.Errorf("%d deadlocks, %v", deadlocks, err)
	}
}

// groupOf returns a random group: one verb for one to three buckets of
// different limits.
func groupOf(random *rand.Rand, defs []*store.Definition, keys int, verbs []store.Verb) store.Group {
	var g store.Group
	verb := verbs[random.IntN(len(verbs))]
	limits := random.Perm(len(defs))[:1+random.IntN(len(defs))]
	if verb == store.VerbCharge || verb == store.VerbTakeUpTo {
		limits = limits[:1]
	}
	for _, l := range limits {
		g.Ops = append(g.Ops, store.Op{Def: defs[l], Key: fmt.Sprint("k", random.IntN(keys)), Verb: verb, Cost: 1 + random.Int64N(4)})
	}
	return g
}

// TestRefusedGroupWritesNothing checks that refused groups lock nothing and use
// no transaction id, alone and in a batch.
func TestRefusedGroupWritesNothing(t *testing.T) {
	pool := newPool(t)
	ctx := context.Background()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, store.Limit{Name: "full", Rate: 1, Period: time.Hour, Burst: 100}, store.Limit{Name: "empty", Rate: 1, Period: time.Hour, Burst: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"full", "empty"} {
		if d, err := l.Take(ctx, limit, "k", 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	before := ownXID(t, pool)
	for range 10 {
		d, err := l.TakeAll(ctx, dipwell.Take{Limit: "full", Key: "k", Cost: 1}, dipwell.Take{Limit: "empty", Key: "k", Cost: 1})
		if err != nil || d.Allowed || d.Limit != "empty" {
			t.Fatal(d, err)
		}
		var b store.Batch
		for range 5 {
			b.Groups = append(b.Groups, store.Group{Ops: []store.Op{
				{Def: l.Limit("full"), Key: "k", Verb: store.VerbTake, Cost: 1}, {Def: l.Limit("empty"), Key: "k", Verb: store.VerbTake, Cost: 1}}})
		}
		if err := s.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Groups {
			if g := &b.Groups[i]; g.Err != nil || g.Allowed {
				t.Fatalf("%+v", g)
			}
		}
	}
	if used := ownXID(t, pool) - before; used != 1 { // the one of ownXID
		t.Errorf("refusals used %d transaction ids", used-1)
	}
}

// TestSetWithLockedRow checks that in a batch only the calls of the locked row
// get an error. Rows that set.sql cannot decide are decided too.
func TestSetWithLockedRow(t *testing.T) {
	ctx := context.Background()
	dsn := pgtest.Database(t, "dipwell", migrated)
	pool := connect(t, dsn)
	s := newStore(t, connect(t, dsn+"&lock_timeout=50"), pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, store.Limit{Name: "x", Rate: 1, Period: time.Hour, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Reserve(ctx, "x", "lows", 12); err != nil || d.Delay == 0 {
		t.Fatal(d, err)
	}
	must(t, pool, "select dipwell.take('x', 'locked')")
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	must(t, tx, "select dipwell.take('x', 'locked')")
	var b store.Batch
	for _, key := range []string{"locked", "lows"} {
		b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: l.Limit("x"), Key: key, Verb: store.VerbCharge, Cost: 1}}})
	}
	if err := s.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	if err := b.Groups[0].Err; !errors.Is(err, store.ErrLocked) {
		t.Error("the locked row:", err)
	}
	if g := &b.Groups[1]; g.Err != nil || g.Ops[0].Granted != 1 {
		t.Error("the row beside it:", g.Ops[0].Granted, g.Err)
	}
}

// TestCostBeyondWhatCanBeCounted checks that a cost of more units than can be
// counted is refused in a group, also if the bucket holds the largest possible
// number of units.
func TestCostBeyondWhatCanBeCounted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	const most = (store.MaxInt - 1) / 2
	l, err := dipwell.New(newStore(t, newPool(t), pgstore.Config{Poll: -1}),
		store.Limit{Name: "big", Rate: 1, Period: 2 * time.Microsecond, Burst: most, MaxDebt: store.NoDebt}, store.Limit{Name: "other", Rate: 1, Period: time.Hour, Burst: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"big", "other"} { // so that both have a row
		if d, err := l.Take(ctx, limit, "k", 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	d, err := l.TakeAll(ctx, dipwell.Take{Limit: "big", Key: "k", Cost: most + 1}, dipwell.Take{Limit: "other", Key: "k", Cost: 1})
	if err != nil || d.Allowed || !d.Never {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := l.Check(ctx, "other", "k", 4); err != nil || !d.Allowed {
		t.Errorf("the limit beside it: %+v, %v", d, err)
	}
}

// TestStatementsAgreeWithGo checks that groups and single calls get the answers
// of Group.Decide, and leave its rows.
func TestStatementsAgreeWithGo(t *testing.T) {
	t.Run("default", func(t *testing.T) {
		t.Parallel()
		statementsAgree(t, false)
	})
	t.Run("in a transaction", func(t *testing.T) {
		t.Parallel()
		statementsAgree(t, true)
	})
}

func statementsAgree(t *testing.T, inside bool) {
	ctx := context.Background()
	clock := int64(1_800_000_000_000_000)
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Clock: func() int64 { return clock }, Poll: -1})
	random := rand.New(rand.NewPCG(3, 4))
	var defs []*store.Definition
	for _, l := range []store.Limit{
		{Name: "bucket", Rate: 100, Period: time.Second, Burst: 30, MaxDebt: store.NoDebt},
		{Name: "window", Algorithm: store.FixedWindow, Rate: 10, Period: time.Second, Burst: 15, MaxDebt: store.NoDebt},
		{Name: "shadow", Rate: 5, Period: time.Second, Mode: store.Shadow, MaxDebt: store.NoDebt},
		{Name: "day", Algorithm: store.FixedWindow, Rate: 8, Period: 24 * time.Hour, Start: "06:00 Europe/Rome", Burst: 12, MaxDebt: store.NoDebt},
		{Name: "month", Algorithm: store.FixedWindow, Rate: 8, Period: store.Month, MaxDebt: store.NoDebt},
	} {
		d, err := s.Define(ctx, l, store.OwnerCode)
		if err != nil {
			t.Fatal(err)
		}
		defs = append(defs, d)
	}
	verbs := []store.Verb{store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbTakeUpTo, store.VerbReserve, store.VerbCharge, store.VerbRefund, store.VerbReset}
	decide := s
	if inside {
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(ctx) }()
		decide = s.With(tx)
	}
	rows := map[string]store.State{}
	for round := range 150 {
		if clock += random.Int64N(300_000); round%10 == 9 {
			clock += random.Int64N(30 * 3600 * 1e6)
		}
		var b store.Batch
		for i := range 1 + random.IntN(4) { // with keys that no other group has
			verb := verbs[random.IntN(len(verbs))]
			var g store.Group
			for _, at := range random.Perm(len(defs))[:1+random.IntN(len(defs))] {
				g.Ops = append(g.Ops, store.Op{Def: defs[at], Key: fmt.Sprint("k", i, random.IntN(2+round/10)), Verb: verb, Cost: 1 + random.Int64N(9)})
			}
			b.Groups = append(b.Groups, g)
		}
		var want []store.Group
		for _, g := range b.Groups {
			w := g
			w.Ops = append([]store.Op(nil), g.Ops...)
			states, write := make([]store.State, len(w.Ops)), make([]bool, len(w.Ops))
			for i := range w.Ops {
				states[i] = rows[w.Ops[i].Def.Name+w.Ops[i].Key]
			}
			if err := w.Decide(clock, states, write); err != nil {
				t.Fatal(err)
			}
			for i := range w.Ops {
				if write[i] {
					if w.Ops[i].Verb == store.VerbReset {
						states[i] = store.State{}
					}
					rows[w.Ops[i].Def.Name+w.Ops[i].Key] = states[i]
				}
			}
			want = append(want, w)
		}
		if err := decide.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Groups {
			g, w := &b.Groups[i], &want[i]
			for j := range g.Ops {
				if g.Err != nil || g.Allowed != w.Allowed || g.Ops[j].Answer != w.Ops[j].Answer {
					t.Fatalf("round %d, group %d of %d, %s %s %s %d: got %v %+v %v, want %v %+v", round, i, len(b.Groups),
						g.Ops[j].Verb, g.Ops[j].Def.Name, g.Ops[j].Key, g.Ops[j].Cost, g.Allowed, g.Ops[j].Answer, g.Err, w.Allowed, w.Ops[j].Answer)
				}
			}
		}
	}
}

// TestTakeUpToShared checks that of groups that share a bucket, one that gets
// nothing from it is not charged for its other bucket.
func TestTakeUpToShared(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := newStore(t, newPool(t), pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, store.Limit{Name: "x", Rate: 1, Period: day, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	for key, n := range map[string]int64{"shared": 7, "a": 5, "b": 5} {
		if d, err := l.Take(ctx, "x", key, n); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	var b store.Batch
	for _, key := range []string{"a", "b"} {
		op := store.Op{Def: l.Limit("x"), Key: key, Verb: store.VerbTakeUpTo, Cost: 3}
		shared := op
		shared.Key, shared.Cost = "shared", 8
		b.Groups = append(b.Groups, store.Group{Ops: []store.Op{shared, op}})
	}
	if err := s.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false} {
		if g := &b.Groups[i]; g.Err != nil || g.Allowed != want {
			t.Error(i, g.Allowed, g.Err)
		}
	}
	for key, want := range map[string]int64{"shared": 0, "a": 2, "b": 5} {
		if d, err := l.Check(ctx, "x", key, 0); err != nil || d.Remaining != want {
			t.Errorf("%s: %d left, want %d; %v", key, d.Remaining, want, err)
		}
	}
}

// TestSetAnswersOfOneInstant checks that the answers for two buckets are of one
// time, if the second is reset and taken from while the call waits for the
// first.
func TestSetAnswersOfOneInstant(t *testing.T) {
	for name, before := range map[string]int{"looks first": 0, "locks at once": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			pool := newPool(t)
			l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}),
				store.Limit{Name: "a", Rate: 1, Period: 24 * time.Hour, Burst: 999}, store.Limit{Name: "b", Rate: 1, Period: 24 * time.Hour, Burst: 999})
			if err != nil {
				t.Fatal(err)
			}
			both := func(key string) (dipwell.Decision, error) {
				return l.TakeAll(ctx, dipwell.Take{Limit: "a", Key: key, Cost: 1}, dipwell.Take{Limit: "b", Key: key, Cost: 1})
			}
			for range 1 + before {
				if d, err := both(fmt.Sprint("k", before)); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
			tx, err := pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback(ctx) }()
			must(t, tx, fmt.Sprintf("select dipwell.take('a', 'k%d', %d)", before, 998-before))
			got := make(chan dipwell.Decision, 1)
			go func() {
				d, err := both(fmt.Sprint("k", before))
				if err != nil {
					t.Error(err)
				}
				got <- d
			}()
			eventually(t, "waiting for the row", func() (waits bool) {
				err := pool.QueryRow(ctx, "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())").Scan(&waits)
				return err == nil && waits
			})
			must(t, tx, fmt.Sprintf("select dipwell.reset('b', 'k%d')", before))
			must(t, tx, fmt.Sprintf("select dipwell.take('b', 'k%d', 5)", before))
			if err := tx.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if d := <-got; d.Allowed || len(d.Limits) != 2 || d.Limits[0].Remaining != 0 || d.Limits[1].Remaining != 994 {
				t.Errorf("%+v; want a refusal, 0 left of a and 994 of b", d)
			}
		})
	}
}

// TestResetWaitsForAReservation checks that a Reset that waits for a row also
// ends a reservation made in the meantime.
func TestResetWaitsForAReservation(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t)
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), store.Limit{Name: "x", Rate: 1, Period: time.Hour, Burst: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []string{"", "select dipwell.refund('x', 'k', 20)"} { // leaves a full row without a list
		if d, err := l.Take(ctx, "x", "k", 3); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var id string
		if err := tx.QueryRow(ctx, "select reservation from dipwell.reserve('x', 'k', 5)").Scan(&id); err != nil {
			t.Fatal(err)
		}
		if after != "" {
			must(t, tx, after)
		}
		done := make(chan error, 1)
		go func() {
			_, err := l.Reset(ctx, "x", "k")
			done <- err
		}()
		eventually(t, "waiting for the row", func() (waits bool) {
			err := pool.QueryRow(ctx, "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())").Scan(&waits)
			return err == nil && waits
		})
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		var r store.Reservation
		err = r.UnmarshalText([]byte(id))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Cancel(ctx, r); !errors.Is(err, store.ErrReservation) {
			t.Errorf("%q: the reservation of a key that was reset: %v", after, err)
		}
		if d, err := l.Check(ctx, "x", "k", 0); err != nil || d.Remaining != 5 {
			t.Errorf("%q: %+v, %v", after, d, err)
		}
	}
}

// TestStatementsOfABatch checks that a batch of calls of any kind that do not
// wait needs few statements, for any number of keys. A store remembers which keys it has
// seen by a hash of its own; where two keys have the same one, a first statement more is
// sent each time, so one of several stores must do without.
func TestStatementsOfABatch(t *testing.T) {
	t.Parallel()
	var more []string
	for range 5 {
		if more = statementsOfABatch(t); len(more) == 0 {
			return
		}
	}
	t.Error(strings.Join(more, "; "))
}

// statementsOfABatch returns what needed more trips than it should on a new store.
func statementsOfABatch(t *testing.T) (more []string) {
	t.Helper()
	ctx := context.Background()
	conn, asked := countingConn(t)
	s := newStore(t, conn, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, store.Limit{Name: "plain", Rate: 1, Period: time.Hour, Burst: 9},
		store.Limit{Name: "day", Algorithm: store.FixedWindow, Rate: 9, Period: 24 * time.Hour, Start: "00:00 Europe/Rome"},
		store.Limit{Name: "leaky", Algorithm: store.LeakyBucket, Rate: 1, Period: time.Hour, MaxDebt: 99},
		store.Limit{Name: "queue", Rate: 1, Period: time.Hour, Burst: 1, MaxDebt: 99})
	if err != nil {
		t.Fatal(err)
	}
	batch := func(limit string, verb store.Verb) *store.Batch {
		var b store.Batch
		for i := range 50 {
			b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: l.Limit(limit), Key: fmt.Sprint("k", i), Verb: verb, Cost: 1}}})
			_, _ = crand.Read(b.Groups[i].ID[:])
		}
		return &b
	}
	for _, c := range []struct {
		limit string
		verb  store.Verb
		most  int // round trips
	}{{"plain", store.VerbReset, 1}, {"day", store.VerbTake, 1}, {"day", store.VerbCharge, 1}, {"day", store.VerbReset, 1},
		{"leaky", store.VerbTake, 2}, {"queue", store.VerbReserve, 4}} {
		for round := range 5 { // the first rounds insert rows and prepare statements
			*asked = 0
			b := batch(c.limit, c.verb)
			if err := s.Apply(ctx, b); err != nil {
				t.Fatal(err)
			}
			for i := range b.Groups {
				if g := &b.Groups[i]; g.Err != nil || !g.Allowed {
					t.Fatal(c.limit, c.verb, g.Err, g.Allowed)
				}
			}
			if round > 2 && *asked > c.most {
				more = append(more, fmt.Sprintf("%s of %s: %d trips for 50 keys", c.verb, c.limit, *asked))
			}
		}
	}
	return more
}
