package pgstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// bucketRow is a row of dipwell.buckets.
type bucketRow struct {
	bucketKey
	Used    int64
	TS      int64
	Version int32
	Held    bool // the row has records
}

// portableLag is how long, in µs, a row must have been full before it is
// deleted. Otherwise a statement that read the clock before that time, and
// inserts the row after the sweep, would count the refill in between twice. In
// a portable database it is not known which statements are running.
const portableLag = 60_000_000

// portablePage is the number of rows that one statement reads.
const portablePage = 1000

// portablePass is this program's progress through the portable tables.
type portablePass struct {
	mu      sync.Mutex       // held during a sweep, so that one runs at a time
	at      bucketRow        // row that was read last; LimitID 0: at the start of a pass
	began   int64            // start of this pass, in µs
	covered int64            // start of the last complete pass, in µs
	oldest  map[int32]uint32 // by limit id: oldest version of the rows that were read
}

// sweep reads pages of rows, from where the last sweep stopped, and deletes the rows
// that are full and unchanged since they were read. sweep reads each row at most once.
func (s portable) sweep(ctx context.Context, n int) (rows int, err error) {
	pass := &s.limits.pass
	if !pass.mu.TryLock() {
		return 0, nil
	}
	defer pass.mu.Unlock()
	from, wrapped := pass.at, pass.at.LimitID == 0
	for rows < n {
		did, err := s.sweepKeys(ctx, pass, n-rows)
		rows += did.rows
		if err != nil || wrapped && (did.ended || pass.at.compare(from.bucketKey) >= 0 && from.LimitID != 0) {
			return rows, err
		}
		wrapped = wrapped || did.ended
	}
	return rows, nil
}

// sweepStep reads and sweeps one page. With n = 0 sweepStep only reports the state.
func (s portable) sweepStep(ctx context.Context, n int) (did swept, err error) {
	pass := &s.limits.pass
	if !pass.mu.TryLock() {
		return did, nil
	}
	defer pass.mu.Unlock()
	if n > 0 {
		did, err = s.sweepKeys(ctx, pass, n)
	}
	did.covered = pass.covered
	if pass.at.LimitID != 0 {
		did.page = 1
	}
	return did, err
}

// sweepKeys reads and sweeps the next page of a pass.
func (s portable) sweepKeys(ctx context.Context, pass *portablePass, n int) (did swept, err error) {
	now, err := s.now(ctx)
	if err != nil {
		return did, err
	}
	if s.clock == nil {
		now -= portableLag
	}
	if pass.at.LimitID == 0 {
		pass.began, pass.oldest = now, map[int32]uint32{}
		if err = s.sweepDue(ctx, now); err != nil {
			return did, err
		}
	}
	page, err := list(ctx, s.db, pgx.RowToStructByPos[bucketRow], pageSQL, pass.at.LimitID, pass.at.Key, portablePage)
	if err != nil {
		return did, err
	}
	did.size, did.looked = 1, len(page)/100
	rows, all, err := s.sweepPage(ctx, page, now, n, pass.oldest)
	if did.rows = rows; err != nil || !all {
		return did, err // continue in the same page
	}
	if len(page) == portablePage {
		pass.at = page[len(page)-1]
		return did, nil
	}
	pass.at, pass.covered, did.ended = bucketRow{}, pass.began, true
	return did, s.retireOlder(ctx, pass.began, pass.oldest)
}

// sweepPage deletes at most n rows of a page that are full at now. all is false
// if some full rows are left.
func (s portable) sweepPage(ctx context.Context, page []bucketRow, now int64, n int, oldest map[int32]uint32) (rows int, all bool, err error) {
	defs := map[int32]*store.Definition{}
	for _, e := range *s.limits.entries.Load() {
		defs[e.id] = e.def
	}
	var b pgx.Batch
	all = true
	for _, row := range page {
		d := defs[row.LimitID]
		stays := d != nil && !isFull(d, row, now)
		if all = all && (stays || b.Len() < n); stays || b.Len() == n {
			if v, ok := oldest[row.LimitID]; row.Version >= 0 && (!ok || terms.VersionOf(uint32(row.Version)) < v) { // the version of an override is not a version of the limit
				oldest[row.LimitID] = terms.VersionOf(uint32(row.Version))
			}
			continue
		}
		if d == nil && !dropped(ctx, s.db, row.LimitID) {
			continue
		}
		b.Queue(deleteUnchangedSQL, row.LimitID, row.Key, row.Used, row.TS, row.Version).Exec(func(tag pgconn.CommandTag) error {
			rows += int(tag.RowsAffected())
			return nil
		})
	}
	if b.Len() == 0 {
		return 0, all, nil
	}
	run := func() error { rows = 0; return s.db.SendBatch(ctx, &b).Close() }
	return rows, all, storeError(s.retry(ctx, run(), run), false)
}

