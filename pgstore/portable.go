package pgstore

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
)

// portableGroup decides a group whose limits were found. A take is one
// statement; what it does not answer is read, decided in Go, and only where
// something is to be written decided once more in a transaction that holds the
// rows.
func (s *Store) portableGroup(ctx context.Context, g *dipwell.Group, entries []*entry) error {
	op := &g.Ops[0]
	if len(g.Ops) == 1 && op.Verb == dipwell.VerbTake && entries[0].plain && op.Cost > 0 && op.Cost <= op.Def.Rule.Burst {
		if done, err := s.portableTake(ctx, g, entries[0]); done || err != nil {
			return err
		}
	}
	changes, err := s.portableLook(ctx, g, entries)
	if err != nil || !changes {
		return err
	}
	return s.transactOnce(ctx, func(tx pgx.Tx) error { return s.portableDecide(ctx, tx, g, entries) })
}

func (s *Store) portableTake(ctx context.Context, g *dipwell.Group, e *entry) (done bool, err error) {
	op := &g.Ops[0]
	var scratch dipwell.Rule
	rule := op.Def.RuleFor(op.Key, &scratch)
	args := append(make([]any, 0, 4), op.Key, op.Cost*rule.Unit)
	if spread(rule) {
		args = append(args, gridOf(rule.Origin, rule.Every))
	}
	var row dipwell.State
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
	admit(g, rule, row, seen)
	return true, nil
}

// portableLook reads the clock and then the rows, and answers; it reports
// whether what was answered is still to be done.
func (s *Store) portableLook(ctx context.Context, g *dipwell.Group, entries []*entry) (changes bool, err error) {
	var b pgx.Batch
	s.askClock(&b)
	for i := range g.Ops {
		b.Queue(rowSQL, entries[i].id, g.Ops[i].Key)
	}
	results := s.db.SendBatch(ctx, &b)
	defer func() { err = closed(results, err) }()
	now, err := s.readClock(results)
	if err != nil {
		return false, err
	}
	rows, write := make([]dipwell.State, len(g.Ops)), make([]bool, len(g.Ops))
	for i := range rows {
		if err = scanRow(results, &rows[i]); err != nil {
			return false, err
		}
	}
	if err = g.Decide(now, rows, write); err != nil || !g.Allowed {
		return false, err
	}
	for i := range g.Ops {
		changes = changes || write[i] || g.Ops[i].Verb == dipwell.VerbReset
	}
	return changes, nil
}

// askClock queues a read of the clock, unless a test has its own.
func (s *Store) askClock(b *pgx.Batch) {
	if s.clock == nil {
		b.Queue("select " + s.cat.dialect.Load().clock)
	}
}

func (s *Store) readClock(results pgx.BatchResults) (now int64, err error) {
	if s.clock != nil {
		return s.clock(), nil
	}
	return now, storeError(results.QueryRow().Scan(&now), false)
}

// scanRow reads a bucket; a missing one is full.
func scanRow(results pgx.BatchResults, row *dipwell.State) error {
	err := results.QueryRow().Scan(&row.Used, &row.TS, &row.Version)
	if errors.Is(err, pgx.ErrNoRows) {
		*row = dipwell.State{}
		return nil
	}
	return storeError(err, false)
}

// closed ends a batch; the error that came first says more.
func closed(results pgx.BatchResults, err error) error {
	if cerr := results.Close(); err == nil {
		err = storeError(cerr, false)
	}
	return err
}

// errNothing ends a transaction that has nothing to write.
var errNothing = errors.New("nothing to write")

// transact runs f in a transaction, anew where it collides.
func (s *Store) transact(ctx context.Context, f func(pgx.Tx) error) error {
	try := func() error { return s.transactOnce(ctx, f) }
	return s.again(ctx, try(), try)
}

// transactOnce is transact for those whose caller begins anew, so that the
// bounds of the two do not multiply. Until the commit is sent nothing counts, so
// that only its failure leaves the outcome open.
func (s *Store) transactOnce(ctx context.Context, f func(pgx.Tx) error) error {
	begin, ok := s.db.(Beginner)
	if !ok {
		return dipwell.ErrNotSupported
	}
	tx, err := begin.Begin(ctx)
	if err != nil {
		return storeError(err, false)
	}
	if err = f(tx); err != nil {
		_ = tx.Rollback(ctx) // the connection goes where it cannot
		if errors.Is(err, errNothing) {
			return nil
		}
		return err
	}
	return commitError(tx.Commit(ctx))
}

// portableDecide locks the rows in the order of their keys, makes those that
// are missing, reads the clock, and decides and writes.
func (s *Store) portableDecide(ctx context.Context, tx pgx.Tx, g *dipwell.Group, entries []*entry) error {
	order := make([]int, len(g.Ops))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(entries[a].id, entries[b].id), cmp.Compare(g.Ops[a].Key, g.Ops[b].Key))
	})
	var b pgx.Batch
	for _, i := range order {
		b.Queue(makeSQL, entries[i].id, g.Ops[i].Key, int32(g.Ops[i].Def.Number))
		b.Queue(lockSQL, entries[i].id, g.Ops[i].Key)
	}
	s.askClock(&b)
	rows, write := make([]dipwell.State, len(g.Ops)), make([]bool, len(g.Ops))
	now, err := s.readLocked(tx.SendBatch(ctx, &b), order, rows)
	if err != nil {
		return err
	}
	if err = g.Decide(now, rows, write); err != nil {
		return err
	}
	if !g.Allowed {
		return errNothing
	}
	return s.portableWrite(ctx, tx, g, entries, rows, write, now)
}

