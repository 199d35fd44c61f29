package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// newManySQL sets the statements of a version that decide many keys. Keys are
// sorted and locked in that order, so that two batches cannot deadlock.
//
// takeMany adds up the calls for a key and charges all of them or none, up to the bound in
// its last parameter before the clock. takeMany first looks at the snapshot and skips rows
// without room. readMany only reads.
//
// Arrays are passed through a subquery. If the planner could see the length of
// an array, it would plan each execution again.
func newManySQL(s *statements, id int32, d *store.Definition, testClock bool) {
	r := &d.Rule
	columns, unnest := "q(key, units)", "(select $1::text[]), (select $2::bigint[])"
	grid := gridSQL(r)
	before, after := ticksSQL(r, "c.n", grid), ticksSQL(r, "excluded.ts", grid)
	params := 2
	if spread(r) { // the origin depends on the key, and excluded does not have it
		params, columns, unnest = 3, "q(key, units, grid)", unnest+", (select $3::bigint[])"
		before = ticksSQL(r, "c.n", "q.grid")
		after = ticksOnceSQL(r, "excluded.ts", "($3::bigint[])[width_bucket(excluded.key, $1::text[])]")
	}
	bound := fmt.Sprintf("$%d::bigint", params+1)
	now := timeSQL(readNow, testClock, params+2)
	missing := "true"
	if d.Overridden { // with "not exists" the planner may read all overrides of the limit
		missing = fmt.Sprintf("(select false from dipwell.key_overrides o where o.limit_id = %d and o.key = q.key) is null", id)
	}
	s.takeMany = fmt.Sprintf(`with c as materialized (select %[1]s as n)
insert into dipwell.buckets as b (used, ts, limit_id, version, key)
select q.units, c.n, %[2]d, %[3]d, q.key from c cross join unnest(%[4]s) %[5]s
where coalesce((select b.version = %[3]d and (b.due <= c.n) is not true and %[6]s
    from dipwell.buckets b where b.limit_id = %[2]d and b.key = q.key), %[7]s)
on conflict (limit_id, key) do update set used = %[8]s + excluded.used, ts = greatest(excluded.ts, b.ts), low = %[10]s
where b.version = %[3]d and (b.due <= excluded.ts) is not true and %[9]s
returning b.key, b.used, b.ts, (select n from c)`, now, id, d.Number, unnest, columns, fitsSQL(r, before, bound+" - q.units"), missing,
		leftSQL(r, after), fitsSQL(r, after, bound+" - excluded.used"), lowSQL(leftSQL(r, after)))
}

// setReadSQL sets the statement that reads rows by their keys. The statement sorts and locks
// as newManySQL says. For a missing row it returns the version of the key's override, if there
// is one.
func setReadSQL(s *statements, id int32, overridden, testClock bool) {
	missing := "0"
	if overridden {
		missing = fmt.Sprintf("(select o.id - 2147483648 from dipwell.key_overrides o where o.limit_id = %d and o.key = q.key), 0", id) // terms.OverrideNumber
	}
	now := timeSQL(readNow, testClock, 2)
	s.readMany = fmt.Sprintf(`with c as materialized (select %[1]s as n)
select q.i, coalesce(b.used, 0), coalesce(b.ts, 0), coalesce(b.version, %[3]s), b.lows is not null or b.due is not null, c.n
from unnest((select $1::text[])) with ordinality q(key, i)
left join lateral (select b.used, b.ts, b.version, b.lows, b.due from dipwell.buckets b where b.limit_id = %[2]d and b.key = q.key limit 1) b on true cross join c`, now, id, missing)
}

var merges = sync.Pool{New: func() any { return new(store.Rows) }}

