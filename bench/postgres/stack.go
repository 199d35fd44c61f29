package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/stack"
)

func init() {
	register("stack", (*bench).stacked)
	register("tail", (*bench).tail)
	register("mixed", (*bench).mixed)
}

// Names of the stack's contenders in the tables.
const (
	stackName = "the stack of serve"
	aloneName = "the store alone"
)

// A stacked is a limiter over PostgreSQL and the decorators of a stack.
type stacked struct {
	*stack.Stack
	limiter *dipwell.Limiter
}

// stack puts the decorators that dipwell serve uses around a store.
func (w *schema) stack(ctx context.Context) (*stacked, error) {
	s, err := stack.New(ctx, w.store, stack.Options{Breaker: true, DenyMaxAge: time.Second, Fallback: true})
	if err != nil {
		return nil, err
	}
	return &stacked{s, w.limiter.With(s.Store)}, nil
}

// called returns a copy of a contender with another name.
func called(name string, c contender) contender {
	c.name = name
	return c
}

// stackTargets are the ratios to reach, compared with (a) and (b) and with the
// bare counter.
var stackTargets = []struct {
	callers         int
	published, bare float64
	connections     []int // numbers of connections that the rivals may choose from
}{
	{1, 0.95, 0.85, []int{1}},
	{8, 1.1, 0.95, []int{4, 8}},
	{32, 2.5, 2, []int{8, 16, 32}},
	{512, 10, 8, []int{8, 16, 32, 64}},
}

// durable makes logged tables and a stack over them.
func (b *bench) durable(ctx context.Context) (p pair, s *stacked, err error) {
	if p, err = b.loggedPair(ctx); err == nil {
		s, err = p.stack(ctx)
	}
	return p, s, err
}

// stacked compares the stack of dipwell serve with designs that have their best
// number of connections, all logged.
func (b *bench) stacked(ctx context.Context) error {
	p, s, err := b.durable(ctx)
	if err != nil {
		return err
	}
	defer p.close()
	defer func() { _ = s.Close() }()
	fmt.Fprintf(&b.out, "## The stack of `dipwell serve`, all logged\n\n")
	fmt.Fprintf(&b.out, "\"%s\" is what serve builds around a store (fallback, denycache, breaker, coalesce over %s), called in the process by so many goroutines. Its rivals have as many connections as they did best with in a round of their own, and a caller for each. \"%s\" has a connection for each caller, at most 64.\n\n",
		stackName, plural(s.Lanes, "lane"), takeName)
	onStack := contender{name: stackName, open: p.schema.all(s.limiter), ours: true}
	for _, t := range stackTargets {
		single := p.take()
		single.clients = min(t.callers, 64)
		cs := []contender{onStack, single}
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
		b.compare(title, fs, names(cs), []string{stackName}, target{over: cronName, ratio: t.published}, target{over: procName, ratio: t.published}, target{over: counterName, ratio: t.bare})
		b.connections(cs[2:])
	}
	single := p.take()
	single.clients = 32
	cs := []contender{onStack, single}
	fs, err := b.rounds(ctx, "stack, one hot key", load.Load{Clients: 512, Keys: 1}, fromGo, cs...)
	if err != nil {
		return err
	}
	b.compare("512 callers, one hot key", fs, names(cs), []string{stackName}, target{over: takeName, ratio: 40})
	return b.noDeadlocks(ctx, p.schema)
}

// connections writes the numbers of connections that the rivals chose.
func (b *bench) connections(cs []contender) {
	var had []string
	for _, c := range cs {
		had = append(had, fmt.Sprintf("%s %d", c.name, max(c.clients, 1)))
	}
	fmt.Fprintf(&b.out, "Connections: %s.\n\n", strings.Join(had, ", "))
}

// best returns a rival with the number of connections at which it is fastest.
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
