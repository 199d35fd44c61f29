package pgstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// hookTracer is a tracer that calls a function before statements that contain a
// text.
type hookTracer struct {
	text string
	do   func()
}

func (b hookTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	if strings.Contains(q.SQL, b.text) {
		b.do()
	}
	return ctx
}

func (hookTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestCancelWhileTablesAreRewritten checks that each reservation is cancelled
// once even if VACUUM FULL moves the records between the statement that reads
// them and the one that deletes them.
func TestCancelWhileTablesAreRewritten(t *testing.T) {
	t.Parallel()
	dsn := pgtest.Database(t, "dipwell", migrated)
	pool := connect(t, dsn)
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	rewritten := 0
	config.Tracer = hookTracer{"insert into dipwell.reservations", func() {
		must(t, pool, "vacuum full dipwell.reservations")
		rewritten++
	}}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), drained("one", 10))
	if err != nil {
		t.Fatal(err)
	}
	var ids []store.Reservation
	for _, key := range []string{"gone", "k", "l"} {
		if _, err := l.Take(t.Context(), "one", key, 10); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			d, err := l.Reserve(t.Context(), "one", key, 1)
			if err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			ids = append(ids, d.Reservation)
		}
	}
	must(t, pool, "delete from dipwell.reservations where key = 'gone'; delete from dipwell.buckets where key = 'gone'")
	s := newStore(t, conn, pgstore.Config{Poll: -1})
	pgstore.ForceOptimistic(s)
	for i, want := range []error{nil, store.ErrReservation} {
		var b store.Batch
		for _, id := range []store.Reservation{ids[5], ids[8]} {
			b.Groups = append(b.Groups, store.Group{Cancel: true, ID: id})
		}
		if err := s.Apply(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		for j := range b.Groups {
			if err := b.Groups[j].Err; !errors.Is(err, want) {
				t.Errorf("cancellation %d: %v, not %v", i+1, err, want)
			}
		}
	}
	if rewritten == 0 {
		t.Error("the statement has another text")
	}
}
