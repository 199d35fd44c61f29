package pgstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// overriddenStore returns a store whose limit api has plans.
func overriddenStore(t *testing.T, db pgstore.DB, pool *pgxpool.Pool) (*pgstore.Store, *store.Definition) {
	t.Helper()
	must(t, pool, "select dipwell.define('api', 1, interval '1 hour', burst => 5)")
	must(t, pool, "select dipwell.define_plan('api', 'pro', burst => 20), dipwell.define_plan('api', 'staff', mode => 'unlimited', callable => 'no'), dipwell.define_plan('api', 'banned', mode => 'blocked')")
	s := newStore(t, db, pgstore.Config{Poll: -1})
	return s, s.Registry().Lookup("api")
}

func takeOf(t testing.TB, s store.Store, d *store.Definition, key string, verb store.Verb, cost int64) *store.Op {
	t.Helper()
	var b store.Batch
	g, op := b.Single()
	*op = store.Op{Def: d, Key: key, Verb: verb, Cost: cost}
	if err := s.Apply(t.Context(), &b); err != nil || g.Err != nil {
		t.Fatal(err, g.Err)
	}
	return op
}

// TestOverridesOfSQL checks that the functions and the store answer the same for keys
// under the limit, a plan and overrides, whoever has set them.
func TestOverridesOfSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	s, d := overriddenStore(t, pool, pool)
	overrides := s.Abilities().Overrides
	if _, err := overrides.SetOverride(t.Context(), d, store.Override{Key: "numbers", Rate: 2, Period: time.Minute, Burst: 7, Note: "ticket 81"}); err != nil {
		t.Fatal(err)
	}
	must(t, pool, "select dipwell.override('api', 'raised', plan => 'pro', until => now() + interval '1 hour'), dipwell.override('api', 'staff', plan => 'staff'), dipwell.override('api', 'banned', plan => 'banned', until => now() + interval '1 hour'), dipwell.override('api', 'ended', plan => 'pro')")
	must(t, pool, "select dipwell.end_override('api', 'ended')")
	for key, burst := range map[string]int64{"plain": 5, "numbers": 7, "raised": 20, "staff": store.MaxInt, "banned": 0, "ended": 5} {
		for _, first := range []int64{0, 3} {
			if first > 0 && burst > 0 {
				if op := takeOf(t, s, d, key, store.VerbTake, first); !op.Allowed {
					t.Errorf("%s: %+v", key, op.Answer)
				}
			}
			op := takeOf(t, s, d, key, store.VerbCheck, 1)
			var allowed, never bool
			var left int64
			if err := pool.QueryRow(t.Context(), "select allowed, remaining, never from dipwell.check('api', $1)", key).Scan(&allowed, &left, &never); err != nil {
				t.Fatal(err)
			}
			if op.Allowed != allowed || op.Remaining != left || op.Never != never {
				t.Errorf("%s: the store answers %+v, SQL %v, %d left, never %v", key, op.Answer, allowed, left, never)
			}
			if want := burst - first; burst > 0 && burst < store.MaxInt && left != want {
				t.Errorf("%s: %d left, want %d", key, left, want)
			}
		}
	}
	for verb, call := range map[store.Verb]string{store.VerbTake: "take", store.VerbTakeUpTo: "take_up_to", store.VerbReserve: "reserve", store.VerbCharge: "charge", store.VerbRefund: "refund", store.VerbReset: "reset"} {
		op := takeOf(t, s, d, "staff", verb, 1)
		var left int64
		if err := pool.QueryRow(t.Context(), "select remaining from dipwell."+call+"('api', 'staff')").Scan(&left); err != nil {
			t.Fatal(err)
		}
		if op.Remaining != store.MaxInt || left != store.MaxInt {
			t.Errorf("%s of an unlimited key: the store says that %d are left, SQL %d", call, op.Remaining, left)
		}
	}
	if op := takeOf(t, s, d.WithPlan("pro"), "plain", store.VerbTake, 17); !op.Allowed || op.Remaining != 0 || op.Def.Plan != "pro" {
		t.Errorf("under the plan: %+v", op.Answer)
	}
	keys, err := s.Abilities().Keys(t.Context(), d, "", "", 10)
	if err != nil || len(keys) != 6 {
		t.Fatal(keys, err)
	}
	for _, k := range keys {
		if own := k.Override; (own != nil) != (k.Key == "numbers" || k.Key == "raised" || k.Key == "staff" || k.Key == "banned") {
			t.Errorf("key %s has the override %+v", k.Key, own)
		}
	}
	var listed string
	if err := pool.QueryRow(t.Context(), "select string_agg(concat_ws(' ', key, plan, rate, per, burst, note), ', ' order by key) from dipwell.overrides").Scan(&listed); err != nil ||
		listed != "banned banned, numbers 2 1m 7 ticket 81, raised pro, staff staff" {
		t.Errorf("listed: %s %v", listed, err)
	}
}

