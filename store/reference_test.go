package store_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dipwell/dipwell/store"
)

// This file compares histories of one key, with plans, overrides, new versions and a
// clock that steps back, with a reference in exact rationals. The reference shares no
// arithmetic with the package.

// refLimit is a version of the limit: what decides calls under each name.
type refLimit struct {
	since  int64
	policy store.ChangePolicy
	defs   map[string]refDef // by plan; "" is the base
}

type refDef struct {
	mode        store.Mode
	rate, per   int64 // per in µs
	burst, debt int64
	window      bool
}

func (d refDef) unit() int64 {
	if d.window {
		return 1
	}
	g := new(big.Int).GCD(nil, nil, big.NewInt(d.rate), big.NewInt(d.per)).Int64()
	return d.per / g
}

// refKey is the reference of one key.
type refKey struct {
	used     *big.Rat // tokens at ts
	ts       int64
	version  int    // index into versions
	kind     string // plan, standing or temporary
	versions []refLimit
	over     map[string]*refOverride // by kind
}

type refOverride struct {
	plan  string // or else the numbers
	rate  int64
	burst int64
	until int64
}

const standing, temporary = "override", "override that ends"

// def returns the definition of a kind at a version; of a plan that the version does
// not have it is the base.
func (k *refKey) def(kind string, version int) refDef {
	d := k.settings(kind, version)
	if d.debt < 0 { // one burst
		d.debt = d.burst
	}
	return d
}

func (k *refKey) settings(kind string, version int) refDef {
	l := k.versions[version]
	o := k.over[kind]
	switch {
	case o == nil:
		d, ok := l.defs[kind]
		if !ok {
			d = l.defs[""]
		}
		return d
	case o.plan != "":
		return k.settings(o.plan, version)
	}
	d := l.defs[""]
	if kind == temporary && k.over[standing] != nil {
		d = k.settings(standing, version)
	}
	d.rate, d.burst = cmp.Or(o.rate, d.rate), cmp.Or(o.burst, d.burst)
	return d
}

// decides returns the kind of the override that decides at t, or "".
func (k *refKey) decides(t int64) string {
	switch {
	case k.over[temporary] != nil && t < k.over[temporary].until:
		return temporary
	case k.over[standing] != nil:
		return standing
	}
	return ""
}

// end forgets the temporary override if it has ended at t.
func (k *refKey) end(t int64) {
	if o := k.over[temporary]; o != nil && t >= o.until {
		k.change(temporary, nil)
	}
}

func (k *refKey) change(kind string, o *refOverride) {
	over := map[string]*refOverride{} // the copies of k share what they have
	maps.Copy(over, k.over)
	if over[kind] = o; o == nil {
		delete(over, kind)
	}
	k.over = over
}

// instant returns to when a call steps the row: not before the row, nor before the version
// that it is converted to.
func (k *refKey) instant(now int64) int64 {
	t := max(now, k.ts)
	if last := len(k.versions) - 1; k.used.Sign() > 0 && k.version < last {
		t = max(t, k.versions[last].since)
	}
	return t
}

// after returns what is used at t, if used tokens were at ts.
func (d refDef) after(used *big.Rat, ts, t int64) *big.Rat {
	if t <= ts {
		return used
	}
	back := new(big.Rat).Mul(big.NewRat(d.rate, d.per), new(big.Rat).SetInt64(t-ts))
	if d.window {
		back.SetInt64((floor(t, d.per) - floor(ts, d.per)) * d.rate)
	}
	if back.Cmp(used) >= 0 {
		return new(big.Rat)
	}
	return new(big.Rat).Sub(used, back)
}

func floor(a, b int64) int64 { return new(big.Int).Div(big.NewInt(a), big.NewInt(b)).Int64() }

