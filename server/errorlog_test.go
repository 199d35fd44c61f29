package server

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
)

// The panic of a handler is logged as an error; what a peer does wrong is not.
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
