package gen

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/internal/sqlexpr"
	"github.com/dipwell/dipwell/pgstore"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/testdata/golden"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(run(func() int { return redistest.Main(m) })))
}

type run func() int

func (r run) Run() int { return r() }

// both is a function in Go and its builder of SQL.
type both struct{ inGo, inSQL any }

var all = map[string]both{
	"enoughTicks":    {algebra.EnoughTicks, sqlexpr.EnoughTicks},
	"tickOf":         {algebra.TickOf, sqlexpr.TickOf},
	"ticksSince":     {algebra.TicksSince, sqlexpr.TicksSince},
	"ticksUpTo":      {algebra.TicksUpTo, sqlexpr.TicksUpTo},
	"ticksBetween":   {algebra.TicksBetween, sqlexpr.TicksBetween},
	"ticksSinceOnce": {algebra.TicksSinceOnce, sqlexpr.TicksSinceOnce},
	"returned":       {algebra.Returned, sqlexpr.Returned},
	"leftAfter":      {algebra.LeftAfter, sqlexpr.LeftAfter},
	"usedAt":         {algebra.UsedAt, sqlexpr.UsedAt},
	"fullAfter":      {algebra.FullAfter, sqlexpr.FullAfter},
	"unitsOf":        {algebra.UnitsOf, sqlexpr.UnitsOf},
	"pricedUnits":    {algebra.PricedUnits, sqlexpr.PricedUnits},
	"roomBefore":     {algebra.RoomBefore, sqlexpr.RoomBefore},
	"pieces":         {algebra.Pieces, sqlexpr.Pieces},
	"excess":         {algebra.Excess, sqlexpr.Excess},
	"fits":           {algebra.Fits, sqlexpr.Fits},
	"fitsAfter":      {algebra.FitsAfter, sqlexpr.FitsAfter},
	"fitsWithin":     {algebra.FitsWithin, sqlexpr.FitsWithin},
	"roomFor":        {algebra.RoomFor, sqlexpr.RoomFor},
	"wholeTokens":    {algebra.WholeTokens, sqlexpr.WholeTokens},
	"charged":        {algebra.Charged, sqlexpr.Charged},
	"clipped":        {algebra.Clipped, sqlexpr.Clipped},
	"refunded":       {algebra.Refunded, sqlexpr.Refunded},
	"decide":         {algebra.Decide, sqlexpr.Decide},
	"decideTake":     {algebra.DecideTake, sqlexpr.DecideTake},
	"decideUpTo":     {algebra.DecideUpTo, sqlexpr.DecideUpTo},
	"decideAnyway":   {algebra.DecideAnyway, sqlexpr.DecideAnyway},
	"ticksFor":       {algebra.TicksFor, sqlexpr.TicksFor},
	"dueAt":          {algebra.DueAt, sqlexpr.DueAt},
	"lastTick":       {algebra.LastTick, sqlexpr.LastTick},
	"comeBack":       {algebra.ComeBack, sqlexpr.ComeBack},
	"wait":           {algebra.Wait, sqlexpr.Wait},
	"fullIn":         {algebra.FullIn, sqlexpr.FullIn},
	"tokensLeft":     {algebra.TokensLeft, sqlexpr.TokensLeft},
	"soonest":        {algebra.Soonest, sqlexpr.Soonest},
	"slackOf":        {algebra.SlackOf, sqlexpr.SlackOf},
	"convertUsed":    {algebra.ConvertUsed, sqlexpr.ConvertUsed},
	"convertBack":    {algebra.ConvertBack, sqlexpr.ConvertBack},
	"later":          {algebra.Later, sqlexpr.Later},
	"dueIn":          {algebra.DueIn, sqlexpr.DueIn},
	"dueBy":          {algebra.DueBy, sqlexpr.DueBy},
	"isNone":         {algebra.IsNone, sqlexpr.IsNone},
	"lesser":         {algebra.Lesser, sqlexpr.Lesser},
	"added":          {algebra.Added, sqlexpr.Added},
	"without":        {algebra.Without, sqlexpr.Without},
	"lowers":         {algebra.Lowers, sqlexpr.Lowers},
	"joins":          {algebra.Joins, sqlexpr.Joins},
	"covers":         {algebra.Covers, sqlexpr.Covers},
	"tooMany":        {algebra.TooMany, sqlexpr.TooMany},
	"closer":         {algebra.Closer, sqlexpr.Closer},
	"restGoes":       {algebra.RestGoes, sqlexpr.RestGoes},
}

