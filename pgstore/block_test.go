package pgstore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestBlocksInSQL follows a block through the functions: a rollback takes it back, the
// audit has no entry of it, and views list it apart.
func TestBlocksInSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('login', 5, interval '15 minutes', block => interval '20 minutes', plans => '{\"pro\": {\"burst\": 9, \"callable\": false}}')")
	is := func(what, sql string) {
		t.Helper()
		var ok bool
		if err := pool.QueryRow(t.Context(), "select "+sql).Scan(&ok); err != nil || !ok {
			t.Errorf("%s: %v, %v: %s", what, ok, err, sql)
		}
	}
	must(t, pool, "select dipwell.take('login', 'k', 5)")
	changes := number(t, pool, "select count(*) from dipwell.audit")
	begins := "(d).allowed = false and (d).never = false and (d).retry_after between interval '19 minutes 50 seconds' and interval '20 minutes' from dipwell."
	inTx(t, pool, func(tx pgx.Tx) {
		var ok bool
		if err := tx.QueryRow(t.Context(), "select "+begins+"take('login', 'k') d").Scan(&ok); err != nil || !ok {
			t.Errorf("in a transaction: %v, %v", ok, err)
		}
		if n := number(t, tx, "select count(*) from dipwell.blocks"); n != 1 {
			t.Errorf("in a transaction %d keys are blocked", n)
		}
	})
	is("after a rollback", "(d).retry_after < interval '3 minutes' and not exists (select from dipwell.blocks) from dipwell.check('login', 'k') d")
	is("a take", begins+"take('login', 'k') d")
	is("a check", begins+"check('login', 'k', 0) d")
	is("ready", "not exists (select from dipwell.ready('login', array['k'], 0))")
	is("the views", "(select string_agg(concat_ws(' ', limit_name, key, until > now() + interval '19 minutes'), ', ') from dipwell.blocks) = 'login k t' and not exists (select from dipwell.overrides)")
	is("the table", "(select note from dipwell.key_overrides where key = 'k') = 'automatic'")
	is("another kind", "not dipwell.end_override('login', 'k', 'standing')")
	if n := number(t, pool, "select count(*) from dipwell.audit"); n != changes {
		t.Errorf("%d entries in the audit; %d before", n, changes)
	}
	must(t, pool, "select dipwell.override('login', 'k', plan => 'pro')")
	is("a plan under it", "(select string_agg(concat_ws(' ', key, plan, kind), ', ') from dipwell.overrides) = 'k pro standing' and exists (select from dipwell.blocks)")
	is("the end", "dipwell.end_override('login', 'k', 'automatic')")
	is("its entry", "what like 'block until %' from dipwell.audit order by id desc limit 1")
	is("after it", "(d).allowed and (d).remaining = 3 from dipwell.take('login', 'k') d")
	is("refused under the plan", begins+"hold('login', 'k', 4, ttl => interval '1 minute') d")
	must(t, pool, "select dipwell.reset('login', 'k')")
	is("after a reset", "(d).allowed and (d).remaining = 0 and not exists (select from dipwell.blocks) from dipwell.take('login', 'k', 9) d")
	is("a temporary one in its place", begins+"take_up_to('login', 'k', 4) d")
	is("what it replaced", "replaced_plan is null and replaced_until > now() and replaced_note = 'automatic' from dipwell.override('login', 'k', burst => 12, until => now() + interval '1 hour')")
	is("the former one in the audit", "what like '%in place of block until %over plan pro%' from dipwell.audit order by id desc limit 1")

	for sql, field := range map[string]string{
		"define('x', 5, interval '1 minute', block => interval '0')":                      "block: 00:00:00 is not between 1ms and 366d",
		"define('x', 5, interval '1 minute', block => interval '1 month')":                "block: 1 mon is not between 1ms and 366d",
		"define('x', 5, interval '1 minute', block => interval '367 days')":               "block: 367d is not between 1ms and 366d",
		"define('x', 5, interval '1 minute', block => interval '1 hour', shared => true)": "block: is not for a shared limit",
		"define('x', burst => 5, algorithm => 'concurrency', block => interval '1 hour')": "block: is not for a concurrency limit",
		"define('x', 50, interval '1 second', shards => 2, block => interval '1 hour')":   "block: is not for a limit with shards",
		"define('below', 5, interval '1 minute', parent => 'login')":                      "block: limit login has one, so it cannot be a parent",
		"define_plan('login', 'more', burst => 7)":                                        "block: is not for a limit with plans that callers may name; plan more",
		"define_plan('login', 'more', burst => 7, callable => 'children')":                "block: is not for a limit with plans that callers may name; plan more",
		"end_override('login', 'k', 'blocks')":                                            "kind: \"blocks\" is not one of standing, temporary, automatic",
		"override('login', 'k', until => now() + interval '1 hour', note => 'automatic')": "plan: is missing",
	} {
		if _, err := pool.Exec(t.Context(), "select dipwell."+sql); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v; want %s", sql, err, field)
		}
	}
	must(t, pool, "select dipwell.define('top', 5, interval '1 minute', parts => 1); select dipwell.define('sub', 5, interval '1 minute', parent => 'top')")
	if _, err := pool.Exec(t.Context(), "select dipwell.define('top', 5, interval '1 minute', parts => 1, block => interval '1 hour')"); err == nil || !strings.Contains(err.Error(), "block: is not for the parent of limit sub") {
		t.Errorf("the parent of another: %v", err)
	}
}

