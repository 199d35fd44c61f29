package main

import (
	"context"
	"fmt"
	"net/url"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/coalesce"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/redisstore"
)

// lanes is how many batches are under way at one time, as in the service.
const lanes = 4

// A house is the servers, and everybody who decides in them.
type house struct {
	contenders   map[string]func(context.Context, string) (bool, error)
	modules      []string
	redisVersion string
	pgVersion    string
	closers      []func()
}

func (h *house) close() {
	for i := len(h.closers) - 1; i >= 0; i-- {
		h.closers[i]()
	}
}

func (h *house) later(f func()) { h.closers = append(h.closers, f) }

func open(ctx context.Context) (*house, error) {
	h := &house{contenders: map[string]func(context.Context, string) (bool, error){}}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			h.modules = append(h.modules, m.Path+"@"+m.Version)
		}
	}
	if err := h.openRedis(ctx); err != nil {
		return h, fmt.Errorf("redis: %w", err)
	}
	if err := h.openPostgres(ctx); err != nil {
		return h, fmt.Errorf("PostgreSQL: %w", err)
	}
	return h, nil
}

func (h *house) openRedis(ctx context.Context) error {
	s, err := redistest.New()
	if err != nil {
		return err
	}
	h.later(s.Close)
	theirs := redis.NewClient(&redis.Options{Addr: s.Addr()})
	h.later(func() { _ = theirs.Close() })
	info, err := theirs.InfoMap(ctx, "server").Result()
	if err != nil {
		return err
	}
	h.redisVersion = "Redis " + info["Server"]["redis_version"]
	rate := redis_rate.NewLimiter(theirs)
	limit := redis_rate.Limit{Rate: perSecond, Burst: burst, Period: time.Second}
	h.contenders[rivalName] = func(ctx context.Context, key string) (bool, error) {
		r, err := rate.Allow(ctx, key, limit)
		return err == nil && r.Allowed == 1, err
	}
	ours := redis.NewClient(&redis.Options{Addr: s.Addr()})
	h.later(func() { _ = ours.Close() })
	store, err := redisstore.New(ctx, ours, redisstore.Config{})
	if err != nil {
		return err
	}
	h.later(func() { _ = store.Close() })
	return h.add(store, singleName, coalescedName, same(store))
}

func (h *house) openPostgres(ctx context.Context) error {
	s, err := pgtest.New("shared_buffers=1GB", "max_connections=100", "max_wal_size=8GB", "checkpoint_timeout=30min", "fsync=on")
	if err != nil {
		return err
	}
	h.later(func() {
		_ = s.Signal(syscall.SIGQUIT)
		s.Wait()
		s.Close()
	})
	dsn := fmt.Sprintf("postgres:///postgres?user=postgres&port=%d&host=%s", s.Port, url.QueryEscape(s.Dir))
	pool, err := h.pool(ctx, dsn, 4)
	if err != nil {
		return err
	}
	if err = pool.QueryRow(ctx, "show server_version").Scan(&h.pgVersion); err != nil {
		return err
	}
	if _, err = pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{Tables: pgstore.Unlogged}); err != nil {
		return err
	}
	store, err := pgstore.New(ctx, pool, pgstore.Config{})
	if err != nil {
		return err
	}
	h.later(store.Close)
	return h.add(store, "", postgresName, func() (dipwell.Store, error) {
		lane, err := h.pool(ctx, dsn, 1)
		if err != nil {
			return nil, err
		}
		return store.With(lane), nil
	})
}

func (h *house) pool(ctx context.Context, dsn string, conns int32) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	c.MaxConns = conns
	p, err := pgxpool.NewWithConfig(ctx, c)
	if err == nil {
		h.later(p.Close)
	}
	return p, err
}

func same(s dipwell.Store) func() (dipwell.Store, error) {
	return func() (dipwell.Store, error) { return s, nil }
}

// add adds a store as it is, where it has a name so, and behind coalesce.
func (h *house) add(store dipwell.Store, single, coalesced string, lane func() (dipwell.Store, error)) error {
	l, err := dipwell.New(store, dipwell.Limit{Name: "api", Rate: perSecond, Period: time.Second, Burst: burst})
	if err != nil {
		return err
	}
	if single != "" {
		h.contenders[single] = taker(l)
	}
	stores := make([]dipwell.Store, lanes)
	for i := range stores {
		if stores[i], err = lane(); err != nil {
			return err
		}
	}
	together, err := coalesce.New(stores, coalesce.Config{})
	if err != nil {
		return err
	}
	h.later(func() { _ = together.Close() })
	h.contenders[coalesced] = taker(l.With(together))
	return nil
}

func taker(l *dipwell.Limiter) func(context.Context, string) (bool, error) {
	return func(ctx context.Context, key string) (bool, error) {
		d, err := l.Take(ctx, "api", key, 1)
		return d.Allowed, err
	}
}
