package main

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"github.com/dipwell/dipwell/internal/config"
)

const tokenVariable = "DIPWELL_ADMIN_TOKEN"

// adminToken returns the token and its file. A file from a flag or the environment
// has precedence over the variable, and that over a file of the configuration. Both
// results are empty if there is no token.
func adminToken(path string, given bool) (token, file string, err error) {
	if token = os.Getenv(tokenVariable); token != "" && !given {
		return token, "", nil
	}
	if path == "" {
		return "", "", nil
	}
	token, err = readToken(path)
	return token, path, err
}

func readToken(path string) (string, error) {
	b, err := readSecret("admin_token_file", path)
	if err != nil {
		return "", err
	}
	if i := bytes.IndexFunc(b, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
		return "", fmt.Errorf("admin_token_file: %s has a control character or more than one line; a header field cannot contain that", path)
	}
	return string(b), nil
}

// followToken reads the admin token again whenever its file changes. path may
// differ from the file that is watched.
func (s *service) followToken(path string) error {
	if path == s.tokenFile {
		return nil
	}
	if s.unwatchToken != nil {
		s.unwatchToken()
	}
	s.tokenFile, s.unwatchToken = path, nil
	if path == "" || readsOnce(path) {
		return nil
	}
	ctx, cancel := context.WithCancel(s.env.ctx)
	s.unwatchToken = cancel
	read := func() error { // it may have changed since the settings were read
		s.readTokenAgain(path)
		return nil
	}
	return s.followUntil(ctx, config.Watch, read, func() { s.reloadToken(ctx, path) }, path)
}

// reloadToken reads the token again. After an error the old one stays in force.
func (s *service) reloadToken(ctx context.Context, path string) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if ctx.Err() != nil { // another file is watched now
		return
	}
	if s.readTokenAgain(path) {
		s.info("admin token read again")
	}
}

// readTokenAgain puts the token in force. It reports whether it could be read.
func (s *service) readTokenAgain(path string) bool {
	token, err := readToken(path)
	if err != nil {
		s.reloadError("the last good admin token stays in force", err)
		return false
	}
	s.server.SetAdminToken(token)
	return true
}
