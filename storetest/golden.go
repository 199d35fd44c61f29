package storetest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/dipwell/dipwell/internal/limittest"
	"github.com/dipwell/dipwell/internal/period"
	"github.com/dipwell/dipwell/store"
	"github.com/dipwell/dipwell/testdata/golden"
)

// goldenCases replay the golden vectors on the store. These cases make the vectors' rows by
// calls.
var goldenCases = []testCase{
	{"golden-apply", goldenApply},
	{"golden-carry", goldenCarry},
	{"golden-origin", goldenOrigin},
	{"golden-calendar", goldenCalendar},
}

// goldenRule is a rule in the vectors' JSON form.
type goldenRule struct {
	Unit, Every, Add, Cap, Origin, Burst, Debt, Most int64
	MaxCharge                                        int64 `json:"max_charge"`
	MaxUsed                                          int64 `json:"max_used"`
	Leaky                                            bool
}

func goldenOf(r store.Rule) goldenRule {
	return goldenRule{r.Unit, r.Every, r.Add, r.Cap, r.Origin, r.Burst, r.Debt, r.Most, r.MaxCharge, r.MaxUsed, r.Leaky}
}

// limitOf returns the limit that compiles to a rule.
func (e *env) limitOf(r goldenRule) store.Limit {
	e.Helper()
	for _, l := range golden.Limits {
		if goldenOf(limittest.Definition(l).Rule) == r {
			return l
		}
	}
	e.Fatalf("none of golden.Limits compiles to %+v", r)
	return store.Limit{}
}

// defining is a divisor: one of defining vectors that each define a limit is played, because
// to define a limit is slow in a durable store.
const defining = 3

// vectors calls play with every nth line of the vectors.
func vectors[V any](e *env, file []byte, nth int, play func(line string, v V)) {
	e.Helper()
	n := 0
	for line := range bytes.Lines(file) {
		if n++; n%nth != 0 {
			continue
		}
		var v V
		if err := json.Unmarshal(line, &v); err != nil {
			e.Fatal(err)
		}
		play(fmt.Sprintf("line %d: %s", n, line), v)
	}
}

// apply calls the store directly, not through the limiter.
func (e *env) apply(what string, verb store.Verb, d *store.Definition, key string, cost int64) store.Answer {
	e.Helper()
	var id store.Reservation
	binary.BigEndian.PutUint64(id[:], rand.Uint64()|1)
	b := store.Batch{Groups: []store.Group{{ID: id, Ops: []store.Op{{Def: d, Key: key, Verb: verb, Cost: cost}}}}}
	if err := e.store.Apply(e.ctx, &b); err != nil || b.Groups[0].Err != nil {
		e.Fatalf("%s of %d: %v, %v\n%s", verb, cost, err, b.Groups[0].Err, what)
	}
	return b.Groups[0].Ops[0].Answer
}

// steps are calls that make a row with a given used and ts: k tokens are taken
// some ticks before ts, and some are charged or refunded at ts.
type steps struct {
	k, ticks int64
	last     store.Verb
}

// stepsTo finds calls after which the row has used units in use.
func stepsTo(r *store.Rule, used int64) (s steps, found bool) {
	pre := used - r.Unit
	if s.last = store.VerbCharge; pre < 0 {
		s.last, pre = store.VerbRefund, used+r.Unit
	}
	if s.k = pre / r.Unit; pre%r.Unit > 0 { // k units ≡ pre, modulo what a tick gives back
		inverse := new(big.Int).ModInverse(big.NewInt(r.Unit), big.NewInt(r.Add))
		if r.Add == 1 {
			inverse = new(big.Int)
		}
		k := new(big.Int).Mul(inverse, big.NewInt(pre))
		s.k++
		s.k += k.Sub(k, big.NewInt(s.k)).Mod(k, big.NewInt(r.Add)).Int64()
		s.ticks = (s.k*r.Unit - pre) / r.Add
	}
	const charges = 4 // a bound on the number of calls
	return s, s.k*r.Unit <= r.MaxUsed && s.k <= r.Burst+charges*r.MaxCharge
}

