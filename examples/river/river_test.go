package river_test

import (
	"context"
	"maps"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	limited "github.com/dipwell/dipwell/examples/river"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// A Mail is a job. The limit is for each tenant.
type Mail struct {
	Tenant string `json:"tenant"`
}

func (Mail) Kind() string { return "mail" }

// worker counts the mails of each tenant.
type worker struct {
	river.WorkerDefaults[Mail]
	done chan string
}

func (w *worker) Work(_ context.Context, job *river.Job[Mail]) error {
	w.done <- job.Args.Tenant
	return nil
}

// newQueue returns a database with River, a limit "mail" of three for each tenant, and
// the jobs of three tenants, and a client that works them until the test ends.
func newQueue(t *testing.T, jobs map[string]int) (*pgxpool.Pool, <-chan string) {
	t.Helper()
	ctx := t.Context()
	db, err := pgxpool.New(ctx, pgtest.Database(t, "river", func(string) error { return nil }))
	must(t, err)
	t.Cleanup(db.Close)
	_, err = pgstore.Migrate(ctx, db, pgstore.MigrateOptions{})
	must(t, err)
	migrator, err := rivermigrate.New(riverpgxv5.New(db), nil)
	must(t, err)
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	must(t, err)
	_, err = db.Exec(ctx, `select dipwell.define('mail', rate => 1, per => interval '1 hour', burst => 3)`)
	must(t, err)

	w := &worker{done: make(chan string, 100)}
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(riverpgxv5.New(db), &river.Config{
		Workers:           workers,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 5}},
		FetchCooldown:     10 * time.Millisecond,
		FetchPollInterval: 10 * time.Millisecond,
	})
	must(t, err)
	for tenant, n := range jobs {
		for range n {
			_, err = client.Insert(ctx, Mail{tenant}, &river.InsertOpts{Pending: true}) // waits for Admit
			must(t, err)
		}
	}
	must(t, client.Start(context.Background()))
	t.Cleanup(func() {
		if err := client.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return db, w.done
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Each tenant's mails start as its limit allows, whatever waits for others.
func TestAdmit(t *testing.T) {
	db, done := newQueue(t, map[string]int{"acme": 10, "bee": 2, "cee": 5})
	var wg sync.WaitGroup
	var total int64
	var mu sync.Mutex
	for range 4 { // as in several processes
		wg.Go(func() {
			n, err := limited.Admit(t.Context(), db, "mail", "mail")
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			total += n
		})
	}
	wg.Wait()
	want := map[string]int{"acme": 3, "bee": 2, "cee": 3}
	if total != 8 {
		t.Fatalf("%d jobs were admitted, want 8", total)
	}
	got := map[string]int{}
	for range total {
		got[<-done]++
	}
	if !maps.Equal(got, want) {
		t.Errorf("worked: %v, want %v", got, want)
	}
	if n, err := limited.Admit(t.Context(), db, "mail", "mail"); n != 0 || err != nil {
		t.Errorf("%d more were admitted: %v", n, err)
	}
	wantPending(t, db, map[string]int{"acme": 7, "cee": 2})
	if free := remaining(t, db, "bee"); free != 1 {
		t.Errorf("bee has %d tokens left, want 1: a token was taken without a job", free)
	}
	_, err := db.Exec(t.Context(), `select dipwell.reset('mail', 'cee')`)
	must(t, err)
	if n, err := limited.Admit(t.Context(), db, "mail", "mail"); n != 2 || err != nil {
		t.Errorf("after a reset %d were admitted, want 2: %v", n, err)
	}
	wantPending(t, db, map[string]int{"acme": 7})
}

// Keys that are refused do not stand in the way of others, however many they are.
func TestAdmitManyKeys(t *testing.T) {
	db, done := newQueue(t, map[string]int{"zed": 1})
	_, err := db.Exec(t.Context(), `
		insert into river_job (state, kind, max_attempts, args)
		select 'pending', 'mail', 1, jsonb_build_object('tenant', 'busy' || n) from generate_series(1, 2100) n`)
	must(t, err)
	_, err = db.Exec(t.Context(), `select dipwell.take('mail', 'busy' || n, 3) from generate_series(1, 2100) n`)
	must(t, err)
	if n, err := limited.Admit(t.Context(), db, "mail", "mail"); n != 1 || err != nil {
		t.Fatalf("%d were admitted, want 1: %v", n, err)
	}
	if got := <-done; got != "zed" {
		t.Errorf("a job of %s was worked", got)
	}
}

// An unknown limit is an error, and starts nothing.
func TestAdmitUnknownLimit(t *testing.T) {
	db, _ := newQueue(t, map[string]int{"acme": 2})
	if n, err := limited.Admit(t.Context(), db, "mial", "mail"); n != 0 || err == nil {
		t.Errorf("%d were admitted: %v", n, err)
	}
	wantPending(t, db, map[string]int{"acme": 2})
}

func wantPending(t *testing.T, db *pgxpool.Pool, want map[string]int) {
	t.Helper()
	rows, err := db.Query(t.Context(), `select args->>'tenant' from river_job where state = 'pending'`)
	must(t, err)
	tenants, err := pgx.CollectRows(rows, pgx.RowTo[string])
	must(t, err)
	got := map[string]int{}
	for _, tenant := range tenants {
		got[tenant]++
	}
	if !maps.Equal(got, want) {
		t.Errorf("pending: %v, want %v", got, want)
	}
}

func remaining(t *testing.T, db *pgxpool.Pool, key string) (n int64) {
	t.Helper()
	must(t, db.QueryRow(t.Context(), `select remaining from dipwell.check('mail', $1, 0)`, key).Scan(&n))
	return n
}
