package server

import (
	"net/http"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/dipwell/dipwell/httplimit"
)

// defaultInFlight is the default of Config.MaxInFlight. A call that waits for the
// store needs about 20 kB, and a client can make it need 64 KiB more.
const defaultInFlight = 8192

// inFlight is the number of calls in flight. It is padded to its own cache line.
type inFlight struct {
	_ [64]byte
	n atomic.Int64
	_ [56]byte
}

// Enter begins a call, which Leave ends. Enter returns false if there are
// MaxInFlight calls; do not call Leave then.
func (s *Server) Enter() bool { return s.enter(&s.inFlight.n, int64(s.live.Load().MaxInFlight)) }

// Leave ends a call for which Enter returned true.
func (s *Server) Leave() { s.inFlight.n.Add(-1) }

// enter adds a call to the n in flight, unless there are most of them: then it sheds the call.
func (s *Server) enter(n *atomic.Int64, most int64) bool {
	if n.Add(1) <= most {
		return true
	}
	n.Add(-1)
	s.metrics.shed.Add(1)
	return false
}

// shed answers a call that is shed.
func shed(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	httplimit.Problem(w, http.StatusServiceUnavailable, "", "too many calls are in flight")
}

// errShed is the error, and the gRPC status, of a call that is shed.
var errShed = func() error {
	st := status.New(codes.Unavailable, "too many calls are in flight")
	if with, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}); err == nil {
		st = with
	}
	return st.Err()
}()
