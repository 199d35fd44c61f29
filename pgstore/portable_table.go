package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// These statements are for a portableTable. A bucket is locked before its override and
// its records are read.
const (
	clockSQL = "select coalesce($1::bigint, " + readNow + ")"

	overrideSQL       = "select key, override from dipwell.overrides where limit_id = $1 and key = $2"
	setOverrideRowSQL = `insert into dipwell.overrides (limit_id, key, version, until, under, override) values ($1, $2, $3, $4, $5, $6)
on conflict (limit_id, key) do update set version = excluded.version, until = excluded.until, under = excluded.under, override = excluded.override`
	deleteOverrideSQL = "delete from dipwell.overrides where limit_id = $1 and key = $2"

	allRecordsSQL = "select record from dipwell.records where limit_id = $1 and key = $2 and number <> 0 order by number, mark"
	oneRecordSQL  = "select record from dipwell.records where limit_id = $1 and key = $2 and number = $3 and mark = $4"
	setRecordSQL  = `insert into dipwell.records (limit_id, key, number, mark, hold, due, record) values ($1, $2, $3, $4, $5, $6, $7)
on conflict (limit_id, key, mark, number, hold) do update set due = excluded.due, record = excluded.record`
	deleteRecordSQL = "delete from dipwell.records where limit_id = $1 and key = $2 and number = $3 and mark = $4"

	// Parts of holds that took nothing have the number 0.
	countSQL      = "select count(*) from dipwell.records where limit_id = $1 and key = $2"
	liveSQL       = countSQL + " and (number <> 0 or due > $3)"
	deleteFreeSQL = deleteRecordSQL + " and hold = $5"

	pendingSQL       = "select due, parts from dipwell.reservations where id = $1"
	setPendingSQL    = "insert into dipwell.reservations (id, due, parts) values ($1, $2, $3) on conflict (id) do update set due = excluded.due, parts = excluded.parts"
	deletePendingSQL = "delete from dipwell.reservations where id = $1"

	holdSQL       = "select hold from dipwell.holds where id = $1"
	lockHoldSQL   = holdSQL + " for update"
	insertHoldSQL = "insert into dipwell.holds (id, forget, hold) values ($1, $2, $3)"
	updateHoldSQL = "update dipwell.holds set forget = $2, hold = $3 where id = $1"
	deleteHoldSQL = "delete from dipwell.holds where id = $1"
)

// A portableTable is a store.Table over the portable tables. In a transaction of transact a
// portableTable locks the rows that it reads. Outside of one it only reads; if changed then
// reports that something must be written, the call must be decided again in a transaction.
type portableTable struct {
	portable
	ctx     context.Context
	group   *store.Group
	rows    map[bucketKey]*portableRow
	holds   map[string]bool // ids that Hold has looked up
	out     pgx.Batch       // writes other than those of rows
	changed bool
}

var _ store.Table = (*portableTable)(nil)

// portableRow is the row of a key, with its override.
type portableRow struct {
	state   store.State
	count   int // records and parts of holds that took nothing, including ended ones
	changed bool
}

func (s portable) table(ctx context.Context, g *store.Group) *portableTable {
	return &portableTable{portable: s, ctx: ctx, group: g, rows: map[bucketKey]*portableRow{}, holds: map[string]bool{}}
}

// onTable runs f on a table with the rows of keys, in a transaction, and writes what has
// changed.
func (s portable) onTable(ctx context.Context, keys []bucketKey, f func(t *portableTable, now int64) error) error {
	t := s.table(ctx, nil)
	now, err := t.load(keys)
	if err == nil {
		err = f(t, now)
	}
	if err == nil {
		err = t.flush()
	}
	return err
}

// load reads rows, in the order of limit id and key, and then the clock. In a
// transaction load locks the rows first, and inserts missing ones.
func (t *portableTable) load(keys []bucketKey) (now int64, err error) {
	slices.SortFunc(keys, bucketKey.compare)
	keys = slices.Compact(keys)
	var b pgx.Batch
	for _, k := range keys {
		r := &portableRow{}
		t.rows[k] = r
		sql := rowSQL
		if t.locks {
			version := int32(1)
			if d := t.limits.byID(k.LimitID); d != nil {
				version = int32(d.Number)
			}
			b.Queue(insertRowSQL, k.LimitID, k.Key, version)
			sql = lockSQL
		}
		b.Queue(sql, k.LimitID, k.Key).QueryRow(r.scan)
		b.Queue(overrideSQL, k.LimitID, k.Key).QueryRow(r.scanOverride)
		b.Queue(countSQL, k.LimitID, k.Key).QueryRow(func(row pgx.Row) error { return row.Scan(&r.count) })
	}
	b.Queue(clockSQL, t.testNow()).QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	err = storeError(t.db.SendBatch(t.ctx, &b).Close(), false)
	for _, k := range keys {
		r := t.rows[k]
		if !t.locks && terms.IsOverride(r.state.Version) && r.state.Override == nil { // the override ended between two statements
			t.changed = true
		}
		if r.state.Used == 0 { // the row was just inserted, is full, or belongs to an override
			r.state = store.State{Override: r.state.Override}
		}
	}
	return now, err
}

