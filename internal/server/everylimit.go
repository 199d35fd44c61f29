package server

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/dipwell/dipwell"
	"github.com/dipwell/dipwell/store"
)

// Bounds of an answer of GET /v1/keys. The store is asked up to six times about each limit.
const (
	limitsOfKey  = 100     // limits that are looked at
	everyLimitOf = 1 << 20 // size of the answer in bytes after which no other limit is looked at
)

// everyLimit answers GET /v1/keys: what each limit knows of a key, or which limits know which
// keys with a prefix. Shared limits, and those that the caller may not name, are left out.
func (a *api) everyLimit(w http.ResponseWriter, r *http.Request, q *query) error {
	q.n = cmp.Or(q.n, pageSize)
	switch one := q.given["key"]; {
	case !one && !q.given["prefix"]:
		return bad("key", "is missing; give it, or a prefix of keys to look for")
	case one && q.given["prefix"]:
		return bad("prefix", "is given together with key; give one of them")
	case !one:
		return a.answerPrefix(w, r, q)
	}
	if err := checkPlain(q.key); err != nil {
		return err
	}
	return a.answerKey(w, r, q)
}

// eachLimit calls f for the first most limits of a list, until f returns false. eachLimit
// returns the name of the last limit, or "" if no other is left.
func eachLimit(defs []*store.Definition, most int, f func(def *store.Definition) (more bool, err error)) (next string, err error) {
	for i, def := range defs {
		more, err := f(def)
		if err != nil && !errors.Is(err, dipwell.ErrUnknownLimit) { // the limit was dropped meanwhile
			return "", err
		}
		if (!more || i+1 == most) && i+1 < len(defs) {
			return def.Name, nil
		}
	}
	return "", nil
}

// keyed returns limits that have keys and whose name follows after, in order.
func (a *api) keyed(ctx context.Context, after string) []*store.Definition {
	return slices.DeleteFunc(a.limitsOf(ctx), func(d *store.Definition) bool { return d.Shared || d.Name <= after })
}

// answerKey answers with the limits that know a key: its bucket is not full, or it has an
// override, holds, usage, or refusals that this process remembers. The decision is that of a
// Check of the cost that was refused last, or of 1.
func (a *api) answerKey(w http.ResponseWriter, r *http.Request, q *query) error {
	limits := []json.RawMessage{}
	size := 0
	next, err := eachLimit(a.keyed(r.Context(), q.after), limitsOfKey, func(def *store.Definition) (bool, error) {
		l, err := a.look(r.Context(), def, q.key, lastCost)
		if f, ok := errors.AsType[*dipwell.FieldError](err); ok && f.Field == "key" { // keys of this limit are other paths
			return true, nil
		}
		if err == nil && (l.d.ResetAfter > 0 || l.d.Definition != nil && l.d.Definition.Override != nil ||
			l.Override != nil || len(l.Holds) > 0 || l.Usage != nil || l.refused() || l.Row != nil) {
			b := l.json()
			limits, size = append(limits, b), size+len(b)
		}
		return size < everyLimitOf, err
	})
	return answerJSON(w, map[string]any{"key": q.key, "limits": limits, "next": Nullable(next)}, err)
}

// knownKey is a key with the limits that have a row or an override for it.
type knownKey struct {
	Key    string   `json:"key"`
	Limits []string `json:"limits"`
}

func (a *api) answerPrefix(w http.ResponseWriter, r *http.Request, q *query) error {
	found, unlisted, more := map[string][]string{}, []string{}, false
	next, err := eachLimit(a.keyed(r.Context(), q.after), limitsOfKey, func(def *store.Definition) (bool, error) {
		names, err := a.keysOf(r.Context(), def, q)
		if errors.Is(err, store.ErrNotSupported) {
			unlisted, err = append(unlisted, def.Name), nil
		}
		more = more || len(names) >= q.n
		for _, key := range names {
			found[key] = append(found[key], def.Name)
		}
		for _, key := range slices.Sorted(maps.Keys(found))[min(q.n, len(found)):] {
			delete(found, key)
			more = true
		}
		return true, err
	})
	keys := []knownKey{}
	for _, key := range slices.Sorted(maps.Keys(found)) {
		keys = append(keys, knownKey{key, found[key]})
	}
	return answerJSON(w, struct {
		Keys     []knownKey `json:"keys"`
		More     bool       `json:"more"`
		Unlisted []string   `json:"unlisted"`
		Next     Nullable   `json:"next"`
	}{keys, more, unlisted, Nullable(next)}, err)
}

// keysOf returns the first keys of a limit with a prefix that have a row or an override, n or
// more if there may be others. If the store cannot list rows, keysOf returns the keys that
// have an override, and store.ErrNotSupported.
func (a *api) keysOf(ctx context.Context, def *store.Definition, q *query) ([]string, error) {
	rows, listed := a.limiter.Keys(ctx, def.Name, q.prefix, "", q.n)
	if listed != nil && !errors.Is(listed, store.ErrNotSupported) {
		return nil, listed
	}
	overrides, err := a.limiter.Overrides(ctx, def.Name, q.prefix, "", q.n)
	if err != nil && !errors.Is(err, store.ErrNotSupported) {
		return nil, err
	}
	names := map[string]bool{}
	for i := range rows {
		names[rows[i].Key] = true
	}
	for i := range overrides {
		names[overrides[i].Key] = true
	}
	return slices.Collect(maps.Keys(names)), listed
}
