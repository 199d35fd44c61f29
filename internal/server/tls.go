package server

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// TLS is a certificate, and who may connect, from files that may change while
// the server runs.
type TLS struct {
	certFile, keyFile, caFile string
	live                      atomic.Pointer[identity]
}

// identity is what the files said last.
type identity struct {
	cert    tls.Certificate
	clients *x509.CertPool // nil: anybody
}

// LoadTLS reads a certificate chain and its key, both PEM. With a file of
// authorities only clients with a certificate of one of them may connect.
func LoadTLS(certFile, keyFile, caFile string) (*TLS, error) {
	t := &TLS{certFile: certFile, keyFile: keyFile, caFile: caFile}
	return t, t.Reload()
}

// Reload reads the files again. After an error what they said before counts.
func (t *TLS) Reload() error {
	cert, err := tls.LoadX509KeyPair(t.certFile, t.keyFile)
	if err != nil {
		return fmt.Errorf("tls_cert %s, tls_key %s: %w", t.certFile, t.keyFile, err)
	}
	id := &identity{cert: cert}
	if t.caFile != "" {
		b, err := os.ReadFile(t.caFile)
		if err != nil {
			return fmt.Errorf("client_ca: %w", err)
		}
		if id.clients = x509.NewCertPool(); !id.clients.AppendCertsFromPEM(b) {
			return fmt.Errorf("client_ca: %s has no certificate", t.caFile)
		}
	}
	t.live.Store(id)
	return nil
}

// Files are those to watch.
func (t *TLS) Files() []string {
	return slices.DeleteFunc([]string{t.certFile, t.keyFile, t.caFile}, func(f string) bool { return f == "" })
}

// NotAfter is when the certificate in use ends.
func (t *TLS) NotAfter() time.Time { return t.live.Load().cert.Leaf.NotAfter }

// Config is for a listener that speaks these protocols. Each connection is
// taken by what the files say at that time.
func (t *TLS) Config(protocols ...string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		id := t.live.Load()
		c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, Certificates: []tls.Certificate{id.cert}}
		if id.clients != nil {
			c.ClientCAs, c.ClientAuth = id.clients, tls.RequireAndVerifyClientCert
			c.SessionTicketsDisabled = true // a session must not outlive the trust in who began it
		}
		return c, nil
	}}
}
