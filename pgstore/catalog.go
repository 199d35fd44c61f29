package pgstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/catalog"
	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// limits holds the limits of one database, which has a row for each limit and one for
// each version.
type limits struct {
	s       *Store // a store that never uses a caller's transaction
	db      DB     // reads the limits
	reg     store.Registry
	entries atomic.Pointer[map[string]*entry]
	dialect atomic.Pointer[dialect] // nil: PostgreSQL with its functions
	pass    portablePass
	sweeps  bool // Config.Sweep

	zones sync.Map     // by terms.CalendarSpec: comparedZone
	ahead atomic.Int64 // µs: the database's clock minus this machine's, as far as it is known
}

var _ catalog.Backend = (*limits)(nil)

// An entry is a limit, its id in the database and its statements.
type entry struct {
	statements
	id    int32
	def   *store.Definition
	plain bool     // a Take is arithmetic on the row
	plans sync.Map // by plan name: *entry
}

func newLimits(s *Store) *limits {
	l := &limits{s: s, db: s.sideDB(asideLimits)}
	l.entries.Store(&map[string]*entry{})
	return l
}

// catalog returns the catalogue of these limits.
func (l *limits) catalog(c Config) *catalog.Catalog {
	return catalog.New(l, &l.reg, catalog.Config{Lazy: c.Lazy, WaitForAccess: c.WaitForAccess, Report: c.OnError,
		Unread:      func(error) error { return errUnread },
		Error:       func(err error) error { return storeError(err, false) },
		Unavailable: unavailable,
		Denied: func(err error) bool { // the server rejected the role or the database
			code := codeOf(err)
			return (strings.HasPrefix(code, "28") || code == "3D000" || code == codeDenied) && !errors.Is(err, store.ErrDenied)
		},
		Unfit: func(err error) bool { return errors.As(err, new(*SchemaError)) },
	})
}

// errUnread is the error of calls before the limits were read for the first time.
var errUnread = fmt.Errorf("%w: the limits could not be read from the database yet", store.ErrStore)

// hear makes sure that the limits were current at most catalog.MaxUnheard ago. The server
// keeps a superseded version for much longer (dipwell_internal.retire, keepVersion), because a
// row of a version that is gone counts as full.
func (s *Store) hear(ctx context.Context) error {
	switch {
	case s.cat.Heard(), time.Since(s.heard) < catalog.MaxUnheard:
		return nil
	case s.autocommit():
		return storeError(s.cat.Refresh(ctx), false)
	}
	now := time.Now()
	err := s.readLimits(ctx)
	if err == nil {
		s.heard = now
	}
	return err
}

// resolve finds the entries of a group's limits. Definitions from another
// store, or older ones, are replaced by those of this database.
func (s *Store) resolve(ctx context.Context, g *store.Group, out []*entry) error {
	if err := s.hear(ctx); err != nil {
		return err
	}
	l := s.limits
	for i := range g.Ops {
		op := &g.Ops[i]
		e := (*l.entries.Load())[op.Def.Name]
		if e == nil {
			if err := s.loadForCall(ctx); err != nil {
				return err
			}
			if e = (*l.entries.Load())[op.Def.Name]; e == nil {
				return fmt.Errorf("%w %q", store.ErrUnknownLimit, op.Def.Name)
			}
		}
		asked := cmp.Or(op.Asked, op.Def)
		plan := asked.Plan
		op.Def, out[i] = e.def, e
		if plan != "" {
			p := e.planEntry(l, plan)
			if p == nil {
				return &store.FieldError{Field: "plan", Reason: fmt.Sprintf("limit %s has no plan %q", op.Def.Name, plan), Err: store.ErrUnknownPlan}
			}
			op.Def, out[i] = p.def, p
		}
	}
	return nil
}

// entry finds the entry of a limit, as resolve does.
func (s *Store) entry(ctx context.Context, d *store.Definition) (*entry, error) {
	var known [1]*entry
	err := s.resolve(ctx, &store.Group{Ops: []store.Op{{Def: d.Base()}}}, known[:])
	return known[0], err
}

// loadForCall reads the limits for a call whose limit this program does not know.
func (s *Store) loadForCall(ctx context.Context) error {
	if s.autocommit() {
		return s.cat.LoadForCall(ctx)
	}
	if err := s.cat.LoadError(); err != nil {
		return err
	}
	return s.readLimits(ctx)
}