// scan reads the bucket. A missing row is a full bucket.
func (r *portableRow) scan(row pgx.Row) error {
	var lows *string
	var low *int64
	err := row.Scan(&r.state.Used, &r.state.TS, (*rowVersion)(&r.state.Version), &lows, &low)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil || lows == nil {
		return err
	}
	var l store.Lows
	err = json.Unmarshal([]byte(*lows), &l)
	r.state.Lows = l.LoweredTo(*low)
	return err
}

func (r *portableRow) scanOverride(row pgx.Row) (err error) {
	if r.state.Override, err = scanOverride(row, catalog.DecodeOverride); errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// nullIf returns nil, which is sent as null, if v equals none.
func nullIf[T comparable](v, none T) *T {
	if v == none {
		return nil
	}
	return &v
}

// row returns the row of a key, or nil if the limit was dropped.
func (t *portableTable) row(limit, key string) (*portableRow, error) {
	e := (*t.limits.entries.Load())[limit]
	if e == nil {
		return nil, nil
	}
	k := bucketKey{e.id, key}
	if t.rows[k] == nil {
		if _, err := t.load([]bucketKey{k}); err != nil {
			return nil, err
		}
	}
	return t.rows[k], nil
}

func (t *portableTable) Row(limit, key string) (store.State, error) {
	r, err := t.row(limit, key)
	if r == nil {
		return store.State{}, err
	}
	return r.state, nil
}

func (t *portableTable) SetRow(limit, key string, row store.State) error {
	r, err := t.row(limit, key)
	if r != nil {
		row.Override = r.state.Override
		r.state, r.changed, t.changed = row, true, true
	}
	return err
}

func (t *portableTable) Record(limit, key string, id store.RecordID) (store.Record, error) {
	all, err := t.records(limit, key, oneRecordSQL, id.Number, id.Mark)
	return store.FindRecord(all, id), err
}

func (t *portableTable) Records(limit, key string) ([]store.Record, error) {
	return t.records(limit, key, allRecordsSQL)
}

func (t *portableTable) records(limit, key, sql string, args ...any) (all []store.Record, err error) {
	r, err := t.row(limit, key)
	if r == nil || r.count == 0 {
		return nil, err
	}
	args = append([]any{(*t.limits.entries.Load())[limit].id, key}, args...)
	return list(t.ctx, t.db, func(row pgx.CollectableRow) (rec store.Record, err error) {
		var text string
		if err = row.Scan(&text); err == nil {
			err = json.Unmarshal([]byte(text), &rec)
		}
		return rec, err
	}, sql, args...)
}

func (t *portableTable) SetRecord(limit, key string, at store.RecordID, rec store.Record) error {
	r, err := t.row(limit, key)
	if r == nil {
		return err
	}
	t.changed = true
	id := (*t.limits.entries.Load())[limit].id
	if rec == (store.Record{}) {
		t.out.Queue(deleteRecordSQL, id, key, at.Number, at.Mark)
		return nil
	}
	due := rec.Ends
	if rec.Hold != "" && rec.Ends == store.MaxInt && !rec.Rest {
		due = rec.Expires
	}
	t.out.Queue(setRecordSQL, id, key, at.Number, at.Mark, rec.Hold, due, texts.Marshal(rec))
	return nil
}

func (t *portableTable) SetOverride(limit, key string, o *store.Override) error {
	r, err := t.row(limit, key)
	if r == nil {
		return err
	}
	r.state.Override, r.changed, t.changed = o, true, true
	id := (*t.limits.entries.Load())[limit].id
	if o == nil {
		t.out.Queue(deleteOverrideSQL, id, key)
		return nil
	}
	t.out.Queue(setOverrideRowSQL, id, key, int32(o.Version), nullIf(o.Until, 0), nullIf(o.Under != nil, false), catalog.EncodeOverride(o)) //nolint:gosec // versions are small numbers
	return nil
}

// Pending returns a reservation. Its limits are those that have these names now.
func (t *portableTable) Pending(id store.Reservation) (h store.Pending, err error) {
	var parts string
	err = t.db.QueryRow(t.ctx, pendingSQL, uuidOf(id)).Scan(&h.Due, &parts)
	if errors.Is(err, pgx.ErrNoRows) {
		return h, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(parts), &h.Parts)
	}
	return h, storeError(err, false)
}

