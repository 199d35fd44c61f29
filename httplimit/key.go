package httplimit

import (
	"net/http"

	"github.com/dipwell/dipwell"
)

// A KeyFunc returns the key of a request: whose bucket it takes from. If a
// request has no key, the function returns a *dipwell.FieldError rather than an
// empty key, because with an empty key all such requests would share a bucket; the
// limiter refuses an empty key as an error as well.
//
// A key has 1 to 512 bytes of UTF-8 without NUL; with any other the request fails with a
// *dipwell.FieldError. A key that clients can choose freely limits nobody, because they
// can use a new one for each request. Use an authenticated name, or ClientIP.
type KeyFunc func(*http.Request) (string, error)

// Header returns a KeyFunc whose key is the value of a header field. A request in
// which the field is missing, empty or repeated is an error. Use a field that a proxy in
// front or an earlier handler has checked or set, such as the id of an API key.
func Header(name string) KeyFunc {
	canonical := http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, error) {
		switch values := r.Header[canonical]; {
		case len(values) == 0 || values[0] == "":
			return "", bad("header "+name, "is missing or empty")
		case len(values) > 1:
			return "", bad("header "+name, "is given more than once")
		default:
			return values[0], nil
		}
	}
}

// PathValue returns a KeyFunc whose key is the value of a wildcard in the route's
// pattern (http.Request.PathValue). It works only in middleware around the
// route's handler, not around the mux, since the mux sets the value. A missing
// or empty value is an error.
func PathValue(name string) KeyFunc {
	return func(r *http.Request) (string, error) {
		if v := r.PathValue(name); v != "" {
			return v, nil
		}
		return "", bad("path value "+name, "is missing or empty")
	}
}

func bad(field, reason string) error { return &dipwell.FieldError{Field: field, Reason: reason} }