// A program that may decide, and not set overrides, begins and ends blocks by its calls.
func TestBlockRoles(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	d, err := s.Abilities().Limits.Define(t.Context(), store.Limit{Name: "login", Rate: 5, Period: 900e9, Block: 1200e9}, store.OwnerCode)
	if err != nil {
		t.Fatal(err)
	}
	inTx(t, pool, func(tx pgx.Tx) {
		must(t, tx, "set local role dipwell_service")
		in := s.With(tx)
		takeOf(t, in, d, "k", store.VerbTake, 5)
		op := takeOf(t, in, d, "k", store.VerbTake, 1)
		if o := op.Def.Override; o == nil || o.Kind() != store.AutomaticOverride {
			t.Errorf("by a service: %+v", op.Answer)
		}
		takeOf(t, in, d, "k", store.VerbReset, 0)
		if op = takeOf(t, in, d, "k", store.VerbTake, 5); !op.Allowed || op.Def.Override != nil {
			t.Errorf("after a reset by a service: %+v", op.Answer)
		}
		takeOf(t, in, d, "k", store.VerbTake, 1)
		if _, err := in.Abilities().Overrides.EndOverride(t.Context(), d, "k", store.AnyOverride); !errors.Is(err, store.ErrDenied) {
			t.Errorf("ended by a service: %v", err)
		}
	})
	inTx(t, pool, func(tx pgx.Tx) {
		must(t, tx, "set local role dipwell_app")
		must(t, tx, "select dipwell.take('login', 'k', 5); select dipwell.take('login', 'k')")
		must(t, tx, "reset role")
		if n := number(t, tx, "select count(*) from dipwell.blocks"); n != 1 {
			t.Errorf("by an application: %d blocks", n)
		}
	})
}

// A service that calls set_block itself changes no override that people have set, and blocks
// no key of a limit without blocks.
func TestBlockRights(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, `select dipwell.define('login', 5, interval '15 minutes', block => interval '15 minutes', plans => '{"banned": {"mode": "blocked", "callable": false}}');
		select dipwell.define('api', 5, interval '15 minutes');
		select dipwell.override('login', 'evil', plan => 'banned', until => now() + interval '1 day')`)
	inTx(t, pool, func(tx pgx.Tx) {
		must(t, tx, "set local role dipwell_service")
		must(t, tx, `select dipwell_internal.set_block(l.id, 'evil', dipwell_internal.now_us(), b) from dipwell.limits l, (values (true), (false)) v (b)`)
		must(t, tx, `select dipwell_internal.set_block(l.id, 'new', dipwell_internal.now_us(), true) from dipwell.limits l`)
		must(t, tx, "reset role")
		if n := number(t, tx, "select count(*) from dipwell.overrides where key = 'evil' and plan = 'banned'"); n != 1 {
			t.Errorf("the key that was banned has %d bans", n)
		}
		if n := number(t, tx, "select count(*) from dipwell.key_overrides where limit_id = (select id from dipwell.limits where name = 'api')"); n != 0 {
			t.Errorf("%d overrides of a limit without blocks", n)
		}
	})
}
