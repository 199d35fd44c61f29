package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Headers is a version of the metadata that announces a limit: httplimit's
// header fields with lower-case names.
type Headers = httplimit.Headers

const (
	IETF       = httplimit.IETF       // ratelimit and ratelimit-policy, draft-ietf-httpapi-ratelimit-headers-11
	XRateLimit = httplimit.XRateLimit // x-ratelimit-limit, -remaining and -reset
	NoHeaders  = httplimit.NoHeaders  // retry-after alone
)

// MD is the metadata that announces a decision.
func MD(v Headers, d *dipwell.Decision) metadata.MD {
	h := make(http.Header, 3)
	v.Set(h, d)
	md := make(metadata.MD, len(h))
	for name, values := range h {
		md[lower(name)] = values
	}
	return md
}

func lower(name string) string {
	switch name { // the common ones without an allocation
	case "Ratelimit":
		return "ratelimit"
	case "Ratelimit-Policy":
		return "ratelimit-policy"
	}
	return strings.ToLower(name)
}

// A refusal is a status that still is the decision, for errors.As within the process.
type refusal struct {
	status  *status.Status
	refused *dipwell.RefusedError
}

func (e *refusal) Error() string              { return e.status.Err().Error() }
func (e *refusal) GRPCStatus() *status.Status { return e.status }
func (e *refusal) Unwrap() error              { return e.refused }

// Refuse is the error of a refused call: RESOURCE_EXHAUSTED with a QuotaFailure
// that names each limit that refused and, only where waiting helps, a RetryInfo.
// In this process it is a *dipwell.RefusedError as well.
func Refuse(d *dipwell.Decision) error {
	refused := &dipwell.RefusedError{Decision: *d}
	quota := &errdetails.QuotaFailure{}
	if d.Limits == nil {
		quota.Violations = append(quota.Violations, violation(d))
	}
	for i := range d.Limits {
		if e := &d.Limits[i]; !e.Allowed && !names(quota, e.Limit) {
			quota.Violations = append(quota.Violations, violation(e))
		}
	}
	details := []protoadapt.MessageV1{quota}
	if wait := RetryDelay(d); wait > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	}
	s := status.New(codes.ResourceExhausted, refused.Error())
	if with, err := s.WithDetails(details...); err == nil {
		s = with
	}
	return &refusal{s, refused}
}

func names(q *errdetails.QuotaFailure, limit string) bool {
	for _, v := range q.Violations {
		if v.QuotaId == limit {
			return true
		}
	}
	return false
}

func violation(d *dipwell.Decision) *errdetails.QuotaFailure_Violation {
	return &errdetails.QuotaFailure_Violation{
		Subject:     "limit:" + d.Limit,
		Description: fmt.Sprintf("a cost of %d with %d of %d remaining", d.Cost, d.Remaining, d.Capacity),
		QuotaId:     d.Limit,
		QuotaValue:  d.Capacity,
	}
}

// RetryDelay is the delay of a refusal's RetryInfo: exact, or in whole seconds
// where a limit has retry jitter. 0: waiting will not help, or nobody knows how long.
func RetryDelay(d *dipwell.Decision) time.Duration {
	if d.Allowed {
		return 0
	}
	seconds := httplimit.RetryAfter(d)
	if seconds == 0 {
		return 0
	}
	if jittered(d) {
		return time.Duration(min(seconds, maxSeconds)) * time.Second
	}
	return max(d.RetryAfter, time.Microsecond)
}

const maxSeconds = 315_360_000 // ten years: a time.Duration ends at 292

func jittered(d *dipwell.Decision) bool {
	if def := d.Definition(); def != nil && def.RetryJitter > 0 {
		return true
	}
	for i := range d.Limits {
		if def := d.Limits[i].Definition(); def != nil && def.RetryJitter > 0 {
			return true
		}
	}
	return false
}

// Fail is the error of a call that could not be decided: INVALID_ARGUMENT with
// the field when the call is at fault, UNAVAILABLE when the store is, INTERNAL
// when the program is; and the context's own when that ended.
func Fail(ctx context.Context, err error) error {
	if field, ok := errors.AsType[*dipwell.FieldError](err); ok {
		s := status.New(codes.InvalidArgument, field.Error())
		if with, err := s.WithDetails(&errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
			{Field: field.Field, Description: field.Reason}}}); err == nil {
			s = with
		}
		return s.Err()
	}
	if errors.Is(err, dipwell.ErrUnknownLimit) {
		return status.Error(codes.Internal, err.Error())
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Error(codes.Unavailable, "the rate limit cannot be decided now")
}
