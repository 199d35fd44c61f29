// Package store is what the author of a store or of a decorator meets: the Store
// interface and the batches it decides, the definitions of limits and their
// versions, and the algebra that decides a call.
//
// Users of a limiter need package dipwell, and of this one the owners of limits
// (OwnerCode and the others) and the sources of answers.
package store
