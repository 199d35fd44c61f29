package coalesce

type Point = point

// Where a test can stop a goroutine.
const (
	Arriving  = arriving
	Leading   = leading
	Ending    = ending
	Giving    = giving
	Beginning = beginning
)

// StopAt calls at wherever two goroutines of s meet. Before the first call.
func StopAt(s *Store, at func(Point)) {
	for _, l := range s.lanes {
		l.at = at
	}
}

// Waiting is how many wait for the first lane, and whether it is busy.
func Waiting(s *Store) (n int, busy bool) {
	l := s.lanes[0]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.queue.len, l.busy.Load()
}
