package denycache

// Stats are counts since New.
type Stats struct {
	Hits    uint64 // lookups that found a refusal young enough to use
	Misses  uint64 // other lookups for calls that could be refused
	Refused uint64 // calls refused from memory
	Keys    int    // refusals in memory now
}

// Stats returns the current counts.
func (s *Store) Stats() Stats {
	return Stats{Hits: s.hits.Load(), Misses: s.misses.Load(), Refused: s.refused.Load(), Keys: int(s.table.keys.Load())}
}
