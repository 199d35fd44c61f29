package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
)

// There is no flag to skip verification: --cacert names the authority that signed a certificate.
type clientTLS struct {
	CACert     string `name:"cacert" placeholder:"FILE" env:"DIPWELL_CACERT" help:"Authorities (PEM) to verify the server's certificate. Default: those of this machine."`
	ClientCert string `name:"cert" placeholder:"FILE" env:"DIPWELL_CLIENT_CERT" help:"Certificate chain (PEM) of this client, if the server requires one."`
	ClientKey  string `name:"key" placeholder:"FILE" env:"DIPWELL_CLIENT_KEY" help:"Key (PEM) of that certificate."`

	made *http.Client
}

// client returns an HTTP client with these certificates, the same one each time.
func (c *clientTLS) client() (_ *http.Client, err error) {
	if c.made == nil {
		c.made, err = c.newClient()
	}
	return c.made, err
}

func (c *clientTLS) newClient() (*http.Client, error) {
	if c.CACert == "" && c.ClientCert == "" && c.ClientKey == "" {
		return http.DefaultClient, nil
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CACert != "" {
		b, err := os.ReadFile(c.CACert)
		if err != nil {
			return nil, fmt.Errorf("cacert: %w", err)
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(b) {
			return nil, fmt.Errorf("cacert: %s has no certificate in PEM", c.CACert)
		}
	}
	if (c.ClientCert == "") != (c.ClientKey == "") {
		return nil, fmt.Errorf("cert, key: one is given without the other")
	}
	if c.ClientCert != "" {
		pair, err := tls.LoadX509KeyPair(c.ClientCert, c.ClientKey)
		if err != nil {
			return nil, fmt.Errorf("cert, key: %w", err)
		}
		t.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: t}, nil
}
