package pgstore

import (
	"context"
	"errors"
	"hash/maphash"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell"
)

// refusedSlots bounds what is remembered of refusals: half a megabyte, and
// nothing before the first of them.
const refusedSlots = 1 << 17

// refusals remembers keys that were refused lately. About those it pays to read
// first: a refusal is then one trip instead of two. It is a hint, so that two
// keys may share a slot; whatever it says, the row decides.
type refusals struct {
	seed  maphash.Seed
	slots atomic.Pointer[[refusedSlots]atomic.Uint32]
}

func newRefusals() *refusals { return &refusals{seed: maphash.MakeSeed()} }

// slot returns a key's slot and what stands there when the key was refused.
func (r *refusals) slot(slots *[refusedSlots]atomic.Uint32, id int32, key string) (*atomic.Uint32, uint32) {
	h := maphash.String(r.seed, key) ^ uint64(uint32(id))*0x9e3779b97f4a7c15
	return &slots[h%refusedSlots], uint32(h>>32) | 1
}

func (r *refusals) has(id int32, key string) bool {
	slots := r.slots.Load()
	if slots == nil {
		return false
	}
	slot, mark := r.slot(slots, id, key)
	return slot.Load() == mark
}

// note remembers how a key fared last.
func (r *refusals) note(id int32, key string, refused bool) {
	slots := r.slots.Load()
	if slots == nil {
		if !refused {
			return
		}
		r.slots.CompareAndSwap(nil, new([refusedSlots]atomic.Uint32))
		slots = r.slots.Load()
	}
	slot, mark := r.slot(slots, id, key)
	switch last := slot.Load(); {
	case refused && last != mark:
		slot.Store(mark)
	case !refused && last == mark:
		slot.CompareAndSwap(mark, 0)
	}
}

// stillRefused reads the row of a key that was refused lately, and answers the
// call where it is refused again.
func (s *Store) stillRefused(ctx context.Context, g *dipwell.Group, e *entry) (bool, error) {
	op := &g.Ops[0]
	var row dipwell.State
	var now int64
	err := s.db.QueryRow(ctx, e.peek, s.withClock([]any{op.Key})...).Scan(&now, &row.Used, &row.TS, &row.Version)
	if errors.Is(err, pgx.ErrNoRows) { // a full bucket
		s.refused.note(e.id, op.Key, false)
		return false, nil
	}
	if err != nil {
		return false, storeError(err, false)
	}
	_, write, err := op.Step(now, row, false)
	if err != nil {
		return false, err
	}
	s.refused.note(e.id, op.Key, !write)
	g.Allowed, g.Reserved = op.Allowed, false
	return !write, nil
}
