package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/bounded"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A rowVersion is scanned from the column version of a bucket, which is negative if
// an override decides the row.
type rowVersion uint32

func (n *rowVersion) ScanInt64(v pgtype.Int8) error {
	*n = rowVersion(int32(v.Int64)) //nolint:gosec // the column has 32 bits
	return nil
}

// planEntry returns the entry of a plan, or nil if the limit has no plan of this name.
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

// special reports whether only the SQL function can decide a group: an op has a fraction of
// the rate, or a plan that is unlimited or blocked.
func special(g *store.Group) bool {
	return slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Fraction > 0 || op.Def.Mode > store.Shadow })
}

// setDecider sets Def of an op to the definition that decided it, from the rule's number,
// the plan's name and the override that the function returned. setDecider returns false
// if this program does not know that version.
func setDecider(op *store.Op, version uint32, plan *string, override []byte) bool {
	base, decider := op.Def.Base(), op.Def
	switch {
	case override != nil:
		o, err := parseOverride(op.Key, string(override))
		if err != nil || o.Version != base.Number {
			return false
		}
		o.Prepare()
		decider = base.WithOverride(o)
	case version == op.Def.Number:
	case plan != nil:
		decider = base.WithPlan(*plan)
		if decider == nil || decider.Number != version && decider.Mode != store.Unlimited { // a concurrency limit counts an unlimited plan under its own definition
			return false
		}
	case version == base.Number:
		decider = base
	default:
		return false
	}
	op.Asked, op.Def = cmp.Or(op.Asked, op.Def), decider
	return true
}

// parseOverride reads an override that the function returned as JSON.
func parseOverride(key, text string) (*store.Override, error) {
	if text == "" {
		return nil, nil
	}
	var v storedOverride
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return nil, err
	}
	return v.read(key)
}

// A storedOverride is the JSON of a row of key_overrides. A null means that the limit's setting
// applies, or that there is no value.
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

// scanOverride reads a row with a key and its override, whose text read understands.
func scanOverride(row pgx.Row, read func(key, text string) (*store.Override, error)) (*store.Override, error) {
	var key, text string
	if err := row.Scan(&key, &text); err != nil {
		return nil, err
	}
	return read(key, text)
}

// maxOverridden bounds the keys whose override a store remembers. Each entry takes
// about a kilobyte.
const maxOverridden = 1 << 15

// overridden remembers the definitions of overridden keys, so that a call of such a key
// takes one round trip. An entry may be outdated: the statement compares the number of
// the row, and the time with the end of the override.
type overridden struct {
	bounded.Map[bucketKey, *store.Definition]
}

func newOverridden() *overridden {
	return &overridden{bounded.Map[bucketKey, *store.Definition]{Most: maxOverridden / 2}}
}

// of returns the definition that an override makes for a key of a limit, or nil if
// none is remembered.
func (m *overridden) of(e *entry, key string) *store.Definition {
	if !e.def.Overridden {
		return nil
	}
	d, _ := m.Get(bucketKey{e.id, key})
	if d == nil || d.Base() != e.def.Base() {
		return nil
	}
	return d
}

// noteOverrides remembers the definitions that decided the ops of a group, if they come from
// overrides.
func (s *Store) noteOverrides(g *store.Group) {
	for i := range g.Ops {
		op := &g.Ops[i]
		e, err := s.limits.entryOf(op.Def)
		switch {
		case err != nil:
		case op.Def.Override != nil:
			s.overridden.Put(bucketKey{e.id, op.Key}, op.Def)
		case e.def.Overridden:
			s.overridden.Remove(bucketKey{e.id, op.Key})
		}
	}
}

// endOf returns the end of an override, in µs.
func endOf(d *store.Definition) int64 {
	if o := d.Override; o != nil && o.Until != 0 {
		return o.Until
	}
	return store.MaxInt
}

// decideOverridden decides a call of a key whose override is remembered, by one statement
// if the call is charged in full, and otherwise by set.sql. If no override is remembered,
// or the row is under another definition, it returns false.
func (s *Store) decideOverridden(ctx context.Context, g *store.Group, e *entry) (done bool, err error) {
	d := s.overridden.of(e, g.Ops[0].Key)
	if d == nil || g.Ops[0].Verb == store.VerbReset {
		return false, nil
	}
	if done, err = s.takeOverridden(ctx, g, e, d); done || err != nil {
		return done, err
	}
	asked := g.Ops[0].Def
	if len(s.set(ctx, []*store.Group{g})) > 0 {
		g.Ops[0].Def = asked // set may have found that the override decides
		return false, nil
	}
	return true, g.Err
}

