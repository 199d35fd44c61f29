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
	minOptimistic      = 4   // groups: fewer are decided by the function, a call each
	maxOptimistic      = 256 // groups that are read at once
	maxSnapshotRecords = 250 // of a bucket; the function walks longer lists where they are
	maxSnapshotRounds  = 3   // how often groups are read and decided anew after others changed their rows
)

// keptBucket is a bucket with its lists, as read and as the groups leave it.
type snapshotRow struct {
	id            int32
	key           string
	def           *store.Definition
	ctid, xmin    string // of the row; "" where there is none
	state         store.State
	before        []store.Record
	after         []store.Record
	meta          map[recordKey]recordMeta // what the server keeps of a record besides
	needsFunction bool                     // decided by the function
	touched       bool
	setIndex      int // the buckets that are written together, by their first bucket
}

type recordKey struct{ number, mark int64 }

type recordMeta struct {
	id    pgtype.UUID
	parts int32
}

// heldPart is one part of a reservation that is to be cancelled.
type heldPart struct {
	bucket bucketKey
	number int64
	mark   int64
	parts  int
}

// kept decides groups that walk the lists of their rows: reservations that have
// to wait, leaky buckets, cancellations, and calls about rows with such lists. One
// statement reads the rows and lists of all groups, Go decides the groups one after
// the other, and a second statement writes what they leave where the rows still
// stand. It returns the groups that need another way.
func (s *Store) decideOptimistic(ctx context.Context, groups []*store.Group) (rest []*store.Group) {
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

// failKept gives groups the error of their statement, and returns those that are
// to be decided by themselves: all of them where one alone may be at fault, or
// where the statement has collided.
func (s *Store) failSnapshot(groups []*store.Group, err error) (rest []*store.Group) {
	if retryable(err) && s.autocommit() {
		return groups
	}
	b := &bundle{groups: groups}
	return s.failBundles([]*bundle{b}, err)
}

// keptRead is what snapshot_read.sql has found.
type snapshot struct {
	now   int64
	rows  map[bucketKey]*snapshotRow
	defs  map[int32]*store.Definition
	ids   map[*store.Definition]int32
	parts map[store.Reservation][]heldPart
}

func (s *Store) readSnapshot(ctx context.Context, groups []*store.Group) (*snapshot, error) {
	k := &snapshot{rows: map[bucketKey]*snapshotRow{}, defs: map[int32]*store.Definition{},
		ids: map[*store.Definition]int32{}, parts: map[store.Reservation][]heldPart{}}
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
		if s.resolve(ctx, g, known[:]) != nil {
			continue // decided by itself, and its error found there
		}
		for i := range g.Ops {
			at := bucketKey{known[i].id, g.Ops[i].Key}
			k.defs[at.id], k.ids[known[i].def] = known[i].def, at.id
			if k.rows[at] == nil {
				k.rows[at] = &snapshotRow{}
				ids, keys = append(ids, at.id), append(keys, at.key)
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
	var version, present, parts *int32
	var lows []int64
	var place, made *string
	var i int
	var r recordColumns
	_, err = pgx.ForEachRow(rows, append([]any{&k.now, &id, &key, &used, &ts, &version, &lows, &place, &made, &present, &parts, &i}, r.fields()...), func() error {
		at := bucketKey{id, key}
		if parts != nil {
			held := store.Reservation(cancels[i-1].Bytes)
			k.parts[held] = append(k.parts[held], heldPart{at, *used, *ts, int(*parts)})
			return nil
		}
		b := &snapshotRow{id: id, key: key, def: k.defs[id]}
		if b.def == nil { // of a reservation that is to be cancelled
			b.def = s.cat.byID(id)
			k.defs[id] = b.def
		}
		b.needsFunction = b.def == nil || present == nil || uint32(*present) != b.def.Number || b.def.Rule.Every == 0 || len(r.numbers) > maxSnapshotRecords
		if used != nil {
			b.ctid, b.xmin = *place, *made
			b.state = store.State{Used: *used, TS: *ts, Version: uint32(*version), Lows: lowsOf(lows)}
			b.needsFunction = b.needsFunction || b.state.Version != b.def.Number
		}
		b.before, b.meta = r.records()
		b.needsFunction = b.needsFunction || len(b.meta) < len(b.before) // of a version whose records had no numbers
		b.after = slices.Clone(b.before)
		k.rows[at] = b
		return nil
	})
	return k, storeError(err, false)
}

// recordColumns are the records of a bucket as snapshot_read.sql returns them.
type recordColumns struct {
	ids                                        []pgtype.UUID
	numbers, marks, units, slacks, dues, stops []int64
	versions                                   []int32
	rests                                      []bool
}

func (r *recordColumns) fields() []any {
	return []any{&r.ids, &r.numbers, &r.marks, &r.units, &r.slacks, &r.versions, &r.dues, &r.stops, &r.rests}
}

func (r *recordColumns) records() (rs []store.Record, notes map[recordKey]recordMeta) {
	notes = make(map[recordKey]recordMeta, len(r.numbers))
	for i := range r.numbers {
		rs = append(rs, store.Record{Number: r.numbers[i], Mark: r.marks[i], Units: r.units[i], Slack: r.slacks[i],
			Version: uint32(r.versions[i]), Due: r.dues[i], Ends: r.stops[i], Rest: r.rests[i]})
		notes[recordKey{r.numbers[i], r.marks[i]}] = recordMeta{id: r.ids[i]}
	}
	return rs, notes
}

// keptSet is groups whose buckets are written together or not at all.
type writeSet struct {
	groups []*store.Group
	rows   []*snapshotRow
}

// decideKept decides groups on what was read and writes what they leave. It returns
// those that are to be read again, and those that need another way.
func (s *Store) decideSnapshot(ctx context.Context, k *snapshot, groups []*store.Group) (again, rest []*store.Group) {
	var sets, written []*writeSet
	var missing []*snapshotRow
	of := map[*snapshotRow]*writeSet{}
	for _, g := range groups {
		buckets, ok := k.rowsOf(g)
		if !ok {
			rest = append(rest, g)
			continue
		}
		if len(buckets) == 0 { // a reservation that nobody knows
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
	for _, set := range sets {
		switch lacks, ok := k.decideSet(set); {
		case !ok:
			rest = append(rest, set.groups...)
		case len(lacks) > 0:
			missing, again = append(missing, lacks...), append(again, set.groups...)
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
			switch {
			case !done[i]:
				again = append(again, set.groups...)
			default:
				s.noteWaiting(set)
			}
		}
	}
	return again, rest
}

func (b *snapshotRow) compare(other *snapshotRow) int {
	return cmp.Or(cmp.Compare(b.id, other.id), cmp.Compare(b.key, other.key))
}

// bucketsOf finds the buckets of a group. None: its reservation is unknown, or
// was reset in part. Not ok: the function decides the group.
func (k *snapshot) rowsOf(g *store.Group) (buckets []*snapshotRow, ok bool) {
	if g.Cancel {
		parts := k.parts[g.ID]
		if len(parts) == 0 || len(parts) != parts[0].parts {
			return nil, true
		}
		for _, p := range parts {
			b := k.rows[p.bucket]
			if b == nil || b.needsFunction || b.ctid == "" { // of a bucket that is full the function forgets the record
				return nil, false
			}
			buckets = append(buckets, b)
		}
		return buckets, true
	}
	for i := range g.Ops {
		b := k.rows[bucketKey{k.ids[g.Ops[i].Def], g.Ops[i].Key}]
		if b == nil || b.def == nil || b.needsFunction || g.Ops[i].Verb == store.VerbReset { // which deletes the row
			return nil, false
		}
		buckets = append(buckets, b)
	}
	return buckets, true
}

// decide decides the groups of a set in turn. lacks are buckets that are to be
// made first.
func (k *snapshot) decideSet(set *writeSet) (lacks []*snapshotRow, ok bool) {
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
			lacks = append(lacks, b)
		}
	}
	return lacks, true
}

// group decides a group on its buckets.
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
		if rows[i], after[i], err = b.def.Settle(b.state, b.key, k.now, slices.Clone(b.after)); err != nil {
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
		if g.Reserved && op.Granted > 0 {
			r := op.Record(&rows[i], g.ID, k.now, k.now+g.Due())
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

// cancel gives a reservation back. Another group of the set may have ended it.
func (k *snapshot) cancelGroup(g *store.Group) (ok bool) {
	parts := k.parts[g.ID]
	for _, p := range parts {
		if !slices.ContainsFunc(k.rows[p.bucket].after, func(r store.Record) bool {
			return r.Number == p.number && r.Mark == p.mark && !r.Rest
		}) {
			g.Err = store.ErrReservation
			return true
		}
	}
	for _, p := range parts {
		b := k.rows[p.bucket]
		row, after, err := b.def.GiveBack(b.state, b.key, k.now, slices.Clone(b.after), p.number, p.mark)
		if err != nil {
			return false
		}
		b.state, b.after, b.touched = row, after, true
	}
	return true
}

// keptArgs are the parameters of snapshot_write.sql.
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

// noteWaits remembers for which keys of leaky buckets calls have to wait, so
// that set.sql is not asked about them.
func (s *Store) noteWaiting(set *writeSet) {
	for _, b := range set.rows {
		if b.def.Rule.Leaky {
			s.refused.note(b.id, b.key, b.state.Used > 0 && b.state.Lows != nil)
		}
	}
}

// putKept writes what sets leave, and reports which of them were written.
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

// add adds a bucket and what changed of its records.
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

// lowsText is the column lows as text: an array of arrays would need them to be
// of one length.
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