// A statementsDB counts statements.
type statementsDB struct {
	pgstore.DB
	n *atomic.Int64
}

func (c statementsDB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	c.n.Add(1)
	return c.DB.QueryRow(ctx, sql, args...)
}

func (c statementsDB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	c.n.Add(1)
	return c.DB.Query(ctx, sql, args...)
}

func (c statementsDB) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	c.n.Add(1)
	return c.DB.SendBatch(ctx, b)
}

// TestOverriddenKeyIsOneStatement checks that a key with an override needs one
// statement, as others do, and that what the store remembers of it never decides.
func TestOverriddenKeyIsOneStatement(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('api', 1, interval '1 hour', burst => 5)")
	must(t, pool, "select dipwell.override('api', 'k', burst => 100)")
	n := new(atomic.Int64)
	s := newStore(t, statementsDB{pool, n}, pgstore.Config{Poll: -1})
	d := s.Registry().Lookup("api")
	takeOf(t, s, d, "k", store.VerbTake, 1)
	for range 5 {
		before := n.Load()
		if op := takeOf(t, s, d, "k", store.VerbTake, 1); !op.Allowed || op.Def.Burst != 100 || n.Load() != before+1 {
			t.Fatalf("%+v after %d statements", op.Answer, n.Load()-before)
		}
	}
	must(t, pool, "select dipwell.override('api', 'k', burst => 10)")
	if op := takeOf(t, s, d, "k", store.VerbTake, 5); op.Allowed || op.Def.Burst != 10 {
		t.Errorf("after another override: %+v", op.Answer)
	}
	must(t, pool, "select dipwell.end_override('api', 'k')")
	if op := takeOf(t, s, d, "k", store.VerbTake, 1); op.Allowed || op.Def.Burst != 5 {
		t.Errorf("after its end: %+v", op.Answer)
	}
	must(t, pool, "select dipwell.override('api', 'k', burst => 10, until => now() + interval '2 seconds')")
	takeOf(t, s, d, "k", store.VerbTake, 1)
	var over bool
	for !over {
		if err := pool.QueryRow(t.Context(), "select not exists (select from dipwell.overrides)").Scan(&over); err != nil {
			t.Fatal(err)
		}
	}
	if op := takeOf(t, s, d, "k", store.VerbTake, 1); op.Allowed || op.Def.Burst != 5 {
		t.Errorf("at its end: %+v", op.Answer)
	}
}

// TestOverridesWhileTaken sets and ends overrides of keys while others take. However
// they come and go, a key grants at most the largest burst.
func TestOverridesWhileTaken(t *testing.T) {
	t.Parallel()
	const keys = 20
	pool := newPool(t)
	s, d := overriddenStore(t, pool, pool)
	overrides := s.Abilities().Overrides
	var granted [keys]atomic.Int64
	done := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				def := d
				if i%3 == 0 {
					def = d.WithPlan("pro")
				}
				var b store.Batch
				b.Groups = []store.Group{{Ops: []store.Op{{Def: def, Key: fmt.Sprint(i % keys), Verb: store.VerbTake, Cost: 1}}}}
				if i%5 == 0 {
					b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: d, Key: fmt.Sprint(i % keys), Verb: store.VerbTake, Cost: 2}}})
				}
				if err := s.Apply(t.Context(), &b); err != nil {
					t.Error(err)
					return
				}
				for j := range b.Groups {
					if g := &b.Groups[j]; g.Err != nil {
						t.Error(g.Err)
						return
					} else if g.Allowed {
						granted[i%keys].Add(g.Ops[0].Granted)
					}
				}
			}
		})
	}
	for i := range 1000 {
		key := fmt.Sprint(i % keys)
		var err error
		if i%7 == 6 {
			_, err = overrides.EndOverride(t.Context(), d, key, store.AnyOverride)
		} else {
			_, err = overrides.SetOverride(t.Context(), d, store.Override{Key: key, Burst: 1 + int64(i%20)})
		}
		if err != nil {
			t.Fatal(i, err)
		}
	}
	close(done)
	wg.Wait()
	for key := range granted {
		if n := granted[key].Load(); n > 20 {
			t.Errorf("key %d was granted %d tokens; at most 20", key, n)
		}
	}
}

