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
	analyzedRows    = 100_000
	leastUnanalyzed = 0.9 // number of turns in a round
	unanalyzedTurns = 5   // in a round
)

// neverAnalyzed compares each verb without planner statistics and with them.
func (b *bench) neverAnalyzed(ctx context.Context) error {
	rows := analyzedRows
	if b.quick {
		rows /= 10
	}
	load.NameKeys(rows)
	unanalyzed, err := b.newUnanalyzed(ctx, freshDB, rows)
	if err != nil {
		return err
	}
	defer unanalyzed.close()
	analyzed, err := b.newUnanalyzed(ctx, freshToo, rows)
	if err != nil {
		return err
	}
	defer analyzed.close()
	if err := withConn(ctx, analyzed.dsn, func(c *conn) error { return c.once(ctx, "analyze") }); err != nil {
		return err
	}
	for _, w := range []*schema{unanalyzed, analyzed} {
		if err := w.readAll(ctx); err != nil {
			return err
		}
	}
	fmt.Fprintf(&b.out, "## A database that was never analyzed, beside one that was, logged\n\nEach limit has %d rows, and autovacuum is off. ANALYZE reads every page of tables of this size, and whoever reads a row first notes in it that it is committed; so both tables were read through before, and a checkpoint made. Lanes were connected while the tables were empty; calls alone have a connection that is new in each turn. The ratio is that of processor time of server and client, the median of %d pairs of turns next to each other.\n\n", rows, b.numRounds*unanalyzedTurns)
	single := func(w *schema, v verb) contender { return contender{open: w.onConn(v.call), ours: true} }
	if err := b.unanalyzedTable(ctx, "One connection", load.Load{Clients: 1, Keys: rows}, slices.Concat(verbs, sqlVerbs), single, unanalyzed, analyzed); err != nil {
		return err
	}
	shared := func(w *schema, v verb) contender { return w.sharedCall("", v.call) }
	return b.unanalyzedTable(ctx, fmt.Sprintf("Coalesced, %d goroutines", sharers), load.Load{Clients: sharers, Keys: rows, Warm: 1}, verbs, shared, unanalyzed, analyzed)
}

// readAll reads a whole table, which sets the hint bits of its rows, and
// makes a checkpoint.
func (w *schema) readAll(ctx context.Context) error {
	return withConn(ctx, w.dsn, func(c *conn) error {
		_, err := c.Exec(ctx, "select count(*) from dipwell.buckets; checkpoint").ReadAll()
		return err
	})
}

// newUnanalyzed makes logged tables without planner statistics.
func (b *bench) newUnanalyzed(ctx context.Context, database string, rows int) (*schema, error) {
	w, err := b.newSchemaVerbs(ctx, database, "logged", 0)
	if err != nil {
		return nil, err
	}
	err = withConn(ctx, w.dsn, func(c *conn) error {
		_, err := c.Exec(ctx, sqlFile("unanalyzed.sql")).ReadAll()
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

// unanalyzedTable compares the two for each verb.
func (b *bench) unanalyzedTable(ctx context.Context, title string, l load.Load, vs []verb, of func(*schema, verb) contender, unanalyzed, analyzed *schema) error {
	var rows [][]string
	var rs []report.Ratio
	for _, v := range vs {
		never, analyzed := of(unanalyzed, v), of(analyzed, v)
		never.name, analyzed.name = v.name+", never analyzed", v.name+", analyzed"
		fs, err := b.turns(ctx, unanalyzedTurns, title, l, fromGo, never, analyzed)
		if err != nil {
			return err
		}
		n, a := fs[never.name], fs[analyzed.name]
		r := a.ratio(n)
		rs = append(rs, report.Ratio{Against: v.name, Value: r})
		rows = append(rows, []string{v.name, count(n.rate()), count(a.rate()), count(n.spent()), count(a.spent()),
			report.Figure(r), fmt.Sprintf("≥ %g", leastUnanalyzed), b.reached(r >= leastUnanalyzed)})
	}
	fmt.Fprintf(&b.out, "### %s\n\n", title)
	report.Table(&b.out, []string{"", "never analyzed, /s", "analyzed, /s", "both µs", "both µs, analyzed", "analyzed ÷ never, of µs", "target", "reached"}, rows)
	report.Spread(&b.out, "Never analyzed", rs)
	return nil
}

// sqlRefused compares refusals and grants of dipwell.take, in SQL.
func (b *bench) sqlRefused(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Refused by dipwell.take, by pgbench --protocol=prepared, %d keys\n\n", b.keys)
	return b.eachDurability(ctx, func(p pair) error {
		for _, clients := range []int{1, 8, 32} {
			admitted := contender{name: sqlTake, script: "dipwell.pgbench", database: p.schema.dsn}
			refused := contender{name: sqlTake + ", refused", script: "dipwell_refused.pgbench", database: p.schema.dsn}
			cs, title := []contender{refused, admitted}, plural(clients, "client")+", "+p.durability
			fs, err := b.rounds(ctx, "refused in SQL, "+title, load.Load{Clients: clients, Keys: b.keys}, b.pgbench, cs...)
			if err != nil {
				return err
			}
			var targets []target
			if clients < 32 {
				targets = []target{{over: sqlTake, ratio: 1.2}}
			}
			b.compare(title, fs, names(cs), []string{refused.name}, targets...)
		}
		return nil
	})
}
