package pgstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// These statements are for a portableTable. A bucket is locked before its override and
// its records are read.
const (
	clockSQL = "select coalesce($1::bigint, " + readNow + ")"

	overrideSQL       = "select " + overrideColumns + " from dipwell.overrides where limit_id = $1 and key = $2"
	overrideColumns   = "key, plan, rate, per, burst, start, until, note, id, version, under"
	insertOverrideSQL = `insert into dipwell.overrides (limit_id, key, plan, rate, per, burst, start, until, note, id, version, under) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
on conflict (limit_id, key) do update set plan = excluded.plan, rate = excluded.rate, per = excluded.per, burst = excluded.burst, start = excluded.start,
until = excluded.until, note = excluded.note, id = excluded.id, version = excluded.version, under = excluded.under`
	deleteOverrideSQL = "delete from dipwell.overrides where limit_id = $1 and key = $2"

	recordsSQL = `select number, mark, units, unit, coalesce(slack, -1), part_due, coalesce(ends, due), rest, coalesce(hold, ''), coalesce(expires, 0)
from dipwell.reservations where limit_id = $1 and key = $2 and number <> 0`
	allRecordsSQL   = recordsSQL + " order by number, mark"
	oneRecordSQL    = recordsSQL + " and number = $3 and mark = $4"
	insertRecordSQL = `insert into dipwell.reservations (id, limit_id, key, units, unit, due, part_due, number, mark, slack, rest, parts, hold, expires, ends)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, false, $11, $12, $13, $14)`
	updateRecordSQL     = "update dipwell.reservations set units = $5, slack = $6, unit = $7, rest = $8, due = $9, expires = $10, ends = $11" + whereRecord
	deleteRecordSQL     = "delete from dipwell.reservations" + whereRecord
	whereRecord         = " where limit_id = $1 and key = $2 and number = $3 and mark = $4"
	reservationPartsSQL = "select limit_id, key, number, mark, parts, due from dipwell.reservations where id = $1 and hold is null and not rest order by limit_id, key"

	// Parts of holds that took nothing have the number 0.
	countSQL      = "select count(*) from dipwell.reservations where limit_id = $1 and key = $2"
	liveSQL       = countSQL + " and (number <> 0 or expires > $3)"
	updateFreeSQL = "update dipwell.reservations set expires = $4, due = $4" + whereFree
	deleteFreeSQL = "delete from dipwell.reservations" + whereFree
	whereFree     = " where limit_id = $1 and key = $2 and number = 0 and hold = $3"

	holdSQL       = "select call, ttl, expires, forget, settled, costs, parts from dipwell.holds where id = $1"
	lockHoldSQL   = holdSQL + " for update"
	insertHoldSQL = "insert into dipwell.holds (id, call, ttl, expires, forget, settled, costs, parts) values ($1, $2, $3, $4, $5, $6, $7, $8)"
	updateHoldSQL = "update dipwell.holds set call = $2, ttl = $3, expires = $4, forget = $5, settled = $6, costs = $7, parts = $8 where id = $1"
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
	count   int                     // records and parts of holds that took nothing, including ended ones
	known   map[store.RecordID]bool // records that were read
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
		r := &portableRow{known: map[store.RecordID]bool{}}
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
	var lows []int64
	var low *int64
	err := row.Scan(&r.state.Used, &r.state.TS, (*rowVersion)(&r.state.Version), &lows, &low)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err == nil {
		r.state.Lows = lowsOf(lows, low)
	}
	return err
}

