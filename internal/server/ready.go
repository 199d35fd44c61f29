package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/tidwall/gjson"

	"github.com/dipwell/dipwell"
)

// maxReadies is how many calls of /v1/ready may be decided at one time. Each call may have
// half a megabyte of keys and operations, and take a thousand places in a queue of package
// coalesce.
const maxReadies = 8

// ready answers POST /v1/ready: for which keys a take would be allowed now.
func (a *api) ready(w http.ResponseWriter, r *http.Request, x *exchange) error {
	keys, err := a.readyKeys(r.Context(), &x.req)
	if err != nil {
		return err
	}
	return answerJSON(w, map[string][]string{"keys": append([]string{}, keys...)})
}

// readyKeys returns the keys of q that are ready, or errShed if too many such calls are being
// decided.
func (s *Server) readyKeys(ctx context.Context, q *request) ([]string, error) {
	if !s.enter(&s.readies, maxReadies) {
		return nil, errShed
	}
	defer s.readies.Add(-1)
	keys, err := s.limiter.Ready(ctx, q.take, q.keys)
	if errors.Is(err, dipwell.ErrStore) {
		s.metrics.storeErrors.Add(1)
	}
	return keys, err
}

// addKey appends a key to the list of a call of /v1/ready. A key that is an array is a path of
// its parts.
func (q *request) addKey(v gjson.Result) error {
	if len(q.keys) == dipwell.MaxReady {
		return bad("keys", fmt.Sprintf("has more than %d entries", dipwell.MaxReady))
	}
	field := fmt.Sprintf("keys[%d]", len(q.keys))
	key, err := keyOfJSON(field, v)
	if err == nil && key == dipwell.Shared {
		err = bad(field, "has a NUL byte")
	}
	q.keys = append(q.keys, key)
	return err
}

func (q *request) completeReady() error {
	if !q.has(hasKeys) {
		return bad("keys", "is missing")
	}
	return finish(&q.take, q.seen|hasKey, "")
}
