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

// TLS is a certificate and, optionally, authorities of clients, in files that may change.
type TLS struct {
	certFile, keyFile, caFile string
	live                      atomic.Pointer[identity]
}

// identity is the last valid content of the files.
type identity struct {
	cert    tls.Certificate
	clients *x509.CertPool // nil if clients need no certificate
}

// NewTLS returns a TLS with the files of a certificate chain and of its key, both PEM. If
// caFile is not empty, only clients with a certificate of an authority in it may connect.
// Call Reload before the TLS is used.
func NewTLS(certFile, keyFile, caFile string) *TLS {
	return &TLS{certFile: certFile, keyFile: keyFile, caFile: caFile}
}

func LoadTLS(certFile, keyFile, caFile string) (*TLS, error) {
	t := NewTLS(certFile, keyFile, caFile)
	return t, t.Reload()
}

// Reload reads the files. After an error the previous content stays in use.
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

// Files returns the files that should be watched.
func (t *TLS) Files() []string {
	return slices.DeleteFunc([]string{t.certFile, t.keyFile, t.caFile}, func(f string) bool { return f == "" })
}

// NotAfter returns when the certificate in use expires.
func (t *TLS) NotAfter() time.Time { return t.live.Load().cert.Leaf.NotAfter }

// Config returns the configuration of a listener with these protocols. Each
// connection uses the content of the files at that time.
func (t *TLS) Config(protocols ...string) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		id := t.live.Load()
		c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: protocols, Certificates: []tls.Certificate{id.cert}}
		if id.clients != nil {
			c.ClientCAs, c.ClientAuth = id.clients, tls.RequireAndVerifyClientCert
			c.SessionTicketsDisabled = true // a resumed session would not check the certificate again
		}
		return c, nil
	}}
}
