package coalesce

// Waiting is how many wait for the first lane, and whether it is busy.
func Waiting(s *Store) (n int, busy bool) {
	l := s.lanes[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.len, l.busy.Load()
}