// convert converts used tokens from one definition to the next, rounded up to a unit.
func convert(used *big.Rat, policy store.ChangePolicy, from, to refDef) *big.Rat {
	out := new(big.Rat).Set(used)
	switch {
	case policy == store.StartOver:
		return new(big.Rat)
	case policy == store.Proportional && from.burst > 0:
		out.Mul(out, big.NewRat(to.burst, from.burst))
	}
	unit := new(big.Rat).SetInt64(to.unit())
	out.Mul(out, unit)
	n := new(big.Int).Add(out.Num(), new(big.Int).Sub(out.Denom(), big.NewInt(1)))
	return out.Quo(out.SetInt(n.Div(n, out.Denom())), unit)
}

// own returns the row at now, in its plan or override at the present version.
func (k *refKey) own(now int64) (used *big.Rat, t int64, kind string) {
	used, t, kind = k.carried(now)
	end := max(now, t)
	return k.def(kind, len(k.versions)-1).after(used, t, end), end, kind
}

// carried is own at the time of the last conversion.
func (k *refKey) carried(now int64) (used *big.Rat, t int64, kind string) {
	if k.used.Sign() == 0 { // no row
		return k.used, now, ""
	}
	used, t, kind = k.used, k.ts, k.kind
	v := k.version
	change := func(to string, version int, policy store.ChangePolicy, at int64) {
		from, next := k.def(kind, v), k.def(to, version)
		if _, ok := k.versions[version].defs[to]; !ok && k.over[to] == nil {
			to = ""
		}
		if from.mode, next.mode = 0, 0; from != next { // the same rule goes on
			at = max(t, at)
			used, t = convert(from.after(used, t, at), policy, from, next), at
		}
		kind, v = to, version
	}
	ended := func() bool { return kind == temporary && k.over[kind].until <= now }
	after := ""
	if k.over[standing] != nil {
		after = standing
	}
	for v < len(k.versions)-1 {
		next := k.versions[v+1]
		if ended() && k.over[kind].until <= next.since {
			change(after, v, store.Keep, k.over[kind].until)
			continue
		}
		policy := next.policy
		if _, ok := next.defs[kind]; !ok && k.over[kind] == nil {
			policy = store.Keep // the plan is gone
		}
		change(kind, v+1, policy, next.since)
	}
	if ended() {
		change(after, v, store.Keep, k.over[kind].until)
	}
	return used, t, kind
}

type refAnswer struct {
	allowed, never, shadow bool
	granted, remaining     int64
	delay                  int64
	bound                  bool // a faster definition than the one that decided keeps the row
}

