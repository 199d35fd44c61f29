package httplimit

import (
	"errors"
	"net/http"

	"github.com/dipwell/dipwell"
)

// A KeyFunc returns the key of a request: whose bucket it takes from. If a
// request has no key, the function returns ErrNoKey, or a *dipwell.FieldError that wraps
// it, rather than an empty key, because with an empty key all such requests would share a
// bucket; the limiter refuses an empty key as an error as well.
//
// A key has 1 to 512 bytes of UTF-8 without NUL; with any other the request fails with a
// *dipwell.FieldError. A key that clients can choose freely limits nobody, because they
// can use a new one for each request. Use an authenticated name, or ClientIP.
type KeyFunc func(*http.Request) (string, error)

// ErrNoKey is the error of a KeyFunc for a request that has no key. It is a
// *dipwell.FieldError: such a request is answered 400, unless FirstOf finds another key.
var ErrNoKey error = &dipwell.FieldError{Field: "key", Reason: "is missing"}

// FirstOf returns a KeyFunc whose key is that of the first of keys that gives one, as the
// user where one is known, and the address otherwise:
//
//	Key: httplimit.FirstOf(user, httplimit.ClientIP())
//
// A function gives no key if its error is ErrNoKey or wraps it, as the errors of Header
// and PathValue do, or if its key is empty. Any other error ends the search, so that a
// malformed key does not become another one. If no function gives a key, the request
// fails with the error of the last one.
//
// A user whose name is an address shares the bucket of that address. Where users choose
// their names, put a prefix before one of the two.
func FirstOf(keys ...KeyFunc) KeyFunc {
	return func(r *http.Request) (string, error) {
		none := ErrNoKey
		for _, of := range keys {
			key, err := of(r)
			switch {
			case err == nil && key != "":
				return key, nil
			case err == nil:
				none = ErrNoKey
			case errors.Is(err, ErrNoKey):
				none = err
			default:
				return "", err
			}
		}
		return "", none
	}
}

// Header returns a KeyFunc whose key is the value of a header field. A request in
// which the field is missing, empty or repeated is an error. Use a field that a proxy in
// front or an earlier handler has checked or set, such as the id of an API key.
func Header(name string) KeyFunc {
	canonical := http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, error) {
		switch values := r.Header[canonical]; {
		case len(values) == 0 || values[0] == "":
			return "", missing("header " + name)
		case len(values) > 1:
			return "", bad("header "+name, "is given more than once")
		default:
			return values[0], nil
		}
	}
}

// PathValue returns a KeyFunc whose key is the value of a wildcard in the route's pattern
// (http.Request.PathValue). It works only in middleware around the route's handler, not
// around the mux, since the mux sets the value. A missing or empty value is an error.
func PathValue(name string) KeyFunc {
	return func(r *http.Request) (string, error) {
		if v := r.PathValue(name); v != "" {
			return v, nil
		}
		return "", missing("path value " + name)
	}
}

func missing(field string) error {
	return &dipwell.FieldError{Field: field, Reason: "is missing or empty", Err: ErrNoKey}
}

func bad(field, reason string) error { return &dipwell.FieldError{Field: field, Reason: reason} }
