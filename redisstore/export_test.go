package redisstore

import "github.com/dipwell/dipwell"

// Slot is the cluster's slot of a key.
var Slot = slot

// Install puts a definition in force here alone, whatever Redis holds, and
// returns the name of one of its buckets.
func (s *Store) Install(d *dipwell.Definition, key string) (row string) {
	entries := map[string]*entry{}
	for name, e := range *s.cat.entries.Load() {
		entries[name] = e
	}
	e := s.cat.newEntry(d)
	entries[d.Name] = e
	s.cat.entries.Store(&entries)
	return e.row(key)
}