// readLimits reads the limits in the caller's transaction. It uses no connection of the
// pool and waits for no other reader: a reader on the pool may itself be waiting for rows
// that this transaction has locked.
func (s *Store) readLimits(ctx context.Context) error {
	l := s.limits
	read, err := l.readLimits(ctx, s.db, "")
	if err == nil {
		for _, d := range read.Defs {
			if e := (*l.entries.Load())[d.Name]; e != nil {
				d.Warning = e.def.Warning
			}
		}
		err = s.cat.Install(read)
	}
	return storeError(err, false)
}

// Prepare finds out which schema the database has.
func (l *limits) Prepare(ctx context.Context) error {
	switch have, err := schemaVersion(ctx, l.db); {
	case denied(err) && !errors.As(err, new(*pgconn.ConnectError)):
		return fmt.Errorf("grant dipwell_service to this login, or dipwell_admin if it defines limits: %w", err)
	case err != nil:
		return err
	case have != SchemaVersion:
		return &SchemaError{have, SchemaVersion}
	}
	dialect, err := detect(ctx, l.db)
	if err != nil {
		return err
	}
	l.dialect.Store(dialect)
	return nil
}

// Revision reads the revision of the limits.
func (l *limits) Revision(ctx context.Context) (revision int64, err error) {
	err = l.db.QueryRow(ctx, revisionSQL).Scan(&revision)
	return revision, err
}

// Read reads all limits, or one.
func (l *limits) Read(ctx context.Context, only string) (*catalog.Limits, error) {
	read, err := l.readLimits(ctx, l.db, only)
	if err != nil {
		return nil, err
	}
	for _, d := range read.Defs {
		differs, err := l.zoneDiffers(ctx, l.db, &d.Rule)
		if err != nil && !errors.Is(err, errNoZone) { // every take of such a limit will return errNoZone
			return nil, err
		}
		if differs != "" {
			d.Warning = strings.Trim(fmt.Sprintf("%s; limit %s: start: %s", d.Warning, d.Name, differs), "; ")
		}
	}
	return read, nil
}

// Install makes entries of the limits.
func (l *limits) Install(read *catalog.Limits) error {
	old, entries := *l.entries.Load(), map[string]*entry{}
	if read.Only != "" {
		entries = maps.Clone(old)
		delete(entries, read.Only)
	}
	for _, d := range read.Defs {
		entries[d.Name] = l.newEntry(read.IDs[d.Name], d, old[d.Name])
	}
	if read.Only == "" {
		l.reg.Install(read.Defs)
	} else {
		l.reg.InstallOne(read.Only, read.Defs)
	}
	l.entries.Store(&entries)
	return nil
}

func (l *limits) newEntry(id int32, d *store.Definition, old *entry) *entry {
	e := &entry{id: id, def: d, plain: d.Even()}
	if old != nil && old.id == id && old.def.Number == d.Number && old.def.Overridden == d.Overridden && old.def.KeepExpired == d.KeepExpired {
		e.statements = old.statements
	} else {
		e.statements = l.s.engine().statements(id, d)
	}
	return e
}

// querier is the methods of a database that read rows.
type querier interface {
	rower
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// list returns the rows of a statement that changes nothing.
func list[T any](ctx context.Context, db querier, scan pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, storeError(err, false)
	}
	all, err := pgx.CollectRows(rows, scan)
	return all, storeError(err, false)
}

// pageAfter returns the parameters of a list that begins after a key. Shared cannot be passed
// as text, because PostgreSQL cannot store its NUL byte.
func pageAfter(key string) (text string, shared bool) {
	if key == store.Shared {
		return "", true
	}
	return key, false
}

// revisionSQL reads the revision, which differs whenever another set of changes is visible, in
// whatever order changes begin and commit. In portable tables it is the one row of a table.
const revisionSQL = "select coalesce(sum(r.n), 0)::bigint from dipwell.revision r"

// loadSQL reads the limits, and of each limit the versions that this program misses: $1 has
// the ids of the limits that it knows, $2 the last version of each that it has read. That
// version is read again, so that it can be compared. loadOneSQL reads the limit with the name
// $3.
var (
	loadSQL    = loadFrom + " order by l.id, v.number"
	loadOneSQL = loadFrom + " where l.name = $3 order by v.number"
	loadFrom   = "select l.id, l.owner, l.version, coalesce(l.overridden, false), (select min(x.number) from dipwell.versions x where x.limit_id = l.id), " +
		catalog.List("l.", catalog.LimitColumns) + ", " +
		strings.Replace(catalog.List("v.", catalog.VersionColumns), `v."start"`, "coalesce(v.start, '')", 1) +
		" from dipwell.limits l left join unnest($1::int[], $2::int[]) k (id, number) on k.id = l.id" +
		" join dipwell.versions v on v.limit_id = l.id and v.number >= least(l.version, coalesce(k.number, 0))"
)

