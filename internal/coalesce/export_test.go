package coalesce

// Waiting returns the length of the first lane's queue, and whether the lane is busy.
func Waiting(s *Store) (n int, busy bool) {
	l := s.lanes[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.len, l.busy.Load()
}