// TestOverrideRoles checks who may define plans and set overrides, and that others may
// name plans and meet overrides.
func TestOverrideRoles(t *testing.T) {
	pool := newPool(t)
	s, d := overriddenStore(t, pool, pool)
	for _, who := range []string{"dipwell_app", "dipwell_service", "dipwell_admin"} {
		for _, sql := range []string{"dipwell.override('api', 'k', plan => 'pro')", "dipwell.end_override('api', 'k')", "dipwell.define_plan('api', 'more', burst => 30)", "dipwell.drop_plan('api', 'more')"} {
			inTx(t, pool, func(tx pgx.Tx) {
				must(t, tx, "set local role "+who)
				_, err := tx.Exec(t.Context(), "select "+sql)
				if may := who == "dipwell_admin"; err != nil && strings.Contains(err.Error(), "42501") == may || err == nil && !may {
					t.Errorf("%s, %s: %v", who, sql, err)
				}
			})
		}
	}
	must(t, pool, "select dipwell.override('api', 'k', plan => 'staff')")
	inTx(t, pool, func(tx pgx.Tx) {
		must(t, tx, "set local role dipwell_app")
		must(t, tx, "select dipwell.take('api', 'l', 2, plan => 'pro', floor => 1), dipwell.take('api', 'k', 100)")
	})
	inTx(t, pool, func(tx pgx.Tx) {
		must(t, tx, "set local role dipwell_service")
		if op := takeOf(t, s.With(tx), d, "k", store.VerbTake, 100); !op.Allowed || op.Def.Plan != "staff" {
			t.Errorf("%+v", op.Answer)
		}
	})
	inTx(t, pool, func(tx pgx.Tx) {
		must(t, tx, "set local role dipwell_service")
		if o, err := s.With(tx).Abilities().Overrides.SetOverride(t.Context(), d, store.Override{Key: "k", Burst: 9}); !errors.Is(err, store.ErrDenied) || o != (store.Override{}) {
			t.Errorf("an override by a service: %v", err)
		}
	})
}

