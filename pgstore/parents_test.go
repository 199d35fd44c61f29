package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestDefineParentsTwin defines and drops random limits with parents in SQL and in a
// Registry. Both must refuse the same, in the same words, and have the same limits.
func TestDefineParentsTwin(t *testing.T) {
	pool := newPool(t)
	r := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "b", "cd", "level", "levels", "lebel2"}
	seen := map[string]bool{}
	for round := range 30 {
		var reg store.Registry
		must(t, pool, "delete from dipwell.limits")
		for range 60 {
			name := names[r.IntN(len(names))]
			var err, want error
			if r.IntN(6) == 0 {
				_, err = pool.Exec(t.Context(), "select dipwell.drop($1)", name)
				if want = reg.Drop(name, "sql"); errors.Is(want, store.ErrUnknownLimit) {
					want = fmt.Errorf(`name: unknown limit "%s"`, name)
				}
			} else {
				l := store.Limit{Name: name, Rate: 5, Period: time.Second, Algorithm: []store.Algorithm{store.TokenBucket, store.FixedWindow, store.LeakyBucket, store.Concurrency}[r.IntN(4)]}
				if r.IntN(2) == 0 {
					l.Algorithm = store.TokenBucket
				}
				rate, per := &l.Rate, "1 second"
				if l.Algorithm == store.Concurrency {
					l.Rate, l.Period, rate, per = 0, 0, nil, ""
				}
				if l.Algorithm != store.LeakyBucket {
					l.Burst = 5
				}
				if r.IntN(4) > 0 {
					l.Parent = append(names, "lovely", " x")[r.IntN(len(names)+2)]
				}
				if r.IntN(4) == 0 {
					l.Parts = r.Int64N(20) - 1
				}
				l.Shared = r.IntN(5) == 0
				_, err = pool.Exec(t.Context(), "select dipwell.define($1, $2, nullif($3, '')::interval, nullif($4::bigint, 0), $5, parent => $6, parts => nullif($7::bigint, 0), shared => $8)",
					l.Name, rate, per, l.Burst, l.Algorithm.String(), key(l.Parent), l.Parts, l.Shared)
				_, want = reg.Define(0, l, "sql")
			}
			if text, wantText := message(err), message(want); text != wantText {
				t.Fatalf("round %d, %s: SQL says %s, Go %s", round, name, text, wantText)
			} else if text != "" {
				seen[regexpNames.ReplaceAllString(text, "")] = true
			}
			compareParents(t, pool, &reg)
		}
	}
	if len(seen) < 11 {
		t.Errorf("only %d kinds of errors: %v", len(seen), seen)
	}
}

var regexpNames = regexp.MustCompile(`\b(a|b|cd|level|levels|lebel2|lovely)\b|\w+_bucket|fixed_window|concurrency|-?[0-9]+`)

// message returns the message of an error.
func message(err error) string {
	var pg *pgconn.PgError
	if err == nil {
		return ""
	} else if errors.As(err, &pg) {
		return pg.Message
	}
	return err.Error()
}

// compareParents checks that the table has the limits of a registry, with what the
// functions need to know of their keys.
func compareParents(t *testing.T, db pgstore.DB, reg *store.Registry) {
	t.Helper()
	rows, err := db.Query(context.Background(), "select name, coalesce(parent, ''), parent is not null or parts is not null, plain, every > 0 and algorithm not in ('leaky_bucket', 'concurrency') and (algorithm = 'token_bucket' or start is not null) from dipwell.limits order by name")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var got, want []string
	for rows.Next() {
		var name, parent string
		var paths, plain, even bool
		if err := rows.Scan(&name, &parent, &paths, &plain, &even); err != nil {
			t.Fatal(err)
		}
		if plain != even {
			t.Fatalf("limit %s: plain: %v", name, plain)
		}
		got = append(got, fmt.Sprintf("%s<%s %v", name, parent, paths))
	}
	for _, d := range reg.All() {
		want = append(want, fmt.Sprintf("%s<%s %v", d.Name, d.Parent, d.Paths))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("SQL has %s, Go %s", got, want)
	}
}

