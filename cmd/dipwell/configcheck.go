package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/dipwell/dipwell/internal/config"
	"github.com/dipwell/dipwell/internal/keyhash"
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/store"
)

// ConfigCmd holds the commands on configuration files.
type ConfigCmd struct {
	Check ConfigCheckCmd `cmd:"" help:"Report the errors of a configuration file, with lines."`
}

// ConfigCheckCmd checks a file like serve, and the files and descriptors that it
// names if they are on this machine.
type ConfigCheckCmd struct {
	File string `arg:"" help:"The YAML file."`
}

func (ConfigCheckCmd) Help() string { return "Example: dipwell config check dipwell.yaml" }

func (c *ConfigCheckCmd) Run(e *env) error {
	set, err := (&ServeCmd{Config: c.File}).merge()
	if err != nil {
		return inFile(c.File, err)
	}
	missing, err := set.checkFiles()
	if err != nil {
		return inFile(c.File, err)
	}
	holds := howMany(len(set.Limits), "limit")
	switch rules, err := namedRules(&set.File); {
	case errors.Is(err, fs.ErrNotExist):
		missing = append(missing, fmt.Errorf("rls_config: %w", err))
	case err != nil:
		return fmt.Errorf("%s: rls_config: %w", c.File, err)
	case rules != nil:
		for _, note := range rules.Notes() {
			fmt.Fprintf(e.stderr, "dipwell: %s\n", note)
		}
		holds += " and descriptors of " + howMany(rules.Domains(), "domain")
	}
	for _, err := range missing {
		setting, reason, _ := strings.Cut(err.Error(), ": ")
		fmt.Fprintf(e.stderr, "dipwell: %s: %s is not here, and was not read: %s\n", c.File, setting, reason)
	}
	for _, l := range set.Limits {
		if d, err := store.NewDefinition(l); err == nil && d.Warning != "" {
			fmt.Fprintf(e.stderr, "dipwell: %s: %s\n", c.File, d.Warning)
		}
	}
	inFile := set.names()
	for _, warning := range set.unknownLimits(func(limit string) bool { return slices.Contains(inFile, limit) }) {
		fmt.Fprintf(e.stderr, "dipwell: %s: %s in this file\n", c.File, warning)
	}
	_, err = fmt.Fprintf(e.stdout, "%s: good, %s\n", c.File, holds)
	return err
}

// inFile adds the name of the file to an error that does not have it.
func inFile(path string, err error) error {
	var named *config.YAMLError
	var open *fs.PathError
	if errors.As(err, &named) || errors.As(err, &open) && open.Path == path {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// checkFiles reads the files that settings name. Files that do not exist are
// returned as missing, since they may exist where the service runs.
func (s *settings) checkFiles() (missing []error, err error) {
	reads := []func() error{
		func() error { return readable("admin_token_file", s.AdminTokenFile, 1) },
		func() error { return readable("key_secret_file", s.KeySecretFile, keyhash.MinSecret) },
		func() error {
			if s.TLSCert == "" {
				return nil
			}
			_, err := server.LoadTLS(s.TLSCert, s.TLSKey, s.ClientCA)
			return err
		},
	}
	names := map[[sha256.Size]byte]string{}
	for i := range s.Callers {
		reads = append(reads, func() error {
			_, err := s.callerToken(i, nil, names)
			return err
		})
	}
	for _, read := range reads {
		switch err := read(); {
		case errors.Is(err, fs.ErrNotExist):
			missing = append(missing, err)
		case err != nil:
			return nil, err
		}
	}
	return missing, nil
}

// readable returns an error if a file does not have a secret of at least the given number
// of bytes.
func readable(setting, path string, least int) error {
	if path == "" {
		return nil
	}
	b, err := readSecret(setting, path)
	if err == nil && len(b) < least {
		err = fmt.Errorf("%s: the secret has %d bytes; at least %d", setting, len(b), least)
	}
	return err
}

// namedRules returns the descriptors that a file names, or nil if it names none. As
// in serve, rls_merge_domains may be in the environment.
func namedRules(f *config.File) (*rls.Rules, error) {
	if f.RLSConfig == "" {
		return nil, nil
	}
	with := *f
	if merge, err := strconv.ParseBool(os.Getenv("DIPWELL_RLS_MERGE_DOMAINS")); err == nil {
		with.RLSMergeDomains = merge
	}
	return loadRLS(&with)
}

// howMany formats a number of things: 1 limit, 2 limits.
func howMany[N int | int64 | uint64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
