//go:build unix

package pgtest

import (
	"fmt"
	"os"
	"testing"

	"github.com/dipwell/dipwell/internal/procs"
)

// Standby starts a streaming replica of a server, which must run with
// wal_level=replica or higher. The replica is closed when the test
// ends. "select pg_promote()" promotes it.
func Standby(t testing.TB, primary *Server) *Server {
	t.Helper()
	s, err := newStandby(primary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func newStandby(primary *Server) (*Server, error) {
	dir, err := os.MkdirTemp("", "dipwell-pg-")
	if err != nil {
		return nil, err
	}
	s := &Server{Process: procs.Process{Dir: dir}, bin: primary.bin}
	if err = s.copyOf(primary); err == nil {
		err = s.Start()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) copyOf(primary *Server) (err error) {
	if err = s.own(); err != nil {
		return err
	}
	out, err := s.Command("pg_basebackup", "-D", s.data(), "-R", "-X", "stream", "-c", "fast", "-d",
		fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", primary.Port)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("pg_basebackup: %w\n%s", err, out)
	}
	return s.configure(nil)
}
