package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/config"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/keyhash"
	"github.com/dipwell/dipwell/server"
)

// settings are what a service runs on: flags before environment before file
// before defaults.
type settings struct {
	config.File
	flagLimits []dipwell.Limit
	token      string
	tokenFile  string // where it was read; empty: the environment, or there is none
	keySecret  []byte // nil: keys are stored as they are
}

// settings reads everything anew, so that a reload is a start without a stop.
func (c *ServeCmd) settings() (*settings, error) {
	s, err := c.merge()
	if err != nil {
		return nil, err
	}
	if s.Data != "" {
		if err = makeData(s.Data); err != nil {
			return nil, err
		}
	}
	if s.token, s.tokenFile, err = adminToken(c.AdminTokenFile, s.AdminTokenFile); err != nil {
		return nil, err
	}
	s.keySecret, err = keySecret(c.KeySecretFile, s.KeySecretFile)
	return s, err
}

// merge puts flags, environment and file together and checks them. It opens
// nothing else: serve and config check refuse the same settings.
func (c *ServeCmd) merge() (*settings, error) {
	s := &settings{}
	if c.Config != "" {
		f, err := config.Load(c.Config)
		if err != nil {
			return nil, err
		}
		s.File = *f
	}
	if err := c.place(s); err != nil {
		return nil, err
	}
	s.Listen = cmp.Or(c.Listen, s.Listen, "127.0.0.1:8080")
	s.Admin = cmp.Or(c.Admin, s.Admin)
	if len(c.AdminOnly) > 0 {
		s.AdminOnly = c.AdminOnly
	}
	s.MaxKeys = cmp.Or(c.MaxKeys, s.MaxKeys)
	c.OperationFlags.over(&s.File)
	if err := c.UpstreamFlags.over(&s.File); err != nil {
		return nil, err
	}
	if err := c.GRPCFlags.over(&s.File); err != nil {
		return nil, err
	}
	if c.DenyMaxAge != "" {
		var err error
		if s.DenyMaxAge, err = config.ParseDenyMaxAge(c.DenyMaxAge); err != nil {
			return nil, fmt.Errorf("deny_max_age: %w", err)
		}
	}
	for _, step := range []func(*settings) error{c.announce, c.addLimits} {
		if err := step(s); err != nil {
			return nil, err
		}
	}
	return s, s.check()
}

// place says where the buckets are kept: by the flags, else by the file.
func (c *ServeCmd) place(s *settings) (err error) {
	if c.Store != "" || c.Data != "" {
		s.Store, s.Data = c.Store, c.Data
	}
	switch {
	case s.Data == "":
		s.Store = cmp.Or(s.Store, "memory:")
	case s.Store != "":
		return fmt.Errorf("data: --data and --store both say where the buckets are kept; give one")
	default:
		s.Store, err = dataURL(s.Data)
	}
	return err
}

func (c *ServeCmd) announce(s *settings) (err error) {
	if c.Headers != "" {
		if s.Headers, err = httplimit.ParseHeaders(c.Headers); err != nil {
			return fmt.Errorf("headers: %w", err)
		}
	}
	if len(c.TrustedProxies) > 0 {
		if s.TrustedProxies, err = httplimit.ParseProxies(c.TrustedProxies); err != nil {
			return fmt.Errorf("trusted_proxies: %w", err)
		}
	}
	return nil
}

func (c *ServeCmd) addLimits(s *settings) (err error) {
	s.flagLimits, err = parseLimits(c.Limit)
	for _, l := range s.flagLimits {
		for _, f := range s.Limits {
			if f.Name == l.Name {
				return fmt.Errorf("limit %s is given by --limit and by %s; keep one", l.Name, c.Config)
			}
		}
	}
	return err
}

// parseLimits reads limits as --limit has them.
func parseLimits(list []string) ([]dipwell.Limit, error) {
	var out []dipwell.Limit
	for _, text := range list {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			return nil, err
		}
		for _, other := range out {
			if other.Name == l.Name {
				return nil, fmt.Errorf("limit %s is given twice", l.Name)
			}
		}
		out = append(out, l)
	}
	return out, nil
}

