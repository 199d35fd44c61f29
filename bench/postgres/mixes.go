package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/jackc/pgx/v5"
)

func init() {
	register("fresh", (*bench).fresh)
	register("refusals", (*bench).refusals)
	register("zipf", (*bench).zipf)
}

// fresh measures calls that are each the first of their key.
func (b *bench) fresh(ctx context.Context) error {
	fmt.Fprint(&b.out, "## Keys seen for the first time, single decisions\n\nEach call writes a row. The tables grow by what they take; nobody has rows for tomorrow's keys, so design (a), which needs them, is not here.\n\n")
	return b.eachDurability(ctx, func(p pair) error {
		for _, clients := range []int{1, 8, 32} {
			title := plural(clients, "client") + ", " + p.durability
			cs := []contender{p.take(), p.proc(), p.tx(), p.counter(), p.counterPGX()}
			fs, err := b.rounds(ctx, "fresh, "+title, load.Load{Clients: clients, Draw: load.Fresh}, fromGo, cs...)
			if err != nil {
				return err
			}
			b.compare(title, fs, names(cs), []string{takeName}, target{over: counterName, ratio: 0.75})
		}
		return b.freshInSQL(ctx, p)
	})
}

// freshInSQL measures first calls of keys with the SQL function, compared with
// a bare SQL function.
func (b *bench) freshInSQL(ctx context.Context, p pair) error {
	take := contender{name: sqlTake, script: "dipwell_fresh.pgbench", database: p.schema.dsn, ours: true}
	function := contender{name: upsertFunctionName, script: "counter_function_fresh.pgbench", database: p.rivals.dsn}
	bare := contender{name: counterName, script: "counter_fresh.pgbench", database: p.rivals.dsn}
	for _, clients := range []int{1, 8, 32} {
		title, cs := plural(clients, "client")+", "+p.durability+", in SQL", []contender{take, function, bare}
		fs, err := b.rounds(ctx, "fresh, "+title, load.Load{Clients: clients, Keys: b.keys}, b.pgbench, cs...)
		if err != nil {
			return err
		}
		b.compare(title, fs, names(cs), []string{take.name}, target{over: upsertFunctionName, ratio: 0.75})
	}
	return nil
}

const (
	upsertFunctionName = "bare counter upsert in a PL/pgSQL function"

	stillName       = "(a) without its refill"
	conditionalName = "bare conditional update"
	refusedShare    = 0.9
)

// refusals measures calls of which nine in ten are on empty buckets.
func (b *bench) refusals(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## 90 %% refusals, single decisions, %d keys and as many empty ones\n\n\"%s\" has nothing to give back, which spares it its work. \"%s\" counts to a limit and updates nothing beyond.\n\n", b.keys, stillName, conditionalName)
	return b.eachDurability(ctx, func(p pair) error {
		if err := p.empty(ctx, b.keys); err != nil {
			return err
		}
		for _, clients := range []int{1, 8, 32} {
			title := plural(clients, "client") + ", " + p.durability
			cs := []contender{p.mixed(), p.still(), p.procRefusing(), p.tx(), p.conditional()}
			fs, err := b.rounds(ctx, "refusals, "+title, load.Load{Clients: clients, Draw: load.Refused(refusedShare, b.keys)}, fromGo, cs...)
			if err != nil {
				return err
			}
			if err := refusedAsMany(fs); err != nil {
				return err
			}
			b.compare(title, fs, names(cs), []string{takeName})
		}
		return nil
	})
}

// refusedAsMany checks that every contender refused the intended share of
// calls.
func refusedAsMany(fs map[string]*figures) error {
	for name, f := range fs {
		if share := float64(f.refused) / float64(f.decisions); f.decisions > 1000 && (share < refusedShare-0.05 || share > refusedShare+0.05) {
			return fmt.Errorf("%s refused %.2f of its calls", name, share)
		}
	}
	return nil
}

