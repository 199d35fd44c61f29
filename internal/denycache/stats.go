package denycache

import "sync/atomic"

// Stats are counts since New.
type Stats struct {
	Hits    uint64 // lookups that found a refusal young enough to use
	Misses  uint64 // other lookups for calls that could be refused
	Refused uint64 // calls refused from memory
	Keys    int    // refusals in memory now
}

// counters are the counts of one processor.
type counters struct {
	hits, misses, refused atomic.Uint64

	_ [40]byte // padding to a cache line
}

// Stats returns the current counts.
func (s *Store) Stats() Stats {
	st := Stats{Keys: int(s.table.keys.Load())}
	for i := range s.counters {
		c := &s.counters[i]
		st.Hits += c.hits.Load()
		st.Misses += c.misses.Load()
		st.Refused += c.refused.Load()
	}
	return st
}