// TestDefineParentsRace checks that programs that define and drop limits at the same
// time, in Go and in SQL, make no circle and leave no limit without its parent.
func TestDefineParentsRace(t *testing.T) {
	pool := newPool(t)
	names := []string{"a", "b", "c", "d"}
	var wg sync.WaitGroup
	for i := range 6 {
		s := newStore(t, pool, pgstore.Config{Poll: -1})
		r := rand.New(rand.NewPCG(uint64(i), 3))
		wg.Go(func() {
			for range 60 {
				name, parent := names[r.IntN(len(names))], append(names, "")[r.IntN(len(names)+1)]
				var err error
				switch drop := r.IntN(4) == 0; {
				case i%2 == 0 && drop:
					err = s.Drop(t.Context(), name, "sql")
				case i%2 == 0:
					_, err = s.Define(t.Context(), store.Limit{Name: name, Rate: 5, Period: time.Second, Parent: parent}, "sql")
				case drop:
					_, err = pool.Exec(t.Context(), "select dipwell.drop($1)", name)
				default:
					_, err = pool.Exec(t.Context(), "select dipwell.define($1, 5, '1 second', parent => $2)", name, parent)
				}
				var pg *pgconn.PgError
				var bad *store.FieldError
				if errors.As(err, &pg) && pg.Code == "40P01" || errors.Is(err, store.ErrLocked) {
					continue // two made a circle in SQL, which has no second try, or others waited a second for its end
				}
				if err != nil && !errors.As(err, &bad) && !errors.Is(err, store.ErrUnknownLimit) && (!errors.As(err, &pg) || pg.ConstraintName != "parent" && pg.Code != "42704") {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	var bad int
	err := pool.QueryRow(t.Context(), `with recursive up as (select name, parent, 1 as n from dipwell.limits
		union all select u.name, l.parent, n + 1 from up u join dipwell.limits l on l.name = u.parent where n < 10)
		select (select count(*) from up where n > 4) + (select count(*) from dipwell.limits l where parent is not null and not exists (select from dipwell.limits p where p.name = l.parent))`).Scan(&bad)
	if err != nil || bad != 0 {
		t.Errorf("%d limits in circles or without their parents, %v", bad, err)
	}
	reg := newStore(t, pool, pgstore.Config{Poll: -1}).Registry()
	compareParents(t, pool, reg)
}

// TestLevelsTwin makes random calls of limits with and without parents through a
// Limiter and, after a rollback, by the SQL functions. Both must give the same answers
// and leave the same rows.
func TestLevelsTwin(t *testing.T) {
	seeds, rounds := 3, 250
	if os.Getenv("DIPWELL_LONG") != "" {
		seeds, rounds = 30, 2000
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			newLevelsRun(t, uint64(seed)).rounds(rounds)
		})
	}
}

type levelsRun struct {
	*rand.Rand
	t     *testing.T
	sql   *sqlStore
	l     *dipwell.Limiter
	now   int64
	holds []string
	kinds map[string]int // of results
}

func newLevelsRun(t *testing.T, seed uint64) *levelsRun {
	m := &levelsRun{Rand: rand.New(rand.NewPCG(seed, 5)), t: t, now: 1_800_000_000_000_000, kinds: map[string]int{}}
	m.sql = openSQL(t, func() int64 { return m.now }).(*sqlStore)
	pro := store.NewPlans(store.Plan{Name: "pro", Rate: 9, Burst: 30}, store.Plan{Name: "staff", Mode: store.Unlimited}, store.Plan{Name: "out", Mode: store.Blocked})
	var err error
	m.l, err = dipwell.New(m.sql.Store,
		store.Limit{Name: "user", Rate: 3, Period: time.Second, Burst: 9, Parent: "tenant", Plans: pro},
		store.Limit{Name: "job", Rate: 4, Period: 2 * time.Second, Burst: 8, Parent: "tenant", MaxDebt: 5, MaxCharge: 6, KeepExpired: true},
		store.Limit{Name: "tenant", Algorithm: store.FixedWindow, Rate: 10, Period: 3 * time.Second, Burst: 14, Start: "0s", Parent: "region",
			Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 20, Burst: 25, Children: true})},
		store.Limit{Name: "region", Rate: 8, Period: time.Second, Burst: 20, Parts: 1, TTL: 10 * time.Second, Plans: store.NewPlans(store.Plan{Name: "pro", Rate: 16, Burst: 40, Children: true},
			store.Plan{Name: "staff", Mode: store.Unlimited, Children: true}, store.Plan{Name: "out", Mode: store.Blocked})},
		store.Limit{Name: "seen", Rate: 2, Period: time.Second, Mode: store.Shadow, Parent: "global"},
		store.Limit{Name: "global", Rate: 6, Period: time.Second, Burst: 12, Shared: true},
		store.Limit{Name: "slot", Algorithm: store.Concurrency, Burst: 3, Parent: "slots"},
		store.Limit{Name: "slots", Algorithm: store.Concurrency, Burst: 5, Shared: true},
		store.Limit{Name: "drop", Algorithm: store.LeakyBucket, Rate: 5, Period: time.Second, MaxDebt: 4},
		store.Limit{Name: "plain", Rate: 5, Period: time.Second, Burst: 10},
	)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *levelsRun) rounds(n int) {
	for i := range n {
		m.now += []int64{0, 0, 1, 1000, m.Int64N(1e6), m.Int64N(4e6), m.Int64N(20e6)}[m.IntN(7)]
		switch m.IntN(25) {
		case 0:
			limit, key := []string{"user", "region"}[m.IntN(2)], "eu"
			if limit == "user" {
				key = "eu/acme/u" + strconv.Itoa(m.IntN(2))
			}
			sql := []string{"dipwell.end_override($1, $2)", "dipwell.override($1, $2, plan => 'pro')", "dipwell.override($1, $2, burst => 3)", "dipwell.override($1, $2, plan => 'staff')",
				"dipwell.override($1, $2, rate => 1, until => timestamptz 'epoch' + " + strconv.FormatInt(m.now+1+m.Int64N(10e6), 10) + " * interval '1 microsecond')"}[m.IntN(5)]
			m.inTx(func(tx pgx.Tx) bool {
				_, err := tx.Exec(m.t.Context(), "select "+sql, limit, key)
				if err != nil {
					m.t.Fatal(sql, err)
				}
				return true
			})
		case 1:
			m.inTx(func(tx pgx.Tx) bool {
				must(m.t, tx, fmt.Sprintf("select dipwell_internal.sweep_at(1000::bigint, %d, null)", m.now))
				return true
			})
		default:
			m.compare(i)
		}
	}
	if len(m.kinds) < 30 || m.kinds["errors that differ"] > n/40 {
		m.t.Errorf("only %d kinds of results: %v", len(m.kinds), m.kinds)
	}
}

// inTx runs f in a transaction at m.now, which it commits if f returns true.
func (m *levelsRun) inTx(f func(pgx.Tx) bool) {
	m.t.Helper()
	tx, err := m.sql.pool.Begin(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	must(m.t, tx, fmt.Sprintf("select set_config('test.now', '%d', true)", m.now))
	if f(tx) {
		if err := tx.Commit(m.t.Context()); err != nil {
			m.t.Fatal(err)
		}
	}
}

func (m *levelsRun) take() dipwell.Take {
	t := dipwell.Take{Limit: []string{"user", "user", "job", "tenant", "region", "seen", "global", "drop", "plain"}[m.IntN(9)], Cost: m.Int64N(6)}
	switch m.IntN(20) {
	case 0:
		t.Cost = m.Int64N(40)
	case 1:
		t.Floor = m.Int64N(5)
	case 2:
		t.Plan = []string{"pro", "staff", "out", "none"}[m.IntN(4)]
	}
	t.Key = m.key(t.Limit)
	return t
}

func (m *levelsRun) key(limit string) string {
	parts := map[string]int{"user": 3, "job": 3, "tenant": 2, "region": 1, "seen": 1, "global": 0, "slot": 1, "slots": 0, "drop": 1, "plain": 1}[limit]
	if m.IntN(40) == 0 {
		return []string{"a", "a/b", "a/b/c", "a//c", "/b", "a/b/c/d", dipwell.Shared, ""}[m.IntN(8)]
	}
	all := []string{"eu", "acme", "u" + strconv.Itoa(m.IntN(2))}
	return dipwell.Key(all[:parts]...)
}

// A levelsCall is a call in Go and in SQL.
type levelsCall struct {
	text string
	go_  func(l *dipwell.Limiter) (dipwell.Decision, error)
	sql  string
	args []any
	all  bool // the rows of SQL are those of all limits
	hold bool
}

func (m *levelsRun) call() (c levelsCall) {
	ctx := m.t.Context()
	ttl := 1000 + m.Int64N(12e6)
	id := fmt.Sprintf("h%d", m.Uint32())
	if len(m.holds) > 0 && m.IntN(12) == 0 {
		id = m.holds[m.IntN(len(m.holds))]
	}
	switch m.IntN(12) {
	case 0, 1: // several
		var takes []dipwell.Take
		for range 2 + m.IntN(3) {
			takes = append(takes, m.take())
		}
		if c.hold = m.IntN(3) == 0; c.hold && m.IntN(2) == 0 {
			takes = append(takes, dipwell.Take{Limit: "slot", Key: m.key("slot"), Cost: 1})
		}
		var limits, keys, plans []*string
		var costs, floors []int64
		for _, t := range takes {
			limits, keys, plans, costs, floors = append(limits, &t.Limit), append(keys, sqlKey(t.Key)), append(plans, key(t.Plan)), append(costs, t.Cost), append(floors, t.Floor)
		}
		c.text, c.all, c.args = fmt.Sprintf("%+v", takes), true, []any{limits, keys, costs, plans, floors}
		if c.hold {
			m.holds = append(m.holds, id)
			c.go_ = func(l *dipwell.Limiter) (dipwell.Decision, error) {
				return l.Hold(ctx, time.Duration(ttl)*1000, id, takes...)
			}
			c.sql, c.args = "dipwell.hold_all($1, $2, $3, $6 * interval '1 microsecond', $7, $4, $5)", append(c.args, ttl, id)
		} else {
			c.go_ = func(l *dipwell.Limiter) (dipwell.Decision, error) { return l.TakeAll(ctx, takes...) }
			c.sql = "dipwell.take_all($1, $2, $3, $4, $5)"
		}
	case 2, 3: // hold
		t := m.take()
		if m.IntN(3) == 0 {
			t = dipwell.Take{Limit: []string{"slot", "slots"}[m.IntN(2)], Cost: m.Int64N(3)}
			t.Key = m.key(t.Limit)
		}
		m.holds = append(m.holds, id)
		c.text, c.hold = fmt.Sprintf("hold %s for %d µs: %+v", id, ttl, t), true
		c.go_ = func(l *dipwell.Limiter) (dipwell.Decision, error) { return l.Hold(ctx, time.Duration(ttl)*1000, id, t) }
		c.sql, c.args = "dipwell.hold($1, $2, $3, $6 * interval '1 microsecond', $7, $4, $5)", []any{t.Limit, sqlKey(t.Key), t.Cost, key(t.Plan), t.Floor, ttl, id}
	case 4: // settle
		if len(m.holds) > 0 {
			id = m.holds[max(0, len(m.holds)-1-m.IntN(5))]
		}
		costs := []int64{m.Int64N([]int64{12, 12, 12, 150}[m.IntN(4)])}
		c.text, c.hold = fmt.Sprintf("settle %s: %v", id, costs), true
		c.go_ = func(l *dipwell.Limiter) (dipwell.Decision, error) { return l.Settle(ctx, id, costs...) }
		c.sql, c.args = "dipwell.settle($1, $2)", []any{id, costs[0]}
	default:
		t := m.take()
		verb := store.Verb(m.IntN(7))
		if verb == store.VerbCharge && m.IntN(4) == 0 {
			t.Cost = m.Int64N(150)
		}
		c.sql, c.args = "dipwell."+verb.String()+"($1, $2, $3", []any{t.Limit, sqlKey(t.Key), t.Cost}
		switch {
		case verb <= store.VerbCheck:
			c.sql, c.args = c.sql+", $4, $5", append(c.args, key(t.Plan), t.Floor)
		case verb <= store.VerbReserve:
			t.Floor = 0
			c.sql, c.args = c.sql+", $4", append(c.args, key(t.Plan))
		default:
			t.Plan, t.Floor = "", 0
		}
		if verb == store.VerbReset {
			t.Cost = 0
		}
		c.sql += ")"
		c.text = fmt.Sprintf("%s %+v", verb, t)
		c.go_ = func(l *dipwell.Limiter) (d dipwell.Decision, err error) { err = l.Do(ctx, &d, verb, t); return }
	}
	return c
}

// sqlKey is key for the key of a Take.
func sqlKey(k string) *string {
	if k == dipwell.Shared {
		return nil
	}
	return &k
}

func (m *levelsRun) compare(round int) {
	c := m.call()
	var want dipwell.Decision
	var wantErr error
	var wantRows, rows string
	m.inTx(func(tx pgx.Tx) bool {
		want, wantErr = c.go_(m.l.With(m.sql.With(tx)))
		if wantErr == nil {
			wantRows = m.rows(tx)
		}
		return false
	})
	var got []store.Answer
	var reserved bool
	var err error
	m.inTx(func(tx pgx.Tx) bool {
		got, reserved, err = m.ask(tx, c)
		if err == nil {
			rows = m.rows(tx)
		}
		return err == nil
	})
	what := fmt.Sprintf("round %d at %d: %s", round, m.now, c.text)
	if err != nil || wantErr != nil {
		m.compareErrors(what, err, wantErr)
		return
	}
	decisions := []dipwell.Decision{want}
	if c.all {
		decisions = want.Limits
	}
	if len(got) != len(decisions) || reserved != (want.Reservation != dipwell.Reservation{}) {
		m.t.Fatalf("%s: %d rows, reserved %v; want %d, %+v", what, len(got), reserved, len(decisions), want)
	}
	for i, a := range got {
		d := decisions[i]
		w := store.Answer{Allowed: d.Allowed, Never: d.Never, Granted: d.Granted, Remaining: d.Remaining, Retry: d.RetryAfter.Microseconds(), Reset: d.ResetAfter.Microseconds(), Delay: d.Delay.Microseconds()}
		if a != w {
			m.t.Fatalf("%s, row %d:\nSQL %+v\nGo  %+v", what, i, a, d)
		}
		m.kinds[fmt.Sprintf("%.7s %v %v %v", c.sql[8:], a.Allowed, a.Never, a.Delay > 0)]++
	}
	if unnumbered(rows) != unnumbered(wantRows) {
		m.t.Fatalf("%s leaves\n%s\nwant\n%s", what, without(rows, wantRows), without(wantRows, rows))
	}
}

var (
	listOfLows = regexp.MustCompile(`"\{(\d+)((?:,\d+,\d+)*)\}"`)
	oneLow     = regexp.MustCompile(`,\d+(,\d+)`)
	holdRecord = regexp.MustCompile(`(?m)^(\(h[^,]*(?:,[^,]*){6}),\d+,`)
)

// unnumbered returns rows without the numbers of records: a function and a statement may
// skip some, and only their order counts.
func unnumbered(rows string) string {
	rows = listOfLows.ReplaceAllStringFunc(rows, func(list string) string {
		return oneLow.ReplaceAllString(listOfLows.ReplaceAllString(list, "{$2}"), "$1")
	})
	return holdRecord.ReplaceAllString(rows, "$1,#,")
}

// without returns the lines of a that are not in b.
func without(a, b string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(a, "\n"), func(line string) bool { return strings.Contains(b, line) }), "\n")
}

