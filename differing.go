package dipwell

import (
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/dipwell/dipwell/store"
)

// differing remembers limits of call sites (TakeWith) that differ from the limit in
// force, so that each is compared once and logged once.
type differing struct {
	recent [16]atomic.Pointer[callSite] // a direct-mapped cache, so that its size is fixed

	mu     sync.Mutex
	logged map[string]bool // the names of limits that were logged
}

type callSite struct {
	def   *store.Definition
	limit Limit
}

const maxLogged = 1024 // bounds the names of limits whose differences are logged

// compare logs the first setting of limit that differs from def. An invalid limit is an error.
func (c *differing) compare(def *store.Definition, limit *Limit) error {
	at := len(def.Name) + int(def.Name[0]) + 3*int(def.Name[len(def.Name)-1]) + 5*int(limit.Rate) + 7*int(limit.Burst)
	cell := &c.recent[uint(at)%uint(len(c.recent))]
	if last := cell.Load(); last != nil && last.def == def && last.limit == *limit {
		return nil
	}
	if _, err := store.NewDefinition(*limit); err != nil {
		return err
	}
	if err := def.Differs(*limit); err != nil && c.first(def.Name) {
		slog.Warn("dipwell: a limit is defined otherwise where it is used; the limit in force decides", "difference", err.Error())
	}
	cell.Store(&callSite{def, *limit})
	return nil
}

// first reports whether it is called with a name for the first time.
func (c *differing) first(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.logged[name] || len(c.logged) >= maxLogged {
		return false
	}
	if c.logged == nil {
		c.logged = map[string]bool{}
	}
	c.logged[name] = true
	return true
}
