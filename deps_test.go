package dipwell_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestStandardLibraryOnly: a program that keeps its limits in memory, with any
// of the decorators or behind net/http, links nothing but the standard library.
// The list depends on the system, since files may be for one alone.
func TestStandardLibraryOnly(t *testing.T) {
	rooms := []string{"", "/store", "/memstore", "/stack", "/internal/coalesce", "/internal/breaker", "/internal/denycache", "/internal/fallback", "/internal/keyhash", "/internal/shadow", "/httplimit"}
	for _, goos := range []string{"linux", "darwin", "windows"} {
		args := []string{"list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}"}
		for _, room := range rooms {
			args = append(args, module+room)
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
				t.Errorf("on %s, one of %v imports %s", goos, rooms, path)
			}
		}
		if own < len(rooms) {
			t.Errorf("on %s, go list names %d packages of this module, and %d were asked for", goos, own, len(rooms))
		}
	}
}
