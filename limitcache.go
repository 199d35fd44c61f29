package dipwell

import (
	"sync/atomic"

	"github.com/dipwell/dipwell/store"
)

// A limitCache remembers limits of call sites that differ in their fields from the
// current definition but mean the same. It is direct-mapped, so its size is fixed.
type limitCache [16]atomic.Pointer[cachedLimit]

type cachedLimit struct {
	def   *store.Definition
	limit Limit
}

// checkSame returns nil if a limit means the same as the current definition, and
// the error of Definition.Differs otherwise.
func (c *limitCache) checkSame(def *store.Definition, limit *Limit) error {
	cell := &c[(len(def.Name)+int(def.Name[0])+3*int(def.Name[len(def.Name)-1]))%len(c)]
	if last := cell.Load(); last != nil && last.def == def && last.limit == *limit {
		return nil
	}
	if err := def.Differs(*limit); err != nil {
		return err
	}
	cell.Store(&cachedLimit{def, *limit})
	return nil
}
