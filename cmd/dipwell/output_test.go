package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/dipwell/dipwell/internal/server"
)

var errNoSpace = errors.New("no space left on device")

// full is a disk without space.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errNoSpace }

// A command whose answer could not be printed does not end as if it had been: every command
// that prints, so that a new one needs a line here.
func TestLostOutput(t *testing.T) {
	t.Setenv("DIPWELL_SERVER", startAPI(t, server.Config{}, "login=5/1m,burst=90,keys=list", "jobs=1/1s,burst=1,max_debt=5"))
	dir := t.TempDir()
	config, log := filepath.Join(dir, "dipwell.yaml"), filepath.Join(dir, "log")
	for path, text := range map[string]string{config: "limits: []\n", log: `1.2.3.4 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.1" 200 1 "-" "x"` + "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, setup := range []string{"override set login u --burst 3", "hold login a --ttl 1h --id one", "hold login a --ttl 1h --id two"} {
		if code, out, errs := program(t, strings.Fields(setup)...); code != 0 {
			t.Fatal(setup, out, errs)
		}
	}
	commands := map[string]string{
		"take": "login a", "check": "login a", "take-up-to": "login a", "reserve": "jobs a", "wait": "login a", "charge": "login a", "refund": "login a", "reset": "login b",
		"hold": "login a --ttl 1h", "settle": "one", "extend": "two --ttl 1h", "holds": "login a",
		"override set": "login v --burst 3", "override list": "login", "override end": "login u", "audit": "", "limits": "", "keys": "login", "inspect": "login a",
		"top": "--once --interval 100ms", "migrate print": "", "config check": config, "replay": "--log " + log + " --limit a=1/1s", "simulate": "--seeds 1 --steps 1",
		"bench": "--time 10ms --clients 1 --keys 1", "doctor": "", "version": "",
	}
	_, out, _ := program(t, "reserve", "jobs", "b", "--cost", "3")
	_, id, _ := strings.Cut(out, "reservation ")
	commands["cancel"] = id[:36]
	elsewhere := map[string]bool{"serve": true, "migrate up": true, "migrate down": true, "migrate status": true} // they need a store
	parser, err := kong.New(&commandsOf{}, kong.Vars{"timeout": "10s", "for": ""})
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range parser.Model.Leaves(true) {
		name := strings.TrimSpace(strings.TrimPrefix(leaf.Path(), parser.Model.Name))
		name, _, _ = strings.Cut(name, " <")
		name, _, _ = strings.Cut(name, " [")
		args, ok := commands[name]
		if !ok && !elsewhere[name] {
			t.Errorf("no line for dipwell %s", name)
		}
		if !ok {
			continue
		}
		var errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(name+" "+args), strings.NewReader(""), full{}, &errs); code != 2 || !strings.Contains(errs.String(), errNoSpace.Error()) {
			t.Errorf("dipwell %s %s: exit %d, %s", name, args, code, errs.String())
		}
	}
}

// commandsOf is commands without the flags of serve, which are made.
type commandsOf struct{ commands }

// Keys, notes and ids are of clients: what they print must not move the cursor of the person
// who looks, nor make lines.
func TestHostileTexts(t *testing.T) {
	t.Setenv("DIPWELL_SERVER", startAPI(t, server.Config{}, "login=5/1m,burst=90,keys=list"))
	hostile := "x\x1b]0;owned\a\x1b[31m\nlogin: fine"
	for _, args := range [][]string{
		{"take", "login", hostile}, {"override", "set", "login", hostile, "--burst", "3", "--note", hostile}, {"reset", "login", hostile, "--note", hostile},
		{"take", "login", hostile}, {"hold", "login", hostile, "--ttl", "1h"}, {"check", "login", hostile},
		{"keys", "login"}, {"inspect", "login", hostile}, {"override", "list", "login"}, {"holds", "login", hostile}, {"audit"}, {"audit", "login", hostile},
		{"top", "--once", "--interval", "100ms"}, {"limits"}, {"doctor"},
	} {
		code, out, errs := program(t, args...)
		if code != 0 {
			t.Errorf("%q: exit %d, %s", args, code, errs)
		}
		if strings.ContainsAny(out+errs, "\x1b\a") || strings.Contains(out+errs, "\nlogin: fine") {
			t.Errorf("%q prints %q", args, out+errs)
		}
	}
}
