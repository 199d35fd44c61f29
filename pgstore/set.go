package pgstore

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

//go:embed set.sql
var setSQL string

const (
	maxSetRounds = 6    // rounds of set before the SQL function is used
	maxSetRows   = 4096 // rows in one statement; a batch of coalesce has up to 1024 groups

	tooMany = store.MaxInt + 1 // units: more than any bucket holds
)

// A bundle is groups that share rows. One statement decides them as if they
// were one group.
type bundle struct {
	groups   []*store.Group
	index    [][]int  // by group and op: index of the row in buckets
	buckets  []bucket // without duplicates
	mixed    bool     // the groups have several verbs, or a plan that charges nothing, so their costs cannot be added
	switches bool     // some row is used under several definitions

	now         int64
	unsupported bool // set.sql cannot decide one of the rows
	skipped     bool // some row does not exist, or no longer does
	done        bool // everything has been charged
	needsRows   bool // insert empty rows, then ask again

	writeBack bool // the groups are decided on the rows in read; write the result if these rows are unchanged
}

// A bucket is one row of a bundle.
type bucket struct {
	*entry
	op      *store.Op   // the first op for this row
	cost    int64       // sum of the ops' costs in units, at most tooMany
	floor   int64       // units that must stay free, the largest floor of the ops, at most tooMany
	found   store.State // the row before the statement
	usedNow *int64      // used units at the time of the statement, if only the server can compute them
	read    store.State // the row on which the groups were decided, for writeBack
	after   store.State // the row after the groups

	start, end int64 // current window in µs, for windows of unequal length
}

type bucketKey struct {
	LimitID int32
	Key     string
}

func (k bucketKey) compare(o bucketKey) int {
	return cmp.Or(cmp.Compare(k.LimitID, o.LimitID), cmp.Compare(k.Key, o.Key))
}

// A bundleRef locates a bucket.
type bundleRef struct {
	*bundle
	at int
}

// set decides groups by set.sql, all in one statement. set returns the groups that it
// cannot decide: cancellations, resets, reservations that have to wait, and rows with lows
// or of another version.
//
// Groups that share rows are charged together if all of them fit. Otherwise
// they are decided in Go, one after the other, on the rows that the statement
// returned, and the next statement writes the result if the rows are unchanged.
// decided are bundles that only need this write.
func (s *Store) set(ctx context.Context, groups []*store.Group, decided ...*bundle) (rest []*store.Group) {
	bundles, rest := s.bundles(ctx, groups, decided)
	for range maxSetRounds {
		if len(bundles) == 0 {
			return rest
		}
		again, others := s.setRound(ctx, bundles)
		bundles, rest = again, append(rest, others...)
	}
	for _, b := range bundles {
		rest = append(rest, b.groups...)
	}
	return rest
}

// setRound decides bundles in one round trip. setRound returns the bundles
// to try again, and the groups that need another way.
func (s *Store) setRound(ctx context.Context, bundles []*bundle) (again []*bundle, rest []*store.Group) {
	if err := s.askSet(ctx, bundles); err != nil {
		return nil, s.failBundles(bundles, err)
	}
	for _, b := range bundles {
		more, other := s.answer(b)
		switch {
		case other:
			rest = append(rest, b.groups...)
		case more:
			again = append(again, b)
		}
	}
	if err := s.insertEmpty(ctx, again); err != nil {
		return nil, append(rest, s.failBundles(again, err)...)
	}
	return again, rest
}

// failBundles sets the error of a failed statement. If one of several groups may be at
// fault, failBundles returns them instead, to be decided one by one; after a lock timeout
// decideUnlocked decides those whose rows are free.
func (s *Store) failBundles(bundles []*bundle, err error) (rest []*store.Group) {
	again := (rowAtFault(err) || retryable(err)) && !errors.Is(err, store.ErrLocked) && (len(bundles) > 1 || len(bundles[0].groups) > 1) && s.autocommit()
	for _, b := range bundles {
		if again {
			rest = append(rest, b.groups...)
		} else {
			for _, g := range b.groups {
				g.Err = err
			}
		}
	}
	return rest
}

