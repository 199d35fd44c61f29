package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/keyhash"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/internal/texts"
	"github.com/dipwell/dipwell/store"
)

// settings are the settings of a service. A flag has precedence over the
// environment, the environment over the file, and the file over the default.
type settings struct {
	config.File
	given     map[string]bool // settings in flags or the environment
	token     string
	tokenFile string // file of the token; "" if the token is from the environment, or there is none
	callers   []server.Caller
	keySecret []byte // nil if keys are stored as text
}

func (c *ServeCmd) settings() (*settings, error) {
	s, err := c.merge()
	if err != nil {
		return nil, err
	}
	if err = c.checkFiles(s); err != nil {
		return nil, err
	}
	if s.Data != "" {
		if err = os.MkdirAll(s.Data, 0o700); err != nil {
			return nil, fmt.Errorf("data: %w", err)
		}
	}
	if err = s.readTokens(); err != nil {
		return nil, err
	}
	s.keySecret, err = keySecret(s.KeySecretFile, s.given["key_secret_file"])
	return s, err
}

// A service reads its files again, and would find a pipe empty.
func (c *ServeCmd) checkFiles(s *settings) error {
	paths := []string{c.Config, s.AdminTokenFile, s.KeySecretFile, s.TLSCert, s.TLSKey, s.ClientCA, s.RLSConfig}
	for _, caller := range s.Callers {
		paths = append(paths, caller.TokenFile)
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
			return fmt.Errorf("%s is a pipe or the like, and a service reads its files again: name a file", path)
		}
	}
	return nil
}

// merge opens only the configuration file, so that config check can use it too.
func (c *ServeCmd) merge() (*settings, error) {
	s := &settings{File: *config.Defaults()}
	if c.Config != "" {
		f, err := config.Load(c.Config)
		if err != nil {
			return nil, err
		}
		s.File = *f
	}
	if err := c.overwrite(s); err != nil {
		return nil, err
	}
	if err := s.place(); err != nil {
		return nil, err
	}
	for _, l := range s.FlagLimits {
		if slices.ContainsFunc(s.Limits, func(f dipwell.Limit) bool { return f.Name == l.Name }) {
			return nil, fmt.Errorf("limit %s is given by --limit and by %s; keep one", l.Name, c.Config)
		}
	}
	return s, s.check()
}

func (c *ServeCmd) overwrite(s *settings) error {
	var errs []error
	s.given = map[string]bool{}
	for _, setting := range config.Settings {
		texts := c.given(setting)
		if len(texts) == 0 {
			continue
		}
		if (setting.Name == "store" || setting.Name == "data") && !s.given["store"] {
			s.Store, s.Data = "", "" // a flag for either replaces both settings of the file
		}
		s.given[setting.Name] = true
		errs = append(errs, setting.Set(&s.File, texts...))
	}
	return errors.Join(append(errs, uniqueLimits(s.FlagLimits))...)
}

// place sets Store to its default or, if Data is given, to the file in that directory.
func (s *settings) place() error {
	switch {
	case s.Data == "":
		s.Store = cmp.Or(s.Store, "memory:")
	case s.Store != "":
		return fmt.Errorf("data: --data and --store both name the place of the buckets; give one")
	case strings.ContainsRune(s.Data, '?'):
		return fmt.Errorf("data: %q: the name of the directory must not contain a question mark", s.Data)
	default:
		s.Store = "file:" + filepath.Join(s.Data, dataFile)
	}
	return nil
}

func parseLimits(list []string) ([]dipwell.Limit, error) {
	var out []dipwell.Limit
	for _, text := range joinPlans(list) {
		l, err := dipwell.ParseLimit(text)
		if err != nil {
			return nil, err
		}
		out = append(out, l)
	}
	return out, uniqueLimits(out)
}

