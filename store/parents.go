package store

import (
	"fmt"

	"github.com/dipwell/dipwell/internal/terms"
)

// CheckParents checks the Parent of a limit that is about to be defined: the parent is
// defined; no limit is its own parent, over any number of levels; no chain has more
// than 4 limits; a Concurrency limit has a Concurrency limit as parent, and is
// the parent of no other algorithm. The error is a *FieldError. Define calls
// CheckParents; a store that keeps limits elsewhere calls it before it stores one.
func (r *Registry) CheckParents(l *Limit) error {
	if r.Partial {
		return nil
	}
	levels, err := r.checkAbove(l)
	old := r.Lookup(l.Name)
	if err != nil || old == nil || old.Parent == l.Parent && old.Algorithm == l.Algorithm && l.Adaptive == (Adaptive{}) && l.Shards < 2 && l.Block == 0 {
		return err // a new limit has no children
	}
	for _, d := range r.All() {
		n, above := 0, d
		for above != nil && above.Name != l.Name && n <= terms.MaxLevels {
			n, above = n+1, r.Lookup(above.Parent)
		}
		switch {
		case above == nil || n == 0:
		case n+levels > terms.MaxLevels:
			return badParent(l, "limit %s would be the lowest of %d levels; at most %d", d.Name, n+levels, terms.MaxLevels)
		case n == 1 && l.Adaptive != (Adaptive{}):
			return &FieldError{Limit: l.Name, Field: "adaptive", Reason: fmt.Sprintf("it is the parent of limit %s, and an adaptive limit cannot be one", d.Name)}
		case n == 1 && (d.Algorithm == Concurrency) != (l.Algorithm == Concurrency):
			return &FieldError{Limit: l.Name, Field: "algorithm", Reason: fmt.Sprintf("it is the parent of limit %s; a concurrency limit and its parent both are one", d.Name)}
		case n == 1 && l.Algorithm == SlidingWindow:
			return &FieldError{Limit: l.Name, Field: "algorithm", Reason: fmt.Sprintf("it is the parent of limit %s, and a sliding window cannot be one", d.Name)}
		case n == 1 && l.Block != 0:
			return &FieldError{Limit: l.Name, Field: "block", Reason: fmt.Sprintf("is not for the parent of limit %s: it would block the keys of others", d.Name)}
		case n == 1 && l.Shards > 1:
			return &FieldError{Limit: l.Name, Field: "shards", Reason: fmt.Sprintf("is not for the parent of limit %s", d.Name)}
		}
	}
	return nil
}

// checkAbove checks the chain of parents of a limit. checkAbove returns the number of
// limits in the chain, including the limit itself.
func (r *Registry) checkAbove(l *Limit) (levels int, err error) {
	levels = 1
	for child := l; child.Parent != ""; levels++ {
		parent := r.Lookup(child.Parent)
		switch {
		case child.Parent == l.Name:
			return 0, badParent(l, "limit %s has this limit above it, so it cannot be its parent", l.Parent)
		case parent == nil && child == l:
			return 0, badParent(l, "there is no limit %s", l.Parent)
		case parent == nil:
			return 0, badParent(l, "limit %s, above it, has a parent that does not exist, %s", child.Name, child.Parent)
		case levels == terms.MaxLevels:
			return 0, badParent(l, "has more than %d levels with it", terms.MaxLevels)
		case parent.Adaptive != (Adaptive{}):
			return 0, badParent(l, "limit %s is adaptive, so it cannot be a parent", parent.Name)
		case parent.Algorithm == SlidingWindow:
			return 0, badParent(l, "limit %s is a sliding window, so it cannot be a parent", parent.Name)
		case parent.Block != 0:
			return 0, &FieldError{Limit: l.Name, Field: "block", Reason: fmt.Sprintf("limit %s has one, so it cannot be a parent: it would block the keys of others", parent.Name)}
		case parent.Shards > 1:
			return 0, badParent(l, "limit %s has shards, so it cannot be a parent", parent.Name)
		case (parent.Algorithm == Concurrency) != (child.Algorithm == Concurrency):
			return 0, badParent(l, "a concurrency limit and its parent both are one; %s is a %s, %s a %s", child.Name, child.Algorithm, parent.Name, parent.Algorithm)
		}
		child = &parent.Limit
	}
	return levels, nil
}

// badParent returns the error for the setting parent of a limit.
func badParent(l *Limit, format string, args ...any) error {
	return &FieldError{Limit: l.Name, Field: "parent", Reason: fmt.Sprintf(format, args...)}
}

// CheckDrop returns a *FieldError if a limit cannot be dropped because it is the
// Parent of another. Drop calls CheckDrop; a store that keeps limits elsewhere calls it
// before it deletes one.
func (r *Registry) CheckDrop(name string) error {
	if r.Partial {
		return nil
	}
	for _, d := range r.All() {
		if d.Parent == name {
			return &FieldError{Limit: name, Field: "parent", Reason: fmt.Sprintf("it is the parent of limit %s, which must be dropped or changed first", d.Name)}
		}
	}
	return nil
}
