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

// lanes is how many batches are under way at one time, as in the service.
const lanes = 4

// A contender makes one call about a key, and reports whether it was allowed.
type contender func(ctx context.Context, key string) (bool, error)

// A house is the servers, and everybody who decides in them.
type house struct {
	contenders   map[string]contender
	single       *dipwell.Limiter // over Redis as it is, with the other limits too
	together     *dipwell.Limiter // and behind coalesce
	redis        *redis.Client
	postmaster   int
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
	h := &house{contenders: map[string]contender{}}
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
	none := redis_rate.Limit{Rate: 1, Burst: 1, Period: 24 * time.Hour}
	h.contenders[rivalName] = func(ctx context.Context, key string) (bool, error) {
		l := limit
		if strings.HasPrefix(key, load.Gone) {
			l = none
		}
		r, err := rate.Allow(ctx, key, l)
		return err == nil && r.Allowed == 1, err
	}
	ours := redis.NewClient(&redis.Options{Addr: s.Addr()})
	h.later(func() { _ = ours.Close() })
	h.redis = ours
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
	h.postmaster = s.PID()
	dsn := fmt.Sprintf("postgres:///postgres?user=postgres&port=%d&host=%s", s.Port, url.QueryEscape(s.Dir))
	pool, err := h.pool(ctx, dsn, 4)
	if err != nil {
		return err
	}
	if err = pool.QueryRow(ctx, "show server_version").Scan(&h.pgVersion); err != nil {
		return err
	}
	if _, err = pgstore.Migrate(ctx, pool, pgstore.MigrateOptions{Tables: "unlogged"}); err != nil {
		return err
	}
	store, err := pgstore.New(ctx, pool, pgstore.Config{})
	if err != nil {
		return err
	}
	h.later(func() { _ = store.Close() })
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
func (h *house) add(s dipwell.Store, single, coalesced string, lane func() (dipwell.Store, error)) error {
	l, err := dipwell.New(s, limits...)
	if err != nil {
		return err
	}
	if single != "" {
		h.contenders[single] = taker(l)
		h.single = l
	}
	stores := make([]dipwell.Store, lanes)
	for i := range stores {
		if stores[i], err = lane(); err != nil {
			return err
		}
	}
	together, err := coalesce.New(store.Lanes{Stores: stores}, coalesce.Config{})
	if err != nil {
		return err
	}
	h.later(func() { _ = together.Close() })
	h.contenders[coalesced] = taker(l.With(together))
	if single != "" {
		h.together = l.With(together)
	}
	return nil
}

// taker takes one token; of keys that begin with Gone from a limit that is drained.
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

// serverTime is the processor time that both servers have used.
func (h *house) serverTime() (time.Duration, error) {
	pg, err := cpu.Server(h.postmaster)
	if err != nil {
		return 0, err
	}
	r, err := redisTime(context.Background(), h.redis)
	return pg + r, err
}
