package memory

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"

	"github.com/dipwell/dipwell/store"
)

// A txn is the store.Table of one call, on the keys whose shards it has locked. It
// keeps what is written until commit, so that a call that fails changes nothing.
type txn struct {
	s     *Store
	home  *shard // that keeps the txn while it is not in use
	now   int64
	locks uint64 // shards
	rows  []txnRow
	next  int // where row looks first

	pending     []write[store.Reservation, store.Pending]
	holds       []write[string, store.Hold]
	holdsLocked bool
	touched     []Touched
}

// A txnRow is a key of a txn.
type txnRow struct {
	place
	name  string // of the limit; binding is nil if there is no such limit
	key   string
	op    *store.Op // nil: the call does not name the key
	state store.State
	// As they are, or as they will be.
	records  []store.Record
	override *store.Override

	read, wrote, wroteOverride bool
}

type write[K, V any] struct {
	key   K
	value V
}

// errNotLocked: a hold has other keys than when its shards were locked.
var errNotLocked = errors.New("memory: the key is not locked")

// group decides a group, all or nothing, and returns the keys that it changed if
// Watch was called.
func (s *Store) group(g *store.Group, now int64) ([]Touched, error) {
	if n := len(g.Ops); n > store.MaxTakes {
		return nil, fmt.Errorf("memstore: %d operations in a group; at most %d", n, store.MaxTakes)
	}
	for {
		touched, err := s.tryGroup(g, now)
		if !errors.Is(err, errNotLocked) {
			return touched, err
		}
	}
}

func (s *Store) tryGroup(g *store.Group, now int64) ([]Touched, error) {
	var rows [store.MaxTakes]txnRow
	n, err := s.placeRows(g, &rows)
	if err != nil {
		return nil, err
	}
	t, err := s.begin(rows[:n], now)
	if err != nil {
		return nil, err
	}
	defer s.release(t.locks)
	defer t.end()
	if err = g.DecideIn(t, &s.reg, now); err == nil {
		err = t.commit()
	}
	if err != nil {
		g.Allowed, g.Reserved = false, false
	}
	return t.touched, err
}

// placeRows sets the keys of a group, and returns their number.
func (s *Store) placeRows(g *store.Group, rows *[store.MaxTakes]txnRow) (n int, err error) {
	add := func(limit, key string) {
		r := &rows[n]
		r.name, r.key = limit, key
		if r.binding = s.limits.currentOf(limit); r.binding != nil {
			r.place.hash(s, key)
		}
		n++
	}
	switch {
	case g.Cancel:
		for _, p := range s.reservations.get(g.ID).Parts {
			add(p.Limit, p.Key)
		}
	case g.Settles():
		for _, p := range s.holds.get(g.Hold.ID).Parts {
			add(p.Limit, p.Key)
		}
	}
	for i := range g.Ops {
		op, r := &g.Ops[i], &rows[n]
		if r.binding, err = s.bind(op.Def); err != nil {
			return 0, err
		}
		r.name, r.key, r.op = op.Def.Name, op.Key, op
		r.place.hash(s, op.Key)
		n++
	}
	return n, nil
}

// begin locks the shards of rows, in order, and returns a txn on copies of rows.
func (s *Store) begin(rows []txnRow, now int64) (*txn, error) {
	var locks uint64
	for i := range rows {
		if rows[i].binding != nil {
			locks |= 1 << rows[i].shard
		}
	}
	if locks == 0 {
		locks = 1
	}
	closed := false
	for left := locks; left != 0; left &= left - 1 {
		sh := &s.shards[bits.TrailingZeros64(left)]
		sh.mu.Lock()
		closed = closed || sh.closed
	}
	if closed {
		s.release(locks)
		return nil, ErrClosed
	}
	t := s.shards[bits.TrailingZeros64(locks)].newTxn()
	t.locks = locks
	t.add(now, rows...)
	return t, nil
}

// add adds keys, whose shards are locked.
func (t *txn) add(now int64, rows ...txnRow) {
	t.now = now
	t.rows = append(t.rows, rows...)
	for i := range t.rows {
		if k := t.rows[i].extra(t.s); k != nil {
			k.inUse++
		}
	}
}

// newTxn returns a txn without keys. The shard has spare ones, so that a call
// allocates none.
func (sh *shard) newTxn() *txn {
	if n := len(sh.txns); n > 0 {
		t := sh.txns[n-1]
		sh.txns = sh.txns[:n-1]
		return t
	}
	return &txn{s: sh.store, home: sh}
}

