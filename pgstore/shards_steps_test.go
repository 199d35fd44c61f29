package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/shards"
	"github.com/dipwell/dipwell/store"
)

// TestShardsSteps compares the Go form of the protocol, which the simulator plays, with the
// functions in the database: it makes the same calls in the same transactions, of which
// several are open, and compares each answer, and the rows that each transaction sees. A
// call that waits in the Go form is not made here: its transaction is rolled back. Nor is
// one that chooses between two equally good shards, of which the SQL may take either.
func TestShardsSteps(t *testing.T) {
	for _, l := range shardedLimits {
		t.Run(l.Name, func(t *testing.T) {
			t.Parallel()
			r := newShardSteps(t, l)
			for range 500 {
				r.step()
			}
			t.Logf("%v", r.seen)
			for _, what := range []string{"shard", "refused", "gathered", "waits", "rolled back", "swept", "resized"} {
				if r.seen[what] == 0 {
					t.Errorf("no call was of the kind %q: %v", what, r.seen)
				}
			}
		})
	}
}

// errWaits is the panic of the Go form of a call that would wait.
var errWaits = errors.New("it would wait")

type shardSteps struct {
	*testing.T
	s      *sqlStore
	limit  store.Limit
	reg    store.Registry
	table  *shards.Table
	random *rand.Rand
	now    int64
	conns  []*shardConn
	seen   map[string]int
}

// A shardConn is a session, with the transaction that is open in it.
type shardConn struct {
	*shards.Session
	conn interface {
		Begin(context.Context) (pgx.Tx, error)
	}
	sql pgx.Tx
	tx  *shards.Tx
}

func newShardSteps(t *testing.T, l store.Limit) *shardSteps {
	r := &shardSteps{T: t, limit: l, random: rand.New(rand.NewPCG(1, 2)), now: 1_700_000_000_000_000, seen: map[string]int{}}
	r.s = openSQL(t, func() int64 { return r.now }).(*sqlStore)
	r.table = shards.NewTable(&r.reg)
	waits := func(*shards.Tx) { panic(errWaits) }
	r.table.Now, r.table.Pause, r.table.Wake = func() int64 { return r.now }, func(*shards.Tx) {}, func(*shards.Tx) {}
	r.table.Wait, r.table.Sleep, r.table.Random = waits, func(x *shards.Tx, _ int64) { waits(x) }, r.random.Int64N
	r.table.Deadlock, r.table.Unlogged = func([]*shards.Tx) {}, true
	r.table.Tied = func() { waits(nil) }
	r.define()
	for range 4 {
		conn, err := r.s.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Release)
		must(t, conn, "select set_config('dipwell.read_first', '', false)")
		r.conns = append(r.conns, &shardConn{Session: &shards.Session{PID: int64(conn.Conn().PgConn().PID())}, conn: conn})
	}
	return r
}

func (r *shardSteps) define() {
	r.Helper()
	_, err := r.s.Define(r.Context(), r.limit, store.OwnerCode)
	if err == nil {
		_, err = r.reg.Define(r.now, r.limit, store.OwnerCode)
	}
	if err != nil {
		r.Fatal(err)
	}
}

// step makes a call in one of the transactions, or ends it; or it spreads the key, sweeps,
// or changes the number of shards.
func (r *shardSteps) step() {
	r.Helper()
	if r.now += r.random.Int64N(r.limit.Period.Microseconds() / r.limit.Rate); r.random.IntN(40) == 0 {
		r.now -= r.random.Int64N(3_000_000)
	}
	c := r.conns[r.random.IntN(len(r.conns))]
	switch pick := r.random.IntN(20); {
	case pick < 8 && c.tx == nil:
		r.spread(c)
	case pick < 10 && c.tx != nil:
		r.end(c, pick > 2)
	case pick == 18 && c.tx == nil && r.random.IntN(4) == 0:
		r.seen["resized"]++
		r.limit.Shards = 2 + r.random.Int64N(4)
		r.define()
	case pick == 19 && c.tx == nil:
		r.seen["swept"]++
		r.now += 2_000_000
		r.inBoth(c, func() error { c.tx.Sweep(); return nil }, func() error {
			_, err := c.sql.Exec(r.Context(), "select dipwell_internal.sweep_at(100, $1, null)", r.now-1_000_000)
			return err
		})
		if c.tx != nil {
			r.end(c, true)
		}
	default:
		r.call(c)
	}
}

// spread spreads the key, and commits that.
func (r *shardSteps) spread(c *shardConn) {
	r.Helper()
	k := shards.Key{Limit: r.limit.Name, Key: "k"}
	did := false
	r.inBoth(c, func() (err error) { did, err = c.tx.Scatter(k); return err }, func() error {
		n := 0
		if did {
			if err := c.sql.QueryRow(r.Context(), scatterSQL, nil).Scan(&n); err != nil || n != 1 {
				return fmt.Errorf("%d keys were spread: %w", n, err)
			}
		}
		return nil
	})
	if c.tx != nil {
		r.end(c, true)
	}
}

