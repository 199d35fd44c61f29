package away

// Open reports whether the breaker is open.
func (s *Breaker) Open() bool { return s.open.Load() }

// Refused returns the number of calls that failed with ErrOpen.
func (s *Breaker) Refused() uint64 { return s.refused.Load() }
