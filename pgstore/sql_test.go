package pgstore_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/storetest"
)

// TestSQL runs the suite on the SQL functions.
func TestSQL(t *testing.T) {
	t.Parallel()
	storetest.Run(t, openSQL, storetest.Options{Quick: true, Parallel: true, Lacks: []string{"fractions", "shards"}}) // the functions choose rows themselves: see TestShardsSQL
}

// openSQL returns a store that decides by dipwell.take and the other SQL
// functions. Their clock is a setting that dipwell_internal.now_us reads; the
// sweep, which goes through the Go store, measures its duration without it.
func openSQL(t testing.TB, now func() int64) store.Store {
	pool := recycledPool(t, "test_clock", func(dsn string) error {
		if err := migrated(dsn); err != nil {
			return err
		}
		return execute(dsn, `create or replace function dipwell_internal.now_us() returns bigint language sql volatile
			as $$ select coalesce(nullif(current_setting('test.now', true), '')::bigint, (date_part('epoch', clock_timestamp()) * 1000000)::bigint) $$`)
	})
	inner := newStore(t, pool, pgstore.Config{Clock: now, Poll: -1})
	return &sqlStore{Store: inner, clockless: newStore(t, pool, pgstore.Config{Poll: -1}), pool: pool, now: now}
}

// sqlStore keeps limits through the Go store and decides through SQL.
type sqlStore struct {
	*pgstore.Store
	clockless *pgstore.Store
	pool      *pgxpool.Pool
	now       func() int64
}

// Abilities returns those of the Go store.
func (s *sqlStore) Abilities() store.Abilities {
	ab := s.Store.Abilities()
	ab.Store = s
	return ab
}

func (s *sqlStore) Apply(ctx context.Context, b *store.Batch) error {
	for i := range b.Groups {
		b.Groups[i].Err = s.group(ctx, &b.Groups[i])
	}
	return nil
}

func (s *sqlStore) group(ctx context.Context, g *store.Group) error {
	switch {
	case g.Hold != nil:
		return s.hold(ctx, g)
	case slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Def.Algorithm == store.Concurrency }): // take is an error
	case g.Cancel:
		err := s.call(ctx, nil, "select dipwell.cancel($1)", [16]byte(g.ID))
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "P0002" {
			return store.ErrReservation
		}
		return err
	case len(g.Ops) == 1 && !g.Ops[0].Bounded && (cmp.Or(g.Ops[0].Asked, g.Ops[0].Def).Plan == "" || g.Ops[0].Verb < store.VerbCharge):
		op := &g.Ops[0]
		args := []any{op.Def.Name, key(op.Key), op.Cost}
		sql := "select * from dipwell." + op.Verb.String() + "($1, $2, $3"
		if plan := cmp.Or(op.Asked, op.Def).Plan; plan != "" {
			sql, args = sql+", plan => $4", append(args, plan)
		}
		if op.Floor > 0 {
			sql, args = sql+fmt.Sprintf(", floor => $%d", len(args)+1), append(args, op.Floor)
		}
		own := s.own(ctx, op)
		err := s.call(ctx, g, sql+")", args...)
		if op.Def.Override == nil && own != nil {
			op.Asked, op.Def = cmp.Or(op.Asked, op.Def), own
		}
		var pg *pgconn.PgError
		if op.Verb != store.VerbCharge || !errors.As(err, &pg) || pg.ConstraintName != "cost" { // a charge that is too large is an error in SQL, and for a Limiter
			return err
		}
	case len(g.Ops) > 1 && !slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Verb != store.VerbTake || op.Bounded }):
		return s.all(ctx, g)
	}
	b := store.Batch{Groups: []store.Group{*g}} // not offered by SQL
	err := s.Store.Apply(ctx, &b)
	*g = b.Groups[0]
	return errors.Join(err, g.Err)
}

