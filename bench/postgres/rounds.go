package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/dipwell/dipwell/bench/internal/load"
	"github.com/dipwell/dipwell/bench/internal/report"
)

// A contender is one design under load.
type contender struct {
	name   string
	open   func(context.Context) (load.Session, error) // opens a client's session, anew in each round
	during func(context.Context) error                 // background work of the design while its rounds last
	ours   bool                                        // count conflicts that reach its callers, for the report at the end

	clients int // number of clients; 0: the load's
	keys    int // number of keys; 0: the load's

	script   string // file in sql/ with the script for pgbench
	settings string // settings of its connections
	database string // DSN
}

// figures are the results of a contender's rounds.
type figures struct {
	perSecond, p50, p99, p999 []float64
	server, client            []float64 // processor time of server and client in µs a decision
	decisions                 int
	refused, conflicts        int
}

func (f *figures) add(r *load.Result) {
	f.perSecond = append(f.perSecond, r.PerSecond)
	f.p50 = append(f.p50, r.Times.Percentile(50))
	f.p99 = append(f.p99, r.Times.Percentile(99))
	f.p999 = append(f.p999, r.Times.Percentile(99.9))
	decisions := r.PerSecond * r.Length.Seconds()
	f.server = append(f.server, float64(r.Server.Microseconds())/decisions)
	f.client = append(f.client, float64(r.Client.Microseconds())/decisions)
	f.decisions += r.Times.Count
	f.refused += r.Refused
	f.conflicts += r.Conflicts
}

func (f *figures) rate() float64 { return report.Median(f.perSecond) }

// ratio returns the median, over the rounds, of this contender's processor time
// divided by the other's in the same round. The rounds of two contenders follow
// each other, so that other load on the machine slows both alike.
func (f *figures) ratio(other *figures) float64 {
	var rs []float64
	for i := range f.server {
		rs = append(rs, (f.server[i]+f.client[i])/(other.server[i]+other.client[i]))
	}
	return report.Median(rs)
}

// spent returns the processor time of a decision, server and client together, in µs.
func (f *figures) spent() float64 { return report.Median(f.server) + report.Median(f.client) }

// runner makes one round of one contender, in this process or by pgbench.
type runner func(context.Context, load.Load, contender) (load.Result, error)

// rounds measures contenders in turns under one load. Each round starts with
// the next contender, so that the order does not matter.
func (b *bench) rounds(ctx context.Context, title string, l load.Load, run runner, cs ...contender) (map[string]*figures, error) {
	return b.turns(ctx, 1, title, l, run, cs...)
}

// turns is the function rounds with each round split into n parts.
func (b *bench) turns(ctx context.Context, n int, title string, l load.Load, run runner, cs ...contender) (map[string]*figures, error) {
	all := map[string]*figures{}
	for _, c := range cs {
		all[c.name] = new(figures)
	}
	l.Length, l.Conflict, l.Server = b.length/time.Duration(n), conflict, b.serverTime
	for round := range b.numRounds * n {
		for i := range cs {
			c := cs[(i+round)%len(cs)]
			progress("%s: round %d of %d, %s", title, round+1, b.numRounds*n, c.name)
			r, err := b.round(ctx, l, run, c)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", title, c.name, err)
			}
			all[c.name].add(&r)
			if c.ours {
				b.conflicts += r.Conflicts
				b.decisions += r.Times.Count
			}
		}
	}
	progress("")
	return all, nil
}

// round measures a contender once, with its background work.
func (b *bench) round(ctx context.Context, l load.Load, run runner, c contender) (load.Result, error) {
	l.Clients, l.Keys = cmp.Or(c.clients, l.Clients), cmp.Or(c.keys, l.Keys)
	if c.during == nil {
		return run(ctx, l, c)
	}
	beside, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- c.during(beside) }()
	r, err := run(ctx, l, c)
	stop()
	if e := <-ended; err == nil {
		err = e
	}
	return r, err
}

// fromGo is the runner that makes the calls in this process.
func fromGo(ctx context.Context, l load.Load, c contender) (load.Result, error) {
	return l.Run(ctx, c.open)
}

// progress shows a line on standard error; "" clears it.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "\r\x1b[K"+format, args...)
}
