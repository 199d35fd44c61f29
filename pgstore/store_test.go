package pgstore_test

import (
	"context"
	"flag"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

func TestMain(m *testing.M) {
	flag.Parse()
	_ = flag.Set("test.parallel", "6") // most tests wait for the server rather than compute
	forget := movedZone()
	code := pgtest.Main(m)
	forget()
	os.Exit(code)
}

// The runs of the suite have a database for each case, and wait a lot.
func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, open, storetest.Parallel)
}

// open is a store on a fresh database, under the test's clock.
func open(t testing.TB, now func() int64) store.Store {
	return newStore(t, usedPool(t, "dipwell", migrated), pgstore.Config{Clock: now, Poll: -1})
}

func newStore(t testing.TB, db pgstore.DB, c pgstore.Config) *pgstore.Store {
	t.Helper()
	s, err := pgstore.New(context.Background(), db, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// newPool is connected to a fresh database that holds the schema.
func newPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return connect(t, pgtest.Database(t, "dipwell", migrated))
}

// used are pools on databases of each template that earlier cases have left empty.
var used struct {
	sync.Mutex
	free map[string][]*pgxpool.Pool
}

// usedPool is for the cases of the suite: its database may be one that another
// case has had and that is empty again, and its connections are warm. Tests that
// change the schema, count what the server does, or look at plans need newPool.
func usedPool(t testing.TB, template string, prepare func(dsn string) error) *pgxpool.Pool {
	t.Helper()
	pool := freePool(template)
	if pool == nil {
		pool = connectFor(t, pgtest.Lasting(t, template, prepare))
	}
	t.Cleanup(func() {
		if t.Failed() || pool.Stat().AcquiredConns() > 0 {
			go pool.Close() // a connection that never comes back must not hold the test
			return
		}
		must(t, pool, "truncate dipwell.limits, dipwell.versions, dipwell.buckets, dipwell.reservations restart identity; update dipwell.revision set n = 0")
		used.Lock()
		defer used.Unlock()
		if used.free == nil {
			used.free = map[string][]*pgxpool.Pool{}
		}
		used.free[template] = append(used.free[template], pool)
	})
	return pool
}

func freePool(template string) *pgxpool.Pool {
	used.Lock()
	defer used.Unlock()
	free := used.free[template]
	if len(free) == 0 {
		return nil
	}
	used.free[template] = free[:len(free)-1]
	return free[len(free)-1]
}

func connect(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool := connectFor(t, dsn)
	t.Cleanup(pool.Close)
	return pool
}

// connectFor leaves the closing to its caller.
func connectFor(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(dsn, "pool_max_conns=") {
		config.MaxConns = 20
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func migrated(dsn string) error { return migratedAs(dsn, pgstore.MigrateOptions{}) }

func migratedAs(dsn string, o pgstore.MigrateOptions) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, pgstore.ConnString(dsn))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = pgstore.Migrate(ctx, conn, o)
	return err
}

// execute runs a statement on a connection of its own.
func execute(dsn, sql string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}
