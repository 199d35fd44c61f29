package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/store"
)

func init() { register("shards", (*bench).shards) }

// The scenario shards uses three equal limits: without shards, with as many as there are
// clients, which docs/how-to/shards.md recommends, and with fewer.
const (
	oneRowLimit  = "one-row"
	shardedLimit = "sharded"
	fewLimit     = "sharded-8"

	shardClients = 64
	spreadKeys   = 4096
	few          = 8
	work         = 10 * time.Millisecond // time that a transaction works after its take
)

// shards measures many clients that take from one key. Only grants count: a refused call
// is an error.
func (b *bench) shards(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## One key of a limit with %d shards, by the SQL function and by the Go store\n\nDecisions are grants: rows that say that the take is allowed. Keys have one row each: what so many rows can do at most.\n\n", shardClients)
	durable, err := b.newSchema(ctx, loggedDB, "logged")
	if err != nil {
		return err
	}
	defer durable.close()
	for _, w := range []*schema{durable, b.fast} {
		for _, l := range []dipwell.Limit{
			{Name: oneRowLimit, Rate: perSecond, Period: time.Second, Burst: burst, MaxDebt: dipwell.NoDebt},
			{Name: shardedLimit, Rate: perSecond, Period: time.Second, Burst: burst, Shards: shardClients},
			{Name: fewLimit, Rate: perSecond, Period: time.Second, Burst: burst, Shards: few},
		} {
			if _, err := w.limiter.Define(ctx, l, store.OwnerCode); err != nil {
				return err
			}
		}
	}
	contend := func(name string, w *schema, keys int, call caller) contender {
		return contender{name: name, ours: true, keys: keys, open: w.onConn(granted(call))}
	}
	pooled := func(name string, keys int, limit string) contender {
		return contender{name: name, ours: true, keys: keys, open: b.fast.onPool(granted(byGo(limit)))}
	}
	in := contend("transactions, one row", durable, 1, inTransaction(oneRowLimit))
	inShards := contend("transactions, shards", durable, 1, inTransaction(shardedLimit))
	logged := contend("logged, one row", durable, 1, bySQL(oneRowLimit))
	loggedShards := contend("logged, shards", durable, 1, bySQL(shardedLimit))
	inFew := contend(fmt.Sprintf("transactions, %d shards", few), durable, 1, inTransaction(fewLimit))
	loggedFew := contend(fmt.Sprintf("logged, %d shards", few), durable, 1, bySQL(fewLimit))
	logged8 := contend(fmt.Sprintf("logged, %d keys", few), durable, few, bySQL(oneRowLimit))
	loggedMany := contend(fmt.Sprintf("logged, %d keys", spreadKeys), durable, spreadKeys, bySQL(oneRowLimit))
	many8 := contend(fmt.Sprintf("unlogged, %d keys", few), b.fast, few, bySQL(oneRowLimit))
	goMany8 := pooled(fmt.Sprintf("Go, unlogged, %d keys", few), few, oneRowLimit)
	goFew := pooled(fmt.Sprintf("Go, unlogged, %d shards", few), 1, fewLimit)
	many := contend(fmt.Sprintf("unlogged, %d keys", spreadKeys), b.fast, spreadKeys, bySQL(oneRowLimit))
	shards := contend("unlogged, shards", b.fast, 1, bySQL(shardedLimit))
	goMany := pooled(fmt.Sprintf("Go, unlogged, %d keys", spreadKeys), spreadKeys, oneRowLimit)
	goShards := pooled("Go, unlogged, shards", 1, shardedLimit)
	one := contend("1 client, one row", b.fast, 1, bySQL(oneRowLimit))
	alone := contend("1 client, shards", b.fast, 1, bySQL(shardedLimit))
	for _, pair := range []struct {
		clients      int
		ours, theirs contender
		least        float64
		ceilings     []contender
	}{
		{shardClients, inShards, in, 5, []contender{inFew}},
		{shardClients, loggedShards, logged, 2.2, []contender{loggedFew, logged8, loggedMany}},
		{shardClients, shards, many, 0.85, []contender{many8}},
		{shardClients, goShards, goMany, 0.85, []contender{goFew, goMany8}},
		{1, alone, one, 0.6, nil},
	} {
		cs := append([]contender{pair.theirs, pair.ours}, pair.ceilings...)
		fs, err := b.rounds(ctx, pair.ours.name, load.Load{Clients: pair.clients, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		b.compare(pair.ours.name, fs, names(cs), []string{pair.ours.name})
		b.reach(pair.ours.name, pair.theirs.name, fs, pair.least)
		for _, c := range pair.ceilings {
			fmt.Fprintf(&b.out, "%s: %.2f × %s\n\n", c.name, fs[c.name].rate()/fs[pair.theirs.name].rate(), pair.theirs.name)
		}
	}
	return nil
}

// granted returns an error if a take was refused.
func granted(call caller) caller {
	return func(ctx context.Context, l *dipwell.Limiter, conn *pgx.Conn, key string) (bool, error) {
		ok, err := call(ctx, l, conn, key)
		if err == nil && !ok {
			err = errors.New("a take was refused")
		}
		return ok, err
	}
}

const takeByFunction = "select allowed from dipwell.take($1, $2)"

func bySQL(limit string) caller {
	return func(ctx context.Context, _ *dipwell.Limiter, conn *pgx.Conn, key string) (ok bool, err error) {
		err = conn.QueryRow(ctx, takeByFunction, limit, key).Scan(&ok)
		return ok, err
	}
}

func byGo(limit string) caller {
	return func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
		d, err := l.Take(ctx, limit, key, 1)
		return d.Allowed, err
	}
}

// inTransaction takes in a transaction that goes on for a while.
func inTransaction(limit string) caller {
	return func(ctx context.Context, _ *dipwell.Limiter, conn *pgx.Conn, key string) (ok bool, err error) {
		err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if err := tx.QueryRow(ctx, takeByFunction, limit, key).Scan(&ok); err != nil {
				return err
			}
			time.Sleep(work)
			return nil
		})
		return ok, err
	}
}
