package main

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/breaker"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// Bounds of what the service does to a database. A URL may say connect_timeout
// and pool_max_conns itself.
const (
	connectTimeout   = 5 * time.Second
	statementTimeout = 5 * time.Second // the longest a batch may take; a limit's own timeout comes before it
	maxLanes         = 64
	sideConns        = 2 // connections for everything else: changes of limits, pages of keys, sweeps, /readyz
)

// postgres decides in PostgreSQL: refusals that are known are answered here,
// and callers that wait ride together. Its other abilities are pgstore's own.
type postgres struct {
	*pgstore.Store
	front dipwell.Store // denycache, or breaker
	guard *breaker.Store
	tally

	together *coalesce.Store
	janitor  *pgstore.Janitor
	side     *pgxpool.Pool
	lanes    []*pgxpool.Pool // and those of the sorter and the quarantine
	batches  int             // lanes with a queue
	close    []func()        // in the order of opening
}

var _ dipwell.Store = (*postgres)(nil)

// Apply decides through the decorators, not past them.
func (p *postgres) Apply(ctx context.Context, b *store.Batch) error { return p.front.Apply(ctx, b) }

// Close ends everything in reverse order.
func (p *postgres) Close() error {
	for i := len(p.close) - 1; i >= 0; i-- {
		p.close[i]()
	}
	return nil
}

// openPostgres opens a store for a client, which asks once, or for a service.
func openPostgres(ctx context.Context, url string, o storeOptions) (dipwell.Store, error) {
	config, err := poolConfig(url)
	if err != nil {
		return nil, err
	}
	if o.once {
		return openOnce(ctx, config)
	}
	p := &postgres{}
	if err = p.open(ctx, config, o); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// poolConfig reads the URL; what it leaves out gets a bound.
func poolConfig(url string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(pgstore.ConnString(url))
	if err != nil {
		return nil, fmt.Errorf("store: %w", err) // the error's own text leaves the password out
	}
	config.MinConns = 0
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "dipwell"
	}
	return config, nil
}

// clientStore is a store for one call, and its pool.
type clientStore struct {
	*pgstore.Store
	pool *pgxpool.Pool
}

func (c clientStore) Close() error {
	err := c.Store.Close()
	c.pool.Close()
	return err
}

func openOnce(ctx context.Context, config *pgxpool.Config) (dipwell.Store, error) {
	pool, err := connect(ctx, config, 1)
	if err != nil {
		return nil, err
	}
	store, err := pgstore.New(ctx, pool, pgstore.Config{Poll: -1})
	if err != nil {
		pool.Close()
		return nil, storeAt(config, err)
	}
	return clientStore{store, pool}, nil
}

// connect makes a pool; it connects when it is first asked.
func connect(ctx context.Context, config *pgxpool.Config, conns int32) (*pgxpool.Pool, error) {
	c := config.Copy()
	c.MaxConns = conns
	c.ConnConfig.DialFunc = boundClose(c.ConnConfig.DialFunc)
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return pool, nil
}

// storeAt says which database an error is about.
func storeAt(config *pgxpool.Config, err error) error {
	c := config.ConnConfig
	return fmt.Errorf("store postgres://%s:%d/%s: %w", c.Host, c.Port, c.Database, err)
}

func (p *postgres) open(ctx context.Context, config *pgxpool.Config, o storeOptions) (err error) {
	if p.side, err = connect(ctx, config, sideConns); err != nil {
		return err
	}
	p.close = append(p.close, p.side.Close)
	if p.Store, err = pgstore.New(ctx, p.side, pgstore.Config{Lazy: true, WaitForAccess: o.wait, OnError: o.report}); err != nil {
		return storeAt(config, err)
	}
	p.close = append(p.close, func() { _ = p.Store.Close() })
	if p.together, err = p.openLanes(ctx, config, o.report); err != nil {
		return err
	}
	p.close = append(p.close, func() { _ = p.together.Close() })
	if p.guard, err = newBreaker(p.together, o); err != nil {
		return err
	}
	p.close = append(p.close, func() { _ = p.guard.Close() })
	if p.front, err = withDenyCache(p.guard, o); err != nil {
		return err
	}
	p.startSweeping(o.report)
	return nil
}

// openLanes gives coalesce connections of its own: while many calls wait, a key
// always goes to the same one, so that two of them do not fight over a row. Two
// more look after rows that other programs' transactions have locked.
func (p *postgres) openLanes(ctx context.Context, config *pgxpool.Config, report func(error)) (*coalesce.Store, error) {
	p.tally.open()
	wait, err := laneWaitOf(config)
	if err != nil {
		return nil, err
	}
	n, spare := lanesOf(config)
	p.batches = n - spare
	pooler := &pooler{report: report}
	c := store.Lanes{LockWait: wait, Spare: spare, Connected: func(i int) bool { return p.lanes[len(p.lanes)-n+i].Stat().IdleConns() > 0 }}
	if wait > 0 {
		pool, err := p.lane(ctx, pooler.bound(config, sortWait))
		if err != nil {
			return nil, err
		}
		c.Sorter = &counted{p.With(pool), &p.tally}
		patient, err := p.openPatient(ctx, config, pooler)
		if err != nil {
			return nil, err
		}
		c.Quarantine = patient.ApplyWithin
		config = pooler.bound(config, wait)
	}
	for i := range n {
		if i == p.batches {
			config = config.Copy()
			config.MinConns = 1 // opened before it is needed
		}
		pool, err := p.lane(ctx, config)
		if err != nil {
			return nil, err
		}
		c.Stores = append(c.Stores, &counted{p.Lane(pool), &p.tally})
	}
	return coalesce.New(c, coalesce.Config{Timeout: statementTimeout})
}

// lane opens a pool of one connection.
func (p *postgres) lane(ctx context.Context, config *pgxpool.Config) (*pgxpool.Pool, error) {
	pool, err := connect(ctx, config, 1)
	if err != nil {
		return nil, err
	}
	p.lanes = append(p.lanes, pool)
	p.close = append(p.close, pool.Close)
	return pool, nil
}

// defaultLanes is how many batches a store has under way at one time, a
// connection each. More of them than processors only wait for each other, and
// make each batch smaller; fewer than two let one stuck batch hold up everybody.
func defaultLanes() int { return max(2, min(4, runtime.GOMAXPROCS(0))) }

// spareLanes take lone calls while the database is far from busy. Four do what
// twelve do; each is a connection that is always open.
const spareLanes = 4

// lanesOf is how many lanes there are, and how many of them are spare. The URL
// may say how many; pgxpool has a default of its own.
func lanesOf(config *pgxpool.Config) (all, spare int) {
	all = defaultLanes() + spareLanes
	if strings.Contains(config.ConnString(), "pool_max_conns") {
		all = int(min(config.MaxConns, maxLanes))
	}
	return all, max(0, all-defaultLanes())
}

// Abilities are pgstore's and those of the decorators.
func (p *postgres) Abilities() store.Abilities { return p.tally.abilities(p, p.Store, p.front) }

// connections are open ones, of all pools.
func (p *postgres) connections() (n int32) {
	for _, pool := range append(p.lanes[:len(p.lanes):len(p.lanes)], p.side) {
		n += pool.Stat().TotalConns()
	}
	return n
}
