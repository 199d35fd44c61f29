package denycache

// Stats count since the store was made.
type Stats struct {
	Hits    uint64 // lookups of a key whose refusal was remembered and could be believed
	Misses  uint64 // other lookups for calls that could have been refused
	Refused uint64 // calls refused by what was remembered
	Keys    int    // refusals in memory
}

// Stats returns the present counts.
func (s *Store) Stats() Stats {
	return Stats{Hits: s.hits.Load(), Misses: s.misses.Load(), Refused: s.refused.Load(), Keys: int(s.table.keys.Load())}
}
