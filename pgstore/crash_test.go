package pgstore_test

import (
	"context"
	"slices"
	"syscall"
	"testing"

	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestSynchronousCommitOff checks that with synchronous_commit=off a crash
// loses only what the server had answered but not yet flushed, and that no more
// than that is granted again.
func TestSynchronousCommitOff(t *testing.T) {
	t.Parallel()
	const burst, early, late = 100, 30, 20
	server := ownServer(t, "synchronous_commit=off", "wal_writer_delay=10s")
	pool := connect(t, server.DSN("postgres"))
	_, l := openURL(t, server.DSN("postgres"), drained("crash", burst))
	ctx := context.Background()
	take := func(n int) {
		t.Helper()
		for range n {
			if d, err := l.Take(ctx, "crash", "k", 1); err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
		}
	}
	take(early)
	var written string
	if err := pool.QueryRow(ctx, "select pg_current_wal_insert_lsn()::text").Scan(&written); err != nil {
		t.Fatal(err)
	}
	must(t, pool, "begin; set local synchronous_commit = on; create table flush_now (); commit") // flushes everything before it
	eventually(t, "written", func() bool {
		var done bool
		err := pool.QueryRow(ctx, "select pg_current_wal_flush_lsn() >= $1::text::pg_lsn", written).Scan(&done)
		return err == nil && done
	})
	take(late)
	if err := server.SignalAll(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	server.Wait()
	eventually(t, "started again", func() bool { return server.Start() == nil })
	eventually(t, "recovered", func() bool {
		d, err := l.Check(ctx, "crash", "k", 1)
		if err != nil || d.Source != store.SourceStore {
			return false
		}
		t.Logf("%d granted, %d of them written when the server died; %d are gone", early+late, early, burst-d.Remaining)
		if gone := burst - d.Remaining; gone < early || gone > early+late {
			t.Fatalf("%d are gone", gone)
		}
		return true
	})
}

// TestOneBackendKilled kills one process of the server, which then restarts all
// of them. Logged tables must keep everything; unlogged ones are empty
// afterwards, so that every bucket is full.
func TestOneBackendKilled(t *testing.T) {
	t.Parallel()
	const burst = 5
	for tables, left := range map[string]int64{"logged": 0, "unlogged": burst} {
		server := ownServerAs(t, pgstore.MigrateOptions{Tables: tables}, "fsync=off")
		pool := connect(t, server.DSN("postgres"))
		_, l := openURL(t, server.DSN("postgres"), drained("crash", burst))
		ctx := context.Background()
		if d, err := l.Take(ctx, "crash", "k", burst); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		var pids []int
		if err := pool.QueryRow(ctx, "select array_agg(pid order by pid = pg_backend_pid()) from pg_stat_activity where backend_type = 'client backend'").Scan(&pids); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pids[len(pids)-1], syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the server ended all backends", func() bool { // until then the store's may answer
			return !slices.ContainsFunc(pids, func(pid int) bool { return syscall.Kill(pid, 0) == nil })
		})
		eventually(t, "recovered", func() bool {
			d, err := l.Check(ctx, "crash", "k", 1)
			if err != nil || d.Source != store.SourceStore {
				return false
			}
			if d.Remaining != left {
				t.Errorf("tables %v: %d left, not %d", tables, d.Remaining, left)
			}
			return true
		})
	}
}
