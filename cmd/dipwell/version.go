package main

//go:generate go run ../../internal/licenses -o ../../THIRD_PARTY_LICENSES.md

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

// version is the module's version: a release where the program was built from a
// tag or installed as one, else the commit that it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(info)
}

// versionOf is the version that the go command has stamped. It stamps none where
// it was told not to look for a repository, as go test does.
func versionOf(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" {
		return v
	}
	return "(devel)"
}
