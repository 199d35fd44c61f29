//go:build unix

// Package redistest starts Redis servers for tests, from the installed
// binaries, each on a free port, and removes them afterwards: single servers, a
// master with Sentinels, or a cluster.
package redistest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/procs"
)

// A Server is a redis-server with its own directory.
type Server struct {
	procs.Process // the directory Dir has its data and log
	Port          int

	args []string
}

// startTimeout bounds the time to the first answer, and to a healthy cluster,
// on a busy machine.
const startTimeout = 3 * time.Minute

// busDistance is the distance from a node's port to the port of its cluster
// bus.
const busDistance = 10000

// ErrMissing is returned if Redis is not installed.
var ErrMissing = errors.New("redis-server is not installed here (Debian: apt-get install redis-server)")

// New starts a server. settings are arguments of redis-server, such as
// "--appendonly", "yes". Close stops the server and removes its directory.
func New(settings ...string) (*Server, error) {
	s, err := prepare(settings)
	if err != nil {
		return nil, err
	}
	if err = s.Start(); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// prepare returns a server that is not yet started.
func prepare(settings []string) (*Server, error) {
	if _, err := binary(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "dipwell-redis-")
	if err != nil {
		return nil, err
	}
	s := &Server{Process: procs.Process{Dir: dir}}
	if s.Port, err = procs.Port(busDistance); err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	s.args = append([]string{"--port", strconv.Itoa(s.Port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--daemonize", "no"}, settings...)
	return s, nil
}

// binary returns redis-server or valkey-server: DIPWELL_REDIS_SERVER, or the
// first in PATH.
func binary() (string, error) {
	for _, name := range []string{os.Getenv("DIPWELL_REDIS_SERVER"), "redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			return path, nil
		}
	}
	return "", ErrMissing
}

// Start starts a server that was stopped or killed, in the same directory and
// on the same port, and returns when it answers.
func (s *Server) Start() error { return s.start("") }

func (s *Server) start(mode string) error {
	path, err := binary()
	if err != nil {
		return err
	}
	args := s.args
	if mode != "" {
		args = []string{filepath.Join(s.Dir, "sentinel.conf"), mode}
	}
	if err := s.Run(exec.CommandContext(context.Background(), path, args...), syscall.SIGKILL); err != nil {
		return err
	}
	return s.waitReady()
}

func (s *Server) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c := s.Client()
	defer func() { _ = c.Close() }()
	for {
		err := c.Ping(ctx).Err()
		if err == nil || strings.HasPrefix(err.Error(), "MASTERDOWN") {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-s.Ended():
			return fmt.Errorf("redis-server ended: %s", s.Log())
		case <-ctx.Done():
			return fmt.Errorf("redis-server does not answer: %w\n%s", err, s.Log())
		}
	}
}

// Addr returns host:port, and URL the server's URL for opening a store.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }
func (s *Server) URL() string  { return "redis://" + s.Addr() }

// Client returns a client connected to this server. The caller closes the client.
func (s *Server) Client() *redis.Client {
	return redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1, DialerRetries: 1, DialTimeout: 30 * time.Second,
		ReadTimeout: 10 * time.Second, PoolSize: 2, DisableIdentity: true, ContextTimeoutEnabled: true})
}

// Do sends one command, such as s.Do("config", "set", "maxmemory", "1mb").
func (s *Server) Do(args ...any) (any, error) {
	c := s.Client()
	defer func() { _ = c.Close() }()
	return c.Do(context.Background(), args...).Result()
}

// FlushScripts makes the server forget all scripts.
func (s *Server) FlushScripts() error {
	_, err := s.Do("script", "flush", "sync")
	return err
}

// Hang stops the server's process until Continue is called. Hang
// returns when the process has stopped.
func (s *Server) Hang() error {
	if err := s.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	procs.StandStill(s.PID())
	return nil
}

// Continue lets the process go on after Hang.
func (s *Server) Continue() error { return s.Signal(syscall.SIGCONT) }

// Kill kills the process, as in a crash, and returns when it has ended. Start
// starts it again.
func (s *Server) Kill() {
	if s.Started() {
		_ = s.Signal(syscall.SIGKILL)
		s.Wait()
	}
}

// Stop shuts the server down; Start starts it again.
func (s *Server) Stop() {
	if !s.Started() {
		return
	}
	_ = s.Continue()
	_ = s.Signal(syscall.SIGTERM)
	select {
	case <-s.Ended():
	case <-time.After(10 * time.Second):
		s.Kill()
	}
}

// Running reports whether the process is running.
func (s *Server) Running() bool {
	select {
	case <-s.Ended():
		return false
	default:
		return s.Started()
	}
}

// Close shuts the server down and removes its files.
func (s *Server) Close() {
	s.Kill()
	_ = os.RemoveAll(s.Dir)
}

// Start starts a server that is closed when the test ends.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	return procs.Start(t, ErrMissing, New, settings)
}

var (
	shared = procs.Shared[*Server]{Missing: ErrMissing, New: func() (*Server, error) { return New() }}

	sharedCluster = procs.Shared[*Cluster]{Missing: ErrMissing, New: func() (*Cluster, error) { return NewCluster() }}
)

// Main runs a package's tests and then closes the shared servers:
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
func Main(m interface{ Run() int }) int {
	_, err := binary()
	return procs.Main(m, err, ErrMissing, &shared, &sharedCluster)
}

// Shared returns the shared server of this test binary. The package must call
// Main.
func Shared(t testing.TB) *Server {
	t.Helper()
	return shared.Need(t)
}

// URL returns the URL of the shared server, for examples.
func URL() string {
	s, err := shared.Get()
	if err != nil {
		panic(err)
	}
	return s.URL()
}

// SharedCluster returns the shared cluster of this test binary: three masters
// and three replicas. The package must call Main.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	return sharedCluster.Need(t)
}
