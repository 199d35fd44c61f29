package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// scatterSQL spreads all rows that have no records over $1 shards each, or over those
// of their limit if $1 is null.
const scatterSQL = `select count(dipwell_internal.scatter(v, b.key, coalesce($1::bigint, l.shards), b.used, b.ts)) from
	(select x.limit_id, x.key, x.version, x.used, x.ts from dipwell.buckets x where x.lows is null order by x.limit_id, x.key for update skip locked) b
	join dipwell.versions v on v.limit_id = b.limit_id and v.number = b.version join dipwell.limits l on l.id = b.limit_id and l.algorithm <> 'concurrency'
	where v.every > 0 and ($1::bigint is not null or l.shards > 1 and l.version = b.version and v.cap - b.used >= l.shards * v.unit)`

// A scattering store spreads all rows over shards before each call.
type scattering struct{ *pgstore.Store }

func (s *scattering) Apply(ctx context.Context, b *store.Batch) error {
	if _, err := pgstore.DBOf(s.Store).Exec(ctx, scatterSQL, 4); err != nil {
		return err
	}
	return s.Store.Apply(ctx, b)
}

// TestScattered runs the suite on keys that are spread over shards whenever a call
// begins. Whatever the call is, it must find what it would have found in one row.
func TestScattered(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t testing.TB, now func() int64) store.Store {
		return &scattering{open(t, now).(*pgstore.Store)}
	}, storetest.Options{Brief: true, Parallel: true})
}

// shardRule is the Go twin of the part that one of n shards has of a rule.
func shardRule(r store.Rule, n, i int64) store.Rule {
	part := func(whole int64) int64 {
		if i < whole%n {
			return whole/n + 1
		}
		return whole / n
	}
	r.Add, r.Burst = part(r.Add), part(r.Burst)
	r.Cap = r.Burst * r.Unit
	r.Enough = (r.MaxUsed + r.Add - 1) / r.Add
	return r
}

// usedAt returns the units that a row uses at t, or at its own time if that is later.
func usedAt(r store.Rule, s store.State, t int64) int64 {
	return algebra.Used(&r, s, t)
}

// gathered is the Go twin of dipwell_internal.whole: what shards are together.
func gathered(r store.Rule, shards []store.State) (whole store.State) {
	for _, s := range shards {
		whole.TS = max(whole.TS, s.TS)
	}
	for i, s := range shards {
		whole.Used += usedAt(shardRule(r, int64(len(shards)), int64(i)), s, whole.TS)
	}
	return whole
}

// readShards returns the rows of a key: its shards, or its one row.
func readShards(t testing.TB, pool *pgxpool.Pool, key string) (shards []store.State, whole bool) {
	t.Helper()
	rows, err := pool.Query(context.Background(), `select used, ts from (
		select used, ts, shard from dipwell.shards where key = $1 union all select used, ts, -1 from dipwell.buckets where key = $1 and lows is null) x order by shard`, key)
	if err != nil {
		t.Fatal(err)
	}
	shards, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s store.State, err error) {
		err = row.Scan(&s.Used, &s.TS)
		return s, err
	})
	if err != nil {
		t.Fatal(err)
	}
	return shards, len(shards) < 2
}

var shardedLimits = []store.Limit{
	{Name: "bucket", Rate: 7, Period: 3 * time.Second, Burst: 21, Shards: 4},
	{Name: "fast", Rate: 300_000, Period: time.Second, Burst: 33, Shards: 16},
	{Name: "slow", Rate: 999_983, Period: 30 * 24 * time.Hour, Burst: 37, Shards: 8},
	{Name: "window", Algorithm: store.FixedWindow, Rate: 11, Period: 10 * time.Second, Burst: 23, Shards: 8},
	{Name: "interval", Algorithm: store.Interval, Rate: 5, Period: time.Second, Burst: 19, Shards: 5, Start: "0s"},
}