// TestPlanErrorsSQL checks the errors of the functions: each names the field.
func TestPlanErrorsSQL(t *testing.T) {
	pool := newPool(t)
	overriddenStore(t, pool, pool)
	must(t, pool, `select dipwell.define('window', 3, interval '1 minute', algorithm => 'fixed_window');
		select dipwell.define('org', 3, interval '1 minute', parts => 1); select dipwell.define('member', 3, interval '1 minute', parent => 'org')`)
	for sql, want := range map[string]string{
		"take('api', 'k', plan => 'gold')":                                     `plan: limit api has no plan "gold"`,
		"take('api', 'k', plan => 'staff')":                                    "plan: callers may not name plan staff of limit api",
		"take('api', 'k', floor => -1)":                                        "floor: -1 is not between",
		"take_all('{api}', '{k}', plans => '{gold}')":                          `plans[1]: limit api has no plan "gold"`,
		"take_all('{api,api,api}', '{k,k,l}', plans => '{null,null,gold}')":    `plans[3]: limit api has no plan "gold"`,
		"hold_all('{api}', '{k}', ttl => '1 minute', plans => '{staff}')":      "plans[1]: callers may not name plan staff",
		"take('member', 'acme/u7', plan => 'gold')":                            `plan: limit member has no plan "gold"`,
		"hold('member', 'acme/u7', ttl => '1 minute', plan => 'gold')":         `plan: limit member has no plan "gold"`,
		"take_all('{api}', '{k}', floors => '{1,2}')":                          "floors: 2 entries",
		"define_plan('api', 'a b')":                                            "plan: \"a b\" is not 1 to 64",
		"define_plan('api', 'p', rate => 0)":                                   "limit api: plans: plan p: rate: 0 is not between",
		"define_plan('api', 'p', mode => 'off')":                               "limit api: plans: plan p: mode: \"off\" is not one of",
		"define_plan('window', 'p', per => interval '1 hour')":                 "limit window: plans: plan p: per: a plan of a window",
		"define_plan('api', 'p', callable => 'true')":                          `callable: "true" is not one of yes, no, children`,
		"define_plan('none', 'p')":                                             `limit_name: unknown limit "none"`,
		"drop_plan('api', 'gold')":                                             `plan: limit api has no plan "gold"`,
		"override('api', 'k')":                                                 "plan: is missing",
		"override('api', 'k', plan => 'gold')":                                 `plan: limit api has no plan "gold"`,
		"override('api', 'k', plan => 'pro', burst => 3)":                      "plan: stands beside",
		"override('api', 'k', burst => -3)":                                    "burst: -3 is not",
		"override('api', 'cust-*', plan => 'pro')":                             "key: has a *, but an override is for one key: there are no patterns; a plan is for many",
		"override('api', 'k', burst => 3, until => now())":                     "until: is not in the future",
		"override('api', 'k', burst => 3, until => '294276-12-31')":            "until: is not between now and the year 2255",
		"override('api', 'k', burst => 3, until => '-infinity')":               "until: is not in the future",
		"override('api', 'k', burst => 3, note => repeat('x', 1025))":          "note: has 1025 bytes",
		"override('api', repeat('k', 513), burst => 3)":                        "key: has 513 bytes",
		"override('api', '', burst => 3)":                                      "key: is empty",
		"override('none', 'k', burst => 3)":                                    `limit_name: unknown limit "none"`,
		"override('member', 'acme', burst => 3)":                               "key: has 1 part; those of limit member have 2",
		"override('member', 'acme/', burst => 3)":                              `key: part 2 of "acme/" is empty`,
		"override('member', burst => 3)":                                       "key: is null; limit member has a bucket for each key (shared => true would make it one for everybody)",
		"override('org', 'acme/u7', burst => 3)":                               "key: has 2 parts; those of limit org have 1",
		"end_override('api', 'cust-*')":                                        "key: has a *, but an override is for one key",
		"end_override('member', 'acme')":                                       "key: has 1 part; those of limit member have 2",
		`define('p', 1, interval '1 minute', plans => '["a"]')`:                "limit p: plans: is not an object such as",
		`define('p', 1, interval '1 minute', plans => '{"a": 3}')`:             "limit p: plans: plan a is not an object such as",
		`define('p', 1, interval '1 minute', plans => '{"a": {"bursts": 3}}')`: "limit p: plans: plan a: bursts: unknown setting",
	} {
		if _, err := pool.Exec(t.Context(), "select dipwell."+sql); err == nil || !strings.HasPrefix(err.Error(), "ERROR: "+want) {
			t.Errorf("%s: %v; want %s", sql, err, want)
		}
	}
	if n := number(t, pool, "select count(*) from dipwell.key_overrides"); n != 0 {
		t.Errorf("%d overrides were set", n)
	}
}

// TestTakeVariantsSQL checks take for keys that are taken by a plan or an override in
// turn with others.
func TestTakeVariantsSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('api', 1, interval '1 hour', burst => 5)")
	must(t, pool, "select dipwell.define_plan('api', 'pro', burst => 20), dipwell.override('api', 'k', burst => 9), dipwell.override('api', 'b', burst => 9, until => now() + interval '1 hour')")
	inTx(t, pool, func(tx pgx.Tx) {
		for _, c := range []struct {
			args    string
			calls   int
			granted int
		}{{"'k'", 12, 9}, {"'u'", 12, 5}, {"'p', 1, 'pro'", 25, 20}, {"'b'", 12, 9}, {"'p'", 3, 0}, {"'k', 0", 1, 1}} {
			n := 0
			for range c.calls {
				n += number(t, tx, "select count(*) from dipwell.take('api', "+c.args+") d where d.allowed")
			}
			if n != c.granted {
				t.Errorf("take(%s): %d of %d allowed, want %d", c.args, n, c.calls, c.granted)
			}
		}
	})
}

