package pgstore_test

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"pgregory.net/rapid"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
)

// TestDefineWarns checks that dipwell.define warns of limits that cannot reach their rate,
// as Define in Go does.
func TestDefineWarns(t *testing.T) {
	t.Parallel()
	config := newPool(t).Config().ConnConfig.Copy()
	var warned []string
	config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { warned = append(warned, n.Severity+" "+n.Message) }
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for text, warns := range map[string]bool{
		"login=5/1m,burst=20": false, "login=1/1s": false, "login=3/1s,burst=1": true, "login=300000/1s,burst=1": true, "login=999983/30d,burst=1": true, "login=7/1m,burst=0,max_debt=3": false,
		"login=10/1d,burst=4,algorithm=fixed_window,start=0s": true, "login=10/1mo,burst=1,algorithm=fixed_window": true, "login=2/7s,burst=2,algorithm=interval": false,
		"login=30/1d,burst=7,algorithm=interval,start=06:00 Europe/Rome": true, "login=3,algorithm=concurrency": false, "login=7/1s,algorithm=leaky_bucket": true,
	} {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		d, err := store.NewDefinition(l)
		if err != nil {
			t.Fatal(err)
		}
		var args []string
		for _, s := range l.Explicit() {
			args = append(args, s[0]+" => "+sqlArgument(s[0], s[1]))
		}
		warned = nil
		if _, err = conn.Exec(t.Context(), "select dipwell.define("+strings.Join(args, ", ")+")"); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var want []string
		if d.Warning != "" {
			want = []string{"WARNING " + d.Warning}
		}
		if !slices.Equal(warned, want) || warns != (len(want) > 0) {
			t.Errorf("%s: %q; want %q", text, warned, want)
		}
		if _, err = conn.Exec(t.Context(), "select dipwell.drop('login')"); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDefinedInSQL defines limits by dipwell.define, with each of its arguments, and has
// a new program read them: it must know them as if it had defined them, with the same
// rule. To define one again changes nothing.
func TestDefinedInSQL(t *testing.T) {
	pool := newPool(t)
	var untried []string
	err := pool.QueryRow(t.Context(), "select proargnames from pg_proc where oid = 'dipwell.define'::regproc").Scan(&untried)
	if err != nil {
		t.Fatal(err)
	}
	must(t, pool, "select dipwell.define('above', 1, interval '1 hour'), dipwell.define('all slots', burst => 9, algorithm => 'concurrency')")
	check := func(rt *rapid.T) {
		l := drawLimit(rt)
		d, err := store.NewDefinition(l)
		if err != nil {
			rt.Skip(err)
		}
		var args []string
		for _, s := range l.Explicit() {
			args = append(args, s[0]+" => "+sqlArgument(s[0], s[1]))
			untried = slices.DeleteFunc(untried, func(name string) bool { return name == s[0] })
		}
		call := fmt.Sprintf("select dipwell.define(%s)", strings.Join(args, ", "))
		for range 2 {
			if _, err = pool.Exec(t.Context(), call); err == nil {
				err = checkKnown(t, pool, d)
			}
			if err != nil {
				rt.Fatalf("%s: %v", call, err)
			}
		}
		must(t, pool, "select dipwell.drop('login')")
	}
	seed := flag.Lookup("rapid.seed").Value
	before := seed.String()
	defer func() { _ = seed.Set(before) }()
	for rounds := 0; rounds == 0 || len(untried) > 0 && rounds < 50 && !t.Failed(); rounds++ { // one may not draw each argument
		rapid.Check(t, check)
		if n, err := strconv.ParseUint(seed.String(), 0, 64); err == nil && n != 0 { // with a fixed seed the next round would draw the same
			_ = seed.Set(strconv.FormatUint(n+1, 10))
		}
	}
	if len(untried) > 0 {
		t.Errorf("arguments of dipwell.define that no limit had: %v", untried)
	}
}

func drawLimit(t *rapid.T) store.Limit {
	l := store.Limit{
		Name:        "login",
		Algorithm:   store.Algorithm(rapid.IntRange(0, 4).Draw(t, "algorithm")),
		OnChange:    store.ChangePolicy(rapid.IntRange(0, 2).Draw(t, "on_change")),
		Mode:        store.Mode(rapid.IntRange(0, 3).Draw(t, "mode")),
		Burst:       rapid.Int64Range(1, 500).Draw(t, "burst"),
		KeepExpired: rapid.Bool().Draw(t, "on_expire"),
	}
	some := func(what string) bool { return rapid.IntRange(0, 2).Draw(t, what) == 0 }
	if l.Algorithm != store.Concurrency {
		l.Rate = rapid.Int64Range(1, 100).Draw(t, "rate")
		l.Period = rapid.SampledFrom([]time.Duration{time.Second, time.Minute, 90 * time.Minute, 24 * time.Hour, store.Month, 12 * store.Month}).Draw(t, "per")
	}
	if some("debt") {
		l.MaxDebt = rapid.SampledFrom([]int64{store.NoDebt, store.UnlimitedDebt, 7}).Draw(t, "max_debt")
	}
	if some("grid") {
		l.Start = rapid.SampledFrom([]string{"0s", "1h30m", "06:00 Europe/Rome", "first_call"}).Draw(t, "start")
	}
	if some("plans") {
		l.Plans = store.NewPlans(store.Plan{Name: "pro", Burst: 1000}, store.Plan{Name: "free", Mode: store.Shadow}, store.Plan{Name: "vip", Mode: store.Unlimited})
	}
	l.Usage = some("usage")
	if some("ttl") {
		l.TTL = time.Duration(rapid.Int64Range(1, 3600).Draw(t, "seconds")) * time.Second
	}
	switch rapid.IntRange(0, 4).Draw(t, "kind") {
	case 0:
		l.Parent = "above"
		if l.Algorithm == store.Concurrency {
			l.Parent = "all slots"
		}
	case 1:
		if l.Shared = rapid.Bool().Draw(t, "shared"); !l.Shared {
			l.Parts = rapid.Int64Range(1, 16).Draw(t, "parts")
		}
	case 2:
		l.Shards, l.MaxDebt = rapid.Int64Range(2, 8).Draw(t, "shards"), 0
	case 3:
		l.Block, l.Plans = time.Duration(rapid.Int64Range(1, 3600).Draw(t, "blocked"))*time.Second, store.Plans{}
	}
	if l.Algorithm == store.LeakyBucket || l.Shards > 1 {
		l.TTL, l.KeepExpired = 0, false
	}
	return l
}

// sqlArgument returns a setting as the value of an argument of dipwell.define.
func sqlArgument(name, text string) string {
	switch name {
	case "per", "ttl", "block":
		for suffix, unit := range map[string]string{"mo": " months", "y": " years"} {
			if n, ok := strings.CutSuffix(text, suffix); ok {
				return fmt.Sprintf("interval '%s%s'", n, unit)
			}
		}
		return fmt.Sprintf("interval '%s'", text)
	case "plans":
		return `'{"` + strings.NewReplacer(":", `": {"`, "=", `": "`, ";", `", "`, "|", `"}, "`).Replace(text) + `"}}'`
	case "max_debt":
		if text == "unlimited" {
			return "-1"
		}
	}
	return fmt.Sprintf("'%s'", text)
}

// checkKnown checks that a new program reads a limit that is defined so.
func checkKnown(t *testing.T, pool *pgxpool.Pool, want *store.Definition) error {
	s := newStore(t, pool, pgstore.Config{Poll: -1})
	defer func() { _ = s.Close() }()
	got := s.Registry().Lookup(want.Name)
	if got == nil {
		return errors.New("no program can read it")
	}
	if a, b := fmt.Sprint(got.Explicit()), fmt.Sprint(want.Explicit()); a != b {
		return fmt.Errorf("a program reads %s", a)
	}
	if a, b := ruleText(got.Rule), ruleText(want.Rule); a != b || got.Number != 1 {
		return fmt.Errorf("a program reads version %d, %s; want %s", got.Number, a, b)
	}
	return nil
}

func ruleText(r store.Rule) string {
	spec := r.Calendar.Spec()
	r.Calendar = nil
	return fmt.Sprintf("%+v %+v", r, spec)
}

// TestPlansInSQL writes plans as JSON, most of them wrong. dipwell.define must refuse what Go
// refuses, and keep the others spelled as Go spells them.
func TestPlansInSQL(t *testing.T) {
	pool := newPool(t)
	name := rapid.SampledFrom([]string{"pro", "p1", "p2", "p3", "p4", "free", "a.b-c_9", "p o", "é", strings.Repeat("x", 64), strings.Repeat("x", 65)})
	values := map[string]*rapid.Generator[string]{}
	for field, good := range map[string][]string{
		"rate": {"60", "600"}, "per": {"2s", "60s", "1h30m"}, "burst": {"0", "90"}, "max_debt": {"0", "9", "unlimited"}, "mode": {"shadow", "enforce"}, "callable": {"false", "true", "children"},
		"Rate": {"1"}, "speed": {"1"},
	} {
		values[field] = rapid.OneOf(rapid.SampledFrom(good), rapid.SampledFrom(good), rapid.SampledFrom([]string{"0", "1", "600", "007", "9007199254740991", "9007199254740992", "99999999999999999999", "1.5", "abc", " 5",
			"1s", "0s", "1q", "1mo", "24mo", "0mo", "9999mo", "99999999999999999999mo", "2y", "101y", "106752w", "1 m", "unlimited", "blocked", "shadow", "blokced", "off", "true", "false", "children", "maybe"}))
	}
	field := rapid.OneOf(rapid.SampledFrom([]string{"rate", "per", "burst", "max_debt", "mode", "callable"}), rapid.SampledFrom(slices.Sorted(maps.Keys(values))))
	good := 0
	rapid.Check(t, func(rt *rapid.T) {
		var texts []string
		plans := map[string]map[string]string{}
		for _, n := range rapid.SliceOfNDistinct(name, 1, 3, rapid.ID).Draw(rt, "plans") {
			var settings []string
			plans[n] = map[string]string{}
			for _, f := range rapid.SliceOfNDistinct(field, 0, 3, rapid.ID).Draw(rt, "settings") {
				plans[n][f] = values[f].Draw(rt, f)
				settings = append(settings, f+"="+plans[n][f])
			}
			texts = append(texts, n+":"+strings.Join(settings, ";"))
		}
		text := strings.Join(texts, "|")
		l := store.Limit{Name: "login", Rate: 5, Period: time.Second, Burst: 10, MaxDebt: store.NoDebt}
		want := l.Set("plans", text)
		if want == nil {
			_, want = store.NewDefinition(l)
		}
		must(t, pool, "delete from dipwell.limits")
		_, err := pool.Exec(t.Context(), "select dipwell.define('login', 5, interval '1 second', 10, max_debt => 0, plans => $1)", plans)
		if (err == nil) != (want == nil) || err != nil && !strings.HasPrefix(message(err), "limit login: plans: ") {
			rt.Fatalf("%q: SQL says %v, Go %v", text, err, want)
		}
		if err != nil {
			return
		}
		good++
		var kept string
		if err := pool.QueryRow(t.Context(), "select coalesce(plans, '') from dipwell.limits").Scan(&kept); err != nil || kept != l.Plans.String() {
			rt.Fatalf("%q: SQL keeps %s, Go %s, %v", text, kept, l.Plans, err)
		}
	})
	if good == 0 {
		t.Error("no plans were good")
	}
}

// TestExpiredBeforeChange checks that a change leaves the holds of its limit alone, however
// many have expired, and that a later call gives them back before it converts the row.
func TestExpiredBeforeChange(t *testing.T) {
	t.Parallel()
	pool := newPool(t)
	clock := new(atomic.Int64)
	clock.Store(time.Now().UnixMicro())
	api := store.Limit{Name: "api", Rate: 1, Period: time.Hour, Burst: 10, OnChange: store.Proportional}
	l := limiterOf(t, pool, clock, api)
	must(t, pool, "do $$ begin for i in 1..1003 loop perform dipwell.hold('api', 'k' || i, 3, ttl => interval '1 ms', id => 'h' || i); end loop; end $$")
	clock.Add(60e6)
	api.Burst = 100
	if _, err := l.Define(t.Context(), api, store.OwnerCode); err != nil {
		t.Fatal(err)
	}
	if live := number(t, pool, "select count(*) from dipwell.hold_parts where live"); live != 1003 {
		t.Errorf("%d holds are live after the change", live)
	}
	if d, err := l.Check(t.Context(), "api", "k7", 100); err != nil || !d.Allowed {
		t.Errorf("%+v, %v", d, err)
	}
}

// limiterOf returns a limiter over a store of its own, as of another program.
func limiterOf(t *testing.T, db pgstore.DB, clock *atomic.Int64, limits ...store.Limit) *dipwell.Limiter {
	t.Helper()
	l, err := dipwell.New(newStore(t, db, pgstore.Config{Poll: -1, Clock: clock.Load}), limits...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
