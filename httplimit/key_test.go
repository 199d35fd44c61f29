package httplimit_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
)

func TestFirstOf(t *testing.T) {
	down := errors.New("down")
	give := func(key string, err error) httplimit.KeyFunc {
		return func(*http.Request) (string, error) { return key, err }
	}
	never := func(*http.Request) (string, error) { t.Error("a later function was called"); return "", nil }
	user, ip := httplimit.Header("X-User"), httplimit.ClientIP()
	for _, tc := range []struct {
		name  string
		keys  []httplimit.KeyFunc
		users []string // the lines of X-User
		want  string
		field string // of the *dipwell.FieldError
		err   error
	}{
		{"the first", []httplimit.KeyFunc{user, never}, []string{"7"}, "7", "", nil},
		{"the second", []httplimit.KeyFunc{user, ip}, nil, "192.0.2.1", "", nil},
		{"the second, the first is there but empty", []httplimit.KeyFunc{user, ip}, []string{""}, "192.0.2.1", "", nil},
		{"the third", []httplimit.KeyFunc{user, httplimit.PathValue("user"), ip}, nil, "192.0.2.1", "", nil},
		{"an empty key is none", []httplimit.KeyFunc{give("", nil), ip}, nil, "192.0.2.1", "", nil},
		{"ErrNoKey alone", []httplimit.KeyFunc{give("", httplimit.ErrNoKey), ip}, nil, "192.0.2.1", "", nil},
		{"within another", []httplimit.KeyFunc{httplimit.FirstOf(user), ip}, nil, "192.0.2.1", "", nil},
		{"a malformed key is not passed over", []httplimit.KeyFunc{user, never}, []string{"7", "8"}, "", "header X-User", nil},
		{"nor an error of another kind", []httplimit.KeyFunc{give("", down), never}, nil, "", "", down},
		{"none has a key", []httplimit.KeyFunc{httplimit.PathValue("user"), user}, nil, "", "header X-User", httplimit.ErrNoKey},
		{"none has a key, the last is empty", []httplimit.KeyFunc{user, give("", nil)}, nil, "", "key", httplimit.ErrNoKey},
		{"no function", nil, []string{"7"}, "", "key", httplimit.ErrNoKey},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["X-User"] = tc.users
		key, err := httplimit.FirstOf(tc.keys...)(r)
		field := ""
		if f, ok := errors.AsType[*dipwell.FieldError](err); ok {
			field = f.Field
		}
		if key != tc.want || field != tc.field || (err == nil) != (tc.want != "") || tc.err != nil && !errors.Is(err, tc.err) {
			t.Errorf("%s: %q, %v; want %q, field %q, %v", tc.name, key, err, tc.want, tc.field, tc.err)
		}
	}
}

// Users have a bucket each, and those without a name one of their address.
func TestFirstOfLimits(t *testing.T) {
	l, _ := newLimiter(t, "api=1/1m,burst=1")
	h := wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: "api", Key: httplimit.FirstOf(httplimit.Header("X-User"), httplimit.ClientIP())}}})
	for i, step := range []struct {
		header []string
		want   int
	}{
		{nil, 204}, {nil, 429},
		{[]string{"X-User", "7"}, 204}, {[]string{"X-User", "7"}, 429},
		{[]string{"X-User", "8"}, 204},
		{[]string{"X-User", "9", "X-User", "10"}, 400},
	} {
		if w := get(h, "/", step.header...); w.Code != step.want {
			t.Errorf("request %d: %d, want %d: %s", i, w.Code, step.want, w.Body)
		}
	}
	none := wrap(t, l, httplimit.Config{Limits: []httplimit.Limit{{Name: "api", Key: httplimit.FirstOf()}}})
	if w := get(none, "/"); w.Code != 400 {
		t.Errorf("no key at all: %d %s", w.Code, w.Body)
	}
}