// keySecret is that of hashed keys, nil where keys are stored as they are.
func keySecret(flagFile, configFile string) ([]byte, error) {
	b, err := secret("key_secret_file", "DIPWELL_KEY_SECRET", flagFile, configFile)
	if err == nil && b != nil && len(b) < keyhash.MinSecret {
		return nil, fmt.Errorf("key_secret_file: the secret has %d bytes; at least %d", len(b), keyhash.MinSecret)
	}
	return b, err
}

// secret reads a secret from a flag's file, else from the environment, else from
// the file that the configuration names.
func secret(setting, variable, flagFile, configFile string) ([]byte, error) {
	path := flagFile
	if path == "" {
		if value := os.Getenv(variable); value != "" {
			return []byte(value), nil
		}
		if path = configFile; path == "" {
			return nil, nil
		}
	}
	return readSecret(setting, path)
}

// readSecret reads a secret from a file, without the space around it.
func readSecret(setting, path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", setting, err)
	}
	if b = bytes.TrimSpace(b); len(b) == 0 {
		return nil, fmt.Errorf("%s: %s is empty", setting, path)
	}
	return b, nil
}

func (s *settings) check() error {
	switch {
	case s.MaxKeys < 0:
		return fmt.Errorf("max_keys: %d is negative", s.MaxKeys)
	case s.By != "" && s.Upstream == "":
		return fmt.Errorf("by: says whose bucket a proxied request takes from, and there is no upstream")
	case s.Upstream != "" && len(s.names()) > dipwell.MaxTakes:
		return fmt.Errorf("upstream: %d limits; a request can be held to at most %d", len(s.names()), dipwell.MaxTakes)
	}
	if s.Upstream != "" {
		if err := s.upstream(nil).Check(); err != nil {
			return err
		}
	}
	if err := checkStore(s.Store); err != nil {
		return err
	}
	listeners := [][2]string{{"listen", s.Listen}, {"admin", s.Admin}, {"grpc", s.GRPC}}
	for i, at := range listeners {
		if err := checkAddress(at[1]); err != nil {
			return fmt.Errorf("%s: %w", at[0], err)
		}
		for _, other := range listeners[:i] {
			if sameAddress(at[1], other[1]) {
				return fmt.Errorf("%s: %s is the address of %s", at[0], at[1], other[0])
			}
		}
	}
	if len(s.AdminOnly) > 0 && s.Admin == "" {
		return fmt.Errorf("admin_only: needs admin, the address of the listener that answers")
	}
	for _, what := range s.AdminOnly {
		if err := config.CheckAdminOnly(what); err != nil {
			return fmt.Errorf("admin_only: %w", err)
		}
	}
	return s.checkOperation()
}

// checkAddress says what is wrong with the address of a listener.
func checkAddress(addr string) error {
	if addr == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(addr)
	if err == nil {
		_, err = net.DefaultResolver.LookupPort(context.Background(), "tcp", port)
	}
	if err != nil {
		return fmt.Errorf("%q is not an address such as 127.0.0.1:8080 or :8080: %w", addr, err)
	}
	return nil
}

// sameAddress reports whether only one of two listeners can be opened. Both
// have been checked; "" is none.
func sameAddress(a, b string) bool {
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	every := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	return a != "" && b != "" && portA == portB && portA != "0" && (hostA == hostB || every(hostA) || every(hostB))
}

func (s *settings) server() server.Config {
	scheme, _, _ := strings.Cut(s.Store, ":")
	return server.Config{Headers: s.Headers, TrustedProxies: s.TrustedProxies, AdminToken: s.token, MaxInFlight: s.MaxInFlight, Store: scheme,
		Labels: s.MetricLabels, Shadow: s.Shadow}
}

// names are those of all limits that this process declares.
func (s *settings) names() []string {
	var names []string
	for _, l := range append(s.flagLimits[:len(s.flagLimits):len(s.flagLimits)], s.Limits...) {
		names = append(names, l.Name)
	}
	return names
}