// call decides a call at now. It writes only if write is set.
// within bounds the delay of a Reserve; -1 does not.
func (k *refKey) call(now int64, verb store.Verb, plan string, n, floorTokens, within int64, write bool) (a refAnswer) {
	used, t, kind := k.own(now)
	last := len(k.versions) - 1
	target := plan
	if verb >= store.VerbCharge && used.Sign() > 0 { // a full row is as none
		target = kind
	}
	target = cmp.Or(k.decides(now), target)
	d := k.def(target, last)
	if d.mode == store.Unlimited || d.mode == store.Blocked && verb != store.VerbCharge && verb != store.VerbRefund {
		if d.mode == store.Unlimited && verb != store.VerbRefund {
			granted := n
			if verb == store.VerbCheck {
				granted = 0
			}
			return refAnswer{allowed: true, granted: granted, remaining: store.MaxInt}
		}
		if d.mode == store.Blocked {
			return refAnswer{never: true, remaining: -1}
		}
	}
	if target != kind {
		if from := k.def(kind, last); from != d {
			end := max(t, k.instant(now))
			used, t = from.after(used, t, end), end
			used = convert(used, store.Keep, from, d)
		}
	}
	tokens := func(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }
	fits := func(n, bound int64) bool { return new(big.Rat).Add(used, tokens(n)).Cmp(tokens(bound)) <= 0 }
	after := used
	switch verb {
	case store.VerbTake, store.VerbCheck:
		a.never = n+floorTokens > d.burst
		if a.allowed = fits(n+floorTokens, d.burst); a.allowed && verb == store.VerbTake {
			a.granted, after = n, new(big.Rat).Add(used, tokens(n))
		}
	case store.VerbTakeUpTo:
		if n == 0 {
			a.allowed = fits(0, d.burst)
			break
		}
		a.never = d.burst < 1
		for a.granted < n && fits(a.granted+1, d.burst) {
			a.granted++
		}
		a.allowed, after = a.granted > 0, new(big.Rat).Add(used, tokens(a.granted))
	case store.VerbReserve:
		most := d.burst
		if n > 0 {
			most += d.debt
		}
		a.never = n > most
		if a.allowed = fits(n, most); a.allowed {
			a.granted, after = n, new(big.Rat).Add(used, tokens(n))
			for !fits(n, d.burst) { // the first instant at which it is covered
				a.delay = d.wait(new(big.Rat).Sub(after, tokens(d.burst)), t, now)
				break
			}
			if within >= 0 && a.delay > within {
				a, after = refAnswer{}, used
			}
		}
		if late := n - d.burst; within >= 0 && late > 0 { // even for a full bucket
			full := refDef{rate: d.rate, per: d.per, window: d.window}
			a.never = a.never || full.wait(tokens(late), d.per-1, d.per-1) > within
		}
	case store.VerbCharge:
		a.allowed, a.granted, after = true, n, new(big.Rat).Add(used, tokens(n))
	case store.VerbRefund:
		a.allowed, after = true, new(big.Rat).Sub(used, tokens(n))
		if after.Sign() < 0 {
			after = new(big.Rat)
		}
	}
	if !a.allowed && d.mode == store.Shadow {
		a.shadow, a.allowed = true, true
		after = used
	}
	free := new(big.Rat).Sub(tokens(d.burst), after)
	if a.remaining = floorRat(free); a.remaining < 0 {
		a.remaining = 0
	}
	if d.mode == store.Unlimited {
		a.remaining = store.MaxInt
	}
	// A refusal moves the row to a faster definition.
	moves := false
	if from := k.def(kind, last); (!a.allowed || a.shadow) && !a.never && target != kind && used.Sign() > 0 {
		moves = big.NewRat(d.rate, d.per).Cmp(big.NewRat(from.rate, from.per)) > 0
		a.bound = !moves
	}
	if write && (after.Cmp(used) != 0 || moves && verb != store.VerbCheck && n > 0) {
		k.set(after, t, target, now)
	}
	return a
}

// set writes the row. A full one is none.
func (k *refKey) set(used *big.Rat, t int64, kind string, now int64) {
	k.used, k.ts, k.version, k.kind = used, t, len(k.versions)-1, kind
	if k.over[kind] != nil && k.decides(now) != kind {
		panic("an override that has ended")
	}
	k.end(now)
	if used.Sign() == 0 {
		k.ts, k.kind = 0, ""
	}
}

// wait returns the time from now until units have come back since t.
func (d refDef) wait(tokens *big.Rat, t, now int64) int64 {
	if d.window {
		n := new(big.Rat).Quo(tokens, new(big.Rat).SetInt64(d.rate))
		return (floor(t, d.per)+ceilRat(n))*d.per - now
	}
	return t + ceilRat(new(big.Rat).Mul(tokens, big.NewRat(d.per, d.rate))) - now
}

func floorRat(r *big.Rat) int64 { return new(big.Int).Div(r.Num(), r.Denom()).Int64() }
func ceilRat(r *big.Rat) int64  { return -floorRat(new(big.Rat).Neg(r)) }

// setOverride sets an override, or ends the one that decides if o is nil.
func (k *refKey) setOverride(o *refOverride, now int64) {
	if o == nil && len(k.over) == 0 {
		return // the row stays as it is
	}
	used, t, kind := k.own(now)
	old := k.def(kind, len(k.versions)-1)
	none := k.used.Sign() == 0
	k.end(now)
	switch {
	case o == nil:
		k.change(k.decides(now), nil)
	case o.until != 0:
		k.change(temporary, o)
	default:
		k.change(standing, o)
	}
	kind = k.decides(now)
	if next := k.def(kind, len(k.versions)-1); !none {
		if next != old {
			used = convert(used, store.Keep, old, next)
		}
		k.used, k.ts, k.version, k.kind = used, t, len(k.versions)-1, kind
		if used.Sign() == 0 {
			k.ts, k.kind = 0, ""
		}
	}
}

