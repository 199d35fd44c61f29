package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/redistest"
)

// writeCertificate writes a self-signed certificate for 127.0.0.1.
func writeCertificate(t *testing.T, name, cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	for path, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func isReady(t *testing.T, url string) error {
	if status, body := do(t, "GET", url+"/readyz", ""); status != 200 {
		return fmt.Errorf("/readyz is %d %s", status, body)
	}
	return nil
}

func TestServeTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	writeCertificate(t, "first", cert, key)
	p := start(t, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--limit", "api=1/1h")
	peer := func() string {
		c, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "https://"), &tls.Config{InsecureSkipVerify: true}) // the name is what is asked
		if err != nil {
			t.Error(err)
			return ""
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	if !strings.HasPrefix(p.url, "https://") || !strings.HasPrefix(p.admin, "http://") || peer() != "first" {
		t.Error(p.url, p.admin, peer())
	}
	writeCertificate(t, "second", cert, key)
	eventually(t, func() error {
		if got := peer(); got != "second" {
			return fmt.Errorf("the certificate is still %s", got)
		}
		return nil
	})
	if err := os.WriteFile(cert, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.stderr.wait(t, "tls_cert .*(?s:.*)the last good certificate stays in force")
	if got := peer(); got != "second" {
		t.Error(got)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

// A rotated token is used from the next call on; a bad file changes nothing.
func TestServeAdminToken(t *testing.T) {
	dir := t.TempDir()
	file, other, conf := filepath.Join(dir, "token"), filepath.Join(dir, "other"), filepath.Join(dir, "dipwell.yaml")
	save := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	save(file, "first\n")
	save(other, "fourth\n")
	save(conf, "admin_token_file: "+file+"\nlimits: [{name: api, rate: 1, per: 1h}]\n")
	p := start(t, "--listen", "127.0.0.1:0", "--config", conf)
	want := func(token string, status int) {
		t.Helper()
		eventually(t, func() error {
			r, err := http.NewRequest(http.MethodPost, p.url+"/v1/reset?limit=api&key=k", nil)
			if err != nil {
				return err
			}
			r.Header.Set("Authorization", token)
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				return err
			}
			_ = res.Body.Close()
			if res.StatusCode != status {
				return fmt.Errorf("%s: %s, want %d", token, res.Status, status)
			}
			return nil
		})
	}
	want("Bearer first", 200)
	want("bearer  first", 200)
	want("Bearer second", 401)
	save(file, "second\n")
	want("BEARER second", 200)
	want("Bearer first", 401)
	for bad, why := range map[string]string{"": "token is empty", "a\nb\n": "more than one line"} {
		save(file, bad)
		p.stderr.wait(t, "admin_token_file: .*"+why+"(?s:.*)the last good configuration stays in force")
		want("Bearer second", 200)
	}
	save(file, "third\n")
	want("Bearer third", 200)
	save(conf, "admin_token_file: "+other+"\nlimits: [{name: api, rate: 1, per: 1h}]\n")
	want("Bearer fourth", 200)
	save(file, "fifth\n") // no longer used
	save(other, "sixth\n")
	want("Bearer sixth", 200)
	want("Bearer fifth", 401)
}

// Clients use the given authorities and certificates.
func TestClientTLS(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	writeCertificate(t, "server", file("cert"), file("key"))
	writeCertificate(t, "client", file("mine"), file("mine.key"))
	writeCertificate(t, "stranger", file("other"), file("other.key"))
	p := start(t, "--listen", "127.0.0.1:0", "--tls-cert", file("cert"), "--tls-key", file("key"), "--client-ca", file("mine"), "--limit", "api=1/1h,burst=9")
	trusted := []string{"--cacert", file("cert"), "--cert", file("mine"), "--key", file("mine.key")}
	for _, args := range [][]string{{"take", "api", "k"}, {"limits"}, {"inspect", "api", "k"}, {"top", "--once", "--interval", "100ms"}, {"doctor"}} {
		if code, out, stderr := program(t, append(append(args, "--server", p.url), trusted...)...); code != 0 {
			t.Errorf("%v: %d %s%s", args, code, out, stderr)
		}
	}
	for want, args := range map[string][]string{
		"unknown authority":              nil,
		"dipwell: ":                      {"--cacert", file("cert")}, // the server hangs up, and its reason may come too late
		"127.0.0.1":                      {"--cacert", file("cert"), "--cert", file("other"), "--key", file("other.key")},
		"cacert: " + file("key"):         {"--cacert", file("key")},
		"cacert: open " + file("none"):   {"--cacert", file("none")},
		"one is given without the other": {"--cert", file("mine")},
		"cert, key: ":                    {"--cert", file("mine"), "--key", file("other.key")},
	} {
		if code, _, stderr := program(t, append([]string{"take", "api", "k", "--server", p.url}, args...)...); code != 2 || !strings.Contains(stderr, want) {
			t.Errorf("%v: %d %s, want %s", args, code, stderr, want)
		}
	}
}

// Hashed keys do not occur in the store, the log or lists.
func TestServeKeySecret(t *testing.T) {
	t.Parallel()
	db := redistest.Start(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a secret of enough bytes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "--listen", "127.0.0.1:0", "--store", db.URL(), "--limit", "login=1/1h,burst=2,keys=list", "--key-secret-file", secret,
		"--log-format", "json", "--log-refusals", "5")
	eventually(t, func() error { return isReady(t, p.url) })
	for i, want := range []int{200, 200, 429} {
		if status, body := post(t, p.url+"/v1/take", "limit=login&key=alice"); status != want || !strings.Contains(body, `"key":"alice"`) {
			t.Errorf("call %d: %d %s", i, status, body)
		}
	}
	hash := p.stderr.wait(t, `"msg":"refused","limit":"login","cost":1,"source":"store","key":"hash:(\S{10})","retry_after_us":\d+`)[1]
	if status, body := do(t, http.MethodGet, p.url+"/v1/limits/login/keys", ""); status != 200 || !strings.Contains(body, `"key":"`+hash) || strings.Contains(body, "alice") {
		t.Error(status, body)
	}
	// A client on the store itself uses the same bucket with the same secret, and another one without.
	if code, out, stderr := program(t, "take", "login", "alice", "--store", db.URL(), "--key-secret-file", secret); code != 1 || !strings.Contains(out, "refused: login alice") {
		t.Errorf("with the secret: %d %s%s", code, out, stderr)
	}
	if code, out, stderr := program(t, "check", "login", "alice", "--store", db.URL()); code != 0 {
		t.Errorf("without the secret: %d %s%s", code, out, stderr)
	}
	if code, out, stderr := program(t, "inspect", "login", "alice", "--store", db.URL(), "--key-secret-file", secret); code != 0 || !strings.Contains(out, "login alice: 0 of 2") {
		t.Errorf("inspect: %d %s%s", code, out, stderr)
	}
	// The override of a key is found by the caller's key, in the service and on the store itself.
	if status, body := do(t, http.MethodPut, p.url+"/v1/limits/login/overrides", `{"key":"alice","burst":7}`); status != 200 {
		t.Error(status, body)
	}
	if status, body := do(t, http.MethodGet, p.url+"/v1/limits/login/overrides?key=alice", ""); status != 200 || !strings.Contains(body, `"key":"alice"`) {
		t.Errorf("override of a key: %d %s", status, body)
	}
	if status, body := do(t, http.MethodGet, p.url+"/v1/limits/login/overrides?key=bob", ""); status != 404 {
		t.Errorf("override of another key: %d %s", status, body)
	}
	for _, where := range [][]string{{"--server", p.url}, {"--store", db.URL(), "--key-secret-file", secret}} {
		if code, out, stderr := program(t, append([]string{"inspect", "login", "alice"}, where...)...); code != 0 || !strings.Contains(out, "override: login alice: burst 7") {
			t.Errorf("inspect with an override %v: %d %s%s", where, code, out, stderr)
		}
	}
	if code, _, stderr := program(t, "take", "login", "alice", "--store", db.URL(), "--key-secret-file", secret+".none"); code != 2 || !strings.Contains(stderr, "key_secret_file: ") {
		t.Errorf("no secret: %d %s", code, stderr)
	}
	names, err := db.Do("keys", "*")
	if err != nil || strings.Contains(fmt.Sprint(names), "alice") || !strings.Contains(fmt.Sprint(names), hash) {
		t.Error(names, err)
	}
	if err := p.stop(); err != nil {
		t.Error(err)
	}
}

func TestOperationSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "dipwell.yaml")
	if err := os.WriteFile(file, []byte("max_in_flight: 7\nlog_refusals: 0\nlog_format: json\ntls_cert: c\ntls_key: k\nclient_ca: a\notlp_endpoint: http://c:4318\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := serveCommand(t, "--config", file, "--max-in-flight", "9", "--log-refusals", "3").settings()
	if err != nil || s.MaxInFlight != 9 || s.LogRefusals != 3 || s.LogFormat != "json" || s.TLSCert != "c" || s.ClientCA != "a" || s.OTLPEndpoint != "http://c:4318" {
		t.Errorf("%+v %v", s, err)
	}
	for want, arg := range map[string]string{
		`max_in_flight: "-1" is not`: "--max-in-flight=-1", "one is given without the other": "--tls-cert=c", "client_ca: needs": "--client-ca=c",
		`log_refusals: "-1" is not`: "--log-refusals=-1", `log_format: "xml"`: "--log-format=xml", "key_secret_file: ": "--key-secret-file=" + file + ".none",
		os.DevNull + " is a pipe or the like": "--key-secret-file=" + os.DevNull,
	} {
		if _, err := serveCommand(t, arg).settings(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", arg, err, want)
		}
	}
	t.Setenv("DIPWELL_KEY_SECRET", "short")
	if _, err := new(ServeCmd).settings(); err == nil || !strings.Contains(err.Error(), "at least 16") {
		t.Error(err)
	}
}
