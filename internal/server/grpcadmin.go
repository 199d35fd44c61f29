package server

import (
	"context"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/dipwell/dipwell/store"
)

var tooManyTakes = "has more than " + strconv.Itoa(store.MaxTakes) + " entries"

func takesPath(i int) string { return "takes[" + strconv.Itoa(i) + "]." }

// checkAdmin returns nil if the caller may make an admin call.
func (v *verbs) checkAdmin(ctx context.Context) error {
	switch token := v.live.Load().token; {
	case v.site.NoAdmin:
		return status.Error(codes.PermissionDenied, "admin calls are on another listener")
	case token != nil && !bearer(metadata.ValueFromIncomingContext(ctx, "authorization"), token):
		return status.Error(codes.Unauthenticated, "admin calls need the metadata authorization: Bearer and the admin token")
	case token == nil && !v.site.Loopback:
		return status.Error(codes.PermissionDenied, "without an admin token, admin calls are answered on a loopback listener only")
	}
	return nil
}
