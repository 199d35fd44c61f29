package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dipwell/dipwell/httplimit"
)

// failureKinds are the kinds of failures of an upstream: no connection could be made; a timeout;
// the response is not HTTP, or the connection broke before it, or in the body.
var failureKinds = []string{"connect", "timeout", "answer", "body"}

// reportAgain is the least time between reports of the same kind.
const reportAgain = time.Minute

// upstreamFailures counts failures, and reports each kind once a minute.
type upstreamFailures struct {
	host   string
	report func(error)
	counts *prometheus.CounterVec

	mu       sync.Mutex
	reported map[string]time.Time
}

func newUpstreamFailures(host string, report func(error)) *upstreamFailures {
	if report == nil {
		report = func(error) {}
	}
	return &upstreamFailures{host: host, report: report, reported: map[string]time.Time{},
		counts: newCounters("dipwell_upstream_errors_total", "Requests that the upstream did not answer, or not to the end, by kind.", "kind", failureKinds)}
}

func (f *upstreamFailures) add(kind string, err error) {
	f.counts.WithLabelValues(kind).Inc()
	f.mu.Lock()
	now := time.Now()
	again := now.Sub(f.reported[kind]) >= reportAgain
	if again {
		f.reported[kind] = now
	}
	f.mu.Unlock()
	if again {
		f.report(fmt.Errorf("upstream %s: %w", f.host, err))
	}
}

// answer answers the client if the upstream does not. It counts no requests that end because
// the client has gone, its body cannot be read, or the hold of the request is lost.
func (f *upstreamFailures) answer(w http.ResponseWriter, r *http.Request, err error) {
	var timeout net.Error
	var dial *net.OpError
	status, detail, kind := http.StatusBadGateway, "the upstream does not answer", "answer"
	passed := passedOf(r)
	lost := context.Cause(r.Context())
	if errors.Is(lost, os.ErrDeadlineExceeded) {
		err, lost = lost, nil
	}
	switch {
	case errors.Is(lost, context.Canceled): // the client has gone
		w.WriteHeader(http.StatusBadGateway)
		return
	case lost != nil:
		status, detail, kind = http.StatusServiceUnavailable, "the request no longer holds its tokens", ""
	case passed.badBody.Load():
		status, detail, kind = http.StatusBadRequest, "the body breaks off or is malformed", ""
	case errors.As(err, &timeout) && timeout.Timeout():
		status, kind = http.StatusGatewayTimeout, "timeout"
	case errors.As(err, &dial) && dial.Op == "dial":
		kind = "connect"
	}
	if kind != "" {
		f.add(kind, err)
	}
	passed.announce(w.Header())
	httplimit.Problem(w, status, "", detail)
}

var errNotAsked = errors.New("it switches to a protocol that was not requested")

// watch counts failures in a response's body. A response that switches protocols is
// an error unless the request asked for a WebSocket.
func (f *upstreamFailures) watch(r *http.Response) error {
	passed := passedOf(r.Request)
	passed.announce(r.Header)
	if r.Header["Content-Type"] == nil {
		passed.Header()["Content-Type"] = nil // or net/http would add one, guessed from the body
	}
	if r.StatusCode == http.StatusSwitchingProtocols {
		passed.late.Stop()
		if r.Request.Header.Get("Upgrade") == "" {
			return errNotAsked
		}
		return nil
	}
	r.Body = &upstreamBody{r.Body, f, passed, r.Request.Context()}
	return nil
}

type upstreamBody struct {
	io.ReadCloser
	failures *upstreamFailures
	passed   *passed
	ctx      context.Context // of the request
}

func (b *upstreamBody) Read(p []byte) (int, error) {
	b.passed.late.Reset(b.passed.timeout)
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(context.Cause(b.ctx), context.Canceled) { // otherwise the client has gone
		b.failures.add("body", err)
	}
	return n, err
}
