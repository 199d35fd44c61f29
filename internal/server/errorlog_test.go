package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/memstore"
	"github.com/dipwell/dipwell/store"
)

// A handler's panic is logged as an error, an error of a peer is not.
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
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `"level":"ERROR","msg":"http: panic serving`) || !strings.Contains(got, "a bug") {
		t.Error(got)
	}
}

// failing is a listener that cannot accept.
type failing struct{ net.Listener }

func (failing) Accept() (net.Conn, error) {
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
}

// Why connections have to wait is logged, once a minute.
func TestWaitingConnectionsAreLogged(t *testing.T) {
	var b bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewJSONHandler(&b, nil)))
	defer slog.SetDefault(old)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	out := bound(failing{l}, 2, stallTimeout)
	for range 3 {
		if _, err := out.Accept(); !errors.Is(err, syscall.EMFILE) {
			t.Error(err)
		}
	}
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "new connections to "+l.Addr().String()+" wait: accept tcp") {
		t.Errorf("the log has %q", got)
	}
	b.Reset()
	full := bound(l, 1, stallTimeout)
	full.slots <- struct{}{} // the only connection
	_ = full.Close()
	if _, err := full.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
	if got := b.String(); !strings.Contains(got, " wait: 1 connections are open") {
		t.Errorf("the log has %q", got)
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
