package memory

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell/store"
)

// A txn is the store.Table of one call, for the keys whose shards it has locked. What is
// written into a txn is stored by commit, so that a call that fails changes nothing.
type txn struct {
	s     *Store
	now   int64
	locks []uint32 // the shards that are locked, in ascending order
	rows  []txnRow
	next  int // index at which the method row looks first

	pending     []write[store.Reservation, store.Pending]
	holds       []write[string, store.Hold]
	holdsLocked bool
	touched     []Touched
}

type txnRow struct {
	place
	name    string // name of the limit; if there is no such limit, binding is nil
	key     string
	op      *store.Op                             // nil if the call does not name the key
	state   store.State                           // the row as stored, or as commit will store it
	records []write[store.RecordID, store.Record] // records that commit will store
	extras  *keyExtras                            // see extra
	slot    int                                   // the slot in which find found the row

	read, looked, wrote, wroteOverride, added bool
}

type write[K, V any] struct {
	key   K
	value V
}

// errNotLocked means that the keys of a hold have changed since its shards were locked, or a
// definition before they were locked: place the keys again.
var errNotLocked = errors.New("memory: the key is not locked")

// group decides a group, all or nothing, and returns the keys that it changed if
// Watch was called. group reads the clock once the keys are locked.
func (s *Store) group(g *store.Group) ([]Touched, error) {
	if n := len(g.Ops); n > store.MaxTakes {
		return nil, fmt.Errorf("memstore: %d operations in a group; at most %d", n, store.MaxTakes)
	}
	for {
		touched, err := s.tryGroup(g)
		if !errors.Is(err, errNotLocked) {
			return touched, err
		}
	}
}

func (s *Store) tryGroup(g *store.Group) ([]Touched, error) {
	t := s.newTxn(0)
	defer t.end()
	if err := t.placeGroup(g); err != nil {
		return nil, err
	}
	if err := t.lock(); err != nil {
		return nil, err
	}
	defer t.unlock()
	t.now = s.nowIn(&s.shards[t.locks[0]], counter())
	err := g.DecideIn(t, &s.reg, t.now)
	if err == nil {
		err = t.commit()
	}
	if err != nil {
		g.Allowed, g.Reserved = false, false
	}
	return t.touched, err
}

func (t *txn) placeGroup(g *store.Group) (err error) {
	switch {
	case g.Cancel:
		for _, p := range t.s.reservations.get(g.ID).Parts {
			t.placeNamed(p.Limit, p.Key)
		}
	case g.Settles():
		for _, p := range t.s.holds.get(g.Hold.ID).Parts {
			t.placeNamed(p.Limit, p.Key)
		}
	default:
		for i := range g.Ops {
			op := &g.Ops[i]
			b, err := t.s.bind(op.Def)
			if err != nil {
				return err
			}
			t.place(b, op.Def.Name, op.Key, op)
		}
	}
	return nil
}

// placeNamed adds a key whose limit may have been dropped.
func (t *txn) placeNamed(limit, key string) {
	var b *binding
	if d := t.s.reg.Lookup(limit); d != nil {
		b, _ = t.s.bind(d)
	}
	t.place(b, limit, key, nil)
}

func (t *txn) place(b *binding, limit, key string, op *store.Op) {
	n := len(t.rows)
	t.rows = t.rows[:n+1]
	r := &t.rows[n]
	r.name, r.key, r.op = limit, key, op
	if r.binding = b; b != nil {
		r.hash(t.s, key)
		t.s.shards[r.shard].prefetch(r.id)
		t.locks = append(t.locks, r.shard)
	}
}

