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

// TestNode runs the programs for Node, and clients for TypeScript and Python that are
// generated from /openapi.json, with the packages that clients/package.json names.
func TestNode(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "clients")
	if err := os.CopyFS(dir, os.DirFS("clients")); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, args, err, out)
		}
	}
	run("npm", "install", "--no-audit", "--no-fund")
	dsn, url := login(t)
	takesTwo(t, "node", filepath.Join(dir, "take_sql.mjs"), dsn)
	takesTwo(t, "node", filepath.Join(dir, "take_http.mjs"), url)
	run("npx", "openapi-typescript", url+"/openapi.json", "-o", "openapi.d.ts")
	run("npx", strings.Fields("tsc --strict --noEmit false --target es2022 --module nodenext --skipLibCheck walk.ts")...)
	takesTwo(t, "node", filepath.Join(dir, "walk.js"), url)

	const python = "/usr/bin/python3"
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
