package main

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/internal/breaker"
	"github.com/dipwell/dipwell/internal/coalesce"
	"github.com/dipwell/dipwell/internal/denycache"
	"github.com/dipwell/dipwell/internal/fallback"
	"github.com/dipwell/dipwell/store"
)

func init() {
	register("stack", (*bench).stacked)
	register("tail", (*bench).tail)
	register("mixed", (*bench).mixed)
}

// What the tables of the stack call its contenders.
const (
	stackName = "the stack of serve"
	aloneName = "the store alone"
)

// Settings of dipwell serve (cmd/dipwell/postgres.go and locks.go).
const (
	serveTimeout  = 5 * time.Second
	serveLaneWait = 10 * time.Millisecond
	serveSortWait = 2 * time.Millisecond
)

// A stack is what dipwell serve puts around a store in PostgreSQL.
type stack struct {
	limiter *dipwell.Limiter
	close   []func()
}

func (s *stack) Close() {
	for i := len(s.close) - 1; i >= 0; i-- {
		s.close[i]()
	}
}

// stack opens connections of its own for lanes, the sorter and the quarantine.
func (w *well) stack(ctx context.Context, lanes, spare int) (s *stack, err error) {
	s = &stack{}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	c := store.Lanes{LockWait: serveLaneWait, Spare: spare}
	sorter, err := s.pool(ctx, w.dsn, serveSortWait)
	if err != nil {
		return s, err
	}
	patient, err := s.pool(ctx, w.dsn, serveLaneWait)
	if err != nil {
		return s, err
	}
	c.Sorter, c.Quarantine = w.store.With(sorter), (&waiting{w.store.With(patient), patient}).ApplyWithin
	for range lanes {
		p, err := s.pool(ctx, w.dsn, serveLaneWait)
		if err != nil {
			return s, err
		}
		c.Stores = append(c.Stores, w.store.Lane(p))
	}
	var spares []*pgxpool.Pool
	for range spare {
		p, err := s.pool(ctx, w.dsn, serveLaneWait)
		if err != nil {
			return s, err
		}
		c.Stores, spares = append(c.Stores, w.store.Lane(p)), append(spares, p)
		if err := p.Ping(ctx); err != nil { // serve has them open before they are needed
			return s, err
		}
	}
	c.Connected = func(i int) bool { return spares[i-lanes].Stat().IdleConns() > 0 }
	together, err := coalesce.New(c, coalesce.Config{Timeout: serveTimeout})
	if err != nil {
		return s, err
	}
	s.close = append(s.close, func() { _ = together.Close() })
	return s, s.front(w, together)
}

// front puts on what answers without the database.
func (s *stack) front(w *well, together *coalesce.Store) error {
	guard, err := breaker.New(together, breaker.Config{})
	if err != nil {
		return err
	}
	s.close = append(s.close, func() { _ = guard.Close() })
	deny, err := denycache.New(guard, denycache.Config{})
	if err != nil {
		return err
	}
	local, err := fallback.New(deny, fallback.Config{})
	if err != nil {
		return err
	}
	s.close = append(s.close, func() { _ = local.Close() })
	s.limiter = w.limiter.With(local)
	return nil
}

// pool has one connection, which waits for a lock at most for so long.
func (s *stack) pool(ctx context.Context, dsn string, wait time.Duration) (*pgxpool.Pool, error) {
	c, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	c.MaxConns, c.MinConns = 1, 0
	c.ConnConfig.RuntimeParams["lock_timeout"] = strconv.FormatInt(wait.Milliseconds(), 10)
	p, err := pgxpool.NewWithConfig(ctx, c)
	if err == nil {
		s.close = append(s.close, p.Close)
	}
	return p, err
}

// waiting is the store of the quarantine.
type waiting struct {
	dipwell.Store
	pool *pgxpool.Pool
}

func (w *waiting) ApplyWithin(ctx context.Context, b *store.Batch, wait time.Duration) error {
	if _, err := w.pool.Exec(ctx, "set lock_timeout = "+strconv.FormatInt(max(wait.Milliseconds(), 1), 10)); err != nil {
		return err
	}
	return w.Apply(ctx, b)
}

