package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/tidwall/gjson"

	"github.com/dipwell/dipwell"
)

// maxReadies is how many calls of /v1/ready may be decided at one time. Each may have half a
// megabyte of keys and operations, and take a thousand places in a queue of package coalesce.
const maxReadies = 8

func (a *api) ready(w http.ResponseWriter, r *http.Request, x *exchange) error {
	keys, err := a.readyKeys(r.Context(), &x.req)
	return answerJSON(w, map[string][]string{"keys": append([]string{}, keys...)}, err)
}

// readyKeys returns the keys of q that are ready, or errShed during too many such calls.
func (s *Server) readyKeys(ctx context.Context, q *request) ([]string, error) {
	if i := slices.Index(q.keys, dipwell.Shared); i >= 0 {
		return nil, bad(fmt.Sprintf("keys[%d]", i), "has a NUL byte")
	}
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

// addKey appends a key, or a path of parts, to the list of a call of /v1/ready.
func (q *request) addKey(v gjson.Result) error {
	if len(q.keys) == dipwell.MaxReady {
		return bad("keys", fmt.Sprintf("has more than %d entries", dipwell.MaxReady))
	}
	key, err := keyOfJSON(fmt.Sprintf("keys[%d]", len(q.keys)), v)
	q.keys = append(q.keys, key)
	return err
}
