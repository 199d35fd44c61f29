package main

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

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// lockTimeout is the setting of a session that bounds its waits for locks. A URL
// may give it for the lanes; 0 is without a bound and without a quarantine.
const (
	lockTimeout = "lock_timeout"
	laneWait    = 10 * time.Millisecond // of a lane for a lock that another transaction holds
	sortWait    = 2 * time.Millisecond  // of the sorter: what it waits for was held for laneWait already
)

// laneWaitOf is how long lanes wait for a lock.
func laneWaitOf(config *pgxpool.Config) (time.Duration, error) {
	text := config.ConnConfig.RuntimeParams[lockTimeout]
	if text == "" {
		return laneWait, nil
	}
	d, err := time.ParseDuration(text)
	if ms, perr := strconv.Atoi(text); perr == nil {
		d, err = time.Duration(ms)*time.Millisecond, nil
	}
	if err != nil || d < 0 {
		return 0, fmt.Errorf("store: lock_timeout: %q is not a number of milliseconds or a time such as 50ms", text)
	}
	return d, nil
}

// pooler remembers that something between this program and the database does
// not take lock_timeout, as PgBouncer unless it is told to ignore it. Then no
// session has one.
type pooler struct {
	refuses atomic.Bool
	report  func(error)
}

// bound makes new connections of a pool wait at most d for a lock.
func (p *pooler) bound(config *pgxpool.Config, d time.Duration) *pgxpool.Config {
	c := config.Copy()
	c.ConnConfig.RuntimeParams[lockTimeout] = milliseconds(d)
	heard := c.ConnConfig.OnPgError
	c.ConnConfig.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		if err.Severity == "FATAL" && strings.Contains(err.Message, lockTimeout) && !p.refuses.Swap(true) {
			p.report(fmt.Errorf("%w: rows that other transactions lock hold up other callers; see PgBouncer in docs/reference/postgres.md", err))
		}
		return heard(conn, err)
	}
	c.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
		if p.refuses.Load() {
			delete(cc.RuntimeParams, lockTimeout)
		}
		return nil
	}
	return c
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// patient is a store with one connection, which can be told how long to wait for a lock.
type patient struct {
	dipwell.Store
	pool   *pgxpool.Pool
	pooler *pooler
	waits  atomic.Int64 // ms, what the connection was told
}

// ApplyWithin tells the connection when the wait changes.
func (p *patient) ApplyWithin(ctx context.Context, b *store.Batch, wait time.Duration) error {
	if ms := max(wait.Milliseconds(), 1); ms != p.waits.Load() && !p.pooler.refuses.Load() {
		if _, err := p.pool.Exec(ctx, "set lock_timeout = "+strconv.FormatInt(ms, 10)); err != nil {
			return fmt.Errorf("%w: not sent and not charged: %w", dipwell.ErrStore, err)
		}
		p.waits.Store(ms)
	}
	return p.Apply(ctx, b)
}

// openPatient opens the connection of the quarantine.
func (p *postgres) openPatient(ctx context.Context, config *pgxpool.Config, pooler *pooler) (*patient, error) {
	out := &patient{pooler: pooler}
	c := pooler.bound(config, laneWait)
	c.AfterConnect = func(context.Context, *pgx.Conn) error {
		out.waits.Store(laneWait.Milliseconds())
		return nil
	}
	pool, err := p.lane(ctx, c)
	if err != nil {
		return nil, err
	}
	out.pool, out.Store = pool, &counted{p.With(pool), &p.tally}
	return out, nil
}
