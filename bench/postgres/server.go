package main

import (
	"fmt"
	"net/url"
	"syscall"

	"github.com/dipwell/dipwell/internal/pgtest"
)

// settings is what the server runs with beside its defaults: the 10M rows fit
// into shared_buffers, and checkpoints keep out of the rounds as far as they can.
var settings = []string{
	"shared_buffers=4GB", "max_connections=200", "max_wal_size=16GB", "checkpoint_timeout=30min",
	"synchronous_commit=on", "fsync=on", "full_page_writes=on", "autovacuum=on",
}

// startServer starts a PostgreSQL of the bench's own, reached over a Unix
// socket. stop ends it at once, for its data is not needed any more.
func startServer() (dsn, bin string, stop func(), err error) {
	s, err := pgtest.New(settings...)
	if err != nil {
		return "", "", nil, err
	}
	dsn = fmt.Sprintf("postgres:///postgres?user=postgres&port=%d&host=%s", s.Port, url.QueryEscape(s.Dir))
	return dsn, s.Bin(), func() {
		_ = s.Signal(syscall.SIGQUIT)
		s.Wait()
		s.Close()
	}, nil
}
