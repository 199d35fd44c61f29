package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
)

func init() {
	register("neveranalyzed", (*bench).neverAnalyzed)
	register("sqlrefused", (*bench).sqlRefused)
}

const (
	analyzedRows = 100_000
	leastBlind   = 0.9 // of the rate with statistics
	blindTurns   = 5   // in a round
)

// neverAnalyzed: each verb without statistics beside the same with them.
func (b *bench) neverAnalyzed(ctx context.Context) error {
	rows := analyzedRows
	if b.quick {
		rows /= 10
	}
	load.NameKeys(rows)
	blind, err := b.digBlind(ctx, freshDB, rows)
	if err != nil {
		return err
	}
	defer blind.close()
	seeing, err := b.digBlind(ctx, freshToo, rows)
	if err != nil {
		return err
	}
	defer seeing.close()
	if err := withConn(ctx, seeing.dsn, func(c *conn) error { return c.once(ctx, "analyze") }); err != nil {
		return err
	}
	for _, w := range []*well{blind, seeing} {
		if err := w.readAll(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(&b.out, "## A database that was never analyzed, beside one that was, logged\n\nEach limit has %d rows, and autovacuum is off. ANALYZE reads every page of tables of this size, and whoever reads a row first notes in it that it is committed; so both tables were read through before, and a checkpoint made. Lanes were connected while the tables were empty; calls alone have a connection that is new in each turn. The ratio is that of processor time of server and client, the median of %d pairs of turns next to each other.\n\n", rows, b.numRounds*blindTurns)
	single := func(w *well, v verb) contender { return contender{open: w.onConn(v.call), ours: true} }
	if err := b.blindTable(ctx, "One connection", load.Load{Clients: 1, Keys: rows}, slices.Concat(verbs, sqlVerbs), single, blind, seeing); err != nil {
		return err
	}
	shared := func(w *well, v verb) contender { return w.sharedCall("", v.call) }
	return b.blindTable(ctx, fmt.Sprintf("Coalesced, %d goroutines", sharers), load.Load{Clients: sharers, Keys: rows, Warm: 1}, verbs, shared, blind, seeing)
}

// readAll reads the table through, which sets the hint bits of its rows, and
// writes out what that changed.
func (w *well) readAll(ctx context.Context) error {
	return withConn(ctx, w.dsn, func(c *conn) error {
		_, err := c.Exec(ctx, "select count(*) from dipwell.buckets; checkpoint").ReadAll()
		return err
	})
}

// digBlind makes logged tables that nobody analyzes.
func (b *bench) digBlind(ctx context.Context, database string, rows int) (*well, error) {
	w, err := b.digVerbs(ctx, database, "logged", 0)
	if err != nil {
		return nil, err
	}
	err = withConn(ctx, w.dsn, func(c *conn) error {
		_, err := c.Exec(ctx, sqlFile("blind.sql")).ReadAll()
		return err
	})
	for _, limit := range []string{apiLimit, "tenant", "global", "resets"} {
		if err == nil {
			err = w.fill(ctx, limit, rows)
		}
	}
	if err != nil {
		w.close()
	}
	return w, err
}

// blindTable compares verb by verb.
func (b *bench) blindTable(ctx context.Context, title string, l load.Load, vs []verb, of func(*well, verb) contender, blind, seeing *well) error {
	var rows [][]string
	var rs []report.Ratio
	for _, v := range vs {
		never, analyzed := of(blind, v), of(seeing, v)
		never.name, analyzed.name = v.name+", never analyzed", v.name+", analyzed"
		fs, err := b.turns(ctx, blindTurns, title, l, fromGo, never, analyzed)
		if err != nil {
			return err
		}
		n, a := fs[never.name], fs[analyzed.name]
		r := a.ratio(n)
		rs = append(rs, report.Ratio{Against: v.name, Value: r})
		rows = append(rows, []string{v.name, count(n.rate()), count(a.rate()), count(n.spent()), count(a.spent()),
			report.Figure(r), fmt.Sprintf("≥ %g", leastBlind), b.reached(r >= leastBlind)})
	}
	fmt.Fprintf(&b.out, "### %s\n\n", title)
	report.Table(&b.out, []string{"", "never analyzed, /s", "analyzed, /s", "both µs", "both µs, analyzed", "analyzed ÷ never, of µs", "target", "reached"}, rows)
	report.Spread(&b.out, "Never analyzed", rs)
	return nil
}

// sqlRefused: refusals of dipwell.take beside its grants, from SQL.
func (b *bench) sqlRefused(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Refused by dipwell.take, by pgbench --protocol=prepared, %d keys\n\n", b.keys)
	return b.eachDurability(ctx, func(p pair) error {
		for _, clients := range []int{1, 8, 32} {
			admitted := contender{name: sqlTake, script: "dipwell.pgbench", database: p.well.dsn}
			refused := contender{name: sqlTake + ", refused", script: "dipwell_refused.pgbench", database: p.well.dsn}
			cs, title := []contender{refused, admitted}, plural(clients, "client")+", "+p.durability
			fs, err := b.rounds(ctx, "refused in SQL, "+title, load.Load{Clients: clients, Keys: b.keys}, b.pgbench, cs...)
			if err != nil {
				return err
			}
			var targets []target
			if clients < 32 {
				targets = []target{{sqlTake, 1.2}}
			}
			b.compare(title, fs, names(cs), []string{refused.name}, targets...)
		}
		return nil
	})
}
