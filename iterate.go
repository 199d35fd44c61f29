package dipwell

import (
	"cmp"
	"context"
	"iter"

	"github.com/dipwell/dipwell/store"
)

const pageSize = 1000 // rows that AllKeys and AllOverrides ask for at a time

// AllKeys ranges over what Keys lists, page after page. An error is the last element of the
// range. Keys that are used or become full meanwhile may be missing; no key comes twice.
func (l *Limiter) AllKeys(ctx context.Context, limit, prefix string) iter.Seq2[store.KeyState, error] {
	return pages(func(after string) ([]store.KeyState, error) { return l.Keys(ctx, limit, prefix, after, pageSize) },
		func(row *store.KeyState) string { return row.Key })
}

// AllOverrides ranges over what Overrides lists, as AllKeys does.
func (l *Limiter) AllOverrides(ctx context.Context, limit, prefix string) iter.Seq2[Override, error] {
	return pages(func(after string) ([]Override, error) { return l.Overrides(ctx, limit, prefix, after, pageSize) },
		func(o *Override) string { return o.Key })
}

func pages[T any](page func(after string) ([]T, error), key func(*T) string) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after := ""; ; {
			rows, err := page(after)
			for i := range rows {
				if after = cmp.Or(key(&rows[i]), Shared); !yield(rows[i], nil) {
					return
				}
			}
			if err != nil {
				yield(*new(T), err)
			}
			if err != nil || len(rows) == 0 {
				return
			}
		}
	}
}