func (r *portableRow) scanOverride(row pgx.Row) (err error) {
	if r.state.Override, err = scanOverride(row); errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// A storedOverride is an override as it is in columns, and in the JSON of the column under.
// A null means that the limit's setting applies, or that there is no value.
type storedOverride struct {
	Plan    *string         `json:"plan"`
	Rate    *int64          `json:"rate"`
	Per     *string         `json:"per"`
	Burst   *int64          `json:"burst"`
	Start   *string         `json:"start"`
	Until   *int64          `json:"until"`
	Note    *string         `json:"note"`
	ID      int32           `json:"id"`
	Version int32           `json:"version"`
	Under   *storedOverride `json:"under"`
}

func storeOverride(o *store.Override) *storedOverride {
	if o == nil {
		return nil
	}
	v := &storedOverride{nullIf(o.Plan, ""), nullIf(o.Rate, 0), nil, nullIf(o.Burst, 0), nullIf(o.Start, ""), nullIf(o.Until, 0), nullIf(o.Note, ""), int32(o.ID), int32(o.Version), storeOverride(o.Under)}
	if o.Period != 0 {
		per := period.Format(o.Period)
		v.Per = &per
	}
	if o.Burst == store.NoBurst {
		v.Burst = new(int64)
	}
	return v
}

func (v *storedOverride) read(key string) (o *store.Override, err error) {
	if v == nil {
		return nil, nil
	}
	o = &store.Override{Key: key, Plan: orZero(v.Plan), Rate: orZero(v.Rate), Burst: orZero(v.Burst), Start: orZero(v.Start), Until: orZero(v.Until), Note: orZero(v.Note), ID: uint32(v.ID), Version: uint32(v.Version)}
	if v.Burst != nil && *v.Burst == 0 {
		o.Burst = store.NoBurst
	}
	if v.Per != nil {
		if o.Period, err = period.Parse(*v.Per); err != nil {
			return nil, err
		}
	}
	o.Under, err = v.Under.read(key)
	return o, err
}

func scanOverrides(row pgx.CollectableRow) (*store.Override, error) { return scanOverride(row) }

func scanOverride(row pgx.Row) (*store.Override, error) {
	var key string
	var v storedOverride
	var under []byte
	err := row.Scan(&key, &v.Plan, &v.Rate, &v.Per, &v.Burst, &v.Start, &v.Until, &v.Note, &v.ID, &v.Version, &under)
	if err == nil && under != nil {
		err = json.Unmarshal(under, &v.Under)
	}
	if err != nil {
		return nil, err
	}
	return v.read(key)
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
	all, err = list(t.ctx, t.db, pgx.RowToStructByPos[store.Record], sql, args...)
	for i := range all {
		r.known[all[i].ID()] = true
	}
	return all, err
}

func (t *portableTable) SetRecord(limit, key string, at store.RecordID, rec store.Record) error {
	r, err := t.row(limit, key)
	if r == nil {
		return err
	}
	t.changed = true
	limitID := (*t.limits.entries.Load())[limit].id
	due, expires, ends := rec.Ends, nullIf(rec.Expires, 0), (*int64)(nil)
	if rec.Hold != "" && rec.Ends == store.MaxInt && !rec.Rest {
		due, ends = rec.Expires, &rec.Ends
	}
	switch {
	case rec == (store.Record{}):
		t.out.Queue(deleteRecordSQL, limitID, key, at.Number, at.Mark)
	case r.known[at]:
		t.out.Queue(updateRecordSQL, limitID, key, at.Number, at.Mark, rec.Units, nullIf(rec.Slack, -1), rec.Unit, rec.Rest, due, expires, ends)
	default:
		id, parts := t.group.ID, countGranted(t.group)
		if rec.Hold != "" {
			_, _ = rand.Read(id[:]) // never fails
			parts = 1
		}
		t.out.Queue(insertRecordSQL, uuidOf(id), limitID, key, rec.Units, rec.Unit, due, rec.Due, rec.Number, rec.Mark, nullIf(rec.Slack, -1), parts, nullIf(rec.Hold, ""), expires, ends)
	}
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
	v := storeOverride(o)
	var under *string
	if v.Under != nil {
		b, err := json.Marshal(v.Under)
		if err != nil {
			return err
		}
		text := string(b)
		under = &text
	}
	t.out.Queue(insertOverrideSQL, id, key, v.Plan, v.Rate, v.Per, v.Burst, v.Start, v.Until, v.Note, v.ID, v.Version, under)
	return nil
}

// A reservationPart is what a reservation took from one bucket.
type reservationPart struct {
	bucketKey
	Number int64
	Mark   int64
	Parts  int   // number of parts of the reservation; if fewer are found, some keys were reset
	Due    int64 // when the reservation is due
}

func (t *portableTable) parts(id store.Reservation) ([]reservationPart, error) {
	parts, err := list(t.ctx, t.db, pgx.RowToStructByPos[reservationPart], reservationPartsSQL, uuidOf(id))
	if err != nil || len(parts) == 0 || len(parts) != parts[0].Parts {
		return nil, err
	}
	return parts, nil
}

func (t *portableTable) Pending(id store.Reservation) (h store.Pending, err error) {
	parts, err := t.parts(id)
	for _, p := range parts {
		name := ""
		if d := t.limits.byID(p.LimitID); d != nil {
			name = d.Name
		} else if err := t.unknown("id", p.LimitID); err != nil {
			return h, err
		}
		h.Due = p.Due
		h.Parts = append(h.Parts, store.Part{Limit: name, Key: p.Key, Number: p.Number, Mark: p.Mark})
	}
	return h, err
}

// SetPending does nothing: the records of a reservation are all that is stored of it.
func (t *portableTable) SetPending(store.Reservation, store.Pending) error { return nil }

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
	var parts string
	err = t.db.QueryRow(t.ctx, sql, id).Scan(&h.Call, &h.TTL, &h.Expires, &h.Forget, &h.Settled, &h.Costs, &parts)
	if errors.Is(err, pgx.ErrNoRows) {
		return h, nil
	}
	if err == nil {
		err = json.Unmarshal([]byte(parts), &h.Parts)
	}
	return h, storeError(err, false)
}

