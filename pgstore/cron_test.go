package pgstore_test

import (
	"context"
	"os"
	"testing"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

// TestCron checks that where pg_cron is installed the schema creates a job that
// sweeps, and dropping the schema removes it.
func TestCron(t *testing.T) {
	ctx := context.Background()
	var installed bool
	if err := newPool(t).QueryRow(ctx, "select exists (select from pg_available_extensions where name = 'pg_cron')").Scan(&installed); err != nil {
		t.Fatal(err)
	}
	if !installed {
		const missing = "pg_cron is not installed here (Debian: apt-get install postgresql-15-cron)"
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	// pg_cron cannot connect, so that no job sweeps if a minute ends during the
	// test.
	server := pgtest.Start(t, "fsync=off", "shared_preload_libraries=pg_cron", "cron.database_name=postgres", "cron.host=/nowhere")
	pool := connect(t, server.DSN("postgres"))
	sweeper := func(want string) {
		t.Helper()
		if c, err := pgstore.Inspect(ctx, pool); err != nil || c.SweepJob != want {
			t.Errorf("the sweep is %v, want %v; %v", c.SweepJob, want, err)
		}
	}
	must(t, pool, "create extension pg_cron")
	if err := migrated(server.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	sweeper("planned")
	must(t, pool, "select dipwell.define('fast', 1000, interval '1 second')")
	must(t, pool, "select dipwell.take('fast', 'k')")
	must(t, pool, "update dipwell.buckets set ts = ts - 3600000000") // full for an hour
	var schedule, command string
	if err := pool.QueryRow(ctx, "select schedule, command from cron.job where jobname = 'dipwell-sweep'").Scan(&schedule, &command); err != nil || schedule != "* * * * *" {
		t.Fatalf("scheduled at %q: %v", schedule, err)
	}
	var swept int
	if err := pool.QueryRow(ctx, command).Scan(&swept); err != nil || swept != 1 {
		t.Errorf("%s swept %d rows: %v", command, swept, err)
	}
	must(t, pool, "update cron.job set active = false")
	sweeper("missing")
	if err := pgstore.MigrateDown(ctx, pool); err != nil {
		t.Fatal(err)
	}
	var jobs int
	if err := pool.QueryRow(ctx, "select count(*) from cron.job").Scan(&jobs); err != nil || jobs != 0 {
		t.Errorf("%d jobs are left; %v", jobs, err)
	}
}
