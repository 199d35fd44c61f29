package check

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
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

// instructions returns the Dockerfile's instructions of the last stage by their name, and
// the command that builds the program.
func instructions(t *testing.T) (last map[string]string, build []string) {
	t.Helper()
	b, err := os.ReadFile(deploy + "/docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("\\\n", "", "$TARGETOS", runtime.GOOS, "$TARGETARCH", runtime.GOARCH).Replace(string(b))
	m := regexp.MustCompile(`(?m)^RUN ((?:\w+=\S+ )*)(go build [^&\n]*)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatal("the Dockerfile does not build the program")
	}
	build = append(append([]string{"env"}, strings.Fields(m[1])...), strings.Fields(m[2])...)
	last = map[string]string{}
	for line := range strings.Lines(text[strings.LastIndex(text, "\nFROM "):]) {
		if name, rest, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == strings.ToUpper(name) {
			last[name] = rest
		}
	}
	return last, build
}

// TestImage builds the program with the Dockerfile's command, and runs it with the image's
// user and arguments in a file system that has what the last stage copies and nothing
// else. So it needs nothing of the base image, whose certificates and time zones it may
// use. The image itself is not built.
func TestImage(t *testing.T) {
	if os.Getuid() != 0 {
		absent(t, "chroot needs root")
	}
	image, build := instructions(t)
	root := t.TempDir()
	for dir := root; dir != "/"; dir = filepath.Dir(dir) { // the image's user must reach it
		if info, err := os.Stat(dir); err != nil || info.Mode()&0o1 == 0 {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	program, data := filepath.Join(root, "usr/bin/dipwell"), filepath.Join(root, "var/lib/dipwell")
	at := slices.Index(build, "-o") + 1
	build[at] = program
	for _, dir := range []string{filepath.Dir(program), data} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(build[0], build[1:]...)
	cmd.Dir = deploy + "/.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build, err, out)
	}
	uid, gid, _ := strings.Cut(image["USER"], ":")
	user, err := strconv.Atoi(uid)
	group, err2 := strconv.Atoi(gid)
	if err := errors.Join(err, err2, os.Chown(data, user, group)); err != nil || user == 0 {
		t.Fatal(user, err)
	}
	var entry, args []string
	if err := errors.Join(json.Unmarshal([]byte(image["ENTRYPOINT"]), &entry), json.Unmarshal([]byte(image["CMD"]), &args)); err != nil {
		t.Fatal(err)
	}
	for i, a := range args {
		args[i] = strings.Replace(a, ":8080", "127.0.0.1:0", 1)
	}
	args = append(append(entry[1:], args...), "--data", strings.TrimPrefix(data, root), "--limit", "api=10/1s,burst=50")
	run := exec.Command(entry[0], args...)
	run.Env, run.Dir = []string{}, "/"
	run.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(group)}}
	urls, stop := launch(t, run, 1)
	res, err := http.Post(urls[0]+"/v1/take", "application/x-www-form-urlencoded", strings.NewReader("limit=api&key=k"))
	if err == nil {
		if b, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
			t.Error(res.Status, string(b))
		}
		res.Body.Close()
	}
	if signal := image["STOPSIGNAL"]; signal != "SIGTERM" {
		t.Error(signal)
	}
	if stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(data, "dipwell.db")); err != nil {
		t.Error(err)
	}
}
