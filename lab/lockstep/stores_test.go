package lockstep

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/filestore"
	"github.com/dipwell/dipwell/internal/away"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/procs"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// stores lists all stores. A new store needs a line here and then runs in every
// test of this package. In the cluster all buckets share a slot, because calls
// of several keys in different slots are rejected.
var stores = []struct {
	name string
	open storetest.Open

	served bool // walks in lockstep over HTTP as well
	sweeps bool // sweeps by itself, beside calls
	alone  bool // runs the suite under each decorator alone as well
}{
	{"memstore", openMemory, true, true, true},
	{"filestore", openFile, false, true, false},
	{"filestore each", openFileEach, false, true, false},
	{"pgstore", openPostgres, true, false, false},
	{"redisstore", openRedis, false, false, false},
	{"redisstore cluster", openCluster, false, false, false},
}

// decorators are those that can be used with any store. all has them in the
// order of the service.
var decorators = []struct {
	name string
	wrap func(t testing.TB, s store.Store, now func() int64) store.Store
}{
	{"coalesce", coalesced},
	{"breaker", withBreaker},
	{"denycache", cached},
	{"fallback", withFallback},
	{"all", all},
}

func openMemory(t testing.TB, now func() int64) store.Store {
	t.Helper()
	s, err := memstore.New(memstore.Config{Clock: now})
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

func openFile(t testing.TB, now func() int64) store.Store {
	return file(t, filestore.Config{Clock: now})
}

func openFileEach(t testing.TB, now func() int64) store.Store {
	return file(t, filestore.Config{Clock: now, Every: filestore.Each})
}

func file(t testing.TB, c filestore.Config) store.Store {
	t.Helper()
	s, err := filestore.Open(filepath.Join(procs.MemoryDir(t), "dipwell.db"), c)
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

func openPostgres(t testing.TB, now func() int64) store.Store {
	return postgres(t, database(t), now)
}

func postgres(t testing.TB, pool *pgxpool.Pool, now func() int64) store.Store {
	t.Helper()
	s, err := pgstore.New(t.Context(), pool, pgstore.Config{Clock: now, Poll: -1})
	ok(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// databases are those that no test is using. A new database and connections to
// it take longer than most tests.
var databases struct {
	sync.Mutex
	free []*pgxpool.Pool
}

// database returns a database with an empty schema. Its tables are unlogged;
// pgstore's own tests use logged ones.
func database(t testing.TB) *pgxpool.Pool {
	t.Helper()
	databases.Lock()
	defer databases.Unlock()
	var pool *pgxpool.Pool
	if n := len(databases.free); n > 0 {
		pool, databases.free = databases.free[n-1], databases.free[:n-1]
	} else {
		config, err := pgxpool.ParseConfig(newDatabase(t))
		ok(t, err)
		config.MaxConns = callers + 4
		pool, err = pgxpool.NewWithConfig(context.Background(), config)
		ok(t, err)
	}
	t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), "delete from dipwell.buckets; delete from dipwell.reservations; delete from dipwell.hold_parts; delete from dipwell.key_overrides; delete from dipwell.audit; delete from dipwell.limits", pgx.QueryExecModeSimpleProtocol)
		ok(t, err)
		databases.Lock()
		defer databases.Unlock()
		databases.free = append(databases.free, pool)
	})
	return pool
}

var databaseCount atomic.Int64

func newDatabase(t testing.TB) string {
	t.Helper()
	return newDatabaseOn(t, pgtest.Shared(t))
}

func newDatabaseOn(t testing.TB, server *pgtest.Server) string {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), server.DSN("postgres"))
	ok(t, err)
	defer conn.Close(context.Background())
	name := fmt.Sprint("lockstep_", databaseCount.Add(1))
	_, err = conn.Exec(context.Background(), "create database "+name)
	ok(t, err)
	own, err := pgx.Connect(context.Background(), server.DSN(name))
	ok(t, err)
	defer own.Close(context.Background())
	_, err = pgstore.Migrate(context.Background(), own, pgstore.MigrateOptions{Tables: "unlogged"})
	ok(t, err)
	return server.DSN(name)
}

func openRedis(t testing.TB, now func() int64) store.Store {
	return redisAt(t, redisURL(t), now)
}

func openCluster(t testing.TB, now func() int64) store.Store {
	return redisAt(t, redistest.SharedCluster(t).URL()+patience+"&hash_tag=all", now)
}

var prefixes atomic.Int64

// Calls have a minute, in place of the few seconds of a service: a busy machine may need
// them.
const (
	callTimeout = time.Minute
	patience    = "?timeout=1m&dial_timeout=1m"
)

func redisURL(t testing.TB) string {
	t.Helper()
	return redistest.Shared(t).URL() + patience
}

func redisAt(t testing.TB, url string, now func() int64) store.Store {
	t.Helper()
	db, c, err := redisstore.Client(url, redisstore.Config{Clock: now, Poll: -1, Prefix: fmt.Sprint("lockstep", prefixes.Add(1))})
	ok(t, err)
	t.Cleanup(func() { ok(t, db.Close()) })
	s, err := redisstore.New(t.Context(), db, c)
	ok(t, err)
	t.Cleanup(func() { ok(t, s.Close()) })
	return s
}

func redisClient(t testing.TB) redis.UniversalClient {
	t.Helper()
	db, _, err := redisstore.Client(redisURL(t), redisstore.Config{})
	ok(t, err)
	t.Cleanup(func() { ok(t, db.Close()) })
	return db
}

func coalesced(t testing.TB, s store.Store, _ func() int64) store.Store {
	t.Helper()
	c, err := coalesce.New(store.Lanes{Stores: []store.Store{s, s, s}}, coalesce.Config{Timeout: callTimeout})
	ok(t, err)
	t.Cleanup(func() { ok(t, c.Close()) })
	return c
}

func withBreaker(t testing.TB, s store.Store, _ func() int64) store.Store {
	t.Helper()
	b := away.NewBreaker(s, away.BreakerConfig{Patience: callTimeout, Timeout: callTimeout})
	t.Cleanup(func() { ok(t, b.Close()) })
	return b
}

func cached(t testing.TB, s store.Store, now func() int64) store.Store {
	t.Helper()
	c, err := denycache.New(s, denycache.Config{Clock: now})
	ok(t, err)
	return c
}

func withFallback(t testing.TB, s store.Store, now func() int64) store.Store {
	t.Helper()
	f, err := away.NewFallback(s, away.FallbackConfig{Clock: now})
	ok(t, err)
	t.Cleanup(func() { ok(t, f.Close()) })
	return f
}

func all(t testing.TB, s store.Store, now func() int64) store.Store {
	return withFallback(t, cached(t, withBreaker(t, coalesced(t, s, now), now), now), now)
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
