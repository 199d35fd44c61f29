package pgstore

import (
	"context"
	"errors"
	"hash/maphash"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/store"
)

// keySlots bounds what is remembered of keys: half a megabyte a set, and nothing
// before the first of them.
const keySlots = 1 << 17

// A keySet remembers keys by a hash of them. It is a hint, so that two keys may
// share a slot; whatever it says, the row decides.
type keySet struct {
	seed  maphash.Seed
	slots atomic.Pointer[[keySlots]atomic.Uint32]
}

func newKeySet() *keySet { return &keySet{seed: maphash.MakeSeed()} }

// slot returns a key's slot and what stands there when the key is in the set.
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

// note puts a key into the set or takes it out.
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

// newcomers estimates how likely a key that this program has not met is new to
// the database. Most limits see the same keys again, and then an UPDATE is the
// cheaper way to ask; a call that is the first of its key takes a trip more by it.
type newKeyRate struct{ score, run atomic.Int32 }

// A new key costs a second trip, one that was there a tenth of one: where one in
// five is new, or more, the score stays high.
const (
	newKeyGain = 4
	newKeyMax  = 64
)

// So many new keys in a row make the next one certain. If it was there, that
// costs a trip or two, ten times what is saved if it is new.
const minNewRun = 64

// expects reports whether the next key that is not known is taken for new.
func (n *newKeyRate) mostlyNew() bool { return n.score.Load() >= newKeyMax/2 }

// certain reports whether the last keys that were not known all were new.
func (n *newKeyRate) allNew() bool { return n.run.Load() >= minNewRun }

// note remembers whether a key that was not known turned out to be new.
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

// stillRefused reads the row of a key that was refused lately, and answers the
// call where it changes nothing again.
func (s *Store) stillRefused(ctx context.Context, g *store.Group, e *entry) (bool, error) {
	op := &g.Ops[0]
	var row store.State
	var now int64
	err := s.db.QueryRow(ctx, e.readExisting, s.withClock([]any{op.Key})...).Scan(&now, &row.Used, &row.TS, &row.Version)
	if errors.Is(err, pgx.ErrNoRows) { // a full bucket, whatever the time
		row, err = store.State{}, nil
	}
	if err != nil {
		return false, storeError(err, false)
	}
	return s.answerFrom(g, e, now, row)
}
