package main

import (
	"bytes"
	"context"
	"fmt"
	"os"

	"github.com/dipwell/dipwell/internal/config"
)

const tokenVariable = "DIPWELL_ADMIN_TOKEN"

// adminToken returns the token and the file that it was read from. A file that
// was given by a flag or the environment comes before the variable, and that
// before a file of the configuration. Without any both are empty.
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
		return "", fmt.Errorf("admin_token_file: %s has a control character or more than one line; no header field can carry that", path)
	}
	return string(b), nil
}

// followToken reads the admin token again whenever its file changes, as
// certificates are. A configuration may name another file.
func (s *service) followToken(path string) error {
	if path == s.tokenFile {
		return nil
	}
	if s.unfollowToken != nil {
		s.unfollowToken()
	}
	s.tokenFile, s.unfollowToken = path, nil
	if path == "" {
		return nil
	}
	ctx, cancel := context.WithCancel(s.env.ctx)
	s.unfollowToken = cancel
	return s.followUntil(ctx, config.Watch, func() { s.reloadToken(ctx, path) }, path)
}

// reloadToken reads the token again. A bad file changes nothing.
func (s *service) reloadToken(ctx context.Context, path string) {
	s.changing.Lock()
	defer s.changing.Unlock()
	if ctx.Err() != nil { // the token is another file's by now
		return
	}
	token, err := readToken(path)
	if err != nil {
		s.reloadError("the last good admin token stays in force", err)
		return
	}
	s.server.SetAdminToken(token)
	s.info("admin token read again")
}
