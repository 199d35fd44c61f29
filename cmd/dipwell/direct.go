package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/user"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/keyhash"
	"github.com/dipwell/dipwell/internal/server"
)

// call sends a request to the server or, with --store, to an API over the store in
// this process. A status other than 2xx and 429 is an error with the problem's detail.
func (t *target) call(e *env, method, path string, body []byte) ([]byte, error) {
	if !t.direct() {
		return t.http(e, method, path, body)
	}
	secret, err := keySecret(t.KeySecretFile, t.KeySecretFile != "")
	if err != nil {
		return nil, err
	}
	limits, err := parseLimits(t.Limit)
	if err != nil {
		return nil, err
	}
	s, err := openStore(e.ctx, t.Store, storeOptions{once: true, keySecret: secret})
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.Close() }()
	l, err := dipwell.New(s.Store, limits...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(e.ctx, t.Timeout)
	defer cancel()
	r, err := newRequest(ctx, method, "http://127.0.0.1"+path, body)
	if err != nil {
		return nil, err
	}
	w := &reply{header: http.Header{}, status: http.StatusOK}
	server.New(l, server.Config{Who: localUser(), StoreErrors: true, HashKey: keyhash.Func(secret)}).API(server.Site{Loopback: true}).ServeHTTP(w, r)
	return w.body.Bytes(), answered(w.status, http.StatusText(w.status), w.body.Bytes())
}

func localUser() string {
	if u, err := user.Current(); err == nil {
		return "local user " + u.Username
	}
	return "local user"
}

func newRequest(ctx context.Context, method, url string, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err == nil && body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, err
}

func answered(status int, text string, body []byte) error {
	if status/100 == 2 || status == http.StatusTooManyRequests {
		return nil
	}
	var p struct{ Detail string }
	if json.Unmarshal(body, &p) != nil || p.Detail == "" {
		return fmt.Errorf("server: %s", text)
	}
	return errors.New(p.Detail)
}

type reply struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *reply) Header() http.Header         { return r.header }
func (r *reply) Write(b []byte) (int, error) { return r.body.Write(b) }
func (r *reply) WriteHeader(status int)      { r.status = status }