// TestShardsTwin sends random calls to keys that are spread every now and then, and
// compares each answer with what the rows were before it. A take changes one shard, as
// its part of the rule allows, or the key as a whole; it is refused only if the whole
// has no room.
func TestShardsTwin(t *testing.T) {
	for _, l := range shardedLimits {
		for _, how := range []string{"statements", "transaction", "batch"} {
			t.Run(l.Name+"/"+how, func(t *testing.T) {
				t.Parallel()
				pool := recycledPool(t, "dipwell", migrated)
				now := int64(1_700_000_000_000_000)
				s := newStore(t, pool, pgstore.Config{Clock: func() int64 { return now }, Poll: -1})
				d, err := s.Define(context.Background(), l, store.OwnerCode)
				if err != nil {
					t.Fatal(err)
				}
				for seed := range uint64(2) {
					r := shardsRun{T: t, pool: pool, s: s, d: d, how: how, key: fmt.Sprintf("k%d", seed), random: rand.New(rand.NewPCG(seed, 1))}
					for range 150 {
						now += r.random.Int64N(l.Period.Microseconds() / l.Rate)
						r.call(now)
					}
					if r.shard == 0 || r.whole == 0 || r.refused == 0 {
						t.Errorf("%d takes of a shard, %d of the whole, %d refused", r.shard, r.whole, r.refused)
					}
				}
			})
		}
	}
}

type shardsRun struct {
	*testing.T
	pool   *pgxpool.Pool
	s      *pgstore.Store
	d      *store.Definition
	how    string
	key    string
	random *rand.Rand

	shard, whole, refused int // takes
}

func (r *shardsRun) call(now int64) {
	r.Helper()
	if r.random.IntN(3) == 0 {
		if _, err := r.pool.Exec(context.Background(), scatterSQL, nil); err != nil {
			r.Fatal(err)
		}
	}
	before, _ := readShards(r.T, r.pool, r.key)
	var scratch store.Rule
	rule := *core.RuleFor(r.d, r.key, &scratch)
	was := store.State{TS: now}
	if len(before) > 1 {
		was = gathered(rule, before)
	} else if len(before) == 1 {
		was = before[0]
	}
	verb := store.VerbTake
	if r.random.IntN(4) == 0 {
		verb = []store.Verb{store.VerbCheck, store.VerbTakeUpTo, store.VerbCharge, store.VerbRefund, store.VerbReset}[r.random.IntN(5)]
	}
	op := store.Op{Def: r.d, Key: r.key, Verb: verb, Cost: 1 + r.random.Int64N(3)}
	if r.random.IntN(10) == 0 {
		op.Cost = 1 + r.random.Int64N(rule.Burst/2)
	}
	if verb == store.VerbReset {
		op.Cost = 0
	}
	got := r.apply(op)
	want := store.Op{Def: r.d, Key: r.key, Verb: verb, Cost: op.Cost}
	was.Version = r.d.Number
	if _, _, err := want.Step(now, was, false); err != nil {
		r.Fatal(err)
	}
	if got.Allowed != want.Allowed || got.Granted != want.Granted || got.Retry != want.Retry || got.Never != want.Never {
		r.Fatalf("%v of %d at %d: %+v, want %+v; rows %+v", verb, op.Cost, now, got, want, before)
	}
	after, whole := readShards(r.T, r.pool, r.key)
	if verb == store.VerbTake && !want.Allowed {
		if r.refused++; fmt.Sprint(after) != fmt.Sprint(before) {
			r.Fatalf("a refusal changed %+v to %+v", before, after)
		}
		return
	}
	if verb != store.VerbTake || !want.Allowed || whole {
		used := int64(0)
		switch {
		case len(after) > 1: // nothing was written
			used = usedAt(rule, gathered(rule, after), now)
		case len(after) == 1:
			used = usedAt(rule, after[0], now)
		}
		if used != want.Used || got.Remaining != max(rule.Cap-want.Used, 0)/rule.Unit {
			r.Fatalf("%v of %d at %d: %d used afterwards, want %d; %+v", verb, op.Cost, now, used, want.Used, got)
		}
		if verb == store.VerbTake {
			r.whole++
		}
		return
	}
	r.shard++
	r.oneShard(now, op.Cost, rule, before, after, got)
}

