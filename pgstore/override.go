package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dipwell/dipwell/internal/number"
	"github.com/dipwell/dipwell/store"
)

// A rowVersion is scanned from the column version of a bucket, which is negative if
// an override decides the row.
type rowVersion uint32

func (n *rowVersion) ScanInt64(v pgtype.Int8) error {
	*n = rowVersion(int32(v.Int64)) //nolint:gosec // the column has 32 bits
	return nil
}

// needsOverride reports whether a row that was read cannot be decided without the
// override of its key: one decides it, or there is no row and the key may have one.
func (e *entry) needsOverride(row store.State) bool {
	return number.IsOverride(row.Version) || e.def.Overridden && row == (store.State{})
}

// planEntry returns the entry of a plan, or nil if the limit has none of this name.
func (e *entry) planEntry(l *limits, name string) *entry {
	if p, ok := e.plans.Load(name); ok {
		return p.(*entry)
	}
	d := e.def.WithPlan(name)
	if d == nil {
		return nil
	}
	p, _ := e.plans.LoadOrStore(name, &entry{id: e.id, def: d, plain: e.plain && d.Mode <= store.Shadow, statements: l.s.engine().statements(e.id, d)})
	return p.(*entry)
}

// special reports whether the function must decide a group: an op has a floor, or a
// plan that is unlimited or blocked.
func special(g *store.Group) bool {
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Floor > 0 || op.Def.Mode > store.Shadow {
			return true
		}
	}
	return false
}

// hasVariant reports whether an op of a group is under another definition than its limit.
func hasVariant(g *store.Group) bool {
	for i := range g.Ops {
		if op := &g.Ops[i]; op.Def.Base() != op.Def {
			return true
		}
	}
	return false
}

// setDecider sets Def of an op to the definition that decided it, by what the function
// returned: the number of the rule, the name of the plan and the override. It returns
// false if that is of a version that this program does not know.
func setDecider(op *store.Op, version uint32, plan *string, override []byte) bool {
	base, decider := op.Def.Base(), op.Def
	switch {
	case override != nil:
		o, err := parseOverride(override)
		if err != nil || o.Version != base.Number {
			return false
		}
		o.Prepare()
		decider = base.WithOverride(o)
	case version == op.Def.Number:
	case version == base.Number:
		decider = base
	case plan != nil:
		if decider = base.WithPlan(*plan); decider == nil || decider.Number != version {
			return false
		}
	default:
		return false
	}
	op.Asked, op.Def = cmp.Or(op.Asked, op.Def), decider
	return true
}

// parseOverride reads an override that the function returned as JSON.
func parseOverride(text []byte) (*store.Override, error) {
	var v struct {
		Plan, Per   *string
		Rate, Burst *int64
		Until       int64
		ID, Version uint32
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	return newOverride(store.Override{Until: v.Until, ID: v.ID, Version: v.Version}, v.Plan, v.Rate, v.Per, v.Burst)
}

// maxOverridden bounds the keys whose override a store remembers, each with some
// hundred bytes.
const maxOverridden = 1 << 14

// overridden remembers the definitions that overrides make of the limits of keys, so
// that a call of one of them needs a single round trip. What it has may be outdated:
// the statement compares the number of the row.
type overridden struct {
	mu   sync.RWMutex
	defs map[bucketKey]*store.Definition
}

func (m *overridden) of(k bucketKey) *store.Definition {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.defs[k]
}

// note remembers the definition that decided a call, if it is that of an override.
func (m *overridden) note(k bucketKey, d *store.Definition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case d.Override == nil:
		delete(m.defs, k)
		return
	case m.defs == nil || len(m.defs) >= maxOverridden:
		m.defs = map[bucketKey]*store.Definition{}
	}
	m.defs[k] = d
}

// decideOverridden decides a call of a key whose override is remembered. It returns
// false if none is, and leaves the call to others.
func (s *Store) decideOverridden(ctx context.Context, g *store.Group, e *entry) (done bool, err error) {
	op := &g.Ops[0]
	k := bucketKey{e.id, op.Key}
	d := s.overridden.of(k)
	if d == nil {
		return false, nil
	}
	asked := op.Def
	if d.Base() == e.def.Base() && d.Mode <= store.Shadow && op.Floor == 0 && e.takeOverridden != "" && ticksNeedNoClamp(&d.Rule) && !s.refused.has(e.id, op.Key) {
		op.Def = d
		if tokens, bound := fullCost(op); tokens > 0 {
			units, until := tokens*d.Rule.Unit, d.Override.Until
			if until == 0 {
				until = store.MaxInt
			}
			var row store.State
			var now instant
			err = s.db.QueryRow(ctx, e.takeOverridden, s.withClock([]any{op.Key, units, bound - units, d.Rule.Add, int32(d.Number), until})...).Scan(&row.Used, &row.TS, &now) //nolint:gosec // the column has 32 bits
			if err == nil {
				grant(g, &d.Rule, tokens, row, int64(now))
				return true, nil
			}
			if !errors.Is(err, pgx.ErrNoRows) {
				return true, storeError(err, true)
			}
		}
		op.Def = asked
	}
	if err = s.decide(ctx, g, []*entry{e}); err == nil {
		s.refused.note(e.id, op.Key, !op.Allowed)
	}
	return true, err
}

