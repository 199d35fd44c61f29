package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/store"
	"github.com/jackc/pgx/v5"
)

func init() {
	register("groups", (*bench).groups)
	register("windows", (*bench).windows)
}

const (
	twoByHand   = "by hand, 2 counters in one trip"
	threeByHand = "by hand, 3 counters in one trip"
)

// byHand counts a call in several tables in one transaction, sent as one batch.
func byHand(ctx context.Context, c *pgx.Conn, key string, tables int) (bool, error) {
	batch := &pgx.Batch{}
	batch.Queue("begin")
	for _, table := range []string{"keys", "tenants", "globals"}[:tables] {
		batch.Queue("update byhand."+table+" set n = n + 1 where key = $1 and n < 1000000000", key)
	}
	batch.Queue("commit")
	r := c.SendBatch(ctx, batch)
	allowed := true
	for i := range tables + 2 {
		tag, err := r.Exec()
		if err != nil {
			return false, errors.Join(err, r.Close())
		}
		allowed = allowed && (i == 0 || i > tables || tag.RowsAffected() == 1)
	}
	return allowed, r.Close()
}

// groups measures several limits in one call, all or nothing.
func (b *bench) groups(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Groups of 2 and 3, single decisions, %d keys\n\n\"%s\" sends begin, a conditional update a table and commit together; its program would have to roll back where one refuses.\n\n", b.keys, twoByHand)
	for _, tables := range []string{"logged", "unlogged"} {
		w, err := b.newSchemaAll(ctx, tables)
		if err != nil {
			return err
		}
		err = b.groupsOf(ctx, w, tables)
		w.close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) groupsOf(ctx context.Context, w *schema, durability string) error {
	two, three := w.verb("TakeAll of 2"), w.verb("TakeAll of 3")
	cs := []contender{w.take(), two, three, w.verb(twoByHand), w.verb(threeByHand)}
	for _, clients := range []int{1, 8, 32} {
		title := plural(clients, "client") + ", " + durability
		fs, err := b.rounds(ctx, "groups, "+title, load.Load{Clients: clients, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		b.compare(title, fs, names(cs), []string{three.name, two.name})
	}
	return nil
}

// The scenario windows compares windows and intervals with a bucket.
var windowLimits = []dipwell.Limit{
	{Name: "window", Algorithm: dipwell.FixedWindow, Rate: burst, Period: time.Hour},
	{Name: "day in Rome", Algorithm: dipwell.FixedWindow, Rate: burst, Period: 24 * time.Hour, Start: "06:00 Europe/Rome"},
	{Name: "interval", Algorithm: dipwell.Interval, Rate: perSecond, Period: time.Second, Burst: burst / 10},
}

const windowCounterName = "bare counter upsert a window"

// windows measures single decisions by the other algorithms.
func (b *bench) windows(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Windows and intervals, single decisions, %d keys\n\n\"%s\" has a row a key and hour, and never deletes the old ones.\n\n", b.keys, windowCounterName)
	return b.eachDurability(ctx, func(p pair) error {
		cs, err := p.windowed(ctx)
		if err != nil {
			return err
		}
		for _, clients := range []int{1, 8, 32} {
			title := plural(clients, "client") + ", " + p.durability
			fs, err := b.rounds(ctx, "windows, "+title, load.Load{Clients: clients, Keys: b.keys}, fromGo, cs...)
			if err != nil {
				return err
			}
			b.compare(title, fs, names(cs), []string{cs[2].name, cs[1].name, cs[0].name})
		}
		return nil
	})
}

func (p pair) windowed(ctx context.Context) (cs []contender, err error) {
	for _, l := range windowLimits {
		if _, err := p.limiter.Define(ctx, l, store.OwnerCode); err != nil {
			return nil, err
		}
		cs = append(cs, contender{name: "Limiter.Take, " + l.Name, open: p.single(l.Name), ours: true})
	}
	err = withConn(ctx, p.rivals.dsn, func(c *conn) error {
		_, err := c.Exec(ctx, designSchema("window", p.tables)).ReadAll()
		return err
	})
	counter := contender{name: windowCounterName, open: p.oneStatement(sqlFile("window_take.sql"), "")}
	return append(cs, p.take(), counter), err
}