// notInLua are functions that only the database evaluates: Lua has no product
// of 106 bits, and a grid exceeds its doubles.
var notInLua = map[string]bool{"convertUsed": true, "convertBack": true, "ticksSinceOnce": true, "pricedUnits": true, "decide": true, "decideTake": true}

func loaded(t *testing.T) *Package {
	t.Helper()
	p, err := Load("../../store", "step.go")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// numbers draws arguments that can occur together.
type numbers struct {
	*rand.Rand
	rules []store.Rule
}

func newNumbers(seed uint64) *numbers {
	n := &numbers{Rand: rand.New(rand.NewPCG(seed, seed))}
	for _, l := range golden.Limits {
		n.rules = append(n.rules, limittest.Definition(l).Rule)
	}
	for len(n.rules) < 60 {
		l := store.Limit{Name: "any", Algorithm: store.Algorithm(n.IntN(4)), Rate: 1 + n.Int64N(1<<n.IntN(53)), Period: 1e3 << n.IntN(43), Burst: n.Int64N(1 << n.IntN(53))}
		if l.Algorithm == store.LeakyBucket {
			l.Burst = 0
		}
		if d, err := store.NewDefinition(l); err == nil {
			n.rules = append(n.rules, d.Rule)
		}
	}
	return n
}

func (n *numbers) near(x int64) int64 { return min(max(x+n.Int64N(5)-2, 0), store.MaxInt) }

func (n *numbers) one(of ...int64) int64 { return of[n.IntN(len(of))] }

// draw returns arguments for a function, by the names of its parameters. With
// grid the origin is one of SQL's.
func (n *numbers) draw(f *Func, grid bool) []int64 {
	r, next := n.rules[n.IntN(len(n.rules))], n.rules[n.IntN(len(n.rules))]
	for (f.Name == "fitsWithin" || f.Name == "roomFor") && r.Add > 256 { // see pgstore's ticksNeedNoClamp
		r = n.rules[n.IntN(len(n.rules))]
	}
	enough := algebra.EnoughTicks(r.MaxUsed, r.Add)
	used := min(n.one(0, n.near(r.Unit), r.Cap, n.near(r.Cap), n.near(r.Cap-r.Unit), n.near(r.Cap+r.Debt), n.Int64N(r.Cap+r.Debt+1), r.MaxUsed), r.MaxUsed)
	cost := min(n.one(0, 1, 2, n.near(r.Burst), n.near(r.Most), 1+n.Int64N(r.Burst+1), store.MaxInt, store.MaxInt-1), store.MaxInt)
	units := algebra.UnitsOf(cost, r.Unit)
	switch f.Name {
	case "wait", "ticksFor", "comeBack", "soonest": // for units that can come back
		units = min(units, r.MaxUsed)
	case "fitsAfter", "fitsWithin", "roomFor":
		units = min(units, r.Cap)
		used = min(used, store.MaxInt-r.Add)
	case "wholeTokens", "decideUpTo":
		used = max(min(used, r.Cap-r.Unit), 0)
	}
	origin := n.Int64N(r.Every)
	if grid {
		origin -= r.Every * ((store.MaxInt+1)/r.Every + 1)
	}
	ts := 1767225600e6 + n.Int64N(200e6)
	now := ts + n.one(0, n.near(r.Every), n.Int64N(min(used/r.Add+1, store.MaxInt/r.Every/4)*r.Every+1), -1-n.Int64N(1e9), n.Int64N(2e6))
	if n.IntN(12) == 0 {
		ts, now = n.Int64N(20e6), -n.Int64N(30e6)
	}
	ticks := n.one(0, 1, n.near(enough), n.Int64N(enough+1), store.MaxInt)
	if f.Name == "dueAt" {
		ticks = min(ticks, enough)
	}
	low, record := n.Int64N(r.MaxUsed+1), n.Int64N(1e6)
	values := map[string]int64{
		"low": low, "next": n.near(low), "before": n.Int64N(low + 1), "other": n.near(low), "otherBefore": n.near(used),
		"first": n.near(record), "number": n.near(record), "last": record, "entries": n.near(store.MaxLows),
		"given": n.one(0, units, n.Int64N(units+1)), "more": used, "at": n.near(max(now, 0)), "delay": n.Int64N(1e12), "a": n.near(max(ts, 0)), "b": now,
		"used": used, "cost": cost, "tokens": cost, "parts": n.one(0, 1, 1023, n.Int64N(1024)), "units": units, "ts": ts, "now": now, "t": max(ts, now), "x": now, "origin": origin,
		"ticks": ticks, "enough": enough, "unit": r.Unit, "every": r.Every, "add": r.Add, "bound": r.Cap, "debt": r.Debt,
		"maxCharge": r.MaxCharge, "maxUsed": r.MaxUsed, "verb": n.Int64N(7), "room": algebra.RoomFor(units, r.Cap, r.Add),
		"after": n.one(used, used+min(units, store.MaxInt-used), 0), "leaky": n.Int64N(2), "startOver": n.Int64N(2), "fraction": n.Int64N(2), "up": n.Int64N(2),
		"fromUnit": r.Unit, "fromCap": r.Cap, "toUnit": next.Unit, "toCap": next.Cap, "toMax": next.MaxUsed, "most": 1 + n.Int64N(100),
	}
	if f.Name == "pieces" { // some of which may be zero
		values["units"], values["used"] = max(units, 1), min(used, r.Cap)
	}
	if f.Name == "pricedUnits" { // most is a bucket's cap
		values["parts"], values["most"] = max(values["parts"], 1), r.Cap
	}
	if f.Name == "decideAnyway" {
		values["verb"] = 4 + n.Int64N(3)
	}
	var args []int64
	for _, p := range f.Params {
		v, ok := values[p.Name()]
		if !ok {
			panic("no value for " + p.Name() + " of " + f.Name)
		}
		args = append(args, v)
	}
	return args
}

// want returns the results of a function in Go as one text.
func want(f *Func, args []int64) string {
	in := make([]reflect.Value, len(args))
	for i, a := range args {
		in[i] = reflect.ValueOf(a)
		if isBool(f.Params[i]) {
			in[i] = reflect.ValueOf(a == 1)
		}
	}
	var words []string
	for _, v := range reflect.ValueOf(all[f.Name].inGo).Call(in) {
		words = append(words, fmt.Sprint(v.Interface()))
	}
	return strings.Join(words, " ")
}

// builds calls a builder of SQL.
func builds(f *Func, args []sqlexpr.Expr) (out []sqlexpr.Expr) {
	in := make([]reflect.Value, len(args))
	for i, a := range args {
		in[i] = reflect.ValueOf(a)
	}
	for _, v := range reflect.ValueOf(all[f.Name].inSQL).Call(in) {
		out = append(out, v.Interface().(sqlexpr.Expr))
	}
	return out
}

const samples = 250

// TestEveryFunctionIsCompared fails if a function of step.go has no line in
// all.
func TestEveryFunctionIsCompared(t *testing.T) {
	p := loaded(t)
	for _, f := range p.Funcs {
		if all[f.Name].inGo == nil {
			t.Errorf("%s is not compared", f.Name)
		}
	}
	if len(p.Funcs) != len(all) {
		t.Errorf("%d functions, and %d are compared", len(p.Funcs), len(all))
	}
}

func migrated(dsn string) error {
	pool, err := pgxpool.New(context.Background(), dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	_, err = pgstore.Migrate(context.Background(), pool, pgstore.MigrateOptions{})
	return err
}

func connect(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), pgtest.Database(t, "gen", migrated))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TestSQLIsGo checks that expressions, with both columns and constants as
// operands, have the same results in PostgreSQL as the functions in Go.
func TestSQLIsGo(t *testing.T) {
	pool, p := connect(t), loaded(t)
	for _, f := range p.Funcs {
		t.Run(f.Name, func(t *testing.T) {
			t.Parallel()
			n := newNumbers(1)
			for _, grid := range []bool{true, false} {
				if f.Name == "ticksSinceOnce" && !grid {
					continue
				}
				var rows, wants []string
				for range samples {
					args := n.draw(f, grid)
					wants = append(wants, want(f, args))
					rows = append(rows, "select "+n.sqlOf(f, args, grid))
				}
				compareSQL(t, pool, strings.Join(rows, " union all\n"), rows, wants)
			}
		})
	}
}

// sqlOf returns SQL for a function's results as one text.
func (n *numbers) sqlOf(f *Func, args []int64, grid bool) string {
	exprs, columns := make([]sqlexpr.Expr, len(args)), make([]string, len(args))
	for i, a := range args {
		name := "c" + strconv.Itoa(i)
		exprs[i], columns[i] = sqlexpr.Op("v."+name), fmt.Sprintf("%d::bigint as %s", a, name)
		constant := sqlexpr.Int(a)
		if isBool(f.Params[i]) {
			columns[i], constant = fmt.Sprintf("%t as %s", a == 1, name), sqlexpr.Bool(a == 1)
		}
		if n.IntN(3) == 0 {
			exprs[i] = constant
		}
	}
	var words []string
	for _, e := range builds(f, exprs) {
		text := e.String()
		if !grid {
			text = e.Floor()
		}
		words = append(words, "("+text+")::text")
	}
	return fmt.Sprintf("concat_ws(' ', %s) from (select %s) v", strings.Join(words, ", "), strings.Join(columns, ", "))
}

func compareSQL(t *testing.T, pool *pgxpool.Pool, query string, rows, wants []string) {
	t.Helper()
	found, err := pool.Query(context.Background(), query)
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	i := 0
	for ; found.Next(); i++ {
		var got string
		if err := found.Scan(&got); err != nil {
			t.Fatal(err)
		}
		if got != wants[i] {
			t.Errorf("%s, not %s: %s", got, wants[i], rows[i])
			return
		}
	}
	if found.Err() != nil || i != len(wants) {
		t.Fatalf("%d rows of %d: %v", i, len(wants), found.Err())
	}
}

// TestPLpgSQLIsGo checks the functions as PL/pgSQL statements.
func TestPLpgSQLIsGo(t *testing.T) {
	pool, p := connect(t), loaded(t)
	for _, f := range p.Funcs {
		t.Run(f.Name, func(t *testing.T) {
			var params, args []string
			var operands []any
			for _, v := range f.Params {
				params, operands = append(params, "p_"+v.Name()+" "+typeOf(isBool(v))), append(operands, "p_"+v.Name())
			}
			for _, v := range f.Results {
				params, args = append(params, "out "+resultOf(f, v.Name())+" "+typeOf(isBool(v))), append(args, "("+resultOf(f, v.Name())+")::text")
				operands = append(operands, resultOf(f, v.Name()))
			}
			body, err := p.inline(plpgsql, 4, f.Name, operands)
			if err != nil {
				t.Fatal(err)
			}
			create := fmt.Sprintf("create function public.%s(%s) language plpgsql as $$\nbegin\n    %s\nend $$", f.Name, strings.Join(params, ", "), body)
			if _, err := pool.Exec(context.Background(), create); err != nil {
				t.Fatalf("%v\n%s", err, create)
			}
			n := newNumbers(2)
			var rows, wants []string
			for range samples {
				drawn := n.draw(f, true)
				wants = append(wants, want(f, drawn))
				var in []string
				for i, a := range drawn {
					if isBool(f.Params[i]) {
						in = append(in, strconv.FormatBool(a == 1))
					} else {
						in = append(in, strconv.FormatInt(a, 10)+"::bigint")
					}
				}
				rows = append(rows, fmt.Sprintf("select concat_ws(' ', %s) from public.%s(%s) r(%s)", strings.Join(args, ", "), f.Name, strings.Join(in, ", "), strings.Join(resultNames(f), ", ")))
			}
			compareSQL(t, pool, strings.Join(rows, " union all\n"), rows, wants)
		})
	}
}

func typeOf(isBool bool) string {
	if isBool {
		return "boolean"
	}
	return "bigint"
}

func resultOf(f *Func, name string) string {
	if name == "" {
		return "result"
	}
	return name
}

func resultNames(f *Func) (list []string) {
	for _, v := range f.Results {
		list = append(list, resultOf(f, v.Name()))
	}
	return list
}

// TestLuaIsGo checks the functions in Redis, as expressions and as statements.
func TestLuaIsGo(t *testing.T) {
	db, p := redistest.Start(t), loaded(t)
	for _, f := range p.Funcs {
		if notInLua[f.Name] {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			n := newNumbers(3)
			for _, script := range luaOf(t, p, f) {
				var drawn [][]int64
				words := []any{"eval", script, 0}
				for range samples {
					args := n.draw(f, false)
					drawn = append(drawn, args)
					for _, a := range args {
						words = append(words, a)
					}
				}
				reply, err := db.Do(words...)
				if err != nil {
					t.Fatalf("%v\n%s", err, script)
				}
				for i, got := range reply.([]any) {
					if w := want(f, drawn[i]); got != w && !beyond(w) {
						t.Fatalf("%v, not %s, of %d\n%s", got, w, drawn[i], script)
					}
				}
			}
		})
	}
}

