package away

import (
	"context"
	"errors"

	"github.com/dipwell/dipwell/store"
)

// maxOverrides bounds the overrides in the local table. Calls of other overridden keys are
// decided by their limits while the store does not answer.
const maxOverrides = 1 << 16

// numberOf returns the number of the local row for an answer. The local table has the
// overrides that were in answers of the inner store, and the blocks that local refusals have
// begun: if the answer has another override, or none, numberOf first sets or ends the one of
// the key. It returns false if the row cannot be copied.
func (s *Fallback) numberOf(op *store.Op) (number uint32, ok bool) {
	base, o := op.Def.Base(), op.Def.Override
	switch have := s.local.Override(base, op.Key); {
	case o != nil && have != nil && have.ID == o.ID && have.Version == o.Version:
		return base.WithOverride(have).Number, true
	case o != nil:
		local := o.WithKey(op.Key)
		err := s.local.Put(base, op.Key, store.State{Version: base.Number}) // the table knows only limits that have had a row
		if err == nil {
			err = s.local.PutOverride(base, local)
		}
		if errors.Is(err, store.ErrFull) {
			s.local.SweepEnded()
			err = s.local.PutOverride(base, local)
		}
		if err != nil {
			return 0, false
		}
		return base.WithOverride(local).Number, true
	case have != nil:
		for _, kind := range []store.OverrideKind{store.TemporaryOverride, store.StandingOverride} {
			_, _ = s.local.EndOverride(context.Background(), base, op.Key, kind)
		}
	}
	if op.Def.Mode > store.Shadow { // rows of such plans stay under the base
		return base.Number, true
	}
	return op.Def.Number, true
}