// TestOverriddenKeysCost checks how many statements calls of overridden keys need, and
// that they take what the overrides allow: alone, in groups and in batches, for limits
// of all kinds and plans of all modes.
func TestOverriddenKeysCost(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	for _, limit := range []string{
		"'bucket', 1, interval '1 hour', burst => 5",
		"'fast', 1000000, interval '1 second', burst => 5, max_debt => 0",
		"'coarse', 1000000000000, interval '1 day', burst => 5",
		"'window', 5, interval '1 hour', algorithm => 'fixed_window', start => '0s'",
		"'spread', 5, interval '1 hour', algorithm => 'fixed_window'",
		"'interval', 5, interval '1 hour', algorithm => 'interval', burst => 5",
	} {
		name := strings.Trim(strings.Split(limit, ",")[0], "'")
		must(t, pool, "select dipwell.define("+limit+")")
		must(t, pool, fmt.Sprintf("select dipwell.define_plan('%[1]s', 'staff', mode => 'unlimited'), dipwell.define_plan('%[1]s', 'banned', mode => 'blocked')", name))
		must(t, pool, fmt.Sprintf("select dipwell.override('%[1]s', 'k', burst => 100), dipwell.override('%[1]s', 'staff', plan => 'staff'), dipwell.override('%[1]s', 'banned', plan => 'banned'), dipwell.override('%[1]s', 'low', burst => 1)", name))
	}
	n := new(atomic.Int64)
	clock := new(atomic.Int64)
	clock.Store(time.Now().UnixMicro())
	s := newStore(t, statementsDB{pool, n}, pgstore.Config{Poll: -1, Clock: clock.Load})
	for _, d := range s.Registry().All() {
		t.Run(d.Name, func(t *testing.T) {
			costs := func(what string, most int64, allowed bool, ops ...store.Op) {
				t.Helper()
				for round := range 4 {
					var b store.Batch
					for range 3 {
						g := store.Group{Ops: append([]store.Op(nil), ops...)}
						if b.Groups = append(b.Groups, g); !strings.HasPrefix(what, "batch") {
							break
						}
					}
					before := n.Load()
					if err := s.Apply(t.Context(), &b); err != nil {
						t.Fatal(err)
					}
					for i := range b.Groups {
						if g := &b.Groups[i]; g.Err != nil || g.Allowed != allowed {
							t.Fatalf("%s: %v, %+v", what, g.Err, g.Ops[0].Answer)
						}
					}
					if got := n.Load() - before; round > 1 && got > most {
						t.Errorf("%s: %d statements; at most %d", what, got, most)
					}
				}
			}
			of := func(key string, verb store.Verb, cost int64) store.Op {
				return store.Op{Def: d, Key: key, Verb: verb, Cost: cost}
			}
			costs("take", 1, true, of("k", store.VerbTake, 6))
			costs("up to", 1, true, of("k", store.VerbTakeUpTo, 2))
			costs("check", 1, true, of("k", store.VerbCheck, 6))
			costs("too much", 2, false, of("k", store.VerbTake, 99))
			costs("take after a refusal", 2, true, of("k", store.VerbTake, 1))
			costs("unlimited", 1, true, of("staff", store.VerbTake, 1000))
			costs("blocked", 1, false, of("banned", store.VerbTake, 1))
			costs("group", 1, true, of("k", store.VerbTake, 1), of("plain", store.VerbTake, 1))
			costs("group with one that is unlimited", 1, true, of("k", store.VerbCheck, 1), of("staff", store.VerbTake, 1))
			costs("group that is refused", 1, false, of("k", store.VerbTake, 1), of("banned", store.VerbTake, 1))
			costs("batch", 1, true, of("k", store.VerbTake, 1))
			costs("batch of a key that is blocked", 1, false, of("banned", store.VerbTake, 1))
			if op := takeOf(t, s, d, "k", store.VerbTake, 0); op.Def.Burst != 100 || op.Remaining > 100-24-8-4-4-12 {
				t.Errorf("in the end: %d of %d left", op.Remaining, op.Def.Burst)
			}
		})
	}
}

// TestRememberedOverrideEnds checks that an override that the process remembers ends to
// the microsecond, for single calls, groups and batches.
func TestRememberedOverrideEnds(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('api', 1, interval '1 hour', burst => 5), dipwell.define('window', 5, interval '1 hour', algorithm => 'fixed_window', start => '0s')")
	clock := new(atomic.Int64)
	start := time.Now().Truncate(time.Hour).UnixMicro()
	clock.Store(start)
	s := newStore(t, pool, pgstore.Config{Poll: -1, Clock: clock.Load})
	until := start + 1_000_000
	for _, d := range s.Registry().All() {
		for i, ask := range map[string]func(key string, cost int64) bool{
			"one": func(key string, cost int64) bool {
				return takeOf(t, s, s.Registry().Lookup(d.Name), key, store.VerbTake, cost).Allowed
			},
			"group": func(key string, cost int64) bool {
				return allowedAll(t, s, 1, store.Op{Def: s.Registry().Lookup(d.Name), Key: key, Cost: cost}, store.Op{Def: s.Registry().Lookup(d.Name), Key: "beside " + key, Cost: 0, Verb: store.VerbCheck})
			},
			"batch": func(key string, cost int64) bool {
				return allowedAll(t, s, 2, store.Op{Def: s.Registry().Lookup(d.Name), Key: key, Cost: cost / 2})
			},
		} {
			key := "k" + i
			clock.Store(start)
			if _, err := s.Abilities().Overrides.SetOverride(t.Context(), d, store.Override{Key: key, Burst: 1000, Until: until}); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if !ask(key, 6) {
					t.Errorf("%s, %s: refused under the override", d.Name, i)
				}
			}
			if clock.Store(until - 1); !ask(key, 6) {
				t.Errorf("%s, %s: refused 1 µs before the end", d.Name, i)
			}
			if clock.Store(until); ask(key, 6) {
				t.Errorf("%s, %s: allowed at the end", d.Name, i)
			}
		}
	}
}

