package pgstore_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// boundLimits are those of the tests below. Nothing comes back by time.
var boundLimits = []store.Limit{
	{Name: "n", Rate: 1, Period: time.Hour, Burst: 1_000_000, MaxDebt: 1_000_000, Plans: store.NewPlans(store.Plan{Name: "free", Mode: store.Unlimited})},
	{Name: "slots", Algorithm: store.Concurrency, Burst: 1_000_000},
	{Name: "fast", Rate: 1_000_000, Period: time.Second, Burst: 10}, // soon full, whatever is held
}

// A bounded checks how many live records a key may have.
type bounded struct {
	testing.TB
	l    *dipwell.Limiter
	pool *pgxpool.Pool
}

func openBounded(t testing.TB, pool *pgxpool.Pool) *bounded {
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), boundLimits...)
	if err != nil {
		t.Fatal(err)
	}
	return &bounded{t, l, pool}
}

func (b *bounded) hold(id string, take dipwell.Take) error {
	d, err := b.l.Hold(b.Context(), time.Hour, id, take)
	if err == nil && !d.Allowed {
		b.Fatalf("%s: %+v", id, d)
	}
	return err
}

func (b *bounded) want(what string, err error, full bool) {
	b.Helper()
	var f *store.FieldError
	if full && (!errors.As(err, &f) || f.Field != "key") || !full && err != nil {
		b.Errorf("%s: %v", what, err)
	}
}

// The bounds of a key are exact, by the functions and by the store's own statements. Most
// records are made by the functions, each in a transaction of its own; the others are copies.
func TestRecordsAreBounded(t *testing.T) {
	t.Parallel()
	b := openBounded(t, newPool(t))
	must(t, b.pool, "do $$ begin for i in 1..9998 loop perform dipwell.hold('n', 'paid', 1, ttl => '1h', id => 'paid' || i); commit; end loop; end $$")
	must(t, b.pool, "do $$ begin for i in 1..9998 loop perform dipwell.hold('fast', 'fast', 1, ttl => '1h', id => 'fast' || i); commit; end loop; end $$")
	must(t, b.pool, "select dipwell.hold('n', 'free', 1, ttl => '1h', id => 'free1', plan => 'free'), dipwell.hold('slots', 'slots', 1, ttl => '1h', id => 'slots1')")
	must(t, b.pool, `insert into dipwell.hold_parts (expires, due, till, ttl, units, unit, tokens, number, mark, limit_id, part, parts, takes, live, free, keep, reset, settled, id, key, plan, call)
		select expires, due, till, ttl, units, unit, tokens, case when free then i else 0 end, mark, limit_id, part, parts, takes, live, free, keep, reset, settled, key || i, key, plan, call
		from dipwell.hold_parts, generate_series(2, 9998) i where id in ('free1', 'slots1')`)
	must(t, b.pool, "update dipwell.buckets set used = 9998 where key = 'slots'")
	settled := map[string]int{}
	for _, take := range []dipwell.Take{{Limit: "n", Key: "paid", Cost: 1}, {Limit: "n", Key: "free", Cost: 1}, {Limit: "n", Plan: "free", Key: "free", Cost: 1},
		{Limit: "n", Plan: "free", Key: "paid", Cost: 1}, {Limit: "slots", Key: "slots", Cost: 1}, {Limit: "fast", Key: "fast", Cost: 1}} {
		what := fmt.Sprintf("%+v", take)
		sql := fmt.Sprintf("select dipwell.hold('%s', '%s', 1, ttl => '1h', plan => nullif('%s', ''))", take.Limit, take.Key, take.Plan)
		full := func(full bool) {
			t.Helper()
			_, err := b.pool.Exec(t.Context(), sql)
			var pg *pgconn.PgError
			if full && (!errors.As(err, &pg) || pg.Code != "22023" || pg.ConstraintName != "key") || !full && err != nil {
				t.Errorf("%s by SQL: %v", what, err)
			}
		}
		if first := settled[take.Key] == 0; first {
			b.want(what, b.hold("", take), false)
			full(false)
		}
		b.want(what, b.hold("", take), true)
		full(true)
		if take.Limit == "n" {
			_, err := b.l.Reserve(t.Context(), "n", take.Key, 1_000_001)
			b.want("reserve "+what, err, true)
		}
		b.want(what+" of another key", b.hold("", dipwell.Take{Limit: take.Limit, Plan: take.Plan, Key: "other", Cost: 1}), false)
		for range 3 {
			settled[take.Key]++
			if _, err := b.l.Settle(t.Context(), fmt.Sprint(take.Key, settled[take.Key])); err != nil {
				t.Fatal(err)
			}
		}
		full(false)
		b.want(what+" after three were settled", b.hold("", take), false)
		b.want(what+" after three were settled", b.hold("", take), false)
		b.want(what, b.hold("", take), true)
		full(true)
	}
}

