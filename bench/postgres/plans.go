package main

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/jackc/pgx/v5"
)

func init() { register("plans", (*bench).plans) }

// Limits of scenario plans: besides apiLimit, which has neither plans nor overrides.
const (
	raisedLimit = "raised" // 100,000 other keys have an override
	ownLimit    = "own"    // every key has an override
	plansLimit  = "plans"  // has a plan, which callers name
)

const otherOverrides = 100_000

// plans measures takes of limits with plans and overrides beside those of one without.
func (b *bench) plans(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Plans and overrides, unlogged, %d keys\n\n", b.keys)
	fmt.Fprintf(&b.out, "%d other keys of the limit \"%s\" have an override, and every key of the limit \"%s\".\n\n", otherOverrides, raisedLimit, ownLimit)
	err := withConn(ctx, b.fast.dsn, func(c *conn) error {
		for _, name := range []string{raisedLimit, ownLimit, plansLimit} {
			if err := c.once(ctx, "select dipwell.define($1, $2::bigint, interval '1 second', burst => $3::bigint)", name, fmt.Sprint(perSecond), fmt.Sprint(burst)); err != nil {
				return err
			}
		}
		for _, sql := range []string{
			fmt.Sprintf("select dipwell.override('%s', 'other' || i, burst => %d) from generate_series(1, %d) i", raisedLimit, burst, otherOverrides),
			fmt.Sprintf("select dipwell.override('%s', key, burst => %d) from dipwell.buckets where limit_id = (select id from dipwell.limits where name = '%s')", ownLimit, burst, apiLimit),
			fmt.Sprintf("select dipwell.define_plan('%s', 'pro', burst => %d)", plansLimit, burst),
		} {
			if err := c.once(ctx, sql); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err = b.fast.fill(ctx, raisedLimit, b.keys); err != nil {
		return err
	}
	ordinary := b.fast.take()
	take := func(name, limit, plan string) contender {
		return contender{name: name, ours: true, open: b.fast.onConn(func(ctx context.Context, l *dipwell.Limiter, _ *pgx.Conn, key string) (bool, error) {
			d, err := l.TakeAll(ctx, dipwell.Take{Limit: limit, Key: key, Cost: 1, Plan: plan})
			return d.Allowed, err
		})}
	}
	cs := []contender{ordinary, take("beside overrides", raisedLimit, ""), take("overridden", ownLimit, ""), take("by a plan", plansLimit, "pro")}
	for _, clients := range []int{1, 8} {
		fs, err := b.rounds(ctx, "plans, "+plural(clients, "client"), load.Load{Clients: clients, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		for i, ratio := range []float64{0.97, 0.9, 0.95} {
			b.compare(plural(clients, "client")+", "+cs[i+1].name, fs, names([]contender{cs[i+1], ordinary}), []string{cs[i+1].name}, target{ordinary.name, ratio})
		}
	}
	return nil
}
