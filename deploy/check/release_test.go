//go:build release

package check

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dipwell/dipwell/internal/pgtest"
)

// Where goreleaser and scripts/release-files write.
const dist, files = "../../dist", "../../bin/release"

// one returns the file of a pattern.
func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %q, %v", pattern, found, err)
	}
	path, err := filepath.Abs(found[0])
	must(t, err)
	return path
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestReleaseArchives checks what is in the archive of each system, and the checksums.
func TestReleaseArchives(t *testing.T) {
	want := []string{"LICENSE", "THIRD_PARTY_LICENSES.md", "README.md", "CHANGELOG.md", "dipwell.sql", "dipwell.1.gz", "completion/dipwell.bash", "completion/dipwell.zsh",
		"completion/dipwell.fish", "deploy/systemd/dipwell.service", "deploy/grafana/dipwell.json", "deploy/helm/dipwell/Chart.yaml", "deploy/helm/dipwell/templates/service.yaml",
		"deploy/kubernetes/deployment.yaml", "deploy/kubernetes/monitoring/servicemonitor.yaml", "deploy/prometheus/alerts.yaml"}
	for _, system := range []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64", "windows_amd64"} {
		program, archive := "dipwell", ".tar.gz"
		if system == "windows_amd64" {
			program, archive = "dipwell.exe", ".zip"
		}
		names := list(t, one(t, filepath.Join(dist, "dipwell_*_"+system+archive)))
		for _, name := range append(want, program) {
			if !slices.Contains(names, name) {
				t.Errorf("%s lacks %s; it has %q", system, name, names)
			}
		}
		var bom struct{ Components []struct{ Name string } }
		text, err := os.ReadFile(one(t, filepath.Join(dist, "dipwell_*_"+system+".cdx.json")))
		must(t, err)
		must(t, json.Unmarshal(text, &bom))
		if !slices.ContainsFunc(bom.Components, func(c struct{ Name string }) bool { return c.Name == "github.com/jackc/pgx/v5" }) {
			t.Errorf("the SBOM of %s has %d components without pgx", system, len(bom.Components))
		}
	}
	sums, err := os.ReadFile(filepath.Join(dist, "checksums.txt"))
	must(t, err)
	kinds := map[string]int{}
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		path := filepath.Join(dist, name)
		if _, err := os.Stat(path); err != nil {
			path = filepath.Join(files, name)
		}
		text, err := os.ReadFile(path)
		must(t, err)
		if got := sha256.Sum256(text); hex.EncodeToString(got[:]) != sum {
			t.Errorf("the checksum of %s is wrong", name)
		}
		kinds[filepath.Ext(name)]++
	}
	for kind, n := range map[string]int{".gz": 4, ".zip": 1, ".deb": 2, ".sql": 1, ".tgz": 1, ".whl": 1, ".json": 5} {
		if kinds[kind] != n {
			t.Errorf("%d checksums of %s, want %d", kinds[kind], kind, n)
		}
	}
}

// list returns the names of the files in an archive.
func list(t *testing.T, archive string) (names []string) {
	t.Helper()
	if filepath.Ext(archive) == ".zip" {
		z, err := zip.OpenReader(archive)
		must(t, err)
		defer z.Close()
		for _, f := range z.File {
			names = append(names, f.Name)
		}
		return names
	}
	f, err := os.Open(archive)
	must(t, err)
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	must(t, err)
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if err == io.EOF {
			return names
		}
		must(t, err)
		names = append(names, h.Name)
	}
}

