package dipwell

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/dipwell/dipwell/store"
)

// Limit returns the present definition of a limit, or nil if there is none. Limit
// reads memory: a limit that another process has just defined is missing until the
// store has told this process.
func (l *Limiter) Limit(name string) *store.Definition { return l.registry.Lookup(name) }

// Limits returns the present definitions of all limits in the store, whoever defined
// them, sorted by name. Like Limit, Limits reads memory. The definitions never change: a
// limit that is defined again has a new one, which a later call returns.
func (l *Limiter) Limits() []*store.Definition { return l.registry.All() }

// Define adds or changes a limit. A change takes effect at the next call; keys in use are
// converted as OnChange says. A limit has one owner, such as store.OwnerCode: a change by
// another one fails with store.ErrOwner. An invalid limit is a *FieldError, and so is one
// whose Parent is missing, a change between Concurrency and another algorithm, and an
// owner that is not 1 to 256 bytes of UTF-8 without NUL. Defining a limit again without a
// difference changes nothing.
func (l *Limiter) Define(ctx context.Context, limit Limit, owner string) (*store.Definition, error) {
	if err := checkOwner(owner); err != nil {
		return nil, err
	}
	old := l.registry.Lookup(limit.Name)
	if old == nil || max(old.Shards, 1) == max(limit.Shards, 1) {
		return l.definer.Define(ctx, limit, owner)
	}
	if l.abilities.Overrides != nil {
		list, err := l.Overrides(ctx, limit.Name, "", "", 1)
		if err == nil && len(list) > 0 {
			return nil, &FieldError{Limit: limit.Name, Field: "shards", Reason: fmt.Sprintf("cannot change while keys have overrides, such as %q; end them first", list[0].Key)}
		}
	}
	def, err := l.definer.Define(ctx, limit, owner)
	if err == nil && def.Number != old.Number {
		changed := *def
		changed.Warning = strings.TrimPrefix(def.Warning+"; ", "; ") + fmt.Sprintf("limit %s: has other shards than before, so that all keys begin with full buckets", limit.Name)
		def = &changed
	}
	return def, err
}

// maxOwner bounds the text of an owner, because the store keeps it with each limit. The
// owner for a configuration file has the file's name, its revision and a digest.
const maxOwner = 256

func checkOwner(owner string) error {
	switch {
	case owner == "":
		return badField("owner", "is empty")
	case len(owner) > maxOwner:
		return badField("owner", "has %d bytes; at most %d", len(owner), maxOwner)
	case strings.IndexByte(owner, 0) >= 0 || !utf8.ValidString(owner):
		return badField("owner", "is not UTF-8 without NUL")
	}
	return nil
}

// Drop deletes a limit with its buckets, holds and overrides. If a limit of the same name
// is defined later, its buckets are full. Drop fails with store.ErrOwner if the limit has
// another owner, with ErrUnknownLimit if there is none, and with a *FieldError if it is
// the Parent of another limit.
func (l *Limiter) Drop(ctx context.Context, name, owner string) error {
	if err := checkOwner(owner); err != nil {
		return err
	}
	if strings.IndexByte(name, 0) >= 0 || !utf8.ValidString(name) { // PostgreSQL cannot store such texts
		return fmt.Errorf("%w %q", ErrUnknownLimit, name)
	}
	return l.definer.Drop(ctx, name, owner)
}

// Keys returns up to n keys of a limit that are not full, in byte order: those that
// begin with prefix and follow after. Pass the last key of a page as after to get the
// next; store.Shared as after follows the shared bucket, whose key is "" and comes
// first. Rows are returned as the store keeps them: see store.KeyState. The error is
// ErrUnknownLimit, a *FieldError, wraps ErrStore, or is store.ErrNotSupported if the store
// cannot list keys: memstore needs Limit.ListKeys.
func (l *Limiter) Keys(ctx context.Context, limit, prefix, after string, n int) ([]store.KeyState, error) {
	def := l.registry.Lookup(limit)
	if def == nil {
		return nil, l.registry.Missing(limit)
	}
	if l.abilities.Keys == nil {
		return nil, store.ErrNotSupported
	}
	if err := checkPage(prefix, after); err != nil || n < 1 {
		return nil, err
	}
	if def.Shards > 1 {
		return l.shardedKeys(ctx, def, prefix, after, n)
	}
	return l.abilities.Keys(ctx, def, prefix, after, n)
}

// Some databases reject texts that no key has, so the bounds of a page are checked.
func checkPage(prefix, after string) error {
	if after == Shared {
		after = ""
	}
	for _, at := range [...][2]string{{"prefix", prefix}, {"after", after}} {
		switch field, text := at[0], at[1]; {
		case len(text) > store.MaxKey:
			return badField(field, "has %d bytes; at most %d", len(text), store.MaxKey)
		case strings.IndexByte(text, 0) >= 0 || !utf8.ValidString(text):
			return badField(field, "is not UTF-8 without NUL")
		}
	}
	return nil
}

// localLimits keeps the limits in this process, for a store without Abilities.Limits.
type localLimits struct {
	now      func(ctx context.Context) (int64, error)
	blocks   bool // the store has overrides
	registry store.Registry
}

func (o *localLimits) Registry() *store.Registry { return &o.registry }

func (o *localLimits) Define(ctx context.Context, l Limit, owner string) (*store.Definition, error) {
	if l.Block != 0 && !o.blocks {
		return nil, &FieldError{Limit: l.Name, Field: "block", Reason: "needs a store with overrides, which this one has not"}
	}
	now, err := o.now(ctx)
	if err != nil {
		return nil, err
	}
	return o.registry.Define(now, l, owner)
}

func (o *localLimits) Drop(_ context.Context, name, owner string) error {
	return o.registry.Drop(name, owner)
}
