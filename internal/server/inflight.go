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
func (s *Server) Enter() bool {
	if s.inFlight.n.Add(1) <= int64(s.live.Load().MaxInFlight) {
		return true
	}
	s.inFlight.n.Add(-1)
	s.metrics.shed.Add(1)
	return false
}

// Leave ends a call for which Enter returned true.
func (s *Server) Leave() { s.inFlight.n.Add(-1) }

// shed answers a call for which Enter returned false.
func shed(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	httplimit.Problem(w, http.StatusServiceUnavailable, "", "too many calls are in flight")
}

// ErrShed is the gRPC status of a call for which Enter returned false.
var ErrShed = shedStatus()

func shedStatus() error {
	st := status.New(codes.Unavailable, "too many calls are in flight")
	if with, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}); err == nil {
		st = with
	}
	return st.Err()
}