func (s *Store) readLocked(results pgx.BatchResults, order []int, rows []dipwell.State) (now int64, err error) {
	defer func() { err = closed(results, err) }()
	for _, i := range order {
		if _, err = results.Exec(); err != nil {
			return 0, storeError(err, false)
		}
		if err = scanRow(results, &rows[i]); err != nil {
			return 0, err
		}
		if rows[i].Used == 0 { // made just now, or full
			rows[i] = dipwell.State{}
		}
	}
	return s.readClock(results)
}

func (s *Store) portableWrite(ctx context.Context, tx pgx.Tx, g *dipwell.Group, entries []*entry, rows []dipwell.State, write []bool, now int64) error {
	var b pgx.Batch
	for i := range g.Ops {
		op, id := &g.Ops[i], entries[i].id
		switch {
		case op.Verb == dipwell.VerbReset:
			if err := resetReservations(ctx, tx, &b, id, op.Key); err != nil {
				return err
			}
			b.Queue(dropSQL, id, op.Key)
		case write[i] && rows[i].Used > 0:
			b.Queue(storeSQL, id, op.Key, rows[i].Used, rows[i].TS, int32(rows[i].Version))
		case write[i] || rows[i].Used == 0:
			b.Queue(dropSQL, id, op.Key)
		}
		if g.Reserved && op.Granted > 0 {
			b.Queue(holdSQL, [16]byte(g.ID), id, op.Key, op.Granted*op.Def.Rule.Unit, int32(op.Def.Number), now+g.Due())
		}
	}
	return run(ctx, tx, &b)
}

// run sends statements whose answers do not matter.
func run(ctx context.Context, tx pgx.Tx, b *pgx.Batch) error {
	if b.Len() == 0 {
		return nil
	}
	return storeError(tx.SendBatch(ctx, b).Close(), false)
}

func resetReservations(ctx context.Context, tx pgx.Tx, b *pgx.Batch, id int32, key string) error {
	found, err := tx.Query(ctx, ofKeySQL, id, key)
	if err != nil {
		return storeError(err, false)
	}
	ids, err := pgx.CollectRows(found, pgx.RowTo[[16]byte])
	for _, r := range ids {
		b.Queue(unholdSQL, r)
	}
	return storeError(err, false)
}

// held is what a reservation charged to one key.
type held struct {
	LimitID int32
	Key     string
	Units   int64
	Version uint32
}

// portableCancel gives a reservation back, once, before it is due. Buckets are
// locked before reservations, as everywhere.
func (s *Store) portableCancel(ctx context.Context, tx pgx.Tx, id dipwell.Reservation) error {
	now, err := s.txClock(ctx, tx)
	if err != nil {
		return err
	}
	found, err := tx.Query(ctx, heldSQL, [16]byte(id), now)
	if err != nil {
		return storeError(err, false)
	}
	parts, err := pgx.CollectRows(found, pgx.RowToStructByPos[held])
	if err != nil {
		return storeError(err, false)
	}
	rows := make([]dipwell.State, len(parts))
	var b pgx.Batch
	for _, p := range parts {
		b.Queue(lockSQL, p.LimitID, p.Key)
	}
	if len(parts) == 0 {
		return dipwell.ErrReservation
	}
	results := tx.SendBatch(ctx, &b)
	for i := range rows {
		if err = scanRow(results, &rows[i]); err != nil {
			break
		}
	}
	if err = closed(results, err); err != nil {
		return err
	}
	if now, err = s.txClock(ctx, tx); err != nil {
		return err
	}
	gone, err := tx.Exec(ctx, unholdSQL+" and due > $2", [16]byte(id), now)
	if err != nil {
		return storeError(err, false)
	}
	if gone.RowsAffected() == 0 {
		return dipwell.ErrReservation
	}
	return s.giveBack(ctx, tx, parts, rows, now)
}

func (s *Store) giveBack(ctx context.Context, tx pgx.Tx, parts []held, rows []dipwell.State, now int64) error {
	var b pgx.Batch
	for i, p := range parts {
		d := s.cat.byID(p.LimitID)
		if d == nil || rows[i].Used == 0 { // dropped, or full
			continue
		}
		row, ok := d.Carry(rows[i], p.Key)
		if !ok {
			return dipwell.ErrStaleDefinition
		}
		var scratch dipwell.Rule
		o := d.RuleFor(p.Key, &scratch).Apply(row, now, dipwell.VerbRefund, 0)
		used := max(0, o.Before-d.CarryUnits(p.Units, p.Version))
		b.Queue(storeSQL, p.LimitID, p.Key, used, o.TS, int32(d.Number))
	}
	return run(ctx, tx, &b)
}

func (s *Store) txClock(ctx context.Context, tx pgx.Tx) (now int64, err error) {
	if s.clock != nil {
		return s.clock(), nil
	}
	return now, storeError(tx.QueryRow(ctx, "select "+s.cat.dialect.Load().clock).Scan(&now), false)
}