// bundles joins groups that share rows into bundles. rest gets the groups that
// set.sql cannot decide, and those that do not fit into one statement. Bundles
// in decided are left as they are unless a group shares their row.
func (s *Store) bundles(ctx context.Context, groups []*store.Group, decided []*bundle) (all []*bundle, rest []*store.Group) {
	of := map[bucketKey]bundleRef{}
	rows := 0
	for _, g := range groups {
		var known [store.MaxTakes]*entry
		if rows+len(g.Ops) > maxSetRows || !s.canUseSet(ctx, g, known[:]) {
			rest = append(rest, g)
			continue
		}
		var into *bundle
		for i := range g.Ops {
			b := of[bucketKey{known[i].id, g.Ops[i].Key}].bundle
			switch {
			case b == nil || b == into:
			case into == nil:
				into = b
			default:
				into.join(b, of)
			}
		}
		if into == nil {
			into = &bundle{}
			all = append(all, into)
		}
		into.add(g, known[:], of)
		rows += len(g.Ops)
	}
	for _, d := range decided {
		row := &d.buckets[0]
		into := of[bucketKey{row.id, row.op.Key}].bundle
		switch {
		case rows >= maxSetRows:
			rest = append(rest, d.groups...)
		case into == nil:
			all = append(all, d)
		default:
			for _, g := range d.groups {
				into.add(g, []*entry{row.entry}, of)
			}
		}
		rows++
	}
	all = slices.DeleteFunc(all, func(b *bundle) bool {
		if b.switches {
			rest = append(rest, b.groups...)
		}
		return len(b.groups) == 0 || b.switches
	})
	return all, rest
}

// decidedBundle returns a bundle that writes the state after for a row, if
// the row is still as found.
func decidedBundle(e *entry, row *store.RowGroups, found, after store.State) *bundle {
	b := &bundle{groups: row.Groups, writeBack: true,
		buckets: []bucket{{entry: e, op: &row.Groups[0].Ops[0], found: found, read: found, after: after}}}
	for range row.Groups {
		b.index = append(b.index, []int{0})
	}
	return b
}

// join moves the groups and rows of other into bundle b.
func (b *bundle) join(other *bundle, of map[bucketKey]bundleRef) {
	shift := len(b.buckets)
	for _, places := range other.index {
		for i := range places {
			places[i] += shift
		}
	}
	for i, row := range other.buckets {
		of[bucketKey{row.id, row.op.Key}] = bundleRef{b, shift + i}
	}
	b.mixed = b.mixed || other.mixed || b.verb() != other.verb()
	b.switches = b.switches || other.switches
	b.groups, b.index, b.buckets = append(b.groups, other.groups...), append(b.index, other.index...), append(b.buckets, other.buckets...)
	other.groups = nil
}

func (b *bundle) verb() store.Verb { return b.groups[0].Ops[0].Verb }

func (b *bundle) add(g *store.Group, known []*entry, of map[bucketKey]bundleRef) {
	places := make([]int, len(g.Ops))
	for i := range g.Ops {
		op, e := &g.Ops[i], known[i]
		k := bucketKey{e.id, op.Key}
		place, there := of[k]
		if !there {
			place = bundleRef{b, len(b.buckets)}
			b.buckets = append(b.buckets, bucket{entry: e, op: op})
			of[k] = place
		}
		places[i] = place.at
		row := &b.buckets[place.at]
		row.cost = min(row.cost+unitsOf(op.Cost, e.def), tooMany)
		row.floor = max(row.floor, unitsOf(op.Floor, e.def))
		b.switches = b.switches || row.def != e.def
		b.mixed = b.mixed || len(b.groups) > 0 && op.Verb != b.verb() || op.Verb != g.Ops[0].Verb || takesLess(g, op) || e.def.Mode > store.Shadow
	}
	b.groups, b.index = append(b.groups, g), append(b.index, places)
}

// unitsOf returns a number of tokens in units, at most tooMany.
func unitsOf(tokens int64, d *store.Definition) int64 {
	if tokens > store.MaxInt/d.Rule.Unit {
		return tooMany
	}
	return tokens * d.Rule.Unit
}

// takesLess reports whether an op of a group may be granted less than its cost even if
// enough tokens are there: a TakeUpTo of several limits takes the least from each, and
// one in shadow mode, or with a burst below the cost, may have less than the others.
func takesLess(g *store.Group, op *store.Op) bool {
	return len(g.Ops) > 1 && g.Ops[0].Verb == store.VerbTakeUpTo &&
		(op.Cost != g.Ops[0].Cost || op.Def.Mode == store.Shadow || op.Cost > op.Def.Rule.Burst)
}

