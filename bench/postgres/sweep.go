package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/bench/internal/report"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

func init() {
	register("sweep", (*bench).sweepCost)
	register("newkeys", (*bench).newKeys)
}

// Numbers of rows in the table that is swept.
const (
	liveRows  = 1_000_000
	sweptRows = 10_000 // rows deleted by one call, and by one bare DELETE
)

// sweepCost compares a Sweep of full rows behind a million live ones with
// a DELETE of as many rows whose places are known.
func (b *bench) sweepCost(ctx context.Context) error {
	live := liveRows
	if b.quick {
		live /= 10
	}
	w, err := b.newSchemaRows(ctx, freshDB, "logged", 0)
	if err != nil {
		return err
	}
	defer w.close()
	progress("sweep: %d rows", live)
	if err := w.fill(ctx, drainedLimit, live); err != nil {
		return err
	}
	if err := w.full(ctx, (2*b.numRounds+1)*sweptRows); err != nil {
		return err
	}
	first, err := w.sweepOnce(ctx)
	if err != nil {
		return err
	}
	var swept, bare []float64
	for i := range b.numRounds {
		progress("sweep: %d of %d", i+1, b.numRounds)
		for _, c := range []struct {
			times *[]float64
			run   func(context.Context) (time.Duration, error)
		}{{&swept, w.sweepOnce}, {&bare, w.deleteBare}} {
			took, err := c.run(ctx)
			if err != nil {
				return err
			}
			*c.times = append(*c.times, float64(took.Microseconds())/1e3)
		}
	}
	progress("")
	ratio := report.Median(swept) / report.Median(bare)
	fmt.Fprintf(&b.out, "## %d full rows behind %d live ones, logged\n\n", sweptRows, live)
	report.Table(&b.out, []string{"", "median ms", "longest ms", "× a bare DELETE", "target", "reached"}, [][]string{
		{fmt.Sprintf("Sweep(%d)", sweptRows), count(report.Median(swept)), count(longest(swept)), fmt.Sprintf("%.2f", ratio), "≤ 5", b.reached(ratio <= 5)},
		{"DELETE by ctid", count(report.Median(bare)), count(longest(bare)), "", "", ""},
	})
	fmt.Fprintf(&b.out, "The first call, which goes over all live rows to get there: %.0f ms. Both are measured in turns on one table, the DELETE as one statement whose list of places is made before.\n\n", float64(first.Microseconds())/1e3)
	return nil
}

// full adds rows to the table whose buckets have long been full.
func (w *schema) full(ctx context.Context, rows int) error {
	_, err := w.pool.Exec(ctx, `insert into dipwell.buckets (used, ts, limit_id, version, key)
		select l.unit, dipwell_internal.now_us() - 3600000000, l.id, l.version, 'full:' || i from dipwell.limits l, generate_series(1, $1::int) i where l.name = $2`, rows, apiLimit)
	return err
}

func (w *schema) sweepOnce(ctx context.Context) (took time.Duration, err error) {
	start := time.Now()
	n, err := store.AbilitiesOf(w.store).Sweep(ctx, sweptRows)
	if err == nil && n != sweptRows {
		err = fmt.Errorf("%d rows were swept, not %d", n, sweptRows)
	}
	return time.Since(start), err
}

// deleteBare times a DELETE of rows at the end of the table, where no sweep has
// been.
func (w *schema) deleteBare(ctx context.Context) (took time.Duration, err error) {
	c, err := w.pool.Acquire(ctx)
	if err != nil {
		return 0, err
	}
	defer c.Release()
	if _, err = c.Exec(ctx, fmt.Sprintf("create temporary table due as select ctid as place from dipwell.buckets order by ctid desc limit %d", sweptRows)); err != nil {
		return 0, err
	}
	start := time.Now()
	tag, err := c.Exec(ctx, "delete from dipwell.buckets where ctid = any (array(select place from due))")
	took = time.Since(start)
	if err == nil && tag.RowsAffected() != sweptRows {
		err = fmt.Errorf("%d rows were deleted, not %d", tag.RowsAffected(), sweptRows)
	}
	_, e := c.Exec(ctx, "drop table due")
	return took, errors.Join(err, e)
}

// An expiring key has one token, which comes back in the time life.
const (
	expiringLimit = "expiring"
	life          = 20 * time.Second
	newCallers    = 512
)

