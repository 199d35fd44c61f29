package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/dipwell/dipwell/internal/server"
)

const tokenVariable = "DIPWELL_ADMIN_TOKEN"

// token may return "". A file has precedence over the variables.
func (t *target) token() (string, error) {
	if t.TokenFile != "" {
		return readToken("token_file", t.TokenFile)
	}
	return cmp.Or(os.Getenv("DIPWELL_TOKEN"), os.Getenv(tokenVariable)), nil
}

func readToken(setting, path string) (string, error) {
	b, err := readSecret(setting, path)
	if err != nil {
		return "", err
	}
	if i := bytes.IndexFunc(b, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
		return "", fmt.Errorf("%s: %s has a control character or more than one line; a header field cannot contain that", setting, path)
	}
	return string(b), nil
}

// readTokens reads the tokens. A file with the admin token that a flag or the environment names has
// precedence over the variable with the token, and this over a file that the configuration names.
func (s *settings) readTokens() (err error) {
	s.token, s.tokenFile = os.Getenv(tokenVariable), ""
	if s.AdminTokenFile != "" && (s.token == "" || s.given["admin_token_file"]) {
		s.tokenFile = s.AdminTokenFile
		if s.token, err = readToken("admin_token_file", s.tokenFile); err != nil {
			return err
		}
	}
	s.callers = nil
	names := map[[sha256.Size]byte]string{}
	if s.token != "" {
		names[sha256.Sum256([]byte(s.token))] = server.AdminCaller
	}
	for i, c := range s.Callers {
		digest, err := s.callerToken(i, names)
		if err != nil {
			return err
		}
		s.callers = append(s.callers, server.Caller{Name: c.Name, Role: server.ParseRole(c.Role), Limits: c.Limits, Token: digest})
	}
	return nil
}

// Bounds of a caller's token in bytes: a shorter one can be guessed, or was cut off.
const (
	minToken = 16
	maxToken = 256
)

// callerToken returns the digest of the token of the caller with an index, and adds the
// caller's name to names, which has those of the callers before it.
func (s *settings) callerToken(i int, names map[[sha256.Size]byte]string) (digest [sha256.Size]byte, err error) {
	c, setting := &s.Callers[i], fmt.Sprintf("callers[%d].token_file", i)
	switch c.TokenFile {
	case "":
		setting = fmt.Sprintf("callers[%d].token_sha256", i)
		_, err = hex.Decode(digest[:], []byte(c.TokenSHA256))
	default:
		var token string
		token, err = readToken(setting, c.TokenFile)
		if n := len(token); err == nil && (n < minToken || n > maxToken) {
			err = fmt.Errorf("%s: the token in %s has %d bytes; it must have %d to %d", setting, c.TokenFile, n, minToken, maxToken)
		}
		digest = sha256.Sum256([]byte(token))
	}
	if other, twice := names[digest]; twice && err == nil {
		err = fmt.Errorf("%s: the token is that of caller %s too", setting, other)
	}
	names[digest] = c.Name
	return digest, err
}

func (s *settings) unknownLimits(exists func(limit string) bool) (warnings []string) {
	for i, c := range s.Callers {
		for j, limit := range c.Limits {
			if !exists(limit) {
				warnings = append(warnings, fmt.Sprintf("callers[%d].limits[%d]: caller %s may name the limit %s, which does not exist", i, j, c.Name, limit))
			}
		}
	}
	return warnings
}

func (s *settings) tokenFiles() (paths []string) {
	if s.tokenFile != "" {
		paths = append(paths, s.tokenFile)
	}
	for _, c := range s.Callers {
		if c.TokenFile != "" {
			paths = append(paths, c.TokenFile)
		}
	}
	return paths
}
