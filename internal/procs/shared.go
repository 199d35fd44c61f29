package procs

import (
	"sync"
	"testing"
)

// A Server is one Process or several.
type Server interface{ Close() }

// Shared is a server for all tests of a binary, which its function New starts
// at the first use.
type Shared[S Server] struct {
	New     func() (S, error)
	Missing error // the error that New returns if the server is not installed

	mu      sync.Mutex
	server  S
	err     error
	started bool
}

// Get returns the server, or New's error.
func (s *Shared[S]) Get() (S, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.started {
		s.started = true
		s.server, s.err = s.New()
	}
	return s.server, s.err
}

// Need returns the server. If the server cannot be started, Need ends the
// test as the function Need does.
func (s *Shared[S]) Need(t testing.TB) S {
	t.Helper()
	server, err := s.Get()
	Need(t, err, s.Missing)
	return server
}

// Close closes the server if it was started.
func (s *Shared[S]) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started && s.err == nil {
		s.server.Close()
	}
}

// Start starts a server that is closed when the test ends. If the server
// cannot be started, Start ends the test as Need does.
func Start[S Server](t testing.TB, missing error, start func(settings ...string) (S, error), settings []string) S {
	t.Helper()
	s, err := start(settings...)
	Need(t, err, missing)
	t.Cleanup(s.Close)
	return s
}

// Main runs the tests of a package and then closes its shared servers. err is
// nil, or the error missing if the server is not installed.
func Main(m interface{ Run() int }, err, missing error, shared ...Server) int {
	SkipExamples(err, missing)
	for _, s := range shared {
		defer s.Close()
	}
	return m.Run()
}
