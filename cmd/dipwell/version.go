package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

type VersionCmd struct{}

func (VersionCmd) Run(e *env) error {
	_, err := fmt.Fprintf(e.stdout, "dipwell %s %s %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// version returns the module's version: a release if it is one, otherwise the commit.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(info)
}

// versionOf returns the version that the go command wrote into the program, if it did.
func versionOf(info *debug.BuildInfo) string { return cmp.Or(info.Main.Version, "(devel)") }