// oneShard checks that a take changed one shard, and what it answered of the whole.
func (r *shardsRun) oneShard(now, cost int64, rule store.Rule, before, after []store.State, got store.Answer) {
	r.Helper()
	n, changed, used := int64(len(after)), 0, int64(0)
	for i := range after {
		part := shardRule(rule, n, int64(i))
		used += usedAt(part, after[i], now)
		if before[i] == after[i] {
			continue
		}
		changed++
		taken := usedAt(part, before[i], now) + cost*part.Unit
		if taken > part.Cap || after[i] != (store.State{Used: taken, TS: max(now, before[i].TS)}) {
			r.Fatalf("shard %d went from %+v to %+v at %d, by %d tokens; its rule is %+v", i, before[i], after[i], now, cost, part)
		}
	}
	if changed != 1 || got.Remaining != (rule.Cap-used)/rule.Unit || got.Used != used {
		r.Fatalf("%d shards changed, %+v to %+v; answer %+v, %d units are used", changed, before, after, got, used)
	}
}

// apply makes one call.
func (r *shardsRun) apply(op store.Op) store.Answer {
	r.Helper()
	ctx := context.Background()
	b := &store.Batch{Groups: []store.Group{{Ops: []store.Op{op}}}}
	err := error(nil)
	switch r.how {
	case "transaction":
		err = pgx.BeginFunc(ctx, r.pool, func(tx pgx.Tx) error { return r.s.With(tx).Apply(ctx, b) })
	case "batch":
		other := store.Op{Def: r.d, Key: fmt.Sprint("other", r.random.Int()), Verb: store.VerbTake, Cost: 1}
		b.Groups = append(b.Groups, store.Group{Ops: []store.Op{other}})
		err = r.s.Apply(ctx, b)
	default:
		err = r.s.Apply(ctx, b)
	}
	if err = errors.Join(err, b.Groups[0].Err); err != nil {
		r.Fatal(err)
	}
	return b.Groups[0].Ops[0].Answer
}

// TestShardsLeftOver spreads a key of which rows of shards are left, as in a database that
// was restored without dipwell.buckets.
func TestShardsLeftOver(t *testing.T) {
	pool := newPool(t)
	must(t, pool, "select dipwell.define('orders', rate => 1, per => interval '1 day', burst => 80, shards => 8)")
	for _, cost := range []int{40, 8} {
		must(t, pool, "delete from dipwell.buckets")
		must(t, pool, fmt.Sprintf("select dipwell.take('orders', 'k', %d)", cost))
		if n := number(t, pool, strings.ReplaceAll(scatterSQL, "$1", "8")); n != 1 {
			t.Fatalf("%d keys were spread", n)
		}
		if left := number(t, pool, "select remaining from dipwell.check('orders', 'k')"); left != 80-cost {
			t.Errorf("%d tokens are left after a take of %d, want %d", left, cost, 80-cost)
		}
	}
	if n := number(t, pool, "select count(*) from dipwell.shards"); n != 8 {
		t.Errorf("%d rows, want 8", n)
	}
}

// sweepSQL sweeps at most $1 rows that are full in an hour.
const sweepSQL = "select swept from dipwell_internal.sweep_at($1, dipwell_internal.now_us() + 3600000000, null)"

