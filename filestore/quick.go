package filestore

import "github.com/dipwell/dipwell"

// Quick is memstore's, for calls that are answered from memory.
func (s *Store) Quick(d *dipwell.Decision, def *dipwell.Definition, key string, verb dipwell.Verb, n int64) bool {
	if s.state.Load() != 0 || verb >= dipwell.VerbReserve && verb != dipwell.VerbCharge || !s.mem.Quick(d, def, key, verb, n) {
		return false
	}
	if d.Granted > 0 {
		s.dirty.mark(def, key)
	}
	return true
}

// Known is memstore's.
func (s *Store) Known(d *dipwell.Decision, def *dipwell.Definition, key string, n int64) bool {
	if s.state.Load() != 0 || !s.mem.Known(d, def, key, n) {
		return false
	}
	if d.Granted > 0 {
		s.dirty.mark(def, key)
	}
	return true
}

// Itself is the store that Quick is about.
func (s *Store) Itself() dipwell.Store { return s }
