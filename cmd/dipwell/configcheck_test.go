package main

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/dipwell/dipwell/internal/redistest"
)

// config check and doctor reject the same configuration files as serve, with
// the same messages.
func TestConfigCheckRefusesWhatServeDoes(t *testing.T) {
	dir := t.TempDir()
	short := filepath.Join(dir, "short")
	must(t, os.WriteFile(short, []byte("abc"), 0o600))
	var many strings.Builder
	for i := range 17 {
		fmt.Fprintf(&many, "  - {name: l%d, rate: 1, per: 1s}\n", i)
	}
	file := filepath.Join(dir, "dipwell.yaml")
	for _, tc := range []struct{ yaml, says string }{
		{"upstream: ftp://x\n", `upstream: "ftp://x" is not a URL such as http://127.0.0.1:3000`},
		{"upstream: http://127.0.0.1:1\nby: cookie\n", `by: "cookie" is not ip, shared or header:NAME`},
		{"by: ip\n", "by: chooses the bucket"},
		{"upstream: http://127.0.0.1:1\nlimits:\n" + many.String(), "upstream: 17 limits; a request can take from at most 16"},
		{"upstream: http://127.0.0.1:1\nlimits:\n  - {name: tenant, rate: 1, per: 1s, parts: 1}\n", "upstream: limit tenant has a parent or parts"},
		{"upstream: http://127.0.0.1:1\nlimits:\n  - {name: all, rate: 1, per: 1s}\n  - {name: user, rate: 1, per: 1s, parent: all}\n", "upstream: limit user has a parent or parts"},
		{"upstream: http://127.0.0.1:1\nby: shared\nlimits:\n  - {name: all, rate: 1, per: 1s, shared: true}\n  - {name: site, rate: 1, per: 1s}\n", "by: shared: limit site has a bucket for each key"},
		{"listen: nowhere\n", `listen: "nowhere" is not an address such as 127.0.0.1:8080`},
		{"listen: 127.0.0.1:99999\n", `listen: "127.0.0.1:99999" is not an address`},
		{"admin: 127.0.0.1\n", `admin: "127.0.0.1" is not an address`},
		{"grpc: 127.0.0.1:x\n", `grpc: "127.0.0.1:x" is not an address`},
		{"tls_cert: /tmp/c.pem\n", "tls_cert, tls_key: one is given without the other"},
		{"client_ca: /tmp/c.pem\n", "client_ca: needs tls_cert and tls_key"},
		{"tls_cert: " + short + "\ntls_key: " + short + "\n", "tls_cert " + short},
		{"key_secret_file: " + short + "\n", "key_secret_file: the secret has 3 bytes; at least 16"},
		{"log_refusals: 1001\n", "log_refusals: \"1001\" is not a whole number from 0 to 1000"},
		{"otlp_endpoint: x\n", `otlp_endpoint: "x" is not a URL`},
		{"otlp_endpoint: 'https://u:se/cret@h'\n", `otlp_endpoint: "...@h" is not a URL`},
		{"upstream: 'htp://u:secret@h'\n", `upstream: "...@h" is not a URL`},
		{"store: memory:x\n", `store: "memory:x": nothing may follow "memory:"`},
		{"store: postgres://h:x/d\n", "store: "},
		{"store: redis://h:1?foo=1\n", "store redis://h:1?...: foo: is not known"},
		{"store: 'file:'\n", "file"},
		{"data: a?b\n", "data: \"a?b\": the name of the directory must not"},
		{"admin_only: [metrics]\n", "admin_only: needs admin"},
	} {
		must(t, os.WriteFile(file, []byte(tc.yaml), 0o600))
		for _, args := range [][]string{{"config", "check", file}, {"serve", "--config", file}} {
			if code, out, stderr := program(t, args...); code != 2 || !strings.Contains(stderr, tc.says) {
				t.Errorf("%q: %v: %d %s%s", tc.yaml, args, code, out, stderr)
			}
		}
		if code, found := doctor(t, "--config", file); code != 1 || !strings.Contains(found["configuration"], "problem: ") {
			t.Errorf("%q: doctor: %d %v", tc.yaml, code, found)
		}
	}
	// A missing file may exist where the service runs.
	must(t, os.WriteFile(file, []byte("tls_cert: none.pem\ntls_key: none.key\nadmin_token_file: none\ndata: "+filepath.Join(dir, "data")+"\n"), 0o600))
	code, out, stderr := program(t, "config", "check", file)
	if code != 0 || !strings.Contains(out, "good, 0 limits") || !strings.Contains(stderr, "admin_token_file is not here") || !strings.Contains(stderr, "tls_cert none.pem, tls_key none.key is not here") {
		t.Error(code, out, stderr)
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		t.Error("config check has made the directory")
	}
}

// A role or database that cannot work ends serve, unless the store is lazy.
func TestServeRefusedByTheStore(t *testing.T) {
	t.Parallel()
	dsn := migratedDatabase(t)
	conn := connectTo(t, dsn)
	role := "nobody_" + conn.Config().Database
	if _, err := conn.Exec(t.Context(), "create role "+role+" login; revoke all on schema dipwell from public"); err != nil {
		t.Fatal(err)
	}
	server := redistest.Start(t)
	if _, err := server.Do("config", "set", "requirepass", "sesame"); err != nil {
		t.Fatal(err)
	}
	with := func(change func(*url.URL)) string {
		u, err := url.Parse(dsn)
		must(t, err)
		change(u)
		return u.String()
	}
	for name, tc := range map[string]struct{ store, says string }{
		"no database": {with(func(u *url.URL) { u.Path = "/nowhere" }), "3D000"},
		"no role":     {with(func(u *url.URL) { u.User = url.User("nobody_at_all") }), "28000"},
		"no rights":   {with(func(u *url.URL) { u.User = url.User(role) }), "42501"},
		"no password": {server.URL(), "NOAUTH"},
	} {
		t.Run(name, func(t *testing.T) {
			if code, _, stderr := program(t, "serve", "--listen", "127.0.0.1:0", "--store", tc.store, "--limit", "a=1/1s"); code != 2 || !strings.Contains(stderr, tc.says) {
				t.Error(code, stderr)
			}
			p := start(t, "--listen", "127.0.0.1:0", "--store", tc.store, "--limit", "a=1/1s", "--wait-for-store")
			p.stderr.wait(t, tc.says)
			if status, body := post(t, p.url+"/v1/take", "limit=a&key=k"); status != 503 {
				t.Error(status, body)
			}
		})
	}
	waits := start(t, "--listen", "127.0.0.1:0", "--store", with(func(u *url.URL) { u.User = url.User(role) }), "--limit", "a=1/1s", "--wait-for-store")
	if _, err := conn.Exec(t.Context(), "grant dipwell_admin to "+role); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if status, body := post(t, waits.url+"/v1/check", "limit=a&key=k&cost=0"); status != 200 || !strings.Contains(body, `"source":"store"`) {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
}

// SIGHUP does not end a service, whichever files it has.
func TestServeHangup(t *testing.T) {
	p := start(t, "--listen", "127.0.0.1:0", "--limit", "api=1/1h,burst=2")
	for range 3 {
		must(t, p.cmd.Process.Signal(syscall.SIGHUP))
		if status, body := post(t, p.url+"/v1/check", "limit=api&key=k"); status != 200 {
			t.Fatal(status, body)
		}
	}
	if err := p.stop(); err != nil {
		t.Error("SIGTERM after SIGHUP: ", err)
	}
}