// decideBatch decides a batch. Calls for a single key are added up by key if
// all of them may be granted in full. One statement decides all such keys of a
// limit. set.sql comes next, then a pipeline of functions, and then one by one what is left.
func (s *Store) decideBatch(ctx context.Context, b *store.Batch) {
	m := merges.Get().(*store.Rows)
	defer merges.Put(m)
	m.Arrange(b)
	var parts, charges []*limitBatch
	for from := 0; from < len(m.Rows); {
		to := from + 1
		for to < len(m.Rows) && m.Rows[to].Limit == m.Rows[from].Limit {
			to++
		}
		if takes, charge := s.newLimitBatches(ctx, m.Rows[from:to]); takes != nil {
			parts = append(parts, takes)
			if charge != nil {
				charges = append(charges, charge)
			}
		}
		from = to
	}
	groups := m.Whole
	var others []*store.Group
	var decided []*bundle
	for _, p := range append(parts, charges...) {
		groups = append(groups, s.decideLimit(ctx, p)...)
		decided = append(decided, p.writeBack...)
		others = append(others, p.others...)
	}
	rest := append(s.set(ctx, groups, decided...), others...)
	for _, g := range groups {
		if retryable(g.Err) && s.autocommit() {
			rest = append(rest, g)
		}
	}
	var locked lockedRows
	for _, g := range s.decidePipelined(ctx, rest) {
		s.decideOne(ctx, g, &locked)
	}
}

// A pendingRow is a row with undecided groups. The first of these groups, as
// many as may be granted in full, are charged in one go.
type pendingRow struct {
	*store.RowGroups
	tried int
	units int64      // units that the first tried groups take
	rule  store.Rule // with the key's own origin, if origins are spread

	other     bool    // the SQL function must decide its groups
	writeBack *bundle // set if its groups are decided and the result must be written
}

// A limitBatch is the undecided rows of one limit.
type limitBatch struct {
	*entry
	bound     int64         // most units that may be used after a charge
	toCharge  []*pendingRow // rows to charge, sorted by key
	toRead    []*pendingRow // rows whose calls ask for no tokens: read before any charge
	oneByOne  []*store.Group
	others    []*store.Group // groups for the SQL function: their rows have lows or an override, or they have to wait
	writeBack []*bundle      // decided bundles, to be written

	alone bool // the batch is one call, which is retried as a whole
}

// askRows sends a statement, again after a conflict.
func (s *Store) askRows(ctx context.Context, p *limitBatch, statement func() error) error {
	if p.alone {
		return statement()
	}
	return s.retry(ctx, statement(), statement)
}

// newLimitBatches sorts the rows of one limit by how they are decided, or
// returns nil if the limit is not available. Rows with no calls but Charge
// have another bound and get a batch of their own.
func (s *Store) newLimitBatches(ctx context.Context, rows []store.RowGroups) (takes, charges *limitBatch) {
	var known [1]*entry
	if err := s.resolve(ctx, rows[0].Groups[0], known[:]); err != nil {
		for i := range rows {
			for _, g := range rows[i].Groups {
				g.Err = err
			}
		}
		return nil, nil
	}
	e := known[0]
	takes = &limitBatch{entry: e, bound: e.def.Rule.Cap}
	for i := range rows {
		row := &rows[i]
		for _, g := range row.Groups {
			g.Ops[0].Def = e.def
		}
		p := &pendingRow{RowGroups: row}
		p.rule = *row.Groups[0].Ops[0].RuleFor(&p.rule)
		asks, bound, ok := summable(row)
		switch {
		case !e.plain || !ok || s.overridden.of(e, row.Key) != nil:
			takes.oneByOne = append(takes.oneByOne, row.Groups...)
		case !asks:
			takes.toRead = append(takes.toRead, p)
		case bound > takes.bound && p.prepare(len(p.Groups), bound):
			if charges == nil {
				charges = &limitBatch{entry: e, bound: bound}
			}
			charges.toCharge = append(charges.toCharge, p)
		case !p.prepare(len(p.Groups), takes.bound):
			takes.oneByOne = append(takes.oneByOne, row.Groups...)
		default:
			takes.toCharge = append(takes.toCharge, p)
		}
	}
	return takes, charges
}

// summable reports whether the calls for a row of a plain limit can be added up (ok) and
// whether any of them asks for tokens (asks). bound is the smallest bound of those.
func summable(row *store.RowGroups) (asks bool, bound int64, ok bool) {
	bound = store.MaxInt
	for _, g := range row.Groups {
		op := &g.Ops[0]
		if readOnly(op) {
			continue
		}
		tokens, most := fullCost(op)
		if tokens == 0 {
			return false, 0, false
		}
		asks, bound = true, min(bound, most)
	}
	return asks, bound, true
}

