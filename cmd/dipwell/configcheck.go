package main

import (
	"fmt"

	"github.com/dipwell/dipwell/config"
)

// ConfigCmd holds the commands on configuration files.
type ConfigCmd struct {
	Check ConfigCheckCmd `cmd:"" help:"Say what is wrong with a configuration file, by line."`
}

// ConfigCheckCmd reads a file as serve would, and the descriptors that it names,
// and starts nothing.
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
	if f.RLSConfig != "" {
		rules, err := loadRLS(f)
		if err != nil {
			return fmt.Errorf("%s: rls_config: %w", c.File, err)
		}
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

// howMany is a number of things.
func howMany(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
