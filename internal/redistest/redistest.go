//go:build unix

// Package redistest starts Redis servers for tests, from the installed
// binaries, each on a free port, and removes them afterwards: single servers, a
// master with Sentinels, or a cluster.
package redistest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/dipwell/dipwell/internal/procs"
)

// A Server is a redis-server with its own directory.
type Server struct {
	Port int
	Dir  string // has its data and log

	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// startTimeout bounds the time to the first answer, and to a healthy cluster,
// on a busy machine.
const startTimeout = 3 * time.Minute

// busDistance is the distance from a node's port to the port of its cluster
// bus.
const busDistance = 10000

// ErrMissing is the error if Redis is not installed.
var ErrMissing = errors.New("redis-server is not installed here (Debian: apt-get install redis-server)")

// New starts a server. settings are arguments of redis-server, such as
// "--appendonly", "yes". Close stops it and removes its directory.
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

// prepare returns a server that is not started.
func prepare(settings []string) (*Server, error) {
	if _, err := binary(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "dipwell-redis-")
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: dir}
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
	logFile, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	args := s.args
	if mode != "" {
		args = []string{filepath.Join(s.Dir, "sentinel.conf"), mode}
	}
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.Dir, logFile, logFile
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Setpgid = true // so that an interrupt goes to the tests only
	if err = cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() { _ = cmd.Wait(); close(done) }()
	s.cmd, s.done = cmd, done
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
		case <-s.done:
			return fmt.Errorf("redis-server ended: %s", s.Log())
		case <-ctx.Done():
			return fmt.Errorf("redis-server does not answer: %w\n%s", err, s.Log())
		}
	}
}

// Addr returns host:port, and URL the server's URL for a store.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.Port) }
func (s *Server) PID() int     { return s.cmd.Process.Pid }
func (s *Server) URL() string  { return "redis://" + s.Addr() }

// Client connects to this server. The caller closes the client.
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

// Hang stops the process until Continue. It returns when the process has
// stopped.
func (s *Server) Hang() error {
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	procs.StandStill(s.cmd.Process.Pid)
	return nil
}

// Continue ends a Hang.
func (s *Server) Continue() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

// Kill kills the process, as in a crash, and returns when it has ended. Start
// starts it again.
func (s *Server) Kill() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// Stop shuts the server down; Start starts it again.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	_ = s.Continue()
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(10 * time.Second):
		s.Kill()
	}
}

// Running reports whether the process is running.
func (s *Server) Running() bool {
	select {
	case <-s.done:
		return false
	default:
		return s.cmd != nil
	}
}

// Close shuts the server down and removes its files.
func (s *Server) Close() {
	s.Kill()
	_ = os.RemoveAll(s.Dir)
}

// Log returns the end of the server's log.
func (s *Server) Log() string {
	b, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return string(bytes.ToValidUTF8(b[max(0, len(b)-4096):], nil))
}

// Start starts a server that is closed when the test ends.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := New(settings...)
	procs.Need(t, err, ErrMissing)
	t.Cleanup(s.Close)
	return s
}

// shared is the shared server and the shared cluster of a test binary.
var shared struct {
	sync.Mutex
	server     *Server
	serverErr  error
	cluster    *Cluster
	clusterErr error
}

// Main runs a package's tests and then closes the shared servers:
//
//	func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }
func Main(m interface{ Run() int }) int {
	_, err := binary()
	procs.SkipExamples(err, ErrMissing)
	defer func() {
		if shared.server != nil {
			shared.server.Close()
		}
		if shared.cluster != nil {
			shared.cluster.Close()
		}
	}()
	return m.Run()
}

// Shared returns the shared server of this test binary. The package must call
// Main.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := theServer()
	procs.Need(t, err, ErrMissing)
	return s
}

// URL returns the URL of the shared server, for examples.
func URL() string {
	s, err := theServer()
	if err != nil {
		panic(err)
	}
	return s.URL()
}

func theServer() (*Server, error) {
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.serverErr == nil {
		shared.server, shared.serverErr = New()
	}
	return shared.server, shared.serverErr
}

// SharedCluster returns the shared cluster of this test binary: three masters
// and three replicas. The package must call Main.
func SharedCluster(t testing.TB) *Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.clusterErr == nil {
		shared.cluster, shared.clusterErr = NewCluster()
	}
	procs.Need(t, shared.clusterErr, ErrMissing)
	return shared.cluster
}
