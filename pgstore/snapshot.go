package pgstore

import (
	"cmp"
	"context"
	_ "embed"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dipwell/dipwell/store"
)

//go:embed snapshot_read.sql
var snapshotReadSQL string

//go:embed snapshot_write.sql
var snapshotWriteSQL string

const (
	minOptimistic      = 4   // groups; for fewer the function is called for each
	maxOptimistic      = 256 // groups in one statement
	maxSnapshotRecords = 250 // per bucket; longer lists are left to the function
	maxSnapshotRounds  = 3   // rounds of read, decide and write, if others change the rows in between
)

// A snapshotRow is a bucket with its lows and records: as read, and after the
// groups.
type snapshotRow struct {
	id            int32
	key           string
	def           *store.Definition
	ctid, xmin    string // identity of the row's version, "" if there is no row
	state         store.State
	before        []store.Record
	after         []store.Record
	meta          map[recordKey]recordMeta // columns that a store.Record does not have
	needsFunction bool                     // the function must decide its groups
	touched       bool
	setIndex      int // index of its writeSet
}

type recordKey struct{ number, mark int64 }

type recordMeta struct {
	id    pgtype.UUID
	parts int32
}

// decideOptimistic decides groups that need the lows and records of their rows:
// reservations that have to wait, leaky buckets, cancellations, and any call on
// a row with lows. One statement reads the rows and records of all groups, Go
// decides the groups one after the other, and a second statement writes the
// result for rows that have not changed. No lock is held in between. It returns
// the groups that are still undecided.
func (s *Store) decideOptimistic(ctx context.Context, groups []*store.Group) (rest []*store.Group) {
	groups = slices.DeleteFunc(slices.Clone(groups), func(g *store.Group) bool {
		if g.Hold != nil {
			rest = append(rest, g)
		}
		return g.Hold != nil
	})
	for some := range slices.Chunk(groups, maxOptimistic) {
		for wave := 0; wave < maxSnapshotRounds && len(some) >= s.minOptimistic; wave++ {
			k, err := s.readSnapshot(ctx, some)
			if err != nil {
				some = s.failSnapshot(some, err)
				break
			}
			again, others := s.decideSnapshot(ctx, k, some)
			some, rest = again, append(rest, others...)
		}
		rest = append(rest, some...)
	}
	return rest
}

// failSnapshot sets the error of a failed statement. If the statement can be
// retried, or one of several groups may be at fault, it returns them instead,
// to be decided one by one.
func (s *Store) failSnapshot(groups []*store.Group, err error) (rest []*store.Group) {
	if retryable(err) && s.autocommit() {
		return groups
	}
	b := &bundle{groups: groups}
	return s.failBundles([]*bundle{b}, err)
}

// A snapshot is the result of snapshot_read.sql.
type snapshot struct {
	now   int64
	rows  map[bucketKey]*snapshotRow
	defs  map[int32]*store.Definition
	ids   map[*store.Definition]int32
	parts map[store.Reservation][]reservationPart
}

func (s *Store) readSnapshot(ctx context.Context, groups []*store.Group) (*snapshot, error) {
	k := &snapshot{rows: map[bucketKey]*snapshotRow{}, defs: map[int32]*store.Definition{},
		ids: map[*store.Definition]int32{}, parts: map[store.Reservation][]reservationPart{}}
	var ids []int32
	var keys []string
	var cancels []pgtype.UUID
	for _, g := range groups {
		if g.Cancel {
			if _, twice := k.parts[g.ID]; !twice {
				k.parts[g.ID] = nil
				cancels = append(cancels, uuidOf(g.ID))
			}
			continue
		}
		var known [store.MaxTakes]*entry
		if s.resolve(ctx, g, known[:]) != nil || special(g) || hasVariant(g) {
			continue // decided alone, when it returns the error
		}
		for i := range g.Ops {
			at := bucketKey{known[i].id, g.Ops[i].Key}
			k.defs[at.LimitID], k.ids[known[i].def] = known[i].def, at.LimitID
			if k.rows[at] == nil {
				k.rows[at] = &snapshotRow{}
				ids, keys = append(ids, at.LimitID), append(keys, at.Key)
			}
		}
	}
	rows, err := s.db.Query(ctx, snapshotReadSQL, s.withCustomPlan(ids, keys, cancels, s.testNow(), maxSnapshotRecords)...)
	if err != nil {
		return nil, storeError(err, false)
	}
	var id int32
	var key string
	var used, ts *int64
	var version, current, parts *int32
	var lows []int64
	var ctid, xmin *string
	var i int
	var r recordColumns
	_, err = pgx.ForEachRow(rows, append([]any{&k.now, &id, &key, &used, &ts, &version, &lows, &ctid, &xmin, &current, &parts, &i}, r.fields()...), func() error {
		at := bucketKey{id, key}
		if parts != nil {
			reservation := store.Reservation(cancels[i-1].Bytes)
			k.parts[reservation] = append(k.parts[reservation], reservationPart{id, key, *used, *ts, int(*parts)})
			return nil
		}
		b := &snapshotRow{id: id, key: key, def: k.defs[id]}
		if b.def == nil { // only in reservations to be cancelled
			b.def = s.limits.byID(id)
			k.defs[id] = b.def
		}
		b.needsFunction = b.def == nil || current == nil || uint32(*current) != b.def.Number || b.def.Rule.Every == 0 || b.def.Algorithm == store.Concurrency || len(r.numbers) > maxSnapshotRecords
		if used != nil {
			b.ctid, b.xmin = *ctid, *xmin
			b.state = store.State{Used: *used, TS: *ts, Version: uint32(*version), Lows: lowsOf(lows)}
			b.needsFunction = b.needsFunction || b.state.Version != b.def.Number || len(lows) == 1 // a single entry means that the key has shards
		}
		b.needsFunction = b.needsFunction || used == nil && b.def.Overridden
		b.before, b.meta = r.records()
		b.needsFunction = b.needsFunction || len(b.meta) < len(b.before) // some records are of a schema version without record numbers
		b.after = slices.Clone(b.before)
		k.rows[at] = b
		return nil
	})
	return k, storeError(err, false)
}

