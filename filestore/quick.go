package filestore

import (
	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Quick is memstore's, for calls that are answered from memory.
func (s *Store) Quick(d *dipwell.Decision, def *store.Definition, key string, verb store.Verb, n int64) bool {
	if s.state.Load() != 0 || verb >= store.VerbReserve && verb != store.VerbCharge || !s.mem.Quick(d, def, key, verb, n) {
		return false
	}
	if d.Granted > 0 {
		s.dirty.mark(def, key)
	}
	return true
}

// Known is memstore's.
func (s *Store) Known(d *dipwell.Decision, def *store.Definition, key string, n int64) bool {
	if s.state.Load() != 0 || !s.mem.Known(d, def, key, n) {
		return false
	}
	if d.Granted > 0 {
		s.dirty.mark(def, key)
	}
	return true
}

// Itself is the store that Quick is about.
func (s *Store) Itself() store.Store { return s }