// canUseSet reports whether set.sql can decide a group, and looks up its limits.
func (s *Store) canUseSet(ctx context.Context, g *store.Group, known []*entry) bool {
	if g.Cancel || g.Hold != nil || s.resolve(ctx, g, known) != nil || special(g) {
		return false
	}
	for i := range g.Ops {
		op, d := &g.Ops[i], g.Ops[i].Def
		if by := s.overridden.of(known[i], op.Key); by != nil {
			e := known[i]
			d, known[i] = by, &entry{statements: e.statements, id: e.id, def: by, plain: e.plain}
		}
		switch r := &d.Rule; {
		case d.Block != 0, d.Algorithm == store.Concurrency, r.Every == 0 && d.Base() != d, r.BeginsWithCall(), r.Sliding, op.Verb == store.VerbReset:
			return false
		case r.Every == 0 && !s.knowsWindows(ctx, r):
			return false
		case op.Cost == 0 && op.Verb != store.VerbCheck && len(g.Ops) > 1: // a check together with calls that write
			return false
		case op.Verb == store.VerbCharge && op.Cost > r.MaxCharge,
			(op.Verb == store.VerbReserve || r.Leaky) && d.Mode == store.Shadow:
			return false
		}
	}
	return true
}

// setArgs are the parameters of set.sql, one element for each row.
type setArgs struct {
	groups, limits, versions, kinds                 []int32
	keys                                            []string
	costs, bounds, units, every, add, grids, enough []int64
	shadow, calendar                                []bool
	ends                                            []int64
}

// askSet runs the statement and reads the result of each bundle.
func (s *Store) askSet(ctx context.Context, bundles []*bundle) error {
	type place struct {
		of int
		*bundle
		*bucket
	}
	var places []place
	for i, b := range bundles {
		b.unsupported, b.skipped, b.done = false, false, true
		for j := range b.buckets {
			places = append(places, place{i, b, &b.buckets[j]})
		}
	}
	slices.SortFunc(places, func(x, y place) int {
		return cmp.Or(cmp.Compare(x.id, y.id), cmp.Compare(x.op.Key, y.op.Key))
	})
	var a setArgs
	about := time.Now().UnixMicro() + s.limits.ahead.Load() // roughly the database's clock
	if s.clock != nil {
		about = s.clock()
	}
	for _, p := range places {
		a.append(p.of, p.bundle, p.bucket, about)
	}
	at := s.testNow()
	args := []any{a.groups, a.limits, a.keys, a.versions, a.kinds, a.costs, a.bounds, a.units, a.every, a.add, a.grids, a.enough, a.shadow, a.calendar, at, a.ends}
	db, release, err := s.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	rows, err := db.Query(ctx, setSQL, args...)
	if err != nil {
		return storeError(err, true)
	}
	var i int
	var used, ts, held *int64
	var now int64
	var plain, done, gone bool
	_, err = pgx.ForEachRow(rows, []any{&i, &used, &ts, &now, &plain, &done, &gone, &held}, func() error {
		p := places[i-1]
		p.usedNow = held
		p.now, p.unsupported, p.skipped, p.done = now, p.unsupported || !plain || used == nil && p.def.Overridden, p.skipped || gone, p.done && done
		if p.found = (store.State{}); used != nil {
			p.found = store.State{Used: *used, TS: *ts, Version: p.def.Number, Override: p.def.Override}
		}
		return nil
	})
	return storeError(err, true)
}