// readLimits reads all limits, or only one, from one snapshot. The revision is that of a
// moment before: if the limits change in between, the next check reads them again.
func (l *limits) readLimits(ctx context.Context, db querier, only string) (*catalog.Limits, error) {
	if l.dialect.Load() != nil {
		return l.readPortable(ctx, db, only)
	}
	known, entries := map[int32]*store.Definition{}, *l.entries.Load()
	if e := entries[only]; e != nil {
		known[e.id] = e.def
	} else if only == "" {
		for _, e := range entries {
			known[e.id] = e.def
		}
	}
	return readLimits(ctx, db, only, known)
}

func readLimits(ctx context.Context, db querier, only string, known map[int32]*store.Definition) (*catalog.Limits, error) {
	var ids, numbers []int32
	for id, d := range known {
		ids, numbers = append(ids, id), append(numbers, int32(d.Number)) //nolint:gosec // the column has 32 bits
	}
	sql, args := loadSQL, []any{ids, numbers}
	if only != "" {
		sql, args = loadOneSQL, append(args, only)
	}
	read := &catalog.Limits{Only: only, IDs: map[string]int32{}, Bad: map[string]error{}}
	if err := db.QueryRow(ctx, revisionSQL).Scan(&read.Revision); err != nil {
		return nil, err
	}
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	var id int32
	var by string
	var number, oldest uint32
	var overridden bool
	var v catalog.Version
	values := make([]any, len(catalog.LimitColumns))
	fields := []any{&id, &by, &number, &overridden, &oldest}
	for i := range values {
		fields = append(fields, &values[i])
	}
	other := false                 // set if a limit is not the one that was known, as after a restore or a rollback
	var versions []catalog.Version // the versions of one limit
	_, err = pgx.ForEachRow(rows, append(fields, v.Fields()...), func() error {
		if versions = append(versions, v); v.Number < number {
			return nil
		}
		past, ok := catalog.Before(known[id], versions[0].Number, versions[0].Since, oldest)
		other = other || !ok
		limit, err := catalog.ReadLimit(values)
		var d *store.Definition
		if err == nil {
			d, err = catalog.Definition(limit, by, number, versions, past)
		}
		name, _ := values[0].(string)
		if versions = nil; err != nil {
			read.Bad[name] = fmt.Errorf("%w: limit %s cannot be read: %w", store.ErrStore, name, err)
			return nil
		}
		d.Overridden = d.Overridden || overridden
		read.Defs, read.IDs[name] = append(read.Defs, d), id
		return nil
	})
	if err == nil && other {
		return readLimits(ctx, db, only, nil)
	}
	return read, err
}

// byID finds a limit's definition, or nil.
func (l *limits) byID(id int32) *store.Definition {
	for _, e := range *l.entries.Load() {
		if e.id == id {
			return e.def
		}
	}
	return nil
}

// A program that does not sweep looks for versions that no row needs at every retireEvery-th
// change of a limit, because perhaps nobody sweeps. It stops after retireFor, because it may
// meet many rows, or a row that another transaction has locked, and continues there the next
// time.
const (
	retireEvery = 64
	retireFor   = time.Second
)

// Put stores a limit in the database.
func (l *limits) Put(ctx context.Context, limit store.Limit, by string) (change int64, err error) {
	change, err = l.s.engine().put(ctx, limit, by)
	if d := l.reg.Lookup(limit.Name); err == nil && d != nil && d.Number%retireEvery == 0 && !l.sweeps && l.s.autocommit() {
		l.retire(ctx)
	}
	return change, defineError(err, limit.Name)
}

// retire looks for versions that no row needs. An error of retire is only reported: the limit
// is stored.
func (l *limits) retire(ctx context.Context) {
	short, cancel := context.WithTimeout(ctx, retireFor)
	defer cancel()
	var err error
	if l.s.engine().hasFunctions() {
		_, err = l.s.engine().retire(short)
	} else {
		_, err = l.s.engine().sweep(short, math.MaxInt)
	}
	if err != nil && short.Err() == nil {
		l.s.report(err)
	}
}

