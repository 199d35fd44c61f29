package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The command line has precedence over the environment, and the answer has the URL
// that was called.
func TestServerOrStore(t *testing.T) {
	const nobody = "http://127.0.0.1:1"
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "api=1/1h,burst=100,keys=list")
	store := "file:" + t.TempDir() + "/dipwell.db"
	for _, tc := range []struct {
		server, store string // of the environment
		args          string
		code          int
		says          string
	}{
		{nobody, "", "take api k --store memory: --limit api=1/1h,burst=5", 0, "4 of 5 remaining, full in 1h0m0s; asked memory:\n"},
		{nobody, store, "take api k --limit api=1/1h,burst=5", 0, "; asked " + store},
		{"", store, "take api k --server " + p.url, 0, "; asked " + p.url},
		{p.url, store, "take api k", 0, "; asked " + p.url},
		{"", store, "check api k --json", 0, `"asked":"` + store + `"`},
		{nobody, "", "inspect api k --store " + store, 0, "; asked " + store},
		{nobody, "", "limits --store " + store, 0, "asked " + store},
		{nobody, "", "keys api --server " + p.url, 0, "asked " + p.url},
		{nobody, "", "take api k", 2, nobody},
		{"", "", "take api k --server " + p.url + " --store " + store, 2, "server, store: give only one of them"},
		{"", "", "take api k --server 127.0.0.1:8080", 2, `server: "127.0.0.1:8080" is not a URL such as http://127.0.0.1:8080`},
		{"localhost:8080", "", "take api k", 2, `server: "localhost:8080" is not a URL`},
		{"", "", "top --once --server ftp://localhost", 2, "server: "},
		{"", "", "doctor --server http:/localhost", 2, "server: "},
		{"", "", "take api k --limit api=1/1h --server " + p.url, 2, "limit: --limit defines a limit in a store, but this command calls " + p.url + "; give --store"},
		{p.url, "", "take api k --limit api=1/1h", 2, "limit: --limit defines a limit in a store, but this command calls " + p.url + "; give --store"},
	} {
		t.Setenv("DIPWELL_SERVER", tc.server)
		t.Setenv("DIPWELL_STORE", tc.store)
		code, out, stderr := program(t, strings.Fields(tc.args)...)
		if code != tc.code || !strings.Contains(out+stderr, tc.says) {
			t.Errorf("%s (server %q, store %q): %d, want %d with %q\n%s%s", tc.args, tc.server, tc.store, code, tc.code, tc.says, out, stderr)
		}
	}
}

// The file of the secret is read once, because it may be a pipe.
func TestSecretFromPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err = w.WriteString(strings.Repeat("s", 32)); err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/dev/fd/%d", r.Fd())
	if _, err = os.Stat(path); err != nil {
		path = secretFile(t) // Windows has none
	}
	code, out, errs := program(t, "take", "login", "alice", "--store", "file:"+t.TempDir()+"/d.db", "--limit", "login=5/1m", "--key-secret-file", path)
	if code != 0 {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
}
