package pgstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell/internal/await"
	"github.com/dipwell/dipwell/internal/owner"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/store"
)

// catalog is the limits of one database, as read last.
type catalog struct {
	db        DB
	testClock bool
	reg       store.Registry
	entries   atomic.Pointer[map[string]*entry]

	mu       await.Gate // one reading or change over db at a time
	revision atomic.Int64
	dialect  atomic.Pointer[dialect] // nil: PostgreSQL with its functions
	pending  []pendingLimit          // defined while the server was away
	lazy     bool
	isRead   atomic.Bool // the limits have been read once
	pass     portablePass
	heard    atomic.Int64 // when the limits were last known to be the present ones, since started
	started  time.Time
	report   func(error)

	installs sync.Mutex                // held without asking the server
	bad      map[string]error          // limits that cannot be read; under installs
	zones    map[store.Calendar]string // what zoneWarning found; under installs

	stop func()
	done sync.WaitGroup
}

// entry is a limit with what the database knows of it, and its statements.
type entry struct {
	statements
	id    int32
	def   *store.Definition
	plain bool // a Take is arithmetic on the row
}

func newCatalog(db DB, c Config) *catalog {
	cat := &catalog{db: db, testClock: c.Clock != nil, mu: make(await.Gate, 1), lazy: c.Lazy, report: c.OnError,
		zones: map[store.Calendar]string{}, started: time.Now()}
	if cat.report == nil {
		cat.report = func(error) {}
	}
	cat.revision.Store(-1)
	cat.entries.Store(&map[string]*entry{})
	return cat
}

// maxUnheard is how long a program may decide without asking whether the limits
// were changed. The server keeps a version for much longer after it was
// superseded (dipwell_internal.retire, keepVersion): a row that names a version
// which is gone counts as full.
const maxUnheard = time.Minute

// hear makes sure that the limits are known as they were at most maxUnheard
// ago. The watcher mostly sees to it; it may be off, or cut off.
func (s *Store) hear(ctx context.Context) error {
	c := s.cat
	now := time.Since(c.started)
	switch {
	case !c.isRead.Load() || now-time.Duration(c.heard.Load()) < maxUnheard:
		return nil
	case s.autocommit():
		return storeError(c.refresh(ctx), false)
	case s.heard > 0 && now-s.heard < maxUnheard:
		return nil
	}
	err := c.readIn(ctx, s.db)
	if err == nil {
		s.heard = now
	}
	return err
}

// resolve finds the entries of a group's limits. Definitions of another store,
// or older ones, are replaced by what this database holds.
func (s *Store) resolve(ctx context.Context, g *store.Group, out []*entry) error {
	if err := s.hear(ctx); err != nil {
		return err
	}
	c := s.cat
	for i := range g.Ops {
		op := &g.Ops[i]
		e := (*c.entries.Load())[op.Def.Name]
		if e == nil {
			if err := s.loadForCall(ctx); err != nil {
				return err
			}
			if e = (*c.entries.Load())[op.Def.Name]; e == nil {
				return fmt.Errorf("%w %q", store.ErrUnknownLimit, op.Def.Name)
			}
		}
		op.Def, out[i] = e.def, e
	}
	return nil
}

// loadForCall reads the limits for a call of a name that is not known here. It
// fails fast until the limits are loaded; loading is the background goroutine's
// job.
func (s *Store) loadForCall(ctx context.Context) error {
	switch c := s.cat; {
	case c.lazy && !c.isRead.Load():
		return errUnread
	case s.autocommit():
		return storeError(c.load(ctx), false)
	default:
		return c.readIn(ctx, s.db)
	}
}

const loadSQL = `select (select n from dipwell.revision),
    l.id, l.name, l.algorithm, l.rate, l.per, l.burst, l.max_debt, l.max_charge, coalesce(l.start, ''), l.on_change, l.mode, l.auth,
    l.retry_jitter, l.on_store_error, l.timeout_us, l.list_keys, l.owner, l.version,
    v.number, v.since, v.policy, v.unit, v.every, v.add, v.cap, v.origin, v.burst, v.debt, v.most, v.max_charge, v.max_used,
    v.leaky, v.spread, v.per, coalesce(v.start, '')
from dipwell.limits l join dipwell.versions v on v.limit_id = l.id order by l.id, v.number`

// load reads all limits, in one statement and so in one snapshot.
func (c *catalog) load(ctx context.Context) error {
	if err := c.mu.Enter(ctx); err != nil {
		return err
	}
	defer c.mu.Leave()
	return c.loadLocked(ctx)
}

