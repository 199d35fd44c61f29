package pgstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// What a janitor may use of the server: a small share of one connection, and a
// larger one while rows become full faster than it deletes them.
const (
	janitorIdle    = 10 * time.Second // between the beginnings of two passes, when nothing presses
	janitorCron    = 2 * time.Minute  // the same where pg_cron sweeps
	janitorRest    = 20               // a statement that took t is followed by a rest of 20 t
	janitorGrowing = 3                // or of 3 t, while the table grows by a sixteenth in a pass, and in the pass after one that found many full rows on a page
	janitorMin     = 1                // or of t, at the least, where they are
	janitorDense   = 4                // rows deleted for each page, of about a hundred: that is many
	janitorRetire  = time.Minute      // between two searches for versions that no row names
	janitorRetry   = time.Minute      // after an error
	stepTimeout    = 2 * time.Minute
)

// A Janitor sweeps a store in the background. Several programs may each have
// one: they take turns, and leave alone a table that another has just gone over.
type Janitor struct {
	store  *Store
	report func(error)
	stop   context.CancelFunc
	done   sync.WaitGroup

	rest    int       // the present share: a statement that took t is followed by a rest of rest × t
	retired time.Time // when versions were last looked for
	dense   [2]bool   // whether the present pass and the one before found many full rows on a page
	size    int       // pages of the table when the pass began; 0: the next statement begins one
	page    int64     // where its last statement stopped, -1 before the first: another number shows that somebody else sweeps
	began   int64     // and when the last whole pass had begun then

	rows, spent, passes, covered atomic.Int64
}

// JanitorStats is what a janitor did.
type JanitorStats struct {
	Rows   int64         // deleted by it
	Spent  time.Duration // in statements that sweep
	Passes int64         // over the table, that it ended

	// When the last whole pass over the table began, whoever made it: rows that
	// were full then are gone, unless they were locked. Zero: not known.
	Covered time.Time
}

// NewJanitor begins to sweep a store over a pool, until Close. report hears what
// goes wrong; it may be nil. A store without a janitor, whose limits are used by
// programs alone, has to be swept by its callers or by pg_cron.
func NewJanitor(s *Store, report func(error)) *Janitor {
	if report == nil {
		report = func(error) {}
	}
	ctx, stop := context.WithCancel(context.Background())
	j := &Janitor{store: s, report: report, stop: stop, rest: janitorRest, retired: time.Now(), page: -1}
	j.done.Go(func() { j.run(ctx) })
	return j
}

// Close ends it, and the statement that it has under way.
func (j *Janitor) Close() {
	j.stop()
	j.done.Wait()
}

// Stats is what it did so far.
func (j *Janitor) Stats() JanitorStats {
	st := JanitorStats{Rows: j.rows.Load(), Spent: time.Duration(j.spent.Load()), Passes: j.passes.Load()}
	if at := j.covered.Load(); at != 0 {
		st.Covered = time.UnixMicro(at)
	}
	return st
}

func (j *Janitor) run(ctx context.Context) {
	for rest := time.Duration(0); ; {
		select {
		case <-time.After(rest):
		case <-ctx.Done():
			return
		}
		turn, cancel := context.WithTimeout(ctx, stepTimeout)
		var err error
		if rest, err = j.step(turn); err != nil && ctx.Err() == nil {
			rest = janitorRetry
			j.report(fmt.Errorf("sweep: %w", err))
		}
		cancel()
	}
}

// turn is one statement that sweeps, unless somebody else sweeps or has just
// done so. It returns how long to rest.
func (j *Janitor) step(ctx context.Context) (rest time.Duration, err error) {
	if !j.store.cat.isRead.Load() {
		return janitorIdle, nil // a lazy store, whose server did not answer yet
	}
	idle, err := j.idle(ctx)
	if err != nil {
		return 0, err
	}
	if err = j.retire(ctx); err != nil {
		return 0, err
	}
	seen, err := j.store.engine().sweepStep(ctx, 0)
	if err != nil {
		return 0, err
	}
	j.covered.Store(seen.covered)
	others := j.page >= 0 && (seen.page != j.page || seen.covered != j.began)
	j.page, j.began = seen.page, seen.covered
	if others {
		return idle, nil
	}
	if age := time.Since(time.UnixMicro(seen.covered)); seen.page == 0 && age < idle && j.rest == janitorRest {
		return idle - age, nil
	}
	start := time.Now()
	did, err := j.store.engine().sweepStep(ctx, sweepBatch)
	took := time.Since(start)
	j.record(did, took)
	if err != nil || did.size == 0 {
		return idle, err
	}
	return time.Duration(j.rest) * took, nil
}

// count takes note of what a statement did, and changes the share.
func (j *Janitor) record(did swept, took time.Duration) {
	j.rows.Add(int64(did.rows))
	j.spent.Add(int64(took))
	j.page, j.began = did.page, did.covered
	j.covered.Store(did.covered)
	if j.size == 0 {
		j.size = did.size
	}
	switch {
	case did.rows >= janitorDense*max(did.looked, 1):
		j.dense[0] = true
		j.rest = max(j.rest/2, janitorMin)
	case j.dense[0] || j.dense[1] || did.size > j.size+j.size/16:
		j.rest = min(j.rest+1, janitorGrowing)
	default:
		j.rest = min(j.rest+1, janitorRest)
	}
	if did.ended {
		j.passes.Add(1)
		j.size, j.dense = 0, [2]bool{false, j.dense[0]}
	}
}

// idle is the least time between the beginnings of two passes, when nothing presses.
func (j *Janitor) idle(ctx context.Context) (time.Duration, error) {
	if !j.store.engine().hasFunctions() {
		return janitorIdle, nil
	}
	var c Condition
	if err := c.sweeping(ctx, j.store.db); err != nil {
		return 0, err
	}
	if c.Sweep == SweepByCron {
		return janitorCron, nil
	}
	return janitorIdle, nil
}

// retire looks for versions of limits that no row names any more, now and then.
func (j *Janitor) retire(ctx context.Context) error {
	if time.Since(j.retired) < janitorRetire {
		return nil
	}
	j.retired = time.Now()
	return j.store.engine().retire(ctx)
}
