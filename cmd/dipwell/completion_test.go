package main

import (
	"os/exec"
	"strings"
	"testing"
)

// TestCompletion runs the completion for bash, and checks that those for other shells and the
// man page have each command and flag that it has.
func TestCompletion(t *testing.T) {
	script := func(shell string) string {
		t.Helper()
		code, out, stderr := program(t, "completion", shell)
		if code != 0 || stderr != "" {
			t.Fatal(code, stderr)
		}
		return out
	}
	bash := script("bash")
	for words, want := range map[string]string{
		"ta":                         "take take-up-to",
		"migrate ":                   "up down status print --help",
		"migrate print --f":          "--for --from",
		"override set login user --": "--burst --cacert --cert",
		"take login take --fl":       "--floor",
		"completion --h":             "--help",
		"frob --":                    "--help",
	} {
		cmd := exec.Command("bash", "-c", bash+`
COMP_WORDS=(dipwell "$@") COMP_CWORD=$#
_dipwell
echo "${COMPREPLY[*]}"`, "bash")
		cmd.Args = append(cmd.Args, strings.Split(words, " ")...)
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("%q: %s, %v; want %s", words, out, err, want)
		}
	}
	flags := map[string]string{"zsh": "'--%s:", "fish": " -l %s ", "man": `\fB\-\-%s\fR`}
	for shell, form := range flags {
		text := script(shell)
		for _, name := range []string{"plan", "floor", "unlogged", "config", "from"} {
			if want := strings.Replace(form, "%s", name, 1); !strings.Contains(text, want) {
				t.Errorf("%s lacks %s", shell, want)
			}
		}
		for _, command := range []string{"take", "override", "doctor"} {
			if !strings.Contains(text, command) {
				t.Errorf("%s lacks %s", shell, command)
			}
		}
	}
	if code, _, stderr := program(t, "completion", "csh"); code != 2 || !strings.Contains(stderr, "bash") {
		t.Error(code, stderr)
	}
}
