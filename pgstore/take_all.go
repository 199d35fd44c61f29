package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/sqlexpr"
	"github.com/dipwell/dipwell/store"
)

// maxTakeAllKeys is the largest number of keys in a group that takeAll charges.
const maxTakeAllKeys = 4

// maxCombinations bounds the combinations of limits that have a takeAll
// statement, and with it the prepared statements of each connection. Groups
// with other combinations are decided by set.sql.
const maxCombinations = 128

// A combination is the limits of a takeAll statement, in the order of their
// ids.
type combination [maxTakeAllKeys]*entry

// combinations holds the takeAll statements by combination. When it is full,
// the statements of changed limits are dropped.
type combinations struct {
	mu  sync.RWMutex
	sql map[combination]*takeAllSQL
}

// takeAllSQL are the two statements of a combination. One first looks whether all rows
// have room, so that it locks nothing if it refuses. The other charges at once. If a
// charge of the latter does not fit after earlier ones did, it ends with an error, which
// is in the server's log. So it is used only after a long run of statements that were
// charged, and each failure doubles that run.
type takeAllSQL struct {
	key             rawKey
	looking, atOnce string
	charged, failed atomic.Int32
}

const maxDoublings = 10

// choose returns the statement to send next.
func (t *takeAllSQL) choose() (key rawKey, sql string, looks bool) {
	key = t.key
	if t.charged.Load() >= minCleanRun<<min(t.failed.Load(), maxDoublings) {
		key.form = formTakeAllAtOnce
		return key, t.atOnce, false
	}
	return key, t.looking, true
}

// note remembers whether a statement was charged.
func (t *takeAllSQL) note(charged, looked bool) {
	switch {
	case charged && looked:
		t.charged.Add(1)
	case !charged:
		if !looked {
			t.failed.Add(1)
		}
		t.charged.Store(0)
	}
}

// takeAll charges every bucket of a group, or none, with a single statement
// that has one UPDATE for each bucket. The statement succeeds only if every row
// exists and has room. Otherwise, and if one of the keys was refused recently,
// set.sql decides the group.
func (s *Store) takeAll(ctx context.Context, g *store.Group, known []*entry) error {
	var parts [maxTakeAllKeys]takeAllRow
	n := s.takeAllRows(g, known, parts[:])
	if t := s.combos.statement(parts[:n], s.limits); t != nil {
		key, sql, looks := t.choose()
		decided, err := s.takeAllInTurn(ctx, key, sql, g, parts[:n])
		if decided {
			return err
		}
		if errors.Is(err, store.ErrStore) { // nothing was sent
			return err
		}
		t.note(err == nil, looks)
		if err == nil {
			return nil
		}
		if !errors.Is(err, pgx.ErrNoRows) && !abortedCharge(err) {
			return storeError(err, true)
		}
	}
	err := s.decideSetOrFunction(ctx, g, known)
	for i := range g.Ops {
		if op := &g.Ops[i]; err == nil && known[i].plain { // for a leaky bucket, refused means that calls have to wait
			s.refused.note(known[i].id, op.Key, !op.Allowed)
		}
	}
	return err
}

// A takeAllRow is a bucket that takeAll charges.
type takeAllRow struct {
	*entry
	op            *store.Op
	rule          *store.Rule
	scratch       store.Rule
	tokens, bound int64
}

// takeAllRows fills in the buckets of a group in the order of limit and key. It
// returns 0 if takeAll cannot decide the group.
func (s *Store) takeAllRows(g *store.Group, known []*entry, parts []takeAllRow) int {
	if len(g.Ops) > len(parts) || !s.autocommit() || special(g) {
		return 0
	}
	for i := range g.Ops {
		p := &parts[i]
		p.entry, p.op = known[i], &g.Ops[i]
		if p.plain {
			p.tokens, p.bound = fullCost(p.op)
		}
		if p.tokens == 0 || takesLess(g, p.op) || s.overridden.of(p.entry, p.op.Key) != nil || s.refused.has(p.id, p.op.Key) || p.newKeys.mostlyNew() && !s.seen.has(p.id, p.op.Key) {
			return 0
		}
	}
	parts = parts[:len(g.Ops)]
	slices.SortFunc(parts, func(x, y takeAllRow) int {
		if x.id != y.id {
			return int(x.id) - int(y.id)
		}
		return strings.Compare(x.op.Key, y.op.Key)
	})
	for i := range parts {
		p := &parts[i]
		if p.rule = p.op.RuleFor(&p.scratch); i > 0 && parts[i-1].id == p.id && parts[i-1].op.Key == p.op.Key {
			return 0
		}
	}
	return len(parts)
}

// takeAllInTurn is execTakeAll behind the gates of the keys, in the order in which the
// statement locks their rows.
func (s *Store) takeAllInTurn(ctx context.Context, key rawKey, sql string, g *store.Group, parts []takeAllRow) (decided bool, err error) {
	var seats [maxTakeAllKeys]seat
	defer func() {
		for i := range seats {
			seats[i].leave()
		}
	}()
	for i := range parts {
		if seats[i], err = s.enterRow(ctx, parts[i].id, parts[i].op.Key, g, nil); err != nil || seats[i].decided {
			return seats[i].decided, err
		}
	}
	return false, s.execTakeAll(ctx, key, sql, g, parts)
}

