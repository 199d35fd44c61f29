package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/dipwell/dipwell/internal/server"
	dipwellv1 "github.com/dipwell/dipwell/proto/dipwell/v1"
)

// authority signs certificates.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t testing.TB, name string) *authority {
	a := &authority{t: t}
	a.cert, a.key, a.pem = a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign})
	return a
}

func (a *authority) sign(c *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey, []byte) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := c, key
	if a.cert != nil {
		parent, by = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return out, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// issue writes a certificate and its key to files.
func (a *authority) issue(name, certFile, keyFile string) {
	a.t.Helper()
	_, key, cert := a.sign(&x509.Certificate{Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}})
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for path, b := range map[string][]byte{certFile: cert, keyFile: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})} {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// client trusts the authority, and has a certificate if one is given.
func (a *authority) client(by *authority) *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	c := &tls.Config{RootCAs: pool}
	if by != nil {
		dir := a.t.TempDir()
		by.issue("client", filepath.Join(dir, "c"), filepath.Join(dir, "k"))
		cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "c"), filepath.Join(dir, "k"))
		if err != nil {
			a.t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key, ca := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	ours, theirs, other := newAuthority(t, "ours"), newAuthority(t, "theirs"), newAuthority(t, "other")
	ours.issue("first", cert, key)
	if err := os.WriteFile(ca, theirs.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := server.LoadTLS(cert, key, ca)
	if err != nil {
		t.Fatal(err)
	}
	w := newFixture(t, server.Config{}, local)
	addr, _ := w.serve(server.Listener{TLS: files.Config("h2", "http/1.1")})
	// ask returns the name in the server's certificate, and the protocol.
	ask := func(c *tls.Config) (string, int, error) {
		tr := &http.Transport{TLSClientConfig: c, ForceAttemptHTTP2: true}
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr}).Get("https://" + addr + "/healthz")
		if err != nil {
			return "", 0, err
		}
		defer res.Body.Close()
		return res.TLS.PeerCertificates[0].Subject.CommonName, res.ProtoMajor, nil
	}
	want := func(name string, by *authority) {
		t.Helper()
		if got, proto, err := ask(ours.client(by)); err != nil || got != name || proto != 2 {
			t.Errorf("%s over HTTP/%d, %v; want %s over HTTP/2", got, proto, err, name)
		}
	}
	refused := func(by *authority) {
		t.Helper()
		if _, _, err := ask(ours.client(by)); err == nil { // or the connection closes before the alert arrives
			t.Errorf("a client without a good certificate: %v", err)
		}
	}
	want("first", theirs)
	refused(nil)
	refused(other)

	ours.issue("second", cert, key)
	if err := files.Reload(); err != nil {
		t.Fatal(err)
	}
	want("second", theirs)
	if err := os.WriteFile(ca, other.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := files.Reload(); err != nil {
		t.Fatal(err)
	}
	want("second", other)
	refused(theirs)

	for path, text := range map[string]string{cert: "no certificate", ca: "no certificate", key: ""} { // each time the previous content stays in use
		good, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := files.Reload(); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
		want("second", other)
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if files.NotAfter().Before(time.Now()) || len(files.Files()) != 3 {
		t.Error(files.NotAfter(), files.Files())
	}
	if _, err := server.LoadTLS(cert, cert, ""); err == nil {
		t.Error("a key that is none")
	}
}

func TestGRPCOverTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key, ca := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	ours := newAuthority(t, "ours")
	ours.issue("grpc", cert, key)
	if err := os.WriteFile(ca, ours.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	files, err := server.LoadTLS(cert, key, ca)
	if err != nil {
		t.Fatal(err)
	}
	w := newFixture(t, server.Config{}, local)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- w.server.ServeGRPC(ctx, server.Listener{Listener: l, TLS: files.Config("h2")}, w.server.GRPC(local, nil))
	}()
	for _, by := range []*authority{ours, nil} {
		conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(ours.client(by))))
		if err != nil {
			t.Fatal(err)
		}
		d, err := dipwellv1.NewLimiterClient(conn).Take(t.Context(), call("login", "k", 1))
		if by != nil && (err != nil || !d.Allowed) || by == nil && err == nil {
			t.Errorf("with a certificate: %v; %v %v", by != nil, d, err)
		}
		_ = conn.Close()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
