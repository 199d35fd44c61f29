package pgstore_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestStatus compares dipwell.status with what dipwell.check says about the same keys, for
// limits of all kinds, also those that only Go programs define.
func TestStatus(t *testing.T) {
	t.Parallel()
	const now = 1_800_000_000_123_456
	pool := openSQL(t, func() int64 { return now }).(*sqlStore).pool
	_, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), // SQL takes from such limits, and does not define them
		dipwell.Limit{Name: "adaptive", Rate: 50, Period: time.Second, Adaptive: store.Adaptive{Floor: 5, Latency: 200 * time.Millisecond}},
		dipwell.Limit{Name: "leased", Rate: 1000, Period: time.Second, Burst: 100, Lease: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	at := func(us int64) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), "select set_config('test.now', ($1::bigint)::text, true)", now+us); err != nil {
			t.Fatal(err)
		}
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	at(0)
	exec(`select dipwell.define('bucket', 7, interval '1 minute', burst => 20, plans => '{"pro": {"rate": 90, "burst": 100}, "banned": "blocked"}');
		select dipwell.define('coarse', 1099511627776, interval '30 days');
		select dipwell.define('leaky', 7, interval '1 minute', algorithm => 'leaky_bucket', max_debt => 9);
		select dipwell.define('day', 10, interval '1 day', algorithm => 'fixed_window', start => '06:00 Europe/Rome');
		select dipwell.define('month', 10, interval '1 month', algorithm => 'fixed_window');
		select dipwell.define('grid', 2, interval '10 seconds', burst => 9, algorithm => 'interval');
		select dipwell.define('slide', 7, interval '3 seconds', algorithm => 'sliding_window');
		select dipwell.define('shards', 40, interval '1 minute', shards => 4);
		select dipwell.define('slots', burst => 5, algorithm => 'concurrency');
		select dipwell.take(l.name, 'k', case l.name when 'leaky' then 1 else 5 end) from dipwell.limits l where algorithm <> 'concurrency';
		select dipwell.take('bucket', 'j', 3), dipwell.charge('bucket', 'debt', 30);
		select dipwell.override('bucket', 'pro', plan => 'pro'), dipwell.override('bucket', 'banned', plan => 'banned'), dipwell.override('bucket', 'few', burst => 3),
			dipwell.override('bucket', 'ends', plan => 'pro', until => dipwell_internal.time_of(dipwell_internal.now_us()) + interval '1 second');
		select dipwell.take('bucket', 'pro', 60), dipwell.take('bucket', 'few', 2), dipwell.take('bucket', 'ends', 60);
		select dipwell.hold('bucket', 'held', 4, interval '1 minute'), dipwell.hold('bucket', 'expires', 4, interval '1 second');
		select dipwell.hold('slots', 'k', 2, interval '30 seconds'), dipwell.hold('slots', 'k', 1, interval '40 seconds'), dipwell.hold('slots', 'expires', 3, interval '1 second')`)
	for i, later := range []int64{0, 999_999, 1_000_000, 1_300_001, 9_000_000} {
		at(later)
		if i == 3 {
			exec(`select dipwell.define('grid', 4, interval '10 seconds', burst => 18, algorithm => 'interval', on_change => 'proportional')`)
		}
		rows, err := tx.Query(t.Context(), `select s.limit_name, coalesce(s.key, '(shared)'), s.remaining, c.remaining, dipwell_internal.micros(s.full_at - timestamptz 'epoch') - dipwell_internal.now_us(), dipwell_internal.micros(c.reset_after)
			from dipwell.status s cross join lateral dipwell.check(s.limit_name, s.key, 0) c`)
		if err != nil {
			t.Fatal(err)
		}
		var limit, key string
		var left, checked, full, reset int64
		n := 0
		if _, err = pgx.ForEachRow(rows, []any{&limit, &key, &left, &checked, &full, &reset}, func() error {
			if n++; left != checked || full != reset {
				t.Errorf("after %d µs %s %s has %d left and is full in %d µs; by check %d, %d µs", later, limit, key, left, full, checked, reset)
			}
			return nil
		}); err != nil || n < 19 {
			t.Fatalf("%d rows, %v", n, err)
		}
	}
}