func TestPlansReference(t *testing.T) {
	n := uint64(3000)
	if testing.Short() {
		n = 600
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { planHistory(t, rand.New(rand.NewPCG(seed, 13))) })
		if t.Failed() {
			return
		}
	}
}

// drawLimit returns a version of the limit, as a Limit and for the reference.
func drawLimit(rnd *rand.Rand, window bool, per time.Duration) (store.Limit, refLimit) {
	l := store.Limit{Name: "l", Rate: 1 + rnd.Int64N(9), Period: per, Burst: 1 + rnd.Int64N(20), OnChange: store.ChangePolicy(rnd.IntN(3))}
	if window {
		l.Algorithm, l.Start = store.FixedWindow, "0s"
	}
	r := refLimit{policy: l.OnChange, defs: map[string]refDef{}}
	base := refDef{rate: l.Rate, per: per.Microseconds(), burst: l.Burst, debt: -1, window: window}
	r.defs[""] = base
	var plans []store.Plan
	for _, name := range []string{"big", "fast", "free", "none", "seen"} {
		if rnd.IntN(6) == 0 {
			continue
		}
		p, d := store.Plan{Name: name}, base
		switch name {
		case "big":
			p.Burst = 1 + rnd.Int64N(60)
			d.burst = p.Burst
		case "fast":
			p.Rate, p.Burst = 1+rnd.Int64N(50), 1+rnd.Int64N(20)
			d.rate, d.burst = p.Rate, p.Burst
			if !window && rnd.IntN(2) == 0 {
				p.Period = time.Duration(1+rnd.Int64N(20)) * 500 * time.Millisecond
				d.per = p.Period.Microseconds()
			}
		case "free":
			p.Mode = store.Unlimited
			d.mode = p.Mode
		case "none":
			p.Mode = store.Blocked
			d.mode = p.Mode
		case "seen":
			p.Mode, p.MaxDebt = store.Shadow, store.NoDebt
			d.mode, d.debt = p.Mode, 0
		}
		plans = append(plans, p)
		r.defs[name] = d
	}
	l.Plans = store.NewPlans(plans...)
	return l, r
}

type planWorld struct {
	t     *testing.T
	rnd   *rand.Rand
	table *mapTable
	reg   store.Registry
	k     refKey
	now   int64
	log   []string
}

func (w *planWorld) define(window bool, per time.Duration) {
	l, r := drawLimit(w.rnd, window, per)
	d, err := w.reg.Define(w.now, l, store.OwnerCode)
	if err != nil {
		w.t.Fatal(err)
	}
	if r.since = d.Since; int(d.Number) == len(w.k.versions)+1 {
		w.k.versions = append(w.k.versions, r)
	}
	w.logf("%d: define %s (version %d)", w.now, l, d.Number)
}

func (w *planWorld) logf(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *planWorld) errorf(format string, args ...any) {
	w.t.Helper()
	for _, l := range w.log {
		w.t.Log(l)
	}
	w.t.Fatalf(format, args...)
}

func planHistory(t *testing.T, rnd *rand.Rand) {
	w := &planWorld{t: t, rnd: rnd, table: newMapTable(), now: 1e15, k: refKey{used: new(big.Rat)}}
	window := rnd.IntN(4) == 0
	per := time.Duration(1+rnd.Int64N(20)) * 500 * time.Millisecond
	w.define(window, per)
	for range 10 + rnd.IntN(40) {
		if rnd.IntN(3) > 0 {
			w.now += rnd.Int64N(5 * second)
		}
		if rnd.IntN(30) == 0 {
			w.now -= rnd.Int64N(5 * second)
		}
		switch rnd.IntN(16) {
		case 0:
			w.define(window, per)
		case 1, 2:
			w.setOverride()
		case 3:
			w.sweep()
		default:
			w.call()
		}
	}
}

