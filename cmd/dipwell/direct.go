package main

import (
	"bytes"
	"context"
	"net/http"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
)

// get sends a GET to the server or, with --store, to an API over the store in this
// process.
func (t *target) get(e *env, path string) (b []byte, err error) {
	if !t.direct() {
		return t.http(e, http.MethodGet, path, nil)
	}
	err = t.open(e, func(ctx context.Context, l *dipwell.Limiter) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1"+path, nil)
		if err != nil {
			return err
		}
		w := &reply{header: http.Header{}, status: http.StatusOK}
		server.New(l, server.Config{}).API(server.Site{Loopback: true}).ServeHTTP(w, r)
		if b = w.body.Bytes(); w.status != http.StatusOK {
			return problem(http.StatusText(w.status), b)
		}
		return nil
	})
	return b, err
}

// reply is an http.ResponseWriter in memory.
type reply struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *reply) Header() http.Header         { return r.header }
func (r *reply) Write(b []byte) (int, error) { return r.body.Write(b) }
func (r *reply) WriteHeader(status int)      { r.status = status }
