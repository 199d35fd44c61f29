package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
)

func init() {
	register("growth", (*bench).growth)
	register("refill", (*bench).refillCost)
	register("rows", (*bench).manyRows)
	register("hotupdates", (*bench).hotUpdates)
}

// growth measures how large new tables become in one minute.
func (b *bench) growth(ctx context.Context) error {
	length := time.Minute
	if b.quick {
		length = 2 * time.Second
	}
	ours, err := b.newSchema(ctx, freshDB, "unlogged")
	if err != nil {
		return err
	}
	defer ours.close()
	theirs, err := b.newRivals(ctx, freshToo, "unlogged", b.keys, burst)
	if err != nil {
		return err
	}
	fmt.Fprintf(&b.out, "## Table growth after %v of 8 clients, %d keys, unlogged, autovacuum on\n\n", length, b.keys)
	var rows [][]string
	for _, g := range []struct {
		contender
		dsn, table string
	}{{ours.take(), ours.dsn, "dipwell.buckets"}, {theirs.cron(), theirs.dsn, "cron.buckets"}} {
		progress("growth: %v of %s", length, g.name)
		row, err := b.grow(ctx, g.contender, g.dsn, g.table, length)
		if err != nil {
			return err
		}
		rows = append(rows, row)
	}
	progress("")
	report.Table(&b.out, []string{"", "decisions", "before", "after", "table", "indexes", "growth", "HOT updates", "dead rows"}, rows)
	return nil
}

func (b *bench) grow(ctx context.Context, c contender, dsn, table string, length time.Duration) ([]string, error) {
	before, err := measure(ctx, dsn, table)
	if err != nil {
		return nil, err
	}
	r, err := b.round(ctx, load.Load{Clients: 8, Keys: b.keys, Length: length}, fromGo, c)
	if err != nil {
		return nil, err
	}
	after, err := measure(ctx, dsn, table)
	if err != nil {
		return nil, err
	}
	share, err := hotShare(ctx, dsn, table)
	if err != nil {
		return nil, err
	}
	dead, err := query(ctx, dsn, "select n_dead_tup from pg_stat_user_tables where relid = '"+table+"'::regclass")
	return []string{c.name, strconv.Itoa(r.Times.Count), size(before.total), size(after.total), size(after.heap), size(after.total - after.heap),
		fmt.Sprintf("× %.1f", after.total/before.total), fmt.Sprintf("%.2f %%", share), dead}, err
}

// sizes has the sizes of a table, in bytes.
type sizes struct{ total, heap float64 }

func measure(ctx context.Context, dsn, table string) (s sizes, err error) {
	err = withConn(ctx, dsn, func(c *conn) error {
		if s.total, err = c.float(ctx, "select pg_total_relation_size('"+table+"')"); err != nil {
			return err
		}
		s.heap, err = c.float(ctx, "select pg_table_size('"+table+"')")
		return err
	})
	return s, err
}

// refillRows is the number of buckets for which design (a)'s job is timed.
const refillRows = 100_000

// refillCost times the statement that design (a) runs each second, if no bucket
// is full, and how it slows calls.
func (b *bench) refillCost(ctx context.Context) error {
	rows := refillRows
	if b.quick {
		rows /= 10
	}
	load.NameKeys(rows)
	theirs, err := b.newRivals(ctx, freshToo, "unlogged", rows, burst/2) // half full, so that each row is due each time
	if err != nil {
		return err
	}
	ours, err := b.newSchemaRows(ctx, freshDB, "unlogged", rows)
	if err != nil {
		return err
	}
	defer ours.close()
	times, err := b.timeRefills(ctx, theirs)
	if err != nil {
		return err
	}
	fmt.Fprintf(&b.out, "## The refill of (a) with %d buckets, none of them full\n\n", rows)
	fmt.Fprintf(&b.out, "One refill without any other load: median %.0f ms, longest %.0f ms, and that each second. dipwell has none.\n\n", report.Median(times), longest(times))
	with, without, take := theirs.cron(), theirs.cron(), ours.take()
	without.name, without.during = "(a) without its refill: grants nothing more", nil
	cs := []contender{take, with, without}
	fs, err := b.rounds(ctx, "refill", load.Load{Clients: 8, Keys: rows}, fromGo, cs...)
	if err != nil {
		return err
	}
	b.compare(fmt.Sprintf("8 clients, %d keys", rows), fs, names(cs), []string{take.name})
	for _, c := range cs {
		fmt.Fprintf(&b.out, "- p99.9 of %s: %.1f ms\n", c.name, report.Median(fs[c.name].p999)/1e3)
	}
	fmt.Fprintln(&b.out)
	return nil
}