func (w *planWorld) setOverride() {
	d := w.reg.Lookup("l")
	var o *store.Override
	var r *refOverride
	if w.rnd.IntN(4) > 0 {
		o, r = &store.Override{Key: "k"}, &refOverride{}
		plans := d.Plans.All()
		if len(plans) > 0 && w.rnd.IntN(3) > 0 {
			r.plan = plans[w.rnd.IntN(len(plans))].Name
		} else {
			r.rate, r.burst = w.rnd.Int64N(10), 1+w.rnd.Int64N(30)
		}
		if w.rnd.IntN(3) > 0 {
			r.until = w.now + 1 + w.rnd.Int64N(10*second)
		}
		o.Plan, o.Rate, o.Burst, o.Until = r.plan, r.rate, r.burst, r.until
	}
	w.logf("%d: override %+v", w.now, r)
	var err error
	if o != nil {
		_, err = d.SetOverrideIn(w.table, "k", *o, w.now)
	} else {
		_, err = d.EndOverrideIn(w.table, "k", store.AnyOverride, w.now)
	}
	if err != nil {
		w.errorf("%v", err)
	}
	w.k.setOverride(r, w.now)
}

func (w *planWorld) sweep() {
	w.logf("%d: sweep", w.now)
	before := w.table.rows["l/k"]
	before.Override = nil
	gone, err := store.SweepRow(w.table, &w.reg, "l", "k", w.now)
	if err != nil {
		w.errorf("%v", err)
	}
	used, t, kind := w.k.carried(w.now)
	left, _, _ := w.k.own(w.now)
	if w.k.over[temporary] != nil && w.k.decides(w.now) != temporary {
		w.k.used, w.k.ts, w.k.version, w.k.kind = used, t, len(w.k.versions)-1, kind
		w.k.end(w.now)
	}
	if had := before != (store.State{}); gone != (had && left.Sign() == 0) && len(w.k.over) == 0 || gone && left.Sign() > 0 {
		w.errorf("gone %v with %v used", gone, left)
	}
	if row := w.table.rows["l/k"]; row == (store.State{}) {
		w.k.used, w.k.ts, w.k.kind = new(big.Rat), 0, ""
	}
}

func (w *planWorld) call() {
	rnd, d := w.rnd, w.reg.Lookup("l")
	verb := []store.Verb{store.VerbTake, store.VerbTake, store.VerbTake, store.VerbCheck, store.VerbTakeUpTo, store.VerbReserve, store.VerbCharge, store.VerbRefund}[rnd.IntN(8)]
	plan, n, floorTokens := "", rnd.Int64N(25), int64(0)
	if plans := d.Plans.All(); len(plans) > 0 && rnd.IntN(2) == 0 && verb < store.VerbCharge {
		plan = plans[rnd.IntN(len(plans))].Name
	}
	if verb <= store.VerbCheck && rnd.IntN(3) == 0 {
		floorTokens = rnd.Int64N(10)
	}
	if verb == store.VerbCharge {
		n %= 10
	}
	within := int64(-1)
	if verb == store.VerbReserve && rnd.IntN(2) == 0 {
		within = rnd.Int64N(5 * second)
	}
	w.logf("%d: %s %q %d %d %d", w.now, verb, plan, n, floorTokens, within)
	g := &store.Group{Ops: []store.Op{{Def: d.WithPlan(plan), Key: "k", Verb: verb, Cost: n, Floor: floorTokens, Bounded: within >= 0, MaxDelay: max(0, within)}}}
	before := w.k
	if err := g.DecideIn(w.table, &w.reg, w.now); err != nil {
		w.errorf("%v", err)
	}
	want := w.k.call(w.now, verb, plan, n, floorTokens, within, true)
	op := &g.Ops[0]
	got := refAnswer{op.Allowed, want.never, op.Shadow, op.Granted, op.Remaining, op.Delay, want.bound}
	if want.remaining < 0 { // blocked: not a matter of this test
		want.remaining = op.Remaining
	}
	if !want.allowed || want.shadow {
		got.granted, want.granted = op.Granted, 0
	}
	if got != want {
		w.errorf("got %+v\nwant %+v\nrow %+v", op.Answer, want, w.table.rows["l/k"])
	}
	if o := op.Def.Override; o != nil && op.Def.Mode <= store.Shadow && (o.Until == 0 || w.now+op.Reset < o.Until) {
		w.checkReset(op)
	}
	if !op.Allowed || op.Shadow {
		if op.Def.Override == nil && op.Bound != (want.bound && !op.Never) {
			w.errorf("bound %v; want %v", op.Bound, want.bound)
		}
		if kept := w.k; op.Def.Override == nil && !op.Bound {
			if verb == store.VerbCheck { // its retry is that of a take made now
				w.k.call(w.now, store.VerbTake, plan, n, floorTokens, within, true)
			}
			before = w.k // perhaps the row has moved
			w.k = kept
		}
		if n > 0 || op.Def.Override != nil { // a call of 0 is a check, which is told what a take would be
			w.checkRetry(op, before, verb, plan, n, floorTokens, within)
		}
	}
}