func (c *catalog) loadLocked(ctx context.Context) error {
	if err := c.prepare(ctx); err != nil {
		return err
	}
	asked := time.Since(c.started)
	read, err := readLimits(ctx, c.db)
	if err != nil {
		return err
	}
	warnings := map[string]string{}
	for _, d := range read.defs {
		warnings[d.Name], err = c.zoneWarning(ctx, d.Limit)
		if err != nil && !errors.Is(err, errNoZone) { // then every take of it says so
			return err
		}
	}
	c.heard.Store(int64(asked))
	c.install(read, warnings)
	return nil
}

// readIn reads the limits in the caller's transaction. Whoever reads them over
// the pool may be waiting for the rows that this transaction has locked: so it
// neither takes a connection of the pool nor waits for the gate. An older
// snapshot changes nothing.
func (c *catalog) readIn(ctx context.Context, tx DB) error {
	read, err := readLimits(ctx, tx)
	if err == nil && (read.revision < 0 || read.revision >= c.revision.Load()) {
		c.install(read, nil)
	}
	return storeError(err, false)
}

// install replaces the limits by those that were read. Without warnings, those
// of before count.
func (c *catalog) install(read *limitsRead, warnings map[string]string) {
	c.installs.Lock()
	defer c.installs.Unlock()
	c.noteBad(read.bad)
	old := *c.entries.Load()
	entries := map[string]*entry{}
	for _, d := range read.defs {
		if e := old[d.Name]; warnings == nil && e != nil {
			d.Warning = e.def.Warning
		} else {
			d.Warning = joined(d.Warning, warnings[d.Name])
		}
		entries[d.Name] = c.newEntry(read.ids[d.Name], d, old[d.Name])
	}
	c.reg.Install(read.defs)
	c.entries.Store(&entries)
	c.revision.Store(read.revision)
	c.isRead.Store(true)
	c.reg.SetLoadError(nil)
}

// joined makes one warning of two.
func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}

// noteBad keeps the errors of limits that cannot be read for those who call
// them, and reports each once.
func (c *catalog) noteBad(bad map[string]error) {
	for name, err := range bad {
		if known := c.bad[name]; known == nil || known.Error() != err.Error() {
			c.report(err)
		}
	}
	c.bad = bad
	c.reg.Unreadable(bad)
}

// querier is the one method that reading the limits takes.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// limitsRead is what readLimits found.
type limitsRead struct {
	defs     []*store.Definition
	ids      map[string]int32
	revision int64            // -1 where there are none: it is to be asked for again
	bad      map[string]error // of limits that this program cannot read, such as one of an algorithm that it does not know
}

// readLimits reads all limits.
func readLimits(ctx context.Context, db querier) (*limitsRead, error) {
	rows, err := db.Query(ctx, loadSQL)
	if err != nil {
		return nil, err
	}
	read := &limitsRead{ids: map[string]int32{}, bad: map[string]error{}, revision: -1}
	var l limitRow
	var v versionRow
	var past []store.Version
	_, err = pgx.ForEachRow(rows, append(append([]any{&read.revision}, l.fields()...), v.fields()...), func() error {
		if _, unreadable := read.bad[l.Name]; unreadable {
			return nil
		}
		version, err := v.version(l.Name)
		if err == nil && version.Number < uint32(l.Version) {
			past = append(past, version)
			return nil
		}
		var d *store.Definition
		if err == nil {
			d, err = l.definition(version, past)
		}
		if past = nil; err != nil {
			read.bad[l.Name] = fmt.Errorf("%w: limit %s cannot be read: %w", store.ErrStore, l.Name, err)
			return nil
		}
		read.defs, read.ids[d.Name] = append(read.defs, d), l.ID
		return nil
	})
	return read, err
}

func (c *catalog) newEntry(id int32, d *store.Definition, old *entry) *entry {
	e := &entry{id: id, def: d, plain: d.Rule.Every > 0 && !d.Rule.Leaky}
	if old != nil && old.id == id && old.def.Number == d.Number {
		e.statements = old.statements
	} else {
		e.statements = c.engine().statements(id, d)
	}
	return e
}

// limitRow is a row of dipwell.limits as Go spells it.
type limitRow struct {
	ID      int32
	Version int32
	store.Limit
	Owner                   string
	algorithm, per          string
	burst, debt, charge     *int64
	onChange, mode, onError string
	jitter                  int32
	timeout                 int64
}

