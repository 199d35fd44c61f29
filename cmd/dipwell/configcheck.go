package main

import (
	"fmt"

	"github.com/dipwell/dipwell/config"
)

// ConfigCmd holds the commands on configuration files.
type ConfigCmd struct {
	Check ConfigCheckCmd `cmd:"" help:"Say what is wrong with a configuration file, by line."`
}

// ConfigCheckCmd reads a file as serve would, and starts nothing.
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
	for _, l := range f.Limits {
		if _, warning, _ := l.Compile(); warning != "" {
			fmt.Fprintf(e.stderr, "dipwell: %s: %s\n", c.File, warning)
		}
	}
	_, err = fmt.Fprintf(e.stdout, "%s: good, %d limits\n", c.File, len(f.Limits))
	return err
}
