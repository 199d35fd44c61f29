package pgstore_test

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/storetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// The runs of the suite have a database for each case, and wait a lot.
func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, open)
}

// open is a store on a fresh database, under the test's clock.
func open(t testing.TB, now func() int64) dipwell.Store {
	return newStore(t, newPool(t), pgstore.Config{Clock: now, Poll: -1})
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

func connect(t testing.TB, dsn string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 20
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func migrated(dsn string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = pgstore.Migrate(ctx, conn, pgstore.MigrateOptions{})
	return err
}
