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

// DefaultInFlight is how many calls may be under way where nothing else is said.
// A call that waits for a hung store holds some 20 kB.
const DefaultInFlight = 16384

// inFlight counts the calls under way. It has a cache line of its own.
type inFlight struct {
	_ [64]byte
	n atomic.Int64
	_ [56]byte
}

// Enter begins a call. False: too many are under way, and nothing is to be
// left; otherwise Leave ends it.
func (s *Server) Enter() bool {
	if s.under.n.Add(1) <= s.live.Load().maxInFlight {
		return true
	}
	s.under.n.Add(-1)
	s.metrics.shed.Add(1)
	return false
}

// Leave ends a call that Enter has begun.
func (s *Server) Leave() { s.under.n.Add(-1) }

// shed answers a call that was turned away. Whoever comes a second later finds
// others gone, or the same answer for next to nothing.
func shed(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	httplimit.Problem(w, http.StatusServiceUnavailable, "", "too many calls are under way")
}

// ErrShed is shed over gRPC.
var ErrShed = shedStatus()

func shedStatus() error {
	st := status.New(codes.Unavailable, "too many calls are under way")
	if with, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)}); err == nil {
		st = with
	}
	return st.Err()
}