// mixed takes from the drained limit for keys with the prefix Gone.
func (w *schema) mixed() contender {
	c := w.take()
	c.open = w.onConn(func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		limit := apiLimit
		if user, ok := strings.CutPrefix(key, load.Gone); ok {
			limit, key = drainedLimit, user
		}
		d, err := l.Take(ctx, limit, key, 1)
		return d.Allowed, err
	})
	return c
}

// empty adds rows to the rivals' tables whose buckets stay empty.
func (r rivals) empty(ctx context.Context, keys int) error {
	return withConn(ctx, r.dsn, func(c *conn) error {
		_, err := c.Exec(ctx, strings.ReplaceAll(sqlFile("gone.sql"), "$1", fmt.Sprint(keys-1))).ReadAll()
		return err
	})
}

func (r rivals) still() contender {
	c := r.cron()
	c.name, c.during = stillName, nil
	return c
}

func (r rivals) conditional() contender {
	return contender{name: conditionalName, open: r.oneStatement(sqlFile("counter_conditional.sql"), "")}
}

// procRefusing is design (b) with a rate of 0 for empty buckets, because its
// caller passes the rate.
func (r rivals) procRefusing() contender {
	c := r.proc()
	c.open = func(ctx context.Context) (load.Session, error) {
		s, err := r.oneStatement(sqlFile("proc_take.sql"), serializable)(ctx)
		if err != nil {
			return s, err
		}
		none, err := r.oneStatement("select proc.take($1, 0, 1)", serializable)(ctx)
		if err != nil {
			s.Close()
			return s, err
		}
		return load.Session{Close: func() { s.Close(); none.Close() }, Take: func(ctx context.Context, key string) (bool, error) {
			if strings.HasPrefix(key, load.Gone) {
				return none.Take(ctx, key)
			}
			return s.Take(ctx, key)
		}}, nil
	}
	return c
}

const manyKeys = 1_000_000

// zipf measures calls in which few keys get most calls, and many keys are new.
func (b *bench) zipf(ctx context.Context) error {
	n := manyKeys
	if b.quick {
		n /= 100
	}
	fmt.Fprintf(&b.out, "## Zipf(1.1) over %d keys\n\nRows are made as keys are seen, so design (a), which needs them, is not here. \"%s\" runs coalesce over %d lanes; the others are single decisions, a connection a client.\n\n", n, coalescedName, b.lanes)
	load.NameKeys(n)
	return b.eachDurability(ctx, func(p pair) error {
		for _, clients := range []int{1, 8, 32} {
			if err := b.zipfAt(ctx, p, clients, n); err != nil {
				return err
			}
		}
		return b.zipfCoalesced(ctx, p, n)
	})
}

func (b *bench) zipfAt(ctx context.Context, p pair, clients, n int) error {
	title := plural(clients, "client") + ", " + p.durability
	cs := []contender{p.take(), p.proc(), p.tx(), p.counter(), p.counterPGX()}
	fs, err := b.rounds(ctx, "zipf, "+title, load.Load{Clients: clients, Draw: load.Zipf(1.1, n)}, fromGo, cs...)
	if err == nil {
		b.compare(title, fs, names(cs), []string{takeName})
	}
	return err
}

// zipfCoalesced gives the rivals as many connections as in the scenario of single decisions.
func (b *bench) zipfCoalesced(ctx context.Context, p pair, n int) error {
	cs := []contender{p.coalesced(), p.take(), p.proc(), p.counter()}
	for i := range cs[1:] {
		cs[1+i].clients = poolConns
	}
	title := "512 goroutines, " + p.durability
	fs, err := b.rounds(ctx, "zipf, "+title, load.Load{Clients: 512, Draw: load.Zipf(1.1, n)}, fromGo, cs...)
	if err == nil {
		b.compare(title+", the others from 32", fs, names(cs), []string{coalescedName})
	}
	return err
}