func (b *bench) timeRefills(ctx context.Context, r rivals) (ms []float64, err error) {
	err = withConn(ctx, r.dsn, func(c *conn) error {
		for i := range b.numRounds {
			progress("refill: %d of %d", i+1, b.numRounds)
			start := time.Now()
			if err := c.once(ctx, sqlFile("cron_refill.sql")); err != nil {
				return err
			}
			ms = append(ms, float64(time.Since(start).Microseconds())/1e3)
		}
		return nil
	})
	return ms, err
}

func longest(v []float64) (m float64) {
	for _, x := range v {
		m = max(m, x)
	}
	return m
}

// manyRows measures one decision per call on a large table.
func (b *bench) manyRows(ctx context.Context) error {
	few, many := 1_000_000, 10_000_000
	if b.quick {
		few, many = few/100, many/100
	}
	var cs []contender
	for _, w := range []struct {
		database string
		rows     int
	}{{freshDB, many}, {freshToo, few}} {
		s, err := b.newSchemaRows(ctx, w.database, "unlogged", w.rows)
		if err != nil {
			return err
		}
		defer s.close()
		total, err := measure(ctx, s.dsn, "dipwell.buckets")
		if err != nil {
			return err
		}
		c := s.take()
		c.name, c.keys = fmt.Sprintf("%d rows (%s, %.0f B a row)", w.rows, size(total.total), total.total/float64(w.rows)), w.rows
		cs = append(cs, c)
	}
	fs, err := b.rounds(ctx, "rows", load.Load{Clients: 8}, fromGo, cs...)
	if err != nil {
		return err
	}
	fmt.Fprint(&b.out, "## Large tables, unlogged, single decisions on keys drawn from all of them\n\n")
	b.compare("8 clients", fs, names(cs), []string{cs[0].name}, target{over: cs[1].name, ratio: 0.6})
	return nil
}

// hotUpdates reports the share of HOT updates in all runs on these tables.
func (b *bench) hotUpdates(ctx context.Context) error {
	take, cron := b.fast.take(), b.rivals.cron()
	if _, err := b.rounds(ctx, "HOT updates", load.Load{Clients: 8, Keys: b.keys}, fromGo, take, cron); err != nil {
		return err
	}
	ours, err := hotShare(ctx, b.fast.dsn, "dipwell.buckets")
	if err != nil {
		return err
	}
	theirs, err := hotShare(ctx, b.rivals.dsn, "cron.buckets")
	if err != nil {
		return err
	}
	fmt.Fprint(&b.out, "## What the server counted, over 8 clients' calls\n\n")
	report.Table(&b.out, []string{"", "dipwell", "target", "reached", "(a)"}, [][]string{
		{"HOT updates", fmt.Sprintf("%.2f %%", ours), "≥ 99 %", b.reached(ours >= 99), fmt.Sprintf("%.2f %%", theirs)},
	})
	if err := b.noDeadlocks(ctx, b.fast); err != nil {
		return err
	}
	fmt.Fprintf(&b.out, "Serialization failures and deadlocks that reached a caller of dipwell in %d decisions from Go: %d; target 0: %s\n\n",
		b.decisions, b.conflicts, b.reached(b.conflicts == 0))
	return nil
}

// noDeadlocks checks the server's count of deadlocks for a database.
func (b *bench) noDeadlocks(ctx context.Context, w *schema) error {
	n, err := query(ctx, w.dsn, "select deadlocks from pg_stat_database where datname = current_database()")
	if err == nil {
		fmt.Fprintf(&b.out, "Deadlocks that the server counted in this database: %s; target 0: %s\n\n", n, b.reached(n == "0"))
	}
	return err
}

// hotShare returns the share of HOT updates in percent. Sessions report their
// statistics when they end at the latest, so call it after they are closed.
func hotShare(ctx context.Context, dsn, table string) (share float64, err error) {
	err = withConn(ctx, dsn, func(c *conn) error {
		share, err = c.float(ctx, "select coalesce(100.0 * n_tup_hot_upd / nullif(n_tup_upd, 0), 0) from pg_stat_user_tables where relid = '"+table+"'::regclass")
		return err
	})
	return share, err
}
