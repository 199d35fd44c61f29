package main

import (
	"context"
	"fmt"
	"net/url"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

// lanes is the number of concurrent batches, as many as in the service.
const lanes = 4

// A contender makes one call for a key, and reports whether it was allowed.
type contender func(ctx context.Context, key string) (bool, error)

// bench has the running servers and the contenders that use them.
type bench struct {
	contenders   map[string]contender
	single       *dipwell.Limiter // limiter over Redis without decorators, with the other limits too
	coalesced    *dipwell.Limiter // the same limiter behind coalesce
	redis        *redis.Client
	postmaster   int
	modules      []string
	redisVersion string
	pgVersion    string
	closers      []func()
}

func (b *bench) close() {
	for i := len(b.closers) - 1; i >= 0; i-- {
		b.closers[i]()
	}
}

func (b *bench) later(f func()) { b.closers = append(b.closers, f) }

func open(ctx context.Context) (*bench, error) {
	b := &bench{contenders: map[string]contender{}}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			b.modules = append(b.modules, m.Path+"@"+m.Version)
		}
	}
	if err := b.openRedis(ctx); err != nil {
		return b, fmt.Errorf("redis: %w", err)
	}
	if err := b.openPostgres(ctx); err != nil {
		return b, fmt.Errorf("PostgreSQL: %w", err)
	}
	return b, nil
}

func (b *bench) openRedis(ctx context.Context) error {
	s, err := redistest.New()
	if err != nil {
		return err
	}
	b.later(s.Close)
	theirs := redis.NewClient(&redis.Options{Addr: s.Addr()})
	b.later(func() { _ = theirs.Close() })
	info, err := theirs.InfoMap(ctx, "server").Result()
	if err != nil {
		return err
	}
	b.redisVersion = "Redis " + info["Server"]["redis_version"]
	rate := redis_rate.NewLimiter(theirs)
	limit := redis_rate.Limit{Rate: perSecond, Burst: burst, Period: time.Second}
	none := redis_rate.Limit{Rate: 1, Burst: 1, Period: 24 * time.Hour}
	b.contenders[rivalName] = func(ctx context.Context, key string) (bool, error) {
		l := limit
		if strings.HasPrefix(key, load.Gone) {
			l = none
		}
		r, err := rate.Allow(ctx, key, l)
		return err == nil && r.Allowed == 1, err
	}
	ours := redis.NewClient(&redis.Options{Addr: s.Addr()})
	b.later(func() { _ = ours.Close() })
	b.redis = ours
	store, err := redisstore.New(ctx, ours, redisstore.Config{})
	if err != nil {
		return err
	}
	b.later(func() { _ = store.Close() })
	return b.add(store, singleName, coalescedName, same(store))
}

func (b *bench) openPostgres(ctx context.Context) error {
	s, err := pgtest.New("shared_buffers=1GB", "max_connections=100", "max_wal_size=8GB", "checkpoint_timeout=30min", "fsync=on")
	if err != nil {
		return err
	}
	b.later(func() {
		_ = s.Signal(syscall.SIGQUIT)
		s.Wait()
		s.Close()
	})
	b.postmaster = s.PID()
	dsn := fmt.Sprintf("postgres:///postgres?user=postgres&port=%d&host=%s", s.Port, url.QueryEscape(s.Dir))
	pool, err := b.pool(ctx, dsn, 4)
	if err != nil {
		return err
	}
	if err = pool.QueryRow(ctx, "show server_version").Scan(&b.pgVersion); err != nil {
		return err
	}
	if _, err = pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{Tables: "unlogged"}); err != nil {
		return err
	}
	pg, err := pgstore.New(ctx, pool, pgstore.Config{})
	if err != nil {
		return err
	}
	b.later(func() { _ = pg.Close() })
	return b.add(pg, "", postgresName, func() (store.Store, error) {
		lane, err := b.pool(ctx, dsn, 1)
		if err != nil {
			return nil, err
		}
		return pg.With(lane), nil
	})
}

func (b *bench) pool(ctx context.Context, dsn string, conns int32) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	c.MaxConns = conns
	p, err := pgxpool.NewWithConfig(ctx, c)
	if err == nil {
		b.later(p.Close)
	}
	return p, err
}

func same(s store.Store) func() (store.Store, error) {
	return func() (store.Store, error) { return s, nil }
}

// add adds a store as two contenders, directly if single is not empty and
// behind coalesce.
func (b *bench) add(s store.Store, single, coalesced string, lane func() (store.Store, error)) error {
	l, err := dipwell.New(s, limits...)
	if err != nil {
		return err
	}
	if single != "" {
		b.contenders[single] = taker(l)
		b.single = l
	}
	stores := make([]store.Store, lanes)
	for i := range stores {
		if stores[i], err = lane(); err != nil {
			return err
		}
	}
	batched, err := coalesce.New(store.Lanes{Stores: stores}, coalesce.Config{})
	if err != nil {
		return err
	}
	b.later(func() { _ = batched.Close() })
	b.contenders[coalesced] = taker(l.With(batched))
	if single != "" {
		b.coalesced = l.With(batched)
	}
	return nil
}

// taker takes one token from a key; keys with the prefix Gone use a drained limit.
func taker(l *dipwell.Limiter) contender {
	return func(ctx context.Context, key string) (bool, error) {
		limit := commonLimit
		if user, ok := strings.CutPrefix(key, load.Gone); ok {
			limit, key = drainedLimit, user
		}
		d, err := l.Take(ctx, limit, key, 1)
		return d.Allowed, err
	}
}

// serverTime returns the processor time that both servers (Redis and PostgreSQL) have used.
func (b *bench) serverTime() (time.Duration, error) {
	pg, err := cpu.Server(b.postmaster)
	if err != nil {
		return 0, err
	}
	r, err := redisTime(context.Background(), b.redis)
	return pg + r, err
}