// end ends the txn, but leaves the shards locked.
func (t *txn) end() {
	for i := range t.rows {
		if k := t.rows[i].extra(t.s); k != nil && k.inUse > 0 {
			k.inUse--
		}
	}
	if t.holdsLocked {
		t.s.holds.mu.Unlock()
	}
	clear(t.rows)
	clear(t.pending)
	clear(t.holds)
	sh := t.home
	*t = txn{s: t.s, home: sh, rows: t.rows[:0], pending: t.pending[:0], holds: t.holds[:0]}
	sh.txns = append(sh.txns, t)
}

func (s *Store) release(locks uint64) {
	for ; locks != 0; locks &= locks - 1 {
		s.shards[bits.TrailingZeros64(locks)].mu.Unlock()
	}
}

// extra returns what a key has besides its row, or nil.
func (r *txnRow) extra(s *Store) *keyExtras {
	if r.binding == nil {
		return nil
	}
	return s.shards[r.shard].extras[rowID{r.id, r.tag}]
}

// row returns a key of the txn, as it is stored or was written last.
func (t *txn) row(limit, key string) (*txnRow, error) {
	for range t.rows {
		if t.next >= len(t.rows) {
			t.next = 0
		}
		r := &t.rows[t.next]
		if r.key == key && r.name == limit {
			if !r.read {
				t.read(r)
			}
			return r, nil
		}
		t.next++
	}
	return nil, errNotLocked
}

func (t *txn) read(r *txnRow) {
	r.read = true
	if r.binding == nil {
		return
	}
	sh := &t.s.shards[r.shard]
	if i, found := sh.find(r.id, r.tag); found {
		sh.state(&r.state, sh.at(i), &r.place)
		if r.op != nil {
			r.op.Phase = cmp.Or(sh.phase(i), r.op.Phase)
		}
	}
	if k := r.extra(t.s); k != nil {
		r.records, r.override = k.records, k.override
	}
}

func (t *txn) Row(limit, key string) (store.State, []store.Record, error) {
	r, err := t.row(limit, key)
	if err != nil {
		return store.State{}, nil, err
	}
	row := r.state
	row.Override = r.override
	return row, r.records, nil
}

func (t *txn) SetRow(limit, key string, row store.State, records []store.Record) error {
	r, err := t.row(limit, key)
	if err == nil {
		row.Override = nil
		r.state, r.records, r.wrote = row, records, true
	}
	return err
}

func (t *txn) SetOverride(limit, key string, o *store.Override) error {
	r, err := t.row(limit, key)
	if err == nil {
		r.override, r.wrote, r.wroteOverride = o, true, true
	}
	return err
}

func (t *txn) Pending(id store.Reservation) (store.Pending, error) {
	return t.s.reservations.get(id), nil
}

func (t *txn) SetPending(id store.Reservation, h store.Pending) error {
	t.pending = append(t.pending, write[store.Reservation, store.Pending]{id, h})
	return nil
}

// Hold locks the holds until the call ends: calls with the same id may have locked
// other shards.
func (t *txn) Hold(id string) (store.Hold, error) {
	t.lockHolds()
	for i := len(t.holds) - 1; i >= 0; i-- {
		if t.holds[i].key == id {
			return t.holds[i].value, nil
		}
	}
	if e := t.s.holds.entries[id]; e != nil {
		return e.value, nil
	}
	return store.Hold{}, nil
}

func (t *txn) SetHold(id string, h store.Hold) error {
	t.lockHolds()
	t.holds = append(t.holds, write[string, store.Hold]{id, h})
	return nil
}

func (t *txn) lockHolds() {
	if !t.holdsLocked {
		t.s.holds.mu.Lock()
		t.holdsLocked = true
	}
}

// commit stores what was written, all or nothing.
func (t *txn) commit() error {
	room, err := t.room()
	if err != nil {
		return err
	}
	if err = t.setIDs(); err != nil {
		t.s.keys.Add(-room)
		return err
	}
	var grown, recorded uint64
	for i := range t.rows {
		if r := &t.rows[i]; len(r.records) > 0 {
			recorded |= 1 << r.shard
		}
		if r := &t.rows[i]; r.wrote && r.binding != nil && t.store(r) {
			grown |= 1 << r.shard
			room--
		}
	}
	t.s.keys.Add(-room)
	for ; grown != 0; grown &= grown - 1 {
		t.s.shards[bits.TrailingZeros64(grown)].maintain(t.now)
	}
	for ; recorded != 0; recorded &= recorded - 1 {
		t.s.shards[bits.TrailingZeros64(recorded)].sweepDue(t.now, sweepsPerRecord)
	}
	return nil
}

