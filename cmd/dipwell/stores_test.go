package main

import "testing"

// TestRedact: nothing that is printed has a password, wherever a URL holds it.
func TestRedact(t *testing.T) {
	for url, want := range map[string]string{
		"memory:":                              "memory:",
		"file:/var/lib/dipwell/limits.db":      "file:/var/lib/dipwell/limits.db",
		"postgres://db/shop":                   "postgres://db/shop",
		"postgres://u:p@db/shop":               "postgres://...@db/shop",
		"postgres://u:p@ss@db/shop?a=b":        "postgres://...@db/shop?...",
		"postgres:///shop?user=u&password=p":   "postgres:///shop?...",
		"postgres://db/shop?password=a@secret": "postgres://...",
		"postgres://u:p?q@db/shop":             "postgres://...",
		"postgres://u:p@db/shop?password=a@b":  "postgres://...",
		"host=db user=u password=p":            "...",
		"postgres:u:p@db/shop":                 "...",
		"file:/srv/a=b@c/limits.db":            "file:/srv/a=b@c/limits.db",
		"memori:":                              "memori:",
		"redis://:p@127.0.0.1:6379/1":          "redis://...@127.0.0.1:6379/1",
	} {
		if got := redact(url); got != want {
			t.Errorf("%s: %s, not %s", url, got, want)
		}
	}
}