// isFull reports whether a row is a full bucket.
func isFull(d *store.Definition, row bucketRow, now int64) bool {
	state := store.State{Used: row.Used, TS: row.TS, Version: uint32(row.Version)}
	if terms.IsOverride(state.Version) || row.Held && state.Version != d.Number {
		return false // sweepDue deletes such a row when the override or the records end
	}
	own := d.Own(state, now)
	state, ok := own.Carry(state, row.Key, now)
	var scratch store.Rule
	return ok && own.RuleFor(row.Key, &scratch).Used(state, now) == 0
}

// dropped reports whether an unknown limit was dropped, rather than just added.
func dropped(ctx context.Context, db rower, id int32) bool {
	var there bool
	err := db.QueryRow(ctx, "select exists (select 1 from dipwell.limits where id = $1)", id).Scan(&there)
	return err == nil && !there
}

// keepVersion is how long a version is kept after the next one began. A program reads the
// limits at most catalog.MaxUnheard before it sends a statement, and no statement takes the rest
// of this time. A row inserted under a version that was deleted would count as full.
const keepVersion = 10 * time.Minute

// retireOlder deletes versions that no row of a complete pass refers to.
func (s portable) retireOlder(ctx context.Context, now int64, oldest map[int32]uint32) error {
	first := map[int32]uint32{} // by limit id: the first version that stays, of limits that have older ones
	for _, e := range *s.limits.entries.Load() {
		if len(e.def.Past) == 0 {
			continue
		}
		stays, ok := oldest[e.id]
		if !ok {
			stays = e.def.Number
		}
		for _, v := range append(slices.Clone(e.def.Past), catalog.Present(e.def)) {
			if v.Since >= now-keepVersion.Microseconds() { // the version before v may still be in use
				stays = min(stays, v.Number-1)
			}
		}
		if len(e.def.Past) > manyPast { // otherwise a later pass could not delete old versions
			if err := s.sweepRows(ctx, now, olderSQL, e.id, int32(e.def.Number)-manyPast/2, portablePage); err != nil {
				return err
			}
		}
		if stays > e.def.Past[0].Number {
			first[e.id] = stays
		}
	}
	if len(first) == 0 {
		return nil
	}
	err := s.change(ctx, "", func(in portable, reg *store.Registry, ids map[string]int32, _, _ int64) error {
		return in.retireBefore(ctx, reg, ids, first)
	})
	if err == nil {
		err = s.loadForCall(ctx) // otherwise the next pass would find these versions again
	}
	return storeError(err, false)
}

// retireBefore deletes versions before the first of each limit that no override refers to.
func (s portable) retireBefore(ctx context.Context, reg *store.Registry, ids map[string]int32, first map[int32]uint32) error {
	err := errNoWrite
	for _, was := range reg.All() {
		id := ids[was.Name]
		stays, ok := first[id]
		if !ok {
			continue
		}
		var oldest uint32
		if err := s.db.QueryRow(ctx, "select coalesce(min(version), $2::int) from dipwell.overrides where limit_id = $1", id, int32(stays)).Scan(&oldest); err != nil { //nolint:gosec // versions are small numbers
			return err
		}
		reg.Retire(was.Name, min(stays, oldest, was.Number))
		if d := reg.Lookup(was.Name); len(d.Past) < len(was.Past) {
			if _, err := s.db.Exec(ctx, setLimitSQL, id, d.Name, catalog.Stored(d).String()); err != nil {
				return err
			}
			err = nil
		}
	}
	return err
}

const (
	olderSQL = `select limit_id, key from dipwell.buckets where limit_id = $1 and version > 0 and version & 1048575 < $2
		union select limit_id, key from dipwell.overrides where limit_id = $1 and version < $2 limit $3`

	manyPast = 64 // if a limit has so many versions, rows that are more than half as many versions old are converted
)

// retire does nothing, because retireOlder runs at the end of each pass.
func (portable) retire(context.Context) (more bool, err error) { return false, nil }
