package examples

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

const jdbc = "/usr/share/java/postgresql.jar"

// TestLanguages: the program in Java prints what its README says, against a real server.
func TestLanguages(t *testing.T) {
	server := pgtest.Start(t, "fsync=off")
	conn, err := pgx.Connect(context.Background(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = pgstore.Migrate(context.Background(), conn, pgstore.MigrateOptions{})
	if err = errors.Join(err, conn.Close(context.Background())); err != nil {
		t.Fatal(err)
	}
	t.Run("java", func(t *testing.T) {
		java, err := exec.LookPath("java")
		if err == nil {
			_, err = os.Stat(jdbc)
		}
		if err != nil {
			absent(t, fmt.Errorf("no JDK, or no driver (Debian: default-jdk-headless, libpostgresql-jdbc-java): %w", err))
		}
		printsItsReadme(t, "java", java, "-cp", jdbc, "java/Order.java", fmt.Sprintf("jdbc:postgresql://127.0.0.1:%d/postgres?user=postgres", server.Port))
	})
}

// clients are the programs of examples/clients for Java and Ruby: how each is run, and with
// which package.
var clients = []struct {
	name, program string
	packages      string // Debian's
	have          []string
	sql, http     []string
}{
	{"java", "java", "default-jdk-headless, libpostgresql-jdbc-java", []string{"-cp", jdbc, "--version"}, []string{"-cp", jdbc, "clients/TakeSql.java"}, []string{"clients/TakeHttp.java"}},
	{"ruby", "/usr/bin/ruby", "ruby, ruby-pg", []string{"-e", "require 'pg'"}, []string{"clients/take_sql.rb"}, []string{"clients/take_http.rb"}},
}

// TestClients checks that the programs that docs/how-to/languages.md quotes take by SQL and
// by HTTP, and are refused. TestPython runs that for Python, `make clients` that for Node.
func TestClients(t *testing.T) {
	dsn, url, _ := login(t)
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			if out, err := exec.Command(c.program, c.have...).CombinedOutput(); err != nil {
				absent(t, fmt.Errorf("%s cannot run (Debian: %s): %w: %s", c.name, c.packages, err, out))
			}
			address := dsn
			if c.name == "java" {
				address = regexp.MustCompile(`^postgres://(\w+)@([^/]+)/(\w+).*`).ReplaceAllString(dsn, "jdbc:postgresql://$2/$3?user=$1")
			}
			takesTwo(t, c.program, append(c.sql, address)...)
			takesTwo(t, c.program, append(c.http, url)...)
		})
	}
}

// login returns a database with the schema and the address of a service, each with a limit
// of two an hour, and the program.
func login(t *testing.T) (dsn, url, bin string) {
	t.Helper()
	dsn = pgtest.Start(t, "fsync=off").DSN("postgres")
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	_, err = pgstore.Migrate(t.Context(), conn, pgstore.MigrateOptions{})
	if err == nil {
		_, err = conn.Exec(t.Context(), "select dipwell.define('login', 2, interval '1 hour')")
	}
	if err = errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	bin = filepath.Join(t.TempDir(), "dipwell")
	runs(t, "go", "build", "-o", bin, "../cmd/dipwell")
	return dsn, served(t, exec.Command(bin, "serve", "--listen", "127.0.0.1:0", "--limit", "login=2/1h")), bin
}

// takesTwo runs a program that takes three times from a limit of two an hour.
func takesTwo(t *testing.T, program string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	// A slow machine has less to wait for.
	if !regexp.MustCompile(`^allowed, 1 left\nallowed, 0 left\nrefused, again in 1[78]\d\d s\n$`).Match(out) || err != nil {
		t.Errorf("%s %s: %v\n%s", program, args, err, out)
	}
}

// served starts a service and returns its address.
func served(t *testing.T, service *exec.Cmd) string {
	t.Helper()
	out, err := service.StdoutPipe()
	if err == nil {
		err = service.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = service.Process.Kill(); _ = service.Wait() })
	address := regexp.MustCompile(`serving on (http://\S+)`)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if m := address.FindStringSubmatch(lines.Text()); m != nil {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return m[1]
		}
	}
	t.Fatal("the service did not start")
	return ""
}

// absent skips a test of what is not installed here; on CI it fails.
func absent(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(err)
	}
	t.Skip(err)
}

// seconds are those of the wait, which a slow machine shortens.
var seconds = regexp.MustCompile(`again in (1200|11\d\d) s`)

func printsItsReadme(t *testing.T, dir, program string, args ...string) {
	t.Helper()
	readme, err := os.ReadFile(dir + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(string(readme), "it prints:\n\n```\n")
	want, _, found := strings.Cut(want, "```")
	if !found {
		t.Fatal("the README does not say what is printed")
	}
	out, err := exec.CommandContext(t.Context(), program, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, args, err, out)
	}
	if got := seconds.ReplaceAllString(string(out), "again in 1200 s"); got != want {
		t.Errorf("printed:\n%s\nthe README has:\n%s", got, want)
	}
}