// row makes the wanted row by calls. row returns false if no calls make that row.
func (e *env) row(what string, d *store.Definition, key string, used, ts int64) bool {
	e.Helper()
	s, found := stepsTo(&d.Rule, used)
	at := ts - s.ticks*d.Rule.Every
	if !found || at <= 0 { // a missing row has the TS 0
		return false
	}
	e.clock.Store(at)
	if n := min(s.k, d.Rule.Burst); n > 0 { // a Reserve that waits would leave a record
		if a := e.apply(what, store.VerbTake, d, key, n); !a.Allowed {
			e.Fatalf("take %d was refused: %+v\n%s", n, a, what)
		}
		s.k -= n
	}
	for s.k > 0 {
		n := min(s.k, d.Rule.MaxCharge)
		e.apply(what, store.VerbCharge, d, key, n)
		s.k -= n
	}
	e.clock.Store(ts)
	e.apply(what, s.last, d, key, 1)
	return true
}

// reads fails unless a check at now is answered as for a row with used and ts.
func (e *env) reads(what string, d *store.Definition, key string, used, ts, now int64) {
	e.Helper()
	e.clock.Store(now)
	a := e.apply(what, store.VerbCheck, d, key, 0)
	used = d.Rule.Used(store.State{Used: used, TS: ts}, now)
	if at := max(now, ts); d.Rule.BeginsWithCall() {
		ts += (at - ts) / d.Rule.Every * d.Rule.Every
	} else {
		ts = at
	}
	if remaining, reset := d.Rule.Remaining(used, max(now, ts)), d.Rule.TimeToFull(used, ts, now); a.Remaining != remaining || a.Reset != reset {
		e.Fatalf("check: %d remaining, full in %d µs; want %d, %d\n%s", a.Remaining, a.Reset, remaining, reset, what)
	}
}

type goldenStep struct {
	Rule                goldenRule
	Used, TS, Now, Cost int64
	Verb                string
	Want                struct {
		Allowed, Never                                    bool
		Granted, Used, TS, Retry, Delay, Remaining, Reset int64
	}
}

func (v *goldenStep) verb() store.Verb {
	verb := store.VerbTake
	for verb.String() != v.Verb {
		verb++
	}
	return verb
}

func goldenApply(e *env) {
	defs, played, all := map[string]*store.Definition{}, map[string]int{}, 0
	vectors(e, golden.Apply, e.vectors, func(line string, v goldenStep) {
		l := e.limitOf(v.Rule)
		d := defs[l.Name]
		if d == nil {
			d = e.define(l)
			defs[l.Name] = d
		}
		all++
		key := fmt.Sprint(all)
		if v.Verb == "charge" && v.Cost > d.Rule.MaxCharge {
			return // the limiter and the SQL functions reject it
		}
		if v.Used == 0 && v.Now < max(v.TS, 0) || v.Used > 0 && !e.row(line, d, key, v.Used, v.TS) {
			return // the store may have deleted a full row and its TS, or too many calls are needed
		}
		played[l.Name]++
		e.clock.Store(v.Now)
		a, w := e.apply(line, v.verb(), d, key, v.Cost), v.Want
		if a.Allowed != w.Allowed || a.Never != w.Never || a.Granted != w.Granted || a.Retry != w.Retry || a.Delay != w.Delay || a.Remaining != w.Remaining || a.Reset != w.Reset {
			e.Fatalf("answer %+v, want %+v\n%s", a, w, line)
		}
		e.reads(line, d, key, w.Used, w.TS, max(v.Now, w.TS)+d.Rule.Every)
	})
	sum := 0
	for _, n := range played {
		sum += n
	}
	e.Logf("%d of %d vectors: %v", sum, all, played)
	if len(played) != len(golden.Limits) || sum*2 < all {
		e.Errorf("only %d of %d vectors were played, on %d of %d limits", sum, all, len(played), len(golden.Limits))
	}
}

