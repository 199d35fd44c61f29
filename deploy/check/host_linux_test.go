package check

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// absent skips a test of what is not installed here; on CI it fails.
func absent(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// TestUnit runs systemd's own checks of the unit: that it knows every setting, and that
// the sandbox is tight. The unit is not started.
func TestUnit(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		absent(t, "no systemd-analyze (Debian: systemd)")
	}
	unit, err := os.ReadFile(deploy + "/systemd/dipwell.service")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dipwell.service")
	// verify wants the programs to be there.
	if err := os.WriteFile(path, bytes.ReplaceAll(unit, []byte("/usr/local/bin/dipwell"), []byte("/bin/true")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	// Exposure in tenths: 14 of 100 when this was written.
	if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=20", path).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}
