package adapters

import (
	"errors"
	"net/http"

	"connectrpc.com/connect"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/httplimit"
)

// Connect returns middleware for the handlers of Connect. It answers a refused call with
// the code resource_exhausted, in the protocol of the client: Connect, gRPC or gRPC-Web.
func Connect(limiter *dipwell.Limiter, limits ...httplimit.Limit) (func(http.Handler) http.Handler, error) {
	answers := connect.NewErrorWriter()
	return httplimit.New(limiter, httplimit.Config{
		Limits: limits,
		Refused: func(w http.ResponseWriter, r *http.Request, _ *dipwell.Decision) {
			// An error means that the client has gone.
			_ = answers.Write(w, r, connect.NewError(connect.CodeResourceExhausted, errors.New("too many requests")))
		},
	})
}
