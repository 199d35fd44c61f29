package dipwell

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/dipwell/dipwell/store"
)

// MaxReady is the largest number of keys of a call of Ready, which are read together.
const MaxReady = 1000

// Ready returns those of keys whose Take would be allowed now, in the order given, and
// takes nothing: a worker that has jobs of many customers asks it whose to do next, and
// takes when it has one. Another caller may take in between, so a Take may be refused
// nevertheless.
//
// t is the Take of each key, without its Key. There are at most MaxReady keys. The error is as
// that of Check; for a key that the limit cannot have it is a *FieldError of the field
// "keys[2]". A key whose limit fails open is ready if the store fails.
func (l *Limiter) Ready(ctx context.Context, t Take, keys []string) (ready []string, err error) {
	if len(keys) > MaxReady {
		return nil, badField("keys", "has %d entries; at most %d", len(keys), MaxReady)
	}
	b := store.Batch{Groups: make([]store.Group, len(keys))}
	c := call{alone: true}
	ops := newOps()
	for i, key := range keys {
		t.Key, c.ops = key, ops
		if err := l.prepare(ctx, &c, store.VerbCheck, []Take{t}); err != nil {
			return nil, inKeys(err, i)
		}
		b.Groups[i].Ops = slices.Clone(c.ops) // as long as it must be, because there are many
		clear(c.ops)
		l.adaptives.price(&b.Groups[i])
	}
	if err := l.applyAll(ctx, &b, &c); err != nil {
		return nil, err
	}
	for i := range b.Groups {
		if b.Groups[i].Allowed {
			ready = append(ready, keys[i])
		}
	}
	return ready, nil
}

// applyAll decides all groups of a batch.
func (l *Limiter) applyAll(ctx context.Context, b *store.Batch, c *call) error {
	if c.timeout > 0 && !l.abilities.InProcess {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	var err error
	if len(b.Groups) > 0 && hasShards(&b.Groups[0]) {
		for i := range b.Groups {
			one := store.Batch{Groups: b.Groups[i : i+1]}
			b.Groups[i].Err = l.applySharded(ctx, &one, &b.Groups[i])
		}
	} else if len(b.Groups) > 0 {
		err = l.store.Apply(ctx, b)
	}
	for i := range b.Groups {
		g := &b.Groups[i]
		if err != nil {
			g.Err = err
		}
		if g.Err != nil {
			if failed := fail(g, g.Err); failed != nil {
				return failed
			}
		}
	}
	return nil
}

// inKeys returns an error with the place of the key that it is about.
func inKeys(err error, i int) error {
	if f, ok := errors.AsType[*FieldError](err); ok && f.Field == "key" {
		return &FieldError{Field: fmt.Sprintf("keys[%d]", i), Reason: f.Reason, Err: f.Err}
	}
	return err
}