// joinPlans joins the parts of limits that were cut at the semicolons inside plans= and adaptive=:
// a part that begins with one of their settings belongs to the limit before it.
func joinPlans(parts []string) (out []string) {
	for _, part := range parts {
		name, value, _ := strings.Cut(part, "=")
		value, _, _ = strings.Cut(value, "|")
		last := len(out) - 1
		ofAdaptive := last >= 0 && strings.Contains(out[last], ",adaptive=") && texts.Unknown(new(dipwell.Adaptive).Set, name) == ""
		ofPlan := last >= 0 && strings.Contains(out[last], ",plans=") && texts.Unknown(new(dipwell.Plan).Set, name) == "" && !strings.Contains(value, "/")
		if ofAdaptive || ofPlan {
			out[last] += ";" + part
		} else {
			out = append(out, part)
		}
	}
	return out
}

func uniqueLimits(list []dipwell.Limit) error {
	seen := map[string]bool{}
	for _, l := range list {
		if seen[l.Name] {
			return fmt.Errorf("limit %s is given twice", l.Name)
		}
		seen[l.Name] = true
	}
	return nil
}

// keySecret returns the secret of hashed keys, or nil if keys are stored as text. A file named
// by a flag or the environment (given) has precedence over the variable with the secret, and
// this over a file named in the configuration.
func keySecret(path string, given bool) (b []byte, err error) {
	if value := os.Getenv("DIPWELL_KEY_SECRET"); value != "" && !given {
		b = []byte(value)
	} else if path != "" {
		b, err = readSecret("key_secret_file", path)
	}
	if err == nil && b != nil && len(b) < keyhash.MinSecret {
		return nil, fmt.Errorf("key_secret_file: the secret has %d bytes; at least %d", len(b), keyhash.MinSecret)
	}
	return b, err
}

// readSecret reads a secret from a file and trims white space.
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
	case s.By != "" && s.Upstream == "":
		return fmt.Errorf("by: chooses the bucket of a request to the upstream, and there is no upstream")
	case s.Upstream != "":
		if err := errors.Join(s.upstream(nil).Check(), s.checkProxied()); err != nil {
			return err
		}
	}
	if err := checkStore(s.Store); err != nil {
		return err
	}
	for _, at := range [][2]string{{"listen", s.Listen}, {"admin", s.Admin}, {"grpc", s.GRPC}} {
		if err := checkAddress(at[1]); err != nil {
			return fmt.Errorf("%s: %w", at[0], err)
		}
		if at[1] == "" && slices.Contains(s.OpenListeners, at[0]) {
			return fmt.Errorf("open_listeners: there is no listener %s", at[0])
		}
	}
	if len(s.AdminOnly) > 0 && s.Admin == "" {
		return fmt.Errorf("admin_only: needs admin, the address of the listener that answers")
	}
	return cmp.Or(s.checkOperation(), s.checkRLS())
}

func (s *settings) checkProxied() error {
	limits := slices.Concat(s.FlagLimits, s.Limits)
	if len(limits) > store.MaxTakes {
		return fmt.Errorf("upstream: %d limits; a request can take from at most %d", len(limits), store.MaxTakes)
	}
	for _, l := range limits {
		if l.Parent != "" || l.Parts != 0 {
			return fmt.Errorf("upstream: limit %s has a parent or parts, so its keys are paths, but the keys of proxied requests are not", l.Name)
		}
		if s.By == "shared" && !l.Shared {
			return fmt.Errorf("by: shared: limit %s has a bucket for each key; with shared: true it has one for everybody", l.Name)
		}
	}
	return nil
}

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

func (s *settings) server() server.Config {
	scheme, _, _ := strings.Cut(s.Store, ":")
	return server.Config{Headers: s.Headers, TrustedProxies: s.TrustedProxies, AdminToken: s.token, Callers: s.callers, MaxInFlight: s.MaxInFlight, Store: scheme,
		Labels: s.MetricLabels, Shadow: s.Shadow, HashKey: keyhash.Func(s.keySecret)}
}

func (s *settings) upstream(report func(error)) server.Upstream {
	return server.Upstream{URL: s.Upstream, By: s.By, PlanHeader: s.UpstreamPlanHeader, Floor: s.UpstreamFloor, Report: report}
}

func (s *settings) names() []string {
	var names []string
	for _, l := range slices.Concat(s.FlagLimits, s.Limits) {
		names = append(names, l.Name)
	}
	return names
}
