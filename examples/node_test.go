//go:build clients

package examples

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxPackage bounds the package for npm without the SQL, in bytes.
const maxPackage = 60_000

// TestNode tests the package of clients/typescript, and clients for TypeScript and Python that
// are generated from /openapi.json.
func TestNode(t *testing.T) {
	dsn, url, bin := login(t)
	t.Run("package", func(t *testing.T) { testPackage(t, dsn, url, bin) })
	t.Run("generated", func(t *testing.T) { testGenerated(t, url) })
}

// testPackage builds the package, installs it into an empty project and takes from there, and
// runs the package's own tests with those of npm that it is for.
func testPackage(t *testing.T, dsn, url, bin string) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "clients/typescript")
	for _, part := range []string{"", "clients/typescript", "clients/typescript/src", "clients/typescript/test"} {
		copyFiles(t, filepath.Join(root, part), filepath.Join("..", part))
	}
	service := exec.Command(bin, "serve", "--listen", "127.0.0.1:0")
	service.Env = append(os.Environ(), "DIPWELL_ADMIN_TOKEN=sesame")
	env := []string{"DIPWELL=" + bin, "DATABASE_URL=" + dsn, "DIPWELL_URL=" + served(t, service), "TOKEN=sesame"}
	npm(t, dir, nil, "npm", "ci", "--prefer-offline")
	npm(t, dir, env, "npm", "run", "build")
	packed := packOf(t, dir, "./dist")

	project := filepath.Join(root, "project")
	runs(t, "mkdir", project)
	runs(t, "cp", "clients/take.mjs", project)
	npm(t, project, nil, "npm", "init", "-y")
	npm(t, project, nil, "npm", "install", "--prefer-offline", "../clients/typescript/"+packed.Filename, "pg")
	takesTwo(t, "node", filepath.Join(project, "take.mjs"), dsn)
	takesTwo(t, "node", filepath.Join(project, "take.mjs"), url)

	runs(t, "cp", "-r", filepath.Join(project, "node_modules/dipwell"), filepath.Join(dir, "node_modules"))
	npm(t, dir, nil, "npx", "tsc", "-p", "test")
	npm(t, dir, env, "sh", "-c", "node --test test/*.test.mjs")

	if err := os.Remove(filepath.Join(dir, "dist/schema.js")); err != nil {
		t.Fatal(err)
	}
	if slim := packOf(t, dir, "./dist"); slim.Size > maxPackage {
		t.Errorf("the package has %d bytes without the SQL; at most %d", slim.Size, maxPackage)
	} else {
		t.Logf("%s: %d bytes, %d without the SQL", packed.Filename, packed.Size, slim.Size)
	}
}

// copyFiles copies the files of a directory, without directories, which may be node_modules.
func copyFiles(t *testing.T, to, from string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	if err == nil {
		err = os.MkdirAll(to, 0o700)
	}
	for _, e := range entries {
		if e.Type().IsRegular() && err == nil {
			var text []byte
			if text, err = os.ReadFile(filepath.Join(from, e.Name())); err == nil {
				err = os.WriteFile(filepath.Join(to, e.Name()), text, 0o600)
			}
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// npm runs a program in a directory and returns its standard output.
func npm(t *testing.T, dir string, env []string, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, args, err, out, stderr.String())
	}
	return out
}

// packed is a file that npm pack has made.
type packed struct {
	Filename string
	Size     int
}

func packOf(t *testing.T, dir, what string) packed {
	t.Helper()
	var list []packed
	if err := json.Unmarshal(npm(t, dir, nil, "npm", "pack", "--json", what), &list); err != nil || len(list) != 1 {
		t.Fatalf("npm pack: %v, %v", list, err)
	}
	return list[0]
}

// testGenerated generates and runs clients with the packages that clients/package.json names.
func testGenerated(t *testing.T, url string) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "clients")
	if err := os.CopyFS(dir, os.DirFS("clients")); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) {
		t.Helper()
		npm(t, dir, nil, name, args...)
	}
	run("npm", "install", "--no-audit", "--no-fund")
	run("npx", "openapi-typescript", url+"/openapi.json", "-o", "openapi.d.ts")
	run("npx", strings.Fields("tsc --strict --noEmit false --target es2022 --module nodenext --skipLibCheck walk.ts")...)
	takesTwo(t, "node", filepath.Join(dir, "walk.js"), url)

	if out, err := exec.CommandContext(t.Context(), python, "-c", "import certifi, dateutil, six, urllib3").CombinedOutput(); err != nil {
		t.Fatalf("%s has not what the generated client needs (Debian: python3-certifi, python3-dateutil, python3-six, python3-urllib3): %v: %s", python, err, out)
	}
	// The generator for Python that npm has reads OpenAPI 3.0, which has no info.summary.
	writeWithoutSummary(t, url+"/openapi.json", filepath.Join(dir, "openapi.json"))
	run("npx", "openapi-down-convert", "--input", "openapi.json", "--output", "openapi-3.0.json")
	run("java", "-jar", "node_modules/@openapitools/openapi-generator-cli/bin/openapi-generator.jar",
		"generate", "-g", "python", "-i", "openapi-3.0.json", "-o", ".", "--package-name", "dipwell_client")
	takesTwo(t, python, filepath.Join(dir, "walk.py"), url)
}

// writeWithoutSummary writes the document at an address to a file, without info.summary.
func writeWithoutSummary(t *testing.T, url, file string) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	var document struct {
		Info map[string]any `json:"info"`
	}
	var rest map[string]json.RawMessage
	text, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, json.Unmarshal(text, &document), json.Unmarshal(text, &rest)); err != nil {
		t.Fatal(err)
	}
	delete(document.Info, "summary")
	info, err := json.Marshal(document.Info)
	if err != nil {
		t.Fatal(err)
	}
	rest["info"] = info
	if text, err = json.Marshal(rest); err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