// sweepsPerRecord is how many keys a call with records sweeps in its shards, so that
// records of keys that are no longer used are removed.
const sweepsPerRecord = 4

// room makes room for new rows, records and overrides, and returns the number of rows.
func (t *txn) room() (int64, error) {
	s := t.s
	var records, overrides int64
	for i := range t.rows {
		r := &t.rows[i]
		if !r.wrote || r.binding == nil {
			continue
		}
		var old keyExtras
		if k := r.extra(s); k != nil {
			old = *k
		}
		records += old.added(r.records)
		if r.override != nil && old.override == nil {
			overrides++
		}
	}
	if overrides > 0 && s.overrides.Load()+overrides > int64(s.maxOverrides) {
		s.refused.Add(1)
		return 0, fmt.Errorf("%w: %d overrides, which is MaxOverrides", store.ErrFull, s.maxOverrides)
	}
	if records > 0 && !t.recordRoom(records) {
		return 0, s.fullError()
	}
	return t.rowRoom()
}

// recordRoom reports whether n more records fit. At the bound it first removes
// records that have ended, in the shards that are locked and in those whose lock is free.
func (t *txn) recordRoom(n int64) bool {
	for i := -1; i < len(t.s.shards); i++ {
		if i >= 0 {
			t.s.sweepShard(i, t.locks&(1<<i) != 0, t.now)
		}
		if t.s.records.Load()+n <= int64(t.s.reservations.max) {
			return true
		}
	}
	return false
}

// rowRoom makes room for the new rows and returns their number. It loops because
// making room may reclaim full rows of the txn itself; each row is reclaimed at most
// once, so the loop ends.
func (t *txn) rowRoom() (room int64, err error) {
	s := t.s
	for {
		var missing int64
		for i := range t.rows {
			r := &t.rows[i]
			if !r.wrote || r.state.Used == 0 || r.binding == nil {
				continue
			}
			sh := &s.shards[r.shard]
			if !sh.ready(len(t.rows), r.def, r.key) {
				s.keys.Add(-room)
				return 0, s.fullError()
			}
			if _, found := sh.find(r.id, r.tag); !found {
				missing++
			}
		}
		if missing <= room {
			return room, nil
		}
		if !s.room(t.home, 0, missing-room, t.now) {
			s.keys.Add(-room)
			return 0, s.fullError()
		}
		room = missing
	}
}

// setIDs stores reservations and holds.
func (t *txn) setIDs() error {
	for i := range t.holds {
		if h := &t.holds[i]; !t.s.holds.set(h.key, h.value, t.now) {
			t.s.refused.Add(1)
			return fmt.Errorf("%w: %d holds, of all keys, which is MaxHolds", store.ErrFull, t.s.holds.max)
		}
	}
	if len(t.pending) == 0 {
		return nil
	}
	r := &t.s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range t.pending {
		if p := &t.pending[i]; !r.set(p.key, p.value, t.now) {
			return t.s.fullError()
		}
	}
	return nil
}

// store stores a key that was written, and reports whether it made a row.
func (t *txn) store(r *txnRow) (added bool) {
	sh, id := &t.s.shards[r.shard], rowID{r.id, r.tag}
	k := sh.extras[id]
	if k == nil && (r.state.Lows != nil || len(r.records) > 0 || r.override != nil) {
		k = sh.extrasOf(&r.place, r.key)
	}
	i, found := sh.find(r.id, r.tag)
	r.state.Override = r.override
	if k != nil {
		k.lows = r.state.Lows
		sh.set(k, r.records)
		if r.wroteOverride {
			sh.setOverride(k, r.override)
		}
	}
	switch {
	case found:
		if r.op != nil {
			sh.keepPhase(i, r.op.Phase)
		}
		sh.rewrite(i, &r.place, r.key, &r.state)
	case r.state.Used != 0:
		var phase int64
		if r.op != nil {
			phase = r.op.Phase
		}
		sh.add(i, &r.place, r.key, phase, &r.state, t.now, false)
		added = true
	}
	if k != nil {
		sh.dropIfEmpty(k)
	}
	if t.s.watched.Load() {
		t.touched = append(t.touched, Touched{r.def.Base(), r.key, true})
	}
	return added
}
