package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/dipwell/dipwell/internal/front"
)

// observed returns a handler that calls next and observes each request for adaptive
// limits: how long it took until the header of its response, and whether the status is
// below 500. If a handler panics, its request counts as failed. A request is not
// observed if its client disconnects before the header is written.
func (m *middleware) observed(next http.Handler, limits []string) http.Handler {
	if len(limits) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		watch := &watching{ResponseWriter: w}
		began, returned := time.Now(), false
		defer func() {
			if watch.status == 0 {
				if r.Context().Err() != nil {
					return
				}
				watch.note(http.StatusOK)
			}
			front.Observe(m.limiter, limits, watch.at.Sub(began), returned && watch.status < http.StatusInternalServerError)
		}()
		if w = watch; canHijack(watch.ResponseWriter) {
			w = hijackable{watch}
		}
		next.ServeHTTP(w, r)
		returned = true
	})
}

// watching records the first status of a response, and when it was written.
type watching struct {
	http.ResponseWriter
	status   int // status of the response; 0: not written yet
	at       time.Time
	hijacked func() // called when the connection is hijacked; may be nil
}

func (w *watching) note(status int) {
	if w.status == 0 && (status >= http.StatusOK || status == http.StatusSwitchingProtocols) {
		w.status, w.at = status, time.Now()
	}
}

func (w *watching) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *watching) WriteHeader(status int) {
	w.note(status)
	w.ResponseWriter.WriteHeader(status)
}

func (w *watching) Write(b []byte) (int, error) {
	w.note(http.StatusOK)
	return w.ResponseWriter.Write(b)
}

// Flush is for handlers that assert http.Flusher.
func (w *watching) Flush() { _ = w.FlushError() } // an error means unsupported: treated as if nothing were buffered

// FlushError is for http.ResponseController, which would treat Flush as always successful.
func (w *watching) FlushError() error {
	w.note(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// ReadFrom lets net/http use sendfile.
func (w *watching) ReadFrom(r io.Reader) (int64, error) {
	w.note(http.StatusOK)
	return io.Copy(w.ResponseWriter, r)
}

type hijackable struct{ *watching }

func (w hijackable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, b, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.note(http.StatusSwitchingProtocols)
		if w.hijacked != nil {
			w.hijacked()
		}
	}
	return c, b, err
}

func (m *middleware) serveHeld(w http.ResponseWriter, r *http.Request, next http.Handler, hold string, ttl time.Duration) {
	ctx, release := front.Keep(r.Context(), m.limiter, hold, ttl)
	defer release()
	if canHijack(w) && !front.IsProxied(ctx) {
		w = hijackable{&watching{ResponseWriter: w, hijacked: release}}
	}
	next.ServeHTTP(w, r.WithContext(ctx))
}

// canHijack reports whether http.ResponseController can hijack the connection of w.
func canHijack(w http.ResponseWriter) bool {
	for {
		switch v := w.(type) {
		case http.Hijacker:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = v.Unwrap()
		default:
			return false
		}
	}
}