// recordColumns are the records of a bucket as arrays, as snapshot_read.sql
// returns them.
type recordColumns struct {
	ids                                        []pgtype.UUID
	numbers, marks, units, slacks, dues, stops []int64
	versions                                   []int32
	rests                                      []bool
}

func (r *recordColumns) fields() []any {
	return []any{&r.ids, &r.numbers, &r.marks, &r.units, &r.slacks, &r.versions, &r.dues, &r.stops, &r.rests}
}

func (r *recordColumns) records() (rs []store.Record, meta map[recordKey]recordMeta) {
	meta = make(map[recordKey]recordMeta, len(r.numbers))
	for i := range r.numbers {
		rs = append(rs, store.Record{Number: r.numbers[i], Mark: r.marks[i], Units: r.units[i], Slack: r.slacks[i],
			Version: uint32(r.versions[i]), Due: r.dues[i], Ends: r.stops[i], Rest: r.rests[i]})
		meta[recordKey{r.numbers[i], r.marks[i]}] = recordMeta{id: r.ids[i]}
	}
	return rs, meta
}

// A writeSet is groups whose rows are written together or not at all.
type writeSet struct {
	groups []*store.Group
	rows   []*snapshotRow
}

// decideSnapshot decides groups on what was read and writes the result. It
// returns the groups to be read again, and those that need another way.
func (s *Store) decideSnapshot(ctx context.Context, k *snapshot, groups []*store.Group) (again, rest []*store.Group) {
	var written []*writeSet
	var missing []*snapshotRow
	sets, rest := k.writeSets(groups)
	for _, set := range sets {
		switch needed, ok := k.decideSet(set); {
		case !ok:
			rest = append(rest, set.groups...)
		case len(needed) > 0:
			missing, again = append(missing, needed...), append(again, set.groups...)
		case slices.ContainsFunc(set.rows, func(b *snapshotRow) bool { return b.touched }):
			written = append(written, set)
		}
	}
	if len(missing) > 0 {
		var ids, versions []int32
		var keys []string
		slices.SortFunc(missing, (*snapshotRow).compare)
		for _, b := range missing {
			ids, versions, keys = append(ids, b.id), append(versions, int32(b.def.Number)), append(keys, b.key)
		}
		if _, err := s.db.Exec(ctx, insertEmptySQL, ids, versions, keys); err != nil {
			rest = append(rest, s.failSnapshot(again, storeError(err, true))...)
			again = nil
		}
	}
	if len(written) > 0 {
		done, err := s.writeSnapshot(ctx, written)
		if err != nil {
			var groups []*store.Group
			for _, set := range written {
				groups = append(groups, set.groups...)
			}
			return again, append(rest, s.failSnapshot(groups, err)...)
		}
		for i, set := range written {
			if done[i] {
				s.noteWaiting(set)
			} else {
				again = append(again, set.groups...)
			}
		}
	}
	return again, rest
}

