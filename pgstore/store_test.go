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
	_ = flag.Set("test.parallel", "6") // most tests wait for the server and do not compute
	forget := changeZone()
	code := pgtest.Main(m)
	forget()
	os.Exit(code)
}

// TestStore runs the suite, in its short form unless DIPWELL_LONG=1. Each case has its own
// database.
func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, open, storetest.Options{Parallel: true, Quick: os.Getenv("DIPWELL_LONG") == ""})
}

// open returns a store on a new database with the test's clock.
func open(t testing.TB, now func() int64) store.Store {
	return newStore(t, recycledPool(t, "dipwell", migrated), pgstore.Config{Clock: now, Poll: -1})
}

func newStore(t testing.TB, db pgstore.DB, c pgstore.Config) *pgstore.Store {
	t.Helper()
	s, err := pgstore.New(context.Background(), db, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// newPool connects to a new database with the schema.
func newPool(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return connect(t, pgtest.Database(t, "dipwell", migrated))
}

// idlePools are pools on the databases of finished cases, by template.
var idlePools struct {
	sync.Mutex
	free map[string][]*pgxpool.Pool
}

// emptied deletes all that a case has stored. TRUNCATE would make new files of each table,
// and so the plans of all connections would have to be made anew.
const emptied = `do $$ declare name text; begin -- foreign keys cascade
	for name in select oid::regclass from pg_class where relnamespace = 'dipwell'::regnamespace and relkind = 'r'
		and relname not in ('migrations', 'sweep_state', case when exists (select from pg_class where relname = 'hold_parts') then '' else 'revision' end) loop
		execute 'delete from ' || name;
	end loop;
	perform setval(seqrelid, seqstart, false) from pg_sequence join pg_class on oid = seqrelid where relnamespace = 'dipwell'::regnamespace;
end $$`

// recycledPool is for the cases of the suite. Its database may be that of a
// finished case, emptied, with open connections. Tests that change the schema,
// count what the server does, or look at plans need newPool.
func recycledPool(t testing.TB, template string, prepare func(dsn string) error) *pgxpool.Pool {
	t.Helper()
	pool := freePool(template)
	if pool == nil {
		pool = connectFor(t, pgtest.Lasting(t, template, prepare))
	}
	t.Cleanup(func() {
		if t.Failed() || pool.Stat().AcquiredConns() > 0 {
			go pool.Close() // do not wait for a connection that is never returned
			return
		}
		must(t, pool, emptied)
		idlePools.Lock()
		defer idlePools.Unlock()
		if idlePools.free == nil {
			idlePools.free = map[string][]*pgxpool.Pool{}
		}
		idlePools.free[template] = append(idlePools.free[template], pool)
	})
	return pool
}

func freePool(template string) *pgxpool.Pool {
	idlePools.Lock()
	defer idlePools.Unlock()
	free := idlePools.free[template]
	if len(free) == 0 {
		return nil
	}
	idlePools.free[template] = free[:len(free)-1]
	return free[len(free)-1]
}

func connect(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	pool := connectFor(t, dsn)
	t.Cleanup(pool.Close)
	return pool
}

// connectFor is connect without closing the pool.
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

// execute runs a statement on its own connection.
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
