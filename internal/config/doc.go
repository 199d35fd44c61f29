// Package config reads the service's YAML file and watches it. Every mistake
// is reported with its file, line and setting; nothing is guessed.
package config

//go:generate go test -run TestDocs -update .