// Drop removes a limit. The limit's rows are deleted by the next sweeps.
func (l *limits) Drop(ctx context.Context, name, by string) error {
	return defineError(l.s.engine().drop(ctx, name, by), name)
}

// putSQL stores a limit and the version that Go compiled from it. put_limit fills in the
// columns that are not named here.
const putSQL = `select dipwell_internal.put_limit(jsonb_populate_record(null::dipwell.limits, $1::jsonb),
    jsonb_populate_record(null::dipwell.versions, $2::jsonb), $3::bigint)`

func (s functions) put(ctx context.Context, l store.Limit, by string) (change int64, err error) {
	d, err := store.NewDefinition(l)
	if err != nil {
		return 0, err
	}
	if _, err = s.limits.zoneDiffers(ctx, s.limits.db, &d.Rule); errors.Is(err, errNoZone) { // storing the limit returns other errors
		return 0, &store.FieldError{Limit: d.Name, Field: "start", Reason: fmt.Sprintf("%q: %v", d.Start, err)}
	}
	v := catalog.NewVersion(&store.Version{Rule: d.Rule, Policy: d.Policy, Limit: l}, &l)
	limit, err1 := record(catalog.LimitColumns, catalog.LimitValues(&l), map[string]any{"owner": by})
	version, err2 := record(catalog.VersionColumns, v.Values(),
		map[string]any{"months": v.Months, "days": v.Days, "clock": v.Clock, "zone": v.Zone})
	if err := errors.Join(err1, err2); err != nil {
		return 0, err
	}
	err = s.change(ctx, 0, []any{&change}, putSQL, limit, version, s.testNow())
	return change, err
}

// record returns a row as a JSON object of columns and values, with the entries of more added. An
// empty text is null.
func record(columns []string, values []any, more map[string]any) (string, error) {
	row := map[string]any{}
	for i, c := range columns {
		if row[c] = values[i]; row[c] == "" {
			row[c] = nil
		}
	}
	maps.Copy(row, more)
	b, err := json.Marshal(row)
	return string(b), err
}

func (s functions) drop(ctx context.Context, name, by string) error {
	return s.change(ctx, 0, []any{nil}, "select dipwell_internal.drop_limit($1, $2, $3)", name, by, s.testNow())
}

// lockedLimit is the error of a change that gave up waiting. It wraps store.ErrLocked.
type lockedLimit struct {
	name string
	err  error
}

func (e *lockedLimit) Error() string {
	if codeOf(e.err) == codeLocked {
		return fmt.Sprintf("limit %s is locked by another transaction: %v", e.name, e.err)
	}
	return fmt.Sprintf("limit %s could not be changed in time, perhaps because another transaction has locked it: %v", e.name, e.err)
}

func (e *lockedLimit) Unwrap() []error { return []error{store.ErrLocked, e.err} }

func defineError(err error, name string) error {
	var pg *pgconn.PgError
	var limit *store.FieldError
	if err == nil || errors.Is(err, store.ErrOwner) || errors.Is(err, store.ErrUnknownLimit) || errors.As(err, &limit) {
		return err
	}
	if errors.As(err, &pg) {
		switch {
		case pg.Code == codeLocked || pg.Code == codeCanceled:
			return &lockedLimit{name, err}
		case pg.Code == codeDenied && pg.ConstraintName == "owner":
			return &terms.OwnerError{Limit: name, Owner: pg.Detail}
		case pg.Code == codeState && pg.ConstraintName == "revision":
			return &store.FieldError{Limit: name, Field: "revision", Reason: pg.Detail}
		case pg.Code == codeInvalid && pg.ConstraintName != "":
			return &store.FieldError{Limit: name, Field: pg.ConstraintName, Reason: strings.TrimPrefix(pg.Message, "limit "+name+": "+pg.ConstraintName+": ")}
		case pg.Code == codeDenied:
			return fmt.Errorf("%w: limit %s: grant dipwell_admin to this login, or define the limit as one that may: %w", store.ErrDenied, name, err)
		case pg.Code == codeUndefined:
			return fmt.Errorf("%w %q", store.ErrUnknownLimit, name)
		case pg.Code == "54000" && pg.ConstraintName == "version":
			return &store.FieldError{Limit: name, Field: "version", Reason: "was changed 1048575 times; drop it and define it again"}
		}
	}
	return storeError(err, true)
}
