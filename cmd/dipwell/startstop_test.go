package main

import (
	"context"
	"strings"
	"testing"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/internal/server"
	"github.com/dipwell/dipwell/memstore"
)

// TestStopIsLogged checks that a service that is told to stop says so, even if it has nothing
// to wait for and has ended by the time that it looks.
func TestStopIsLogged(t *testing.T) {
	st, err := memstore.New(memstore.Config{})
	must(t, err)
	defer st.Close()
	l, err := dipwell.New(st)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	for range 2000 {
		var said strings.Builder
		s := &service{env: &env{ctx: ctx}, limiter: l, server: server.New(l, server.Config{}), started: &settings{}, logger: &logger{to: &said}}
		must(t, s.serveAndDrain(nil))
		if !strings.Contains(said.String(), "stopping") {
			t.Fatalf("%q", said.String())
		}
	}
}
