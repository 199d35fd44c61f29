package main

import (
	"runtime/debug"
	"testing"
)

func TestVersionOf(t *testing.T) {
	for stamped, want := range map[string]string{
		"v1.2.3": "v1.2.3",
		"v0.0.0-20260101000000-0123456789ab+dirty": "v0.0.0-20260101000000-0123456789ab+dirty",
		"(devel)": "(devel)",
		"":        "(devel)",
	} {
		if v := versionOf(&debug.BuildInfo{Main: debug.Module{Version: stamped}}); v != want {
			t.Errorf("stamped with %q: %s", stamped, v)
		}
	}
}
