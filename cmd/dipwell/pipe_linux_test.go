package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
)

// pipeOf returns the path of a pipe that has the text, like <(echo text) of a shell.
func pipeOf(t *testing.T, text string) string {
	t.Helper()
	r, w, err := os.Pipe()
	must(t, err)
	_, err = io.WriteString(w, text)
	must(t, err)
	must(t, w.Close())
	t.Cleanup(func() { _ = r.Close() })
	return fmt.Sprintf("/dev/fd/%d", r.Fd())
}

// Secrets and a configuration that come from pipes are read once, and a reload keeps them.
func TestPipesAreReadOnce(t *testing.T) {
	text := fmt.Sprintf("key_secret_file: %s\nadmin_token_file: %s\n", pipeOf(t, "0123456789abcdef"), pipeOf(t, "token")) + limitsOf("", "a=1")
	file := filepath.Join(t.TempDir(), "dipwell.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	var out strings.Builder
	s := &service{env: &env{ctx: t.Context()}, cmd: &ServeCmd{Config: file}, logger: &logger{to: &out}}
	set, err := s.cmd.settings(nil)
	must(t, err)
	st, err := memstore.New(memstore.Config{})
	must(t, err)
	t.Cleanup(func() { _ = st.Close() })
	s.limiter, err = dipwell.New(st)
	must(t, err)
	s.server, s.started, s.last = server.New(s.limiter, set.server()), set, set
	s.declared = &declared{ctx: t.Context(), limiter: s.limiter, info: s.info, warn: s.warn, path: file}
	must(t, s.apply(set))
	must(t, os.WriteFile(file, []byte(strings.Replace(text, "rate: 1", "rate: 7", 1)), 0o600))
	s.reload()
	s.reload()
	if a := s.limiter.Limit("a"); s.reloadFailed.Load() || a == nil || a.Rate != 7 || string(s.last.keySecret) != "0123456789abcdef" {
		t.Errorf("the limit is %v, the secret %q; the log: %s", a, s.last.keySecret, &out)
	}
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/v1/top", nil)
	r.Header.Set("Authorization", "Bearer token")
	w := httptest.NewRecorder()
	if s.server.API(server.Site{}).ServeHTTP(w, r); w.Code == http.StatusUnauthorized {
		t.Error(w.Body)
	}

	s.cmd.Config = pipeOf(t, text)
	must(t, s.watch())
	if s.reloadFailed.Load() || strings.Contains(out.String(), "empty") {
		t.Errorf("the log: %s", &out)
	}
}
