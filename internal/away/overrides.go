package away

import (
	"context"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell/store"
)

// maxOverrides bounds the overrides that are copied and have not ended. Calls of other
// overridden keys are decided by their limits while the store does not answer.
const maxOverrides = 1 << 16

// overrides are the overrides that were in answers of the inner store. They are also set
// in the local table.
type overrides struct {
	n     atomic.Int64 // len(keys), read without mu
	mu    sync.Mutex
	keys  map[keyOf]copied
	again int64 // µs on this process's clock: forgetEnded does nothing before
}

type keyOf struct{ limit, key string }

// copied is an override of the inner store, and the number of local rows under it.
type copied struct {
	store.Override
	number uint32
}

// numberOf returns the number of the local row for an answer. If the answer has another
// override than the local table, numberOf first sets or ends the local one. It returns
// false if the row cannot be copied.
func (s *Fallback) numberOf(op *store.Op) (number uint32, ok bool) {
	o := op.Def.Override
	switch {
	case o != nil:
		var set bool
		if number, set, ok = s.setOverride(op, o); set {
			s.rememberRecords([]store.Op{*op}) // locks s.mu, under which forget locks the overrides
		}
		return number, ok
	case s.overrides.n.Load() > 0:
		s.endOverride(op)
	}
	if op.Def.Mode > store.Shadow { // rows stay under the base
		return op.Def.Base().Number, true
	}
	return op.Def.Number, true
}

// setOverride sets the local override of a key, unless it is set already. set reports
// whether it did.
func (s *Fallback) setOverride(op *store.Op, o *store.Override) (number uint32, set, ok bool) {
	v, k := &s.overrides, keyOf{op.Def.Name, op.Key}
	v.mu.Lock()
	defer v.mu.Unlock()
	have, found := v.keys[k]
	switch {
	case found && have.ID == o.ID && have.Version == o.Version:
		return have.number, false, true
	case !found && len(v.keys) >= maxOverrides && !s.forgetEnded():
		return 0, false, false
	case v.keys == nil:
		v.keys = map[keyOf]copied{}
	}
	base, local := op.Def.Base(), o.WithKey(op.Key)
	if s.local.Put(base, op.Key, store.State{Version: base.Number}) != nil || s.local.PutOverride(base, local) != nil { // the table knows only limits that have had a row
		return 0, false, false
	}
	number = base.WithOverride(local).Number
	v.keys[k] = copied{*o, number}
	v.n.Store(int64(len(v.keys)))
	return number, true, true
}

// forgetEnded forgets the overrides that have ended, and reports whether there is room for
// another one. It looks at all of them, so it does that at most once a second. Its caller
// has locked the overrides.
func (s *Fallback) forgetEnded() bool {
	v, now := &s.overrides, s.now()
	if s.clock() < v.again {
		return false
	}
	v.again = s.clock() + 1e6
	maps.DeleteFunc(v.keys, func(_ keyOf, o copied) bool { return o.At(now) == nil })
	v.n.Store(int64(len(v.keys)))
	return len(v.keys) < maxOverrides
}

// endOverride ends the local override of a key.
func (s *Fallback) endOverride(op *store.Op) {
	v, k := &s.overrides, keyOf{op.Def.Name, op.Key}
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, found := v.keys[k]; found {
		delete(v.keys, k)
		v.n.Store(int64(len(v.keys)))
		s.endLocal(op.Def.Base(), op.Key)
	}
}

// rememberBlocks remembers the blocks that local refusals have begun, also above a copied
// override, so that an answer of the store ends them.
func (s *Fallback) rememberBlocks(ops []store.Op) {
	v := &s.overrides
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range ops {
		d, k := ops[i].Def, keyOf{ops[i].Def.Name, ops[i].Key}
		have, found := v.keys[k]
		if d.Override == nil || found && have.ID == d.Override.ID || !found && len(v.keys) >= maxOverrides && !s.forgetEnded() {
			continue
		}
		if v.keys == nil {
			v.keys = map[keyOf]copied{}
		}
		v.keys[k] = copied{*d.Override, d.Number}
	}
	v.n.Store(int64(len(v.keys)))
}

// endLocal ends the local overrides of a key.
func (s *Fallback) endLocal(base *store.Definition, key string) {
	for _, kind := range []store.OverrideKind{store.TemporaryOverride, store.StandingOverride} {
		_, _ = s.local.EndOverride(context.Background(), base, key, kind)
	}
}

// forget forgets the overrides of a limit.
func (v *overrides) forget(limit string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	maps.DeleteFunc(v.keys, func(k keyOf, _ copied) bool { return k.limit == limit })
	v.n.Store(int64(len(v.keys)))
}
