// Package door has the key to what package store exports for this module alone.
//
// A function with a parameter of type Key is exported, so that any package of this module
// can call it, and no other module can: it has no value of the type, because it cannot
// import this package.
package door

// A Key is the argument of store.Core.
type Key struct{}