// called is a contender under another name.
func called(name string, c contender) contender {
	c.name = name
	return c
}

// stackTargets are the ratios to reach: to (a) and (b), and to the bare counter.
var stackTargets = []struct {
	callers         int
	published, bare float64
	connections     []int // that the rivals may choose from
}{
	{1, 0.95, 0.85, []int{1}},
	{8, 1.1, 0.95, []int{4, 8}},
	{32, 2.5, 2, []int{8, 16, 32}},
	{512, 10, 8, []int{8, 16, 32, 64}},
}

// durable makes logged tables and a stack.
func (b *bench) durable(ctx context.Context) (p pair, s *stack, err error) {
	if p, err = b.loggedPair(ctx); err == nil {
		s, err = p.stack(ctx, serveLanes(), serveSpare)
	}
	return p, s, err
}

// serveSpare is how many spare lanes dipwell serve has.
const serveSpare = 4

// serveLanes is how many lanes dipwell serve has.
func serveLanes() int { return max(2, min(4, runtime.GOMAXPROCS(0))) }

// stacked: what dipwell serve has, beside designs with as many connections as
// they do best with, all logged.
func (b *bench) stacked(ctx context.Context) error {
	p, s, err := b.durable(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	defer s.Close()
	fmt.Fprintf(&b.out, "## The stack of `dipwell serve`, all logged\n\n")
	fmt.Fprintf(&b.out, "\"%s\" is what serve builds around a store (fallback, denycache, breaker, coalesce over %s and %d spare ones), called in the process by so many goroutines. Its rivals have as many connections as they did best with in a round of their own, and a caller for each. \"%s\" has a connection for each caller, at most 64.\n\n",
		stackName, plural(serveLanes(), "lane"), serveSpare, takeName)
	together := contender{name: stackName, open: p.well.all(s.limiter), ours: true}
	for _, t := range stackTargets {
		single := p.take()
		single.clients = min(t.callers, 64)
		cs := []contender{together, single}
		for _, rival := range []contender{p.cron(), p.proc(), p.counter()} {
			best, err := b.best(ctx, rival, t.connections)
			if err != nil {
				return err
			}
			cs = append(cs, best)
		}
		title := plural(t.callers, "caller") + ", 10,000 keys"
		fs, err := b.rounds(ctx, "stack, "+title, load.Load{Clients: t.callers, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		b.compare(title, fs, names(cs), []string{stackName}, target{cronName, t.published}, target{procName, t.published}, target{counterName, t.bare})
		b.connections(cs[2:])
	}
	single := p.take()
	single.clients = 32
	cs := []contender{together, single}
	fs, err := b.rounds(ctx, "stack, one hot key", load.Load{Clients: 512, Keys: 1}, fromGo, cs...)
	if err != nil {
		return err
	}
	b.compare("512 callers, one hot key", fs, names(cs), []string{stackName}, target{takeName, 40})
	return b.noDeadlocks(ctx, p.well)
}

// connections says how many the rivals had.
func (b *bench) connections(cs []contender) {
	var had []string
	for _, c := range cs {
		had = append(had, fmt.Sprintf("%s %d", c.name, max(c.clients, 1)))
	}
	fmt.Fprintf(&b.out, "Connections: %s.\n\n", strings.Join(had, ", "))
}

// best is a contender with the number of connections that serves it best.
func (b *bench) best(ctx context.Context, c contender, connections []int) (contender, error) {
	most := 0.0
	out := c
	for _, n := range connections {
		c.clients = n
		if len(connections) == 1 {
			return c, nil
		}
		progress("%s: %s", c.name, plural(n, "connection"))
		r, err := b.round(ctx, load.Load{Keys: b.keys, Length: b.length, Conflict: conflict}, fromGo, c)
		if err != nil {
			return c, err
		}
		if r.PerSecond > most {
			most, out = r.PerSecond, c
		}
	}
	return out, nil
}
