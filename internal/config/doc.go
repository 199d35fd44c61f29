// Package config has the table of the service's settings, and reads and watches its
// YAML file. Every mistake is reported with its file, line and setting.
package config

//go:generate go test -run TestDocs -update .
