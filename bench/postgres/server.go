package main

import (
	"fmt"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/dipwell/dipwell/bench/internal/cpu"
	"github.com/dipwell/dipwell/internal/pgtest"
)

// tuned has the settings of a large server, with which the first tables were
// measured: shared_buffers hold 10M rows, and checkpoints are rare. Without
// -tuned the server has its defaults: 128 MB of shared_buffers, checkpoints
// after five minutes or 1 GB.
var tuned = []string{"shared_buffers=4GB", "max_wal_size=16GB", "checkpoint_timeout=30min"}

// startServer starts a PostgreSQL server, reached over a Unix socket. stop
// kills it, because its data is no longer needed.
func (b *bench) startServer() (stop func(), err error) {
	var settings []string
	b.server = "over a Unix socket, with its default settings (shared_buffers=128MB, synchronous_commit=on, autovacuum=on) and max_connections=200"
	if b.tuned {
		settings = tuned
		b.server = "over a Unix socket, with max_connections=200, " + strings.Join(settings, ", ") + " beside its default settings"
	}
	s, err := pgtest.New(settings...)
	if err != nil {
		return nil, err
	}
	stop = func() {
		_ = s.Signal(syscall.SIGQUIT)
		s.Wait()
		s.Close()
	}
	b.admin = fmt.Sprintf("postgres:///postgres?user=postgres&port=%d&host=%s", s.Port, url.QueryEscape(s.Dir))
	b.bin = s.Bin()
	b.postmaster = s.PID()
	return stop, nil
}

// serverTime returns the processor time of all processes of the server, or zero
// for a server given by -dsn.
func (b *bench) serverTime() (time.Duration, error) {
	if b.postmaster == 0 {
		return 0, nil
	}
	return cpu.Server(b.postmaster)
}

// serverChildren returns the part of serverTime that cpu.Family does not count:
// the postmaster, which is a child of this process.
func (b *bench) serverChildren() (time.Duration, error) {
	if b.postmaster == 0 {
		return 0, nil
	}
	all, err := cpu.Server(b.postmaster)
	if err != nil {
		return 0, err
	}
	first, err := cpu.Process(b.postmaster)
	return all - first, err
}
