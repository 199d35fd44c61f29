package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/dipwell/dipwell/config"
	"github.com/dipwell/dipwell/rls"
)

// ConfigCmd holds the commands on configuration files.
type ConfigCmd struct {
	Check ConfigCheckCmd `cmd:"" help:"Say what is wrong with a configuration file, by line."`
}

// ConfigCheckCmd reads a file as serve would, and the descriptors that it names
// where they are at hand, and starts nothing.
type ConfigCheckCmd struct {
	File string `arg:"" help:"The YAML file."`
}

func (ConfigCheckCmd) Help() string { return "Example: dipwell config check dipwell.yaml" }

func (c *ConfigCheckCmd) Run(e *env) error {
	f, err := config.Load(c.File)
	if err != nil {
		return err
	}
	if f.Store != "" {
		if err = knownStore(f.Store); err != nil {
			return fmt.Errorf("%s: %w", c.File, err)
		}
	}
	holds := howMany(len(f.Limits), "limit")
	switch rules, err := namedRules(f); {
	case errors.Is(err, fs.ErrNotExist):
		fmt.Fprintf(e.stderr, "dipwell: %s: rls_config is not here, and was not read: %v\n", c.File, err)
	case err != nil:
		return fmt.Errorf("%s: rls_config: %w", c.File, err)
	case rules != nil:
		holds += " and descriptors of " + howMany(rules.Domains(), "domain")
	}
	for _, l := range f.Limits {
		if _, warning, _ := l.Compile(); warning != "" {
			fmt.Fprintf(e.stderr, "dipwell: %s: %s\n", c.File, warning)
		}
	}
	_, err = fmt.Fprintf(e.stdout, "%s: good, %s\n", c.File, holds)
	return err
}

// namedRules are the descriptors that a file names, nil without any. As for serve, the
// environment may say that several files are about one domain.
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

// howMany is a number of things.
func howMany[N int | int64 | uint64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
