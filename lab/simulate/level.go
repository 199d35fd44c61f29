package main

import (
	"cmp"
	"slices"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A level is how many parts of a key's tokens are in use. The level is computed without
// package store, from what was taken and not given back and from the rates that the key
// has had. Tokens that were given back count as if they had never been taken.
//
// A part of a bucket's token is a millionth, so that a rate of n tokens a second is n
// parts a µs. For windows a part is a whole token.
//
// A row never has less in use than its level. The row has exactly as much in use as its level
// if no Reserve had to wait, except for rounding when it is converted to another definition.
type level struct {
	n      *node
	k      at
	rates  *rates
	ts     int64  // when the row was last written, in µs on the store's clock
	begin  int64  // when the first of its windows began, if windows begin with a call, in µs on the store's clock
	under  under  // the definition that the row is under since then
	number uint32 // the number in the row that names this definition
	before int64  // parts in use before those of entries
	list   []entry
	over   overrides // overrides of the key

	hasRow   bool     // the key had a row when it was last checked
	off      bool     // the level is unknown until the row is full or reset
	atMost   bool     // the row may have more in use than the level
	rounding int64    // parts by which the row may have more in use
	held     []*grant // live holds
	gaveBack bool     // a hold has expired since a reservation was made
	waits    []*grant // reservations that wait for their tokens
	delayed  []*grant // reservations that waited when the row was last written
}

// An entry is parts that were taken after drained parts had come back since the previous
// entry.
type entry struct {
	drained, parts int64
	grant          *grant // the grant that the parts belong to, less what was given back; or nil
}

// under says which definition a row is under.
type under struct {
	plan     string
	override store.OverrideKind // 0: none
	version  int                // index in the versions of the limit
}

// A version is a base definition that is in force from a time on the store's clock.
type version struct{ since, rate, burst int64 }

// rates are the rates that a limit has had. The rates of plans do not change.
type rates struct {
	versions []version
	plans    map[string]int64
	period   int64 // length of a window in µs; 0: the limit is a bucket
	first    bool  // windows begin with a call
	sliding  bool  // the limit is a sliding window, which has no level
	names    []string
	defined  int64 // true time of the last change of the limit
}

func newRates(l *store.Limit) *rates {
	r := &rates{versions: []version{{epoch, l.Rate, l.Burst}}, plans: map[string]int64{}}
	r.sliding, r.first = l.Algorithm == store.SlidingWindow, l.Start == "first_call"
	if r.sliding || l.Algorithm == store.FixedWindow {
		r.period = l.Period.Microseconds()
	}
	for _, p := range l.Plans.All() {
		r.names = append(r.names, p.Name)
		if p.Rate > 0 {
			r.plans[p.Name] = p.Rate
		}
	}
	return r
}

// define adds a version that begins at a time of the store's clock.
func (r *rates) define(now int64, l *store.Limit) {
	last := r.versions[len(r.versions)-1]
	if last.rate != l.Rate || last.burst != l.Burst {
		r.versions = append(r.versions, version{max(now, last.since), l.Rate, l.Burst})
	}
}

// parts returns how many parts some tokens are.
func (r *rates) parts(tokens int64) int64 {
	if r.period > 0 {
		return tokens
	}
	return tokens * 1e6
}

// An overridden is the override of a key, as it was set.
type overridden struct {
	plan        string
	rate, burst int64
	until       int64 // end of the override on the store's clock; 0: none
	block       bool  // the override is a block that a refusal began
	used        bool  // the override has decided a call
}

// overrides are the overrides of a key; nil: none.
type overrides struct{ standing, temporary *overridden }

func (o overrides) of(kind store.OverrideKind) *overridden {
	switch kind {
	case store.StandingOverride:
		return o.standing
	case store.TemporaryOverride, store.AutomaticOverride:
		return o.temporary
	}
	return nil
}

// at returns the kind of the override that decides at a time, or 0.
func (o overrides) at(t int64) store.OverrideKind {
	switch {
	case o.temporary != nil && t < o.temporary.until && o.temporary.block:
		return store.AutomaticOverride
	case o.temporary != nil && t < o.temporary.until:
		return store.TemporaryOverride
	case o.standing != nil:
		return store.StandingOverride
	}
	return 0
}

// layers counts the calls decided by an override that lies over another one. o decides.
func (n *node) layers(over *overrides, o *overridden) {
	top := over.temporary
	switch {
	case top == nil:
	case o == top:
		top.used = true
		if over.standing != nil {
			n.w.Seen[top.words()+" over a standing override"]++
		}
	case top.used:
		if top.used = false; top.block {
			n.w.Seen["a block ends"]++
		}
		if o != nil {
			n.w.Seen["a standing override again"]++
		}
	}
}

func (o *overridden) words() string {
	switch {
	case o.block:
		return "a block"
	case o.plan != "":
		return "a plan"
	}
	return "numbers"
}

// plan returns the plan that the override of a kind leaves a key under.
func (o overrides) plan(kind store.OverrideKind) string {
	of := o.of(kind)
	if of.plan == "" && kind != store.StandingOverride && o.standing != nil {
		return o.standing.plan
	}
	return of.plan
}

// drain returns the parts that come back from one time to another if the row is first
// under u, and the definition that it is under at the end.
func (l *level) drain(u under, from, to int64) (parts int64, end under) {
	for {
		next, more := to, u.version < len(l.rates.versions)-1
		if more {
			next = l.rates.versions[u.version+1].since
		}
		o := l.over.of(u.override)
		ends := u.override != 0 && o == nil && !more
		if o != nil && o.until != 0 && o.until <= l.n.time() && (!more || o.until <= next) {
			next, ends = o.until, true
		}
		if next = min(next, to); next > from && (o != nil || !ends) {
			parts += l.between(u, from, next)
			from = next
		}
		switch {
		case ends && l.over.standing != nil:
			u.override = store.StandingOverride
		case ends:
			u.override = 0
		case more:
			u.version++
		default:
			return parts, u
		}
	}
}

// rate returns the rate of a row under u, and whether it is the same in all versions, so
// that there is nothing to convert when a version begins.
func (l *level) rate(u under) (rate int64, fixed bool) {
	set := func(plan string, numbers int64) {
		if n := cmp.Or(l.rates.plans[plan], numbers); n > 0 {
			rate, fixed = n, true
		}
	}
	rate = l.rates.versions[u.version].rate
	o, standing := l.over.of(u.override), l.over.standing
	if o == nil {
		set(u.plan, 0)
		return rate, fixed
	}
	if standing != nil && o.plan == "" {
		set(standing.plan, standing.rate)
	}
	set(o.plan, o.rate)
	return rate, fixed
}

// between returns the parts that come back between two times under one definition.
func (l *level) between(u under, from, to int64) int64 {
	rate, _ := l.rate(u)
	if p := l.rates.period; p > 0 {
		return rate * (floor(to-l.begin, p) - floor(from-l.begin, p))
	}
	return rate * (to - from)
}

// underOf returns which definition a row is under, according to the row's number.
func (l *level) underOf(row *store.State) under {
	u, n := under{}, row.Version
	if terms.IsOverride(n) {
		o := row.Override
		if n = 0; o != nil && o.ID != terms.OverrideOf(row.Version) {
			o = o.Under
		}
		if o != nil {
			n, u.override = o.Version, o.Kind()
		}
	} else if i := terms.IndexOf(n); i > 0 {
		u.plan = l.rates.names[i-1]
	}
	u.version = max(0, int(terms.VersionOf(n))-1)
	return u
}

// instant returns the time to which a call at now steps the row.
func (l *level) instant(now int64) int64 {
	r := l.rates
	if l.isEmpty() {
		return now
	}
	now = max(now, l.ts)
	if _, fixed := l.rate(l.under); !fixed && l.under.version < len(r.versions)-1 {
		now = max(now, r.versions[len(r.versions)-1].since)
	}
	return now
}

func (l *level) isEmpty() bool { return l.before == 0 && len(l.list) == 0 && !l.hasRow }

// expire removes from the level the tokens of holds that have expired at now.
func (l *level) expire(now int64) {
	l.held = slices.DeleteFunc(l.held, func(g *grant) bool {
		if g.expires != 0 && g.expires <= now {
			g.expired()
			l.gaveBack = true
		}
		return g.expires == 0
	})
}

// at returns the parts in use at a given time.
func (l *level) at(now int64) int64 { return l.usedAt(l.instant(now)) }

// usedAt is the method at for the time at which a call is decided.
func (l *level) usedAt(t int64) int64 {
	if l.isEmpty() { // an empty level has no time from which to count
		return 0
	}
	drained, _ := l.drain(l.under, l.ts, t)
	return max(0, l.sum()-drained)
}

// sum returns the parts that were in use at ts. sum also joins entries that cannot
// change any more.
func (l *level) sum() int64 {
	sum, fixed := l.before, 0
	for i, e := range l.list {
		parts := e.parts
		if e.grant != nil {
			parts = l.rates.parts(e.grant.tokens)
		}
		sum = max(0, max(0, sum-e.drained)+parts)
		g := e.grant
		if revocable := g != nil && g.tokens > 0 && (g.expires != 0 || g.due != 0 && g.due+2e6 > g.node.time()); fixed == i && !revocable {
			fixed, l.before = i+1, sum
		}
	}
	l.list = slices.Delete(l.list, 0, fixed)
	return sum
}

// add adds parts taken at the time now of the store's clock. row is the row after that.
func (l *level) add(now, parts int64, g *grant, row *store.State) {
	t := l.instant(now)
	if l.n.backs > 0 && !l.isEmpty() {
		// The clock may be before the beginning of the present version. A row under an
		// older version is then converted as of the beginning of the version, or as of
		// the row's time if nothing changes.
		versions := l.rates.versions
		if since := versions[len(versions)-1].since; row.TS >= max(now, l.ts) && row.TS <= since {
			t = row.TS
		}
	}
	l.addAt(t, parts, g, row)
}

func (l *level) addAt(t, parts int64, g *grant, row *store.State) {
	if l.isEmpty() {
		l.under, l.number = l.underOf(row), row.Version
		l.ts = t
	}
	l.changed(row)
	drained, _ := l.drain(l.under, l.ts, t)
	if l.rates.first && g != nil && l.sum() <= drained {
		if l.begin = t; l.n.backs > 0 { // after a step back of the clock the row may be of a later time
			l.begin = row.TS
		}
	}
	l.list = append(l.list, entry{drained, parts, g})
	if g != nil && g.expires != 0 {
		l.held = append(l.held, g)
	}
	to := l.underOf(row)
	if row.Version != l.number {
		l.number = row.Version
		l.rounding += 1000 * int64(1+max(0, to.version-l.under.version))
		l.waits = nil
	}
	l.ts, l.under = t, to
	if row.Lows != nil && len(row.Lows.Entries) >= store.MaxLows {
		l.atMost = true
	}
	if parts < 0 {
		l.waits = nil
	}
}

// changed excludes waiting reservations from checks when the row goes to another
// definition, because their time was computed with the old rate.
func (l *level) changed(row *store.State) {
	l.delayed = slices.DeleteFunc(l.delayed, func(g *grant) bool { return g.told <= l.ts })
	if row.Version == l.number {
		return
	}
	for _, g := range l.delayed {
		g.apart = true
	}
	l.delayed = nil
}

// clear starts again with a full bucket.
func (l *level) clear() {
	*l = level{n: l.n, k: l.k, rates: l.rates, off: l.rates.sliding, over: l.over, held: l.held, gaveBack: l.gaveBack, delayed: l.delayed, list: l.list[:0]}
}

// checkLevel compares the row of a key with its level. row is what the store has.
func (n *node) checkLevel(k at, why string) {
	l := n.book(k.limit, k.key).level
	row, _ := n.table.Row(k.limit, k.key)
	records, _ := n.table.Records(k.limit, k.key)
	now := n.time()
	l.expire(now)
	if row.Version == 0 {
		if parts := l.at(now); parts > 0 && !l.off {
			n.w.fail("level", "%s of %s %q: the row is gone, but %d parts are in use", why, k.limit, k.key, parts)
		}
		l.clear()
		return
	}
	l.hasRow = true
	if l.off {
		return
	}
	used, want := n.used(k, row, records, now), l.at(now)
	switch {
	case used < want:
		n.w.fail("level", "%s of %s %q: %d parts are in use, less than the %d that were taken and not given back", why, k.limit, k.key, used, want)
	case used > want+l.slack(l.instant(now)) && !l.atMost:
		n.w.fail("level", "%s of %s %q: %d parts are in use, more than the %d that were taken and not given back", why, k.limit, k.key, used, want)
	}
	l.waits = slices.DeleteFunc(l.waits, func(g *grant) bool { return g.tokens == 0 || g.told <= now })
	if r := n.rates[k.limit]; r.period > 0 || l.under.version < len(r.versions)-1 {
		l.waits = nil // the time was computed with another rate
	} else if len(l.waits) > 0 {
		n.checkWaits(k, l, row, records)
	}
}

// checkWaits checks that waiting reservations will find their tokens: if as many tokens
// as possible are taken just before one is due, those and its own still fit.
func (n *node) checkWaits(k at, l *level, row store.State, records []store.Record) {
	rate := l.between(l.under, 0, 1) // parts that come back in the µs to which due is rounded up
	for _, g := range l.waits {
		if used := n.used(k, row, records, g.told); used < g.tokens*1e6-rate {
			n.w.fail("wait", "%s %q: of the %d tokens that are reserved for %.6f s only %d millionths will be kept", k.limit, k.key, g.tokens, float64(g.told-epoch)/1e6, used)
		}
	}
}

// used returns the parts in use at a time, less those of holds that have expired by then.
func (n *node) used(k at, row store.State, records []store.Record, now int64) int64 {
	d := n.reg.Lookup(k.limit)
	if slices.ContainsFunc(records, func(r store.Record) bool { return r.Hold != "" && r.Expires <= now }) {
		undo := n.table.undo
		n.table.undo = nil
		_, err := store.SweepRow(&n.table, &n.reg, k.limit, k.key, now)
		if row, _ = n.table.Row(k.limit, k.key); err != nil {
			n.w.fail("sweep", "%s %q: %v", k.limit, k.key, err)
		}
		n.table.rollback()
		n.table.undo = undo
	}
	own := d.Own(row, now)
	row, _ = own.Carry(row, k.key, now)
	return own.Rule.Used(row, now) * n.rates[k.limit].parts(1) / own.Rule.Unit
}