// TestShardsSweepLeftOver checks that a sweep deletes rows of shards without a row of the
// key, and no others.
func TestShardsSweepLeftOver(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('x', 1, interval '1 day', burst => 80, shards => 8), dipwell.take('x', 'gone'), dipwell.take('x', 'k')")
	must(t, pool, strings.ReplaceAll(scatterSQL, "$1", "8"))
	must(t, pool, "delete from dipwell.buckets where key = 'gone'")
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback(context.Background()) }()
	must(t, other, "select from dipwell.buckets where key = 'k' for update")
	if n := number(t, pool, strings.ReplaceAll(sweepSQL, "$1", "10")); n != 1 {
		t.Errorf("%d rows were swept, want 1", n)
	}
	if n := number(t, pool, "select count(*) from dipwell.shards where key = 'gone'"); n != 0 {
		t.Errorf("%d rows are left over", n)
	}
	if left := number(t, pool, "select remaining from dipwell.status where key = 'k'"); left != 79 {
		t.Errorf("%d remain, want 79", left)
	}
}

// TestShardsSweepHeld checks that a sweep skips a key of which a transaction has a shard:
// the transaction may stay open for long, and the sweep has locked rows of other keys.
func TestShardsSweepHeld(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('x', 10, interval '1 second', burst => 80, shards => 8), dipwell.take('x', 'a'), dipwell.take('x', 'k')")
	must(t, pool, strings.ReplaceAll(scatterSQL, "$1", "8"))
	open, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(context.Background()) }()
	must(t, open, "select dipwell.take('x', 'k')")
	for want, end := range []func(context.Context) error{open.Commit, func(context.Context) error { return nil }} {
		sweep, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = sweep.Rollback(context.Background()) }()
		must(t, sweep, "set local lock_timeout = '1ms'")
		if n := number(t, sweep, strings.ReplaceAll(sweepSQL, "$1", "10")); n != 1 {
			t.Errorf("sweep %d: %d rows were swept, want 1", want, n)
		}
		if err := errors.Join(sweep.Commit(t.Context()), end(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
}

// TestShardsSweepAll checks that a sweep of few rows comes to all keys, though the first
// ones are never full.
func TestShardsSweepAll(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('slow', 1, interval '1 day', burst => 80, shards => 8), dipwell.define('fast', 10, interval '1 second', burst => 80, shards => 8)")
	must(t, pool, "select dipwell.take('slow', i::text) from generate_series(1, 4) i")
	must(t, pool, "select dipwell.take('fast', 'k')")
	must(t, pool, strings.ReplaceAll(scatterSQL, "$1", "8"))
	for range 200 {
		if number(t, pool, strings.ReplaceAll(sweepSQL, "$1", "2")) > 0 {
			return
		}
	}
	t.Error("200 sweeps of 2 rows have not come to the full one")
}

// TestShardsHeld checks that as many transactions as there are shards hold a token at
// the same time, that the next one waits and is not refused, and that what is refused
// is refused without waiting.
func TestShardsHeld(t *testing.T) {
	pool := newPool(t)
	ctx := context.Background()
	must(t, pool, "select dipwell.define('orders', rate => 1, per => interval '1 day', burst => 80, shards => 8)")
	take := func(db pgstore.DB, cost int) (allowed bool, remaining int, err error) {
		err = db.QueryRow(ctx, "select allowed, remaining from dipwell.take('orders', null, $1)", cost).Scan(&allowed, &remaining)
		return
	}
	begin := func() pgx.Tx {
		tx, err := pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(ctx) })
		must(t, tx, "set local lock_timeout = '1min'")
		return tx
	}
	if ok, _, err := take(pool, 1); !ok || err != nil {
		t.Fatal(ok, err)
	}
	first, second := begin(), begin()
	if ok, _, err := take(first, 1); !ok || err != nil {
		t.Fatal(ok, err)
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := take(second, 1)
		done <- err
	}()
	eventually(t, "waiting for the row", func() bool {
		return number(t, pool, "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()") == 1
	})
	if err := first.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-done, second.Commit(ctx)); err != nil {
		t.Fatal(err)
	}
	if n := number(t, pool, "select count(*) from dipwell.shards"); n != 8 {
		t.Fatalf("%d rows after two transactions met, want 8", n)
	}
	var open []pgx.Tx
	for range 8 {
		tx := begin()
		if ok, _, err := take(tx, 1); !ok || err != nil {
			t.Fatal(ok, err)
		}
		open = append(open, tx)
	}
	if ok, _, err := take(pool, 79); ok || err != nil { // 77 are left, whatever becomes of the others
		t.Fatal(ok, err)
	}
	late := begin()
	must(t, late, "set local lock_timeout = '1ms'")
	var locked *pgconn.PgError
	if _, _, err := take(late, 1); !errors.As(err, &locked) || locked.Code != "55P03" {
		t.Fatalf("all shards are locked and have tokens: %v, want a wait", err)
	}
	for range 2 {
		go func() {
			_, _, err := take(pool, 1)
			done <- err
		}()
	}
	// A commit wakes one of those that wait for an advisory lock, but all that wait for a row.
	eventually(t, "two wait for advisory locks", func() bool {
		return number(t, pool, "select count(*) from pg_stat_activity where wait_event = 'advisory' and datname = current_database()") == 2
	})
	for i, tx := range open {
		if err := []func(context.Context) error{tx.Commit, tx.Rollback}[i%2](ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
	if ok, left, err := take(pool, 71); !ok || left != 0 || err != nil {
		t.Fatalf("%v, %d remain, %v; want all of the other 71", ok, left, err)
	}
}

// TestShardsHome checks that a session takes from its home without looking for a better
// shard while half of the home's tokens are left, from another while the home is locked,
// and that all tokens are granted, each once, whatever the first statement is.
func TestShardsHome(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('x', 1, interval '1 day', burst => 80, shards => 4), dipwell.take('x', 'k')")
	if n := number(t, pool, strings.ReplaceAll(scatterSQL, "$1", "4")); n != 1 {
		t.Fatalf("%d keys were spread", n)
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	home := number(t, conn, "select pg_backend_pid() % 4")
	take := func(cost int) (ok bool, left int, hint string) {
		t.Helper()
		err := conn.QueryRow(t.Context(), "select d.allowed, d.remaining, current_setting('dipwell.read_first') from dipwell.take('x', 'k', $1) d", cost).Scan(&ok, &left, &hint)
		if err != nil {
			t.Fatal(err)
		}
		return ok, left, hint
	}
	tokens := "select coalesce(sum((s.used + l.unit - 1) / l.unit), 0) from dipwell.shards s join dipwell.limits l on l.id = s.limit_id where s.shard "
	must(t, conn, "select set_config('dipwell.read_first', 'scattered....', false)")
	for i := range 5 { // one or none is used of the home before
		if ok, left, hint := take(1); !ok || left != 78-i || hint != "scattered...." {
			t.Fatalf("take %d: %v, %d remain, hint %q", i, ok, left, hint)
		}
	}
	if n := number(t, pool, tokens+fmt.Sprint("= ", home)); n < 5 || n > 6 {
		t.Fatalf("%d used of the home after five takes", n)
	}
	other, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	must(t, other, fmt.Sprintf("select pg_advisory_xact_lock(hashtextextended('k', hashtext('x')) + 1 + %d)", home))
	if ok, left, hint := take(1); !ok || left != 73 || hint != "scattered...." {
		t.Fatalf("beside a locked home: %v, %d remain, hint %q", ok, left, hint)
	}
	if n := number(t, pool, tokens+fmt.Sprint("= ", (home+1)%4)); n < 1 || n > 2 {
		t.Fatalf("%d used of the shard after the home", n)
	}
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if ok, left, _ := take(11); !ok || left != 62 || number(t, pool, tokens+fmt.Sprint("= ", home)) > 17 {
		t.Fatalf("more than half of a shard: %v, %d remain", ok, left)
	}
	must(t, conn, "select set_config('dipwell.read_first', 'scattered....', false)")
	for i := range 62 {
		if ok, left, _ := take(1); !ok || left != 61-i {
			t.Fatalf("take %d of the last 62: %v, %d remain", i, ok, left)
		}
	}
	for _, hint := range []string{"scattered....", "scattered........", "scattered", "shards", "scattered.x"} {
		must(t, conn, "select set_config('dipwell.read_first', '"+hint+"', false)")
		if ok, left, _ := take(1); ok || left != 0 {
			t.Errorf("drained, after %q: %v, %d remain", hint, ok, left)
		}
	}
}

// TestShardsOneLock checks that a call that has waited for the lock of a shard without room
// does not wait for the lock of another one: two such calls could be a deadlock.
func TestShardsOneLock(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pool := newPool(t)
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), store.Limit{Name: "hot", Rate: 1, Period: 24 * time.Hour, Burst: 40, Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Take(ctx, "hot", "k", 2); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, scatterSQL, nil); err != nil {
		t.Fatal(err)
	}
	caller, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(caller.Release)
	pid := int64(caller.Conn().PgConn().PID())
	holds := func(shard, tokens int64) pgx.Tx {
		tx, err := pool.Begin(ctx)
		if err == nil {
			t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
			_, err = tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended('k', hashtext('hot')) + 1 + $1)", shard)
		}
		if err == nil {
			_, err = tx.Exec(ctx, "update dipwell.shards s set used = $2 * l.unit from dipwell.limits l where l.id = s.limit_id and s.shard = $1", shard, tokens)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	home, other := holds(pid%2, 18), holds(1-pid%2, 1) // of 20 each
	if _, err := caller.Exec(ctx, "set dipwell.read_first = 'scattered..'"); err != nil {
		t.Fatal(err)
	}
	var remaining int64
	answer := make(chan error, 1)
	go func() {
		answer <- caller.QueryRow(ctx, "select remaining from dipwell.take('hot', 'k', 5) where allowed").Scan(&remaining)
	}()
	waitsFor := func(event string) {
		t.Helper()
		eventually(t, "the call waits for "+event, func() bool {
			var waits, holds int64
			if err := pool.QueryRow(ctx, locksSQL).Scan(&waits, &holds); err != nil {
				t.Fatal(err)
			} else if holds > 0 {
				t.Fatal("the call waits for the lock of a shard and has another")
			}
			return number(t, pool, "select count(*) from pg_stat_activity where wait_event in ("+event+") and pid = "+fmt.Sprint(pid)) == 1
		})
	}
	waitsFor("'advisory'")
	if err := home.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	waitsFor("'PgSleep', 'transactionid'") // the latter after 0.7 s
	if err := other.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil || remaining != 40-18-1-5 {
		t.Errorf("%d remain, %v; want 16", remaining, err)
	}
}

// TestShardsRefusedAtOnce checks that a call that is refused does not wait while all shards
// are locked, whatever the session's hint is.
func TestShardsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('x', 1, interval '1 day', burst => 80, shards => 2), dipwell.take('x', 'k', 3)")
	if n := number(t, pool, strings.ReplaceAll(scatterSQL, "$1", "2")); n != 1 {
		t.Fatalf("%d keys were spread", n)
	}
	begin := func(settings ...string) pgx.Tx {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		for _, set := range settings {
			must(t, tx, set)
		}
		return tx
	}
	for range 2 {
		begin("select dipwell.take('x', 'k')")
	}
	for _, hint := range []string{"shards", "scattered", "scattered.."} {
		for cost, want := range map[int]string{78: "false", 81: "false", -1: "cost: "} {
			tx := begin("set local lock_timeout = '1ms'", "set local dipwell.read_first = '"+hint+"'")
			var got string
			if err := tx.QueryRow(t.Context(), "select allowed::text from dipwell.take('x', 'k', $1)", cost).Scan(&got); err != nil {
				got = err.Error()
			}
			if !strings.Contains(got, want) {
				t.Errorf("%d tokens after %q: %s", cost, hint, got)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestShardsGatheredByOwnTransaction checks that a take does not wait for the locks of
// shards that its transaction has gathered: whoever has them waits for the transaction.
func TestShardsGatheredByOwnTransaction(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('x', 1, interval '1 day', burst => 80, shards => 2), dipwell.take('x', 'k', 3)")
	if n := number(t, pool, strings.ReplaceAll(scatterSQL, "$1", "2")); n != 1 {
		t.Fatalf("%d keys were spread", n)
	}
	hinted := func() pgx.Tx {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		must(t, tx, "select set_config('dipwell.read_first', 'scattered..', true)")
		return tx
	}
	own := hinted()
	must(t, own, "select dipwell.refund('x', 'k', 1)")
	done := make(chan error, 2)
	for range 2 {
		other := hinted()
		go func() {
			_, err := other.Exec(context.Background(), "select dipwell.take('x', 'k')")
			if err == nil {
				err = other.Commit(context.Background())
			}
			done <- err
		}()
	}
	eventually(t, "both wait for the transaction", func() bool { return number(t, pool, waitingSQL) == 2 })
	must(t, own, "set local lock_timeout = '1ms'")
	must(t, own, "select dipwell.take('x', 'k')")
	if err := own.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Error(err)
	}
	if left := number(t, pool, "select remaining from dipwell.check('x', 'k')"); left != 80-3+1-3 {
		t.Errorf("%d remain, want 75", left)
	}
}

// locksSQL counts the calls that wait for the advisory lock of a shard, and those of them
// that have another one, in one snapshot of all locks.
const locksSQL = `with l as materialized (select pid, granted from pg_locks
	where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database()))
select count(*), count(*) filter (where exists (select from l h where h.pid = w.pid and h.granted)) from l w where not w.granted`

// TestShardsUnderLoad checks that what 32 writers take is what is used, while the
// number of shards changes, SQL and Go take side by side, and keys are spread, swept
// and gathered. No call waits for the lock of a shard while it has another lock: two such
// calls can be a deadlock.
func TestShardsUnderLoad(t *testing.T) {
	pool := connect(t, pgtest.Database(t, "dipwell", migrated)+"&pool_max_conns=40")
	ctx := context.Background()
	s := newStore(t, pool, pgstore.Config{})
	limit := store.Limit{Name: "hot", Rate: 1, Period: 24 * time.Hour, Burst: 4000, Shards: 4}
	limiter, err := dipwell.New(s, limit)
	if err != nil {
		t.Fatal(err)
	}
	var granted, refused atomic.Int64
	var all sync.WaitGroup
	fail := make(chan error, 64)
	for w := range 32 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 2))
			for range 60 {
				cost := 1 + random.Int64N(4)
				if random.IntN(20) == 0 {
					cost = 100 + random.Int64N(1900)
				}
				var ok bool
				var err error
				if w%2 == 0 {
					err = pool.QueryRow(ctx, "select allowed from dipwell.take('hot', 'k', $1)", cost).Scan(&ok)
				} else {
					var d dipwell.Decision
					d, err = limiter.Take(ctx, "hot", "k", cost)
					ok = d.Allowed
				}
				if err != nil {
					fail <- err
					return
				}
				if ok {
					granted.Add(cost)
				} else {
					refused.Add(1)
				}
			}
		})
	}
	all.Go(func() {
		for i := range 40 {
			limit.Shards = []int64{4, 8, 3, 0}[i%4]
			limit.MaxDebt = store.NoDebt
			_, err := limiter.Define(ctx, limit, store.OwnerCode)
			if err == nil {
				_, err = pool.Exec(ctx, scatterSQL, nil)
			}
			if err == nil {
				_, err = store.AbilitiesOf(s).Sweep(ctx, 1000)
			}
			if err != nil {
				fail <- err
				return
			}
		}
	})
	var waiting atomic.Int64 // times that a call waited for a shard's lock
	watch, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for watch.Err() == nil {
			var waits, holds int64
			err := pool.QueryRow(ctx, locksSQL).Scan(&waits, &holds)
			if err == nil && holds > 0 {
				err = fmt.Errorf("%d of %d calls that wait for the lock of a shard have another lock", holds, waits)
			}
			if err != nil {
				fail <- err
				return
			}
			waiting.Add(waits)
		}
	}()
	all.Wait()
	stop()
	<-watched
	t.Logf("seen waiting for the lock of a shard: %d", waiting.Load())
	select {
	case err := <-fail:
		if pg := new(pgconn.PgError); errors.As(err, &pg) {
			t.Log(pg.Detail, pg.Where)
		}
		t.Fatal(err)
	default:
	}
	d, err := limiter.Check(ctx, "hot", "k", 0)
	if err != nil || d.Remaining != 4000-granted.Load() || granted.Load() < 3000 || refused.Load() == 0 {
		t.Fatalf("%d granted, %d calls refused, %d remaining of 4000; %v", granted.Load(), refused.Load(), d.Remaining, err)
	}
}

