package memory

import (
	"math"
	"math/bits"
	"unsafe"

	"github.com/dipwell/dipwell/internal/algebra"
	"github.com/dipwell/dipwell/store"
)

// A takeRule has the numbers of a rule for the fast paths of a Take.
type takeRule struct {
	bucket  bool   // take can decide on this rule: a token bucket counted in µs
	windows bool   // takeInWindow can decide on it: ticks longer than 1 µs, of equal length
	spread  bool   // takeInWindow needs the phase of the key
	most    uint64 // the largest cost that these can decide, Burst; 0 if neither can

	unit, every, add, cap, origin int64
	enough                        int64  // ticks after which everything has come back
	perUnit                       uint64 // 2^64 / unit
	perTick                       uint64 // 2^64 / every
}

func newTakeRule(d *store.Definition) takeRule {
	r := &d.Rule
	t := takeRule{spread: r.Spread, unit: r.Unit, every: r.Every, add: r.Add, cap: r.Cap, origin: r.Origin,
		enough: algebra.QuoUp(r.MaxUsed, r.Add), perUnit: math.MaxUint64 / uint64(r.Unit)}
	if d.Mode == store.Enforce && d.Even() {
		t.bucket = r.Every == 1 && d.Algorithm == store.TokenBucket
		t.windows = r.Every > 1
	}
	if t.bucket || t.windows {
		t.most = uint64(r.Burst)
	}
	if t.windows {
		t.perTick = math.MaxUint64 / uint64(r.Every)
	}
	return t
}

const few = 4 // the most takes that takeAll decides; most groups have no more

type taking struct {
	*binding
	*store.Op
	sh  *shard
	id  uint64
	tag uint32
	i   int // row is sh.at(i)
	row *slot
}

// takeAll decides a group of takes if Quick could decide each of them alone. Otherwise it
// returns false and changes nothing but answers.
func (s *Store) takeAll(g *store.Group) bool {
	if len(g.Ops) > few {
		return false
	}
	var room [few]taking // sorted by shard, the order in which calls lock shards
	for i := range g.Ops {
		op := &g.Ops[i]
		b := s.limits.cached(op.Def)
		if b == nil || !b.decides(op) {
			return false
		}
		id, tag := s.hash(op.Key, b)
		sh := &s.shards[uint32(id)&s.mask]
		v := sh.view.Load()
		if v == nil {
			return false
		}
		at := v.home(id)
		for ; i > 0 && uintptr(unsafe.Pointer(room[i-1].sh)) > uintptr(unsafe.Pointer(sh)); i-- {
			room[i] = room[i-1]
		}
		t := &room[i]
		t.binding, t.Op, t.sh, t.id, t.tag, t.i, t.row = b, op, sh, id, tag, at, v.at(at)
	}
	takes := room[:len(g.Ops)]
	count := fetch(unsafe.Pointer(room[0].row), unsafe.Pointer(room[1].row))
	if len(takes) > 2 {
		fetch(unsafe.Pointer(room[2].row), unsafe.Pointer(room[3].row))
	}
	for i := range takes {
		if i == 0 || takes[i].sh != takes[i-1].sh {
			takes[i].sh.mu.Lock()
		}
	}
	ok := takeLocked(g, takes, s.nowIn(takes[0].sh, count))
	for i := range takes {
		if i == 0 || takes[i].sh != takes[i-1].sh {
			takes[i].sh.mu.Unlock()
		}
	}
	return ok
}

// takeLocked does the work of takeAll at the time now, once the shards are locked.
func takeLocked(g *store.Group, takes []taking, now int64) bool {
	allowed := true
	for i := range takes {
		t := &takes[i]
		if !t.find() || !t.answer(now, t.Cost) {
			return false
		}
		allowed = allowed && t.Allowed
	}
	for i := range takes {
		if t := &takes[i]; allowed {
			if t.row.handle&withLow != 0 {
				t.sh.lower(t.i, now, t.Used-t.Cost*t.unit)
			}
			t.row.used, t.row.ts = t.Used, t.TS
		} else if t.Allowed { // nothing is taken from this row
			t.answer(now, 0)
		}
	}
	g.Allowed, g.Reserved, g.Err = allowed, false, nil
	return true
}

// decides reports whether take or takeInWindow can decide an op.
func (r *takeRule) decides(op *store.Op) bool {
	return op.Verb == store.VerbTake && uint64(op.Cost-1) < r.most && op.Floor|op.Fraction == 0
}