// prepare selects the first n groups to be charged, or as many of them as fit
// in an empty row. prepare reports whether they take any tokens.
func (p *pendingRow) prepare(n int, bound int64) bool {
	p.tried, p.units = 0, 0
	for _, g := range p.Groups[:n] {
		units := int64(0)
		if op := &g.Ops[0]; !readOnly(op) {
			tokens, _ := fullCost(op)
			units = tokens * p.rule.Unit
		}
		if p.units > bound-units {
			break
		}
		p.tried, p.units = p.tried+1, p.units+units
	}
	return p.units > 0
}

// decideLimit decides the remaining rows of one limit, and returns the groups
// that must be decided one by one.
func (s *Store) decideLimit(ctx context.Context, p *limitBatch) []*store.Group {
	if len(p.toRead) > 0 {
		p.toCharge = append(p.toCharge, s.readRows(ctx, p, p.toRead)...)
		slices.SortFunc(p.toCharge, func(a, b *pendingRow) int { return cmp.Compare(a.Key, b.Key) })
	}
	for range maxRounds {
		if p.toCharge = p.chargeable(p.toCharge); len(p.toCharge) == 0 {
			break
		}
		p.toCharge = s.chargeRound(ctx, p, p.toCharge)
	}
	for _, row := range p.chargeable(p.toCharge) {
		p.oneByOne = append(p.oneByOne, row.Groups...)
	}
	return p.oneByOne
}