// takeOverriddenSQL returns a statement that charges the row of a key that an override
// decides. Its numbers are parameters, because each override has its own.
func takeOverriddenSQL(id int32, testClock bool) string {
	now, seen := stmtNow, "statement_timestamp()"
	if testClock {
		now, seen = "$7::bigint", "$7::bigint"
	}
	return fmt.Sprintf(`update dipwell.buckets b set used = greatest(b.used - greatest(%[2]s - b.ts, 0) * $4::bigint, 0) + $2::bigint, ts = greatest(%[2]s, b.ts)
where b.limit_id = %[1]d and b.key = $1::text and b.version = $5::int and b.lows is null and greatest(%[2]s, b.ts) < $6::bigint
    and b.used - greatest(%[2]s - b.ts, 0) * $4::bigint <= $3::bigint
returning b.used, b.ts, %[3]s`, id, now, seen)
}

var _ store.Overrider = functions{}

const setOverrideSQL = "select id, version from dipwell_internal.set_override($1, $2, $3, $4, $5, $6, $7, $8, $9)"

// SetOverride sets the override of a key.
func (s functions) SetOverride(ctx context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	e, err := s.limits.entryOf(d)
	if err != nil {
		return o, err
	}
	if err = e.def.CheckOverride(&o, 0); err != nil { // the server's clock judges until
		return o, err
	}
	per := int64(o.Period)
	if per > 0 {
		per = o.Period.Microseconds()
	}
	burst := nullIf(o.Burst, 0)
	if o.Burst == store.NoBurst {
		burst = new(int64)
	}
	set := func() error {
		return s.db.QueryRow(ctx, setOverrideSQL, e.id, o.Key, nullIf(o.Plan, ""), nullIf(o.Rate, 0), nullIf(per, 0), burst, nullIf(o.Until, 0), nullIf(o.Note, ""), s.testNow()).Scan(&o.ID, &o.Version)
	}
	if err = s.retry(ctx, set(), set); err != nil {
		return o, overrideError(err, d.Name)
	}
	if !e.def.Overridden && s.autocommit() {
		_ = s.cat.Refresh(ctx) // the row tells programs that have not heard of it
	}
	return o, nil
}

// EndOverride ends the override of a key.
func (s functions) EndOverride(ctx context.Context, d *store.Definition, key string) (ended bool, err error) {
	e, err := s.limits.entryOf(d)
	if err != nil {
		return false, err
	}
	end := func() error {
		return s.db.QueryRow(ctx, "select dipwell_internal.end_override($1, $2, $3)", e.id, key, s.testNow()).Scan(&ended)
	}
	return ended, overrideError(s.retry(ctx, end(), end), d.Name)
}

// Overrides returns overrides that have not ended.
func (s functions) Overrides(ctx context.Context, d *store.Definition, prefix, after string, n int) (out []store.Override, err error) {
	e, err := s.limits.entryOf(d)
	if err != nil {
		return nil, err
	}
	shared := after == store.Shared // not a text that a column can hold
	if shared {
		after = ""
	}
	rows, err := s.db.Query(ctx, "select "+overrideColumns+` from dipwell.key_overrides where limit_id = $1 and key >= $2
		and ($3 = '' and not $5::boolean or key > $3) and left(key, char_length($2)) = $2
		and (until is null or until > coalesce($6::bigint, `+readNow+`)) order by key limit $4`, e.id, prefix, after, n, shared, s.testNow())
	if err != nil {
		return nil, storeError(err, false)
	}
	out, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Override, error) {
		o, err := scanOverride(row)
		return orZero(o), err
	})
	return out, storeError(err, false)
}

// withOverrides sets the Override of rows that one decides.
func (s *Store) withOverrides(ctx context.Context, id int32, rows []store.KeyState) error {
	var keys []string
	for i := range rows {
		if number.IsOverride(rows[i].Version) {
			keys = append(keys, rows[i].Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	found, err := s.db.Query(ctx, "select "+overrideColumns+" from dipwell.key_overrides where limit_id = $1 and key = any ($2)", id, keys)
	if err != nil {
		return err
	}
	overrides := map[string]*store.Override{}
	list, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (*store.Override, error) { return scanOverride(row) })
	for _, o := range list {
		o.Prepare()
		overrides[o.Key] = o
	}
	for i := range rows {
		rows[i].Override = overrides[rows[i].Key]
	}
	return err
}

// entryOf returns the entry of a definition's limit.
func (l *limits) entryOf(d *store.Definition) (*entry, error) {
	if e := (*l.entries.Load())[d.Name]; e != nil {
		return e, nil
	}
	return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, d.Name)
}

// overrideError wraps the error of a change of an override.
func overrideError(err error, limit string) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch {
		case pg.Code == "42501":
			return fmt.Errorf("%w: an override of limit %s: grant dipwell_admin to this login: %w", store.ErrDenied, limit, err)
		case pg.Code == "42704" && pg.ConstraintName == "limit_name":
			return fmt.Errorf("%w %q", store.ErrUnknownLimit, limit)
		}
	}
	return storeError(fieldError(err), true)
}

// fieldError turns the error of a function that names a field into a *store.FieldError,
// and returns others as they are.
func fieldError(err error) error {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) || pg.ConstraintName == "" || pg.Code != "22023" && pg.Code != "42704" {
		return err
	}
	field := &store.FieldError{Field: pg.ConstraintName, Reason: strings.TrimPrefix(pg.Message, pg.ConstraintName+": ")}
	if pg.Code == "42704" {
		field.Err = store.ErrUnknownPlan
	}
	return field
}
