package catalog

import (
	"slices"
	"strings"

	"github.com/dipwell/dipwell/store"
)

// MaxPage bounds the rows of a page of keys or of overrides.
const MaxPage = 10_000

// A Page has the first rows of a list by key, of those that were added in any order, perhaps
// twice.
type Page[T any] struct {
	prefix, after string
	most          int
	key           func(*T) string
	rows          []T
	last          *string // key of the last row, once there are most rows; nil: all keys are wanted
}

// NewPage returns an empty page for n rows whose keys begin with prefix and follow after. A
// Page has at most MaxPage rows.
func NewPage[T any](prefix, after string, n int, key func(*T) string) *Page[T] {
	return &Page[T]{prefix: prefix, after: after, most: min(max(n, 0), MaxPage), key: key}
}

// Wants reports whether a row with a key may be on the page.
func (p *Page[T]) Wants(key string) bool {
	return p.most > 0 && (p.after == "" || key > p.after) && strings.HasPrefix(key, p.prefix) && (p.last == nil || key < *p.last)
}

// Add adds a row that Wants accepts.
func (p *Page[T]) Add(row T) {
	if p.rows = append(p.rows, row); len(p.rows) > 2*p.most+1000 { // not at each row, so that sorting costs a row little
		p.Rows()
	}
}

// Rows returns the rows of the page in the order of their keys.
func (p *Page[T]) Rows() []T {
	slices.SortFunc(p.rows, func(a, b T) int { return strings.Compare(p.key(&a), p.key(&b)) })
	p.rows = slices.CompactFunc(p.rows, func(a, b T) bool { return p.key(&a) == p.key(&b) })
	if n := p.most; n > 0 && len(p.rows) >= n {
		clear(p.rows[n:])
		p.rows = p.rows[:n]
		last := p.key(&p.rows[n-1])
		p.last = &last
	}
	return p.rows
}

// Live reports whether a row is not full at now, or cannot be stepped.
func Live(d *store.Definition, row *store.KeyState, now int64) bool {
	op := store.Op{Def: d, Key: row.Key, Verb: store.VerbCheck}
	_, _, err := op.Step(now, row.State, true)
	return err != nil || op.Reset > 0
}
