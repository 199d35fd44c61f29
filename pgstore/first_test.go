package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// countingConn returns a connection that counts its round trips.
func countingConn(t *testing.T) (conn *pgx.Conn, asked *int) {
	t.Helper()
	ctx := context.Background()
	config, err := pgx.ParseConfig(pgtest.Database(t, "dipwell", migrated))
	if err != nil {
		t.Fatal(err)
	}
	asked = new(int)
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return tripCounter{conn, asked}, err
	}
	if conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(ctx) })
	return conn, asked
}

// rowWrites returns how many bucket rows a transaction has inserted, and how
// many times it has updated one.
func rowWrites(t *testing.T, tx pgx.Tx) (inserted, again int) {
	t.Helper()
	err := tx.QueryRow(context.Background(), "select n_tup_ins, n_tup_upd + n_tup_del from pg_stat_xact_user_tables where relid = 'dipwell.buckets'::regclass").Scan(&inserted, &again)
	if err != nil {
		t.Fatal(err)
	}
	return inserted, again
}

// TestFirstCalls checks that a first call is three round trips and one write for every verb.
func TestFirstCalls(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, asked := countingConn(t)
	must(t, conn, "select dipwell.define('x', 1, interval '1 hour', burst => 9)")
	must(t, conn, "select dipwell.take('x', 'older', 4)")
	must(t, conn, "select dipwell.define('x', 1, interval '1 hour', burst => 10)")
	must(t, conn, "select dipwell.take('x', 'half', 5), dipwell.take('x', 'drained', 10)")
	st := newStore(t, conn, pgstore.Config{Poll: -1})
	l, err := dipwell.New(st)
	if err != nil {
		t.Fatal(err)
	}
	verbs := []store.Verb{store.VerbTake, store.VerbTakeUpTo, store.VerbReserve, store.VerbCharge}
	first := func(l *dipwell.Limiter, i int) {
		t.Helper()
		var d dipwell.Decision
		if err := l.Do(ctx, &d, verbs[i%len(verbs)], dipwell.Take{Limit: "x", Key: fmt.Sprint("new", i), Cost: 3}); err != nil || !d.Allowed || d.Granted != 3 || d.Remaining != 7 {
			t.Fatal(i, d, err)
		}
	}
	for i := range 20 {
		first(l, i)
	}
	first(l, 1000) // may prepare a statement
	for i := range 20 {
		*asked = 0
		if first(l, 20+i); *asked != 3 {
			t.Errorf("call %d: %d trips", i, *asked)
		}
	}
	inTx(t, conn, func(tx pgx.Tx) {
		inserted, again := rowWrites(t, tx)
		for i := range 20 {
			first(l.With(st.With(tx)), 40+i)
		}
		if in, up := rowWrites(t, tx); in != inserted+20 || up != again {
			t.Errorf("%d rows inserted for 20 keys, and %d written again", in-inserted, up-again)
		}
	})
	for key, left := range map[string]int64{"half": 4, "older": 5, "drained": -1} {
		d, err := l.Take(ctx, "x", key, 1)
		if err != nil || d.Allowed != (left >= 0) || d.Remaining != max(left, 0) || !d.Allowed && d.RetryAfter > time.Hour {
			t.Errorf("%s: %+v, %v", key, d, err)
		}
	}
}

// TestConcurrentFirstCalls has many callers make the first call of one key, if
// unseen keys are mostly new. Exactly the tokens there are must be granted.
func TestConcurrentFirstCalls(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t)
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), store.Limit{Name: "x", Rate: 1, Period: time.Hour, Burst: 20})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if d, err := l.Take(ctx, "x", fmt.Sprint("early", i), 1); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	for round := range 20 {
		var granted atomic.Int64
		var wg sync.WaitGroup
		start := make(chan struct{})
		for range 32 {
			wg.Go(func() {
				<-start
				d, err := l.Take(ctx, "x", fmt.Sprint("k", round), 1)
				if err != nil {
					t.Error(err)
				}
				granted.Add(d.Granted)
			})
		}
		close(start)
		wg.Wait()
		if n := granted.Load(); n != 20 {
			t.Errorf("round %d: %d granted, not 20", round, n)
		}
	}
}

// TestFirstGroups checks that the buckets of a new group are written once.
// Groups of new keys take three round trips, and a refused group leaves no row.
func TestFirstGroups(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	conn, asked := countingConn(t)
	l, err := dipwell.New(newStore(t, conn, pgstore.Config{Poll: -1}),
		store.Limit{Name: "user", Rate: 1, Period: time.Hour, Burst: 9}, store.Limit{Name: "tenant", Rate: 1, Period: time.Hour, Burst: 50})
	if err != nil {
		t.Fatal(err)
	}
	group := func(user, tenant string) dipwell.Decision {
		t.Helper()
		d, err := l.TakeAll(ctx, dipwell.Take{Limit: "tenant", Key: tenant, Cost: 2}, dipwell.Take{Limit: "user", Key: user, Cost: 2})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	rows := func() (n int) {
		t.Helper()
		if err := conn.QueryRow(ctx, "select count(*) from dipwell.buckets b join dipwell.limits l on l.id = b.limit_id where l.name = 'user'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i := range 20 {
		if d := group(fmt.Sprint("u", i), "busy"); !d.Allowed || d.Limits[0].Remaining != int64(48-2*i) || d.Limits[1].Remaining != 7 {
			t.Fatal(i, d)
		}
	}
	for i := range 5 {
		*asked = 0
		if d := group(fmt.Sprint("u", 20+i), "busy"); !d.Allowed || *asked > 3 && i > 0 {
			t.Errorf("group %d: %+v in %d trips", i, d, *asked)
		}
	}
	n := rows()
	if d := group("late", "busy"); d.Allowed || d.Limits[1].Remaining != 9 {
		t.Errorf("a group that is refused: %+v", d)
	}
	if after := rows(); n != 25 || after != n {
		t.Errorf("%d rows for 25 users, then %d", n, after)
	}
	if d, err := l.Take(ctx, "user", "late", 9); err != nil || !d.Allowed {
		t.Errorf("the user of a refused group: %+v, %v", d, err)
	}
}

// TestFirstTakeBesideOverride takes from new keys while another connection gives them an
// override, which counts what was taken before it, or decides the take.
func TestFirstTakeBesideOverride(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	pool := newPool(t)
	open := func() *dipwell.Limiter {
		l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), store.Limit{Name: "x", Rate: 1, Period: time.Hour, Burst: 10})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	takes, sets := open(), open()
	for i := range 100 {
		key := fmt.Sprint("k", i)
		set := make(chan error, 1)
		go func() {
			_, err := sets.SetOverride(ctx, "x", dipwell.Override{Key: key, Burst: 3})
			set <- err
		}()
		for range i % 10 { // so that the take arrives at another time of the change
			if _, err := takes.Check(ctx, "x", "another", 0); err != nil {
				t.Fatal(err)
			}
		}
		d, err := takes.Take(ctx, "x", key, 1)
		if err = errors.Join(err, <-set); err != nil || !d.Allowed {
			t.Fatal(key, d, err)
		}
		if d, err = takes.Check(ctx, "x", key, 0); err != nil || d.Capacity != 3 || d.Remaining != 2 {
			t.Errorf("%s: %+v, %v", key, d, err)
		}
	}
}
