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

// TestReserveWithin: with within, reserve decides an attempt of a wait. It reserves what is
// due in time, says when to call again where there is no debt, and begins no block.
func TestReserveWithin(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for _, sql := range []string{
		"define('debt', 1, interval '1 minute', burst => 1, max_debt => 2, block => interval '1 hour', plans => '{\"none\": {\"max_debt\": 0, \"callable\": false}}')",
		"define('none', 1, interval '1 minute', burst => 1, max_debt => 0, block => interval '1 hour')",
		"define('sliding', 1, interval '1 hour', algorithm => 'sliding_window')",
		"define('shadow', 1, interval '1 minute', burst => 1, max_debt => 1, mode => 'shadow')",
		"define('leaky', 1, interval '1 minute', algorithm => 'leaky_bucket', max_debt => 3)",
		"define('all', 1, interval '1 minute', burst => 1, max_debt => 0, shared => true)",
		"define('child', 1, interval '1 minute', burst => 9, parent => 'all')",
		"override('debt', 'planned', plan => 'none')",
		"override('debt', 'raised', burst => 4, until => now() + interval '1 hour')",
		"override('none', 'raised', burst => 2, until => now() + interval '1 hour')",
		"take('none', 'raised')", "hold('debt', 'held', ttl => interval '1 hour')",
		"take('debt', 'k')", "take('debt', 'planned')", "take('none', 'k')", "take('sliding', 'k')", "take('shadow', 'k')", "take('leaky', 'k')", "take('child', 'k')",
	} {
		must(t, pool, "select dipwell."+sql)
	}
	for _, c := range []struct{ limit, key, cost, within, is string }{
		{"debt", "k", "1", "50 seconds", "not allowed and delay = '0' and retry_after between '0' and '10 seconds'"},
		{"debt", "k", "3", "1 hour", "not allowed and delay = '0' and retry_after between '50 seconds' and '1 minute'"}, // more than the debt
		{"debt", "k", "1", "1 minute", "allowed and delay between '50 seconds' and '1 minute' and reservation is not null"},
		{"debt", "planned", "1", "1 minute", "not allowed and delay between '50 seconds' and '1 minute' and retry_after = '0'"},
		{"none", "k", "1", "1 minute", "not allowed and delay between '50 seconds' and '1 minute' and retry_after = '0' and reservation is null"},
		{"none", "k", "1", "40 seconds", "not allowed and delay = '0' and retry_after between '10 seconds' and '20 seconds'"},
		{"none", "k", "2", "1 year", "not allowed and never and delay = '0' and retry_after is null"},
		{"none", "new", "1", "0", "allowed and delay = '0'"},
		{"sliding", "k", "1", "3 hours", "not allowed and delay > '0' and retry_after = '0'"},
		{"sliding", "new", "1", "0", "allowed"},
		{"shadow", "k", "1", "0", "allowed and delay = '0'"},
		{"leaky", "k", "1", "10 minutes", "allowed and delay between '50 seconds' and '1 minute'"},
		{"child", "k", "1", "1 minute", "not allowed and delay between '50 seconds' and '1 minute' and reservation is null"},
		{"debt", "held", "1", "1 minute", "allowed and delay between '50 seconds' and '1 minute'"}, // beside a live hold
		{"debt", "raised", "4", "0", "allowed and delay = '0'"},
		{"none", "raised", "2", "1 minute", "not allowed and delay between '50 seconds' and '1 minute'"},
		{"child", "k", "1", "infinity", "not allowed and delay between '50 seconds' and '1 minute'"},
	} {
		if c.within == "infinity" {
			c.within = "200000 years"
		}
		var ok bool
		var got string
		err := pool.QueryRow(t.Context(), "select "+c.is+", d::text from dipwell.reserve($1, $2, $3, within => $4::text::interval) d", c.limit, c.key, c.cost, c.within).Scan(&ok, &got)
		if err != nil || !ok {
			t.Errorf("%+v: %v, %v, %s", c, ok, err, got)
		}
	}
	if n := number(t, pool, "select count(*) from dipwell.blocks"); n != 0 {
		t.Errorf("%d keys are blocked", n)
	}
	if _, err := pool.Exec(t.Context(), "select dipwell.reserve('none', 'k', within => interval '-1s')"); err == nil || !strings.Contains(err.Error(), "within: -00:00:01 is negative") {
		t.Errorf("a negative within: %v", err)
	}
}
