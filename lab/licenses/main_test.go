package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLicenseOf checks that each file counts with its own licence, notices and
// logos do not count, and an unknown licence is an error.
func TestLicenseOf(t *testing.T) {
	const mit, bsd = "MIT License\n\nPermission is hereby granted, free\nof charge, to any person", "Redistribution and use in source and binary\nforms ... Neither the names of"
	for _, c := range []struct {
		files map[string]string
		kinds []string
		err   string
	}{
		{map[string]string{"LICENSE": mit}, []string{"MIT"}, ""},
		{map[string]string{"LICENSE": bsd, "LICENSE-FONT": "SIL OPEN FONT LICENSE. Permission is hereby granted, free of charge"}, []string{"BSD-3-Clause", "OFL-1.1"}, ""},
		{map[string]string{"LICENSE.txt": mit, "NOTICE": "with thanks", "LICENSE-LOGO": "https://example.com", "LICENSE-3RD-PARTY.md": "Apache License Version 2.0"}, []string{"MIT"}, ""},
		{map[string]string{"LICENSE": "You may look at it."}, nil, "LICENSE is none of the licences"},
		{map[string]string{"NOTICE": mit}, nil, "has no file"},
		{nil, nil, "has no file"},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		kinds, text, err := licenseOf(module{"example.com/m", "v1.0.0", dir})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || !strings.Contains(err.Error(), "example.com/m v1.0.0") {
				t.Errorf("%v: %v, want an error that has %q", c.files, err, c.err)
			}
			continue
		}
		if err != nil || !slices.Equal(kinds, c.kinds) || !strings.Contains(text, c.files["NOTICE"]) {
			t.Errorf("%v: %v %q %v, want %v", c.files, kinds, text, err, c.kinds)
		}
	}
}
