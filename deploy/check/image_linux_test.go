package check

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// stage is a stage of a Dockerfile.
type stage struct {
	has   map[string]string // the last instruction of each name, also of the stage that it begins with
	steps [][2]string       // RUN and COPY, in their order
}

// stages returns the Dockerfile's stages by their name; the last one has none.
func stages(t *testing.T) map[string]stage {
	t.Helper()
	b, err := os.ReadFile(deploy + "/docker/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	all, name := map[string]stage{}, ""
	for line := range strings.Lines(strings.ReplaceAll(string(b), "\\\n", "")) {
		instruction, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		s := all[name]
		switch instruction {
		case "", "#":
			continue
		case "FROM":
			base, as, _ := strings.Cut(rest, " AS ")
			name = as
			s = stage{has: map[string]string{"FROM": base}}
			if before, ok := all[base]; ok {
				s = stage{has: maps.Clone(before.has), steps: before.steps[:len(before.steps):len(before.steps)]}
			}
		case "RUN", "COPY":
			s.steps = append(s.steps, [2]string{instruction, rest})
		default:
			s.has[instruction] = rest
		}
		all[name] = s
	}
	return all
}

// list returns the members of an instruction that is a JSON array.
func (s stage) list(t *testing.T, instruction string) (list []string) {
	t.Helper()
	if err := json.Unmarshal([]byte(s.has[instruction]), &list); err != nil {
		t.Fatal(instruction, err)
	}
	return list
}

// copyTo does what COPY does with files of the stage build, whose /out is in another directory.
func copyTo(t *testing.T, root, out, args string) {
	t.Helper()
	owner := "0:0"
	var paths []string
	for arg := range strings.FieldsSeq(args) {
		switch flag, value, _ := strings.Cut(arg, "="); flag {
		case "--from":
			if value != "build" {
				t.Fatal(args)
			}
		case "--chown":
			owner = value
		default:
			paths = append(paths, arg)
		}
	}
	from, to := strings.Replace(paths[0], "/out", out, 1), filepath.Join(root, paths[1])
	info, err := os.Stat(from)
	if err != nil {
		t.Fatal(err)
	}
	if info.IsDir() {
		from += "/."
	}
	command := `mkdir -p "$(dirname "$2")" && cp -R "$1" "$2" && if [ "$3" != 0:0 ]; then chown -R "$3" "$2"; fi`
	if said, err := exec.Command("sh", "-c", command, "sh", from, to, owner).CombinedOutput(); err != nil {
		t.Fatalf("COPY %s: %v\n%s", args, err, said)
	}
}

// TestImage runs the commands of the Dockerfile that write what the last stage copies, and the
// program with the image's user, environment and arguments in a file system that has these
// files and nothing else. So nothing is needed of the image of Go, which builds them.
func TestImage(t *testing.T) {
	if os.Getuid() != 0 {
		absent(t, "chroot needs root")
	}
	all := stages(t)
	image := all[""]
	if image.has["FROM"] != "scratch" {
		t.Fatalf("the image begins with %s, which this test does not have", image.has["FROM"])
	}
	root, out := t.TempDir(), t.TempDir()
	for dir := root; dir != "/"; dir = filepath.Dir(dir) { // the image's user must reach it
		if info, err := os.Stat(dir); err != nil || info.Mode()&0o1 == 0 {
			if err := os.Chmod(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, step := range all["build"].steps {
		if step[0] != "RUN" || !strings.Contains(step[1], " /out") {
			continue
		}
		cmd := exec.Command("sh", "-c", strings.ReplaceAll(step[1], " /out", ` "$OUT"`))
		cmd.Dir = deploy + "/.."
		cmd.Env = append(os.Environ(), "OUT="+out, "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH)
		if said, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", step[1], err, said)
		}
	}
	for _, step := range image.steps {
		copyTo(t, root, out, step[1])
	}
	uid, gid, _ := strings.Cut(image.has["USER"], ":")
	user, err := strconv.Atoi(uid)
	group, err2 := strconv.Atoi(gid)
	if err := errors.Join(err, err2); err != nil || user == 0 {
		t.Fatal(user, err)
	}
	args := image.list(t, "CMD")
	for i, a := range args {
		args[i] = strings.Replace(a, ":8080", "127.0.0.1:0", 1)
	}
	args = append(append(image.list(t, "ENTRYPOINT"), args...), "--data", image.has["VOLUME"], "--limit", "api=10/1s,burst=50")
	run := exec.Command(args[0], args[1:]...)
	run.Env, run.Dir = []string{image.has["ENV"]}, "/"
	run.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: uint32(user), Gid: uint32(group)}}
	urls, stop := launch(t, run, 1)
	res, err := http.Post(urls[0]+"/v1/take", "application/x-www-form-urlencoded", strings.NewReader("limit=api&key=k"))
	if err == nil {
		if b, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
			t.Error(res.Status, string(b))
		}
		res.Body.Close()
	}
	if signal := image.has["STOPSIGNAL"]; signal != "SIGTERM" {
		t.Error(signal)
	}
	if stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(root, image.has["VOLUME"], "dipwell.db")); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"etc/ssl/certs/ca-certificates.crt", "usr/share/doc/dipwell/THIRD_PARTY_LICENSES.md"} {
		if info, err := fs.Stat(os.DirFS(root), name); err != nil || info.Size() == 0 || info.Mode()&0o4 == 0 {
			t.Error(name, info, err)
		}
	}
}
