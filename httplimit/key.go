package httplimit

import (
	"net/http"

	"github.com/dipwell/dipwell"
)

// A KeyFunc tells whose bucket a request takes from. A key that cannot be told
// is a *dipwell.FieldError, never an empty key: that would merge everyone.
type KeyFunc func(*http.Request) (string, error)

// Header is the value of a header field that must be there once.
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

// PathValue is a wildcard of the route's pattern, as r.PathValue tells it: the
// middleware must sit inside the route.
func PathValue(name string) KeyFunc {
	return func(r *http.Request) (string, error) {
		if v := r.PathValue(name); v != "" {
			return v, nil
		}
		return "", bad("path value "+name, "is missing or empty")
	}
}

func bad(field, reason string) error { return &dipwell.FieldError{Field: field, Reason: reason} }
