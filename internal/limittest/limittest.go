// Package limittest makes definitions of limits for tests, and chooses the seeds of random
// histories.
package limittest

import "github.com/dipwell/dipwell/store"

// Definition is store.NewDefinition for a valid limit. Definition panics
// if the limit is not valid.
func Definition(l store.Limit) *store.Definition {
	d, err := store.NewDefinition(l)
	if err != nil {
		panic(err)
	}
	return d
}
