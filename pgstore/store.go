package pgstore

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/internal/background"
	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/store"
)

// DB is the part of a connection that a store uses: a *pgxpool.Pool,
// *pgxpool.Conn, *pgx.Conn or pgx.Tx. A connection or transaction is not safe
// for concurrent use, and neither is a store on it. A DB of another type must
// run each statement in a transaction of its own, or implement pgx.Tx.
//
// A statement that fails because of a conflict (SQLSTATE 40001 or 40P01) is tried
// up to 20 times if it is a transaction of its own, and otherwise returned as an
// error, because only the caller can start the transaction again.
type DB interface {
	// Begin begins a transaction; in a pgx.Tx it is a savepoint.
	Begin(ctx context.Context) (pgx.Tx, error)
	// Exec runs a statement, or several without arguments.
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	// Query returns the rows of a statement.
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	// QueryRow returns the first row of a statement; its Scan has the error.
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	// SendBatch sends several statements in one round trip.
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// connOf returns the connection of a DB: of a *pgx.Conn, a pgx.Tx, or one acquired from a pool.
// Any other DB has no connection.
func connOf(db DB) *pgx.Conn {
	switch db := db.(type) {
	case *pgx.Conn:
		return db
	case interface{ Conn() *pgx.Conn }:
		return db.Conn()
	}
	return nil
}

// Config has the options of a store. The zero Config is ready for use.
type Config struct {
	// Poll is the interval at which a store on a pool checks whether limits were changed
	// elsewhere, in addition to notifications (LISTEN). A longer Poll delays changes of
	// limits if notifications do not arrive, as behind a pooler. With any Poll, no row is
	// charged by two versions. Default of Poll: one second; negative: no checks and no
	// notifications, so that a change is noticed when a call meets a row of a newer version.
	Poll time.Duration

	// Lazy opens a store whose server does not answer yet. Until it does, calls
	// return ErrStore; limits that the program or its configuration file
	// defines in the meantime are kept in memory and stored later, and if one is
	// rejected then, OnError gets the error. A Lazy store connects as soon as
	// the server answers. Even with Lazy, a server with another schema version
	// is an error of New. For Lazy the DB must be a *pgxpool.Pool.
	Lazy bool

	// WaitForAccess lets a lazy store open even if the server rejects the role or the
	// database (SQLSTATE 28xxx, 3D000, 42501); it then keeps trying. It is for programs that
	// may start before their role is made; New then returns no error for a wrong password;
	// OnError gets it. Without Lazy, WaitForAccess has no effect.
	WaitForAccess bool

	// MaxConns is the largest size of the pool that Open creates. Calls that find no free
	// connection wait for one, until their context ends. New ignores MaxConns, because its
	// pool is the caller's. Default of MaxConns, also if it is 0 or negative: pool_max_conns
	// of the URL, or pgxpool's default.
	MaxConns int32

	// Sweep makes a store on a pool delete full rows in the background until
	// Close, with a small share of the time of one connection: see Sweeping in
	// docs/reference/postgres.md. Programs on one database take turns to sweep.
	// Without Sweep, rows are deleted by another program, by pg_cron or by calls
	// of Abilities.Sweep.
	Sweep bool

	// OnError is called with errors in the background: limits that cannot be
	// read again, a lost connection for notifications. Errors of calls are returned
	// to the caller and not passed to OnError. Several goroutines may call OnError
	// at once. Default of OnError: errors are dropped.
	OnError func(error)

	// Clock replaces the server's clock, in µs since the Unix epoch. Clock is for tests:
	// the clocks of several programs never agree exactly, and one that is ahead takes
	// tokens that have not come back yet. Default of Clock: the server's clock.
	Clock func() int64
}

// Store is a store.Store in PostgreSQL. It is safe for concurrent use if its DB
// is. Programs that open a store on the same database share its limits and rows; each
// needs the schema at SchemaVersion.
type Store struct {
	db         DB
	limits     *limits
	cat        *catalog.Catalog
	clock      func() int64
	overridden *overridden // definitions of overridden keys
	inLane     bool        // the store is a lane: a settle is not tried alone after a lock timeout
	heard      time.Time   // for a transaction: when it last read the limits
	report     func(error)
	lanes      *sync.Map // the *lanePools that are open
	rows       *background.Cached
	janitor    *janitor        // nil: nil if Config.Sweep is not set
	owned      *pgxpool.Pool   // the pool that Open opened, or nil
	aside      []*pgxpool.Pool // extra connections; nil: all statements use db
}

var _ store.Store = (*Store)(nil)

// New opens a store and reads the limits that the database holds. The schema must be the
// one that this program knows: otherwise the error is a *SchemaError: call Migrate. Close
// ends the background work of a store over a pool; it closes the pool only if Open made
// it.
//
// db is usually a *pgxpool.Pool. A store over a single connection or a transaction
// decides one call at a time and does nothing in the background; Config.Lazy and
// Config.Sweep are then an error. For a call inside a transaction of the caller's use
// With on a store over the pool, which already has the limits.
func New(ctx context.Context, db DB, c Config) (*Store, error) {
	return newStore(ctx, db, c, nil)
}

func newStore(ctx context.Context, db DB, c Config, side []*pgxpool.Pool) (*Store, error) {
	if db == nil {
		return nil, errors.New("pgstore: the database is nil")
	}
	if c.OnError == nil {
		c.OnError = func(error) {}
	}
	if _, ok := db.(*pgxpool.Pool); (c.Lazy || c.Sweep) && !ok {
		return nil, errors.New("a store that is lazy or sweeps needs a *pgxpool.Pool")
	}
	s := &Store{db: db, report: c.OnError, lanes: new(sync.Map), clock: c.Clock, rows: new(background.Cached), overridden: newOverridden(), aside: side}
	s.limits = newLimits(s)
	s.limits.sweeps = c.Sweep
	s.cat = s.limits.catalog(c)
	if err := s.cat.Open(ctx); err != nil {
		return nil, err
	}
	s.watch(c)
	if c.Sweep {
		s.janitor = newJanitor(s.With(s.sideDB(asideSweep)))
	}
	return s, nil
}

// With returns a store with the same limits that uses db, such as the caller's
// transaction. If that transaction rolls back, tokens that were taken are
// given back. The rows of the keys stay locked until the transaction ends.
// Close the original store, not the returned one.
//
// In this way the tokens and the work are committed together. Take the tokens last in
// the transaction, because other calls of these keys wait until it ends, and in one
// TakeAll, because two transactions that lock the same keys in different orders
// deadlock, which PostgreSQL ends with an error for one of them. After an error of the
// server the transaction is aborted, as after any failed statement.
//
//	tx, err := pool.Begin(ctx)
//	...
//	d, err := limiter.With(s.With(tx)).Take(ctx, "orders", customer, 1)
func (s *Store) With(db DB) *Store {
	c := *s
	c.db, c.owned, c.janitor, c.heard = db, nil, nil, time.Time{}
	return &c
}

// Close ends what the store does in the background, and closes the pool that
// Open made. The error is always nil.
func (s *Store) Close() error {
	if s.janitor != nil {
		s.janitor.close()
	}
	s.cat.Close()
	if s.owned != nil {
		s.owned.Close()
	}
	for _, p := range s.aside {
		p.Close()
	}
	return nil
}

// maxRounds bounds the attempts to decide without locks; after these the row is
// locked first, which always succeeds.
const maxRounds = 3

// Apply decides a batch. It always returns nil: each group has its own error, which
// wraps store.ErrStore if the server did not answer, and store.ErrOutcomeUnknown if the
// connection was lost after the statement was sent. In the common case a lone group is one
// statement. The groups of a larger batch are decided together, those of the same key as
// if one after the other.
func (s *Store) Apply(ctx context.Context, b *store.Batch) error {
	if len(b.Groups) > 1 && s.engine().hasFunctions() {
		s.decideBatch(ctx, b)
	} else {
		var locked lockedRows
		for i := range b.Groups {
			s.decideOne(ctx, &b.Groups[i], &locked)
		}
	}
	if s.autocommit() {
		s.decideUnlocked(ctx, b)
	}
	return nil
}

// decideOne decides one group, and sets its Err. decideOne does not wait for a row in locked.
func (s *Store) decideOne(ctx context.Context, g *store.Group, locked *lockedRows) {
	if g.Err = locked.err(g); g.Err != nil {
		return
	}
	if g.Err = s.attempt(ctx, g, true); g.Err != nil {
		g.Err = s.retry(ctx, s.decideStale(ctx, g, g.Err), func() error { return s.decideStale(ctx, g, s.attempt(ctx, g, true)) })
		locked.note(g)
	}
}

// decideStale decides a group again if the last attempt failed with err because a row has a
// version that this program does not know yet. decideStale reads the limits first, in the
// caller's transaction only if a limit is missing. The failed attempt has changed nothing.
func (s *Store) decideStale(ctx context.Context, g *store.Group, err error) error {
	rounds, knows := maxRounds, s.engine().hasFunctions()
	if !knows {
		rounds = maxTries
	}
	for round := 1; round < rounds && errors.Is(err, store.ErrStaleDefinition); round++ {
		if round > 1 || !knows || s.autocommit() { // otherwise the function reads the limits itself
			if err := s.loadForCall(ctx); err != nil {
				return err
			}
		}
		err = s.attempt(ctx, g, false)
	}
	return err
}

// attempt decides a group by the limits that were read last.
func (s *Store) attempt(ctx context.Context, g *store.Group, first bool) error {
	switch {
	case g.Cancel:
		return s.engine().cancel(ctx, g.ID)
	case g.Settles():
		if err := s.hear(ctx); err != nil {
			return err
		}
		return s.engine().settle(ctx, g)
	}
	var known [store.MaxTakes]*entry
	if err := s.resolve(ctx, g, known[:]); err != nil {
		return err
	}
	for i := range g.Ops {
		if err := g.Ops[i].Def.CheckVerb(g.Ops[i].Verb, g.Hold != nil); err != nil {
			return err
		}
	}
	return s.engine().group(ctx, g, known[:len(g.Ops)], first)
}

// group uses the statements of a version only in the first attempt. Later, a limit that
// changes often may have a new version again, and the function reads it under the lock. The
// function also takes from rows of limits with shards, except in the first attempt of a single
// call: in the caller's transaction, a failed statement would leave a row locked that has too
// few tokens.
func (s functions) group(ctx context.Context, g *store.Group, known []*entry, first bool) error {
	if takesShard(g) && (!first || !g.NoWait || len(g.Ops) > 1 || !known[0].plain || !s.autocommit()) {
		return s.decide(ctx, g, known)
	}
	if first && g.Hold == nil && len(g.Ops) == 1 && !g.NoWait {
		if done, err := s.decideOverridden(ctx, g, known[0]); done || err != nil {
			return err
		}
	}
	switch op := &g.Ops[0]; {
	case g.Hold != nil:
		return s.hold(ctx, g, known)
	case !first, special(g):
		return s.decide(ctx, g, known)
	case len(g.Ops) > 1:
	case op.Def.Algorithm == store.Concurrency:
		return s.decide(ctx, g, known)
	case op.Def.Rule.Every == 0:
	case op.Verb == store.VerbCheck, known[0].plain && readOnly(op):
		return s.decideRow(ctx, g, known[0])
	case known[0].plain:
		if tokens, _ := fullCost(op); tokens > 0 {
			return s.take(ctx, g, known[0])
		}
	}
	if len(s.set(ctx, []*store.Group{g})) == 0 {
		return g.Err
	}
	return s.decide(ctx, g, known)
}

func (s functions) settle(ctx context.Context, g *store.Group) error { return s.hold(ctx, g, nil) }