var regexpLast = regexp.MustCompile(`[0-9]+$`)

func (m *levelsRun) compareErrors(what string, err, want error) {
	var pg *pgconn.PgError
	var field *dipwell.FieldError
	if !errors.As(err, &pg) || want == nil {
		m.t.Fatalf("%s: SQL %v, Go %v", what, err, want)
	}
	m.kinds[pg.ConstraintName]++
	codes := map[string]error{"P0002": store.ErrUnknownHold, "55000": store.ErrHoldConflict}
	name := strings.NewReplacer("limit_names", "limit", "limit_name", "limit", "keys", "key", "costs", "cost", "plans", "plan", "floors", "floor").Replace(pg.ConstraintName)
	name, _, _ = strings.Cut(name, "[")
	switch {
	case codes[pg.Code] != nil:
		if errors.As(want, &field) {
			m.kinds["errors that differ"]++
		} else if !errors.Is(want, codes[pg.Code]) {
			m.t.Fatalf("%s: SQL %v, Go %v", what, err, want)
		}
	case !errors.As(want, &field):
		m.t.Fatalf("%s: SQL %v, Go %v", what, err, want)
	default:
		wantName := field.Field[strings.LastIndexByte(field.Field, '.')+1:]
		wantName, _, _ = strings.Cut(wantName, "[")
		_, reason, _ := strings.Cut(pg.Message, ": ")
		reason = strings.NewReplacer("is null; limit", "is missing; limit", "shared => true", "shared: true").Replace(reason)
		if name != strings.TrimSuffix(wantName, "s") { // two errors, of which each names another
			m.kinds["errors that differ"]++
		} else if number := regexpLast.FindString(reason); name == "cost" && number != regexpLast.FindString(field.Reason) || (name == "key" || name == "limit") && reason != field.Reason {
			m.t.Fatalf("%s: SQL says %s, Go %s", what, reason, field.Reason)
		}
	}
}