// writeSets joins groups that share rows. rest gets the groups that the function
// must decide.
func (k *snapshot) writeSets(groups []*store.Group) (sets []*writeSet, rest []*store.Group) {
	of := map[*snapshotRow]*writeSet{}
	for _, g := range groups {
		buckets, ok := k.rowsOf(g)
		if !ok {
			rest = append(rest, g)
			continue
		}
		if len(buckets) == 0 { // the reservation is unknown
			g.Err = store.ErrReservation
			continue
		}
		var into *writeSet
		for _, b := range buckets {
			switch other := of[b]; {
			case other == nil || other == into:
			case into == nil:
				into = other
			default:
				into.groups, into.rows = append(into.groups, other.groups...), append(into.rows, other.rows...)
				for _, x := range other.rows {
					of[x] = into
				}
				other.groups, other.rows = nil, nil
			}
		}
		if into == nil {
			into = new(writeSet)
			sets = append(sets, into)
		}
		into.groups = append(into.groups, g)
		for _, b := range buckets {
			if of[b] == nil {
				of[b] = into
				into.rows = append(into.rows, b)
			}
		}
	}
	return sets, rest
}

func (b *snapshotRow) compare(other *snapshotRow) int {
	return cmp.Or(cmp.Compare(b.id, other.id), cmp.Compare(b.key, other.key))
}

// rowsOf returns the rows of a group. There are none if a reservation is
// unknown or partly reset. ok is false if the function must decide the group.
func (k *snapshot) rowsOf(g *store.Group) (buckets []*snapshotRow, ok bool) {
	if g.Cancel {
		parts := k.parts[g.ID]
		if len(parts) == 0 || len(parts) != parts[0].Parts {
			return nil, true
		}
		for _, p := range parts {
			b := k.rows[bucketKey{p.LimitID, p.Key}]
			if b == nil || b.needsFunction || b.ctid == "" { // for a full bucket, the function deletes the record
				return nil, false
			}
			buckets = append(buckets, b)
		}
		return buckets, true
	}
	for i := range g.Ops {
		b := k.rows[bucketKey{k.ids[g.Ops[i].Def], g.Ops[i].Key}]
		if b == nil || b.def == nil || b.needsFunction || g.Ops[i].Verb == store.VerbReset { // Reset deletes the row
			return nil, false
		}
		buckets = append(buckets, b)
	}
	return buckets, true
}

// decideSet decides the groups of a set one after the other. missing are rows
// that must be inserted first.
func (k *snapshot) decideSet(set *writeSet) (missing []*snapshotRow, ok bool) {
	for _, g := range set.groups {
		if g.Err = nil; g.Cancel {
			if !k.cancelGroup(g) {
				return nil, false
			}
		} else if !k.decideGroup(g) {
			return nil, false
		}
	}
	for _, b := range set.rows {
		if b.touched && b.ctid == "" {
			missing = append(missing, b)
		}
	}
	return missing, true
}

// decideGroup decides a group on its rows.
func (k *snapshot) decideGroup(g *store.Group) (ok bool) {
	buckets, _ := k.rowsOf(g)
	rows, write := make([]store.State, len(g.Ops)), make([]bool, len(g.Ops))
	after := make([][]store.Record, len(g.Ops))
	for i, b := range buckets {
		rows[i], after[i] = b.state, b.after
		if b.state.Lows == nil {
			continue
		}
		var err error
		if rows[i], after[i], err = core.Advance(b.def, b.state, b.key, k.now, slices.Clone(b.after)); err != nil {
			return false
		}
	}
	if g.Decide(k.now, rows, write) != nil {
		return false
	}
	if !g.Allowed {
		return true
	}
	for i, b := range buckets {
		op := &g.Ops[i]
		if g.Reserved && core.Took(op) > 0 {
			r := core.Record(op, &rows[i], g.ID, k.now, k.now+core.Due(g))
			after[i] = append(slices.Clone(after[i]), r)
			b.meta[recordKey{r.Number, r.Mark}] = recordMeta{id: uuidOf(g.ID), parts: int32(countGranted(g))}
			write[i] = true
		}
		if write[i] {
			b.state, b.after, b.touched = rows[i], after[i], true
		}
	}
	return true
}

// cancelGroup gives a reservation back, unless another group of the set has
// ended it.
func (k *snapshot) cancelGroup(g *store.Group) (ok bool) {
	parts := k.parts[g.ID]
	for _, p := range parts {
		if !slices.ContainsFunc(k.rows[bucketKey{p.LimitID, p.Key}].after, func(r store.Record) bool {
			return r.Number == p.Number && r.Mark == p.Mark && !r.Rest
		}) {
			g.Err = store.ErrReservation
			return true
		}
	}
	for _, p := range parts {
		b := k.rows[bucketKey{p.LimitID, p.Key}]
		row, after, err := core.GiveBack(b.def, b.state, b.key, k.now, slices.Clone(b.after), p.Number, p.Mark)
		if err != nil {
			return false
		}
		b.state, b.after, b.touched = row, after, true
	}
	return true
}