// TestReleasePrograms starts the program of the archive and of the Debian package for this
// system.
func TestReleasePrograms(t *testing.T) {
	archived, packaged := t.TempDir(), t.TempDir()
	output(t, archived, "tar", "xzf", one(t, filepath.Join(dist, "dipwell_*_linux_amd64.tar.gz")))
	deb := one(t, filepath.Join(dist, "dipwell_*_linux_amd64.deb"))
	output(t, packaged, "dpkg-deb", "-x", deb, packaged)
	if got := output(t, packaged, "dpkg-deb", "-f", deb, "Package", "Architecture", "Section"); got != "Package: dipwell\nArchitecture: amd64\nSection: net\n" {
		t.Error(got)
	}
	for _, name := range []string{"share/man/man1/dipwell.1.gz", "share/bash-completion/completions/dipwell", "share/zsh/vendor-completions/_dipwell", "share/fish/vendor_completions.d/dipwell.fish",
		"share/dipwell/dipwell.sql", "share/doc/dipwell/copyright", "share/doc/dipwell/THIRD_PARTY_LICENSES.md", "lib/systemd/system/dipwell.service"} {
		if info, err := os.Stat(filepath.Join(packaged, "usr", name)); err != nil || info.Size() == 0 {
			t.Errorf("the package lacks %s: %v", name, err)
		}
	}
	for _, program := range []string{filepath.Join(archived, "dipwell"), filepath.Join(packaged, "usr/bin/dipwell")} {
		if got := output(t, "", program, "version"); !strings.HasPrefix(got, "dipwell ") {
			t.Error(got)
		}
		urls, stop := launch(t, exec.Command(program, "serve", "--listen", "127.0.0.1:0", "--limit", "api=10/1s"), 1)
		res, err := http.Post(urls[0]+"/v1/take", "application/x-www-form-urlencoded", strings.NewReader("limit=api&key=k"))
		if err == nil {
			res.Body.Close()
		}
		if err != nil || res.StatusCode != http.StatusOK {
			t.Error(res, err)
		}
		if res, err = http.Get(urls[0] + "/ui/"); err == nil {
			res.Body.Close()
		}
		stop()
	}
}

// TestReleasePackages installs the SQL by psql, and the packages for npm and Python into
// empty projects, and is refused by each inside a transaction.
func TestReleasePackages(t *testing.T) {
	server := pgtest.Start(t)
	psql := func(text string) string {
		t.Helper()
		cmd := server.Command("psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", server.DSN("postgres"))
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	sql, err := os.ReadFile(filepath.Join(files, "dipwell.sql"))
	must(t, err)
	psql("begin;" + string(sql) + "commit")
	if got := psql("select dipwell.define('one', 1, interval '1 hour'); begin; select allowed from dipwell.take('one', 'k'); select allowed from dipwell.take('one', 'k'); rollback"); strings.Join(strings.Fields(got), "") != "tf" {
		t.Error(got)
	}
	psql("drop schema dipwell, dipwell_internal cascade")

	npm := t.TempDir()
	output(t, npm, "npm", "init", "-y")
	output(t, npm, "npm", "install", "--silent", "--prefer-offline", one(t, filepath.Join(files, "dipwell-*.tgz")), "pg")
	must(t, os.WriteFile(filepath.Join(npm, "try.mjs"), []byte(`import pg from "pg";
import { Dipwell } from "dipwell";
const client = new pg.Client(process.argv[2]);
await client.connect();
const d = Dipwell.sql((text, params) => client.query(text, params));
await d.install();
await d.define("one", { rate: 1, per: "1h" });
await client.query("begin");
console.log((await d.take("one", "k")).allowed, (await d.take("one", "k")).allowed);
await client.query("rollback");
await client.end();
`), 0o600))
	if got := output(t, npm, "node", "try.mjs", server.DSN("postgres")); got != "true false\n" {
		t.Error(got)
	}
	psql("drop schema dipwell, dipwell_internal cascade")

	python := t.TempDir()
	output(t, python, "/usr/bin/python3", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-index", "--no-deps", "--target", python, one(t, filepath.Join(files, "dipwell-*.whl")))
	const try = `import sys, psycopg
from dipwell import Dipwell
with psycopg.connect(sys.argv[1]) as conn:
    d = Dipwell(conn)
    d.install()
    d.define("one", rate=1, per="1h")
    print(d.take("one", "k").allowed, d.take("one", "k").allowed)
`
	cmd := exec.Command("/usr/bin/python3", "-c", try, server.DSN("postgres"))
	cmd.Env = append(os.Environ(), "PYTHONPATH="+python, "PYTHONDONTWRITEBYTECODE=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil || out.String() != "True False\n" {
		t.Errorf("%v: %s", err, out.String())
	}
}