func (l *limitRow) fields() []any {
	return []any{&l.ID, &l.Name, &l.algorithm, &l.Rate, &l.per, &l.burst, &l.debt, &l.charge, &l.Start, &l.onChange, &l.mode, &l.Auth,
		&l.jitter, &l.onError, &l.timeout, &l.ListKeys, &l.Owner, &l.Version}
}

func (l *limitRow) definition(v store.Version, past []store.Version) (*store.Definition, error) {
	limit := l.Limit
	for _, s := range [][2]string{{"algorithm", l.algorithm}, {"per", l.per}, {"on_change", l.onChange}, {"mode", l.mode}, {"on_store_error", l.onError}} {
		if err := limit.Set(s[0], s[1]); err != nil {
			return nil, err
		}
	}
	limit.Burst = orElse(l.burst, store.NoBurst, 0)
	limit.MaxDebt = orElse(l.debt, store.NoDebt, store.UnlimitedDebt)
	limit.MaxCharge = orElse(l.charge, 0, 0)
	limit.RetryJitter, limit.Timeout = int(l.jitter), time.Duration(l.timeout)*time.Microsecond
	_, warning, err := limit.Compile()
	if err != nil {
		return nil, err
	}
	return &store.Definition{Limit: limit, Owner: l.Owner, Warning: warning,
		Number: v.Number, Since: v.Since, Rule: v.Rule, Policy: v.Policy, Past: past}, nil
}

// orElse turns a column whose null is the default into a field whose zero is.
func orElse(n *int64, zero, minus int64) int64 {
	switch {
	case n == nil:
		return 0
	case *n == 0:
		return zero
	case *n < 0:
		return minus
	}
	return *n
}

// versionRow is a row of dipwell.versions.
type versionRow struct {
	number             int32
	since              int64
	policy, per, start string
	unit, every, add   int64
	cap, origin, burst int64
	debt, most, charge int64
	maxUsed            int64
	leaky, spread      bool
}

func (v *versionRow) fields() []any {
	return []any{&v.number, &v.since, &v.policy, &v.unit, &v.every, &v.add, &v.cap, &v.origin, &v.burst, &v.debt, &v.most, &v.charge,
		&v.maxUsed, &v.leaky, &v.spread, &v.per, &v.start}
}

// version takes the numbers as they were stored, so that rows keep their
// meaning whatever a newer program would compile; only a calendar is made anew.
func (v *versionRow) version(name string) (out store.Version, err error) {
	shape := store.Limit{Name: name, Rate: 1, Burst: 1, MaxDebt: store.NoDebt, MaxCharge: 1, Start: v.start}
	if v.unit == 1 && (v.every == 0 || v.spread || v.start != "") {
		shape.Algorithm = store.FixedWindow
	}
	if shape.Period, err = period.Parse(v.per); err != nil {
		return out, fmt.Errorf("limit %s, version %d: %w", name, v.number, err)
	}
	r, _, err := shape.Compile()
	if err != nil {
		return out, fmt.Errorf("limit %s, version %d: %w", name, v.number, err)
	}
	r.Unit, r.Every, r.Add, r.Cap, r.Origin = v.unit, v.every, v.add, v.cap, v.origin
	r.Burst, r.Debt, r.Most, r.MaxCharge, r.MaxUsed = v.burst, v.debt, v.most, v.charge, v.maxUsed
	r.Leaky, r.Spread = v.leaky, v.spread
	r.Ready()
	var l store.Limit
	err = l.Set("on_change", v.policy)
	return store.Version{Number: uint32(v.number), Since: v.since, Rule: r, Policy: l.OnChange}, err
}

// Registry holds the limits as they were read last.
func (s *Store) Registry() *store.Registry { return &s.cat.reg }

// putSQL stores a definition that Go compiled.
const putSQL = `select dipwell_internal.put_limit(
    row(null, $1::text, $2::text, $3::bigint, $4::text, $5::bigint, $6::bigint, $7::bigint, $8::text, $9::text, $10::text, $11::boolean,
        $12::int, $13::text, $14::bigint, $15::boolean, $16::text, 0, 0, 0, 0, 0, 0, 0, false)::dipwell.limits,
    row(0, 0, 0, $9::text, $17::bigint, $18::bigint, $19::bigint, $20::bigint, $21::bigint, $22::bigint, $23::bigint, $24::bigint,
        $25::bigint, $26::bigint, $27::boolean, $28::boolean, $29::bigint, $30::bigint, $31::bigint, $32::text, $4::text, $8::text)::dipwell.versions,
    $33::bigint)`

