package pgstore

import (
	"context"
	"errors"
	"hash/maphash"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

// keySlots bounds the memory of a keySet: half a megabyte, allocated when the
// first key is added.
const keySlots = 1 << 17

// A keySet remembers keys by a hash. It is only a hint, because two keys may
// share a slot; the row always decides.
type keySet struct {
	seed  maphash.Seed
	slots atomic.Pointer[[keySlots]atomic.Uint32]
}

func newKeySet() *keySet { return &keySet{seed: maphash.MakeSeed()} }

// slot returns the slot of a key, and the value that the slot has if the key is
// in the set.
func (k *keySet) slot(slots *[keySlots]atomic.Uint32, id int32, key string) (*atomic.Uint32, uint32) {
	h := maphash.String(k.seed, key) ^ uint64(uint32(id))*0x9e3779b97f4a7c15
	return &slots[h%keySlots], uint32(h>>32) | 1
}

func (k *keySet) has(id int32, key string) bool {
	slots := k.slots.Load()
	if slots == nil {
		return false
	}
	slot, mark := k.slot(slots, id, key)
	return slot.Load() == mark
}

// note adds a key to the set or removes it.
func (k *keySet) note(id int32, key string, in bool) {
	slots := k.slots.Load()
	if slots == nil {
		if !in {
			return
		}
		k.slots.CompareAndSwap(nil, new([keySlots]atomic.Uint32))
		slots = k.slots.Load()
	}
	slot, mark := k.slot(slots, id, key)
	switch last := slot.Load(); {
	case in && last != mark:
		slot.Store(mark)
	case !in && last == mark:
		slot.CompareAndSwap(mark, 0)
	}
}

// newKeyRate estimates how likely it is that a key which this program has not
// seen is not in the database either. With most limits the same keys come
// again, so an UPDATE is tried first; the first call of a key then takes one
// more round trip.
type newKeyRate struct{ score, run atomic.Int32 }

// A wrong guess for a new key costs a second round trip, and for an existing
// key a tenth of one. So the score stays high if at least one in five unseen
// keys is new.
const (
	newKeyGain = 4
	newKeyMax  = 64
)

// After minNewRun new keys in a row the next unseen key is inserted without
// asking. If it does exist, that costs one or two round trips, ten times what
// it saves for a new key.
const minNewRun = 64

// mostlyNew reports whether the next unseen key should be treated as new.
func (n *newKeyRate) mostlyNew() bool { return n.score.Load() >= newKeyMax/2 }

// allNew reports whether all of the last minNewRun unseen keys were new.
func (n *newKeyRate) allNew() bool { return n.run.Load() >= minNewRun }

// note records whether an unseen key was new.
func (n *newKeyRate) note(isNew bool) {
	switch row := n.run.Load(); {
	case !isNew && row > 0:
		n.run.Store(0)
	case isNew && row < minNewRun:
		n.run.Add(1)
	}
	switch score := n.score.Load(); {
	case isNew && score < newKeyMax:
		n.score.Store(min(score+newKeyGain, newKeyMax))
	case !isNew && score > 0:
		n.score.Store(score - 1)
	}
}

// stillRefused reads the row of a recently refused key and answers the call if
// nothing would be written. It reports whether it did.
func (s *Store) stillRefused(ctx context.Context, g *store.Group, e *entry) (bool, error) {
	op := &g.Ops[0]
	var row store.State
	var now int64
	err := s.db.QueryRow(ctx, e.readExisting, s.withClock([]any{op.Key})...).Scan(&now, &row.Used, &row.TS, (*rowVersion)(&row.Version))
	if errors.Is(err, pgx.ErrNoRows) { // no row, so the bucket is full at any time
		row, err = store.State{}, nil
	}
	switch {
	case err != nil:
		return false, storeError(err, false)
	case row.TS != 0 && row.Version == 0: // the row has lows; expired holds may have to be given back first
		return false, nil
	}
	return s.answerFrom(g, e, now, row)
}
