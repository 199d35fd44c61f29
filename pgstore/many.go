package pgstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
)

// newManySQL writes a version's statements for many keys. Keys come sorted and
// are locked in that order, so that two batches cannot deadlock. takeMany
// charges every call about a key or none; what its snapshot shows to be refused
// it leaves alone. takeBold does not look first, which costs a third less where
// hardly anything is refused, and locks what it refuses. lookMany reads.
//
// The arrays come by way of a subquery: where the planner sees their length, it
// plans each execution anew.
func newManySQL(s *statements, id int32, d *dipwell.Definition, testClock bool) {
	r := &d.Rule
	now, columns, unnest := readNow, "q(key, units)", "(select $1::text[]), (select $2::bigint[])"
	grid := fmt.Sprintf("%d::bigint", gridOf(r.Origin, r.Every))
	before, after := returned(r, "b.ts", "c.n", grid), returned(r, "b.ts", "excluded.ts", grid)
	params := 2
	if spread(r) { // the origin is the key's, which excluded does not carry
		params, columns, unnest = 3, "q(key, units, grid)", unnest+", (select $3::bigint[])"
		before = returned(r, "b.ts", "c.n", "q.grid")
		after = returnedSince(r, "b.ts", "excluded.ts", "($3::bigint[])[width_bucket(excluded.key, $1::text[])]")
	}
	if testClock {
		now = fmt.Sprintf("$%d::bigint", params+1)
	}
	take := func(where string) string {
		return fmt.Sprintf(`with c as materialized (select %[1]s as n)
insert into dipwell.buckets as b (used, ts, limit_id, version, key)
select q.units, c.n, %[2]d, %[3]d, q.key from c cross join unnest(%[4]s) %[5]s%[6]s
on conflict (limit_id, key) do update set used = greatest(b.used - %[7]s, 0) + excluded.used, ts = greatest(excluded.ts, b.ts)
where b.version = %[3]d and b.lows is null and b.used - %[7]s <= %[8]d - excluded.used
returning b.key, b.used, b.ts, (select n from c)`, now, id, d.Number, unnest, columns, where, after, r.Cap)
	}
	s.takeBold = take("")
	s.takeMany = take(fmt.Sprintf(`
where coalesce((select b.version = %[2]d and b.lows is null and b.used - %[3]s <= %[4]d - q.units
    from dipwell.buckets b where b.limit_id = %[1]d and b.key = q.key), true)`, id, d.Number, before, r.Cap))
	lookNow := readNow
	if testClock {
		lookNow = "$2::bigint"
	}
	s.lookMany = fmt.Sprintf(`with c as materialized (select %[1]s as n)
select q.i, coalesce(b.used, 0), coalesce(b.ts, 0), coalesce(b.version, 0), b.lows is not null, c.n
from unnest((select $1::text[])) with ordinality q(key, i)
left join lateral (select b.used, b.ts, b.version, b.lows from dipwell.buckets b where b.limit_id = %[2]d and b.key = q.key limit 1) b on true cross join c`,
		lookNow, id)
}

// returnedSince is returned with the grid named once, for one that must be
// looked up: from the time since ts, and how much of it is the present window's.
func returnedSince(r *dipwell.Rule, ts, now, grid string) string {
	ticks := fmt.Sprintf("(greatest(%[1]s - %[2]s, 0) - (%[1]s - %[3]s) %% %[4]d + %[5]d) / %[4]d", now, ts, grid, r.Every, r.Every-1)
	return returnedTicks(r, ticks)
}

var merges = sync.Pool{New: func() any { return new(dipwell.Merge) }}

// many decides a batch: takes of one limit in one statement, however many keys
// and callers, and the statements of several limits in one trip; the rest one by
// one.
func (s *Store) many(ctx context.Context, b *dipwell.Batch) error {
	m := merges.Get().(*dipwell.Merge)
	defer merges.Put(m)
	m.Arrange(b)
	var parts []*part
	for from := 0; from < len(m.Rows); {
		to := from + 1
		for to < len(m.Rows) && m.Rows[to].Limit == m.Rows[from].Limit {
			to++
		}
		if p := s.part(ctx, m.Rows[from:to]); p != nil {
			parts = append(parts, p)
		}
		from = to
	}
	if len(parts) > 1 {
		s.together(ctx, parts)
	}
	groups := m.Whole
	for _, p := range parts {
		groups = append(groups, s.limitRows(ctx, p)...)
	}
	rest := s.set(ctx, groups)
	for _, g := range groups {
		if collided(g.Err) && s.alone() {
			rest = append(rest, g)
		}
	}
	s.oneByOne(ctx, s.inTurn(ctx, rest))
	return nil
}

