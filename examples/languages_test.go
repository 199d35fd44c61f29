package examples

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/dipwell/dipwell/internal/pgtest"
	"github.com/dipwell/dipwell/pgstore"
)

// TestLanguages: the programs in other languages print what their READMEs say,
// against a real server.
func TestLanguages(t *testing.T) {
	const (
		python = "/usr/bin/python3" // Debian's, which has Debian's modules
		jdbc   = "/usr/share/java/postgresql.jar"
	)
	server := pgtest.Start(t, "fsync=off")
	conn, err := pgx.Connect(context.Background(), server.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = pgstore.Migrate(context.Background(), conn, pgstore.MigrateOptions{})
	if err = errors.Join(err, conn.Close(context.Background())); err != nil {
		t.Fatal(err)
	}
	t.Run("python", func(t *testing.T) {
		if out, err := exec.Command(python, "-c", "import psycopg2").CombinedOutput(); err != nil {
			absent(t, fmt.Errorf("%s has no psycopg2 (Debian: python3-psycopg2): %w: %s", python, err, out))
		}
		printsItsReadme(t, "python", python, "python/order.py", fmt.Sprintf("postgresql://postgres@127.0.0.1:%d/postgres", server.Port))
	})
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