// execTakeAll runs the statement. If a charge does not fit, nothing is charged
// and the error is pgx.ErrNoRows or one for which abortedCharge is true.
func (s *Store) execTakeAll(ctx context.Context, key rawKey, sql string, g *store.Group, parts []takeAllRow) error {
	args := make([]any, 0, maxRawParams)
	for i := range parts {
		p := &parts[i]
		units := p.tokens * p.rule.Unit
		args = append(args, p.op.Key, units, room(p.rule, units, p.bound))
		if spread(p.rule) {
			args = append(args, gridOf(p.rule.Origin, p.rule.Every))
		}
	}
	var row [2*maxTakeAllKeys + 1]int64
	n := 2 * len(parts)
	if err := s.ask(ctx, key, sql, s.withClock(args), row[:n+1]); err != nil {
		return err
	}
	for i := range parts {
		p := &parts[i]
		fillGranted(p.op, p.rule, p.tokens, store.State{Used: row[2*i], TS: row[2*i+1]}, row[n])
		if !s.seen.has(p.id, p.op.Key) {
			s.noteSeen(p.entry, p.op.Key, false)
		}
	}
	g.Allowed, g.Reserved = true, false
	return nil
}

// statement returns the statements of a combination of limits, or nil if there is no room
// for another one.
func (p *combinations) statement(parts []takeAllRow, l *limits) *takeAllSQL {
	if len(parts) == 0 {
		return nil
	}
	var of combination
	for i := range parts {
		of[i] = parts[i].entry
	}
	p.mu.RLock()
	t := p.sql[of]
	p.mu.RUnlock()
	if t != nil {
		return t
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sql) >= maxCombinations {
		entries := *l.entries.Load()
		for of := range p.sql {
			if slices.ContainsFunc(of[:], func(e *entry) bool { return e != nil && entries[e.def.Name] != e }) {
				delete(p.sql, of)
			}
		}
	}
	if t = p.sql[of]; t != nil {
		return t
	}
	if len(p.sql) >= maxCombinations {
		return nil
	}
	if p.sql == nil {
		p.sql = map[combination]*takeAllSQL{}
	}
	t = newTakeAllSQL(of[:len(parts)], l.s.clock != nil)
	p.sql[of] = t
	return t
}

// newTakeAllSQL returns statements that charge one row of each limit, or none. Each
// UPDATE but the first runs only after the one before it has charged, so rows are
// locked in order. If a row has no room after others were charged, an error rolls
// these back. The statement that looks runs the first UPDATE only if, in the snapshot,
// the charges fit all other rows. So a refusal locks nothing and uses no transaction
// id, unless a row changed after the snapshot.
//
// Each UPDATE returns what those before it have returned, so that the plan has no
// subplans besides them: whoever waits for a row starts all subplans a second time.
func newTakeAllSQL(of []*entry, testClock bool) *takeAllSQL {
	now, seen, params := stmtNow, "statement_timestamp()", 0
	for _, e := range of {
		if params += 3; spread(&e.def.Rule) {
			params++
		}
	}
	if testClock {
		now = fmt.Sprintf("$%d::bigint", params+1)
		seen = now
	}
	params = 0
	param := func(kind string) string {
		params++
		return fmt.Sprintf("$%d::%s", params, kind)
	}
	charges := make([]charge, len(of))
	for i, e := range of {
		key, units, room := param("text"), param("bigint"), param("bigint")
		grid := sqlexpr.Int(gridOf(e.def.Rule.Origin, e.def.Rule.Every))
		if spread(&e.def.Rule) {
			grid = sqlexpr.Op(param("bigint"))
		}
		charges[i] = chargeSQL(e.id, e.def, now, grid, key, units, room)
	}
	var looks, then, columns strings.Builder
	first, returning, last := "", "", len(charges)-1
	for i, c := range charges {
		set, where := "update dipwell.buckets b set "+c.set, "\n    where "+c.where
		returned := fmt.Sprintf("\n    returning %[1]sb.used as used%[2]d, b.ts as ts%[2]d)", returning, i)
		returning += fmt.Sprintf("a.used%[1]d, a.ts%[1]d, ", i)
		if i == 0 {
			first = "with a0 as (" + set + where
			then.WriteString(returned)
			columns.WriteString("a.used0, a.ts0, ")
			continue
		}
		looks.WriteString("\n    and (select true from dipwell.buckets b where " + c.where + ")")
		fmt.Fprintf(&then, ",\na%d as (%s\n    from a%d a%s%s", i, set, i-1, where, returned)
		if i < last {
			fmt.Fprintf(&columns, "z.used%[1]d, z.ts%[1]d, ", i)
		} else {
			fmt.Fprintf(&columns, "coalesce(z.used%[1]d, ('%[2]s' || a.ts0)::bigint), z.ts%[1]d, ", i, abortedChargeText)
		}
	}
	fmt.Fprintf(&then, "\nselect %s%s from a0 a left join a%d z on true", &columns, seen, last)
	key := rawKeyOf(of[0], formTakeAll)
	for _, e := range of[1:] {
		key.other += "_" + rawKeyOf(e, 0).limits()
	}
	return &takeAllSQL{key: key, looking: first + looks.String() + then.String(), atOnce: first + then.String()}
}

// abortedChargeText is in the error, and therefore in the server's log, if
// another transaction emptied a bucket while the statement waited for its lock.
const abortedChargeText = "dipwell: a bucket has changed; nothing was charged, and the call is retried; at "

// abortedCharge reports whether a takeAll statement rolled itself back.
func abortedCharge(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == codeInvalidText && strings.Contains(pg.Message, abortedChargeText)
}
