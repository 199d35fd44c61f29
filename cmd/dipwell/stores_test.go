package main

import (
	"reflect"
	"testing"
	"time"

	"github.com/dipwell/dipwell/stack"
)

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

// TestStackOptions: with its default settings a service has the stack that
// docs/how-to/stack.md shows to Go programs; a command has none.
func TestStackOptions(t *testing.T) {
	for _, tc := range []struct {
		scheme  string
		options storeOptions
		want    stack.Options
	}{
		{"postgres", storeOptions{}, stack.Options{Breaker: true, DenyMaxAge: time.Second, Leases: true, Fallback: true}},
		{"redis", storeOptions{denyMaxAge: -1, maxKeys: 7}, stack.Options{Breaker: true, Leases: true, Fallback: true, FallbackKeys: 7}},
		{"postgres", storeOptions{once: true, keySecret: []byte("secret")}, stack.Options{Lanes: -1, KeySecret: []byte("secret")}},
		{"memory", storeOptions{shadow: true, denyMaxAge: time.Second}, stack.Options{Lanes: -1, Shadow: true}},
		{"file", storeOptions{maxKeys: 7}, stack.Options{Lanes: -1}},
	} {
		got := tc.options.stack(tc.scheme)
		got.OnBreaker = nil
		if !reflect.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", tc.scheme, got, tc.want)
		}
	}
}
