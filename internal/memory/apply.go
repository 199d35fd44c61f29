package memory

import (
	"cmp"
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"github.com/dipwell/dipwell/store"
)

// A place is where an op's row lives.
type place struct {
	*binding
	id    uint64
	tag   uint32
	shard uint32
}

// place finds an op's shard and the identity of its key. The limit is mixed
// into each hash.
func (s *Store) place(p *place, op *store.Op) (err error) {
	if p.binding, err = s.limits.bind(op); err == nil {
		p.id, p.tag = s.hash(op.Key, p.binding)
		p.shard = uint32(p.id) & s.mask // its place in the shard is in the upper bits
	}
	return err
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
	hi ^= s.secret[3] ^ uint64(n) // here: beside y it could make up for a byte of the key
	lo ^= s.secret[2]
	lo, hi = lo^b.salt[1], hi^b.salt[0]
	return max(1, fold(lo, hi)), uint32(fold(lo^h, hi^s.secret[1]))
}

// load64 reads eight bytes at i.
func load64(s string, i int) uint64 {
	s = s[i : i+8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// load32 reads four bytes at i.
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
		if b == nil || !b.bucket && !b.windows || uint64(cost-1) >= uint64(def.Rule.Burst) || verb != store.VerbTake {
			return s.quickOp(def, key, verb, cost, checked)
		}
		id, tag := s.hash(key, b)
		sh := &s.shards[uint32(id)&s.mask]
		v := sh.view.Load()
		if v == nil {
			return s.quickOp(def, key, verb, cost, checked)
		}
		i := v.home(id)
		row := &v.ext[uint(i)/uint(extentSlots)][uint(i)%uint(extentSlots)]
		count := fetch(unsafe.Pointer(row)) // not read before the lock is held
		sh.mu.Lock()
		if sh.closed || b.dead.Load() {
			sh.mu.Unlock()
			return s.quickOp(def, key, verb, cost, checked)
		}
		if row.id != id || row.tag != tag {
			i, row = sh.row(id, tag)
		}
		if row == nil || row.handle != b.handle {
			sh.mu.Unlock()
			return s.quickOp(def, key, verb, cost, checked)
		}
		now, fresh := sh.ticker.at(count)
		if !fresh {
			now = s.readClock(sh, count)
		}
		var after, t int64
		var allowed bool
		if b.bucket {
			after, t, a.Remaining, a.Retry, a.Reset, allowed = b.take(row.used, row.ts, now, cost)
		} else if phase := sh.phase(i); phase != 0 || !b.spread {
			after, t, a.Remaining, a.Retry, a.Reset, allowed = b.takeInWindow(row.used, row.ts, now, cost, phase)
		} else {
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
	var op store.Op // set field by field: a literal would be copied
	op.Def, op.Key, op.Verb, op.Cost = def, key, verb, cost
	if !s.single(&op) || op.Never || op.Shadow { // such an op has changed nothing
		return a, nil, false
	}
	return store.QuickAnswer{Granted: op.Granted, Remaining: op.Remaining, Retry: op.Retry, Reset: op.Reset}, nil, true
}

// single decides a batch of one op, the common case. It returns false, and
// does nothing, if the op needs more than its row; the caller then uses group.
func (s *Store) single(op *store.Op) (ok bool) {
	def := op.Def
	var p place
	if err := s.place(&p, op); err != nil || p.def != def { // gone, or superseded
		return false
	}
	sh := &s.shards[p.shard]
	sh.mu.Lock()
	ok = !sh.closed && !p.dead.Load() && s.decide(sh, &p, op)
	sh.mu.Unlock()
	return ok
}

func (s *Store) decide(sh *shard, p *place, op *store.Op) bool {
	now := s.nowIn(sh, counter())
	var row store.State
	i, found := sh.find(p.id, p.tag)
	if found {
		if sh.at(i).handle&withLows != 0 {
			return false
		}
		row = sh.state(sh.at(i), p)
		op.Phase = cmp.Or(sh.phase(i), op.Phase)
	}
	row, write, err := op.Step(now, row, false)
	if found {
		sh.keepPhase(i, op.Phase)
	}
	switch {
	case err != nil || op.Delay > 0: // a reservation is to be kept
		return false
	case !write:
		return true
	case found:
		sh.rewrite(i, p, op.Key, row)
		return true
	}
	return s.insert(sh, i, p, op, row, now)
}

// insert adds the row of a key that is new.
func (s *Store) insert(sh *shard, i int, p *place, op *store.Op, row store.State, now int64) bool {
	if !sh.ready(1, op) || !s.room(sh, i, 1, now) {
		return false
	}
	i, _ = sh.find(p.id, p.tag) // making room moves rows
	sh.add(i, p, op, row, now, true)
	sh.maintain(now)
	return true
}

// state reads a row.
func (sh *shard) state(r *slot, p *place) store.State {
	row := store.State{Used: r.used, TS: r.ts, Version: p.def.Number}
	handle := r.handle &^ withLows
	if handle != p.handle {
		row.Version = (*sh.store.limits.handles.Load())[handle].version
	}
	if r.handle != handle {
		if k := sh.records[rowID{r.id, r.tag}]; k != nil { // it is nil if the limit was dropped and defined again
			row.Lows = k.lows
		}
	}
	return row
}

// rewrite changes the row at i, or removes it if nothing is used: a missing row
// means a full bucket.
func (sh *shard) rewrite(i int, p *place, key string, row store.State) {
	r := sh.at(i)
	r.used, r.ts = row.Used, row.TS
	was := r.handle
	if was != p.handle || row.Lows != nil {
		r.handle = p.handle
		sh.setLows(r, p, key, row.Lows, was&withLows != 0)
		if was&^withLows != p.handle && p.def.ListKeys {
			sh.keepText(i, key)
		}
	}
	if row.Used == 0 {
		sh.remove(i)
	}
}

// setLows keeps the lows of a row, or ends those that it had.
func (sh *shard) setLows(r *slot, p *place, key string, lows *store.Lows, had bool) {
	switch {
	case lows != nil:
		r.handle |= withLows
		sh.recordsOf(p, key).lows = lows
	case had:
		sh.endLows(rowID{r.id, r.tag})
	}
}

// add inserts a row. ready and room must have been called for it.
func (sh *shard) add(i int, p *place, op *store.Op, row store.State, now int64, reclaim bool) {
	sh.insert(i, slot{p.id, row.Used, row.TS, p.tag, p.handle}, now, reclaim)
	sh.setPhase(i, op.Phase)
	sh.setLows(sh.at(i), p, op.Key, row.Lows, false)
	if op.Def.ListKeys {
		sh.keepText(i, op.Key)
	}
}

// room counts n more keys and reports whether they fit in MaxKeys. At the bound
// it first reclaims full rows: near slot i of the shard that the caller has
// locked, then elsewhere in that shard, then in shards whose lock is free,
// starting where the previous call stopped.
func (s *Store) room(sh *shard, i int, n, now int64) bool {
	if s.count(n) {
		return true
	}
	sh.sweepRange(&i, now, probeCheck)
	if s.count(n) {
		return true
	}
	sh.sweep(now, ownSweep)
	for range otherSweeps {
		if s.count(n) {
			return true
		}
		if other := s.lockAny(); other != nil {
			other.sweep(now, otherSweep)
			other.mu.Unlock()
		}
	}
	return s.count(n)
}

// Slots that one call for a new key looks at in a full store: a few microseconds.
const (
	ownSweep    = 1024 // slots
	otherSweep  = 256
	otherSweeps = 4
)

func (s *Store) count(n int64) bool {
	for {
		keys := s.keys.Load()
		if keys+n > s.max {
			return false
		}
		if s.keys.CompareAndSwap(keys, keys+n) {
			return true
		}
	}
}

// lockAny locks the next shard whose lock is free, or returns nil. It does not wait,
// because the caller has locks already.
func (s *Store) lockAny() *shard {
	for range s.shards {
		sh := &s.shards[s.hand.Add(1)%uint32(len(s.shards))]
		if sh.mu.TryLock() {
			return sh
		}
	}
	return nil
}

// group decides several ops at one instant, all or nothing.
func (s *Store) group(g *store.Group, now int64) error {
	n := len(g.Ops)
	if n > store.MaxTakes {
		return fmt.Errorf("memstore: %d operations in a group; at most %d", n, store.MaxTakes)
	}
	var places [store.MaxTakes]place
	locks, err := s.lock(g, places[:n])
	if err != nil {
		return err
	}
	defer s.release(locks)
	var rows [store.MaxTakes]store.State
	var write [store.MaxTakes]bool
	for i := range places[:n] {
		p := &places[i]
		sh := &s.shards[p.shard]
		if j, found := sh.find(p.id, p.tag); found {
			rows[i] = sh.state(sh.at(j), p)
			g.Ops[i].Phase = cmp.Or(sh.phase(j), g.Ops[i].Phase)
		}
	}
	if err := g.Decide(now, rows[:n], write[:n]); err != nil {
		return err
	}
	if !g.Allowed {
		return nil
	}
	for i := range g.Ops {
		if g.Ops[i].Verb == store.VerbReset {
			write[i] = true // also if the row is full: the clock may step back
		} else if write[i] && rows[i].Lows != nil {
			if err := s.advanceRow(&g.Ops[i], &places[i], &rows[i], now); err != nil {
				return err
			}
		}
	}
	if err := s.write(g, places[:n], rows[:n], write[:n], locks, now); err != nil {
		g.Allowed, g.Reserved = false, false
		return err
	}
	for i := range g.Ops {
		if p := &places[i]; g.Ops[i].Verb == store.VerbReset {
			s.reservations.reset(p)
			if sh := &s.shards[p.shard]; sh.records[rowID{p.id, p.tag}] != nil {
				sh.dropRecords(sh.records[rowID{p.id, p.tag}])
			}
		}
	}
	return nil
}

// advanceRow brings the records of a row that is about to be written up to date,
// if one has fallen due, and decides the op again, which changes only the lows.
// Refusals skip this: they cost the same beside thousands of waiting calls.
func (s *Store) advanceRow(op *store.Op, p *place, row *store.State, now int64) (err error) {
	sh := &s.shards[p.shard]
	k := sh.records[rowID{p.id, p.tag}]
	if k.next > now {
		return nil
	}
	sh.advanceKey(k, p.binding, now)
	var was store.State
	if i, found := sh.find(p.id, p.tag); found {
		was = sh.state(sh.at(i), p)
	}
	*row, _, err = op.Step(now, was, false)
	return err
}

// lock takes the locks of the group's shards, in order, and returns their set.
func (s *Store) lock(g *store.Group, places []place) (uint64, error) {
	for {
		var locks uint64
		for i := range g.Ops {
			if err := s.place(&places[i], &g.Ops[i]); err != nil {
				return 0, err
			}
			locks |= 1 << places[i].shard
		}
		superseded, closed := false, false
		for left := locks; left != 0; left &= left - 1 {
			sh := &s.shards[bits.TrailingZeros64(left)]
			sh.mu.Lock()
			closed = closed || sh.closed
		}
		for i := range places {
			superseded = superseded || places[i].dead.Load()
		}
		if !closed && !superseded {
			return locks, nil
		}
		s.release(locks)
		if closed {
			return 0, ErrClosed
		}
	}
}

func (s *Store) release(locks uint64) {
	for ; locks != 0; locks &= locks - 1 {
		s.shards[bits.TrailingZeros64(locks)].mu.Unlock()
	}
}

// write stores the rows that a group changed, all or none.
func (s *Store) write(g *store.Group, places []place, rows []store.State, write []bool, locks uint64, now int64) error {
	room, err := s.prepare(g, places, rows, write, now)
	if err != nil {
		return err
	}
	var made []store.Record
	if g.Reserved = g.Reserved && g.ID != (store.Reservation{}); g.Reserved {
		if made = s.reserve(g, places, rows, locks, now); made == nil {
			s.keys.Add(-room)
			return s.fullError()
		}
	}
	var grown uint64
	for i := range places {
		if !write[i] {
			continue
		}
		p, sh := &places[i], &s.shards[places[i].shard]
		j, found := sh.find(p.id, p.tag)
		switch {
		case found:
			sh.keepPhase(j, g.Ops[i].Phase)
			sh.rewrite(j, p, g.Ops[i].Key, rows[i])
		case rows[i].Used != 0:
			sh.add(j, p, &g.Ops[i], rows[i], now, false)
			grown |= 1 << p.shard
			room--
		}
	}
	s.keys.Add(-room)
	for i := range made {
		if p := &places[i]; made[i].Number != 0 {
			sh := &s.shards[p.shard]
			sh.append(sh.recordsOf(p, g.Ops[i].Key), made[i])
		}
	}
	for i := range made { // after all records are added: the lows of a key end with its last record
		s.shards[places[i].shard].advanceDue(now, advancePerReserve)
	}
	for ; grown != 0; grown &= grown - 1 {
		s.shards[bits.TrailingZeros64(grown)].maintain(now)
	}
	return nil
}

// prepare makes room for the group's new rows and returns their number. It
// loops because making room may reclaim full rows of the group itself; each row
// is reclaimed at most once, so the loop ends.
func (s *Store) prepare(g *store.Group, places []place, rows []store.State, write []bool, now int64) (int64, error) {
	var room int64
	for {
		var missing int64
		for i := range places {
			p, sh := &places[i], &s.shards[places[i].shard]
			if !write[i] || rows[i].Used == 0 {
				continue
			}
			if !sh.ready(len(places), &g.Ops[i]) {
				s.keys.Add(-room)
				return 0, s.fullError()
			}
			if _, found := sh.find(p.id, p.tag); !found {
				missing++
			}
		}
		if missing <= room {
			return room, nil
		}
		if !s.room(&s.shards[places[0].shard], 0, missing-room, now) {
			s.keys.Add(-room)
			return 0, s.fullError()
		}
		room = missing
	}
}
