package server

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
	"github.com/dipwell/dipwell/store"
)

type errorClass struct {
	of     error
	status int
	field  string // field of the request that is at fault
	code   codes.Code
	// short is set if only the text of the class is sent, unless Config.StoreErrors is set:
	// the error's own text may have the store's address.
	short bool
}

// errorClasses are in the order of precedence, because an error may be of several classes.
var errorClasses = []errorClass{
	{errStopping, http.StatusServiceUnavailable, "", codes.Unavailable, false},
	{dipwell.ErrUnknownLimit, http.StatusNotFound, "limit", codes.NotFound, false},
	{store.ErrUnknownPlan, http.StatusNotFound, "plan", codes.NotFound, false},
	{dipwell.ErrReservation, http.StatusConflict, "reservation", codes.FailedPrecondition, false},
	{errNoOverride, http.StatusNotFound, "key", codes.NotFound, false},
	{dipwell.ErrUnknownHold, http.StatusNotFound, "hold", codes.NotFound, false},
	{errOfID, http.StatusConflict, "id", codes.FailedPrecondition, false},
	{dipwell.ErrHoldConflict, http.StatusConflict, "hold", codes.FailedPrecondition, false},
	{store.ErrOwner, http.StatusConflict, "", codes.FailedPrecondition, false},
	{store.ErrNotSupported, http.StatusNotImplemented, "", codes.Unimplemented, false},
	{store.ErrDenied, http.StatusForbidden, "", codes.Unavailable, true},
	{errTooLarge, http.StatusRequestEntityTooLarge, "body", codes.ResourceExhausted, false},
	{errSlow, http.StatusRequestTimeout, "body", codes.DeadlineExceeded, false},
	{store.ErrFull, http.StatusServiceUnavailable, "", codes.Unavailable, false},
	{store.ErrNoSpace, http.StatusServiceUnavailable, "", codes.Unavailable, true},
	{store.ErrLocked, http.StatusServiceUnavailable, "", codes.Unavailable, true},
}

// class returns the class of an error, and the text to send.
func (s *Server) class(err error) (errorClass, string) {
	class := errorClass{dipwell.ErrStore, http.StatusServiceUnavailable, "", codes.Unavailable, true}
	f, isField := errors.AsType[*dipwell.FieldError](err)
	if isField {
		class = errorClass{status: http.StatusBadRequest, code: codes.InvalidArgument}
	}
	if i := slices.IndexFunc(errorClasses, func(c errorClass) bool { return errors.Is(err, c.of) }); i >= 0 {
		class = errorClasses[i]
	}
	if isField {
		class.field = f.Field
	}
	if class.short && !s.tells {
		err = class.of
	}
	return class, err.Error()
}

// fail answers an error with the status of its class.
func (a *api) fail(w http.ResponseWriter, err error) {
	if d, ok := errors.AsType[*denial](err); ok {
		a.deny(w, d, "")
		return
	}
	if errors.Is(err, errShed) {
		shed(w)
		return
	}
	c, detail := a.class(err)
	if c.status == http.StatusRequestEntityTooLarge {
		w.Header().Set("Connection", "close") // so that the rest of the body is not read
	}
	httplimit.Problem(w, c.status, clip(c.field, maxField), clip(detail, maxDetail))
}

func (s *Server) grpcError(err error) error {
	if d, ok := errors.AsType[*denial](err); ok {
		return s.denied(d, "")
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, dipwell.ErrStore) {
		return status.FromContextError(err).Err()
	}
	if f, ok := errors.AsType[*dipwell.FieldError](err); ok && (f.Field == "timeout" || f.Field == "ttl") { // the message has another name for it
		in := *f
		in.Field += "_us"
		err = &in
	}
	c, detail := s.class(err)
	return status.Error(c.code, clip(detail, maxDetail))
}

// Bounds on what an error repeats of the input. A name or a key that a client sends may
// have 64 KiB, and several times as many when it is quoted.
const (
	maxField  = 128  // bytes: a path such as takes[2].limit and a setting, in full
	maxDetail = 2048 // bytes: the longest sentence of ours, in full
)

// clip is cut, with three dots in place of what was cut off.
func clip(s string, n int) string {
	if short := cut(s, n); len(short) < len(s) {
		return short + "..."
	}
	return s
}