// checkReset checks that the row of a key with an override is full at the reset time, and
// not before.
func (w *planWorld) checkReset(op *store.Op) {
	full := func(at int64) bool {
		used, _, _ := w.k.own(at)
		return used.Sign() == 0
	}
	if at := w.now + op.Reset; !full(at) || op.Reset > 0 && full(at-1) {
		w.errorf("full at the reset time, %d µs from now: %v; 1 µs earlier: %v", op.Reset, full(at), full(at-1))
	}
}

// checkRetry checks that the call is allowed at the retry time, and not before.
func (w *planWorld) checkRetry(op *store.Op, k refKey, verb store.Verb, plan string, n, floorTokens, within int64) {
	allowed := func(at int64) bool {
		a := k.call(at, verb, plan, n, floorTokens, within, false)
		return a.allowed && !a.shadow
	}
	if op.Never != (op.Retry == 0) {
		w.errorf("never %v, retry %d", op.Never, op.Retry)
	}
	if o := op.Def.Override; o != nil && o.Until != 0 {
		w.checkBound(op, k, verb, plan, n, floorTokens, within)
	}
	bound := op.Bound && (op.Def.Override == nil || op.Def.Mode == store.Blocked)
	at := w.now + op.Retry
	if op.Never {
		at = w.now + 3600*second
	} else if !allowed(at) && (k.over[temporary] == nil || k.over[temporary].until != at) { // from then on a shadow may allow it
		w.errorf("refused at the retry time, %d µs from now", op.Retry)
	}
	for _, early := range []int64{1, 2, 1000, 1 + w.rnd.Int64N(at-w.now), 1 + w.rnd.Int64N(at-w.now)} {
		if t := at - early; t >= w.now && !bound && allowed(t) {
			w.errorf("allowed %d µs before the retry time, %d µs from now", early, op.Retry)
		}
	}
}

// checkBound checks a refusal under an override that ends. Its retry is at most the end,
// and is not exact unless the key is blocked. It is Never if neither the override nor
// what decides after it allows the call on a full bucket.
func (w *planWorld) checkBound(op *store.Op, k refKey, verb store.Verb, plan string, n, floorTokens, within int64) {
	k.used = new(big.Rat)
	over := k.call(w.now, verb, plan, n, floorTokens, within, false)
	k.change(temporary, nil)
	later := k.call(w.now, verb, plan, n, floorTokens, within, false)
	could := over.allowed && !over.shadow || later.allowed && (!later.shadow || op.Def.Mode != store.Shadow)
	if within >= 0 && n > 0 { // the delay also depends on the time
		could = !op.Never
	}
	blocked := op.Def.Mode == store.Blocked
	if op.Never == could || !blocked && op.Bound != could || !blocked && w.now+op.Retry > op.Def.Override.Until {
		w.errorf("a full bucket allows the call: %v; got %+v", could, op.Answer)
	}
}
