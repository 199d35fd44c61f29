package pgstore_test

import (
	"testing"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestPartitioned checks that the table buckets can be partitioned as the page for DBAs says.
func TestPartitioned(t *testing.T) {
	t.Parallel()
	pool := connect(t, pgtest.Database(t, "dipwell_partitions", migrated))
	ctx, now := t.Context(), int64(1e15)
	must(t, pool, "select dipwell.define('api', 5, interval '1 hour'), dipwell.take('api', 'old', 2)")
	must(t, pool, `alter table dipwell.buckets rename to buckets_old;
		alter table dipwell.buckets_old drop constraint buckets_pkey;
		create table dipwell.buckets (like dipwell.buckets_old including all, primary key (limit_id, key)) partition by hash (limit_id, key);
		create table dipwell.buckets_0 partition of dipwell.buckets for values with (modulus 2, remainder 0) with (fillfactor = 50);
		create table dipwell.buckets_1 partition of dipwell.buckets for values with (modulus 2, remainder 1) with (fillfactor = 50);
		insert into dipwell.buckets select * from dipwell.buckets_old;`+
		pgstore.MigrationSQL(pgstore.MigrateOptions{From: pgstore.SchemaVersion})+"drop table dipwell.buckets_old")
	if n := number(t, pool, "select (dipwell.check('api', 'old')).remaining"); n != 3 {
		t.Errorf("%d remaining of the row that was copied, want 3", n)
	}
	s := newStore(t, pool, pgstore.Config{Poll: -1, Clock: func() int64 { return now }})
	l, err := dipwell.New(s, store.Limit{Name: "go", Rate: 5, Period: time.Hour}, store.Limit{Name: "jobs", Algorithm: store.Concurrency, Burst: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		for _, limit := range []string{"go", "jobs"} {
			if d, err := l.Hold(ctx, time.Minute, "", dipwell.Take{Limit: limit, Key: key, Cost: 2}); err != nil || !d.Allowed || d.Remaining != 3 {
				t.Errorf("%+v, %v", d, err)
			}
		}
		for _, want := range []bool{true, false} {
			if d, err := l.Take(ctx, "go", key, 3); err != nil || d.Allowed != want {
				t.Errorf("%+v, %v", d, err)
			}
		}
	}
	now += time.Hour.Microseconds()
	if n, err := s.Abilities().Sweep(ctx, 100); err != nil || n != 8 {
		t.Errorf("swept %d rows, %v", n, err)
	}
	if _, err := s.Abilities().Sweep(ctx, 100); err != nil {
		t.Error(err)
	}
	if n := number(t, pool, "select count(*) from dipwell.buckets where limit_id <> (select id from dipwell.limits where name = 'api')"); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
