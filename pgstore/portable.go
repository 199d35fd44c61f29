package pgstore

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

// group tries a Take as a single statement. If that does not charge it, and for
// other calls, the rows are read and the group is decided in Go. Only if
// something must be written is it decided again in a transaction that locks the
// rows.
func (s portable) group(ctx context.Context, g *store.Group, entries []*entry, _ bool) error {
	op := &g.Ops[0]
	if len(g.Ops) == 1 && op.Verb == store.VerbTake && entries[0].plain && op.Cost > 0 && op.Cost <= op.Def.Rule.Burst {
		if done, err := s.take(ctx, g, entries[0]); done || err != nil {
			return err
		}
	}
	changes, err := s.tryRead(ctx, g, entries)
	if err != nil || !changes {
		return err
	}
	return s.transactOnce(ctx, func(tx pgx.Tx) error { return s.decide(ctx, tx, g, entries) })
}

func (s portable) take(ctx context.Context, g *store.Group, e *entry) (done bool, err error) {
	op := &g.Ops[0]
	var scratch store.Rule
	rule := op.RuleFor(&scratch)
	args := append(make([]any, 0, 4), op.Key, op.Cost*rule.Unit)
	if spread(rule) {
		args = append(args, gridOf(rule.Origin, rule.Every))
	}
	var row store.State
	var seen int64
	err = s.db.QueryRow(ctx, e.take, s.withClock(args)...).Scan(&row.Used, &row.TS, &seen)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err != nil:
		return false, storeError(err, true)
	case seen == 0:
		seen = row.TS
	}
	grant(g, rule, op.Cost, row, seen)
	return true, nil
}

// tryRead reads the clock, then the rows, and fills in the answers. It reports
// whether the decision still has to be written.
func (s portable) tryRead(ctx context.Context, g *store.Group, entries []*entry) (changes bool, err error) {
	var b pgx.Batch
	s.askClock(&b)
	for i := range g.Ops {
		b.Queue(rowSQL, entries[i].id, g.Ops[i].Key)
	}
	results := s.db.SendBatch(ctx, &b)
	defer func() { err = closeBatch(results, err) }()
	now, err := s.readClock(results)
	if err != nil {
		return false, err
	}
	rows, write := make([]store.State, len(g.Ops)), make([]bool, len(g.Ops))
	for i := range rows {
		if err = scanRow(results, &rows[i]); err != nil {
			return false, err
		}
	}
	if err = g.Decide(now, rows, write); err != nil || !g.Allowed {
		return false, err
	}
	for i := range g.Ops {
		changes = changes || write[i] || g.Ops[i].Verb == store.VerbReset
	}
	return changes, nil
}

// askClock queues a read of the server's clock, unless a test has set one.
func (s portable) askClock(b *pgx.Batch) {
	if s.clock == nil {
		b.Queue("select " + readNow)
	}
}

func (s portable) readClock(results pgx.BatchResults) (now int64, err error) {
	if s.clock != nil {
		return s.clock(), nil
	}
	return now, storeError(results.QueryRow().Scan(&now), false)
}

// scanRow reads a bucket. A missing row is a full bucket.
func scanRow(results pgx.BatchResults, row *store.State) error {
	var lows []int64
	err := results.QueryRow().Scan(&row.Used, &row.TS, &row.Version, &lows)
	if errors.Is(err, pgx.ErrNoRows) {
		*row = store.State{}
		return nil
	}
	row.Lows = lowsOf(lows)
	return storeError(err, false)
}

// closeBatch closes a batch and returns err, or the error of closing it if err
// is nil.
func closeBatch(results pgx.BatchResults, err error) error {
	if cerr := results.Close(); err == nil {
		err = storeError(cerr, false)
	}
	return err
}

// errNoWrite ends a transaction that has nothing to write.
var errNoWrite = errors.New("nothing to write")

// transact runs f in a transaction and retries it on a conflict.
func (s portable) transact(ctx context.Context, f func(pgx.Tx) error) error {
	try := func() error { return s.transactOnce(ctx, f) }
	return s.retry(ctx, try(), try)
}