type goldenChange struct {
	Versions []struct {
		Rule   goldenRule
		Since  int64
		Policy string
	}
	Used, TS int64
	Version  int
	WantUsed int64 `json:"want_used"`
	WantTS   int64 `json:"want_ts"`
}

// limits returns a limit for each version of a vector. limits returns false if
// two successive versions have equal rules, which would be one version.
func (v *goldenChange) limits(e *env) (list []store.Limit, differ bool) {
	for i, x := range v.Versions {
		l := e.limitOf(x.Rule)
		for l.OnChange.String() != x.Policy {
			l.OnChange++
		}
		if list = append(list, l); i > 0 && x.Rule == v.Versions[i-1].Rule {
			return nil, false
		}
	}
	return list, true
}

func goldenCarry(e *env) {
	played, all := 0, 0
	vectors(e, golden.Carry, e.vectors*defining, func(line string, v goldenChange) {
		all++
		limits, differ := v.limits(e)
		if !differ {
			return
		}
		if _, found := stepsTo(&limittest.Definition(limits[v.Version-1]).Rule, v.Used); !found || v.Used == 0 {
			return
		}
		var d *store.Definition
		for i, l := range limits {
			l.Name = "carry"
			e.clock.Store(v.Versions[i].Since)
			if d = e.define(l); i == v.Version-1 {
				e.row(line, d, "k", v.Used, v.TS)
			}
		}
		e.reads(line, d, "k", v.WantUsed, v.WantTS, v.WantTS)
		e.drop("carry")
		played++
	})
	if e.Logf("%d of %d vectors", played, all); played*3 < all {
		e.Errorf("only %d of %d vectors were played", played, all)
	}
}

type goldenWindow struct {
	line, Name, Key string
	Period, Origin  int64
}

func goldenOrigin(e *env) {
	var all []goldenWindow
	vectors(e, golden.Origin, e.vectors*defining, func(line string, v goldenWindow) {
		v.line = line
		all = append(all, v)
	})
	slices.SortStableFunc(all, func(a, b goldenWindow) int { // so that each limit is defined once
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Period, b.Period))
	})
	var d *store.Definition
	for _, v := range all {
		if d == nil || d.Name != v.Name || d.Period.Microseconds() != v.Period {
			if e.l.Limit(v.Name) != nil {
				e.drop(v.Name)
			}
			d = e.define(store.Limit{Name: v.Name, Algorithm: store.FixedWindow, Rate: 1, Period: time.Duration(v.Period) * time.Microsecond})
		}
		a := e.apply(v.line, store.VerbTake, d, v.Key, 1)
		if ends := e.clock.Load() + a.Reset; (ends-v.Origin)%v.Period != 0 || a.Reset <= 0 || a.Reset > v.Period {
			e.Fatalf("the window ends in %d µs\n%s", a.Reset, v.line)
		}
	}
}

func goldenCalendar(e *env) {
	type vector struct {
		Per, Start    string
		Now, From, To int64
	}
	defs, n := map[string]*store.Definition{}, 0
	vectors(e, golden.Calendar, e.vectors*defining, func(line string, v vector) {
		period, err := period.Parse(v.Per)
		e.must(nil, err)
		d := defs[v.Per+v.Start]
		if d == nil {
			d = e.define(store.Limit{Name: fmt.Sprint("calendar", len(defs)), Algorithm: store.FixedWindow, Rate: 1, Period: period, Start: v.Start})
			defs[v.Per+v.Start] = d
		}
		n++
		take := func(key string, at int64) store.Answer {
			e.clock.Store(at)
			return e.apply(line, store.VerbTake, d, fmt.Sprint(key, n), 1)
		}
		take("before", v.From-1)
		take("in", v.From)
		if a := take("before", v.Now); !a.Allowed || a.Reset != v.To-v.Now {
			e.Fatalf("second take, in the next window: %+v\n%s", a, line)
		}
		if a := take("in", v.Now); v.Now > v.From && (a.Allowed || a.Retry != v.To-v.Now) {
			e.Fatalf("second take in the same window: %+v\n%s", a, line)
		}
	})
}