// beyond reports whether a result is one that Lua rounds and that is only
// compared.
func beyond(result string) bool {
	n, err := strconv.ParseInt(result, 10, 64)
	return err == nil && n > store.MaxInt
}

func luaOf(t *testing.T, p *Package, f *Func) []string {
	t.Helper()
	head := "local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max\n" +
		"local function text(x) if type(x) == 'boolean' then return tostring(x) end return string.format('%.0f', x) end\n" +
		fmt.Sprintf("local reply = {}\nfor at = 0, #ARGV - 1, %d do\n", len(f.Params))
	var operands []any
	for i, v := range f.Params {
		if isBool(v) {
			head += fmt.Sprintf("local p_%s = ARGV[at + %d] == '1'\n", v.Name(), i+1)
		} else {
			head += fmt.Sprintf("local p_%s = tonumber(ARGV[at + %d])\n", v.Name(), i+1)
		}
		operands = append(operands, "p_"+v.Name())
	}
	in, err := asOperands(operands)
	if err != nil {
		t.Fatal(err)
	}
	exprs, err := f.SQL(in...)
	if err != nil {
		t.Fatal(err)
	}
	var values, names []string
	for i, e := range exprs {
		values = append(values, "text("+e.Text(lua.style)+")")
		name := resultOf(f, f.Results[i].Name())
		names, operands = append(names, name), append(operands, name)
	}
	body, err := p.inline(lua, 0, f.Name, operands)
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		head + "reply[#reply + 1] = " + strings.Join(values, " .. ' ' .. ") + "\nend\nreturn reply",
		head + "local " + strings.Join(names, ", ") + "\n" + body + "\nreply[#reply + 1] = text(" + strings.Join(names, ") .. ' ' .. text(") + ")\nend\nreturn reply",
	}
}
