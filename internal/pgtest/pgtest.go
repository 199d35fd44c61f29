//go:build unix

// Package pgtest starts a real PostgreSQL for tests, from the installed
// binaries, on a port of its own, and leaves nothing behind.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/procs"
)

// A Server is one PostgreSQL with a data directory of its own.
type Server struct {
	Port int
	Dir  string // holds data/, log and the unix socket

	bin  string
	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the postmaster has ended
}

// startTimeout bounds the time to the first connection, on a busy machine.
const startTimeout = 3 * time.Minute

// ErrMissing: no PostgreSQL is installed here.
var ErrMissing = errors.New("PostgreSQL's initdb and postgres are not installed here (Debian: apt-get install postgresql)")

// New makes a data directory and starts a server on it. settings are
// postgresql.conf's, such as "fsync=off". Close ends it and removes the directory.
func New(settings ...string) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "dipwell-pg-")
	if err != nil {
		return nil, err
	}
	s := &Server{Dir: dir, bin: bin}
	if err = s.init(settings); err == nil {
		err = s.Start()
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) init(settings []string) error {
	if err := s.own(); err != nil {
		return err
	}
	out, err := s.command("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C").CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return s.settle(settings)
}

// own gives the directory to the user that runs the server.
func (s *Server) own() error { return give(s.Dir) }

// Own makes a directory that belongs to the user that runs the server, such as a
// tablespace needs.
func (s *Server) Own(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	return give(dir)
}

func give(dir string) error {
	if u := servant(); u != nil {
		return os.Chown(dir, int(u.Uid), int(u.Gid))
	}
	return nil
}

// settle finds a port and writes the server's command line.
func (s *Server) settle(settings []string) (err error) {
	if s.Port, err = procs.Port(); err != nil {
		return err
	}
	s.args = []string{"-D", s.data(), "-p", strconv.Itoa(s.Port), "-k", s.Dir, "-c", "listen_addresses=127.0.0.1", "-c", "max_connections=600"}
	for _, setting := range settings {
		s.args = append(s.args, "-c", setting)
	}
	return nil
}

// Start starts a server that was stopped or killed, on the same data and port,
// and returns when it answers. The last processes of a server that was killed
// may still be on their way out, and a new one refuses their memory: it is
// started again until they are gone.
func (s *Server) Start() error {
	for deadline := time.Now().Add(startTimeout); ; {
		from := s.logged()
		err := s.start()
		if err == nil || time.Now().After(deadline) || !strings.Contains(s.logFrom(from), "pre-existing shared memory block") {
			return err
		}
		<-s.done
	}
}

func (s *Server) logged() int64 {
	info, err := os.Stat(filepath.Join(s.Dir, "log"))
	if err != nil {
		return 0
	}
	return info.Size()
}

func (s *Server) logFrom(at int64) string {
	b, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return string(b[min(at, int64(len(b))):])
}

func (s *Server) start() error {
	logFile, err := os.OpenFile(filepath.Join(s.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd := s.command("postgres", s.args...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
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
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.DSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-tick.C:
		case <-s.done:
			return fmt.Errorf("postgres ended: %s", s.Log())
		case <-ctx.Done():
			return fmt.Errorf("postgres does not answer: %w\n%s", err, s.Log())
		}
	}
}

// DSN is the address of a database of this server.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.Port, database)
}

// PID is the server's first process, the parent of all others.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Signal sends a signal to the server's first process: SIGINT stops it in
// order, SIGQUIT at once.
func (s *Server) Signal(sig syscall.Signal) error { return s.cmd.Process.Signal(sig) }

// SignalAll sends a signal to all of the server's processes: SIGSTOP hangs it,
// SIGKILL is a crash. The first process is stopped before the others are listed,
// so that it starts no more of them and they are still its own. A signal arrives
// when a process is next interrupted: SignalAll(SIGSTOP) returns when all stand
// still.
func (s *Server) SignalAll(sig syscall.Signal) error {
	first := s.cmd.Process.Pid
	if sig != syscall.SIGCONT {
		if err := s.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		procs.StandStill(first)
	}
	pids := procs.Children(first)
	err := s.Signal(sig)
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
	if sig == syscall.SIGSTOP {
		procs.StandStill(pids...)
	}
	return err
}

// Wait returns when the server has ended.
func (s *Server) Wait() { <-s.done }

// Stop ends the server in order; Start brings it back.
func (s *Server) Stop() {
	if s.cmd == nil {
		return
	}
	_ = s.SignalAll(syscall.SIGCONT)
	_ = s.Signal(syscall.SIGINT)
	select {
	case <-s.done:
	case <-time.After(20 * time.Second):
		_ = s.SignalAll(syscall.SIGKILL)
		<-s.done
	}
}

// Close ends the server and removes its files.
func (s *Server) Close() {
	s.Stop()
	_ = os.RemoveAll(s.Dir)
}

// Log is the end of the server's log.
func (s *Server) Log() string {
	b, _ := os.ReadFile(filepath.Join(s.Dir, "log"))
	return string(bytes.ToValidUTF8(b[max(0, len(b)-4096):], nil))
}