// chargeRound charges the rows that have room, again after a conflict, and reads the
// others. chargeRound returns the rows that are still undecided.
func (s *Store) chargeRound(ctx context.Context, p *limitBatch, rows []*pendingRow) (rest []*pendingRow) {
	var charged []bool
	err := s.askRows(ctx, p, func() error {
		found, err := s.db.Query(ctx, p.takeMany, s.chargeArgs(p.entry, rows, p.bound)...)
		if err == nil {
			charged, err = p.charged(found, rows)
		}
		return storeError(err, true)
	})
	if err != nil {
		s.oneAtFault(p, rows, err)
		return nil
	}
	for i, row := range rows {
		if charged[i] {
			row.Groups = row.Groups[row.tried:]
			row.tried = len(row.Groups)
		}
		if len(row.Groups) > 0 {
			rest = append(rest, row)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return s.readRows(ctx, p, rest)
}

func (s *Store) chargeArgs(e *entry, rows []*pendingRow, bound int64) []any {
	keys, units := make([]string, len(rows)), make([]int64, len(rows))
	var grids []int64
	for i, p := range rows {
		keys[i], units[i] = p.Key, p.units
		if spread(&e.def.Rule) {
			grids = append(grids, gridOf(p.rule.Origin, p.rule.Every))
		}
	}
	args := []any{keys, units}
	if spread(&e.def.Rule) {
		args = append(args, grids)
	}
	return s.withClock(append(args, bound))
}

// charged reads which rows were charged and fills in the answers of their groups.
func (p *limitBatch) charged(found pgx.Rows, rows []*pendingRow) ([]bool, error) {
	charged := make([]bool, len(rows))
	var key string
	var i int
	var now int64
	var row store.State
	_, err := pgx.ForEachRow(found, []any{&key, &row.Used, &row.TS, &now}, func() error {
		for rows[i].Key != key { // charged rows come back sorted by key
			i = (i + 1) % len(rows)
		}
		charged[i] = true
		rows[i].answerCharged(row, now)
		return nil
	})
	return charged, err
}

// answerCharged fills in the answers of the groups that were charged together, as if
// they had been charged one after the other. row is the state after the last one.
func (p *pendingRow) answerCharged(row store.State, now int64) {
	row.Used -= p.units
	for _, g := range p.Groups[:p.tried] {
		op := &g.Ops[0]
		if readOnly(op) {
			row.Version = op.Def.Number
			_, _, g.Err = op.Step(now, row, false)
			g.Allowed, g.Reserved = op.Allowed, false
			continue
		}
		tokens, _ := fullCost(op)
		row.Used += tokens * p.rule.Unit
		grant(g, &p.rule, tokens, row, now)
		g.Err = nil
	}
}

// chargeable removes the rows that need no further charge.
func (p *limitBatch) chargeable(rows []*pendingRow) []*pendingRow {
	return slices.DeleteFunc(rows, func(row *pendingRow) bool {
		switch {
		case row.other:
			p.others = append(p.others, row.Groups...)
		case row.writeBack != nil:
			p.writeBack = append(p.writeBack, row.writeBack)
		}
		return row.other || row.writeBack != nil
	})
}

// readRows reads rows that were not charged in full. If a row has no room for any of
// its groups they are answered; otherwise the number of groups to try next is set.
func (s *Store) readRows(ctx context.Context, p *limitBatch, rows []*pendingRow) (rest []*pendingRow) {
	keys := make([]string, len(rows))
	for i, row := range rows {
		keys[i] = row.Key
	}
	err := s.askRows(ctx, p, func() error {
		found, err := s.db.Query(ctx, p.readMany, s.withClock([]any{keys})...)
		if err == nil {
			rest, err = s.answerRead(p, found, rows)
		}
		return err
	})
	if err != nil {
		s.oneAtFault(p, rows, storeError(err, false))
		return nil
	}
	return rest
}

// answerRead fills in the answers for rows that were read, and returns the rows
// that are still undecided.
func (s *Store) answerRead(p *limitBatch, found pgx.Rows, rows []*pendingRow) (rest []*pendingRow, err error) {
	var i, now int64
	var state store.State
	var listed bool
	_, err = pgx.ForEachRow(found, []any{&i, &state.Used, &state.TS, (*rowVersion)(&state.Version), &listed, &now}, func() error {
		row := rows[i-1]
		if !row.decideRead(p, state, now, listed) {
			rest = append(rest, row)
		}
		return nil
	})
	return rest, err
}

// oneAtFault leaves the groups of rows whose statement failed without effect to be decided one
// by one. If the error is not about a row, or is a lock timeout (see decideUnlocked), all
// groups get the error.
func (s *Store) oneAtFault(p *limitBatch, rows []*pendingRow, err error) {
	aside := len(rows) > 1 && s.autocommit() && rowAtFault(err) && !errors.Is(err, store.ErrLocked)
	for _, row := range rows {
		if aside {
			p.others = append(p.others, row.Groups...)
			continue
		}
		for _, g := range row.Groups {
			g.Err = err
		}
	}
}

// decideRead decides the groups of a row that was read. If nothing has to be
// written, the answers are final. If only the first groups take tokens, and
// each of them in full, these groups are charged by addition, which does not
// require an unchanged row. Otherwise the resulting row is to be written.
func (p *pendingRow) decideRead(of *limitBatch, found store.State, now int64, listed bool) (done bool) {
	p.writeBack = nil
	if p.other = terms.IsOverride(found.Version); p.other {
		return false
	}
	after, write := p.Decide(now, found)
	clips := listed && slices.ContainsFunc(p.Groups, func(g *store.Group) bool { return g.Ops[0].Verb == store.VerbCharge })
	short := listed && slices.ContainsFunc(p.Groups, func(g *store.Group) bool { return !gotFullCost(&g.Ops[0]) }) // the function gives back expired holds, if any, before it refuses
	if !write && p.Groups[0].Err == nil && !clips && !short {                                                      // a Charge that adds nothing may still end the lows
		return true
	}
	n := 0
	for n < len(p.Groups) && (readOnly(&p.Groups[n].Ops[0]) || gotFullCost(&p.Groups[n].Ops[0])) {
		n++
	}
	more := slices.ContainsFunc(p.Groups[n:], func(g *store.Group) bool { return g.Ops[0].Granted > 0 })
	waits := slices.ContainsFunc(p.Groups, func(g *store.Group) bool { return g.Reserved || g.Err != nil })
	switch {
	case waits || listed:
		p.other = true
	case !more && after.Used <= of.bound && p.prepare(n, of.bound):
	case found.Version != of.def.Number:
		p.other = true
	default:
		p.writeBack = decidedBundle(of.entry, p.RowGroups, found, after)
	}
	return false
}
