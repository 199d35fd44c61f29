package dipwell

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// An Override decides the calls of one key of a limit, in place of the limit and of
// the plan that callers name: a customer who has a plan by contract, is raised for an hour,
// or is blocked. An override has either a plan of the limit or numbers of its own, and a
// note for people. A key has at most one standing override, which lasts until it is ended,
// and one temporary override, which lies over it. Tokens that the key has used when an
// override begins or ends stay used. See store.Override for the fields.
type Override = store.Override

// OverrideKind is one of the two overrides that a key may have.
type OverrideKind = store.OverrideKind

// Kinds of overrides, for EndOverride.
const (
	AnyOverride       = store.AnyOverride       // the temporary override if there is one, or else the standing one
	StandingOverride  = store.StandingOverride  // without Until
	TemporaryOverride = store.TemporaryOverride // with Until
)

// SetOverride sets an override of a key, in place of the one of its kind that it may have:
// a temporary one if o has Until, otherwise the standing one. The override is in force from
// the next call of any program, or if it lies under a temporary one, from the end of that.
// o.Key is Shared if the limit is. The result is the override as it is stored, where the
// key of the shared bucket is "", with the override that it replaced and the one under it.
// The error is a *FieldError if a plan is unknown, which wraps store.ErrUnknownPlan, if the
// numbers do not compile, or if Until is not in the future on the store's clock, and
// ErrNotSupported if the store has no overrides.
func (l *Limiter) SetOverride(ctx context.Context, limit string, o Override) (set Override, err error) {
	def, overrides, err := l.overrider(limit)
	if err == nil {
		o.Key, err = l.checkKey(def, o.Key)
	}
	if err != nil {
		return Override{}, err
	}
	key := o.Key
	for _, row := range terms.RowKeys(def.Shards, key) {
		o.Key = row
		if set, err = overrides.SetOverride(ctx, def, o); err != nil {
			return Override{}, err
		}
	}
	return *set.WithKey(key), nil
}

// EndOverride ends an override of a key: from the next call on, the override under it, or the
// limit or the plan that the caller names, decides again. Used tokens stay used. EndOverride
// returns the override that it ended, or nil if the key had none of this kind, or one that had
// already ended. The error is store.ErrNotSupported if the store has no overrides.
//
// An override with Until needs no EndOverride: it ends exactly at that time, by the
// store's clock.
func (l *Limiter) EndOverride(ctx context.Context, limit, key string, kind OverrideKind) (ended *Override, err error) {
	def, overrides, err := l.overrider(limit)
	if err != nil {
		return nil, err
	}
	// No check of the key, because the override may be older than the present form of the
	// limit's keys.
	_, wrong := l.checkKey(def, key)
	if key, err = checkKey(key); err != nil {
		return nil, err
	}
	if strings.Contains(key, "*") {
		return nil, &FieldError{Field: "key", Reason: terms.OneKey}
	}
	for _, row := range terms.RowKeys(def.Shards, key) {
		had, err := overrides.EndOverride(ctx, def, row, kind)
		if err != nil {
			return nil, err
		}
		ended = cmp.Or(had, ended)
	}
	if ended == nil {
		return nil, wrong
	}
	return ended.WithKey(key), nil
}

// Overrides returns up to n live overrides of a limit, in byte order of their keys:
// those whose keys begin with prefix and follow after, as Keys does. Overrides that have
// ended are left out. The error is ErrUnknownLimit, a *FieldError, wraps ErrStore, or is
// store.ErrNotSupported if the store has no overrides.
func (l *Limiter) Overrides(ctx context.Context, limit, prefix, after string, n int) ([]Override, error) {
	def, overrides, err := l.overrider(limit)
	if err != nil {
		return nil, err
	}
	if err = checkPage(prefix, after); err != nil || n < 1 {
		return nil, err
	}
	if def.Shards > 1 {
		return l.shardedOverrides(ctx, def, prefix, after, n)
	}
	return overrides.Overrides(ctx, def, prefix, after, n)
}

func (l *Limiter) overrider(limit string) (*store.Definition, store.Overrider, error) {
	def := l.registry.Lookup(limit)
	if def == nil {
		return nil, nil, l.registry.Missing(limit)
	}
	if l.abilities.Overrides == nil {
		return nil, nil, fmt.Errorf("overrides: %w", store.ErrNotSupported)
	}
	return def, l.abilities.Overrides, nil
}
