package httplimit

import (
	"net/http"
	"time"

	"github.com/dipwell/dipwell/internal/front"
)

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
