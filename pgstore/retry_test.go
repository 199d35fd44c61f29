package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// serializable connects to a new database with SERIALIZABLE as the default
// isolation level.
func serializable(t testing.TB, conns int32) *pgxpool.Pool {
	config, err := pgxpool.ParseConfig(pgtest.Database(t, "dipwell", migrated))
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = conns
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestSerializable checks for the exact count and no error with 8 and 64
// writers on 10 hot keys under SERIALIZABLE, whichever statement decides.
func TestSerializable(t *testing.T) {
	for _, writers := range []int{8, 64} {
		t.Run(fmt.Sprint(writers), func(t *testing.T) {
			hammer(t, newStore(t, serializable(t, int32(writers)), pgstore.Config{Poll: -1}), writers)
		})
	}
}

// hammer drains ten keys of two limits, separately and together, with many
// writers.
func hammer(t *testing.T, s *pgstore.Store, writers int) {
	const keys, burst = 10, 40
	ctx := context.Background()
	l, err := dipwell.New(s, store.Limit{Name: "one", Rate: 1, Period: 24 * time.Hour, Burst: burst},
		store.Limit{Name: "both", Rate: 1, Period: 24 * time.Hour, Burst: burst})
	if err != nil {
		t.Fatal(err)
	}
	var one, both atomic.Int64
	var wg sync.WaitGroup
	start := make(chan struct{})
	for w := range writers {
		wg.Go(func() {
			<-start
			for i := range 2 * keys * burst / writers {
				key := fmt.Sprint("k", (w+i)%keys)
				var d dipwell.Decision
				var err error
				if n := &one; i%4 > 0 {
					if d, err = l.Take(ctx, "one", key, 1); d.Allowed {
						n.Add(1)
					}
				} else if d, err = l.TakeAll(ctx, dipwell.Take{Limit: "both", Key: key, Cost: 1}, dipwell.Take{Limit: "one", Key: key, Cost: 1}); d.Allowed {
					n.Add(1)
					both.Add(1)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	close(start)
	wg.Wait()
	for limit, granted := range map[string]int64{"one": one.Load(), "both": both.Load()} {
		var left int64
		for k := range keys {
			d, err := l.Check(ctx, limit, fmt.Sprint("k", k), 1)
			if err != nil {
				t.Fatal(err)
			}
			left += d.Remaining
		}
		if granted+left != keys*burst {
			t.Errorf("%s: %d granted and %d left of %d", limit, granted, left, keys*burst)
		}
	}
	if one.Load() < keys*burst*9/10 {
		t.Errorf("only %d granted of %d", one.Load(), keys*burst)
	}
}

// TestLocalizedErrors checks that the outcome is unknown after a server ends a
// session, in whatever language it says so (lc_messages).
func TestLocalizedErrors(t *testing.T) {
	for _, c := range []struct {
		severity, unlocalized string
		unknown               bool
	}{
		{"FATAL", "FATAL", true},
		{"ВАЖНО", "FATAL", true},
		{"致命的エラー", "PANIC", true},
		{"FATAL", "", true}, // as from a pooler
		{"ОШИБКА", "ERROR", false},
		{"ERROR", "", false},
	} {
		err := pgstore.StoreError(&pgconn.PgError{Severity: c.severity, SeverityUnlocalized: c.unlocalized, Code: "57P01"})
		if !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) != c.unknown {
			t.Errorf("%s %s: %v", c.severity, c.unlocalized, err)
		}
	}
}

// TestReadsAreRetried checks that a batch that only reads is retried on a
// conflict.
func TestReadsAreRetried(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, drained("one", 5))
	if err != nil {
		t.Fatal(err)
	}
	must(t, pool, `create sequence tried;
		create function fail() returns boolean language plpgsql as $$
		begin
			if nextval('public.tried') < 4 then -- no rollback takes it back
				raise exception 'could not serialize access' using errcode = '40001';
			end if;
			return true;
		end $$;
		alter table dipwell.buckets rename to rows;
		create view dipwell.buckets as select * from dipwell.rows;
		insert into dipwell.rows (used, ts, limit_id, version, key) select unit, 0, id, version, k from dipwell.limits, unnest('{k,l}'::text[]) k;
		create or replace view dipwell.buckets as select * from dipwell.rows where public.fail()`)
	var b store.Batch
	for _, key := range []string{"k", "l"} {
		b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: l.Limit("one"), Key: key, Verb: store.VerbCheck, Cost: 1}}})
	}
	if err := s.Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Groups {
		if g := &b.Groups[i]; g.Err != nil || !g.Allowed {
			t.Errorf("%s: %v, %v", g.Ops[0].Key, g.Allowed, g.Err)
		}
	}
}

// TestCallersTransaction checks that a conflict in the caller's transaction is
// returned at once, because only the caller can start again.
func TestCallersTransaction(t *testing.T) {
	pool := serializable(t, 4)
	ctx := context.Background()
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, store.Limit{Name: "one", Rate: 1, Period: 24 * time.Hour, Burst: 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, err = l.Take(ctx, "one", "k", 1); err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err = tx.Exec(ctx, "select from dipwell.buckets"); err != nil { // takes a snapshot
		t.Fatal(err)
	}
	if _, err = l.Take(ctx, "one", "k", 1); err != nil {
		t.Fatal(err)
	}
	_, err = l.With(s.With(tx)).Take(ctx, "one", "k", 1)
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.Code != "40001" || !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Errorf("in the caller's transaction: %v", err)
	}
	if err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := l.With(s.With(tx)).Take(ctx, "one", "k", 1)
		return err
	}); err != nil {
		t.Errorf("begun anew: %v", err)
	}
}

// TestErrorCodes checks which SQLSTATE codes are retried, and which leave the
// outcome unknown.
func TestErrorCodes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, prepare := range map[string]func(string) error{"dipwell": migrated, "portable": migratedPortable} {
		for _, c := range []struct {
			code, message string
			tries         int
			unknown       bool
		}{
			{"40001", "could not serialize access", pgstore.MaxTries, false},
			{"XX000", "Restart read required at: { read: 1 }", pgstore.MaxTries, false}, // YugabyteDB
			{"40003", "the outcome is unknown", 1, true},
			{"08007", "the outcome is unknown", 1, true},
			{"53100", "the disk is full", 1, false},
		} {
			t.Run(name+" "+c.code, func(t *testing.T) {
				t.Parallel()
				pool := connect(t, pgtest.Database(t, name, prepare))
				l, err := dipwell.New(newStore(t, pool, pgstore.Config{Poll: -1}), drained("one", 5))
				if err != nil {
					t.Fatal(err)
				}
				must(t, pool, fmt.Sprintf(`create sequence tried;
					create function fail() returns trigger language plpgsql as $$
					begin
						perform nextval('public.tried'); -- no rollback takes it back
						raise exception '%s' using errcode = '%s';
					end $$;
					create trigger fail before insert or update on dipwell.buckets for each row execute function fail()`, c.message, c.code))
				d, err := l.Take(ctx, "one", "k", 1)
				if !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) != c.unknown || d.Allowed {
					t.Errorf("%+v, %v", d, err)
				}
				var tries int
				if err := pool.QueryRow(ctx, "select last_value from tried").Scan(&tries); err != nil || tries != c.tries {
					t.Errorf("tried %d times, want %d; %v", tries, c.tries, err)
				}
				must(t, pool, "drop trigger fail on dipwell.buckets")
				if d, err := l.Take(ctx, "one", "k", 1); err != nil || d.Remaining != 4 {
					t.Errorf("afterwards: %+v, %v", d, err)
				}
			})
		}
	}
}