// pending is what is still to be decided about a row: the first of its groups
// at once, as many as may fit.
type pending struct {
	*dipwell.Row
	try    int
	listed bool         // the row has lows
	rule   dipwell.Rule // the key's own, where windows are spread
}

// part is what is still to be decided about rows of one limit.
type part struct {
	*entry
	rest    []*pending // in the order of the keys
	refused []*pending // were lately, and are read first
	single  []*dipwell.Group

	failed   error // of the statement that charges rest, with others in one trip
	failures int   // of statements about its rows
}

// part sorts out rows of one limit; nil where the limit is not to be had.
func (s *Store) part(ctx context.Context, rows []dipwell.Row) *part {
	var known [1]*entry
	if err := s.cat.resolve(ctx, rows[0].Groups[0], known[:]); err != nil {
		fail(rows, err)
		return nil
	}
	e := known[0]
	out := &part{entry: e}
	for i := range rows {
		row := &rows[i]
		for _, g := range row.Groups {
			g.Ops[0].Def = e.def
		}
		op := &row.Groups[0].Ops[0]
		if !e.plain || op.Verb != dipwell.VerbTake || !row.Alike() || op.Cost <= 0 || op.Cost > e.def.Rule.Burst {
			out.single = append(out.single, row.Groups...)
			continue
		}
		p := &pending{Row: row, try: len(row.Groups)}
		p.rule = *e.def.RuleFor(row.Key, &p.rule)
		p.try = min(p.try, int(min(e.def.Rule.Burst/op.Cost, 1<<20)))
		if s.refused.has(e.id, row.Key) {
			out.refused = append(out.refused, p)
		} else {
			out.rest = append(out.rest, p)
		}
	}
	return out
}

// limitRows decides what is left about rows of one limit, and returns the groups
// that are to be decided one by one.
func (s *Store) limitRows(ctx context.Context, p *part) []*dipwell.Group {
	if len(p.refused) > 0 {
		p.rest = append(p.rest, s.refuse(ctx, p, p.refused)...)
		slices.SortFunc(p.rest, func(a, b *pending) int { return cmp.Compare(a.Key, b.Key) })
	}
	for range maxRounds {
		if p.rest = p.plainRows(p.rest); len(p.rest) == 0 {
			break
		}
		p.rest = s.round(ctx, p, p.rest)
	}
	for _, row := range p.rest {
		p.single = append(p.single, row.Groups...)
	}
	return p.single
}

func (s *Store) oneByOne(ctx context.Context, groups []*dipwell.Group) {
	var locked lockedRows
	for _, g := range groups {
		if g.Err = locked.err(g); g.Err == nil {
			g.Err = s.group(ctx, g)
			locked.note(g)
		}
	}
}

func fail(rows []dipwell.Row, err error) {
	for i := range rows {
		for _, g := range rows[i].Groups {
			g.Err = err
		}
	}
}

