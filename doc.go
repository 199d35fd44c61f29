// Package dipwell is a rate limiter: token buckets, fixed windows, intervals and
// leaky buckets, kept as two integers per key in a store.
//
// A Limiter sends calls to a Store, which decides them with the rule of the limit
// at one time of its own clock. A refusal is a Decision; an error means that the
// call was not decided. Tokens are whole, time is counted in microseconds, and
// every number is below 2^53, so that Go, SQL and Redis give the same answers.
package dipwell
