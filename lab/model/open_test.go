package model

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/filestore"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/procs"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	os.Exit(pgtest.Main(inner(func() int { return redistest.Main(m) })))
}

type inner func() int

func (r inner) Run() int { return r() }

// silent drops the client's log lines about connections that end with the tests.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// An opener opens a store whose clock is now.
type opener func(t testing.TB, now func() int64) store.Store

func openMemory(t testing.TB, now func() int64) store.Store {
	s, err := memstore.New(memstore.Config{Clock: now})
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

func openFile(t testing.TB, now func() int64) store.Store {
	s, err := filestore.Open(filepath.Join(procs.MemoryDir(t), "dipwell.db"), filestore.Config{Clock: now})
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

// newReopened has a file that each sweep closes and opens again.
func newReopened(t testing.TB) *inGo {
	path := filepath.Join(procs.MemoryDir(t), "dipwell.db")
	var s *filestore.Store
	var now func() int64
	open := func() (err error) {
		s, err = filestore.Open(path, filestore.Config{Clock: now})
		return err
	}
	g := newInGo(t, func(t testing.TB, clock func() int64) store.Store {
		now = clock
		ok(t, open())
		t.Cleanup(func() { ok(t, s.Close()) })
		return s
	})
	g.reopen = func() (store.Store, error) {
		if err := s.Close(); err != nil {
			return nil, err
		}
		err := open()
		return s, err
	}
	return g
}

func openPostgres(t testing.TB, now func() int64) store.Store {
	return postgres(t, database(t, "model", pgstore.MigrateOptions{Tables: "unlogged"}, ""), now)
}

func openPortable(t testing.TB, now func() int64) store.Store {
	return postgres(t, database(t, "modelportable", pgstore.MigrateOptions{Engine: "Portable"}, ""), now)
}

func postgres(t testing.TB, pool *pgxpool.Pool, now func() int64) store.Store {
	s, err := pgstore.New(t.Context(), pool, pgstore.Config{Clock: now, Poll: -1})
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

// database is a database with the schema, after another statement.
func database(t testing.TB, template string, o pgstore.MigrateOptions, then string) *pgxpool.Pool {
	ctx := context.Background()
	dsn := pgtest.Database(t, template, func(dsn string) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		if _, err = pgstore.Migrate(ctx, conn, o); err != nil || then == "" {
			return err
		}
		_, err = conn.Exec(ctx, then)
		return err
	})
	pool, err := pgxpool.New(ctx, dsn)
	ok(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// patience is for busy machines.
const patience = "?timeout=1m&dial_timeout=1m"

func openRedis(t testing.TB, now func() int64) store.Store {
	return redisAt(t, redistest.Shared(t).URL()+patience, now)
}

// openCluster has all buckets in one slot, since calls of several slots are refused.
func openCluster(t testing.TB, now func() int64) store.Store {
	return redisAt(t, redistest.SharedCluster(t).URL()+patience+"&hash_tag=all", now)
}

var prefixes atomic.Int64

func redisAt(t testing.TB, url string, now func() int64) store.Store {
	db, c, err := redisstore.Client(url, redisstore.Config{Clock: now, Poll: -1, Prefix: fmt.Sprint("model", prefixes.Add(1))})
	ok(t, err)
	t.Cleanup(func() { ok(t, db.Close()) })
	s, err := redisstore.New(t.Context(), db, c)
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