// A key has at most 4,096 reservations that wait.
func TestReservationsAreBounded(t *testing.T) {
	t.Parallel()
	for name, pool := range map[string]func(testing.TB) *pgxpool.Pool{"functions": newPool, "portable": portablePool} {
		t.Run(name, func(t *testing.T) {
			b := openBounded(t, pool(t))
			fill := `insert into dipwell.reservations (id, limit_id, key, units, unit, due, part_due, number, mark, slack, rest, parts)
				select gen_random_uuid(), l.id, 'k', 1, 1, 8e15::bigint, 8e15::bigint, i, 1, 0, false, 1 from generate_series(1, 4095) i, dipwell.limits l where l.name = 'n'`
			if name == "portable" {
				fill = `insert into dipwell.records (limit_id, key, mark, number, hold, due, record)
					select l.id, 'k', 1, i, '', 8e15::bigint, format('{"Mark":1,"Number":%s,"Units":1,"Unit":1,"Slack":0,"Due":8000000000000000,"Ends":8000000000000000}', i) from generate_series(1, 4095) i, dipwell.limits l where l.name = 'n'`
			}
			must(t, b.pool, fill)
			d, err := b.l.Reserve(t.Context(), "n", "k", 1_000_001)
			b.want("the last one", err, false)
			_, err = b.l.Reserve(t.Context(), "n", "k", 1)
			b.want("one more", err, true)
			if err := b.l.Cancel(t.Context(), d.Reservation); err != nil {
				t.Fatal(err)
			}
			b.want("a hold", b.hold("", dipwell.Take{Limit: "n", Key: "k", Cost: 1}), false)
		})
	}
}

// So it is with the portable statements.
func TestPortableRecordsAreBounded(t *testing.T) {
	t.Parallel()
	b := openBounded(t, portablePool(t))
	for number, key := range []string{"free", "paid"} { // parts that took nothing have number 0
		must(t, b.pool, fmt.Sprintf(`insert into dipwell.records (limit_id, key, mark, number, hold, due, record)
			select l.id, '%[1]s', %[2]d * i, %[2]d, 'h' || i, 8e15::bigint, format('{"Mark":%%s,"Number":1,"Units":1,"Unit":1,"Slack":-1,"Ends":9007199254740991,"Hold":"h%%s","Expires":8000000000000000}', i, i)
			from generate_series(1, 9999) i, dipwell.limits l where l.name = 'n'`, key, number))
		for _, plan := range []string{"free", ""} {
			take := dipwell.Take{Limit: "n", Plan: plan, Key: key, Cost: 1}
			b.want(key, b.hold(key+plan, take), false)
			b.want(key, b.hold("", take), true)
			if _, err := b.l.Settle(t.Context(), key+plan); err != nil {
				t.Fatal(err)
			}
		}
		_, err := b.l.Reserve(t.Context(), "n", key, 1_000_001)
		b.want("reserve", err, false)
		_, err = b.l.Reserve(t.Context(), "n", key, 1)
		b.want("reserve", err, true)
	}
}

// What nothing was taken by leaves no row in buckets, and its record goes like any other's.
func TestFreeHoldsAreForgotten(t *testing.T) {
	t.Parallel()
	for table, open := range map[string]func(testing.TB) *pgxpool.Pool{"hold_parts": newPool, "holds": portablePool} {
		t.Run(table, func(t *testing.T) {
			now, db := int64(1_800_000_000_000_000), open(t)
			s := newStore(t, db, pgstore.Config{Clock: func() int64 { return now }, Poll: -1})
			l, err := dipwell.New(s, boundLimits...)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 40 {
				d, err := l.Hold(t.Context(), time.Minute, fmt.Sprint("h", i), dipwell.Take{Limit: "n", Plan: "free", Key: "k", Cost: 1})
				if err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
				if i%2 == 0 {
					if _, err := l.Settle(t.Context(), d.Hold); err != nil {
						t.Fatal(err)
					}
				}
			}
			now += 2 * time.Minute.Microseconds()
			if _, err := store.AbilitiesOf(s).Sweep(t.Context(), 1000); err != nil {
				t.Fatal(err)
			}
			for _, table := range []string{"buckets", "reservations", table} {
				var n int
				if err := db.QueryRow(t.Context(), "select count(*) from dipwell."+table).Scan(&n); err != nil || n > 0 {
					t.Errorf("%d rows in %s, %v", n, table, err)
				}
			}
		})
	}
}

// A full row stays while holds of its key live, and so does not hide them from the bound.
func TestHoldsOfAFullRow(t *testing.T) {
	pool := newPool(t)
	must(t, pool, "select dipwell.define('h', 100000, interval '1 second', burst => 100000)")
	hold := "do $$ begin for i in 1..%d loop perform dipwell.hold('h', 'k', 1, interval '1 hour'); commit; end loop; end $$"
	must(t, pool, fmt.Sprintf(hold, 9990))
	must(t, pool, "select dipwell.take('h', 'without', 1)")
	var keys []string
	eventually(t, "the full row without holds is swept", func() bool {
		must(t, pool, "select dipwell.sweep(100000)")
		if err := pool.QueryRow(t.Context(), "select array(select key from dipwell.buckets where key <> '')").Scan(&keys); err != nil {
			t.Fatal(err)
		}
		return !slices.Contains(keys, "without")
	})
	if !slices.Contains(keys, "k") {
		t.Error("the row with live holds was swept")
	}
	must(t, pool, "select dipwell.take('h', 'k', 1)")
	if _, err := pool.Exec(t.Context(), fmt.Sprintf(hold, 11)); err == nil || !strings.Contains(err.Error(), "10000 live holds") {
		t.Error(err)
	}
}