func (t *portableTable) SetHold(id string, h store.Hold) error {
	t.changed = true
	if len(h.Parts) == 0 {
		t.out.Queue(deleteHoldSQL, id)
		return nil
	}
	parts, err := json.Marshal(h.Parts)
	if err != nil {
		return err
	}
	sql := insertHoldSQL
	if t.holds[id] {
		sql = updateHoldSQL
	}
	t.holds[id] = true
	t.out.Queue(sql, id, h.Call, h.TTL, h.Expires, h.Forget, h.Settled, h.Costs, string(parts))
	t.setFree(id, &h, sql == insertHoldSQL)
	return nil
}

// setFree stores, changes or deletes the parts of a hold that took nothing.
func (t *portableTable) setFree(id string, h *store.Hold, made bool) {
	for i := range h.Parts {
		p := &h.Parts[i]
		e := (*t.limits.entries.Load())[p.Limit]
		switch {
		case !p.Free || e == nil:
		case h.Settled:
			t.out.Queue(deleteFreeSQL, e.id, p.Key, id)
		case made:
			var record store.Reservation
			_, _ = rand.Read(record[:]) // never fails
			t.out.Queue(insertRecordSQL, uuidOf(record), e.id, p.Key, 0, 1, h.Expires, h.Expires, 0, 0, nil, 1, id, h.Expires, nil)
		default:
			t.out.Queue(updateFreeSQL, e.id, p.Key, id, h.Expires)
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
	lows, low := lowsColumns(row.Lows)
	switch d := t.limits.byID(k.LimitID); {
	case row.Override != nil && d != nil: // the row stays while the override lives, so that other statements find it
		if row.Used == 0 {
			row = store.State{Version: d.WithOverride(row.Override).Number}
		}
		t.out.Queue(updateRowSQL, k.LimitID, k.Key, row.Used, row.TS, int32(row.Version), lows, low)
	case row.Used == 0:
		t.out.Queue(deleteRowSQL, k.LimitID, k.Key)
	case r.changed:
		t.out.Queue(updateRowSQL, k.LimitID, k.Key, row.Used, row.TS, int32(row.Version), lows, low)
	}
}

// countGranted returns the number of keys of a reservation.
func countGranted(g *store.Group) (n int) {
	for i := range g.Ops {
		if g.Ops[i].Took() > 0 {
			n++
		}
	}
	return n
}

// keys returns the keys of a group: those of its ops, or those of the reservation or hold
// that it ends.
func (t *portableTable) keys(g *store.Group) (keys []bucketKey, err error) {
	entries := *t.limits.entries.Load()
	add := func(limit, key string) {
		if e := entries[limit]; e != nil {
			keys = append(keys, bucketKey{e.id, key})
		}
	}
	switch {
	case g.Cancel:
		parts, err := t.parts(g.ID)
		for _, p := range parts {
			keys = append(keys, p.bucketKey)
		}
		return keys, err
	case g.Settles():
		h, err := t.readHold(holdSQL, g.Hold.ID) // a hold is locked after its buckets
		if err != nil {
			return nil, err
		}
		for i := range h.Parts {
			p := &h.Parts[i]
			if entries[p.Limit] == nil {
				if err := t.unknown("name", p.Limit); err != nil {
					return nil, err
				}
			}
			add(p.Limit, p.Key)
		}
	default:
		for i := range g.Ops {
			add(g.Ops[i].Def.Name, g.Ops[i].Key)
		}
	}
	return keys, nil
}

// unknown returns an error if a limit of this name or id exists that this program does not
// know: ErrStaleDefinition if the limits have to be read first, or why the limit cannot be
// read. unknown returns nil if the limit was dropped.
func (t *portableTable) unknown(column string, value any) error {
	var name string
	err := t.db.QueryRow(t.ctx, "select name from dipwell.limits where "+column+" = $1", value).Scan(&name)
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
			if first = sets && !e.def.Overridden; first {
				if err = markOverridden(ctx, in.db, e.id); err != nil {
					return storeError(err, true)
				}
			}
			if sets {
				if err = e.keepLimit(ctx, in.db); err != nil {
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

// markOverridden records that keys of a limit may have overrides, and notifies all
// programs.
func markOverridden(ctx context.Context, db DB, id int32) error {
	if _, err := db.Exec(ctx, "update dipwell.revision set n = n + 1 where one = 1"); err != nil {
		return err
	}
	_, err := db.Exec(ctx, "update dipwell.limits set overridden = true where id = $1", id)
	return err
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