func (t *portableTable) SetPending(id store.Reservation, h store.Pending) error {
	if t.changed = true; len(h.Parts) == 0 {
		t.out.Queue(deletePendingSQL, uuidOf(id))
	} else {
		t.out.Queue(setPendingSQL, uuidOf(id), h.Due, texts.Marshal(h.Parts))
	}
	return nil
}

func (t *portableTable) Hold(id string) (store.Hold, error) {
	sql := holdSQL
	if t.locks {
		sql = lockHoldSQL
	}
	h, err := t.readHold(sql, id)
	t.holds[id] = len(h.Parts) > 0
	return h, err
}

func (t *portableTable) readHold(sql, id string) (h store.Hold, err error) {
	var text string
	err = t.db.QueryRow(t.ctx, sql, id).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return h, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &h)
	}
	return h, storeError(err, false)
}

func (t *portableTable) SetHold(id string, h store.Hold) error {
	t.changed = true
	if len(h.Parts) == 0 {
		t.out.Queue(deleteHoldSQL, id)
		return nil
	}
	sql := insertHoldSQL
	if t.holds[id] {
		sql = updateHoldSQL
	}
	t.holds[id] = true
	t.out.Queue(sql, id, h.Forget, texts.Marshal(h))
	t.setFree(id, &h)
	return nil
}

// setFree stores, changes or deletes the parts of a hold that took nothing.
func (t *portableTable) setFree(id string, h *store.Hold) {
	for i := range h.Parts {
		p := &h.Parts[i]
		e := (*t.limits.entries.Load())[p.Limit]
		switch {
		case !p.Free || e == nil:
		case h.Settled:
			t.out.Queue(deleteFreeSQL, e.id, p.Key, 0, 0, id)
		default:
			t.out.Queue(setRecordSQL, e.id, p.Key, 0, 0, id, h.Expires, "")
		}
	}
}

func (t *portableTable) Live(limit, key string, now int64) (n int, err error) {
	r, err := t.row(limit, key)
	if err != nil || r == nil || r.count < terms.MaxWaiting { // the number is far from any bound
		return 0, err
	}
	err = t.db.QueryRow(t.ctx, liveSQL, (*t.limits.entries.Load())[limit].id, key, now).Scan(&n)
	return n, storeError(err, false)
}

// flush writes what has changed, and deletes the rows that load inserted and that are not
// needed.
func (t *portableTable) flush() error {
	for _, k := range slices.SortedFunc(maps.Keys(t.rows), bucketKey.compare) {
		t.flushRow(k, t.rows[k])
	}
	if t.out.Len() == 0 {
		return nil
	}
	err := t.db.SendBatch(t.ctx, &t.out).Close()
	if codeOf(err) == codeUnique { // a concurrent call has made a hold with this id
		return store.ErrHoldConflict
	}
	return storeError(err, false)
}

func (t *portableTable) flushRow(k bucketKey, r *portableRow) {
	row := r.state
	lows, low, due := lowsColumns(row.Lows)
	switch d := t.limits.byID(k.LimitID); {
	case row.Override != nil && d != nil: // the row stays while the override lives, so that other statements find it
		if row.Used == 0 {
			row = store.State{Version: d.WithOverride(row.Override).Number}
		}
		t.out.Queue(updateRowSQL, k.LimitID, k.Key, row.Used, row.TS, int32(row.Version), lows, low, due)
	case row.Used == 0:
		t.out.Queue(deleteRowSQL, k.LimitID, k.Key)
	case r.changed:
		t.out.Queue(updateRowSQL, k.LimitID, k.Key, row.Used, row.TS, int32(row.Version), lows, low, due)
	}
}

