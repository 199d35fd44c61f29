package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// VersionCmd prints what was built, from what, with what.
type VersionCmd struct{}

func (VersionCmd) Help() string { return "Example: dipwell version" }

func (VersionCmd) Run(e *env) error {
	_, err := fmt.Fprintf(e.stdout, "dipwell %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// version is the module's version where it was installed as one, else the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}
