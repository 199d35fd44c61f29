package filestore

import (
	"sync"

	"github.com/dipwell/dipwell/store"
)

// quick decides in memory, unless the answer has to wait for the disk.
func (s *Store) quick(def *store.Definition, key string, verb store.Verb, cost int64, checked bool) (a store.QuickAnswer, held *sync.Mutex, ok bool) {
	if s.state.Load() != 0 || verb >= store.VerbReserve && verb != store.VerbCharge {
		return a, nil, false
	}
	a, held, ok = s.memQuick(def, key, verb, cost, checked)
	if held != nil {
		held.Unlock() // unlocked before add, which may wait
	}
	if ok && a.Granted > 0 {
		s.dirty.add(def, key)
	}
	return a, nil, ok
}
