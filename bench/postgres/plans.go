package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
)

func init() { register("plans", (*bench).plans) }

// Limits of the scenario plans, besides apiLimit, which has neither plans nor overrides:
const (
	raisedLimit = "raised" // otherOverrides keys other than the measured ones have an override
	ownLimit    = "own"    // each of its keys has an override
	plansLimit  = "plans"  // it has a plan, which callers name
	manyLimit   = "many"   // manyOverrides of its keys have an override
)

const (
	otherOverrides = 100_000
	manyOverrides  = 1_000_000
	bareName       = "Limiter.Take, a database without overrides"
)

// plans compares takes from limits with plans and overrides with takes from one without.
func (b *bench) plans(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Plans and overrides, %d keys\n\n", b.keys)
	fmt.Fprintf(&b.out, "%d other keys of the limit \"%s\" have an override, every key of the limit \"%s\", and %d keys of the limit \"%s\". "+
		"Each key was taken from once before, so that it has a row, and the program remembers its override. Targets are of processor time.\n\n", otherOverrides, raisedLimit, ownLimit, manyOverrides, manyLimit)
	if err := b.onBoth(ctx, b.plansOn); err != nil {
		return err
	}
	return b.overridesInMemory(ctx)
}

func (b *bench) plansOn(ctx context.Context, w *schema, tables string) error {
	bare, err := b.newSchema(ctx, "bench_bare", tables)
	if err != nil {
		return err
	}
	defer bare.close()
	if err := b.fillPlans(ctx, w); err != nil {
		return err
	}
	if err := b.plansFromGo(ctx, w, bare, tables); err != nil {
		return err
	}
	return b.plansFromSQL(ctx, w, tables)
}

// fillPlans makes the limits with their plans and overrides.
func (b *bench) fillPlans(ctx context.Context, w *schema) error {
	return withConn(ctx, w.dsn, func(c *conn) error {
		for _, name := range []string{raisedLimit, ownLimit, plansLimit, manyLimit} {
			if err := c.once(ctx, "select dipwell.define($1, $2::bigint, interval '1 second', burst => $3::bigint)", name, fmt.Sprint(perSecond), fmt.Sprint(burst)); err != nil {
				return err
			}
		}
		if err := c.once(ctx, "select dipwell.define_plan($1, 'pro', burst => $2::bigint)", plansLimit, fmt.Sprint(burst)); err != nil {
			return err
		}
		for _, of := range []struct {
			limit, prefix string
			n             int
		}{{raisedLimit, "other:", otherOverrides}, {ownLimit, "user:", b.keys}, {manyLimit, "user:", manyOverrides}} {
			if err := c.once(ctx, "select dipwell.override($1, 'first', burst => $2::bigint)", of.limit, fmt.Sprint(burst)); err != nil {
				return err
			}
			if err := c.once(ctx, sqlFile("dipwell_overrides.sql"), of.limit, of.prefix, fmt.Sprint(of.n)); err != nil {
				return err
			}
		}
		return c.once(ctx, sqlFile("dipwell_fill.sql"), raisedLimit, fmt.Sprint(b.keys))
	})
}

func (b *bench) plansFromGo(ctx context.Context, w, bare *schema, tables string) error {
	ordinary, beside := w.take(), bare.take()
	beside.name = bareName
	take := func(name, limit, plan string) contender {
		return contender{name: name, ours: true, open: w.onConn(func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
			d, err := l.TakeAll(ctx, dipwell.Take{Limit: limit, Key: key, Cost: 1, Plan: plan})
			return d.Allowed, err
		})}
	}
	cs := []contender{ordinary, take("beside overrides", raisedLimit, ""), take("overridden", ownLimit, ""), take("by a plan", plansLimit, "pro"), beside}
	for _, of := range []dipwell.Take{{Limit: ownLimit}, {Limit: plansLimit, Plan: "pro"}, {Limit: raisedLimit}} {
		if err := b.touch(ctx, w.limiter, of, b.keys, 8); err != nil {
			return err
		}
	}
	for _, clients := range []int{1, 8} {
		title := plural(clients, "client") + ", " + tables
		fs, err := b.rounds(ctx, "plans, "+title, load.Load{Clients: clients, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		for i, ratio := range []float64{0.97, 0.9, 0.95} {
			b.compare(title+", "+cs[i+1].name, fs, names([]contender{cs[i+1], ordinary}), []string{cs[i+1].name}, spentOnLogged(tables, ordinary.name, ratio)...)
		}
		b.compare(fmt.Sprintf("%s, beside %d overrides of other limits", title, manyOverrides), fs, names([]contender{ordinary, beside}), []string{ordinary.name}, spentOnLogged(tables, beside.name, 0.97)...)
	}
	return nil
}

// spentOnLogged is onLogged for the processor time, which commits do not disturb by
// waiting for the disk.
func spentOnLogged(tables, than string, least float64) []target {
	targets := onLogged(tables, than, least)
	for i := range targets {
		targets[i].spent = true
	}
	return targets
}

// plansFromSQL measures the SQL function take.
func (b *bench) plansFromSQL(ctx context.Context, w *schema, tables string) error {
	take := func(name, script string) contender {
		return contender{name: name, script: script, database: w.dsn, ours: true}
	}
	cs := []contender{take("dipwell.take", "dipwell.pgbench"), take("overridden", "dipwell_overridden.pgbench"), take("by a plan", "dipwell_plan.pgbench")}
	for _, clients := range []int{1, 8} {
		title := plural(clients, "client") + ", " + tables
		fs, err := b.rounds(ctx, "plans in SQL, "+title, load.Load{Clients: clients, Keys: b.keys}, b.pgbench, cs...)
		if err != nil {
			return err
		}
		for _, c := range cs[1:] {
			b.compare("SQL, "+title+", "+c.name, fs, names([]contender{c, cs[0]}), []string{c.name}, spentOnLogged(tables, cs[0].name, 0.75)...)
		}
	}
	return nil
}

// overridesInMemory measures the memory of a program that has met manyOverrides keys
// with an override.
func (b *bench) overridesInMemory(ctx context.Context) error {
	const most = 64 << 20
	before := heap()
	if err := b.touch(ctx, b.fast.shared, dipwell.Take{Limit: manyLimit}, manyOverrides, 512); err != nil {
		return err
	}
	used := max(heap()-before, 0)
	fmt.Fprintf(&b.out, "### Memory\n\nA program that has taken from %d keys with an override uses %s more than before; target ≤ %s: %s\n\n",
		manyOverrides, size(used), size(most), b.reached(used <= most))
	return nil
}

// heap returns how many bytes of the heap are in use after a garbage collection.
func heap() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// touch takes a token from each of the first n keys.
func (b *bench) touch(ctx context.Context, l *dipwell.Limiter, take dipwell.Take, n, clients int) error {
	progress("limit %s: %d keys", take.Limit, n)
	defer progress("")
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			take := take
			take.Cost = 1
			for i := int(next.Add(1)) - 1; i < n && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				take.Key = load.Key(i)
				if _, err := l.TakeAll(ctx, take); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}