// Bin is where the programs are.
func (s *Server) Bin() string { return s.bin }

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// Command is one of PostgreSQL's programs, run as the server's user.
func (s *Server) Command(name string, args ...string) *exec.Cmd { return s.command(name, args...) }

func (s *Server) command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), s.program(name), args...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = attributes()
	cmd.SysProcAttr.Setpgid = true // an interrupt of the tests is theirs to handle
	cmd.SysProcAttr.Credential = servant()
	return cmd
}

// program finds one of PostgreSQL's programs: beside the server or, where that
// directory has the server alone, in another version, for psql speaks to all.
func (s *Server) program(name string) string {
	for _, dir := range append([]string{s.bin}, directories()...) {
		if has(dir, name) {
			return filepath.Join(dir, name)
		}
	}
	return filepath.Join(s.bin, name)
}

func has(dir, name string) bool {
	_, err := os.Stat(filepath.Join(dir, name))
	return dir != "" && err == nil
}

// servant is the user that runs the server when the tests run as root, which
// PostgreSQL refuses to do.
func servant() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(u.Uid, 10, 32)
			gid, _ := strconv.ParseUint(u.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return nil
}

// binaries finds the newest PostgreSQL installed.
func binaries() (string, error) {
	for _, dir := range directories() {
		if has(dir, "initdb") && has(dir, "postgres") {
			return dir, nil
		}
	}
	return "", ErrMissing
}

// directories is where PostgreSQL may be: DIPWELL_PGBIN, Debian's directories,
// PATH.
func directories() []string {
	dirs := []string{os.Getenv("DIPWELL_PGBIN")}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin"} {
		found, _ := filepath.Glob(pattern)
		slices.Sort(found)
		slices.Reverse(found)
		dirs = append(dirs, found...)
	}
	if p, err := exec.LookPath("initdb"); err == nil {
		dirs = append(dirs, filepath.Dir(p))
	}
	return dirs
}

// Start starts a server of the test's own, ended with the test.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := New(settings...)
	procs.Need(t, err, ErrMissing)
	t.Cleanup(s.Close)
	return s
}

// shared is the one server of a test binary.
var shared struct {
	sync.Mutex
	server *Server
	err    error
	asked  bool
	count  int
	ready  map[string]string // template databases by name
}

// Main runs a package's tests and ends the shared server after them:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
func Main(m interface{ Run() int }) int {
	_, err := binaries()
	procs.SkipExamples(err, ErrMissing)
	defer func() {
		if shared.server != nil {
			shared.server.Close()
		}
	}()
	return m.Run()
}

// Shared returns the one server of this test binary; it does not survive a
// crash, so that it is fast. The package needs Main.
func Shared(t testing.TB) *Server {
	t.Helper()
	s, err := theServer()
	procs.Need(t, err, ErrMissing)
	return s
}

// URL returns the address of an empty database, for examples. It lasts as long
// as the shared server.
func URL() string {
	s, err := theServer()
	if err != nil {
		panic(err)
	}
	return s.DSN("postgres")
}

func theServer() (*Server, error) {
	shared.Lock()
	defer shared.Unlock()
	if !shared.asked {
		shared.asked = true
		shared.server, shared.err = New("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "jit=off")
	}
	return shared.server, shared.err
}

// Database makes a new database on the shared server and returns its address.
// The first one with a template's name runs prepare on a fresh database; the
// others are copies of it. It is dropped with the test.
func Database(t testing.TB, template string, prepare func(dsn string) error) string {
	t.Helper()
	s, name := copyOf(t, template, prepare)
	t.Cleanup(func() { dropDatabase(t, s, name) })
	return s.DSN(name)
}

// Lasting is a Database that lasts as long as the server, for tests that leave
// it as they found it: making one costs more than most cases that need one.
func Lasting(t testing.TB, template string, prepare func(dsn string) error) string {
	t.Helper()
	s, name := copyOf(t, template, prepare)
	return s.DSN(name)
}

func copyOf(t testing.TB, template string, prepare func(dsn string) error) (*Server, string) {
	t.Helper()
	s := Shared(t)
	shared.Lock()
	defer shared.Unlock()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if shared.ready[template] == "" {
		if _, err = conn.Exec(ctx, "create database "+pgx.Identifier{template}.Sanitize()); err == nil {
			err = prepare(s.DSN(template))
		}
		if err != nil {
			t.Fatal(err)
		}
		if shared.ready == nil {
			shared.ready = map[string]string{}
		}
		shared.ready[template] = template
	}
	shared.count++
	name := fmt.Sprintf("test_%d", shared.count)
	if _, err = conn.Exec(ctx, "create database "+name+" template "+pgx.Identifier{template}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	return s, name
}

func dropDatabase(t testing.TB, s *Server, name string) {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err = conn.Exec(ctx, "drop database "+name+" with (force)"); err != nil {
		t.Error(err)
	}
}