// keys returns the keys of a group: those of its ops, or those of the reservation or hold
// that it ends.
func (t *portableTable) keys(g *store.Group) (keys []bucketKey, err error) {
	entries := *t.limits.entries.Load()
	add := func(parts []store.Part) error {
		for i := range parts {
			p := &parts[i]
			if e := entries[p.Limit]; e != nil {
				keys = append(keys, bucketKey{e.id, p.Key})
			} else if err := t.unknown(p.Limit); err != nil {
				return err
			}
		}
		return nil
	}
	switch {
	case g.Cancel:
		h, err := t.Pending(g.ID)
		err = cmp.Or(err, add(h.Parts))
		return keys, err
	case g.Settles():
		h, err := t.readHold(holdSQL, g.Hold.ID) // a hold is locked after its buckets
		err = cmp.Or(err, add(h.Parts))
		return keys, err
	}
	for i := range g.Ops {
		if e := entries[g.Ops[i].Def.Name]; e != nil {
			keys = append(keys, bucketKey{e.id, g.Ops[i].Key})
		}
	}
	return keys, nil
}

// unknown returns an error if a limit exists that this program does not know:
// ErrStaleDefinition if the limits have to be read first, or why the limit cannot be read.
// unknown returns nil if the limit was dropped.
func (t *portableTable) unknown(name string) error {
	err := t.db.QueryRow(t.ctx, "select name from dipwell.limits where name = $1", name).Scan(&name)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return storeError(err, false)
	}
	return cmp.Or(t.limits.reg.Unreadable(name), store.ErrStaleDefinition)
}

// decide decides a group. Nothing is written before flush.
func (t *portableTable) decide() error {
	g := t.group
	if g.Hold != nil {
		if err := g.Hold.Check(nil); err != nil { // DecideIn makes the other checks
			return err
		}
	}
	if g.Settles() {
		g.Ops = nil // a previous attempt may have set the ops
	}
	keys, err := t.keys(g)
	if err != nil {
		return err
	}
	now, err := t.load(keys)
	if err != nil {
		return err
	}
	return g.DecideIn(t, &t.limits.reg, now)
}

// transactGroup decides a group in a transaction that locks its rows.
func (s portable) transactGroup(ctx context.Context, g *store.Group) error {
	return s.transactOnce(ctx, func(in portable) error {
		t := in.table(ctx, g)
		if err := t.decide(); err != nil {
			return err
		}
		if !t.changed {
			return errNoWrite
		}
		return t.flush()
	})
}

// SetOverride sets an override of a key, as store.Overrider says.
func (s portable) SetOverride(ctx context.Context, d *store.Definition, o store.Override) (set store.Override, err error) {
	err = s.changeOverride(ctx, d, o.Key, true, func(t store.Table, d *store.Definition, now int64) (err error) {
		set, err = d.SetOverrideIn(t, o.Key, o, now)
		return err
	})
	return set, err
}

// EndOverride ends an override of a key.
func (s portable) EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (ended *store.Override, err error) {
	err = s.changeOverride(ctx, d, key, false, func(t store.Table, d *store.Definition, now int64) (err error) {
		ended, err = d.EndOverrideIn(t, key, kind, now)
		return err
	})
	return ended, err
}

// changeOverride changes the overrides of a key under the present definition of its limit.
// sets is true if the key has an override afterwards.
func (s portable) changeOverride(ctx context.Context, d *store.Definition, key string, sets bool, change func(t store.Table, d *store.Definition, now int64) error) error {
	for range maxTries {
		e, err := s.entry(ctx, d)
		if err != nil {
			return err
		}
		first := false
		err = s.transact(ctx, func(in portable) (err error) {
			if first = sets && !e.def.Overridden; sets {
				if err = e.keepLimit(ctx, in.db, first); err != nil {
					return err
				}
			}
			return in.onTable(ctx, []bucketKey{{e.id, key}}, func(t *portableTable, now int64) error { return change(t, e.def, now) })
		})
		if err == nil && first {
			_ = s.loadForCall(ctx) // if it fails, the next poll reads the limits
		}
		if !errors.Is(err, store.ErrStaleDefinition) {
			return err
		}
		if err = s.loadForCall(ctx); err != nil {
			return err
		}
	}
	return store.ErrStaleDefinition
}

// keyHolds lists the live holds of a key.
func (s portable) keyHolds(ctx context.Context, d *store.Definition, key string) ([]store.KeyHold, error) {
	e, err := s.entry(ctx, d)
	if err != nil {
		return nil, err
	}
	t := s.table(ctx, nil)
	now, err := t.load([]bucketKey{{e.id, key}})
	if err != nil {
		return nil, err
	}
	records, err := t.Records(e.def.Name, key)
	return store.KeyHolds(records, now), err
}
