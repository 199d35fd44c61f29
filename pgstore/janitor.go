package pgstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a janitor's load on the server: a small share of one connection,
// and a larger share while rows become full faster than it deletes them.
const (
	janitorIdle    = 10 * time.Second // shortest time between the starts of two passes
	janitorCron    = 2 * time.Minute  // the same time if pg_cron also sweeps
	janitorRest    = 20               // length of the pause after a statement, as a multiple of the statement's duration
	janitorGrowing = 3                // the same multiple while there is more to do: the table grew by 1/16 in a pass, more records are due than one statement ends, or the previous pass was dense
	janitorMin     = 1                // the same multiple while pages are dense: the shortest pause
	janitorDense   = 4                // a page (of about 100 rows) is dense if this many rows of it were deleted
	janitorRetire  = time.Minute      // time between two searches for unused versions
	janitorRetry   = time.Minute      // pause after an error
	stepTimeout    = 2 * time.Minute
)

// A janitor deletes full rows of a store in the background, in small statements
// with pauses between them. Several programs may each run one on the same
// database: they take turns, and skip a table that another one has just swept.
type janitor struct {
	store *Store
	stop  context.CancelFunc
	done  sync.WaitGroup

	rest    int       // pause after a statement, as a multiple of its duration
	retired time.Time // time of the last search for unused versions
	dense   [2]bool   // whether the current and the previous pass found a dense page
	size    int       // pages of the table at the start of the pass; 0: the next statement starts a pass
	page    int64     // where its last statement stopped, -1 before the first; if it has moved, another program sweeps
	began   int64     // when this pass began: the start of the last complete pass

	rows   atomic.Int64 // number of rows that the janitor deleted
	spent  atomic.Int64 // duration of the janitor's statements, in ns
	passes atomic.Int64 // number of passes over the table that the janitor completed

	// This is the start of the last complete pass over the table, by any program, in
	// µs. Rows that were full at that time have been deleted, unless they were locked.
	// It is zero if that start is not known.
	covered atomic.Int64
}

// newJanitor starts to sweep a store, which must be over a pool, until close is called.
// Errors are passed to Config.OnError; the janitor then tries again after a minute.
func newJanitor(s *Store) *janitor {
	ctx, stop := context.WithCancel(context.Background())
	j := &janitor{store: s, stop: stop, rest: janitorRest, retired: time.Now(), page: -1}
	j.done.Go(func() { j.run(ctx) })
	return j
}

// close stops the janitor, cancels its current statement and waits for it.
func (j *janitor) close() {
	j.stop()
	j.done.Wait()
}

func (j *janitor) run(ctx context.Context) {
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
			j.store.report(fmt.Errorf("sweep: %w", err))
		}
		cancel()
	}
}

// step runs one statement that sweeps, unless another program sweeps or has
// just done so. step returns how long to pause.
func (j *janitor) step(ctx context.Context) (rest time.Duration, err error) {
	if !j.store.cat.IsRead() {
		return janitorIdle, nil // the server of a lazy store has not answered yet
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

// record adds a statement to the totals and adjusts the pause.
func (j *janitor) record(did swept, took time.Duration) {
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
	case j.dense[0] || j.dense[1] || did.more || did.size > j.size+j.size/16:
		j.rest = min(j.rest+1, janitorGrowing)
	default:
		j.rest = min(j.rest+1, janitorRest)
	}
	if did.ended {
		j.passes.Add(1)
		j.size, j.dense = 0, [2]bool{false, j.dense[0]}
	}
}

// idle returns the shortest time between the starts of two passes.
func (j *janitor) idle(ctx context.Context) (time.Duration, error) {
	if !j.store.engine().hasFunctions() {
		return janitorIdle, nil
	}
	var c Condition
	if err := c.sweeping(ctx, j.store.db); err != nil {
		return 0, err
	}
	if c.SweepJob == "planned" {
		return janitorCron, nil
	}
	return janitorIdle, nil
}

// retire deletes versions of limits that no row refers to, at most once in janitorRetire.
func (j *janitor) retire(ctx context.Context) error {
	if time.Since(j.retired) < janitorRetire {
		return nil
	}
	j.retired = time.Now()
	more, err := j.store.engine().retire(ctx)
	if more { // pause in proportion to the time spent, as for sweeping
		j.retired = time.Now().Add(janitorRest*time.Since(j.retired) - janitorRetire)
	}
	return err
}
