// Package store is what the author of a store or of a decorator meets: the Store
// interface and the batches it decides, the definitions of limits and their
// versions, and the algebra that decides a call.
//
// The users of a limiter need only package dipwell.
package store