// transactOnce is transact without retries, for callers that retry themselves.
// Nothing is visible before the commit, so only a failed commit leaves the
// outcome unknown.
func (s portable) transactOnce(ctx context.Context, f func(pgx.Tx) error) error {
	begin, ok := s.db.(Beginner)
	if !ok {
		return store.ErrNotSupported
	}
	tx, err := begin.Begin(ctx)
	if err != nil {
		return storeError(err, false)
	}
	if err = f(tx); err != nil {
		_ = tx.Rollback(ctx) // if it fails, the pool drops the connection
		if errors.Is(err, errNoWrite) {
			return nil
		}
		return err
	}
	return commitError(tx.Commit(ctx))
}

// decide locks the rows in the order of limit id and key, inserting missing
// ones, then reads the clock, decides and writes.
func (s portable) decide(ctx context.Context, tx pgx.Tx, g *store.Group, entries []*entry) error {
	order := make([]int, len(g.Ops))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(entries[a].id, entries[b].id), cmp.Compare(g.Ops[a].Key, g.Ops[b].Key))
	})
	var b pgx.Batch
	for _, i := range order {
		b.Queue(insertRowSQL, entries[i].id, g.Ops[i].Key, int32(g.Ops[i].Def.Number))
		b.Queue(lockSQL, entries[i].id, g.Ops[i].Key)
	}
	s.askClock(&b)
	rows, write := make([]store.State, len(g.Ops)), make([]bool, len(g.Ops))
	now, err := s.readLocked(tx.SendBatch(ctx, &b), order, rows)
	if err != nil {
		return err
	}
	notes := make([]recordChanges, len(g.Ops))
	for i := range g.Ops {
		if rows[i].Lows == nil {
			continue
		}
		n := &notes[i]
		if n.before, err = records(ctx, tx, entries[i].id, g.Ops[i].Key); err != nil {
			return err
		}
		if rows[i], n.after, err = g.Ops[i].Def.Advance(rows[i], g.Ops[i].Key, now, slices.Clone(n.before)); err != nil {
			return err
		}
	}
	if err = g.Decide(now, rows, write); err != nil {
		return err
	}
	if !g.Allowed {
		return errNoWrite
	}
	var out pgx.Batch
	for i := range g.Ops {
		queueOp(&out, g, &g.Ops[i], entries[i].id, rows[i], write[i], &notes[i], now)
	}
	return execBatch(ctx, tx, &out)
}

// recordChanges are the records of a row before and after Definition.Advance.
type recordChanges struct{ before, after []store.Record }

// queueOp queues the writes for one op. now is the time of the decision.
func queueOp(b *pgx.Batch, g *store.Group, op *store.Op, id int32, row store.State, write bool, n *recordChanges, now int64) {
	if op.Verb == store.VerbReset {
		b.Queue(deleteRowSQL, id, op.Key)
		b.Queue(deleteRecordsSQL, id, op.Key)
		return
	}
	if g.Reserved && op.Granted > 0 {
		r := op.Record(&row, g.ID, now, now+g.Due())
		b.Queue(insertRecordSQL, uuidOf(g.ID), id, op.Key, r.Units, int32(r.Version), r.Ends, r.Due, r.Number, r.Mark, slackColumn(r.Slack), countGranted(g))
		write = true
	}
	switch {
	case write:
		queueRow(b, id, op.Key, row)
		queueRecords(b, id, op.Key, n.before, n.after)
	case row.Used == 0: // just inserted, or full
		b.Queue(deleteRowSQL, id, op.Key)
	}
}

// countGranted returns the number of keys of a reservation.
func countGranted(g *store.Group) (n int) {
	for i := range g.Ops {
		if g.Ops[i].Granted > 0 {
			n++
		}
	}
	return n
}

func (s portable) readLocked(results pgx.BatchResults, order []int, rows []store.State) (now int64, err error) {
	defer func() { err = closeBatch(results, err) }()
	for _, i := range order {
		if _, err = results.Exec(); err != nil {
			return 0, storeError(err, false)
		}
		if err = scanRow(results, &rows[i]); err != nil {
			return 0, err
		}
		if rows[i].Used == 0 { // just inserted, or full
			rows[i] = store.State{}
		}
	}
	return s.readClock(results)
}

// execBatch runs statements and discards their results.
func execBatch(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error {
	if b.Len() == 0 {
		return nil
	}
	return storeError(tx.SendBatch(ctx, b).Close(), false)
}

func (s portable) txClock(ctx context.Context, tx pgx.Tx) (now int64, err error) {
	if s.clock != nil {
		return s.clock(), nil
	}
	return now, storeError(tx.QueryRow(ctx, "select "+readNow).Scan(&now), false)
}