// find returns false if the key has no row, or one under another definition than the take's.
func (t *taking) find() bool {
	if t.sh.closed || t.dead.Load() {
		return false
	}
	if t.row.id != t.id || t.row.tag != t.tag {
		t.i, t.row = t.sh.row(t.id, t.tag)
	}
	return t.row != nil && t.row.handle&^withLow == t.handle
}

// answer returns false if more than the numbers of the row are needed.
func (t *taking) answer(now, cost int64) bool {
	t.Answer = store.Answer{}
	a, row, phase := &t.Answer, t.row, t.sh.phases.get(t.i)
	switch {
	case t.bucket:
		a.Used, a.TS, a.Remaining, a.Retry, a.Reset, a.Allowed = t.take(row.used, row.ts, now, cost)
	case phase == 0 && t.spread:
		return false
	default:
		a.Used, a.TS, a.Remaining, a.Retry, a.Reset, a.Allowed = t.takeInWindow(row.used, row.ts, now, cost, phase)
	}
	if a.Allowed {
		a.Granted = cost
	}
	return row.handle&withLow == 0 || a.Allowed && now < t.sh.lows.at(t.i).due && a.Used > cost*t.unit
}

// take is the fast path of Op.Step for VerbTake with a cost of 1 to Burst. take
// returns the units used after the call, the time of the decision, and the
// Remaining, Retry and Reset of the Answer.
func (r *takeRule) take(used, ts, now, cost int64) (after, t, remaining, retry, reset int64, allowed bool) {
	if t = max(now, ts); used != 0 {
		if ticks := t - ts; r.add == 1 {
			used = max(0, used-ticks)
		} else {
			used = r.left(used, ticks)
		}
	}
	after = used + cost*r.unit
	if over := after - r.cap; over > 0 {
		after, retry = used, t+algebra.QuoUp(over, r.add)-now
	} else {
		allowed = true
	}
	remaining = r.tokens(r.cap - after)
	if reset = after; r.add != 1 {
		reset = algebra.QuoUp(after, r.add)
	}
	if after != 0 {
		reset += t - now
	}
	return after, t, remaining, retry, reset, allowed
}

// takeInWindow is take for windows and intervals of one length, and for buckets counted
// in ticks longer than 1 µs. If windows are spread, phase is the key's and must not be 0.
func (r *takeRule) takeInWindow(used, ts, now, cost, phase int64) (after, t, remaining, retry, reset int64, allowed bool) {
	origin := r.origin
	if r.spread {
		origin = phase - 1 - r.ticksIn(phase-1)*r.every
	}
	t = max(now, ts)
	tick := r.ticksIn(t - origin)
	start := origin + tick*r.every
	if used != 0 && ts < start {
		used = r.left(used, tick-r.ticksIn(ts-origin))
	}
	after = used + cost*r.unit
	if over := after - r.cap; over > 0 {
		after, retry = used, start+r.ticksFor(over)*r.every-now
	} else {
		allowed = true
	}
	if remaining = max(0, r.cap-after); r.unit != 1 {
		remaining = r.tokens(remaining)
	}
	if after != 0 {
		reset = start + r.ticksFor(after)*r.every - now
	}
	return after, t, remaining, retry, reset, allowed
}

func (r *takeRule) left(used, ticks int64) int64 {
	return algebra.LeftAfter(used, ticks, r.add, r.enough)
}

// tokens returns the number of whole tokens in free units. tokens multiplies by
// perUnit, which gives at most one token too few. A floating-point division makes
// a Take 4 % slower. The processor's division makes it 1 % slower, and more on
// processors where that takes 40 cycles, such as Intel's before 2019.
func (r *takeRule) tokens(free int64) int64 {
	if free <= 0 {
		return 0
	}
	hi, _ := bits.Mul64(uint64(free), r.perUnit)
	n := int64(hi)
	if free-n*r.unit >= r.unit {
		n++
	}
	return n
}

// ticksIn returns x / every rounded down. ticksIn multiplies by perTick, which
// gives at most one tick too few; dividing makes a Take of a window 11 % slower.
func (r *takeRule) ticksIn(x int64) int64 {
	if x < 0 {
		return algebra.FloorDiv(x, r.every)
	}
	hi, _ := bits.Mul64(uint64(x), r.perTick)
	n := int64(hi)
	if x-n*r.every >= r.every {
		n++
	}
	return n
}

// ticksFor returns the number of ticks in which units come back, usually 1.
func (r *takeRule) ticksFor(units int64) int64 {
	if units <= r.add {
		return 1
	}
	return algebra.QuoUp(units, r.add)
}
