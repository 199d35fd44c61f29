//go:build unix

// Package pgtest starts PostgreSQL servers for tests, from the installed
// binaries, each on a free port, and removes them afterwards.
package pgtest

import (
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

// A Server is a PostgreSQL server with its own data directory.
type Server struct {
	procs.Process // the postmaster; the directory Dir has data/, log and the unix socket
	Port          int

	bin  string
	args []string
}

// startTimeout bounds the time to the first connection, on a busy machine.
const startTimeout = 3 * time.Minute

// ErrMissing is returned if PostgreSQL is not installed.
var ErrMissing = errors.New("PostgreSQL's initdb and postgres are not installed here (Debian: apt-get install postgresql)")

// New creates a data directory and starts a server on it. settings are lines of
// postgresql.conf, such as "fsync=off". Close stops the server and removes the
// directory.
func New(settings ...string) (*Server, error) { return newIn("", settings) }

// newIn is New with the data below a given directory.
func newIn(parent string, settings []string) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "dipwell-pg-")
	if err != nil {
		return nil, err
	}
	s := &Server{Process: procs.Process{Dir: dir}, bin: bin}
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
	out, err := s.Command("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-N", "-E", "UTF8", "--locale=C").CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	return s.configure(settings)
}

// own gives a directory to the user that runs the server.
func (s *Server) own() error { return give(s.Dir) }

// Own creates a directory that belongs to the user that runs the server, for
// example for a tablespace.
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

// configure reserves a port and sets the server's command line.
func (s *Server) configure(settings []string) (err error) {
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
// and returns when it answers. Start tries again while processes of a killed
// server still use its shared memory.
func (s *Server) Start() error {
	for deadline := time.Now().Add(startTimeout); ; {
		size := s.LogSize()
		err := s.start()
		if err == nil || time.Now().After(deadline) || !strings.Contains(s.LogFrom(size), "pre-existing shared memory block") {
			return err
		}
		s.Wait()
	}
}

func (s *Server) start() error {
	if err := s.Run(s.Command("postgres", s.args...), exitSignal); err != nil {
		return err
	}
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
		case <-s.Ended():
			return fmt.Errorf("postgres ended: %s", s.Log())
		case <-ctx.Done():
			return fmt.Errorf("postgres does not answer: %w\n%s", err, s.Log())
		}
	}
}

// DSN returns the URL of a database of this server.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", s.Port, database)
}

// SignalAll sends a signal to all of the server's processes: SIGSTOP to hang
// it, SIGKILL for a crash. The postmaster is stopped before its children are
// listed, so that it starts no more of them and remains their parent.
// SignalAll(SIGSTOP) returns when all processes have stopped.
func (s *Server) SignalAll(sig syscall.Signal) error {
	first := s.PID()
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

// Stop shuts the server down; Start starts it again.
func (s *Server) Stop() {
	if !s.Started() {
		return
	}
	_ = s.SignalAll(syscall.SIGCONT)
	_ = s.Signal(syscall.SIGINT) // SIGINT asks for a fast shutdown
	select {
	case <-s.Ended():
	case <-time.After(20 * time.Second):
		_ = s.SignalAll(syscall.SIGKILL)
		s.Wait()
	}
}

// Close shuts the server down and removes its files.
func (s *Server) Close() {
	s.Stop()
	_ = os.RemoveAll(s.Dir)
}

// Bin returns the directory of the server's programs.
func (s *Server) Bin() string { return s.bin }

func (s *Server) data() string { return filepath.Join(s.Dir, "data") }

// Command returns a command for one of PostgreSQL's programs, to be run as the
// server's user.
func (s *Server) Command(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), s.program(name), args...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: servant()}
	procs.SetAttributes(cmd, exitSignal)
	return cmd
}

// program finds one of PostgreSQL's programs: beside the server or, if it is
// missing there, in another version, because psql works with all servers.
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

// servant returns the user that runs the server if the tests run as root, which
// PostgreSQL refuses.
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

// binaries returns the directory of the newest PostgreSQL installed.
func binaries() (string, error) {
	for _, dir := range directories() {
		if has(dir, "initdb") && has(dir, "postgres") {
			return dir, nil
		}
	}
	return "", ErrMissing
}

// directories lists where PostgreSQL may be: DIPWELL_PGBIN, Debian's
// directories, PATH.
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

// exitSignal makes the postmaster end at once, with all its processes.
const exitSignal = syscall.SIGQUIT

// Start starts a server that is closed when the test ends.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	return procs.Start(t, ErrMissing, New, settings)
}

// The settings of shared make it fast, because its data need not survive a crash. In memory
// its databases, of hundreds of files each, are made with a fifth less processor time.
var shared = procs.Shared[*Server]{Missing: ErrMissing, New: func() (*Server, error) {
	return newIn(memory(), []string{"fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off", "jit=off"})
}}

// memory returns a directory in memory with room for several shared servers of half a
// gigabyte each, or "" if there is none.
func memory() string {
	const dir, room = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < room {
		return ""
	}
	return dir
}

// databases are the databases created on the shared server.
var databases struct {
	sync.Mutex
	count     int
	templates map[string]bool // names of the template databases
}

// Main runs a package's tests and then closes the shared server:
//
//	func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }
func Main(m interface{ Run() int }) int {
	_, err := binaries()
	return procs.Main(m, err, ErrMissing, &shared)
}

// Shared returns the shared server of this test binary. The package must call
// Main.
func Shared(t testing.TB) *Server {
	t.Helper()
	return shared.Need(t)
}

// URL returns the URL of an empty database on the shared server, for examples.
func URL() string {
	s, err := shared.Get()
	if err != nil {
		panic(err)
	}
	return s.DSN("postgres")
}

// Database creates a database on the shared server and returns its URL. The
// first database with a template's name is prepared by prepare; later ones
// are copies of it. The database is dropped when the test ends.
func Database(t testing.TB, template string, prepare func(dsn string) error) string {
	t.Helper()
	s, name := copyOf(t, template, prepare)
	t.Cleanup(func() { dropDatabase(t, s, name) })
	return s.DSN(name)
}

// Lasting is a Database that is not dropped, for tests that leave it as they
// found it: creating a database takes longer than most tests that need one.
func Lasting(t testing.TB, template string, prepare func(dsn string) error) string {
	t.Helper()
	s, name := copyOf(t, template, prepare)
	return s.DSN(name)
}

func copyOf(t testing.TB, template string, prepare func(dsn string) error) (*Server, string) {
	t.Helper()
	s := Shared(t)
	databases.Lock()
	defer databases.Unlock()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if !databases.templates[template] {
		if _, err = conn.Exec(ctx, "create database "+pgx.Identifier{template}.Sanitize()); err == nil {
			err = prepare(s.DSN(template))
		}
		if err != nil {
			t.Fatal(err)
		}
		if databases.templates == nil {
			databases.templates = map[string]bool{}
		}
		databases.templates[template] = true
	}
	databases.count++
	name := fmt.Sprintf("test_%d", databases.count)
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
