package memory

import (
	"cmp"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// A place is where an op's row lives.
type place struct {
	*binding
	id    uint64
	tag   uint32
	shard uint32
}

// place finds the shard of a key and its identity. The limit is mixed into each hash.
func (s *Store) place(p *place, d *store.Definition, key string) (err error) {
	if p.binding, err = s.bind(d); err == nil {
		p.hash(s, key)
	}
	return err
}

func (p *place) hash(s *Store, key string) {
	p.id, p.tag = s.hash(key, p.binding)
	p.shard = uint32(p.id) & s.mask // the upper bits of id give the row's place in the shard
}

// hash is a key's identity, 96 bits by folded multiplication with secret
// numbers, as wyhash has it: 16 bytes at a time go through a 64 by 64 bit
// product, and the last product, whole, makes both parts. The limit's salt is
// mixed in last, so that the key's part does not wait for the limit. Never 0.
func (s *Store) hash(key string, b *binding) (id uint64, tag uint32) {
	h, n := s.secret[0], len(key)
	var x, y uint64
	switch {
	case n > 8:
		for i := 0; i < n-16; i += 16 {
			h = fold(load64(key, i)^s.secret[1], load64(key, i+8)^h)
		}
		x, y = load64(key, max(0, n-16)), load64(key, n-8)
	case n == 8:
		x = load64(key, 0)
	case n >= 4:
		x = load32(key, 0) | load32(key, n-4)<<32
	case n > 0:
		x = uint64(key[0])<<16 | uint64(key[n/2])<<8 | uint64(key[n-1])
	}
	hi, lo := bits.Mul64(x^s.secret[1], y^h)
	hi ^= s.secret[3] ^ uint64(n) // mixed in here and not with y, where it could cancel out a byte of the key
	lo ^= s.secret[2]
	lo, hi = lo^b.salt[1], hi^b.salt[0]
	return max(1, fold(lo, hi)), uint32(fold(lo^h, hi^s.secret[1]))
}

func load64(s string, i int) uint64 {
	s = s[i : i+8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

func load32(s string, i int) uint64 {
	s = s[i : i+4]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// Quick returns the Quick of the store's Abilities: the fast path of Apply for one
// op that changes nothing but its row. It is a closure, because a method value
// would cost one more call. It is not inlined, because in a copy of the closure
// nothing else is inlined, which makes a Take 15 % slower.
//
//go:noinline
func (s *Store) Quick() func(def *store.Definition, key string, verb store.Verb, cost int64, checked bool) (store.QuickAnswer, *sync.Mutex, bool) {
	return func(def *store.Definition, key string, verb store.Verb, cost int64, checked bool) (a store.QuickAnswer, held *sync.Mutex, ok bool) {
		b := s.limits.cached(def)
		if b == nil || uint64(cost-1) >= b.most || verb != store.VerbTake {
			return s.quickOp(def, key, verb, cost, checked)
		}
		id, tag := s.hash(key, b)
		sh := &s.shards[uint32(id)&s.mask]
		v := sh.view.Load()
		if v == nil {
			return s.quickOp(def, key, verb, cost, checked)
		}
		i := v.home(id)
		row := v.at(i)
		count := fetch(unsafe.Pointer(row), unsafe.Pointer(v.filter.at(tag))) // must not be read before the lock is held
		sh.mu.Lock()
		if sh.closed || b.dead.Load() {
			sh.mu.Unlock()
			return s.quickOp(def, key, verb, cost, checked)
		}
		if row.id != id || row.tag != tag {
			i, row = sh.row(id, tag)
		}
		if row == nil || row.handle&^withLow != b.handle {
			sh.mu.Unlock()
			return s.quickOp(def, key, verb, cost, checked)
		}
		now, fresh := sh.ticker.At(count)
		if !fresh {
			now = s.readClock(sh, count)
		}
		var after, t int64
		var allowed bool
		if b.bucket {
			after, t, a.Remaining, a.Retry, a.Reset, allowed = b.take(row.used, row.ts, now, cost)
		} else if phase := sh.phases.get(i); phase != 0 || !b.spread {
			after, t, a.Remaining, a.Retry, a.Reset, allowed = b.takeInWindow(row.used, row.ts, now, cost, phase)
		} else {
			sh.mu.Unlock()
			return s.quickOp(def, key, verb, cost, checked)
		}
		if row.handle&withLow != 0 && (!allowed || !sh.lower(i, now, after-cost*b.unit)) {
			sh.mu.Unlock()
			return s.quickOp(def, key, verb, cost, checked)
		}
		if allowed {
			a.Granted = cost
			row.used, row.ts = after, t
		}
		return a, &sh.mu, true
	}
}

// quickOp is Quick of an op whose key was checked.
func (s *Store) quickOp(def *store.Definition, key string, verb store.Verb, cost int64, checked bool) (a store.QuickAnswer, held *sync.Mutex, ok bool) {
	if !checked || verb == store.VerbReset {
		return a, nil, false
	}
	var op store.Op // set field by field, because a literal would be copied
	op.Def, op.Key, op.Verb, op.Cost = def, key, verb, cost
	if !s.single(&op, true) || op.Never || op.Shadow { // single has then changed nothing
		return a, nil, false
	}
	return store.QuickAnswer{Granted: op.Granted, Remaining: op.Remaining, Retry: op.Retry, Reset: op.Reset}, nil, true
}

// single decides a batch of one op, the common case. single returns false, and does
// nothing, if the op needs more than its row; the caller then uses group. With quick, it
// also returns false if another definition than op.Def decides, because the answer must
// then name it.
func (s *Store) single(op *store.Op, quick bool) (ok bool) {
	var p place
	if err := s.place(&p, op.Def, op.Key); err != nil || p.def != op.Def || op.Def.Block != 0 { // the limit was dropped, the definition was superseded, or a refusal may begin a block
		return false
	}
	sh := &s.shards[p.shard]
	sh.mu.Lock()
	ok = !sh.closed && !p.dead.Load() && s.decide(sh, &p, op, quick)
	sh.mu.Unlock()
	return ok
}

func (s *Store) decide(sh *shard, p *place, op *store.Op, quick bool) bool {
	now := s.nowIn(sh, counter())
	var row store.State
	i, found := sh.find(p.id, p.tag)
	if found {
		if sh.at(i).handle&withLow != 0 {
			return false
		}
		sh.state(&row, i, p)
		op.Phase = cmp.Or(sh.phases.get(i), op.Phase)
	} else if p.limit.overrides.Load() > 0 && sh.filter.passes(p.id, p.tag) {
		row.Override = sh.overrideOf(p)
	}
	was := row.Override
	if row.Lows != nil || quick && was != nil || p.def.Algorithm == store.Concurrency {
		return false
	}
	write, err := op.StepRow(now, &row, false)
	if found {
		sh.keepPhase(i, op.Phase)
	}
	switch {
	case err != nil || op.Delay > 0: // the reservation must be kept
		return false
	case quick && (op.Def != p.def || op.Bound): // an answer of Quick cannot say so
		return false
	case !write:
		return true
	case row.Override != was: // the override has ended, or is of an older version
		return false
	case found:
		if sh.rewrite(i, p, op.Key, &row); op.Granted == 0 && op.Verb < store.VerbCharge && s.watched.Load() {
			s.touch([]Touched{{p.def, op.Key, false}}) // a refusal has moved the row to another plan
		}
		return true
	}
	return s.insert(sh, i, p, op, &row, now)
}

func (s *Store) insert(sh *shard, i int, p *place, op *store.Op, row *store.State, now int64) bool {
	if !sh.ready(1, p.def, op.Key) || !s.room(sh, i, room{1, textOf(p.def, op.Key)}, now) {
		return false
	}
	i, _ = sh.find(p.id, p.tag) // calling room may have moved rows
	sh.add(i, p, op.Key, op.Phase, row, now, true)
	sh.maintain(now)
	return true
}

// lower lowers the low of a row to the units that are used before a call at now. lower
// returns false if records may have ended by then, or all units have come back.
func (sh *shard) lower(i int, now, used int64) bool {
	l := sh.lows.at(i)
	if now >= l.due || used == 0 {
		return false
	}
	l.used = min(l.used, used)
	return true
}

// state reads the row at i into the zero State, and returns the extras that it looked up.
func (sh *shard) state(row *store.State, i int, p *place) (k *keyExtras) {
	r := sh.at(i)
	row.Used, row.TS, row.Version = r.used, r.ts, p.def.Number
	if r.handle == p.handle {
		return nil
	}
	if r.handle&^marks != p.handle {
		row.Version = sh.store.limits.of(r.handle).number
	}
	if r.handle&marks != 0 {
		k = sh.extras[rowID{r.id, r.tag}]
	}
	if k != nil { // nil if the limit was dropped and defined again
		row.Lows, row.Override = k.lows, k.override
		if r.handle&withLow != 0 {
			row.Lows = k.lows.LoweredTo(sh.lows.at(i).used)
		}
		if k.override != nil && terms.IsOverride(row.Version) {
			row.Version = terms.OverrideNumber(k.override.ID)
		}
	}
	return k
}

// rewrite removes the row if nothing is used, because a missing row means a full bucket.
func (sh *shard) rewrite(i int, p *place, key string, row *store.State) {
	r := sh.at(i)
	r.used, r.ts = row.Used, row.TS
	if handle := sh.handle(p, row, p.def.ListKeys); r.handle != handle {
		if p.def.ListKeys && !sh.keepText(i, key) {
			handle = sh.handle(p, row, false) // so that the next call tries again
		}
		r.handle = handle
	}
	sh.setLow(i, row.Lows)
	if row.Used == 0 {
		sh.remove(i)
	}
}

// handle returns the handle of a row, whose key is to be listed or not.
func (sh *shard) handle(p *place, row *store.State, list bool) uint32 {
	h := p.handle
	if row.Used != 0 && (row.Version != p.def.Number || list != p.def.ListKeys) {
		h = sh.store.limits.handle(p.limit, numberOf{row.Version, list})
	}
	switch {
	case row.Override != nil || row.Lows != nil && !sh.lows.ready(sh):
		h |= withExtras
	case row.Lows != nil:
		h |= withLow
	}
	return h
}

// setLow keeps what a Take needs to know of the lows of the row at i.
func (sh *shard) setLow(i int, lows *store.Lows) {
	if r := sh.at(i); r.handle&withLow != 0 {
		*sh.lows.at(i) = low{lows.Entries[len(lows.Entries)-1].Used, lows.Due}
	}
}

// add inserts a row. ready and room must have been called before, with its key.
func (sh *shard) add(i int, p *place, key string, phase int64, row *store.State, now int64, reclaim bool) {
	sh.insert(i, slot{p.id, row.Used, row.TS, p.tag, sh.handle(p, row, p.def.ListKeys)}, now, reclaim)
	sh.setLow(i, row.Lows)
	sh.phases.set(i, phase)
	if p.def.ListKeys {
		sh.refs.set(i, sh.texts.put(key))
	}
}

// room is how much of MaxKeys and MaxKeyBytes rows take.
type room struct{ keys, text int64 }

func (r *room) add(d *store.Definition, key string, n int64) {
	r.keys += n
	r.text += n * textOf(d, key)
}

// room counts more rows and reports whether they fit in MaxKeys and MaxKeyBytes. At a
// bound it first reclaims full rows: near slot i of the shard that the caller has
// locked, then elsewhere in that shard, then in shards whose lock is free,
// starting where the previous call stopped.
func (s *Store) room(sh *shard, i int, n room, now int64) bool {
	if s.count(n) {
		return true
	}
	sh.sweepRange(&i, now, probeCheck)
	if s.count(n) {
		return true
	}
	sh.sweep(now, ownSweep)
	for work := 0; work < otherSweeps; {
		if s.count(n) {
			return true
		}
		work += lockWork
		if other := s.lockAny(); other != nil {
			work += min(otherSweep, other.top)
			other.sweep(now, otherSweep)
			other.mu.Unlock()
		}
	}
	return s.count(n)
}

// Slots that a call for a new key looks at if the store is full. This takes a few µs.
const (
	ownSweep    = 1024
	otherSweep  = 256  // slots of one other shard
	otherSweeps = 1024 // slots of all other shards together
	lockWork    = 4    // the cost of taking a lock, in slots
)

func (s *Store) count(n room) bool {
	if n.text != 0 && !countOf(&s.textBytes, n.text, s.maxText) {
		return false
	}
	if !countOf(&s.keys, n.keys, s.max) {
		s.textBytes.Add(-n.text)
		return false
	}
	return true
}

func countOf(of *atomic.Int64, n, most int64) bool {
	for {
		was := of.Load()
		if was+n > most {
			return false
		}
		if of.CompareAndSwap(was, was+n) {
			return true
		}
	}
}

func (s *Store) uncount(n room) {
	if n != (room{}) {
		s.keys.Add(-n.keys)
		s.textBytes.Add(-n.text)
	}
}

// lockAny locks a shard whose lock is free, or returns nil: the caller has locks, and may not wait.
func (s *Store) lockAny() *shard {
	for range s.shards {
		sh := &s.shards[s.hand.Add(1)%uint32(len(s.shards))]
		if sh.mu.TryLock() {
			return sh
		}
	}
	return nil
}
