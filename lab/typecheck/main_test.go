package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMistakes makes one mistake after the other in a module and looks for it on each
// platform.
func TestMistakes(t *testing.T) {
	t.Setenv("GOFLAGS", "")
	const fine = "package small\n\nconst size = 1 << 20\n"
	const all = "linux/386 darwin/arm64 windows/amd64"
	for _, m := range []struct {
		name, file, text string
		on               string // platforms
		want             string
	}{
		{"none", "a.go", fine, "", ""},
		{"too large for 32 bits", "a.go", fine + "\nvar n int = size << 12\n", "linux/386", "overflows"},
		{"that in a test", "a_test.go", "package small\n\nvar n int = size << 12\n", "linux/386", "overflows"},
		{"that in a test of the API", "b_test.go", "package small_test\n\nvar n int = 1 << 32\n", "linux/386", "overflows"},
		{"a name of Unix", "a.go", "package small\n\nimport \"syscall\"\n\nvar kill = syscall.Kill\n", "windows/amd64", "Kill"},
		{"a file for one platform", "a_darwin.go", "package small\n\nvar n = missing\n", "darwin/arm64", "missing"},
		{"a variable that is not used", "a.go", fine + "\nfunc f() { n := 1 }\n", all, "declared and not used"},
		{"a module that go.mod lacks", "a.go", "package small\n\nimport _ \"example.com/lacks\"\n", all, "example.com/lacks"},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range map[string]string{"go.mod": "module small\n\ngo 1.26.0\n", "a.go": fine, m.file: m.text} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for _, platform := range strings.Fields(all) {
				system, arch, _ := strings.Cut(platform, "/")
				_, err := check(dir, system, arch)
				if wrong := strings.Contains(m.on, platform); wrong != (err != nil) || wrong && !strings.Contains(err.Error(), m.want) {
					t.Errorf("%s: %v; want a failure on %q with %q", platform, err, m.on, m.want)
				}
			}
		})
	}
}
