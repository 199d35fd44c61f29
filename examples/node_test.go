//go:build clients

package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestNode runs the programs for Node, and a client generated from /openapi.json, with the
// packages that clients/package.json names.
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
}
