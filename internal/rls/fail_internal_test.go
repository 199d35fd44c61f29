package rls

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// The code of an answer does not depend on whether the client or the server sees first
// that the time is up.
func TestCodesOfErrors(t *testing.T) {
	for _, test := range []struct {
		err  error
		want codes.Code
	}{
		{context.DeadlineExceeded, codes.DeadlineExceeded},
		{fmt.Errorf("descriptor 1: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{context.Canceled, codes.Canceled},
		{fmt.Errorf("%w: %w", dipwell.ErrStore, context.DeadlineExceeded), codes.Unavailable},
		{store.ErrFull, codes.Unavailable},
		{&dipwell.FieldError{Field: "cost"}, codes.InvalidArgument},
		{&dipwell.FieldError{Field: "takes[0].limit", Err: dipwell.ErrUnknownLimit}, codes.Internal}, // another process has dropped it
		{errors.New("a bug"), codes.Internal},
	} {
		if got := status.Code(fail(test.err)); got != test.want {
			t.Errorf("%v: %v, want %v", test.err, got, test.want)
		}
	}
}
