package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
)

// clientTLS says whom a client believes, and who it is, over https. There is no
// switch that believes everybody: --cacert takes any authority of one's own.
type clientTLS struct {
	CACert     string `name:"cacert" placeholder:"FILE" env:"DIPWELL_CACERT" help:"Authorities (PEM) that sign the server's certificate, in place of this machine's."`
	ClientCert string `name:"cert" placeholder:"FILE" env:"DIPWELL_CLIENT_CERT" help:"Certificate chain (PEM) of this client, for a server that asks for one."`
	ClientKey  string `name:"key" placeholder:"FILE" env:"DIPWELL_CLIENT_KEY" help:"Its key (PEM)."`

	made *http.Client
}

// client is an HTTP client with these certificates, the same at each call.
func (c *clientTLS) client() (_ *http.Client, err error) {
	if c.made == nil {
		c.made, err = c.dial()
	}
	return c.made, err
}

func (c *clientTLS) dial() (*http.Client, error) {
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