// hold decides a group about a hold by a Go store without a clock of its own, which
// calls the public functions where it can, with that of the transaction.
func (s *sqlStore) hold(ctx context.Context, g *store.Group) error {
	for _, d := range s.Registry().All() {
		if old := s.clockless.Registry().Lookup(d.Name); old != nil && (d.Overridden != old.Overridden || d.Number != old.Number || d.Algorithm != old.Algorithm) {
			if err := pgstore.Refresh(ctx, s.clockless); err != nil {
				return err
			}
			break
		}
	}
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if _, err = tx.Exec(ctx, "select set_config('test.now', $1, true)", strconv.FormatInt(s.now(), 10)); err != nil {
		return err
	}
	b := store.Batch{Groups: []store.Group{*g}}
	err = s.clockless.With(tx).Apply(ctx, &b)
	if *g = b.Groups[0]; err != nil || g.Err != nil {
		return errors.Join(err, g.Err)
	}
	return tx.Commit(ctx)
}

// named returns the ops of a group that are not added as parents of others, with the
// costs that they have without those of their children. They are the first of a group.
func named(g *store.Group) (ops []store.Op) {
	for _, op := range g.Ops {
		takes, parent := op.Takes, false
		for _, child := range g.Ops {
			if child.Def.Parent == op.Def.Name && child.Key[:max(strings.LastIndexByte(child.Key, '/'), 0)] == op.Key {
				op.Cost, op.Takes, parent = op.Cost-child.Cost, op.Takes&^child.Takes, true
			}
		}
		if op.Takes != 0 || takes == 0 && !parent {
			ops = append(ops, op)
		}
	}
	return ops
}

func (s *sqlStore) all(ctx context.Context, g *store.Group) error {
	var limits []string
	var keys []*string
	var plans []*string
	var costs, floors []int64
	ops := named(g)
	for i := range ops {
		op := &ops[i]
		plans, floors = append(plans, key(cmp.Or(op.Asked, op.Def).Plan)), append(floors, op.Floor)
		limits, keys, costs = append(limits, op.Def.Name), append(keys, key(op.Key)), append(costs, op.Cost)
	}
	if !slices.ContainsFunc(g.Ops, func(op store.Op) bool { return op.Floor > 0 || cmp.Or(op.Asked, op.Def).Plan != "" }) {
		plans, floors = nil, nil // null, for which there are faster statements
	}
	return s.call(ctx, g, `select allowed, remaining, retry_after, reset_after, granted, delay, never, reservation
		from dipwell.take_all($1, $2, $3, $4, $5)`, limits, keys, costs, plans, floors)
}

