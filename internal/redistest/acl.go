//go:build unix

package redistest

import (
	"fmt"
	"os"
	"strings"
)

// Grant creates a Redis user by the ACL SETUSER command that is in a page of
// the docs. The user's password is PASSWORD.
func (s *Server) Grant(page, user string) error {
	b, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	begin := "\nACL SETUSER " + user + " "
	_, rules, found := strings.Cut(strings.ReplaceAll(string(b), "\\\n", " "), begin)
	if !found {
		return fmt.Errorf("%s shows no ACL SETUSER %s", page, user)
	}
	rules, _, _ = strings.Cut(rules, "\n")
	args := []any{"acl", "setuser", user}
	for _, rule := range strings.Fields(rules) {
		args = append(args, rule)
	}
	if _, err = s.Do(args...); err != nil {
		return fmt.Errorf("%s: ACL SETUSER %s %s: %w", page, user, rules, err)
	}
	_, err = s.Do("acl", "log", "reset")
	return err
}

// Denied lists which commands users were denied since Grant.
func (s *Server) Denied() (list []string, err error) {
	entries, err := s.Do("acl", "log")
	all, _ := entries.([]any)
	for _, e := range all {
		list = append(list, fmt.Sprint(e))
	}
	return list, err
}
