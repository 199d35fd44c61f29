// Package dipwell is a rate limiter: token buckets, fixed windows, intervals
// and leaky buckets, kept as two whole numbers a key in a store that decides.
//
// A Limiter asks a Store; the store applies a store.Rule, the whole algebra, at
// one instant of its own clock. A refusal is a Decision; an error means that
// nobody knows. Tokens are whole, time is counted in microseconds, and every
// number stays below 2^53, so that Go, SQL and Redis give the same answers.
package dipwell