// newKeys measures the number of rows while short-lived new keys arrive,
// with and without a sweeper.
func (b *bench) newKeys(ctx context.Context) error {
	length := b.newFor
	if b.quick {
		length = 5 * time.Second
	}
	var with, without arrival
	for _, a := range []struct {
		*arrival
		database string
		swept    bool
	}{{&without, freshToo, false}, {&with, freshDB, true}} {
		if err := b.arrive(ctx, a.arrival, a.database, length, a.swept); err != nil {
			return err
		}
	}
	progress("")
	fmt.Fprintf(&b.out, "## %d new keys a second that live %v, for %v, logged\n\n", b.newRate, life, length)
	fmt.Fprintf(&b.out, "Asked through the stack of serve by %d callers, at most so many a second. Rows over live ones is the worst of any second from the %vth on.\n\n", newCallers, life.Seconds())
	var rows [][]string
	for _, a := range []struct {
		arrival
		name string
	}{{without, "without a sweep"}, {with, "with a janitor"}} {
		rows = append(rows, []string{a.name, count(a.perSecond), strconv.FormatInt(a.rows, 10), strconv.FormatInt(a.live, 10), fmt.Sprintf("%.2f", a.worst), size(a.size),
			strconv.FormatFloat(a.swept.rows, 'f', 0, 64), fmt.Sprintf("%.1f s", a.swept.seconds)})
	}
	report.Table(&b.out, []string{"", "decisions/s", "rows at the end", "live at the end", "rows ÷ live, worst", "table and index", "rows swept", "time in sweeps"}, rows)
	share := with.perSecond / without.perSecond
	fmt.Fprintf(&b.out, "Rows are %.2f × the live ones at worst; target ≤ 1.5: %s\n\n", with.worst, b.reached(with.worst <= 1.5))
	fmt.Fprintf(&b.out, "Decisions are %.2f × those without a sweep; target ≥ 0.9: %s\n\n", share, b.reached(share >= 0.9))
	return nil
}

// arrival is a run in which new keys arrive.
type arrival struct {
	perSecond  float64
	rows, live int64 // rows in all and live rows, when the run ended
	worst      float64
	size       float64
	swept      sweeps
}

// sweeps counts the work of a store's sweeps.
type sweeps struct{ rows, seconds float64 }

func sweepsOf(s *pgstore.Store) (out sweeps) {
	for _, m := range s.Abilities().Metrics() {
		switch m.Name {
		case "dipwell_store_sweep_rows_total":
			out.rows = m.Value
		case "dipwell_store_sweep_seconds_total":
			out.seconds = m.Value
		}
	}
	return out
}

func (b *bench) arrive(ctx context.Context, a *arrival, database string, length time.Duration, swept bool) error {
	w, err := b.newSchemaRows(ctx, database, "logged", 0)
	if err != nil {
		return err
	}
	defer w.close()
	if _, err = w.limiter.Define(ctx, dipwell.Limit{Name: expiringLimit, Rate: 1, Period: life, Burst: 1}, store.OwnerCode); err != nil {
		return err
	}
	s, err := w.stack(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	did := func() sweeps { return sweeps{} }
	if swept {
		sweeper, err := pgstore.New(ctx, w.pool, pgstore.Config{Poll: -1, Sweep: true, OnError: func(err error) { progress("%v\n", err) }})
		if err != nil {
			return err
		}
		defer func() { _ = sweeper.Close() }()
		did = func() sweeps { return sweepsOf(sweeper) }
	}
	load := &newcomers{limiter: s.limiter, rate: b.newRate, start: time.Now()}
	done := make(chan error, 1)
	go func() { done <- load.run(ctx, length) }()
	if err = b.watch(ctx, a, load, length, did); err != nil {
		return errors.Join(err, <-done)
	}
	if err = <-done; err != nil {
		return err
	}
	a.perSecond = float64(load.made.Load()) / length.Seconds()
	a.swept = did()
	return withConn(ctx, w.dsn, func(c *conn) error {
		n, err := c.float(ctx, "select count(*) from dipwell.buckets")
		a.rows = int64(n)
		if err == nil {
			a.size, err = c.float(ctx, "select pg_total_relation_size('dipwell.buckets')")
		}
		return err
	})
}

// watch compares, once a second, the number of rows (inserted less swept)
// with the number inserted within the time life.
func (b *bench) watch(ctx context.Context, a *arrival, load *newcomers, length time.Duration, did func() sweeps) error {
	var came []int64
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for len(came) < int(length/time.Second) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		came = append(came, load.made.Load())
		n, ago := came[len(came)-1], int64(0)
		if i := len(came) - 1 - int(life/time.Second); i >= 0 {
			ago = came[i]
		}
		rows := n - int64(did().rows)
		a.live = n - ago
		if ago > 0 {
			a.worst = max(a.worst, float64(rows)/float64(a.live))
		}
		progress("newkeys: %d s, %d rows, %d live", len(came), rows, a.live)
	}
	return nil
}

// newcomers takes from one new key after another.
type newcomers struct {
	limiter *dipwell.Limiter
	rate    int
	start   time.Time
	next    atomic.Int64
	made    atomic.Int64
}

func (l *newcomers) run(ctx context.Context, length time.Duration) error {
	var wg sync.WaitGroup
	errs := make([]error, newCallers)
	for c := range errs {
		wg.Go(func() {
			for errs[c] == nil {
				i := l.next.Add(1)
				due := l.start.Add(time.Duration(i) * time.Second / time.Duration(l.rate))
				if due.Sub(l.start) > length || time.Since(l.start) > length {
					return
				}
				time.Sleep(time.Until(due))
				d, err := l.limiter.Take(ctx, expiringLimit, "key:"+strconv.FormatInt(i, 10), 1)
				if err == nil && !d.Allowed {
					err = fmt.Errorf("a new key was refused: %+v", d)
				}
				errs[c] = err
				l.made.Add(1)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