// takeOverridden charges a call of an overridden key in full, if that fits.
func (s *Store) takeOverridden(ctx context.Context, g *store.Group, e *entry, d *store.Definition) (done bool, err error) {
	op, asked := &g.Ops[0], g.Ops[0].Def
	op.Def = d
	tokens, bound := fullCost(op)
	op.Def = asked
	if tokens == 0 || e.takeOverridden.sql == "" || !d.Even() || d.Mode > store.Shadow || op.Fraction > 0 {
		return false, nil
	}
	var scratch store.Rule
	rule := d.RuleFor(op.Key, &scratch)
	units := tokens * rule.Unit
	numbers := append(make([]int64, 0, 8), units, bound-units, rule.Add, int64(int32(d.Number)), endOf(d), algebra.QuoUp(rule.MaxUsed, rule.Add)) //nolint:gosec // the column has 32 bits
	if rule.Every > 1 {
		numbers = append(numbers, gridOf(rule.Origin, rule.Every))
	}
	row, now, err := s.update(ctx, e.takeOverridden, op.Key, numbers...)
	switch {
	case err == nil:
		op.Asked, op.Def = cmp.Or(op.Asked, op.Def), d
		grant(g, rule, tokens, row, now)
		resetPastEnd(op, now)
		return true, nil
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	}
	return true, storeError(err, true)
}

// resetPastEnd corrects Reset if the override that decided op ends before that time.
func resetPastEnd(op *store.Op, now int64) {
	if o := op.Def.Override; o.Until == 0 || op.Reset <= o.Until-now {
		return
	}
	present := store.Op{Def: op.Def.Base(), Key: op.Key, Verb: store.VerbCheck}
	if _, _, err := present.Step(now, op.Row(), true); err == nil {
		op.Reset = present.Reset
	}
}

const (
	setOverrideSQL = "select to_jsonb(s.set_), to_jsonb(r) from dipwell_internal.set_override($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) s left join lateral (select (s.replaced).*) r on r.id is not null"
	endOverrideSQL = "select to_jsonb(e) from dipwell_internal.end_override($1, $2, $3, $4) e where e.id is not null"
)

// SetOverride sets an override of a key.
func (s functions) SetOverride(ctx context.Context, d *store.Definition, o store.Override) (store.Override, error) {
	e, err := s.limits.entryOf(d)
	if err != nil {
		return store.Override{}, err
	}
	if err = e.def.CheckOverride(&o, 0); err != nil { // Until is checked against the server's clock
		return store.Override{}, err
	}
	per := int64(o.Period)
	if per > 0 {
		per = o.Period.Microseconds()
	}
	burst := nullIf(o.Burst, 0)
	if o.Burst == store.NoBurst {
		burst = new(int64)
	}
	var set, replaced []byte
	err = s.change(ctx, changePatience, []any{&set, &replaced},
		setOverrideSQL, e.id, o.Key, nullIf(o.Plan, ""), nullIf(o.Rate, 0), nullIf(per, 0), burst, nullIf(o.Until, 0), nullIf(o.Note, ""), s.testNow(), nullIf(o.Start, ""))
	if err != nil {
		return store.Override{}, overrideError(err, d.Name)
	}
	if !e.def.Overridden && s.autocommit() {
		_ = s.cat.Refresh(ctx) // if it fails, the row tells programs that the limit has overrides
	}
	kept, err := parseOverride(o.Key, string(set))
	if err == nil {
		kept.Replaced, err = parseOverride(o.Key, string(replaced))
	}
	return orZero(kept), err
}

// EndOverride ends an override of a key.
func (s functions) EndOverride(ctx context.Context, d *store.Definition, key string, kind store.OverrideKind) (ended *store.Override, err error) {
	e, err := s.limits.entryOf(d)
	if err != nil {
		return nil, err
	}
	var was []byte
	err = s.change(ctx, changePatience, []any{&was}, endOverrideSQL, e.id, key, nullIf(kind.String(), store.AnyOverride.String()), s.testNow())
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, overrideError(err, d.Name)
	}
	return parseOverride(key, string(was))
}

// withOverrides sets the Override of those rows that an override decides.
func (s *Store) withOverrides(ctx context.Context, id int32, rows []store.KeyState) error {
	var keys []string
	for i := range rows {
		if terms.IsOverride(rows[i].Version) {
			keys = append(keys, rows[i].Key)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	found, err := list(ctx, s.db, func(row pgx.CollectableRow) (*store.Override, error) { return scanOverride(row, parseOverride) }, `select o.key, to_jsonb(o) - 'rule' from unnest($2::text[]) q(k)
		cross join lateral (select * from dipwell.key_overrides where limit_id = $1 and key = q.k limit 1) o`, customPlan, id, keys)
	overrides := map[string]*store.Override{}
	for _, o := range found {
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

// overrideError wraps the error of a statement that changes an override.
func overrideError(err error, limit string) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch {
		case pg.Code == codeDenied:
			return fmt.Errorf("%w: an override of limit %s: grant dipwell_admin to this login: %w", store.ErrDenied, limit, err)
		case pg.Code == codeUndefined && pg.ConstraintName == "limit_name":
			return fmt.Errorf("%w %q", store.ErrUnknownLimit, limit)
		}
	}
	return callError(err, true)
}
