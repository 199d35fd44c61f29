package lockstep

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/store"
)

// rowsIn reads and writes rows, without locks.
type rowsIn interface {
	get(ctx context.Context, b bucket) (store.State, error)
	set(ctx context.Context, b bucket, s store.State) error
}

// readThenWrite is a store that reads, decides and writes. Without its lock two
// callers may read the same row.
type readThenWrite struct {
	rows rowsIn
	now  func() int64
	lock sync.Locker
}

func (s *readThenWrite) Abilities() store.Abilities {
	return store.Abilities{Now: func(context.Context) (int64, error) { return s.now(), nil }}
}

func (s *readThenWrite) Apply(ctx context.Context, b *store.Batch) error {
	for i := range b.Groups {
		b.Groups[i].Err = s.group(ctx, &b.Groups[i])
	}
	return nil
}

func (s *readThenWrite) group(ctx context.Context, g *store.Group) (err error) {
	if g.Cancel {
		return dipwell.ErrReservation // it keeps none
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	var rows [store.MaxTakes]store.State
	var write [store.MaxTakes]bool
	for i := range g.Ops {
		if rows[i], err = s.rows.get(ctx, bucketOf(&g.Ops[i])); err != nil {
			return err
		}
	}
	if err = g.Decide(s.now(), rows[:len(g.Ops)], write[:]); err != nil {
		return err
	}
	g.Reserved = false
	for i := range g.Ops {
		if write[i] {
			if err = s.rows.set(ctx, bucketOf(&g.Ops[i]), rows[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// none is a lock that does nothing.
type none struct{}

func (none) Lock()   {}
func (none) Unlock() {}

// inMemory yields after each read, to provoke races.
type inMemory struct{ rows sync.Map }

func (m *inMemory) get(_ context.Context, b bucket) (row store.State, _ error) {
	if v, known := m.rows.Load(b); known {
		row = v.(store.State)
	}
	runtime.Gosched()
	return row, nil
}

func (m *inMemory) set(_ context.Context, b bucket, s store.State) error {
	m.rows.Store(b, s)
	return nil
}

// getThenSet keeps a row as a string in Redis.
type getThenSet struct {
	db     redis.UniversalClient
	prefix string
}

func (r *getThenSet) key(b bucket) string { return r.prefix + b.limit + ":" + b.key }

func (r *getThenSet) get(ctx context.Context, b bucket) (row store.State, err error) {
	text, err := r.db.Get(ctx, r.key(b)).Result()
	if errors.Is(err, redis.Nil) {
		return row, nil
	}
	if err == nil {
		used, ts, _ := strings.Cut(text, " ")
		row.Version = 1
		if row.Used, err = strconv.ParseInt(used, 10, 64); err == nil {
			row.TS, err = strconv.ParseInt(ts, 10, 64)
		}
	}
	return row, err
}

func (r *getThenSet) set(ctx context.Context, b bucket, s store.State) error {
	return r.db.Set(ctx, r.key(b), fmt.Sprint(s.Used, " ", s.TS), 0).Err()
}

// selectThenUpdate keeps a row in PostgreSQL, each statement a transaction.
type selectThenUpdate struct {
	db interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}
}

func (p *selectThenUpdate) get(ctx context.Context, b bucket) (row store.State, err error) {
	row.Version = 1
	err = p.db.QueryRow(ctx, "select used, ts from rows where name = $1 and key = $2", b.limit, b.key).Scan(&row.Used, &row.TS)
	if errors.Is(err, pgx.ErrNoRows) {
		return store.State{}, nil
	}
	return row, err
}

func (p *selectThenUpdate) set(ctx context.Context, b bucket, s store.State) error {
	var used int64
	return p.db.QueryRow(ctx, `insert into rows values ($1, $2, $3, $4) on conflict (name, key) do update set used = excluded.used, ts = excluded.ts returning used`,
		b.limit, b.key, s.Used, s.TS).Scan(&used)
}

// TestUnlocked checks that a store without its lock fails the check, and that
// it passes with its lock.
func TestUnlocked(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) rowsIn{
		"memory": func(*testing.T) rowsIn { return new(inMemory) },
		"redis, GET then SET": func(t *testing.T) rowsIn {
			return &getThenSet{redisClient(t), fmt.Sprint("unlocked", prefixes.Add(1), ":")}
		},
		"postgres, SELECT then UPDATE": func(t *testing.T) rowsIn {
			pool := database(t)
			_, err := pool.Exec(t.Context(), "drop table if exists rows; create table rows (name text, key text, used bigint, ts bigint, primary key (name, key))")
			ok(t, err)
			return &selectThenUpdate{pool}
		},
	} {
		t.Run(name, func(t *testing.T) {
			seed := limittest.NewSeed(t)
			run := func(lock sync.Locker, rounds int) error {
				rows := open(t)
				return newRacing(t, func(_ testing.TB, now func() int64) store.Store {
					return &readThenWrite{rows, now, lock}
				}).check(withoutReservations(t.Context()), seed, rounds)
			}
			if err := run(none{}, rounds); err == nil {
				t.Errorf("without its lock it passed %d rounds with %s=%d", rounds, limittest.SeedSetting, seed)
			}
			if err := run(new(sync.Mutex), rounds/4); err != nil {
				t.Errorf("with its lock, and %s=%d: %v", limittest.SeedSetting, seed, err)
			}
		})
	}
}

// lossy is a store that sometimes returns an error of unknown outcome.
type lossy struct {
	store.Store
	mu    sync.Mutex
	count int
	apply bool // what is lost is the answer, not the call
}

func (l *lossy) Abilities() store.Abilities { return store.AbilitiesOf(l.Store) }

func (l *lossy) Apply(ctx context.Context, b *store.Batch) error {
	l.mu.Lock()
	l.count++
	lose := l.count%7 == 0
	l.mu.Unlock()
	if !lose {
		return l.Store.Apply(ctx, b)
	}
	if l.apply {
		_ = l.Store.Apply(ctx, b)
	}
	return store.ErrOutcomeUnknown
}

// TestUnknownOutcomes checks that a call of unknown outcome may have happened
// or not, and that the answers to other callers still have an order.
func TestUnknownOutcomes(t *testing.T) {
	for name, apply := range map[string]bool{"it happened": true, "it did not": false} {
		t.Run(name, func(t *testing.T) {
			r := newRacing(t, func(t testing.TB, now func() int64) store.Store {
				return &lossy{Store: openMemory(t, now), apply: apply}
			})
			r.yield = func() {} // what is lost may happen at any time: with every call beside others no order is found soon
			r.linearizable(t)
		})
	}
}