// writeArgs are the parameters of snapshot_write.sql.
type writeArgs struct {
	sets, ids, versions []int32
	keys, places, made  []string
	used, ts            []int64
	lows                []*string

	records struct {
		sets, limits, versions, parts            []int32
		ids                                      []pgtype.UUID
		keys                                     []string
		units, due, partDue, number, mark, slack []int64
		rests                                    []bool
	}
	ended struct {
		sets, limits []int32
		ids          []pgtype.UUID
		keys         []string
	}
}

// noteWaiting remembers the keys of leaky buckets whose calls have to wait, so
// that set.sql is not tried for them.
func (s *Store) noteWaiting(set *writeSet) {
	for _, b := range set.rows {
		if b.def.Rule.Leaky {
			s.refused.note(b.id, b.key, b.state.Used > 0 && b.state.Lows != nil)
		}
	}
}

// writeSnapshot writes the result of sets, and reports which of them were
// written.
func (s *Store) writeSnapshot(ctx context.Context, sets []*writeSet) (done []bool, err error) {
	var buckets []*snapshotRow
	for i, set := range sets {
		for _, b := range set.rows {
			b.setIndex = i
			if b.touched {
				buckets = append(buckets, b)
			}
		}
	}
	slices.SortFunc(buckets, (*snapshotRow).compare)
	var a writeArgs
	for _, b := range buckets {
		a.add(b)
	}
	r, e := &a.records, &a.ended
	rows, err := s.db.Query(ctx, snapshotWriteSQL, s.withCustomPlan(
		a.sets, a.ids, a.keys, a.places, a.made, a.used, a.ts, a.versions, a.lows,
		r.sets, r.ids, r.limits, r.keys, r.units, r.versions, r.due, r.partDue, r.number, r.mark, r.slack, r.parts, r.rests,
		e.sets, e.ids, e.limits, e.keys)...)
	if err != nil {
		return nil, storeError(err, true)
	}
	done = make([]bool, len(sets))
	var i int
	_, err = pgx.ForEachRow(rows, []any{&i}, func() error {
		done[i] = true
		return nil
	})
	return done, storeError(err, true)
}

// add adds a row, and the changes of its records.
func (a *writeArgs) add(b *snapshotRow) {
	set := int32(b.setIndex)
	a.sets, a.ids, a.keys = append(a.sets, set), append(a.ids, b.id), append(a.keys, b.key)
	a.places, a.made = append(a.places, b.ctid), append(a.made, b.xmin)
	a.used, a.ts, a.versions = append(a.used, b.state.Used), append(a.ts, b.state.TS), append(a.versions, int32(b.def.Number))
	a.lows = append(a.lows, lowsText(b.state.Lows))
	before := make(map[recordKey]store.Record, len(b.before))
	for _, r := range b.before {
		before[recordKey{r.Number, r.Mark}] = r
	}
	for _, r := range b.after {
		at := recordKey{r.Number, r.Mark}
		old, known := before[at]
		delete(before, at)
		if known && old == r {
			continue
		}
		n, to := b.meta[at], &a.records
		to.sets, to.ids, to.limits, to.keys = append(to.sets, set), append(to.ids, n.id), append(to.limits, b.id), append(to.keys, b.key)
		to.units, to.versions, to.due, to.partDue = append(to.units, r.Units), append(to.versions, int32(r.Version)), append(to.due, r.Ends), append(to.partDue, r.Due)
		to.number, to.mark, to.slack, to.parts = append(to.number, r.Number), append(to.mark, r.Mark), append(to.slack, r.Slack), append(to.parts, n.parts)
		to.rests = append(to.rests, r.Rest)
	}
	for at := range before {
		to := &a.ended
		to.sets, to.ids, to.limits, to.keys = append(to.sets, set), append(to.ids, b.meta[at].id), append(to.limits, b.id), append(to.keys, b.key)
	}
}

// lowsText returns the column lows as text, because an array of arrays would
// need them to have one length.
func lowsText(l *store.Lows) *string {
	column := lowsColumn(l)
	if column == nil {
		return nil
	}
	var b strings.Builder
	for i, n := range column {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(strconv.FormatInt(n, 10))
	}
	b.WriteByte('}')
	text := b.String()
	return &text
}
