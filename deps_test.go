package dipwell_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestStandardLibraryOnly checks that a program with limits in memory, with any of the
// decorators or behind net/http, links only the standard library. It checks several
// systems, because files may be for one system only.
func TestStandardLibraryOnly(t *testing.T) {
	paths := []string{"", "/store", "/memstore", "/stack", "/internal/coalesce", "/internal/breaker", "/internal/denycache", "/internal/fallback", "/internal/keyhash", "/internal/shadow", "/httplimit"}
	for _, goos := range []string{"linux", "darwin", "windows"} {
		args := []string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}
		for _, path := range paths {
			args = append(args, module+path)
		}
		list := exec.CommandContext(t.Context(), "go", args...)
		list.Env = append(os.Environ(), "GOOS="+goos, "GOARCH=amd64", "CGO_ENABLED=0")
		out, err := list.CombinedOutput()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, out)
		}
		own := 0
		for path := range strings.FieldsSeq(string(out)) {
			if path == module || strings.HasPrefix(path, module+"/") {
				own++
			} else {
				t.Errorf("on %s, one of %v imports %s", goos, paths, path)
			}
		}
		if own < len(paths) {
			t.Errorf("on %s, go list names %d packages of this module, want at least %d", goos, own, len(paths))
		}
	}
}
