package dipwell

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/dipwell/dipwell/store"
)

// A limitCache remembers the definitions of limits that call sites write differently from
// the current definition. It is direct-mapped, so that its size is fixed.
type limitCache [16]atomic.Pointer[cachedLimit]

type cachedLimit struct {
	def   *store.Definition
	limit Limit
	means *store.Definition
}

// definition returns the definition for a limit as a call site writes it: the current one
// if both mean the same, or else what site returns. If site has none, the error is that
// of core.Differs.
func (c *limitCache) definition(ctx context.Context, def *store.Definition, limit *Limit, site func(context.Context, *store.Definition, Limit) (*store.Definition, error)) (*store.Definition, error) {
	at := len(def.Name) + int(def.Name[0]) + 3*int(def.Name[len(def.Name)-1]) + 5*int(limit.Rate) + 7*int(limit.Burst)
	cell := &c[uint(at)%uint(len(c))]
	if last := cell.Load(); last != nil && last.def == def && last.limit == *limit {
		return last.means, nil
	}
	means, err := def, core.Differs(def, *limit)
	if err != nil && site != nil {
		if made, e := site(ctx, def, *limit); !errors.Is(e, store.ErrNotSupported) {
			means, err = made, e
		}
	}
	if err != nil {
		return nil, err
	}
	cell.Store(&cachedLimit{def, *limit, means})
	return means, nil
}
