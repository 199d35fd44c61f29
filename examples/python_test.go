package examples

import (
	"archive/zip"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// python is Debian's, which has Debian's modules.
const python = "/usr/bin/python3"

// maxWheel bounds the package for Python without the SQL, in bytes.
const maxWheel = 60_000

// TestPython builds the package for Python, installs it into an empty environment, and runs
// its tests and the programs that pages quote there.
func TestPython(t *testing.T) {
	needs := "import django, httpx, limits, pip, psycopg, psycopg2, rest_framework, venv, wheel"
	if out, err := exec.Command(python, "-c", needs).CombinedOutput(); err != nil {
		absent(t, fmt.Errorf("%s lacks what the tests need (scripts/deps has Debian's packages): %w: %s", python, err, out))
	}
	dsn, url, bin := login(t)
	dir := t.TempDir()
	runs(t, "../scripts/wheel", bin, dir)
	wheels, err := filepath.Glob(filepath.Join(dir, "dipwell-*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatal(wheels, err)
	}
	if n := withoutSQL(t, wheels[0]); n > maxWheel {
		t.Errorf("the wheel without the SQL has %d bytes; at most %d", n, maxWheel)
	}
	in := installed(t, wheels[0])
	takesTwo(t, in, "clients/take.py", url) // with nothing but the package
	t.Setenv("PYTHONPATH", "/usr/lib/python3/dist-packages")
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	takesTwo(t, in, "clients/take.py", dsn)
	printsItsReadme(t, "python", in, "python/order.py", dsn)

	t.Setenv("DIPWELL_TEST_POSTGRES", strings.TrimSuffix(strings.SplitN(dsn, "?", 2)[0], "postgres"))
	t.Setenv("DIPWELL_TEST_PROGRAM", bin)
	out, err := exec.CommandContext(t.Context(), in, "-W", "error::ResourceWarning", "-m", "unittest", "discover", "-s", "../clients/python/tests").CombinedOutput()
	if err != nil || strings.Contains(string(out), "skipped=") || !strings.Contains(string(out), "\nOK\n") {
		t.Errorf("%v: %s", err, out)
	}
}

// withoutSQL returns the size of a wheel without the SQL in it.
func withoutSQL(t *testing.T, wheel string) (n int64) {
	t.Helper()
	z, err := zip.OpenReader(wheel)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(wheel)
	sql, errSQL := z.Open("dipwell/schema.sql")
	if err = errors.Join(err, errSQL); err != nil {
		t.Fatal(err)
	}
	n = info.Size()
	for _, f := range z.File {
		if f.Name == "dipwell/schema.sql" {
			n -= int64(f.CompressedSize64)
		}
	}
	if err := errors.Join(sql.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return n
}

// installed makes an empty virtual environment with a wheel, and returns its Python.
func installed(t *testing.T, wheel string) string {
	t.Helper()
	dir := t.TempDir()
	runs(t, python, "-m", "venv", "--without-pip", dir)
	in := filepath.Join(dir, "bin", "python3")
	runs(t, python, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", in, "install", "--no-index", "--no-deps", wheel)
	return in
}

func runs(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, args, err, out)
	}
}
