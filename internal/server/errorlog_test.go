package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// A handler's panic is logged as an error, and so is a socket that accepts no connection; an
// error of a peer is not.
func TestPanicIsLogged(t *testing.T) {
	var b bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&b, nil)))
	defer slog.SetDefault(old)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := (&Listener{Listener: l, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a bug") })}).server()
	ended := make(chan error)
	go func() { ended <- srv.Serve(l) }()
	if res, err := http.Get("http://" + l.Addr().String()); err == nil {
		_ = res.Body.Close()
		t.Error("answered", res.Status)
	}
	if err = srv.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	<-ended
	srv.ErrorLog.Print("http: TLS handshake error from 127.0.0.1:5: EOF")
	srv.ErrorLog.Print("http: Accept error: accept4: too many open files; retrying in 5ms")
	if got := b.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "too many open files") || !strings.Contains(got, `"level":"ERROR","msg":"http: panic serving`) || !strings.Contains(got, "a bug") {
		t.Error(got)
	}
}

// The store's reason for refusing a change is in the log, not in the response.
func TestRefusedChangesAreLogged(t *testing.T) {
	var b bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&b, nil)))
	defer slog.SetDefault(old)
	m, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := dipwell.New(unwilling{m})
	if err != nil {
		t.Fatal(err)
	}
	api := New(l, Config{}).API(Site{Loopback: true})
	for method, body := range map[string]string{"PUT": `{"rate":1,"per":"1m"}`, "DELETE": ""} {
		b.Reset()
		r := httptest.NewRequest(method, "http://127.0.0.1/v1/limits/x", strings.NewReader(body))
		if body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		w := httptest.NewRecorder()
		api.ServeHTTP(w, r)
		if w.Code != http.StatusServiceUnavailable || strings.Contains(w.Body.String(), "may not define") {
			t.Errorf("%s: %d %s", method, w.Code, w.Body)
		}
		if !strings.Contains(b.String(), "change of limit x: ") || !strings.Contains(b.String(), "may not define") {
			t.Errorf("%s: the log has %q", method, b.String())
		}
	}
}

// unwilling is a store whose login has no right to define limits.
type unwilling struct{ *memstore.Store }

func (u unwilling) Abilities() store.Abilities {
	ab := u.Store.Abilities()
	ab.Limits = unwillingLimits{ab.Limits}
	return ab
}

type unwillingLimits struct{ store.Definer }

var errUnwilling = fmt.Errorf("%w: this login may not define limits", dipwell.ErrStore)

func (unwillingLimits) Define(context.Context, dipwell.Limit, string) (*store.Definition, error) {
	return nil, errUnwilling
}

func (unwillingLimits) Drop(context.Context, string, string) error { return errUnwilling }