// TestShardsClockBack: what a shard was full of before the clock stepped back is not
// counted again when its key is gathered.
func TestShardsClockBack(t *testing.T) {
	now := int64(1_700_000_000_000_000)
	s := openSQL(t, func() int64 { return now }).(*sqlStore)
	limiter, err := dipwell.New(s, store.Limit{Name: "l", Rate: 2, Period: time.Second, Burst: 20, Shards: 2})
	if err != nil {
		t.Fatal(err)
	}
	take := func(cost int64, want bool) {
		t.Helper()
		if d, err := limiter.Take(t.Context(), "l", "k", cost); err != nil || d.Allowed != want {
			t.Fatalf("%d: %+v, %v", cost, d, err)
		}
	}
	take(1, true)
	if _, err := limiter.Refund(t.Context(), "l", "k", 1); err != nil {
		t.Fatal(err)
	}
	if _, err := s.pool.Exec(t.Context(), scatterSQL, nil); err != nil {
		t.Fatal(err)
	}
	now += 10_000_000
	take(10, true) // all that one shard has
	now -= 10_000_000
	take(10, true) // all that the other one has
	take(1, false)
	now += 10_000_000
	take(10, true) // what has come back to the other one
	take(1, false)
}

// TestShardsEarnAll checks that a key that is always spread gets at least 98 % of its
// burst and of its rate over some seconds at a load of 1.2, and never more than all, at
// costs from 1 to half of the burst.
func TestShardsEarnAll(t *testing.T) {
	for _, cost := range []int64{1, 5, 40} {
		t.Run(fmt.Sprint(cost), func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			pool := recycledPool(t, "dipwell", migrated)
			const rate, burst, calls = 100, 80, 1500 // a second
			start := int64(1_700_000_000_000_000)
			now := start
			s := newStore(t, pool, pgstore.Config{Clock: func() int64 { return now }, Poll: -1})
			limiter, err := dipwell.New(s, store.Limit{Name: "l", Rate: rate, Period: time.Second, Burst: burst, Shards: 8})
			if err != nil {
				t.Fatal(err)
			}
			granted := int64(0)
			for range calls {
				now += cost * 1_000_000 * 10 / (rate * 12)
				if _, err := pool.Exec(ctx, scatterSQL, nil); err != nil {
					t.Fatal(err)
				}
				d, err := limiter.Take(ctx, "l", "k", cost)
				if err != nil {
					t.Fatal(err)
				}
				granted += d.Granted
				if most := burst + rate*(now-start)/1_000_000; granted > most {
					t.Fatalf("%d granted of %d", granted, most)
				}
			}
			if all := float64(burst + rate*(now-start)/1_000_000); float64(granted) < 0.98*all-float64(cost) {
				t.Errorf("%d granted of %.0f", granted, all)
			}
		})
	}
}