// lock locks the shards of the keys, in order. lock fails if a definition was superseded since
// place: once no row in the shards is under it, its handle may be reused for another version.
func (t *txn) lock() error {
	if len(t.locks) == 0 { // none of the call's limits exists
		t.locks = append(t.locks, 0)
	}
	slices.Sort(t.locks) // sorted, so that no two calls wait for each other
	t.locks = slices.Compact(t.locks)
	var err error
	for _, i := range t.locks {
		sh := &t.s.shards[i]
		if sh.mu.Lock(); sh.closed {
			err = ErrClosed
		}
	}
	for i := range t.rows {
		if b := t.rows[i].binding; b != nil && b.dead.Load() && err == nil {
			err = errNotLocked
		}
	}
	if err != nil {
		t.release()
	}
	return err
}

func (t *txn) unlock() {
	t.unuse()
	t.unlockHolds() // because sweeps lock the holds
	for i := range t.rows {
		if r := &t.rows[i]; r.wroteOverride && r.state.Override != nil {
			sh := &t.s.shards[r.shard]
			sh.sweepDue(t.now, sweepsPerRecord) // blocks that have ended make room
			sh.forgetBlocks(t.now)
		}
	}
	t.release()
}

// unuse lets sweeps change the extras that the txn has looked up.
func (t *txn) unuse() {
	for i := range t.rows {
		if k := t.rows[i].extras; k != nil {
			k.inUse = max(0, k.inUse-1)
		}
	}
}

var txns = sync.Pool{New: func() any { return &txn{rows: make([]txnRow, 0, store.MaxTakes)} }}

func (s *Store) newTxn(now int64) *txn {
	t := txns.Get().(*txn)
	t.s, t.now = s, now
	return t
}

func (t *txn) end() {
	for i := range t.rows {
		t.rows[i].clear()
	}
	clear(t.pending)
	clear(t.holds)
	t.rows, t.pending, t.holds = t.rows[:0], t.pending[:0], t.holds[:0]
	t.locks, t.next, t.touched = t.locks[:0], 0, nil
	txns.Put(t)
}

// clear prepares the row r for place. clear leaves fields that place sets,
// because clearing a pointer costs time while the garbage collector works.
func (r *txnRow) clear() {
	if r.state.Lows != nil || r.state.Override != nil || r.extras != nil || len(r.records) > 0 {
		clear(r.records)
		*r = txnRow{records: r.records[:0]}
		return
	}
	r.state.Used, r.state.TS, r.state.Version, r.slot = 0, 0, 0, 0
	r.read, r.looked, r.wrote, r.wroteOverride, r.added = false, false, false, false, false
}

func (t *txn) release() {
	for _, i := range t.locks {
		t.s.shards[i].mu.Unlock()
	}
}

// extra returns the extras of a key, or nil. Sweeps leave these extras alone until unuse,
// but a row that makes room for another one drops them.
func (t *txn) extra(r *txnRow) *keyExtras {
	if !r.looked && r.binding != nil {
		t.use(r, t.s.shards[r.shard].extras[rowID{r.id, r.tag}])
	}
	if k := r.extras; k != nil && k.index >= 0 {
		return k
	}
	return nil
}

func (t *txn) use(r *txnRow, k *keyExtras) {
	if r.looked, r.extras = true, k; k != nil {
		k.inUse++
	}
}

// find is the method find of the shard. It first looks in the slot where the row was.
func (r *txnRow) find(sh *shard) (i int, found bool) {
	if r.slot > 0 {
		if p := sh.at(r.slot); p.id == r.id && p.tag == r.tag {
			return r.slot, true
		}
	}
	if i, found = sh.find(r.id, r.tag); found {
		r.slot = i
	}
	return i, found
}

// row returns a key of the txn, as stored or as last written.
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
	i, found := r.find(sh)
	if !found {
		if k := t.extra(r); k != nil {
			r.state.Override = k.override
		}
		return
	}
	if k := sh.state(&r.state, i, &r.place); k != nil {
		t.use(r, k)
	}
	if r.op != nil {
		r.op.Phase = cmp.Or(sh.phases.get(i), r.op.Phase)
	}
}

func (t *txn) Row(limit, key string) (store.State, error) {
	r, err := t.row(limit, key)
	if err != nil {
		return store.State{}, err
	}
	return r.state, nil
}