// call sets the clock and runs a statement in one round trip and transaction.
// Its rows are the answers of the group's ops, in order.
func (s *sqlStore) call(ctx context.Context, g *store.Group, sql string, args ...any) (err error) {
	var b pgx.Batch
	b.Queue("select set_config('test.now', $1, true)", strconv.FormatInt(s.now(), 10))
	b.Queue(sql, args...)
	results := s.pool.SendBatch(ctx, &b)
	open := true
	end := func() { // once: what follows takes another connection
		if !open {
			return
		}
		if e := results.Close(); err == nil {
			err = e
		}
		open = false
	}
	defer end()
	if _, err = results.Exec(); err != nil {
		return err
	}
	if g == nil {
		_, err = results.Exec()
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	g.Allowed, g.Reserved = true, false
	var answers []store.Answer
	for rows.Next() {
		a, id, err := scan(rows)
		if err != nil {
			return err
		}
		answers = append(answers, a)
		g.Allowed = g.Allowed && a.Allowed
		if id.Valid {
			g.Reserved, g.ID = true, id.Bytes
		}
	}
	if err = rows.Err(); err != nil {
		return err
	}
	rows.Close()
	if end(); err != nil {
		return err
	}
	for i, a := range answers {
		op := &g.Ops[i]
		s.answer(ctx, op, a)
		if op.Retry > 0 { // SQL does not return Bound
			var held bool
			if err := s.pool.QueryRow(ctx, `select exists (select from dipwell.hold_parts x join dipwell.limits l on l.id = x.limit_id
				where l.name = $1 and x.key = $2 and x.live and x.due > $3)`, op.Def.Name, op.Key, s.now()).Scan(&held); err != nil {
				return err
			}
			var o []store.Override
			if d := s.Registry().Lookup(op.Def.Name); d != nil && d.Overridden {
				if o, err = s.Abilities().Overrides.Overrides(ctx, op.Def, op.Key, "", 1); err != nil {
					return err
				}
			}
			row, look, until := s.row(ctx, op), *op, int64(0)
			if len(o) > 0 && o[0].Key == op.Key && o[0].Until > s.now() {
				row.Override = &o[0]
				if op.Def.Mode == store.Blocked { // until an end that is exact
					until = o[0].Until
				}
			}
			look.Def = cmp.Or(op.Asked, op.Def)
			if _, _, err = look.Step(s.now(), row, true); err != nil {
				return err
			}
			op.Bound = look.Bound || held && s.now()+op.Retry > until
		}
	}
	return nil
}

// answer fills in the answer of an op. In SQL, an allowed call with a retry
// time is in shadow mode.
func (s *sqlStore) answer(ctx context.Context, op *store.Op, a store.Answer) {
	if d := s.Registry().Lookup(op.Def.Name); d != nil {
		if plan := d.WithPlan(cmp.Or(op.Asked, op.Def).Plan); plan != nil {
			op.Asked, op.Def = cmp.Or(op.Asked, op.Def), plan
		}
		if d.Overridden {
			if list, err := s.Abilities().Overrides.Overrides(ctx, d, op.Key, "", 1); err == nil && len(list) > 0 && list[0].Key == op.Key {
				op.Asked, op.Def = cmp.Or(op.Asked, op.Def), d.WithOverride(&list[0])
			}
		}
	}
	op.Answer = a
	if a.Allowed && (a.Retry > 0 || a.Never) {
		op.Shadow = true
	}
}

// own returns the definition that the row of a charge or refund is under, which decides it,
// and which SQL does not return; or nil.
func (s *sqlStore) own(ctx context.Context, op *store.Op) *store.Definition {
	d := s.Registry().Lookup(op.Def.Name)
	if d == nil || op.Verb != store.VerbCharge && op.Verb != store.VerbRefund {
		return nil
	}
	row := s.row(ctx, op)
	if row == (store.State{}) {
		return nil
	}
	own := d.Own(row, s.now())
	var scratch store.Rule
	if own.RuleFor(op.Key, &scratch).Used(row, s.now()) == 0 { // a full row is as none
		return nil
	}
	return own
}

// row returns the row of an op, without its lows.
func (s *sqlStore) row(ctx context.Context, op *store.Op) (row store.State) {
	var version int32
	if s.pool.QueryRow(ctx, `select b.used, b.ts, b.version from dipwell.buckets b
		join dipwell.limits l on l.id = b.limit_id where l.name = $1 and b.key = $2`, op.Def.Name, op.Key).Scan(&row.Used, &row.TS, &version) == nil {
		row.Version = uint32(version)
	}
	return row
}

func key(k string) *string {
	if k == "" {
		return nil
	}
	return &k
}

func scan(row pgx.Row) (a store.Answer, id pgtype.UUID, err error) {
	var retry, reset, delay pgtype.Interval
	err = row.Scan(&a.Allowed, &a.Remaining, &retry, &reset, &a.Granted, &delay, &a.Never, &id)
	a.Retry, a.Reset, a.Delay = retry.Microseconds, reset.Microseconds, delay.Microseconds
	return a, id, err
}

// TestSQLErrors checks that errors of bad input name the field and have a code.
func TestSQLErrors(t *testing.T) {
	pool := newPool(t)
	ctx := context.Background()
	must(t, pool, "select dipwell.define('login', 5, interval '1 minute')")
	for _, c := range []struct{ sql, code, message string }{
		{"select dipwell.count_usage('nope', 'k', 1)", "42704", `limit_name: unknown limit "nope"`},
		{"select dipwell.count_usage('login', 'k', 1)", "22023", "limit_name: limit login does not count usage; define it with usage => true"},
		{"select dipwell.define('login', 5, interval '1 minute', usage => true), dipwell.count_usage('login', 'k', refused => -1)", "22023", "refused: -1 is not between 0 and 2^53-1"},
		{"select dipwell.define('login', 5, interval '1 minute', usage => true), dipwell.count_usage('login', 'k', tokens => null)", "22023", "tokens: null is not between 0 and 2^53-1"},
		{"select dipwell.count_usage('login', null, 1)", "22023", "key: is null; limit login has a bucket for each key (shared => true would make it one for everybody)"},
		{"select dipwell.take('nope')", "42704", `limit_name: unknown limit "nope"`},
		{"select dipwell.take('login', '')", "22023", "key: is empty"},
		{"select dipwell.take('login')", "22023", "key: is null; limit login has a bucket for each key (shared => true would make it one for everybody)"},
		{"select dipwell.hold('login', null, 1, '1 minute')", "22023", "key: is null; limit login has a bucket for each key (shared => true would make it one for everybody)"},
		{"select dipwell.take_all('{login,login}', '{u,null}')", "22023", "keys[2]: is null; limit login has a bucket for each key (shared => true would make it one for everybody)"},
		{"select dipwell.override('login', null, rate => 1)", "22023", "key: is null; limit login has a bucket for each key (shared => true would make it one for everybody)"},
		{"select dipwell.define('x', 1, '1 second', parts => 0)", "22023", "limit x: parts: 0 is not between 1 and 16; a limit with one bucket for everybody is shared => true"},
		{"select dipwell.take('login', repeat('x', 513))", "22023", "key: has 513 bytes; at most 512"},
		{"select dipwell.take('login', 'u', -1)", "22023", "cost: -1 is not between 0 and 2^53-1"},
		{"select dipwell.take('login', 'u', 9007199254740992)", "22023", "cost: 9007199254740992 is not between 0 and 2^53-1"},
		{"select dipwell.take('login', 'u', null)", "22023", "cost: null is not between 0 and 2^53-1"},
		{"select dipwell.take('login', 'u', 1.5)", "42883", "function dipwell.take(unknown, unknown, numeric) does not exist"},
		{"select dipwell.charge('login', 'u', 51)", "22023", "cost: 51 is more than limit login lets a charge be, 50"},
		{"select dipwell.take_all('{login,nope}', '{a,b}')", "42704", `limit_names[2]: unknown limit "nope"`},
		{"select dipwell.take_all('{login}', '{a,b}')", "22023", "keys: 2 entries, but limit_names has 1"},
		{"select dipwell.take_all('{login,login}', '{a}')", "22023", "keys: 1 entry, but limit_names has 2"},
		{"select dipwell.take_all('{login,login}', '{a,b}', '{1}')", "22023", "costs: 1 entry, but limit_names has 2"},
		{"select dipwell.take_all('{login}', null)", "22023", "keys: 0 entries, but limit_names has 1"},
		{"select dipwell.take_all('{login,null}', '{a,b}')", "22023", "limit_names[2]: is null"},
		{"select dipwell.take(null, 'k')", "22023", "limit_name: is null"},
		{"select dipwell.charge(null, 'k')", "22023", "limit_name: is null"},
		{"select dipwell.cancel(null)", "22023", "reservation: is null"},
		{"select dipwell.drop(null)", "22023", "name: is missing"},
		{"select dipwell.take_all('{}', '{}')", "22023", "limit_names: 0 entries; from 1 to 16"},
		{"select dipwell.hold('login', 'a', 1, interval '170000000 years')", "22023", "ttl: is longer than limit login lets a hold be, 1d"},
		{"select dipwell.hold('login', 'a', 1, interval '-170000000 years')", "22023", "ttl: -9223372036854775807 µs is less than 1ms"},
		{"select dipwell.hold_all('{login}', '{a}', ttl => interval '170000000 years')", "22023", "ttl: is longer than limit login lets a hold be, 1d"},
		{"select dipwell.take_all('{login,login}', '{{a},{b}}')", "22023", "keys: has the bounds [1:2][1:1]; a list of 2 entries has [1:2]"},
		{"select dipwell.take_all('{login,login}', '[0:1]={a,b}')", "22023", "keys: has the bounds [0:1]; a list of 2 entries has [1:2]"},
		{"select dipwell.take_all('[0:0]={login}', '{a}')", "22023", "limit_names: has the bounds [0:0]; a list of 1 entry has [1:1]"},
		{"select dipwell.take_all('{{login}}', '{a}')", "22023", "limit_names: has the bounds [1:1][1:1]; a list of 1 entry has [1:1]"},
		{"select dipwell.take_all('{login}', '{a}', '[2:2]={1}')", "22023", "costs: has the bounds [2:2]; a list of 1 entry has [1:1]"},
		{"select dipwell.take_all('{login}', '{a}', floors => '{{9}}')", "22023", "floors: has the bounds [1:1][1:1]; a list of 1 entry has [1:1]"},
		{"select dipwell.hold_all('{login}', '{{a}}', ttl => '1 minute')", "22023", "keys: has the bounds [1:1][1:1]; a list of 1 entry has [1:1]"},
		{"select dipwell.hold_all('{login}', '{a}', plans => '{{pro}}', ttl => '1 minute')", "22023", "plans: has the bounds [1:1][1:1]; a list of 1 entry has [1:1]"},
		{"select dipwell.take_all('{login,login}', '{a,b}', '{1,-1}')", "22023", "costs[2]: -1 is not between 0 and 2^53-1"},
		{"select dipwell.cancel(gen_random_uuid())", "P0002", "reservation: is unknown, spent, due or reset"},
		{"select dipwell.sweep(0)", "22023", "max_rows: 0 is not at least 1"},
		{"select dipwell.drop('nope')", "42704", `name: unknown limit "nope"`},
		{"select dipwell.define_plan('login', 'p', mode => 'shadow|q')", "22023", "limit login: plans: plan p: mode: \"shadow|q\" is not one of shadow, unlimited, blocked, enforce"},
		{"select dipwell.define_plan('login', 'p', mode => 'blocked;burst=7')", "22023", "limit login: plans: plan p: mode: \"blocked;burst=7\" is not one of shadow, unlimited, blocked, enforce"},
		{"select dipwell.define_plan('login', 'p', mode => '')", "22023", "limit login: plans: plan p: mode: \"\" is not one of shadow, unlimited, blocked, enforce"},
		{"select dipwell.define_plan('login', null)", "22023", "plan: null is not 1 to 64 letters, digits and characters _ . -"},
		{"select dipwell.drop_plan('login', null)", "22023", "plan: is null"},
		{"select dipwell.drop_plan('nope', null)", "22023", "plan: is null"},
		{"select dipwell.drop_plan(null, 'pro')", "22023", "limit_name: is null"},
		{"select dipwell.settle_all('h', '{{1}}')", "22023", "costs: has the bounds [1:1][1:1]; a list of 1 entry has [1:1]"},
		{"select dipwell.settle_all('h', '[2:3]={1,1}')", "22023", "costs: has the bounds [2:3]; a list of 2 entries has [1:2]"},
		{"select dipwell.define('x', 0, interval '1s')", "22023", "limit x: rate: 0 is not between 1 and 2^53-1"},
		{"select dipwell.define('x', 0, interval '1s', algorithm => 'sliding_window')", "22023", "limit x: rate: 0 is not between 1 and 2^26-1, the most of a sliding window"},
		{"select dipwell.define('x', 1, interval '1s', ttl => interval '1 month')", "22023", "limit x: ttl: 1 mon is not between 1ms and 31d"},
		{"select dipwell.define('x', 1, interval '1 month')", "22023", "limit x: per: months and years are for windows and intervals; a bucket needs a fixed length such as 30d"},
		{"select dipwell.define('x', 7, interval '30 days', 1, max_debt => 1000000000000000)", "22023", "limit x: rate: 7 per 30d is too slow, or max_debt and max_charge too large, to count exactly with any burst"},
		{"select dipwell.define('x', 7, interval '30 days', 1, max_debt => 1000000000000000, algorithm => 'interval')", "22023", "limit x: rate: 7 per 30d is too slow, or max_debt and max_charge too large, to count exactly with any burst"},
		{"select dipwell.define('x', 1, null)", "22023", "limit x: per: is missing; it is a length of time such as interval '1 minute'"},
		{"select dipwell.define('x', 1, interval '1 month 1 day', algorithm => 'interval')", "22023", "limit x: per: is not a length of time"},
		{"select dipwell.define('x', 1, interval '1 day', algorithm => 'interval', start => '25:00 UTC')", "22023", `limit x: start: "25:00" is not a time of day such as 06:00`},
		{"select dipwell.define('x', 1, interval '1 day', algorithm => 'interval', start => '06:00 Rome')", "22023", `limit x: start: "Rome" is not an IANA time zone such as Europe/Rome`},
		{"select dipwell.define('x', 1, interval '1 day', algorithm => 'interval', start => '')", "22023", "limit x: start: is empty; leave it out, and the windows of each key begin at a time of their own"},
		{"select dipwell.define('x', 1, interval '1 month', algorithm => 'interval', start => 'first_call')", "22023", "limit x: start: first_call needs a per of a fixed length such as 30d, not 1mo"},
		{"select dipwell.define('x', 1, interval '1 day', start => 'first_call')", "22023", "limit x: start: is for windows and intervals; a bucket refills all the time"},
	} {
		_, err := pool.Exec(ctx, c.sql)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || pg.Code != c.code || pg.Message != c.message {
			t.Errorf("%s: %v", c.sql, err)
			continue
		}
		field, rest, _ := strings.Cut(c.message, ": ")
		if strings.HasPrefix(field, "limit ") {
			field, _, _ = strings.Cut(rest, ": ")
		}
		if pg.ConstraintName != field && c.code != "42883" { // undefined_function is not ours
			t.Errorf("%s: the error has %q as its field", c.sql, pg.ConstraintName)
		}
	}
	var rows int
	if err := pool.QueryRow(ctx, "select count(*) from dipwell.buckets").Scan(&rows); err != nil || rows != 0 {
		t.Errorf("%d buckets after nothing but errors, %v", rows, err)
	}
	if n := number(t, pool, "select count(*) from dipwell.audit"); n != 1 {
		t.Errorf("the audit has %d entries; want that of define", n)
	}
}

// TestLength checks that intervals keep every µs of a bigint, also above 2^53
// where float8 would round, in the answers of all functions.
func TestLength(t *testing.T) {
	pool := newPool(t)
	rows, err := pool.Query(context.Background(), `select x, dipwell_internal.length(x) from (
		select s * ((1::bigint << b) + d) from generate_series(0, 61) b, generate_series(-3, 3) d, (values (1), (-1)) v(s)
		union all select (random() * 2^62)::bigint + i from generate_series(1, 1000) i) v(x)`)
	if err != nil {
		t.Fatal(err)
	}
	var want int64
	var got pgtype.Interval // in PostgreSQL 13 extract returns a float8, which rounds
	_, err = pgx.ForEachRow(rows, []any{&want, &got}, func() error {
		if got.Months != 0 || got.Days != 0 || got.Microseconds != want {
			t.Errorf("%d µs: %+v", want, got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestRoles checks that the app role may take but use no table, the service
// role may write rows but not definitions, and the admin role may do
// everything.
func TestRoles(t *testing.T) {
	pool := newPool(t)
	ctx := context.Background()
	must(t, pool, "select dipwell.define('login', 5, interval '1 minute'), dipwell.define('used', 5, interval '1 minute', usage => true)")
	as := func(role, sql string) (err error) {
		inTx(t, pool, func(tx pgx.Tx) {
			must(t, tx, "set local role "+role)
			_, err = tx.Exec(ctx, sql)
		})
		return err
	}
	must(t, pool, "drop role if exists stranger; create role stranger")
	t.Cleanup(func() { must(t, pool, "drop role stranger") })
	for _, c := range []struct {
		sql                 string
		app, service, admin bool
	}{
		{"select dipwell.take('login', 'u')", true, true, true},
		{"select dipwell.take('login', 'u', 5)", true, true, true},
		{"select dipwell.check('login', 'u')", true, true, true},
		{"select dipwell.take_up_to('login', 'u')", true, true, true},
		{"select dipwell.reserve('login', 'u')", true, true, true},
		{"select dipwell.charge('login', 'u')", true, true, true},
		{"select dipwell.take_all('{login}', '{u}')", true, true, true},
		{"do $$ begin perform dipwell.cancel(gen_random_uuid()); exception when no_data_found then null; end $$", true, true, true},
		{"select dipwell.count_usage('used', 'u', 1)", true, true, true},
		{"update dipwell.usage set tokens = 0", false, true, true},
		{"select dipwell.refund('login', 'u')", false, true, true},
		{"select dipwell.reset('login', 'u')", false, true, true},
		{"select dipwell.sweep()", false, true, true},
		{"select dipwell.define('login', 5, interval '1 minute')", false, false, true},
		{"select dipwell.drop('login')", false, false, true},
		{"select * from dipwell.limits, dipwell.buckets", false, true, true},
		{"select * from dipwell.status", false, true, true},
		{"update dipwell.buckets set used = 0", false, true, true},
		{"delete from dipwell.reservations", false, true, true},
		{"update dipwell.limits set cap = 1", false, false, true},
		{"delete from dipwell.versions", false, false, true},
		{"update dipwell.revision set n = 1", false, false, true},
		{"delete from dipwell.migrations", false, false, false},
		{"delete from dipwell.audit", false, false, false},
		{"update dipwell.audit set at = now()", false, false, false},
		{"insert into dipwell.audit select * from dipwell.audit", false, false, false},
		{"truncate dipwell.audit", false, false, false},
		{"update dipwell.key_overrides set until = 0", false, false, false},
		{"delete from dipwell.key_overrides", false, false, false},
		{"select dipwell_internal.end_override(1, 'k', null)", false, false, true},
		{"select dipwell_internal.decide('{1}', '{u}', '{6}', '{0}', '{null}')", false, true, true},
		{"select dipwell_internal.retire()", false, true, true},
		{"select dipwell_internal.drop_limit('login', 'sql')", false, false, true},
	} {
		for role, allowed := range map[string]bool{"dipwell_app": c.app, "dipwell_service": c.service, "dipwell_admin": c.admin, "stranger": false} {
			err := as(role, c.sql)
			var pg *pgconn.PgError
			if allowed != (err == nil) || !allowed && (!errors.As(err, &pg) || pg.Code != "42501") {
				t.Errorf("%s as %s: %v", c.sql, role, err)
			}
		}
	}
	var loose []string
	rows, _ := pool.Query(ctx, `select p.oid::regprocedure::text from pg_proc p where p.pronamespace in ('dipwell'::regnamespace, 'dipwell_internal'::regnamespace) and p.prosecdef
		and (p.proconfig is null or not 'search_path=pg_catalog, pg_temp' = any (p.proconfig))`)
	loose, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(loose) > 0 {
		t.Errorf("security definers without a fixed search_path: %s, %v", strings.Join(loose, ", "), err)
	}
}

// TestViewsIgnoreSearchPath checks that operators in a schema of the search path do not
// run, with the rights of whoever reads it, in a view.
func TestViewsIgnoreSearchPath(t *testing.T) {
	pool := newPool(t)
	must(t, pool, `select dipwell.define('api', 5, interval '1 minute'), dipwell.define('day', 5, interval '1 day', algorithm => 'fixed_window', start => '00:00 Europe/Rome')`)
	must(t, pool, `select dipwell.take('api', 'k'), dipwell.take('day', 'k'), dipwell.hold('api', 'h', 1, interval '1 hour'), dipwell.override('api', 'o', burst => 9, until => now() + interval '1 hour')`)
	inTx(t, pool, func(tx pgx.Tx) {
		must(t, tx, "create schema trap; set local search_path = trap")
		for _, types := range [][2]string{{"bigint", "interval"}, {"double precision", "integer"}, {"numeric", "bigint"}, {"bigint", "integer"}, {"integer", "bigint"}} {
			of := types[0] + ", " + types[1]
			must(t, tx, "create function trap.fail("+of+") returns "+types[1]+" language plpgsql as $$ begin raise 'the operator of "+of+"'; end $$")
			for _, op := range []string{"*", "+"} {
				must(t, tx, "create operator trap."+op+" (leftarg = "+types[0]+", rightarg = "+types[1]+", function = trap.fail)")
			}
		}
		for view, rows := range map[string]int{"status": 4, "overrides": 1, "holds": 1, "top_keys": 0, "limits": 2} {
			if got := number(t, tx, "select count(x::text) from dipwell."+view+" x"); got != rows {
				t.Errorf("%s has %d rows, want %d", view, got, rows)
			}
		}
		must(t, tx, "select dipwell.take('day', dipwell.key('k')), dipwell.sweep()")
	})
}

// TestRollback checks that a rollback gives back what a transaction took.
func TestRollback(t *testing.T) {
	pool := newPool(t)
	ctx := context.Background()
	st := newStore(t, pool, pgstore.Config{Poll: -1})
	l, err := dipwell.New(st, store.Limit{Name: "order", Rate: 5, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.With(st.With(tx)).Take(ctx, "order", "u", 3); err != nil || d.Remaining != 2 {
		t.Fatalf("%+v %v", d, err)
	}
	if err = tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Take(ctx, "order", "u", 1); err != nil || d.Remaining != 4 {
		t.Fatalf("%+v %v", d, err)
	}
}

func must(t testing.TB, db pgstore.DB, sql string) {
	t.Helper()
	if _, err := db.Exec(context.Background(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}