// allowedAll asks n times for a group in one batch, and reports whether all were allowed.
func allowedAll(t *testing.T, s store.Store, n int, ops ...store.Op) bool {
	t.Helper()
	var b store.Batch
	for range n {
		b.Groups = append(b.Groups, store.Group{Ops: append([]store.Op(nil), ops...)})
	}
	if err := s.Apply(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	all := true
	for i := range b.Groups {
		if b.Groups[i].Err != nil {
			t.Fatal(b.Groups[i].Err)
		}
		all = all && b.Groups[i].Allowed
	}
	return all
}

// TestPlansOfAKeyInABatch checks that calls of a key under several plans in one batch
// are counted one after the other, each under its own.
func TestPlansOfAKeyInABatch(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	must(t, pool, "select dipwell.define('api', 1, interval '1 hour', burst => 5)")
	must(t, pool, "select dipwell.define_plan('api', 'pro', rate => 7, burst => 20), dipwell.define_plan('api', 'gold', rate => 1000, burst => 20)")
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	d := s.Registry().Lookup("api")
	for _, first := range []string{"pro", "gold", ""} {
		key := "k" + first
		granted := takeOf(t, s, d.WithPlan(first), key, store.VerbTake, 1).Granted
		var b store.Batch
		for _, plan := range []string{first, "gold", "pro"} {
			b.Groups = append(b.Groups, store.Group{Ops: []store.Op{{Def: d.WithPlan(plan), Key: key, Cost: 4}}})
		}
		if err := s.Apply(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
		for i := range b.Groups {
			granted += b.Groups[i].Ops[0].Granted
		}
		if op := takeOf(t, s, d.WithPlan("pro"), key, store.VerbCheck, 1); op.Remaining > 20-granted {
			t.Errorf("after %d of 20 tokens, first by %q, %d are left", granted, first, op.Remaining)
		}
	}
}

// TestReserveUnderStart reserves more than is free of a key with a start of its own, of a limit
// whose other keys have windows of their own: the statement of the limit has another number of
// parameters than that of the key would have.
func TestReserveUnderStart(t *testing.T) {
	t.Parallel()
	s := newStore(t, newPool(t), pgstore.Config{Poll: -1})
	l, err := dipwell.New(s, dipwell.Limit{Name: "a", Algorithm: dipwell.FixedWindow, Rate: 5, Period: 24 * time.Hour, MaxDebt: 100})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := l.SetOverride(ctx, "a", dipwell.Override{Key: "k", Start: "0s"}); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		if d, err := l.Reserve(ctx, "a", "k", 4); err != nil || !d.Allowed || (d.Delay > 0) != (i > 0) {
			t.Errorf("reserve %d: %+v, %v", i, d, err)
		}
	}
}

// TestStartOverFirstCall gives a key windows of a grid in place of those that begin with a call:
// what is used comes back at the first boundary after that, not at one since its window began.
func TestStartOverFirstCall(t *testing.T) {
	t.Parallel()
	now := int64(1_767_225_603_000_000) // 3 s after a boundary of the grid
	s := newStore(t, newPool(t), pgstore.Config{Poll: -1, Clock: func() int64 { return atomic.LoadInt64(&now) }})
	l, err := dipwell.New(s, dipwell.Limit{Name: "a", Algorithm: dipwell.Interval, Rate: 2, Period: 6 * time.Second, Burst: 50, Start: "first_call"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	if _, err := l.Take(ctx, "a", "k", 2); err != nil {
		t.Fatal(err)
	}
	atomic.AddInt64(&now, 4_000_000) // beyond the next one
	if _, err := l.SetOverride(ctx, "a", dipwell.Override{Key: "k", Start: "0s"}); err != nil {
		t.Fatal(err)
	}
	if d, err := l.Check(ctx, "a", "k", 0); err != nil || d.Remaining != 48 || d.ResetAfter != 5*time.Second {
		t.Errorf("%+v, %v", d, err)
	}
}