func (t *txn) SetRow(limit, key string, row store.State) error {
	r, err := t.row(limit, key)
	if err == nil {
		r.state.Used, r.state.TS, r.state.Version, r.wrote = row.Used, row.TS, row.Version, true
		if r.state.Lows != row.Lows {
			r.state.Lows = row.Lows
		}
	}
	return err
}

func (t *txn) Record(limit, key string, id store.RecordID) (store.Record, error) {
	r, err := t.row(limit, key)
	if err == nil {
		if k := t.extra(r); k != nil {
			if i := k.find(id); i >= 0 && !isGone(&k.records[i]) {
				return k.records[i], nil
			}
		}
	}
	return store.Record{}, err
}

func (t *txn) Records(limit, key string) ([]store.Record, error) {
	r, err := t.row(limit, key)
	if err == nil {
		if k := t.extra(r); k != nil {
			return k.pack(), nil
		}
	}
	return nil, err
}

func (t *txn) SetRecord(limit, key string, id store.RecordID, record store.Record) error {
	r, err := t.row(limit, key)
	if err == nil {
		r.records, r.wrote = append(r.records, write[store.RecordID, store.Record]{id, record}), true
	}
	return err
}

func (t *txn) SetOverride(limit, key string, o *store.Override) error {
	r, err := t.row(limit, key)
	if err == nil {
		r.state.Override, r.wrote, r.wroteOverride = o, true, true
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

// The holds stay locked, because calls with the same id may have locked other shards.
func (t *txn) Hold(id string) (store.Hold, error) {
	t.lockHolds()
	for i := len(t.holds) - 1; i >= 0; i-- {
		if t.holds[i].key == id {
			return t.holds[i].value, nil
		}
	}
	if e := t.s.holds.find(id); e != nil {
		return e.value, nil
	}
	return store.Hold{}, nil
}

func (t *txn) SetHold(id string, h store.Hold) error {
	t.lockHolds()
	t.holds = append(t.holds, write[string, store.Hold]{id, h})
	return nil
}

// Live unlocks the holds again if it has locked them, because sweeps lock them.
func (t *txn) Live(limit, key string, now int64) (n int, err error) {
	r, err := t.row(limit, key)
	if err != nil {
		return 0, err
	}
	if k := t.extra(r); k != nil {
		n = k.count()
	}
	if !t.holdsLocked {
		t.s.holds.mu.Lock()
		defer t.s.holds.mu.Unlock()
	}
	if len(t.s.free) == 0 {
		return n, nil
	}
	t.s.holds.advance(now)
	return n + t.s.free[[2]string{limit, key}], nil
}

func (t *txn) lockHolds() {
	if !t.holdsLocked {
		t.s.holds.mu.Lock()
		t.holdsLocked = true
	}
}

func (t *txn) unlockHolds() {
	if t.holdsLocked {
		t.s.holds.mu.Unlock()
		t.holdsLocked = false
	}
}

// commit stores what was written, all or nothing.
func (t *txn) commit() error {
	counted, err := t.room()
	if err != nil {
		return err
	}
	if err = t.setIDs(); err != nil {
		t.s.uncount(counted)
		return err
	}
	for i := range t.rows {
		if r := &t.rows[i]; r.wrote && r.binding != nil {
			if r.added = t.store(r); r.added {
				counted.add(r.def, r.key, -1)
			}
		}
	}
	t.s.uncount(counted)
	t.unlockHolds() // because sweeps lock the holds
	for i := range t.rows {
		r := &t.rows[i]
		if r.added {
			t.s.shards[r.shard].maintain(t.now)
		}
		if len(r.records) > 0 {
			t.s.shards[r.shard].sweepDue(t.now, sweepsPerRecord)
		}
	}
	return nil
}

const sweepsPerRecord = 4 // keys of the shard that a call which makes records or an override sweeps

// room returns what it has counted for new rows. It also makes room for records and overrides.
func (t *txn) room() (room, error) {
	s := t.s
	var records, overrides int64
	for i := range t.rows {
		r := &t.rows[i]
		if !r.wrote || r.binding == nil || len(r.records) == 0 && r.state.Override == nil {
			continue
		}
		k := t.extra(r)
		if k == nil {
			k = &keyExtras{}
		}
		for j := range r.records {
			records += k.added(k.find(r.records[j].key), &r.records[j].value)
		}
		set, _ := countsOf(r.state.Override)
		was, _ := countsOf(k.override)
		overrides += max(set-was, 0)
	}
	if overrides > 0 && !t.madeRoom(&s.overrides, overrides, s.maxOverrides) {
		s.refused.Add(1)
		return room{}, fmt.Errorf("%w: %d overrides, which is MaxOverrides", store.ErrFull, s.maxOverrides)
	}
	if records > 0 && !t.madeRoom(&s.records, records, s.reservations.max) {
		return room{}, s.fullError()
	}
	return t.rowRoom()
}

// madeRoom reports whether n more records of reservations, or overrides, fit, if need be after it
// has removed ended ones in the shards that are locked or whose lock is free.
func (t *txn) madeRoom(count *atomic.Int64, n int64, most int) bool {
	for i := -1; i < len(t.s.shards); i++ {
		if i >= 0 && !t.holdsLocked { // because sweeps lock the holds
			t.s.sweepShard(i, slices.Contains(t.locks, uint32(i)), t.now)
		}
		if count.Load()+n <= int64(most) {
			return true
		}
	}
	return false
}

// rowRoom counts the new rows, again if making room has reclaimed full rows of the txn itself;
// each row is reclaimed at most once, so the loop ends.
func (t *txn) rowRoom() (counted room, err error) {
	s := t.s
	for {
		var missing room
		var sweep *shard
		for i := range t.rows {
			r := &t.rows[i]
			if !r.wrote || r.state.Used == 0 || r.binding == nil {
				continue
			}
			sh := &s.shards[r.shard]
			if _, found := r.find(sh); found {
				continue
			}
			if !sh.ready(len(t.rows), r.def, r.key) {
				s.uncount(counted)
				return room{}, s.fullError()
			}
			missing.add(r.def, r.key, 1)
			sweep = sh
		}
		more := room{missing.keys - counted.keys, missing.text - counted.text}
		if more.keys <= 0 {
			return counted, nil
		}
		if !s.room(sweep, 0, more, t.now) {
			s.uncount(counted)
			return room{}, s.noRoom(more)
		}
		counted = missing
	}
}

func (t *txn) setIDs() error {
	for i := range t.holds {
		if h := &t.holds[i]; !t.s.holds.set(h.key, &h.value, t.now) {
			t.s.refused.Add(1)
			return fmt.Errorf("%w: %d live holds, of all keys, which is MaxHolds", store.ErrFull, t.s.holds.max)
		}
	}
	if len(t.pending) == 0 {
		return nil
	}
	r := &t.s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range t.pending {
		if p := &t.pending[i]; !r.set(p.key, &p.value, t.now) {
			return t.s.fullError()
		}
	}
	return nil
}

// store stores a key that was written, and reports whether it added a row.
func (t *txn) store(r *txnRow) (added bool) {
	sh := &t.s.shards[r.shard]
	var k *keyExtras // nil if the row has, and gets, nothing but its numbers
	needs := r.state.Lows != nil || len(r.records) > 0 || r.state.Override != nil
	if needs || r.looked {
		k = t.extra(r)
	}
	if k == nil && needs {
		k = sh.extrasOf(&r.place, r.key)
	}
	i, found := r.find(sh)
	if k != nil {
		k.lows = r.state.Lows
		for j := range r.records {
			sh.setRecord(k, r.records[j].key, &r.records[j].value)
		}
		if r.wroteOverride {
			sh.setOverride(k, r.state.Override)
		} else {
			heap.Fix(&sh.due, k.index)
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
