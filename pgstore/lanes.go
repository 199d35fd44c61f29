package pgstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/store"
)

// lockTimeout is the name of the setting that bounds a session's waits for locks. A URL
// may set it for the lanes; 0 means no bound and no quarantine.
const (
	lockTimeout = "lock_timeout"
	laneWait    = 10 * time.Millisecond // how long a lane waits for a row lock that another transaction holds
	sortWait    = 2 * time.Millisecond  // how long the sorter waits, after lanes have already waited for laneWait
)

// openLanes opens a pool of one connection for each of n lanes, and two more that
// look after rows which other transactions have locked. The connections are
// opened when they are needed. In the URL of Open, pool_max_conns is the largest
// number of lanes, and lock_timeout is how long lanes wait for a lock. If a
// program passes its own pool, these settings are for its own transactions.
func (s *Store) openLanes(_ context.Context, n int) (store.Lanes, error) {
	config := s.db.(*pgxpool.Pool).Config()
	config.MinConns, config.MinIdleConns = 0, 0
	wait := laneWait
	if s.owned == nil {
		boundClose(config)
	} else {
		var err error
		if wait, err = lockWaitOf(config); err != nil {
			return store.Lanes{}, err
		}
		n = lanesOf(config.ConnString(), n)
	}
	p := &lanePools{pooler: pooler{report: s.report}}
	l := store.Lanes{LockWait: wait}
	if wait > 0 {
		l.Sorter = s.With(p.open(p.bound(config, sortWait)))
		l.Quarantine = p.quarantine(config, s).apply
		config = p.bound(config, wait)
	}
	for range n {
		l.Stores = append(l.Stores, s.lane(p.open(config)))
	}
	l.Close = func() error {
		s.lanes.Delete(p)
		p.close()
		return nil
	}
	s.lanes.Store(p, nil)
	return l, nil
}

// lane is With for a store that is a lane.
func (s *Store) lane(db DB) *Store {
	c := s.With(db)
	c.inLane = true
	return c
}

// lanesOf returns n, or pool_max_conns in the URL if that is less.
func lanesOf(url string, n int) int {
	if config, err := pgxpool.ParseConfig(url); err == nil && strings.Contains(url, "pool_max_conns") {
		return min(n, int(config.MaxConns))
	}
	return n
}

// lockWaitOf returns how long lanes wait for a lock.
func lockWaitOf(config *pgxpool.Config) (time.Duration, error) {
	text := config.ConnConfig.RuntimeParams[lockTimeout]
	if text == "" {
		return laneWait, nil
	}
	d, err := time.ParseDuration(text)
	if ms, perr := strconv.Atoi(text); perr == nil {
		d, err = time.Duration(ms)*time.Millisecond, nil
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("lock_timeout: %q is not a number of milliseconds or a time such as 50ms", text)
	}
	return d, nil
}

// lanePools holds the pools of a store's lanes.
type lanePools struct {
	pooler
	pools []*pgxpool.Pool
}

func (p *lanePools) open(config *pgxpool.Config) *pgxpool.Pool {
	pool := poolOfOne(config)
	p.pools = append(p.pools, pool)
	return pool
}

func (p *lanePools) close() {
	for _, pool := range p.pools {
		pool.Close()
	}
}

// pooler remembers that a connection pooler refuses the parameter lock_timeout, as
// PgBouncer does unless ignore_startup_parameters names it. From then on connections are
// opened without it.
type pooler struct {
	refuses atomic.Bool
	report  func(error)
}

// bound returns a config whose new connections wait at most d for a lock.
func (p *pooler) bound(config *pgxpool.Config, d time.Duration) *pgxpool.Config {
	c := config.Copy()
	c.ConnConfig.RuntimeParams[lockTimeout] = milliseconds(d)
	onError, before := c.ConnConfig.OnPgError, c.BeforeConnect
	c.ConnConfig.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Severity == "FATAL" && strings.Contains(err.Message, lockTimeout) && !p.refuses.Swap(true) {
			p.report(fmt.Errorf("%w: rows that other transactions lock delay calls of other rows; see PgBouncer in docs/reference/postgres.md", err))
		}
		return onError == nil || onError(conn, err)
	}
	c.BeforeConnect = func(ctx context.Context, cc *pgx.ConnConfig) error {
		if p.refuses.Load() {
			delete(cc.RuntimeParams, lockTimeout)
		}
		if before == nil {
			return nil
		}
		return before(ctx, cc)
	}
	return c
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// A quarantine is a store with one connection, whose lock_timeout can be changed between
// calls.
type quarantine struct {
	*Store
	pool   *pgxpool.Pool
	pooler *pooler
	waits  atomic.Int64 // lock_timeout of the connection, in ms
}

// quarantine opens the connection for calls of locked rows.
func (p *lanePools) quarantine(config *pgxpool.Config, s *Store) *quarantine {
	q := &quarantine{pooler: &p.pooler}
	c := p.bound(config, laneWait)
	after := c.AfterConnect
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		q.waits.Store(laneWait.Milliseconds())
		if after == nil {
			return nil
		}
		return after(ctx, conn)
	}
	q.pool = p.open(c)
	q.Store = s.With(q.pool)
	return q
}

// apply is Apply with a given lock_timeout, which is set on the connection if it differs.
func (q *quarantine) apply(ctx context.Context, b *store.Batch, wait time.Duration) error {
	if ms := max(wait.Milliseconds(), 1); ms != q.waits.Load() && !q.pooler.refuses.Load() {
		if _, err := q.pool.Exec(ctx, "set lock_timeout = "+strconv.FormatInt(ms, 10)); err != nil {
			return fmt.Errorf("%w: not sent and not charged: %w", store.ErrStore, err)
		}
		q.waits.Store(ms)
	}
	return q.Apply(ctx, b)
}

// connections returns the number of open connections, including those of lanes.
func (s *Store) connections() (n int32) {
	if own, ok := s.db.(*pgxpool.Pool); ok {
		n = own.Stat().TotalConns()
	}
	for _, p := range s.aside {
		n += p.Stat().TotalConns()
	}
	s.lanes.Range(func(p, _ any) bool {
		for _, pool := range p.(*lanePools).pools {
			n += pool.Stat().TotalConns()
		}
		return true
	})
	return n
}
