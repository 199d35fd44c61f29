package server

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/dipwell/dipwell/store"
)

// why returns why a store cannot decide. Everybody may ask /readyz, so the text has no
// address, and no name of a user or a file: only what this module says itself, and the
// kind of an error of another one.
func why(err error) string {
	class := store.ErrStore
	for _, c := range []error{store.ErrNoSpace, store.ErrDenied, store.ErrFull} {
		if errors.Is(err, c) {
			class = c
		}
	}
	var (
		sql      interface{ SQLState() string }
		sqlite   interface{ Code() int }
		redis    interface{ RedisError() }
		host     *net.DNSError
		system   syscall.Errno
		overtime net.Error
		cause    string
	)
	switch {
	case errors.As(err, &sql):
		cause = meaning(sql.SQLState())
	case errors.As(err, &redis):
		if cause = firstWord(redis); cause != "" {
			cause = "its answer is " + cause
		}
	case errors.As(err, &host):
		cause = "the name of its host is not known"
	case errors.As(err, &system):
		cause = system.Error()
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &overtime) && overtime.Timeout():
		cause = "it does not answer in time"
	case errors.As(err, &sqlite):
		if e, ok := sqlite.(error); ok {
			cause = e.Error()
		}
	case isOurs(err):
		return err.Error()
	}
	if cause == "" {
		return class.Error() + ": see the service's log"
	}
	return class.Error() + ": " + cause
}

// isOurs reports whether an error was made from store.ErrStore alone, so that this module
// wrote its text.
func isOurs(err error) bool {
	switch e := err.(type) { //nolint:errorlint // looks at each error of the tree
	case interface{ Unwrap() error }:
		return isOurs(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			if !isOurs(inner) {
				return false
			}
		}
		return true
	}
	return err == store.ErrStore //nolint:errorlint // the end of a chain
}

// meaning returns what the code of an SQL error says about a store.
func meaning(code string) string {
	text := map[string]string{
		"28": "it refuses the login", "3D": "there is no such database", "42": "its schema does not fit: dipwell migrate status", "3F": "its schema is missing: dipwell migrate up",
		"53": "it has no resources left", "57": "it is starting or stopping, or ended the statement", "25": "it is read-only, a standby perhaps", "08": "the connection broke",
	}[code[:min(2, len(code))]]
	if code == "42501" {
		text = "it denies permission: dipwell doctor says which"
	}
	if text != "" {
		text += ", "
	}
	return text + "SQLSTATE " + code
}

// firstWord returns the code with which an error reply of Redis begins, such as LOADING.
func firstWord(reply any) string {
	err, ok := reply.(error)
	if !ok {
		return ""
	}
	word, _, _ := strings.Cut(err.Error(), " ")
	if strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		return ""
	}
	return word
}
