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
	"github.com/dipwell/dipwell/internal/rls"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/store"
)

type ConfigCmd struct {
	Check ConfigCheckCmd `cmd:"" help:"Report the errors of a configuration file, with lines."`
}

// ConfigCheckCmd also checks the files and descriptors that are named and on this machine.
type ConfigCheckCmd struct {
	File string `arg:"" help:"The YAML file."`
}

func (c *ConfigCheckCmd) Run(e *env) error {
	set, err := (&ServeCmd{Config: c.File}).merge()
	if err != nil {
		return inFile(c.File, err)
	}
	rules, notes, errs := set.checkNamed()
	for _, err := range errs {
		if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s: %w", c.File, err)
		}
		setting, reason, _ := strings.Cut(err.Error(), ": ") // the file may exist where the service runs
		notes = append(notes, fmt.Sprintf("%s is not here, and was not read: %s", setting, reason))
	}
	for _, note := range notes {
		fmt.Fprintf(e.stderr, "dipwell: %s: %s\n", c.File, note)
	}
	holds := howMany(len(set.Limits), "limit")
	if rules != nil {
		holds += " and descriptors of " + howMany(rules.Domains(), "domain")
	}
	_, err = fmt.Fprintf(e.stdout, "%s: good, %s\n", c.File, holds)
	return err
}

// inFile adds the name of the file to an error that does not have it.
func inFile(path string, err error) error {
	if open, ok := errors.AsType[*fs.PathError](err); errors.As(err, new(*config.YAMLError)) || ok && open.Path == path {
		return err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// checkNamed reads the files and descriptors that settings name. It returns the descriptors,
// if they name any, what is wrong with the files, and notes about descriptors and limits.
func (s *settings) checkNamed() (rules *rls.Rules, notes []string, errs []error) {
	if s.AdminTokenFile != "" {
		_, err := readSecret("admin_token_file", s.AdminTokenFile)
		errs = append(errs, err)
	}
	_, err := keySecret(s.KeySecretFile, true)
	errs = append(errs, err)
	if s.TLSCert != "" {
		_, err := server.LoadTLS(s.TLSCert, s.TLSKey, s.ClientCA)
		errs = append(errs, err)
	}
	names := map[[sha256.Size]byte]string{}
	for i := range s.Callers {
		_, err := s.callerToken(i, names)
		errs = append(errs, err)
	}
	if rules, err = namedRules(&s.File); err != nil {
		errs = append(errs, fmt.Errorf("rls_config: %w", err))
	}
	if rules != nil {
		notes = rules.Notes()
	}
	for _, l := range s.Limits {
		if d, err := store.NewDefinition(l); err == nil && d.Warning != "" {
			notes = append(notes, d.Warning)
		}
	}
	inFile := s.names()
	for _, warning := range s.unknownLimits(func(limit string) bool { return slices.Contains(inFile, limit) }) {
		notes = append(notes, warning+" in this file")
	}
	return rules, notes, slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// namedRules returns nil if there are none. rls_merge_domains may be in the environment.
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
