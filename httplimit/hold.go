package httplimit

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/dipwell/dipwell/internal/front"
)

// serveHeld passes a request to next, and releases its hold when next returns.
func (m *middleware) serveHeld(w http.ResponseWriter, r *http.Request, next http.Handler, hold string, ttl time.Duration) {
	ctx, release := front.Keep(r.Context(), m.limiter, hold, ttl)
	defer release()
	if canHijack(w) && !front.IsProxied(ctx) {
		w = &releasing{w, release}
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

// releasing is a ResponseWriter that releases a hold when its connection is hijacked.
type releasing struct {
	http.ResponseWriter
	release func()
}

func (w *releasing) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *releasing) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, b, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.release()
	}
	return c, b, err
}

// Flush is for handlers that assert http.Flusher.
func (w *releasing) Flush() { _ = w.FlushError() } // unsupported: treated as if nothing were buffered

// FlushError is for http.ResponseController, which would treat Flush as always
// successful.
func (w *releasing) FlushError() error {
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// ReadFrom lets net/http use sendfile.
func (w *releasing) ReadFrom(r io.Reader) (int64, error) { return io.Copy(w.ResponseWriter, r) }
