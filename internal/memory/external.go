package memory

import (
	"github.com/dipwell/dipwell/store"
)

// This file is for stores that decide in memory and keep the rows somewhere else too.

// Changes is the row and override of a key, and how its records changed since the last call.
type Changes struct {
	Row     store.State
	Found   bool             // false: the table has no row, because the bucket is full or the limit is gone
	Records []store.Record   // records that were made or changed
	Ended   []store.RecordID // ids of the records that are gone
}

// Changes returns a key's row, and those of its records that changed since the last call.
func (s *Store) Changes(d *store.Definition, key string) (c Changes) {
	sh, p := s.lockKey(d, key)
	if sh == nil {
		return c
	}
	defer sh.mu.Unlock()
	var i int
	if i, c.Found = sh.find(p.id, p.tag); c.Found {
		sh.state(&c.Row, i, &p)
	}
	if k := sh.extras[rowID{p.id, p.tag}]; k != nil {
		c.Row.Override = k.override
		for id := range k.changed {
			if j := k.find(id); j >= 0 && !isGone(&k.records[j]) {
				c.Records = append(c.Records, k.records[j])
			} else {
				c.Ended = append(c.Ended, id)
			}
		}
		clear(k.changed)
		sh.dropIfEmpty(k)
	}
	return c
}

// lockKey finds a key and locks its shard. The shard is nil if the limit is gone.
func (s *Store) lockKey(d *store.Definition, key string) (sh *shard, p place) {
	for s.place(&p, d, key) == nil {
		sh = &s.shards[p.shard]
		if sh.mu.Lock(); !p.dead.Load() {
			return sh, p
		}
		sh.mu.Unlock()
	}
	return nil, p
}

// PutRecords adds records to a key, in the order of their numbers. Put the row of the key
// first, with its lows, if it has one. The error is store.ErrFull if there is no room.
func (s *Store) PutRecords(d *store.Definition, key string, records []store.Record) error {
	sh, p := s.lockKey(d, key)
	if sh == nil {
		return nil
	}
	defer sh.mu.Unlock()
	k := sh.extrasOf(&p, key)
	for i := range records {
		sh.setRecord(k, records[i].ID(), &records[i])
	}
	if sh.reschedule(k); s.records.Load() > int64(s.reservations.max) {
		sh.dropExtras(k)
		return s.fullError()
	}
	return nil
}

// PutOverride sets an override with its ID and Version. Put an override before the
// row of its key. The error is store.ErrFull if there is no room.
func (s *Store) PutOverride(d *store.Definition, o *store.Override) error {
	sh, p := s.lockKey(d, o.Key)
	if sh == nil {
		return nil
	}
	defer sh.mu.Unlock()
	set, _ := countsOf(o)
	was, _ := countsOf(sh.overrideOf(&p))
	if set > was && s.overrides.Load() >= int64(s.maxOverrides) {
		return s.fullError()
	}
	o.Prepare()
	sh.setOverride(sh.extrasOf(&p, o.Key), o)
	sh.forgetBlocks(s.now())
	return nil
}

// SweepEnded removes overrides and records that have ended, if their shards are not locked.
func (s *Store) SweepEnded() {
	for i := range s.shards {
		s.sweepShard(i, false, s.now())
	}
}

// InstallOne adds a definition, or replaces the one of its limit.
func (s *Store) InstallOne(d *store.Definition) error {
	s.reg.InstallOne(d.Name, []*store.Definition{d})
	_, err := s.add(d)
	if s.limits.crowded() {
		s.collect()
	}
	return err
}

// Follow is InstallOne for rows that another store does not know of.
func (s *Store) Follow(d *store.Definition) error {
	s.keepUp(d)
	return s.InstallOne(d)
}

// Reservation returns a reservation. One that is due is found until it is removed.
func (s *Store) Reservation(id store.Reservation) store.Pending { return s.reservations.get(id) }

// Hold returns a hold. One that has ended is found until it is removed.
func (s *Store) Hold(id string) store.Hold { return s.holds.get(id) }

func (s *Store) Override(d *store.Definition, key string) *store.Override {
	if b, err := s.bind(d); err != nil || b.limit.overrides.Load() == 0 {
		return nil
	}
	sh, p := s.lockKey(d, key)
	if sh == nil {
		return nil
	}
	defer sh.mu.Unlock()
	return sh.overrideOf(&p)
}

// PutReservation adds a reservation of another store. A part for which PutRecords adds no record
// gives nothing back. The error is store.ErrFull if there is no room.
func (s *Store) PutReservation(id store.Reservation, h store.Pending) error {
	return put(s, &s.reservations, id, h)
}

// PutHold is PutReservation for a hold.
func (s *Store) PutHold(id string, h store.Hold) error { return put(s, &s.holds, id, h) }

func put[K comparable, V any](s *Store, l *ledger[K, V], id K, v V) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.set(id, &v, s.now()) {
		return s.fullError()
	}
	return nil
}

// Touched is a key that a call or a sweep changed.
type Touched struct {
	Def      *store.Definition // the base definition of the key's limit
	Key      string
	GaveBack bool // fewer units may be in use than before, or the override may be another
}

// Watch starts to record which keys, reservations, holds and records change, for
// ApplyWatched, Swept, ChangedReservations, ChangedHolds and Changes.
func (s *Store) Watch() {
	s.reservations.watch()
	s.holds.watch()
	s.watched.Store(true)
}

// ApplyWatched appends to touched the keys whose rows, records or overrides the group changed.
func (s *Store) ApplyWatched(g *store.Group, touched []Touched) []Touched {
	if !s.applyPlain(g) {
		var more []Touched
		more, g.Err = s.group(g)
		return append(touched, more...)
	}
	for i := range g.Ops {
		if op := &g.Ops[i]; g.Allowed && (op.Granted > 0 || op.Verb == store.VerbRefund) {
			touched = append(touched, Touched{op.Def.Base(), op.Key, op.Verb == store.VerbRefund})
		}
	}
	return touched
}

// Swept returns the keys that sweeps changed since the previous call.
func (s *Store) Swept() (keys []Touched) {
	s.sweptMu.Lock()
	defer s.sweptMu.Unlock()
	keys, s.swept = s.swept, nil
	return keys
}

func (s *Store) touch(keys []Touched) {
	if len(keys) == 0 {
		return
	}
	s.sweptMu.Lock()
	defer s.sweptMu.Unlock()
	s.swept = append(s.swept, keys...)
}

// ChangedReservations and ChangedHolds return the ids that changed since the previous call.
func (s *Store) ChangedReservations() []store.Reservation { return s.reservations.changed() }
func (s *Store) ChangedHolds() []string                   { return s.holds.changed() }