// append adds the parameters of one row. about is roughly the present time.
func (a *setArgs) append(group int, b *bundle, row *bucket, about int64) {
	var scratch store.Rule
	r := row.def.RuleFor(row.op.Key, &scratch)
	kind, cost, bound := row.op.Verb, row.cost, r.Cap
	unit, every, adds, grid, enough := r.Unit, r.Every, r.Add, int64(0), (r.MaxUsed+r.Add-1)/r.Add
	if r.Every == 0 {
		row.start, row.end = r.Window(about)
		every, grid = row.end-row.start, row.start
	} else {
		grid = gridOf(r.Origin, r.Every)
	}
	switch {
	case b.writeBack:
		kind, cost, bound, unit, every, adds, grid, enough = verbWrite, row.after.Used, row.read.Used, row.after.TS, 1, 0, row.read.TS, 0
	case cost == 0 || b.mixed:
		kind = store.VerbCheck
	case kind == store.VerbReserve, // set.sql does not decide a reservation that would have to wait
		kind == store.VerbTakeUpTo && (len(b.groups) > 1 || len(b.buckets) > 1): // a row that gets less must leave the other rows alone
		kind = store.VerbTake
	case kind == store.VerbCharge:
		bound = r.MaxUsed
	default:
		bound -= row.floor
	}
	a.groups, a.limits, a.keys = append(a.groups, int32(group)), append(a.limits, row.id), append(a.keys, row.op.Key)
	a.versions, a.kinds = append(a.versions, int32(row.def.Number)), append(a.kinds, int32(kind))
	a.costs, a.bounds, a.units = append(a.costs, cost), append(a.bounds, bound), append(a.units, unit)
	a.every, a.add, a.grids, a.enough = append(a.every, every), append(a.add, adds), append(a.grids, grid), append(a.enough, enough)
	a.shadow = append(a.shadow, row.def.Mode == store.Shadow && !b.writeBack && len(b.groups) == 1)
	a.calendar, a.ends = append(a.calendar, r.Every == 0 && !b.writeBack), append(a.ends, endOf(row.def))
}

// answer fills in the answers of the groups from the rows that the statement returned.
// answer reports whether to ask again, and whether the bundle needs another way.
func (s *Store) answer(b *bundle) (again, other bool) {
	if b.needsRows = false; b.unsupported {
		again = s.windowMoved(b)
		return again, !again
	}
	if b.writeBack && b.done { // the answers have been filled in before
		return false, false
	}
	write, waits := b.decide()
	switch {
	case write && waits, b.skipped && !write && len(b.buckets) > 1: // rows read under a lock may be newer than the absence of others
		return false, true
	case !write || b.done:
		return false, false
	}
	b.needsRows = slices.ContainsFunc(b.buckets, func(row bucket) bool { return row.found == store.State{} })
	b.writeBack = !b.needsRows
	return true, false
}

// decide decides the groups one after the other at the statement's time. decide
// reports whether a row changes, and whether a reservation has to wait.
func (b *bundle) decide() (write, waits bool) {
	for i := range b.buckets {
		row := &b.buckets[i]
		row.read, row.after = row.found, row.found
		if row.usedNow != nil {
			row.after.Used, row.after.TS = *row.usedNow, max(b.now, row.found.TS)
		}
	}
	for i, g := range b.groups {
		var rows [store.MaxTakes]store.State
		var writes [store.MaxTakes]bool
		for j, at := range b.index[i] {
			rows[j] = b.buckets[at].after
		}
		if g.Err = g.Decide(b.now, rows[:len(g.Ops)], writes[:len(g.Ops)]); g.Err != nil {
			continue
		}
		for j, at := range b.index[i] {
			if writes[j] {
				b.buckets[at].after, write = rows[j], true
			}
		}
		waits = waits || g.Reserved
	}
	return write, waits
}

// insertEmptySQL inserts full buckets, except for keys with overrides, in locking order. The
// ts of these rows is the epoch, so that they count like missing rows even if the clock steps
// back.
const insertEmptySQL = `insert into dipwell.buckets (used, ts, limit_id, version, key)
select 0, 0, q.limit_id, q.version, q.key
from unnest($1::int[], $2::int[], $3::text[]) q(limit_id, version, key)
where (select true from dipwell.key_overrides o where o.limit_id = q.limit_id and o.key = q.key) is null order by q.limit_id, q.key collate "C" on conflict do nothing`

// insertEmpty inserts the rows that bundles need.
func (s *Store) insertEmpty(ctx context.Context, bundles []*bundle) error {
	var ids, versions []int32
	var keys []string
	for _, b := range bundles {
		for _, row := range b.buckets {
			if b.needsRows && row.found == (store.State{}) {
				ids, versions, keys = append(ids, row.id), append(versions, int32(row.def.Number)), append(keys, row.op.Key)
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	_, err := s.db.Exec(ctx, insertEmptySQL, ids, versions, keys)
	return storeError(err, true)
}

// verbWrite tells set.sql to write a row as decided in Go.
const verbWrite = store.VerbReset
