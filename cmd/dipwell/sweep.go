package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Sweeping keeps to a small share of one connection, however large the table is.
const (
	sweepRows    = 10000           // deleted by one sweep at most
	sweepEvery   = time.Minute     // at the least
	sweepShare   = 20              // a sweep that took t is followed by a rest of 20 t
	sweepTimeout = 2 * time.Minute // of one sweep
	sweepBehind  = time.Hour       // where pg_cron sweeps: only old versions of limits are left to forget
)

// startSweeping deletes full rows regularly, until Close.
func (p *postgres) startSweeping(report func(error)) {
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	p.close = append(p.close, func() { stop(); done.Wait() })
	done.Go(func() {
		for rest := sweepEvery; ; {
			select {
			case <-time.After(rest):
			case <-ctx.Done():
				return
			}
			rest = p.sweepOnce(ctx, report)
		}
	})
}

// sweepOnce sweeps until nothing full is left or its share is used up, and says
// how long to rest.
func (p *postgres) sweepOnce(ctx context.Context, report func(error)) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
	defer cancel()
	start := time.Now()
	n, err := p.Sweep(ctx, sweepRows)
	p.swept.Add(uint64(n))
	if err != nil && !errors.Is(err, context.Canceled) {
		report(fmt.Errorf("sweep: %w", err))
	}
	rest := max(sweepShare*time.Since(start), sweepEvery)
	switch {
	case err == nil && n == sweepRows:
		rest = sweepShare * time.Since(start) // there is more
	case err == nil && p.cronSweeps(ctx):
		rest = max(rest, sweepBehind)
	}
	return rest
}

// cronSweeps reports whether pg_cron sweeps this database.
func (p *postgres) cronSweeps(ctx context.Context) bool {
	var there, active bool
	err := p.side.QueryRow(ctx, "select to_regclass('cron.job') is not null").Scan(&there)
	if err != nil || !there {
		return false
	}
	err = p.side.QueryRow(ctx, `select exists (select from cron.job
		where active and database = current_database() and command like '%dipwell.sweep%')`).Scan(&active)
	return err == nil && active
}
