package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"

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
		"top": "--once --interval 100ms", "migrate print": "", "config check": config, "replay": "--log " + log + " --limit a=1/1s",
		"bench": "--time 10ms --clients 1 --keys 1", "doctor": "", "completion": "fish", "version": "", "help": "take",
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

// Keys, notes and ids are of clients: what they print must not control the terminal of the
// person who looks, nor change the order of a text, nor make lines.
func TestHostileTexts(t *testing.T) {
	t.Setenv("DIPWELL_SERVER", startAPI(t, server.Config{}, "login=5/1m,burst=90,keys=list"))
	hostile := "x\x1b]0;owned\a\x1b[31m\u009b31m\u202e\u2066\u200f\u061c\x7f\nlogin: fine"
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte(`{"time":"2026-10-10T13:55:36Z","user":"x\u001b[31m`+"\u009b31m\u202e\x7f"+`"}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"take", "login", hostile}, {"override", "set", "login", hostile, "--burst", "3", "--note", hostile}, {"reset", "login", hostile, "--note", hostile},
		{"take", "login", hostile}, {"hold", "login", hostile, "--ttl", "1h"}, {"check", "login", hostile},
		{"keys", "login"}, {"inspect", "login", hostile}, {"override", "list", "login"}, {"holds", "login", hostile}, {"audit"}, {"audit", "login", hostile},
		{"top", "--once", "--interval", "100ms"}, {"limits"}, {"doctor"},
		{"replay", "--log", log, "--by", "user", "--limit", "a=1/1s", "--decisions", "-"}, {"replay", "--log", log, "--by", "user", "--limit", "a=1/1s"},
		{"take", hostile, "a"}, {hostile}, {"replay", "--log", hostile}, {"config", "check", hostile}, {"take", "a", "b", "--store", hostile}, {"take", "a", "b", "--server", hostile},
	} {
		for _, json := range []string{"", "--json"} {
			if json != "" && (args[0] == "doctor" || args[0] == "top") {
				continue
			}
			code, out, errs := program(t, slices.DeleteFunc(append(slices.Clone(args), json), func(s string) bool { return s == "" })...)
			if code != 0 && !slices.Contains(args, hostile) {
				t.Errorf("%q %s: exit %d, %s", args, json, code, errs)
			}
			if i := strings.IndexFunc(out+errs, func(r rune) bool { return unicode.IsControl(r) && r != '\n' || unicode.Is(unicode.Bidi_Control, r) }); i >= 0 || strings.Contains(out, "\nlogin: fine") {
				t.Errorf("%q %s prints %q, byte %d", args, json, out+errs, i)
			}
		}
	}
	var page struct{ Keys []struct{ Key string } }
	if _, out, _ := program(t, "keys", "login", "--json"); json.Unmarshal([]byte(out), &page) != nil || len(page.Keys) != 1 || page.Keys[0].Key != hostile {
		t.Errorf("the JSON has not the key: %s", out)
	}
	if _, out, _ := program(t, "audit", "--ndjson"); !strings.Contains(out, `\u202e\u2066`) {
		t.Errorf("the lines of JSON have not the key: %s", out)
	}
}

// TestEscapes checks texts that are written in pieces: each ends within a character.
func TestEscapes(t *testing.T) {
	for in, want := range map[string]string{
		"a\tb\n": "a\tb\n", "é\u202eé\x1b[m": `é\u202eé\u001b[m`, "\r\n": "\\u000d\n", "\x9b\u009b": "\ufffd" + `\u009b`, "👩‍🚀": "👩‍🚀", "\u2067 א \u2069": `\u2067 א \u2069`,
	} {
		for size := 1; size <= len(in); size++ {
			var b bytes.Buffer
			o := &output{to: &b}
			for rest := []byte(in); len(rest) > 0; rest = rest[min(size, len(rest)):] {
				if n, err := o.Write(rest[:min(size, len(rest))]); n != min(size, len(rest)) || err != nil {
					t.Fatal(n, err)
				}
			}
			if b.String() != want {
				t.Errorf("%q by %d bytes: %q, want %q", in, size, b.String(), want)
			}
		}
	}
}

// TestLongAnswers checks that an answer without end is not read to the end, by any command.
func TestLongAnswers(t *testing.T) {
	var sent atomic.Int64
	endless := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for b := bytes.Repeat([]byte{' '}, 64<<10); ; {
			n, err := w.Write(b)
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}))
	defer endless.Close()
	t.Setenv("DIPWELL_SERVER", endless.URL)
	for args, most := range map[string]int64{"take a b": maxShortAnswer, "doctor": maxShortAnswer, "limits": maxAnswer, "audit": maxAnswer, "top --once": maxAnswer} {
		sent.Store(0)
		code, out, errs := program(t, strings.Fields(args)...)
		if code == 0 || !strings.Contains(out+errs, "the answer has more than "+strconv.FormatInt(most>>10, 10)+" KiB") || len(out+errs) > 1000 {
			t.Errorf("%s: exit %d, %.1000s", args, code, out+errs)
		}
		if n := sent.Load(); n > most+(32<<20) { // what is on the way
			t.Errorf("%s: %d bytes were sent", args, n)
		}
	}
	pages := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"limits":[],"next":%q}`, r.URL.Query().Get("after")+"a")
	}))
	defer pages.Close()
	if code, _, errs := program(t, "limits", "--server", pages.URL); code != 2 || !strings.Contains(errs, "more than 100 pages") {
		t.Errorf("pages without end: exit %d, %s", code, errs)
	}
}
