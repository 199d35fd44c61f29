package rls

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"os"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/dipwell/dipwell/httplimit"
)

// maxBody is the largest body of POST /json.
const maxBody = 64 << 10

// JSON answers POST /json for clients without gRPC. The body is a RateLimitRequest
// in the JSON form of protobuf. The status is 200, or 429 if over limit.
func (s *Service) JSON(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		unread(w, err)
		return
	}
	var req pb.RateLimitRequest
	if err = protojson.Unmarshal(body, &req); err != nil {
		httplimit.Problem(w, http.StatusBadRequest, "body", err.Error())
		return
	}
	resp, err := s.ShouldRateLimit(r.Context(), &req)
	if err != nil {
		problem(w, err)
		return
	}
	out, err := protojson.Marshal(resp)
	if err != nil {
		httplimit.Problem(w, http.StatusInternalServerError, "", err.Error())
		return
	}
	h := w.Header()
	for _, add := range resp.ResponseHeadersToAdd {
		h.Set(add.Key, add.Value)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if resp.OverallCode == pb.RateLimitResponse_OVER_LIMIT {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(out) // an error means that the client has gone
}

// unread answers a request whose body could not be read.
func unread(w http.ResponseWriter, err error) {
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		httplimit.Problem(w, http.StatusRequestEntityTooLarge, "body", "has more than 65536 bytes")
	case errors.Is(err, os.ErrDeadlineExceeded):
		httplimit.Problem(w, http.StatusRequestTimeout, "body", "did not arrive in time")
	default:
		httplimit.Problem(w, http.StatusBadRequest, "body", "cannot be read to its end")
	}
}

// statuses are the HTTP statuses of errors whose status is not 500.
var statuses = map[codes.Code]int{codes.InvalidArgument: http.StatusBadRequest, codes.Unavailable: http.StatusServiceUnavailable}

func problem(w http.ResponseWriter, err error) {
	st := status.Convert(err)
	httplimit.Problem(w, cmp.Or(statuses[st.Code()], http.StatusInternalServerError), "", st.Message())
}
