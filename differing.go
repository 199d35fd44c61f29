package dipwell

import (
	"log/slog"
	"sync"

	"github.com/dipwell/dipwell/store"
)

// differing has, by the name of a limit, the limit of a call site (TakeWith) that was last
// compared with the one in force, so that a program which repeats a call compares once. There
// are as many as limits that this program has had.
type differing struct {
	mu     sync.Mutex
	byName sync.Map // *callSite
}

type callSite struct {
	def    *store.Definition
	limit  Limit
	logged bool // a difference of the name was logged
}

// compare logs the first setting of limit that differs from def, once for each name. An
// invalid limit is an error.
func (c *differing) compare(def *store.Definition, limit *Limit) error {
	last := c.last(def.Name)
	if last.def == def && last.limit == *limit {
		return nil
	}
	if _, err := store.NewDefinition(*limit); err != nil {
		return err
	}
	err := def.Differs(*limit)
	c.mu.Lock()
	logged := c.last(def.Name).logged
	c.byName.Store(def.Name, &callSite{def, *limit, logged || err != nil})
	c.mu.Unlock()
	if err != nil && !logged { // not locked, because what logs may take too
		slog.Warn("dipwell: a limit is defined otherwise where it is used; the limit in force decides", "difference", err.Error())
	}
	return nil
}

func (c *differing) last(name string) *callSite {
	if last, ok := c.byName.Load(name); ok {
		return last.(*callSite)
	}
	return new(callSite)
}
