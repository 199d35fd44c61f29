package storetest

import (
	"crypto/sha256"
	"encoding/binary"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// model is a second implementation of the contract, with tokens as exact
// rationals and rows that are never deleted. It shares no arithmetic with
// package store.
type model struct {
	limits       map[string][]*rule // all versions of each limit, the present one last
	rows         map[rowKey]*row
	reservations map[store.Reservation]*reservation
	records      map[rowKey][]*record // records of each row in the order of their numbers
}

type rowKey struct{ limit, key string }

type row struct {
	used *big.Rat // tokens
	ts   int64
	rule *rule
	list *list // nil if the row has no live records
}

// reservation is the model's record of the reservation of one call.
type reservation struct {
	due   int64
	parts []part
}

type part struct {
	key    rowKey
	tokens *big.Rat
	rule   *rule
	record *record
}

// answer has the fields of an answer that are compared with the model's.
type answer struct {
	allowed, never, shadow bool
	granted, remaining     int64
	retry, reset, delay    int64
}

type answers struct {
	allowed     bool
	ops         []answer
	reservation *reservation
}

func newModel() *model {
	return &model{limits: map[string][]*rule{}, rows: map[rowKey]*row{}, reservations: map[store.Reservation]*reservation{}, records: map[rowKey][]*record{}}
}

func (m *model) rule(limit string) *rule {
	v := m.limits[limit]
	return v[len(v)-1]
}

// define begins a new version, unless no setting that affects counting changed.
func (m *model) define(now int64, l store.Limit, d *store.Definition) {
	r := newRule(now, l, d)
	versions := m.limits[l.Name]
	if len(versions) > 0 {
		old := versions[len(versions)-1]
		if old.counting == r.counting {
			old.shadow = r.shadow
			return
		}
		r.since = max(now, old.since)
		old.next = r
	}
	m.limits[l.Name] = append(versions, r)
}

func (m *model) drop(name string) {
	delete(m.limits, name)
	for k := range m.rows {
		if k.limit == name {
			delete(m.rows, k)
		}
	}
	m.forgetRecords(func(k rowKey) bool { return k.limit == name })
}

func (r *reservation) of(limit string) bool {
	for _, p := range r.parts {
		if p.key.limit == limit {
			return true
		}
	}
	return false
}

// call decides each take alone, and applies them if all are allowed.
func (m *model) call(now int64, verb store.Verb, takes []dipwell.Take) answers {
	out := answers{allowed: true, ops: make([]answer, len(takes))}
	sum := map[rowKey]int64{}
	for _, t := range takes {
		sum[keyOf(t)] += t.Cost
	}
	results := map[rowKey]result{}
	for k, cost := range sum {
		r := m.rule(k.limit)
		res := r.decide(m.usedAt(k, now), m.instant(k, now), now, verb, cost, k)
		results[k] = res
		out.allowed = out.allowed && res.allowed
	}
	for i, t := range takes {
		out.ops[i] = m.answer(results[keyOf(t)], out.allowed, keyOf(t), now, t.Cost)
	}
	if out.allowed {
		out.reservation = m.apply(results, verb, now)
	}
	return out
}

func keyOf(t dipwell.Take) rowKey {
	if t.Key == dipwell.Shared {
		return rowKey{t.Limit, ""}
	}
	return rowKey{t.Limit, t.Key}
}

// answer returns the answer for one take. For a refused call the answer
// describes the present state.
func (m *model) answer(res result, all bool, k rowKey, now, cost int64) answer {
	a := answer{allowed: res.allowed, never: res.never, shadow: res.shadow, retry: res.retry}
	used := res.before
	if res.allowed && !res.shadow && all {
		used, a.delay, a.granted = res.after, res.delay, res.granted
		if res.sums && a.granted > 0 { // res is the result for the sum of all costs of one key
			a.granted = cost
		}
	}
	r := m.rule(k.limit)
	t := m.instant(k, now)
	if free := new(big.Rat).Sub(rat(r.burst), r.counts(used, t, k, false)); free.Sign() > 0 {
		a.remaining = floor(free)
	}
	if a.reset = r.wait(used, t, now, k); r.sliding {
		a.reset = r.slidingReset(used, t, now, k)
	}
	return a
}

// apply writes the rows, and returns a reservation if a part is due later.
func (m *model) apply(results map[rowKey]result, verb store.Verb, now int64) *reservation {
	v, later := &reservation{due: now}, false
	for k, res := range results {
		if res.granted > 0 && !res.shadow {
			v.due = max(v.due, now+res.delay)
			v.parts = append(v.parts, part{key: k, tokens: rat(res.granted), rule: m.rule(k.limit)})
			later = later || res.delay > 0
		}
		if verb == store.VerbReset {
			m.reset(k)
		} else if !res.shadow && (res.after.Cmp(res.before) != 0 || res.clipped) {
			next := &row{used: res.after, ts: m.instant(k, now), rule: m.rule(k.limit)}
			l := m.touch(k, now)
			if l != nil && res.clipped {
				l.lows = []low{{l.lows[0].number, rat(0)}}
			}
			next.list = l
			m.rows[k] = next
		}
	}
	if !later {
		return nil
	}
	for i := range v.parts {
		p := &v.parts[i]
		m.record(v, p, now, results[p.key].delay)
	}
	return v
}

// reset deletes a row and every reservation that has a part in it.
func (m *model) reset(k rowKey) {
	delete(m.rows, k)
	m.forgetRecords(func(other rowKey) bool { return other == k })
}

// cancel gives back the tokens of a reservation. cancel returns false if
// the reservation is unknown or due, or a change of a limit ended it.
func (m *model) cancel(now int64, id store.Reservation) bool {
	v := m.reservations[id]
	delete(m.reservations, id)
	if v == nil || now >= v.due {
		return false
	}
	if slices.ContainsFunc(v.parts, func(p part) bool { return m.look(p.key, now).reset }) {
		return false
	}
	for _, p := range v.parts {
		m.giveBack(p.key, p.record, now)
	}
	return true
}

// instant returns the time of a decision at now: the later of now and the row's
// ts. For windows that begin with a call it is the beginning of the present window.
func (m *model) instant(k rowKey, now int64) int64 { return m.look(k, now).ts }

// usedAt returns a row's used tokens at now, after stepping it through all
// versions since it was written.
func (m *model) usedAt(k rowKey, now int64) *big.Rat { return m.look(k, now).used }

// rule is one version of a limit.
type rule struct {
	counting
	shadow bool
	since  int64
	policy store.ChangePolicy
	next   *rule
	debt   *big.Rat // max_debt in tokens
	most   *big.Rat // the most tokens that can be used
}

// counting has the settings of a limit that affect counting. Definitions with
// equal values of counting are one version.
type counting struct {
	windowed, leaky bool
	sliding         bool // the used number is prev·2^26 + cur
	rate, burst     int64
	maxDebt, charge int64 // max_debt and max_charge as compiled, because an explicit setting may equal the default
	period          time.Duration
	every, unit     int64 // µs between ticks (0: a calendar), and units of a token
	start           string
}

func newRule(now int64, l store.Limit, d *store.Definition) *rule {
	r := &rule{since: now, policy: l.OnChange, shadow: l.Mode == store.Shadow}
	c := &r.counting
	*c = counting{
		windowed: l.Algorithm == store.FixedWindow || l.Algorithm == store.Interval || l.Algorithm == store.SlidingWindow,
		sliding:  l.Algorithm == store.SlidingWindow,
		leaky:    l.Algorithm == store.LeakyBucket,
		rate:     l.Rate, burst: l.Burst, maxDebt: d.Rule.Debt, charge: d.Rule.MaxCharge, period: l.Period, start: l.Start, unit: 1,
	}
	switch {
	case c.leaky:
		c.burst = 1
	case l.Burst == 0:
		c.burst = l.Rate
	case l.Burst == store.NoBurst:
		c.burst = 0
	}
	c.every = d.Rule.Every // the compiler has tests of its own
	if !c.windowed {
		ticks := l.Period.Microseconds() / c.every
		c.unit = ticks / new(big.Int).GCD(nil, nil, big.NewInt(l.Rate), big.NewInt(ticks)).Int64()
	}
	r.debt = rat(c.burst)
	switch {
	case l.MaxDebt > 0:
		r.debt = rat(l.MaxDebt)
	case l.MaxDebt == store.NoDebt:
		r.debt = rat(0)
	case l.MaxDebt == store.UnlimitedDebt:
		r.debt = big.NewRat(d.Rule.Debt, c.unit)
	}
	r.most = big.NewRat(d.Rule.MaxUsed, c.unit)
	return r
}

// result is the decision for one key, apart from the other keys of the call.
type result struct {
	allowed, never, shadow bool
	sums                   bool // granted is the sum over all takes of the key
	clipped                bool // a charge was cut at the largest number of used tokens
	granted                int64
	before, after          *big.Rat
	retry, delay           int64
}

// decide implements the contract's table of verbs.
func (r *rule) decide(used *big.Rat, t, now int64, verb store.Verb, n int64, k rowKey) result {
	res := result{before: used, after: used, sums: true}
	if r.sliding {
		return r.slide(res, t, now, verb, n, k)
	}
	cost, capacity := rat(n), rat(r.burst)
	with := new(big.Rat).Add(used, cost)
	room := capacity
	if verb == store.VerbReserve && n > 0 || r.leaky && verb <= store.VerbReserve && verb != store.VerbTakeUpTo {
		room = new(big.Rat).Add(capacity, r.debt)
	}
	if verb == store.VerbTakeUpTo && n > 0 {
		return r.takeUpTo(res, t, now, n, k)
	}
	switch verb {
	case store.VerbCharge:
		res.allowed, res.granted, res.after = true, n, with
		if with.Cmp(r.most) > 0 {
			res.after, res.clipped = r.most, true
			if used.Cmp(r.most) > 0 {
				res.after = used
			}
		}
		return res
	case store.VerbRefund:
		res.allowed, res.after = true, new(big.Rat).Sub(used, cost)
		if res.after.Sign() < 0 {
			res.after = rat(0)
		}
		return res
	case store.VerbReset:
		res.allowed, res.after = true, rat(0)
		return res
	}
	switch {
	case cost.Cmp(room) > 0:
		res.never = true
	case with.Cmp(room) > 0:
		res.retry = r.wait(new(big.Rat).Sub(with, room), t, now, k)
	default:
		res.allowed = true
		res.delay = r.wait(new(big.Rat).Sub(with, capacity), t, now, k)
		if verb != store.VerbCheck {
			res.granted, res.after = n, with
		}
	}
	return r.inShadow(res)
}

func (r *rule) takeUpTo(res result, t, now, n int64, k rowKey) result {
	res.sums = false
	free := floor(new(big.Rat).Sub(rat(r.burst), res.before))
	switch {
	case r.burst == 0:
		res.never = true
	case free < 1:
		need := new(big.Rat).Add(res.before, rat(1))
		res.retry = r.wait(need.Sub(need, rat(r.burst)), t, now, k)
	default:
		res.allowed, res.granted = true, min(n, free)
		res.after = new(big.Rat).Add(res.before, rat(res.granted))
	}
	return r.inShadow(res)
}

func (r *rule) inShadow(res result) result {
	if r.shadow && !res.allowed {
		res.allowed, res.shadow = true, true
	}
	return res
}

// perTick returns how many tokens come back at a tick.
func (r *rule) perTick() *big.Rat {
	if r.windowed {
		return rat(r.rate)
	}
	return new(big.Rat).Mul(rat(r.rate), big.NewRat(r.every, r.period.Microseconds()))
}

// firstCall reports whether windows begin with the first call.
func (r *rule) firstCall() bool { return r.start == "first_call" }

// stepTo is step that also returns the row's ts.
func (r *rule) stepTo(used *big.Rat, from, to int64, k rowKey) (left *big.Rat, ts int64) {
	if left = r.step(used, from, to, k); r.firstCall() && left.Sign() > 0 {
		to = from + floor(big.NewRat(to-from, r.every))*r.every
	}
	return left, to
}

// goesOn returns the ts of a row under the next version, which began at the instant since;
// begin is when the row's window began.
func (r *rule) goesOn(since, begin int64) int64 {
	if r.firstCall() && r.next.firstCall() && r.every == r.next.every {
		return begin
	}
	return since
}

func (r *rule) step(used *big.Rat, from, to int64, k rowKey) *big.Rat {
	ticks := r.tick(to, k) - r.tick(from, k)
	switch {
	case r.firstCall():
		ticks = floor(big.NewRat(to-from, r.every))
	case r.sliding:
		return slid(used, ticks)
	}
	left := new(big.Rat).Sub(used, new(big.Rat).Mul(rat(ticks), r.perTick()))
	if left.Sign() < 0 {
		left.SetInt64(0)
	}
	return left
}

// wait returns how long after now the given number of tokens will have come back, counted from
// t.
func (r *rule) wait(tokens *big.Rat, t, now int64, k rowKey) int64 {
	if tokens.Sign() <= 0 {
		return 0
	}
	ticks := ceil(new(big.Rat).Quo(tokens, r.perTick()))
	if r.firstCall() {
		return t + ticks*r.every - now
	}
	return r.boundary(r.tick(t, k)+ticks, k) - now
}

// convert converts tokens used under r to the next version, rounded up.
func (r *rule) convert(used *big.Rat, policy store.ChangePolicy) *big.Rat {
	to := r.next
	switch {
	case policy == store.StartOver:
		return rat(0)
	case policy == store.Proportional && r.burst > 0:
		used = new(big.Rat).Mul(used, big.NewRat(to.burst, r.burst))
	}
	if used.Cmp(to.most) > 0 {
		return to.most
	}
	return big.NewRat(ceil(new(big.Rat).Mul(used, rat(to.unit))), to.unit)
}

// roundDown rounds tokens down to a unit of r.
func (r *rule) roundDown(tokens *big.Rat) *big.Rat {
	if tokens.Cmp(r.most) > 0 { // the number of units may not fit an int64
		return tokens
	}
	return big.NewRat(floor(new(big.Rat).Mul(tokens, rat(r.unit))), r.unit)
}

// origin returns the time of tick 0.
func (r *rule) origin(k rowKey) int64 {
	switch {
	case !r.windowed, r.firstCall():
		return 0
	case r.start != "":
		d, err := time.ParseDuration(r.start)
		if err != nil {
			panic(err) // only limits of the suite come here, which are valid
		}
		return d.Microseconds()
	}
	return spread(k, r.every)
}

func spread(k rowKey, period int64) int64 {
	h := sha256.New()
	_ = binary.Write(h, binary.BigEndian, uint32(len(k.limit)))
	h.Write([]byte(k.limit + k.key))
	first := new(big.Int).SetBytes(h.Sum(nil)[:6])
	return first.Mod(first, big.NewInt(period)).Int64()
}

func (r *rule) tick(x int64, k rowKey) int64 {
	if r.every == 0 {
		return r.wall().tick(x - r.shift(k))
	}
	return floor(big.NewRat(x-r.origin(k), r.every))
}

func (r *rule) boundary(tick int64, k rowKey) int64 {
	if r.every == 0 {
		return r.wall().boundary(tick) + r.shift(k)
	}
	return r.origin(k) + tick*r.every
}

// shift returns by how much a key's months begin later than the calendar's.
func (r *rule) shift(k rowKey) int64 {
	if r.start != "" {
		return 0
	}
	days := int64(-r.period) * 28
	if r.period%(12*store.Month) == 0 {
		days = int64(r.period/(12*store.Month)) * 365
	}
	return spread(k, days*86400e6)
}

func (r *rule) wall() *wallClock {
	w := &wallClock{loc: time.UTC, period: r.period}
	if hm, zone, ok := strings.Cut(r.start, " "); ok {
		t, err := time.Parse("15:04", hm)
		if err == nil {
			w.loc, err = time.LoadLocation(zone)
		}
		if err != nil {
			panic(err) // only limits of the suite come here, which are valid
		}
		w.minute = int64(t.Hour()*60 + t.Minute())
	}
	return w
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func floor(x *big.Rat) int64 {
	q := new(big.Int)
	if q.Div(x.Num(), x.Denom()); !q.IsInt64() { // Euclidean division: the denominator is positive
		panic("storetest: " + x.String() + " is not an int64")
	}
	return q.Int64()
}

func ceil(x *big.Rat) int64 { return -floor(new(big.Rat).Neg(x)) }