// Define adds a limit or changes it, for every program on this database at
// their next look, at most Config.Poll later; for this one at once.
func (s *Store) Define(ctx context.Context, l store.Limit, owner string) (*store.Definition, error) {
	if _, _, err := l.Compile(); err != nil {
		return nil, err
	}
	c := s.cat
	if err := c.mu.Enter(ctx); err != nil {
		return nil, storeError(err, false)
	}
	defer c.mu.Leave()
	if c.lazy && !c.isRead.Load() {
		return c.pend(l, owner, errUnread)
	}
	if err := c.put(ctx, l, owner, s.testNow()); err != nil {
		return c.pend(l, owner, err)
	}
	if err := c.loadLocked(ctx); err != nil {
		return nil, storeError(err, false)
	}
	if d := c.reg.Lookup(l.Name); d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("%w %q", store.ErrUnknownLimit, l.Name) // dropped by somebody else meanwhile
}

// put stores a limit that compiles.
func (c *catalog) put(ctx context.Context, l store.Limit, owner string, now *int64) error {
	r, _, err := l.Compile()
	if err != nil {
		return err
	}
	return defineError(c.engine().put(ctx, l, &r, owner, now), l.Name)
}

func (s functions) put(ctx context.Context, l store.Limit, r *store.Rule, owner string, now *int64) error {
	if err := s.cat.checkZone(ctx, l); err != nil {
		return err
	}
	cal := r.Calendar()
	return s.exec(ctx, putSQL, l.Name, l.Algorithm.String(), l.Rate, period.Format(l.Period),
		column(l.Burst, store.NoBurst), column(l.MaxDebt, store.NoDebt), column(l.MaxCharge, 0), text(l.Start),
		l.OnChange.String(), l.Mode.String(), l.Auth, l.RetryJitter, l.OnStoreError.String(), l.Timeout.Microseconds(), l.ListKeys, owner,
		r.Unit, r.Every, r.Add, r.Cap, r.Origin, r.Burst, r.Debt, r.Most, r.MaxCharge, r.MaxUsed, r.Leaky, r.Spread,
		cal.Months, cal.Days, cal.Clock, cal.Zone, now)
}

func (s functions) drop(ctx context.Context, name, owner string, _ *int64) error {
	return s.exec(ctx, "select dipwell_internal.drop_limit($1, $2)", name, owner)
}

// exec changes the limits, in a transaction of its own or the caller's.
func (s functions) exec(ctx context.Context, sql string, args ...any) error {
	try := func() error { _, err := s.db.Exec(ctx, sql, args...); return err }
	return s.retry(ctx, try(), try)
}

// Drop ends a limit. Its rows go with the next sweeps.
func (s *Store) Drop(ctx context.Context, name, owner string) error {
	c := s.cat
	if err := c.mu.Enter(ctx); err != nil {
		return storeError(err, false)
	}
	defer c.mu.Leave()
	if err := c.engine().drop(ctx, name, owner, s.testNow()); err != nil {
		return defineError(err, name)
	}
	return storeError(c.loadLocked(ctx), false)
}

// column is the reverse of orElse.
func column(n, zero int64) *int64 {
	switch {
	case n == 0:
		return nil
	case n == zero:
		n = 0
	case n < 0:
		n = -1
	}
	return &n
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func defineError(err error, name string) error {
	var pg *pgconn.PgError
	var limit *store.LimitError
	if errors.Is(err, store.ErrOwner) || errors.Is(err, store.ErrUnknownLimit) || errors.As(err, &limit) {
		return err
	}
	if errors.As(err, &pg) {
		switch {
		case pg.Code == "42501" && pg.ConstraintName == "owner":
			return &owner.Error{Limit: name, Owner: pg.Detail}
		case pg.Code == "55000" && pg.ConstraintName == "revision":
			return &store.LimitError{Limit: name, Field: "revision", Reason: pg.Detail}
		case pg.Code == "42501":
			return fmt.Errorf("%w: limit %s: grant dipwell_admin to this login, or define the limit as one that may: %w", store.ErrDenied, name, err)
		case pg.Code == "42704":
			return fmt.Errorf("%w %q", store.ErrUnknownLimit, name)
		case pg.Code == "54000" && pg.ConstraintName == "version":
			return &store.LimitError{Limit: name, Field: "version", Reason: "was changed more than 1024 times while its keys were in use; wait until they fill up"}
		}
	}
	return storeError(err, true)
}