// ask calls the function of SQL.
func (m *levelsRun) ask(tx pgx.Tx, c levelsCall) (answers []store.Answer, reserved bool, err error) {
	if strings.HasPrefix(c.sql, "dipwell.check(") {
		must(m.t, tx, "set transaction read only")
	}
	rows, err := tx.Query(m.t.Context(), "select allowed, remaining, retry_after, reset_after, granted, delay, never, reservation from "+c.sql, c.args...)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	for rows.Next() {
		a, id, err := scan(rows)
		if err != nil {
			return nil, false, err
		}
		answers, reserved = append(answers, a), reserved || id.Valid
	}
	return answers, reserved, rows.Err()
}

// rows returns what lies in the tables, but for random marks and ids.
func (m *levelsRun) rows(tx pgx.Tx) string {
	var text string
	err := tx.QueryRow(m.t.Context(), `select concat_ws(E'\n',
		(select string_agg(row(limit_id, key, used, ts, version, (dipwell_internal.lows_of(lows, low))[2:])::text, E'\n' order by limit_id, key) from dipwell.buckets where used > 0 or version < 0),
		(select string_agg(row(limit_id, key, units, unit, due, part_due, number, slack, rest, parts)::text, E'\n' order by limit_id, key, number) from dipwell.reservations),
		(select string_agg(row(id, part, expires, due, ttl, units, unit, tokens, number, limit_id, parts, takes, live, free, keep, reset, settled, key, plan, call, cost)::text, E'\n' order by id, part) from dipwell.hold_parts))`).Scan(&text)
	if err != nil {
		m.t.Fatal(err)
	}
	return text
}
