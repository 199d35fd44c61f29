package dipwell

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dipwell/dipwell/internal/terms"
	"github.com/dipwell/dipwell/store"
)

// MaxReady is the largest number of keys in a call of Ready. At most MaxReady rows are read
// together: those of all keys or, if the limit has shards, of some keys at a time.
const MaxReady = 1000

// Ready returns those of keys whose Take would be allowed now, in the order given, and
// takes nothing: a worker that has jobs of many customers asks it whose to do next, and
// takes when it has one. Another caller may take in between, so a Take may still be
// refused. examples/river starts the jobs of a queue with Ready.
//
// t is the Take for each key, without its Key. There are at most MaxReady keys. The error is
// one that Check returns; for a key that the limit cannot have it is a *FieldError of the
// field "keys[2]". A key whose limit fails open is ready if the store fails.
func (l *Limiter) Ready(ctx context.Context, t Take, keys []string) (ready []string, err error) {
	if len(keys) > MaxReady {
		return nil, badField("keys", "has %d entries; at most %d", len(keys), MaxReady)
	}
	if t.With == nil && l.registry.Lookup(t.Limit) == nil {
		return nil, l.registry.Missing(t.Limit)
	}
	c := call{alone: true}
	ops := newOps()
	var groups []store.Group
	first := 0 // the index of the key of groups[0]
	for i, key := range keys {
		t.Key, c.ops = key, ops
		if err := l.prepare(ctx, &c, store.VerbCheck, []Take{t}); err != nil {
			return nil, inKeys(err, i)
		}
		rows := terms.RowKeys(c.ops[0].Def.Shards, c.ops[0].Key)
		for _, row := range rows {
			c.ops[0].Key = row
			groups = append(groups, store.Group{Ops: slices.Clone(c.ops)}) // cloned to the exact length, because there are many
		}
		clear(c.ops)
		if len(groups)+len(rows) <= MaxReady && i < len(keys)-1 {
			continue
		}
		if err := l.applyAll(ctx, groups, c.timeout); err != nil {
			return nil, err
		}
		for ; len(groups) > 0; groups, first = groups[len(rows):], first+1 {
			if slices.ContainsFunc(groups[:len(rows)], func(g store.Group) bool { return g.Allowed }) { // it is enough if one row of the key allows the take
				ready = append(ready, keys[first])
			}
		}
	}
	return ready, nil
}

func (l *Limiter) applyAll(ctx context.Context, groups []store.Group, timeout time.Duration) error {
	if timeout > 0 && !l.abilities.InProcess {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	for i := range groups {
		l.adaptives.price(&groups[i])
	}
	err := l.store.Apply(ctx, &store.Batch{Groups: groups})
	for i := range groups {
		g := &groups[i]
		if g.Err = cmp.Or(err, g.Err); g.Err == nil {
			continue
		}
		if failed := fail(g, g.Err); failed != nil {
			return failed
		}
	}
	return nil
}

// inKeys returns an error with the index of the key that it is about.
func inKeys(err error, i int) error {
	if f, ok := errors.AsType[*FieldError](err); ok && f.Field == "key" {
		return &FieldError{Field: fmt.Sprintf("keys[%d]", i), Reason: f.Reason, Err: f.Err}
	}
	return err
}
