package redisstore_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dipwell/dipwell/internal/procs"
	"github.com/dipwell/dipwell/internal/redistest"
	"github.com/dipwell/dipwell/redisstore"
	"github.com/dipwell/dipwell/store"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := selfSigned(t, dir)
	free, err := procs.Port()
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(free)
	server := redistest.Start(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	_ = server
	s, err := redisstore.Open(t.Context(), patient("rediss://127.0.0.1:"+port+"?ca="+cert), redisstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l := limiter(t, s, store.Limit{Name: "t", Rate: 1, Period: time.Hour, Burst: 2})
	if d, err := l.Take(t.Context(), "t", "k", 1); err != nil || d.Remaining != 1 {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := redisstore.Open(t.Context(), patient("rediss://127.0.0.1:"+port), redisstore.Config{}); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an authority that is not trusted: %v", err)
	}
	if _, err := redisstore.Open(t.Context(), "rediss://127.0.0.1:"+port+"?ca="+key, redisstore.Config{}); err == nil || !strings.Contains(err.Error(), "no certificate") {
		t.Errorf("a file without certificates: %v", err)
	}
}

// TestCertificateChanges checks that a call charges nothing, and says so, if the server has
// got a certificate that is not trusted.
func TestCertificateChanges(t *testing.T) {
	t.Parallel()
	cert, key := selfSigned(t, t.TempDir())
	free, err := procs.Port()
	if err != nil {
		t.Fatal(err)
	}
	port := strconv.Itoa(free)
	server := redistest.Start(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert, "--tls-auth-clients", "no")
	_, l := openURL(t, "rediss://127.0.0.1:"+port+"?ca="+cert, redisstore.Config{Poll: -1}, drained("t", 2))
	cert, key = selfSigned(t, t.TempDir())
	do(t, server, "config", "set", "tls-cert-file", cert, "tls-key-file", key)
	do(t, server, "client", "kill", "skipme", "yes")
	eventually(t, "refused", func() bool {
		_, err = l.Take(t.Context(), "t", "k", 1)
		return err != nil && strings.Contains(err.Error(), "certificate")
	})
	if !errors.Is(err, store.ErrStore) || errors.Is(err, store.ErrOutcomeUnknown) {
		t.Error(err)
	}
}

// selfSigned writes a self-signed certificate for 127.0.0.1 and its key.
func selfSigned(t *testing.T, dir string) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "dipwell test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "PRIVATE KEY", Bytes: private}} {
		if err = os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}
