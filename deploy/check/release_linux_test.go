//go:build release

package check

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// images returns the images that goreleaser built, by their architecture.
func images(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dist, "artifacts.json"))
	must(t, err)
	var built []struct{ Name, Type string }
	must(t, json.Unmarshal(text, &built))
	found := map[string]string{}
	for _, a := range built {
		if strings.HasPrefix(a.Type, "Docker Image") {
			found[a.Name[strings.LastIndex(a.Name, "-")+1:]] = a.Name
		}
	}
	return found
}

// TestReleaseImage compares the images with the archives and the Dockerfile, and starts the
// one for this system with a volume, twice.
func TestReleaseImage(t *testing.T) {
	built := images(t)
	if len(built) == 0 {
		absent(t, "goreleaser built no image: make release-check leaves it out where no docker daemon answers")
	}
	docker := func(args ...string) string { return output(t, "", "docker", args...) }
	dir := t.TempDir()
	for _, arch := range []string{"amd64", "arm64"} {
		name := "dipwell-release-check-" + strconv.Itoa(os.Getpid()) + arch
		docker("create", "--platform", "linux/"+arch, "--name", name, built[arch])
		t.Cleanup(func() { docker("rm", "--force", "--volumes", name) })
		if got := docker("inspect", "--format", "{{.Architecture}}", built[arch]); got != arch+"\n" {
			t.Error(got)
		}
		image, archived := filepath.Join(dir, arch), filepath.Join(dir, arch+"-archive")
		docker("cp", name+":/", image)
		must(t, os.Mkdir(archived, 0o755))
		output(t, archived, "tar", "xzf", one(t, filepath.Join(dist, "dipwell_*_linux_"+arch+".tar.gz")))
		for inImage, inArchive := range map[string]string{"bin/dipwell": "dipwell", "share/doc/dipwell/THIRD_PARTY_LICENSES.md": "THIRD_PARTY_LICENSES.md"} {
			a, err := os.ReadFile(filepath.Join(image, "usr", inImage))
			must(t, err)
			b, err := os.ReadFile(filepath.Join(archived, inArchive))
			if must(t, err); !bytes.Equal(a, b) {
				t.Errorf("%s of the image for %s is not the one of the archive", inImage, arch)
			}
		}
		roots, err := os.ReadFile(filepath.Join(image, "etc/ssl/certs/ca-certificates.crt"))
		if must(t, err); !x509.NewCertPool().AppendCertsFromPEM(roots) {
			t.Error("no certificates")
		}
	}

	image, release := built[runtime.GOARCH], stages(t)["release"]
	if got := docker("run", "--rm", "--network=none", image, "version"); !strings.HasPrefix(got, "dipwell ") {
		t.Error(got)
	}
	name := "dipwell-release-check-" + strconv.Itoa(os.Getpid())
	docker("run", "--detach", "--network=none", "--name", name, image)
	t.Cleanup(func() { docker("rm", "--force", "--volumes", name) })
	user, _, _ := strings.Cut(release.has["USER"], ":")
	want := append([]string{user}, append(release.list(t, "ENTRYPOINT"), release.list(t, "CMD")...)...)
	_, running, _ := strings.Cut(docker("top", name, "-o", "pid,uid,args"), "\n")
	if got := strings.Fields(running); len(got) == 0 || !slices.Equal(got[1:], want) {
		t.Errorf("the container runs %q, want %q", got, want)
	}
	docker("stop", name)
	if got := docker("inspect", "--format", "{{.State.ExitCode}} {{.Config.StopSignal}}", name); got != "0 "+release.has["STOPSIGNAL"]+"\n" {
		t.Error(got)
	}

	volume := release.has["VOLUME"]
	t.Cleanup(func() { docker("volume", "rm", name) })
	for _, status := range []int{http.StatusOK, http.StatusTooManyRequests} {
		// Not by a port of the container, which a daemon without a bridge cannot publish.
		run := exec.Command("docker", "run", "--rm", "--network=host", "--read-only", "--volume", name+":"+volume, image,
			"serve", "--listen", "127.0.0.1:0", "--data", volume, "--limit", "one=1/1h")
		urls, stop := launch(t, run, 1)
		res, err := http.Post(urls[0]+"/v1/take", "application/x-www-form-urlencoded", strings.NewReader("limit=one&key=k"))
		if err == nil {
			res.Body.Close()
		}
		if stop(); err != nil || res.StatusCode != status {
			t.Errorf("%v, %v; want %d", res, err, status)
		}
	}
}