// round charges what may fit, and reads about the rest; it returns what is
// still undecided.
func (s *Store) round(ctx context.Context, p *part, rows []*pending) (rest []*pending) {
	charged, err := s.chargeOrFail(ctx, p, rows)
	if err != nil {
		return s.divide(ctx, p, rows, err, func(some []*pending) []*pending { return s.round(ctx, p, some) })
	}
	for i, row := range rows {
		if charged[i] {
			row.settle(nil)
		}
		if len(row.Groups) > 0 {
			rest = append(rest, row)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return s.refuse(ctx, p, rest)
}

// chargeOrFail charges rows, unless together has just failed to.
func (s *Store) chargeOrFail(ctx context.Context, p *part, rows []*pending) (charged []bool, err error) {
	if err, p.failed = p.failed, nil; err != nil {
		return nil, err
	}
	if charged, err = s.charge(ctx, p.entry, rows); err != nil {
		err = s.again(ctx, err, func() (err error) { charged, err = s.charge(ctx, p.entry, rows); return err })
	}
	return charged, err
}

// settle takes the groups that were tried off the list.
func (p *pending) settle(err error) {
	if err != nil {
		for _, g := range p.Groups {
			g.Err = err
		}
		p.Groups = nil
		return
	}
	p.Groups = p.Groups[p.try:]
	p.try = len(p.Groups)
}

func (s *Store) charge(ctx context.Context, e *entry, rows []*pending) ([]bool, error) {
	found, err := s.db.Query(ctx, e.chargeSQL(), s.chargeArgs(e, rows)...)
	if err != nil {
		return nil, storeError(err, true)
	}
	charged, err := e.charged(found, rows)
	return charged, storeError(err, true)
}

func (s *Store) chargeArgs(e *entry, rows []*pending) []any {
	keys, units := make([]string, len(rows)), make([]int64, len(rows))
	var grids []int64
	for i, p := range rows {
		keys[i], units[i] = p.Key, int64(p.try)*p.Groups[0].Ops[0].Cost*p.rule.Unit
		if spread(&e.def.Rule) {
			grids = append(grids, gridOf(p.rule.Origin, p.rule.Every))
		}
	}
	args := []any{keys, units}
	if spread(&e.def.Rule) {
		args = append(args, grids)
	}
	return s.withClock(args)
}

// charged reads which rows were charged, and answers about them.
func (e *entry) charged(found pgx.Rows, rows []*pending) ([]bool, error) {
	charged := make([]bool, len(rows))
	var key string
	var i int
	var now int64
	var row dipwell.State
	_, err := pgx.ForEachRow(found, []any{&key, &row.Used, &row.TS, &now}, func() error {
		for rows[i].Key != key { // they come in the order of the keys
			i = (i + 1) % len(rows)
		}
		charged[i] = true
		rows[i].admit(row, now)
		return nil
	})
	e.noteRefused(slices.Contains(charged, false))
	return charged, err
}

// calm is how many statements in a row must have refused nothing before the
// next one dares not to look first.
const calm = 64

func (e *entry) chargeSQL() string {
	if e.clean.Load() >= calm {
		return e.takeBold
	}
	return e.takeMany
}

func (e *entry) noteRefused(some bool) {
	switch n := e.clean.Load(); {
	case some && n > 0:
		e.clean.Store(0)
	case !some && n < calm:
		e.clean.Add(1)
	}
}

// admit answers the groups that were charged together, each as if it had come
// alone and in its turn; row is what the last of them left.
func (p *pending) admit(row dipwell.State, now int64) {
	step := p.Groups[0].Ops[0].Cost * p.rule.Unit
	used := row.Used - int64(p.try)*step
	for _, g := range p.Groups[:p.try] {
		used += step
		admit(g, &p.rule, dipwell.State{Used: used, TS: row.TS}, now)
		g.Err = nil
	}
}

// plainRows takes rows with reservations off the list: the function decides
// about them, one group at a time.
func (p *part) plainRows(rows []*pending) []*pending {
	return slices.DeleteFunc(rows, func(row *pending) bool {
		if row.listed {
			p.single = append(p.single, row.Groups...)
		}
		return row.listed
	})
}

// refuse reads rows that were not charged in full and answers where nothing
// fits; otherwise it leaves the number that may be tried.
func (s *Store) refuse(ctx context.Context, p *part, rows []*pending) (rest []*pending) {
	found, err := s.db.Query(ctx, p.lookMany, s.lookArgs(rows)...)
	if err == nil {
		rest, err = s.looked(p.entry, found, rows)
	}
	if err != nil {
		return s.divide(ctx, p, rows, storeError(err, false), func(some []*pending) []*pending { return s.refuse(ctx, p, some) })
	}
	return rest
}

func (s *Store) lookArgs(rows []*pending) []any {
	keys := make([]string, len(rows))
	for i, p := range rows {
		keys[i] = p.Key
	}
	return s.withClock([]any{keys})
}

// looked answers about rows that were read, and returns those to be tried.
func (s *Store) looked(e *entry, found pgx.Rows, rows []*pending) (rest []*pending, err error) {
	var i, now int64
	var row dipwell.State
	var listed bool
	_, err = pgx.ForEachRow(found, []any{&i, &row.Used, &row.TS, &row.Version, &listed, &now}, func() error {
		p := rows[i-1]
		p.listed = listed
		done := p.answered(row, now)
		if s.refused.note(e.id, p.Key, done); !done {
			rest = append(rest, p)
		}
		return nil
	})
	return rest, err
}

func settleAll(rows []*pending, err error) {
	for _, p := range rows {
		p.settle(err)
	}
}

// answered decides the groups on a row that was read. Where any is allowed
// nothing counts yet: so many are to be tried.
func (p *pending) answered(row dipwell.State, now int64) bool {
	if _, write := p.Decide(now, row); !write && p.Groups[0].Err == nil {
		return true
	}
	p.try = 0
	for _, g := range p.Groups {
		if g.Err == nil && g.Allowed && !g.Ops[0].Shadow {
			p.try++
		}
	}
	p.try = max(p.try, 1)
	return false
}
