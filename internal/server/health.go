package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/store"
)

// readyTimeout is how long /readyz waits for the store.
const readyTimeout = 2 * time.Second

func (a *api) healthz(w http.ResponseWriter, _ *http.Request, _ *query) error {
	return writeJSON(w, http.StatusOK, []byte("{\"status\":\"ok\"}\n"))
}

// readyz answers 200 if a decision can be made now, else 503 and why not.
func (a *api) readyz(w http.ResponseWriter, r *http.Request, _ *query) error {
	if a.Stopping() {
		httplimit.Problem(w, http.StatusServiceUnavailable, "", "stopping")
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
	defer cancel()
	if err := a.probe(ctx); err != nil {
		httplimit.Problem(w, http.StatusServiceUnavailable, "", clip(why(err), maxDetail))
		return nil
	}
	return writeJSON(w, http.StatusOK, []byte("{\"status\":\"ready\"}\n"))
}

// probe asks the store whether it is ready, and then reads a bucket. It bypasses the
// failure modes of limits, which would answer in place of a store that is down.
func (a *api) probe(ctx context.Context) error {
	if a.can.Ready != nil {
		if err := a.can.Ready(ctx); err != nil {
			return err
		}
	}
	defs := a.limiter.Limits()
	if len(defs) == 0 {
		_, err := a.can.Now(ctx)
		return err
	}
	var b store.Batch
	g, op := b.Single()
	op.Def, op.Verb = defs[0], store.VerbCheck
	if err := a.limiter.Store().Apply(ctx, &b); err != nil {
		return err
	}
	if g.Err == nil && op.Source >= store.SourceFallbackOpen {
		return fmt.Errorf("%w: the store does not answer; the fallback decides", dipwell.ErrStore)
	}
	return g.Err
}

// why returns why a store cannot decide: only a class and a code, without addresses and names,
// because everybody may ask /readyz. The log has the full error.
func why(err error) string {
	class := store.ErrStore
	for _, c := range []error{store.ErrNoSpace, store.ErrDenied, store.ErrFull} {
		if errors.Is(err, c) {
			class = c
		}
	}
	var (
		sql     interface{ SQLState() string }
		system  syscall.Errno
		timeout net.Error
	)
	switch {
	case errors.As(err, &sql):
		return class.Error() + ": SQLSTATE " + sql.SQLState()
	case errors.As(err, &system):
		return class.Error() + ": " + system.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return class.Error() + ": it does not answer in time"
	}
	return class.Error() + ": see the service's log"
}