// begin begins a transaction on both sides, if none is open.
func (r *shardSteps) begin(c *shardConn) {
	r.Helper()
	if c.tx == nil {
		var err error
		if c.sql, err = c.conn.Begin(r.Context()); err != nil {
			r.Fatal(err)
		}
		must(r, c.sql, "set local lock_timeout = '10s'")
		c.tx = r.table.Begin(c.Session)
	}
	must(r, c.sql, fmt.Sprintf("select set_config('test.now', '%d', true)", r.now))
}

func (r *shardSteps) end(c *shardConn, commits bool) {
	r.Helper()
	err := error(nil)
	if commits {
		c.tx.Commit()
		err = c.sql.Commit(r.Context())
	} else {
		c.tx.Rollback()
		err = c.sql.Rollback(r.Context())
		r.seen["rolled back"]++
	}
	if c.sql, c.tx = nil, nil; err != nil {
		r.Fatal(err)
	}
}

// inBoth does something on both sides, and compares the rows. If it waits in the Go form,
// it reports false and rolls the transaction back.
func (r *shardSteps) inBoth(c *shardConn, inGo, inSQL func() error) (done bool) {
	r.Helper()
	r.begin(c)
	err := func() (err error) {
		defer func() {
			if v := recover(); v != nil {
				if v != any(errWaits) {
					panic(v)
				}
				err = errWaits
			}
		}()
		return inGo()
	}()
	if errors.Is(err, errWaits) || errors.Is(err, shards.ErrDeadlock) {
		r.seen["waits"]++
		r.end(c, false)
		return false
	}
	if err = errors.Join(err, inSQL()); err != nil {
		r.Fatal(err)
	}
	r.compare(c)
	return true
}

// call makes one call.
func (r *shardSteps) call(c *shardConn) {
	r.Helper()
	d := r.reg.Lookup(r.limit.Name)
	op := store.Op{Def: d, Key: "k", Cost: 1 + r.random.Int64N(3)}
	switch pick := r.random.IntN(20); {
	case pick < 4:
		op.Cost = 1 + r.random.Int64N(d.Rule.Burst)
	case pick < 8:
		op.Verb = []store.Verb{store.VerbCheck, store.VerbTakeUpTo, store.VerbCharge, store.VerbRefund}[pick-4]
	}
	var allowed bool
	var remaining, granted int64
	var retry *time.Duration
	var hint string
	if !r.inBoth(c, func() error { _, err := c.tx.Call(&op); return err }, func() error {
		err := c.sql.QueryRow(r.Context(), fmt.Sprintf("select allowed, remaining, retry_after, granted from dipwell.%s($1, 'k', $2)", op.Verb), r.limit.Name, op.Cost).Scan(&allowed, &remaining, &retry, &granted)
		return errors.Join(err, c.sql.QueryRow(r.Context(), "select coalesce(current_setting('dipwell.read_first', true), '')").Scan(&hint))
	}) {
		return
	}
	wait := int64(0)
	if retry != nil {
		wait = retry.Microseconds()
	}
	if op.Verb == store.VerbCheck {
		granted = op.Granted
	}
	if allowed != op.Allowed || remaining != op.Remaining || granted != op.Granted || wait != op.Retry {
		r.Fatalf("%v of %d: %v, %d granted, %d left, for %d µs; Go: %v, %d, %d, %d", op.Verb, op.Cost, allowed, granted, remaining, wait, op.Allowed, op.Granted, op.Remaining, op.Retry)
	}
	if hint != c.Hint {
		r.Errorf("%v of %d: hint %q, in Go %q", op.Verb, op.Cost, hint, c.Hint)
	}
	switch {
	case !allowed:
		r.seen["refused"]++
	case op.Verb > store.VerbTake:
		r.seen["gathered"]++
	case len(r.table.Rows(c.tx, shards.Key{Limit: r.limit.Name, Key: "k"})) > 1:
		r.seen["shard"]++
	}
}

// compare compares the rows that a transaction sees.
func (r *shardSteps) compare(c *shardConn) {
	r.Helper()
	rows, err := c.sql.Query(r.Context(), `select used, ts, version from (
		select used, ts, version, shard from dipwell.shards where key = 'k' union all select used, ts, version, -1 from dipwell.buckets where key = 'k' and lows is null) x order by shard`)
	if err != nil {
		r.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s store.State, err error) {
		var version int64
		err = row.Scan(&s.Used, &s.TS, &version)
		s.Version = uint32(version)
		return s, err
	})
	if err != nil {
		r.Fatal(err)
	}
	if want := r.table.Rows(c.tx, shards.Key{Limit: r.limit.Name, Key: "k"}); !slices.Equal(got, want) {
		r.Fatalf("the transaction sees %v; in Go %v", got, want)
	}
}
