package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/internal/front"
	"github.com/dipwell/dipwell/store"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

func announce(v httplimit.Headers, d *dipwell.Decision) metadata.MD {
	h := make(http.Header, 3)
	v.Set(h, d)
	md := make(metadata.MD, len(h))
	for name, values := range h {
		md.Append(name, values...)
	}
	return md
}

// refusal is the error of Refuse: a status that unwraps to the decision.
type refusal struct {
	status  *status.Status
	refused *dipwell.RefusedError
}

func (e *refusal) Error() string              { return e.status.Err().Error() }
func (e *refusal) GRPCStatus() *status.Status { return e.status }
func (e *refusal) Unwrap() error              { return e.refused }

// Refuse returns the error of a refused call: a status of RESOURCE_EXHAUSTED with a
// QuotaFailure that names each limit that refused and, if waiting helps, a RetryInfo.
// The RetryInfo is exact, or in whole seconds if a limit has RetryJitter. The error also
// wraps a *dipwell.RefusedError with the decision, which is not sent to the client.
func Refuse(d *dipwell.Decision) error {
	refused := &dipwell.RefusedError{Decision: *d}
	quota := &errdetails.QuotaFailure{}
	for e := range front.Refused(d) {
		quota.Violations = append(quota.Violations, violation(e))
	}
	details := []protoadapt.MessageV1{quota}
	if wait := retryDelay(d); wait > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	}
	return &refusal{detailed(codes.ResourceExhausted, refused.Error(), details...), refused}
}

func detailed(code codes.Code, text string, details ...protoadapt.MessageV1) *status.Status {
	s := status.New(code, text)
	if with, err := s.WithDetails(details...); err == nil {
		s = with
	}
	return s
}

func violation(d *dipwell.Decision) *errdetails.QuotaFailure_Violation {
	why := fmt.Sprintf("a cost of %d with %d of %d remaining", d.Cost, d.Remaining, d.Capacity)
	if front.Blocked(d) {
		why = "the key is blocked"
	}
	return &errdetails.QuotaFailure_Violation{
		Subject:     "limit:" + d.Limit,
		Description: why,
		QuotaId:     d.Limit,
		QuotaValue:  d.Capacity,
	}
}

// retryDelay returns 0 if waiting does not help or the time is not known.
func retryDelay(d *dipwell.Decision) time.Duration {
	seconds := front.RetryAfter(d)
	if seconds == 0 {
		return 0
	}
	if jittered(*d) {
		return time.Duration(min(seconds, maxSeconds)) * time.Second
	}
	return max(d.RetryAfter, time.Microsecond)
}

const maxSeconds = 315_360_000 // ten years in seconds; a time.Duration holds 292 years

func jittered(d dipwell.Decision) bool {
	return d.Definition != nil && d.Definition.RetryJitter > 0 || slices.ContainsFunc(d.Limits, jittered)
}

// Fail returns the error of a call that could not be decided. Its status is
// INVALID_ARGUMENT with the field for a *dipwell.FieldError, INTERNAL for
// dipwell.ErrUnknownLimit and store.ErrUnknownPlan, CANCELLED or DEADLINE_EXCEEDED if ctx has ended, and
// UNAVAILABLE for any other error, whose text is not sent.
func Fail(ctx context.Context, err error) error {
	if errors.Is(err, dipwell.ErrUnknownLimit) || errors.Is(err, store.ErrUnknownPlan) {
		return status.Error(codes.Internal, err.Error())
	}
	if field, ok := errors.AsType[*dipwell.FieldError](err); ok {
		return detailed(codes.InvalidArgument, field.Error(), &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: field.Field, Description: field.Reason}}}).Err()
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Error(codes.Unavailable, "the rate limit cannot be decided now")
}
