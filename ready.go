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
	def := l.registry.Lookup(t.Limit)
	if t.With == nil && def == nil {
		return nil, l.registry.Missing(t.Limit)
	}
	c := call{alone: true}
	ops := newOps()
	var groups []store.Group
	var of []int // for each group, the index of its key
	for i, key := range keys {
		t.Key, c.ops = key, ops
		if err := l.prepare(ctx, &c, store.VerbCheck, []Take{t}); err != nil {
			return nil, inKeys(err, i)
		}
		groups, of = appendChecks(groups, of, c.ops, i)
		clear(c.ops)
	}
	for some := range slices.Chunk(groups, readyGroups) {
		if err := l.applyAll(ctx, some, c.timeout); err != nil {
			return nil, err
		}
	}
	last := -1
	for i := range groups {
		if groups[i].Allowed && of[i] != last { // one of its rows is enough
			last = of[i]
			ready = append(ready, keys[last])
		}
	}
	return ready, nil
}

// readyGroups is how many checks of a Ready go to the store together. Keys with shards have
// one for each row.
const readyGroups = 4 * MaxReady

// appendChecks appends a group that checks the ops of key i, or one for each row of the key
// if its limit has shards. A Check of 0 is allowed, so any row will do.
func appendChecks(groups []store.Group, of []int, ops []store.Op, i int) ([]store.Group, []int) {
	for _, row := range terms.RowKeys(ops[0].Def.Shards, ops[0].Key) {
		ops[0].Key = row
		groups, of = append(groups, store.Group{Ops: slices.Clone(ops)}), append(of, i) // as long as they must be, because there are many
	}
	return groups, of
}

// applyAll decides groups together.
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

// inKeys returns an error with the place of the key that it is about.
func inKeys(err error, i int) error {
	if f, ok := errors.AsType[*FieldError](err); ok && f.Field == "key" {
		return &FieldError{Field: fmt.Sprintf("keys[%d]", i), Reason: f.Reason, Err: f.Err}
	}
	return err
}
