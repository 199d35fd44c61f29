package main

import (
	"context"
	"fmt"

	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
)

func init() {
	register("coalesced", (*bench).coalesced)
	register("few", (*bench).few)
	register("logged", (*bench).logged)
}

// maxCoalescedP99 is the target for the 99th percentile at 512 goroutines, in µs.
const maxCoalescedP99 = 15_000

// coalesced measures many goroutines of one process that share few connections.
func (b *bench) coalesced(ctx context.Context) error {
	fmt.Fprintf(&b.out, "## Coalesced, unlogged, one Go process\n\n")
	fmt.Fprintf(&b.out, "\"%s\" runs coalesce over %d lanes. \"%s\" is the same goroutines without it, over a pool of %d connections; \"%s\" is %d goroutines, each with a raw connection to itself.\n\n",
		coalescedName, b.lanes, pooledName, poolConns, rawName, poolConns)
	for _, c := range []struct {
		title         string
		clients, keys int
		ratio         float64
	}{
		{"64 goroutines, 10,000 keys", 64, b.keys, 2.5},
		{"512 goroutines, 10,000 keys", 512, b.keys, 5.5},
		{"512 goroutines, one hot key", 512, 1, 40},
	} {
		coalesced, pooled, raw := b.fast.coalesced(), b.fast.pooled(), b.fast.take()
		raw.name, raw.clients = rawName, poolConns
		cs := []contender{coalesced, pooled, raw}
		fs, err := b.rounds(ctx, "coalesced, "+c.title, load.Load{Clients: c.clients, Keys: c.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		b.compare(c.title, fs, names(cs), []string{coalescedName}, target{over: pooledName, ratio: c.ratio}, target{over: rawName, ratio: c.ratio})
		if c.clients == 512 && c.keys > 1 {
			p99 := report.Median(fs[coalescedName].p99)
			fmt.Fprintf(&b.out, "p99 at 512 goroutines on 10,000 keys: %.1f ms; target ≤ 15 ms: %s\n\n", p99/1e3, b.reached(p99 <= maxCoalescedP99))
		}
	}
	return nil
}

// few measures coalescing with few callers, which rarely have other calls
// to share a statement with.
func (b *bench) few(ctx context.Context) error {
	fmt.Fprint(&b.out, "## Coalesced, few goroutines\n\n")
	for _, n := range []int{1, 2, 4, 8} {
		cs := []contender{b.fast.coalesced(), b.fast.pooled()}
		title := plural(n, "goroutine") + ", 10,000 keys"
		fs, err := b.rounds(ctx, "coalesced, "+title, load.Load{Clients: n, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		b.compare(title, fs, names(cs), []string{coalescedName}, target{over: pooledName, ratio: 0.9})
	}
	return nil
}

// logged measures the cost of logged tables (durability) if calls share statements.
func (b *bench) logged(ctx context.Context) error {
	durable, err := b.newSchema(ctx, loggedDB, "logged")
	if err != nil {
		return err
	}
	defer durable.close()
	fmt.Fprint(&b.out, "## Logged with synchronous_commit=on, coalesced\n\n")
	for _, n := range []int{64, 512} {
		kept, fast := durable.coalesced(), b.fast.coalesced()
		kept.name, fast.name = "logged", "unlogged"
		cs := []contender{kept, fast}
		title := plural(n, "goroutine") + ", 10,000 keys"
		fs, err := b.rounds(ctx, "logged, "+title, load.Load{Clients: n, Keys: b.keys}, fromGo, cs...)
		if err != nil {
			return err
		}
		b.compare(title, fs, names(cs), []string{kept.name}, target{over: fast.name, ratio: 0.35})
	}
	return b.noDeadlocks(ctx, durable)
}
